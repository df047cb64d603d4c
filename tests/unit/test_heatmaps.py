"""Colours, overlays, contact sheets and files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from abslrp.reporting.files import class_slug, unique_stems, write_explanation
from abslrp.reporting.heatmaps import grid, heatmap, overlay, save_png
from abslrp.types import AbslrpError

WHITE = [255, 255, 255]


def ramp(length: int = 101) -> np.ndarray:
    return np.linspace(-1, 1, length)[None]


def test_red_is_for_blue_against_white_zero() -> None:
    red, green, blue = heatmap(ramp(), scale=1.0)[0].astype(int).T
    assert (red[60:] > blue[60:]).all()
    assert (blue[:40] > red[:40]).all()
    assert [red[50], green[50], blue[50]] == WHITE


def test_lightness_falls_from_zero_outwards() -> None:
    grey = np.asarray(Image.fromarray(heatmap(ramp(), scale=1.0)).convert("L"), dtype=int)[0]
    assert (np.diff(grey[50:]) <= 0).all()
    assert (np.diff(grey[:51]) >= 0).all()
    assert abs(grey[0] - grey[-1]) < 25


def test_channels_are_summed_and_tensors_taken() -> None:
    relevance = torch.randn(3, 5, 7, dtype=torch.float16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert np.array_equal(heatmap(relevance), heatmap(relevance.detach().double().sum(0).numpy()))


def test_scale_is_robust_to_an_outlier_and_symmetric() -> None:
    values = np.random.default_rng(0).standard_normal((64, 64))
    outlier = values.copy()
    outlier[0, 0] = 1e6
    assert np.abs(heatmap(values).astype(int) - heatmap(outlier)).mean() < 1
    assert not np.array_equal(heatmap(outlier, percentile=100), heatmap(outlier))
    assert np.array_equal(heatmap(values, scale=2.0), heatmap(10 * values, scale=20.0))


def test_fixed_scale_sets_full_colour() -> None:
    full, half = heatmap(np.array([[2.0, 1.0]]), scale=2.0)[0].tolist()
    assert full == heatmap(np.array([[5.0]]))[0, 0].tolist()
    assert half != full


def test_positive_drops_what_is_against() -> None:
    colours = heatmap(np.array([[-5.0, 0.0, 1.0]]), mode="positive")[0].tolist()
    assert colours[:2] == [WHITE, WHITE]
    assert colours[2] == heatmap(np.array([[1.0]]))[0, 0].tolist()


@pytest.mark.parametrize("mode", ["diverging", "positive"])
@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_nothing_is_white(mode: str, fill: float) -> None:
    assert (heatmap(np.full((3, 4, 4), fill), mode=mode) == 255).all()  # type: ignore[arg-type]


def test_infinite_values_do_not_hide_the_others() -> None:
    values = np.array([[np.inf, 1.0, 0.0, np.nan, -np.inf]])
    assert heatmap(values)[0].tolist() == heatmap(np.array([[1.0, 1.0, 0.0, 0.0, -1.0]]))[0].tolist()


def test_a_single_pixel_is_seen() -> None:
    values = np.zeros((100, 100))
    values[3, 4] = 1e-12
    assert np.argwhere((heatmap(values) != 255).any(axis=-1)).tolist() == [[3, 4]]


def test_size_enlarges_in_sharp_pixels_and_averages_down() -> None:
    values = np.array([[1.0, -1.0], [0.0, 0.5]])
    assert np.array_equal(heatmap(values, size=(4, 4), scale=1.0), heatmap(np.kron(values, np.ones((2, 2))), scale=1.0))
    assert heatmap(np.array([[1.0, -1.0]]), size=(1, 1), scale=1.0)[0, 0].tolist() == WHITE


@pytest.mark.parametrize("shade", [0, 128, 255])
def test_overlay_reads_on_dark_and_light(shade: int) -> None:
    picture = np.full((1, 3, 3), shade, dtype=np.uint8)
    positive, zero, negative = overlay(np.array([[1.0, 0.0, -1.0]]), picture)[0].astype(int)
    assert zero.min() == zero.max()
    for colour in (positive, negative):
        assert np.abs(colour - zero).max() >= 80
    assert positive[0] > positive[2] + 100
    assert negative[2] > negative[0] + 100


def test_overlay_shows_the_image_where_the_map_is_zero() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    shown = overlay(np.zeros((8, 8)), picture).astype(float)[..., 0]
    grey = np.asarray(Image.fromarray(picture).convert("L"), dtype=float)
    assert np.corrcoef(shown.ravel(), grey.ravel())[0, 1] > 0.999


def test_overlay_fits_map_to_image() -> None:
    assert overlay(np.ones((7, 7)), np.zeros((21, 28, 3), dtype=np.uint8)).shape == (21, 28, 3)
    assert overlay(np.ones((7, 7)), Image.new("L", (28, 21)), size=(42, 56)).shape == (42, 56, 3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mode": "rainbow"}, "'rainbow' is unknown"),
        ({"percentile": 0}, "percentile is 0"),
        ({"percentile": 101}, "percentile is 101"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"scale": float("nan")}, "scale is nan"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], says: str) -> None:
    with pytest.raises(AbslrpError, match=says):
        heatmap(np.ones((2, 2)), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4, 4), (0, 4)])
def test_what_is_no_map_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(AbslrpError, match="is no picture"):
        heatmap(np.zeros(shape))


def test_what_is_no_picture_is_refused() -> None:
    for picture in (np.zeros((4, 4, 3)), np.zeros((4, 4, 4), dtype=np.uint8)):
        with pytest.raises(AbslrpError, match="uint8"):
            overlay(np.zeros((4, 4)), picture)
    with pytest.raises(AbslrpError, match="alpha is 2"):
        overlay(np.zeros((4, 4)), np.zeros((4, 4, 3), dtype=np.uint8), alpha=2)


def _find(sheet: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.argwhere((sheet == np.array(colour)).all(axis=-1))


def test_grid_shows_every_picture_whole_and_in_order() -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    cells = [np.full((30, 50, 3), colour, dtype=np.uint8) for colour in colours]
    sheet = grid(cells, 2, ["one", "two", "three"], "Title")
    places = [_find(sheet, colour) for colour in colours]
    assert [len(place) for place in places] == [1500, 1500, 1500]
    first, second, third = (place.min(axis=0) for place in places)
    assert first[0] == second[0] < third[0]
    assert first[1] == third[1] < second[1]
    border = np.concatenate([sheet[:10].ravel(), sheet[-10:].ravel(), sheet[:, :10].ravel(), sheet[:, -10:].ravel()])
    assert (border == 255).all()


def test_grid_writes_labels_inside_their_cells() -> None:
    cells = [np.full((30, 120, 3), 200, dtype=np.uint8)] * 2
    label = "a label that is far too long for the narrow cell it stands in, and goes on"
    bare, written = grid(cells, 2, ["", ""]), grid(cells, 2, [label, ""])
    assert written.shape[0] > bare.shape[0]
    ink = np.argwhere(written.min(axis=-1) < 120)
    left = _find(written, (200, 200, 200))[:, 1].min()
    assert len(ink) > 50
    assert left - 1 <= ink[:, 1].min()
    assert ink[:, 1].max() <= left + 121


def test_grid_writes_letters_beyond_ascii() -> None:
    cell = [np.full((30, 200, 3), 255, dtype=np.uint8)]
    assert not np.array_equal(grid(cell, 1, ["café ×"]), grid(cell, 1, ["cafě ÷"]))


def test_grid_scales_down_what_is_too_large() -> None:
    sheet = grid([np.full((400, 200, 3), (9, 9, 9), dtype=np.uint8)], 1, cell=(100, 100))
    assert len(_find(sheet, (9, 9, 9))) == 100 * 50


def test_grid_checks_what_it_is_given() -> None:
    with pytest.raises(AbslrpError, match="0 pictures"):
        grid([], 2)
    with pytest.raises(AbslrpError, match="1 labels for 2 pictures"):
        grid([np.zeros((4, 4, 3), dtype=np.uint8)] * 2, 2, ["a"])


def test_png_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "er" / "a.png"
    picture = heatmap(np.random.default_rng(0).standard_normal((8, 9)))
    assert np.array_equal(np.asarray(Image.open(save_png(picture, path))), picture)
    before = path.read_bytes()

    def fail(self: Image.Image, file: object, **settings: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(AbslrpError, match=r"a.png cannot be written \(No space left on device\)"):
        save_png(picture, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["a.png"]


def test_png_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AbslrpError, match="cannot be written"):
        save_png(np.zeros((2, 2, 3), dtype=np.uint8), tmp_path / "file" / "a.png")


@pytest.mark.skipif(os.name == "nt", reason="rights are another matter there")
def test_png_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_png(np.zeros((2, 2, 3), dtype=np.uint8), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_explanation_is_three_files_that_tell_all(tmp_path: Path) -> None:
    relevance = np.random.default_rng(0).standard_normal((3, 6, 6))
    files = write_explanation(
        tmp_path, "a", relevance, np.zeros((6, 6, 3), dtype=np.uint8), {"target": 4, "method": "m"}
    )
    assert [file.name for file in files] == ["a.png", "a-map.png", "a.npz"]
    with np.load(tmp_path / "a.npz") as stored:
        assert stored["map"].dtype == np.float32
        assert np.array_equal(stored["map"], relevance.astype(np.float32))
        assert (int(stored["target"]), str(stored["method"])) == (4, "m")


def test_stems_are_told_apart() -> None:
    paths = [Path(name) for name in ("a/x.png", "b/x.png", "c/X.jpg", "x-2.png", "y" * 300 + ".png", "é.png")]
    stems = unique_stems(paths)
    assert len({stem.casefold() for stem in stems}) == len(paths)
    assert (stems[0], stems[3], stems[5]) == ("x", "x-2", "é")
    assert max(map(len, stems)) <= 100


@pytest.mark.parametrize(
    ("index", "names", "slug"),
    [
        (0, ["Egyptian cat"], "egyptian-cat"),
        (0, ["café/crème, hot"], "cafe-creme-hot"),
        (0, ["../../etc"], "etc"),
        (0, ["???"], "class-0"),
        (1, ["???", "!!!"], "class-1"),
        (1, ["a b", "a-b"], "a-b-1"),
        (3, None, "class-3"),
        (0, ["猫"], "猫"),
    ],
)
def test_class_names_become_file_names(index: int, names: list[str] | None, slug: str) -> None:
    assert class_slug(index, names) == slug


def test_pictures_need_only_torch_numpy_and_pillow() -> None:
    program = (
        "import sys, abslrp, abslrp.reporting.heatmaps, abslrp.inputs.images\n"
        "print([name for name in ('scipy', 'matplotlib', 'typer', 'rich', 'jinja2', 'timm', 'torchvision', "
        "'transformers', 'skimage') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
