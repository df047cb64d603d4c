"""Image files of every kind, and the transform against torchvision's and timm's own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from abslrp.inputs.images import SUFFIXES, Transform, find_images, read_image
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.types import AbslrpError


def photograph(width: int = 97, height: int = 61, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = {"CMYK": "jpg", "YCbCr": "jpg", "F": "tif", "I": "tif"}.get(mode, "png")
    photograph().convert("L").convert(mode).save(tmp_path / f"a.{suffix}")
    image = read_image(tmp_path / f"a.{suffix}")
    assert (image.mode, image.size) == ("RGB", (97, 61))
    if mode not in ("1", "I;16"):  # One bit is dithered; Pillow turns L into I;16 without scaling.
        difference = np.asarray(image, dtype=int) - np.asarray(photograph().convert("L"), dtype=int)[..., None]
        assert np.abs(difference).mean() < 3


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_is_scaled_not_cut(tmp_path: Path, suffix: str) -> None:
    deep = np.linspace(0, 65535, 256).round().astype(np.uint16)[None].repeat(2, axis=0)
    Image.fromarray(deep).save(tmp_path / f"deep.{suffix}")
    assert np.array_equal(np.asarray(read_image(tmp_path / f"deep.{suffix}"))[0, :, 0], np.arange(256))


def test_dark_sixteen_bit_stays_dark(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 200, dtype=np.uint16)).save(tmp_path / "dark.png")
    assert np.asarray(read_image(tmp_path / "dark.png")).max() <= 1


def test_float_image_keeps_its_range(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)).save(tmp_path / "f.tif")
    assert np.asarray(read_image(tmp_path / "f.tif"))[0, :, 0].tolist() == [0, 128, 255]


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([10, 20, 30] * 256)
    palette.save(tmp_path / "palette.png", transparency=0)
    for name in ("clear.png", "palette.png"):
        assert np.asarray(read_image(tmp_path / name)).min() == 255


@pytest.mark.parametrize(("orientation", "corner"), [(1, (0, 0)), (3, (1, 1)), (6, (0, 1)), (8, (1, 0))])
def test_exif_turns_the_image(tmp_path: Path, orientation: int, corner: tuple[int, int]) -> None:
    pixels = np.zeros((32, 64, 3), dtype=np.uint8)
    pixels[:16, :32] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif, quality=100)
    turned = np.asarray(read_image(tmp_path / "turned.jpg").convert("L"), dtype=float)
    assert turned.shape == ((32, 64) if orientation in (1, 3) else (64, 32))
    height, width = turned.shape
    row, column = corner
    bright = turned[row * height // 2 :][: height // 2, column * width // 2 :][:, : width // 2]
    assert bright.mean() > 240
    assert turned.mean() < 80


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "a.gif").getpixel((0, 0)) == (255, 0, 0)


def _bad_files(folder: Path) -> dict[str, Path]:
    (folder / "empty.png").touch()
    (folder / "text.jpg").write_text("not an image")
    whole = io.BytesIO()
    photograph(400, 300).save(whole, "PNG")
    (folder / "cut.png").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    jpeg = io.BytesIO()
    photograph(400, 300).save(jpeg, "JPEG")
    (folder / "cut.jpg").write_bytes(jpeg.getvalue()[: len(jpeg.getvalue()) // 2])
    named = ("empty.png", "text.jpg", "cut.png", "cut.jpg", "missing.png")
    return {name: folder / name for name in named} | {"folder": folder}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty.png", "is empty"),
        ("text.jpg", "is not an image"),
        ("cut.png", "is damaged or cut short"),
        ("cut.jpg", "is damaged or cut short"),
        ("missing.png", "does not exist"),
        ("folder", "is a folder"),
    ],
)
def test_what_is_no_image_is_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    path = _bad_files(tmp_path)[name]
    with pytest.raises(AbslrpError, match=says) as caught:
        read_image(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message


def test_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photograph(100, 100).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(AbslrpError, match="too many pixels"):
        read_image(tmp_path / "bomb.png")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read anything")
def test_unreadable_file(tmp_path: Path) -> None:
    photograph().save(tmp_path / "locked.png")
    (tmp_path / "locked.png").chmod(0)
    with pytest.raises(AbslrpError, match="may not be read"):
        read_image(tmp_path / "locked.png")


SHAPES = [(97, 61), (61, 97), (640, 480), (225, 224), (17, 300), (50, 50), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_transform_equals_torchvision(shape: tuple[int, int], interpolation: str) -> None:
    transforms = ensure_torchvision().transforms
    theirs = transforms.Compose(
        [
            transforms.Resize(73, transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(64),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    image = photograph(*shape)
    ours = Transform(size=(64, 64), resize=73, interpolation=interpolation)
    assert torch.equal(ours(image), theirs(image))


@pytest.mark.parametrize("shape", SHAPES)
def test_crop_larger_than_the_image_is_padded_as_torchvision_does(shape: tuple[int, int]) -> None:
    transforms = ensure_torchvision().transforms
    image = photograph(*shape)
    theirs = transforms.Compose([transforms.Resize(33), transforms.CenterCrop(64), transforms.PILToTensor()])(image)
    ours = Transform(size=(64, 64), resize=33, interpolation="bilinear").display(image)
    assert np.array_equal(ours, theirs.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "vit_tiny_patch16_224", "convnextv2_huge", "cspdarknet53"])
def test_transform_equals_timms(shape: tuple[int, int], name: str) -> None:
    ensure_torchvision()
    import timm
    from timm.data import create_transform, resolve_data_config

    from abslrp.inputs.models import _timm_transform

    class Named(torch.nn.Module):
        pretrained_cfg = timm.get_pretrained_cfg(name).to_dict()

    image = photograph(*shape)
    theirs = create_transform(**resolve_data_config(pretrained_cfg=Named.pretrained_cfg), is_training=False)(image)
    assert torch.equal(_timm_transform(Named())(image), theirs)


def test_display_is_the_input_before_normalisation() -> None:
    transform = Transform(size=(32, 48), resize=(40, 60), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    picture, x = transform.display(photograph()), transform(photograph())
    assert picture.shape == (32, 48, 3)
    assert picture.dtype == np.uint8
    back = (x * torch.tensor(transform.std)[:, None, None] + torch.tensor(transform.mean)[:, None, None]) * 255
    assert np.array_equal(back.round().permute(1, 2, 0).numpy().astype(np.uint8), picture)


def test_bgr_swaps_the_channels_of_the_input_only() -> None:
    plain, swapped = (Transform(size=(8, 8), mean=(0.0,) * 3, std=(1.0,) * 3, bgr=bgr) for bgr in (False, True))
    assert torch.equal(plain(photograph()).flip(0), swapped(photograph()))
    assert np.array_equal(plain.display(photograph()), swapped.display(photograph()))


@pytest.mark.parametrize("shape", [(97, 61), (61, 97), (200, 300), (50, 50)])
@pytest.mark.parametrize(
    ("size", "resize"), [((64, 64), 73), ((64, 64), 33), ((32, 48), (40, 60)), ((64, 40), None), ((64, 64), 64)]
)
def test_boxes_go_where_the_pixels_go(
    shape: tuple[int, int], size: tuple[int, int], resize: int | tuple[int, int] | None
) -> None:
    transform = Transform(size=size, resize=resize, interpolation="bilinear")
    width, height = shape
    box = (width // 4, height // 4, width // 2, height * 3 // 4)
    picture = Image.new("RGB", shape)
    picture.paste("white", box)
    (moved,) = transform.boxes([box], shape)
    rows, columns = np.nonzero(transform.display(picture)[..., 0] > 127)
    seen = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert np.abs(np.subtract(moved, seen)).max() <= 1


def test_boxes_are_clipped_and_lost_ones_dropped() -> None:
    transform = Transform(size=(50, 50), resize=100)
    boxes = [(0, 0, 200, 100), (0, 0, 75, 100), (0, 0, 76, 26), (90, 90, 90, 95), (140, 0, 300, 100)]
    assert transform.boxes(boxes, (200, 100)) == [(0, 0, 50, 50), (0, 0, 1, 1)]
    assert transform.boxes([], (200, 100)) == []


def test_boxes_on_an_image_smaller_than_the_crop_lie_behind_the_padding() -> None:
    assert Transform(size=(64, 64), resize=33).boxes([(0, 0, 33, 33)], (33, 33)) == [(15, 15, 48, 48)]


def test_transform_refuses_what_it_does_not_know() -> None:
    with pytest.raises(AbslrpError, match="'cubic' is unknown"):
        Transform(interpolation="cubic")
    with pytest.raises(AbslrpError, match="1 means"):
        Transform(mean=(0.5,), std=(0.5,))


def test_images_are_found_once_and_in_order(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "deep/c.webp", "notes.txt", "[odd].png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_images([tmp_path, tmp_path / "b.png", f"{tmp_path}/*.png"])
    assert [path.name for path in found] == ["[odd].png", "a.JPG", "b.png", "c.webp"]
    assert [path.name for path in find_images([tmp_path / "[odd].png"])] == ["[odd].png"]
    assert [path.name for path in find_images([f"{tmp_path}/**/*.webp"])] == ["c.webp"]
    assert find_images(["nowhere.png"]) == [Path("nowhere.png")]
    assert ".jpeg" in SUFFIXES


@pytest.mark.parametrize("pattern", ["", "*.nothing"])
def test_no_image_found_is_an_error(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(AbslrpError, match="no image found"):
        find_images([tmp_path / pattern])


IMPORT = (
    "from abslrp.inputs.torchvision_ops import ensure_torchvision as e; m = e(); assert e() is m; m.models.resnet18"
)
AFTER_FAILURE = f"""
try:
    import torchvision
except RuntimeError:
    pass
{IMPORT}
"""


@pytest.mark.parametrize("program", [IMPORT, AFTER_FAILURE], ids=["fresh", "after a failed import"])
def test_torchvision_imports_in_a_fresh_process(program: str) -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_missing_torchvision_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AbslrpError, match=r"abslrp\[models\]"):
        ensure_torchvision()
