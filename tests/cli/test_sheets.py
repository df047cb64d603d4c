"""The sheets of the demonstration."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from abslrp import batches, registry
from abslrp.inputs.images import Transform
from abslrp.inputs.models import LoadedModel
from abslrp.reporting.heatmaps import grid, save_png
from abslrp.reporting.tables import by_family
from abslrp.types import AbslrpError


def cells(number: int) -> list[np.ndarray]:
    """Pictures of one colour each, all different and none a colour of the sheet itself."""
    return [np.full((20, 30, 3), (250, 10 * n, 0), dtype=np.uint8) for n in range(number)]


def corners(sheet: np.ndarray, number: int) -> list[tuple[int, int]]:
    """Where the upper left corner of each picture lies."""
    found = [np.argwhere((sheet == one[0, 0]).all(-1)) for one in cells(number)]
    assert all(len(places) == 20 * 30 for places in found)
    return [(int(places[0][0]), int(places[0][1])) for places in found]


def rows(sheet: np.ndarray, number: int) -> list[int]:
    tops = [top for top, _ in corners(sheet, number)]
    return [sorted(set(tops)).index(top) for top in tops]


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ("aab", [0, 0, 0]),
        ("aabb", [0, 0, 1, 1]),
        ("abbb", [0, 1, 1, 1]),
        ("abbbb", [0, 0, 0, 1, 1]),
        ("aabbbb", [0, 0, 1, 1, 1, 2]),
        ("aaab", [0, 0, 0, 1]),
        ("aba", [0, 0, 0]),
    ],
)
def test_groups_stay_together(groups: str, wanted: list[int]) -> None:
    sheet = grid(cells(len(groups)), 3, list("xyzuvw"[: len(groups)]), groups=list(groups))
    assert rows(sheet, len(groups)) == wanted


def test_groups_have_a_line_over_all_their_pictures() -> None:
    sheet = grid(cells(3), 3, groups=["a", "a", "b"])
    (top, first), (_, second), (_, third) = corners(sheet, 3)
    line = (sheet[:top] == 150).all(-1).any(0)
    assert line[first : second + 30].all()
    assert not line[second + 30 : third].any()
    assert line[third : third + 30].all()


def test_grid_without_groups_wastes_no_room() -> None:
    assert grid(cells(4), 2).shape[0] < grid(cells(4), 2, groups=list("aabb")).shape[0]
    with pytest.raises(AbslrpError, match="1 groups for 2 pictures"):
        grid(cells(2), 2, groups=["a"])


def test_few_colours_make_a_small_file_of_the_same_picture(tmp_path: Path) -> None:
    ramp = np.linspace(0, 235, 200)
    noise = np.random.default_rng(0).uniform(0, 20, (200, 200, 3))
    picture = (np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], 90.0), -1) + noise).astype(np.uint8)
    full, small = save_png(picture, tmp_path / "a.png"), save_png(picture, tmp_path / "b.png", colours=64)
    assert len(set(map(tuple, np.asarray(Image.open(small).convert("RGB")).reshape(-1, 3).tolist()))) <= 64
    assert small.stat().st_size < full.stat().st_size / 2
    near = np.abs(np.asarray(Image.open(small).convert("RGB")).astype(int) - picture).mean()
    assert near < 12
    with pytest.raises(AbslrpError, match="from 2 to 256"):
        save_png(picture, tmp_path / "c.png", colours=1)


def test_families_are_not_mixed_and_controls_come_last() -> None:
    ordered = by_family(registry.methods())
    families = [method.family for method in ordered]
    assert sorted(method.name for method in ordered) == sorted(registry.methods())
    assert len(set(families)) == len(list(groupby(families)))
    assert families[-1] == "control"
    other = registry.Method("other", "", "another family", "", lambda query: query)
    assert [one.family for one in by_family({"other": other, **registry.methods()})][-3:-1] == [
        "another family",
        "control",
    ]


def test_method_sheet_explains_the_predicted_class_with_each(monkeypatch: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)).eval()
    loaded = LoadedModel(model, Transform(size=(64, 64), resize=64), None, "tiny")
    photograph = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 80, 3), dtype=np.uint8))
    targets, original = [], batches.explain

    def spy(model: Any, x: Any, target: Any, *rest: Any, **options: Any) -> Any:
        targets.append(target)
        return original(model, x, target, *rest, **options)

    monkeypatch.setattr(batches, "explain", spy)
    heard: list[str] = []
    methods = [registry.method(name) for name in ("abslrp", "saliency", "constant")]
    sheet = batches.method_sheet(loaded, photograph, methods, columns=2, done=heard.append)
    assert heard == ["abslrp", "saliency", "constant"]
    predicted = int(model(loaded.transform(photograph)[None]).argmax())
    assert targets == [predicted] * 3
    assert (sheet.dtype, sheet.ndim) == (np.uint8, 3)


def test_method_sheet_says_which_map_is_not_finite(monkeypatch: Any) -> None:
    loaded = LoadedModel(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval(), Transform(size=(32, 32)), None, "tiny"
    )
    labels: list[str] = []
    monkeypatch.setattr(batches, "grid", lambda cells, columns, names, *rest, **more: labels.extend(names))
    original = batches.explain

    def broken(model: Any, x: Any, target: Any, name: str, **options: Any) -> Any:
        made = original(model, x, target, name, **options)
        return replace(made, maps=made.maps * float("nan")) if name == "saliency" else made

    monkeypatch.setattr(batches, "explain", broken)
    batches.method_sheet(loaded, Image.new("RGB", (32, 32)), [registry.method(n) for n in ("constant", "saliency")])
    assert labels == ["", "constant", "saliency: not finite"]


def test_white_stays_white_in_few_colours(tmp_path: Path) -> None:
    picture = np.full((60, 60, 3), 255, dtype=np.uint8)
    picture[:30] = np.random.default_rng(0).integers(0, 250, (30, 60, 3))
    stored = np.asarray(Image.open(save_png(picture, tmp_path / "a.png", colours=8)).convert("RGB"))
    assert (stored[30:] == 255).all()
