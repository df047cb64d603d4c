"""On real networks the maps lie on the object, and belong to the class that was asked for."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.networks import shared_images, shared_network
from torch import Tensor

import abslrp


def mosaics(x: Tensor) -> Tensor:
    """Every four images as the quarters of one."""
    tiles = F.interpolate(x, size=112, mode="bilinear", antialias=True).unflatten(0, (-1, 4))
    rows = [torch.cat([tiles[:, i], tiles[:, i + 1]], 3) for i in (0, 2)]
    return torch.cat(rows, 2)


@pytest.mark.parametrize(
    ("name", "method", "least"),
    [
        ("resnet50", "abslrp", 0.6),
        ("vgg16", "abslrp-agree", 0.6),
        pytest.param("vgg16", "abslrp", 0.5, marks=pytest.mark.slow),
        pytest.param("resnet50", "abslrp-agree", 0.6, marks=pytest.mark.slow),
        pytest.param("resnet50", "clrp", 0.6, marks=pytest.mark.slow),
        pytest.param("vit-tiny", "abslrp-agree", 0.35, marks=pytest.mark.slow),
    ],
)
def test_relevance_lies_on_the_quarter_of_the_class(name: str, method: str, least: float, shared: Path) -> None:
    """The share of positive relevance in the first quarter, for its class; chance is 0.25."""
    model, x = shared_network(shared, name), shared_images(shared, name, 32, seed=5)
    with torch.no_grad():
        classes = model(x).argmax(1).reshape(-1, 4)
    fit = [i for i, four in enumerate(classes) if len(set(four.tolist())) == 4]
    a = abslrp.explain(model, mosaics(x)[fit], classes[fit, 0], method, batch_size=4)
    positive = a.maps.clamp(min=0)
    share = positive[:, :, :112, :112].sum((1, 2, 3)) / positive.sum((1, 2, 3))
    assert share.mean() > least


def test_batches_of_real_images_do_not_touch_each_other(shared: Path) -> None:
    model, x = shared_network(shared, "vit-tiny"), shared_images(shared, "vit-tiny", 3)
    whole = abslrp.explain(model, x)
    alone = abslrp.explain(model, x[1:2])
    torch.testing.assert_close(whole.maps[1], alone.maps[0], rtol=0, atol=1e-3 * float(alone.maps.abs().max()))


def test_the_strongest_pixel_is_on_the_object(shared: Path) -> None:
    """The pointing game on smoothed maps of images with a box of the predicted class."""
    from abslrp.inputs.images import Transform, read_image

    model = shared_network(shared, "resnet50")
    transform = Transform(size=(224, 224), resize=224, mean=(0.48503, 0.45796, 0.40760), std=(1 / 255,) * 3)
    with (shared / "data" / "imagenet-val" / "boxes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    names = list(dict.fromkeys(_file(r) for r in rows))[::40][:8]
    images = [read_image(_path(shared, n)) for n in names]
    a = abslrp.explain(model, torch.stack([transform(i) for i in images]), batch_size=4)
    smooth = F.avg_pool2d(a.maps.sum(1, keepdim=True), 15, 1, 7)[:, 0]
    hits = 0
    for name, image, relevance in zip(names, images, smooth, strict=True):
        row, column = divmod(int(relevance.argmax()), 224)
        scale = min(image.size) / 224
        x, y = ((p - 112) * scale + side / 2 for p, side in ((column, image.size[0]), (row, image.size[1])))
        boxes = [r for r in rows if _file(r) == name]
        hits += any(_inside(r, x, y) for r in boxes)
    assert hits >= 6


def _file(row: dict[str, str]) -> str:
    return next(v for k, v in row.items() if k in ("file", "image", "path", "name", "filename"))


def _path(shared: Path, name: str) -> Path:
    folder = shared / "data" / "imagenet-val"
    return folder / name if (folder / name).exists() else next(folder.glob(f"*/{Path(name).stem}.*"))


def _inside(row: dict[str, str], x: float, y: float) -> bool:
    left, top, right, bottom = (float(row[k]) for k in ("xmin", "ymin", "xmax", "ymax"))
    return left <= x <= right and top <= y <= bottom
