"""Does relevance lie where the class is? Focus in mosaics, the pointing game and box mass."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from abslrp.checks import choice
from abslrp.inputs.draws import distinct, generator
from abslrp.inputs.mosaics import TILES, compose, in_quadrants, whole_tiles
from abslrp.metrics.bench import Bench, Explainer, ImageItem, Outcome, merged
from abslrp.metrics.maps import flags_of, pixel_maps, positive_part, ratio
from abslrp.registry import Metric, register_metric
from abslrp.types import AbslrpError

_FOCUS = {"tiles": "antialias", "size": "half"}
SIZES = ("half", "whole")


def settle_focus(**options: Any) -> dict[str, Any]:
    settled = {**_FOCUS, **options}
    choice("tiles", settled["tiles"], TILES)
    choice("size", settled["size"], SIZES)
    return settled


@dataclass(frozen=True)
class FocusMosaic:
    """Two images with a class and two without, by number, row by row; ``positive`` tells which have it."""

    key: str
    number: int
    images: tuple[int, ...]
    positive: tuple[bool, ...]
    label: int


def plan_focus(bench: Bench, options: Mapping[str, Any]) -> list[FocusMosaic]:
    """A mosaic for every image that has a partner of its class and two others without it."""
    labels = _labels(bench, "focus")
    # By names, not by numbers: the order of the images must not matter.
    names = sorted(range(len(labels)), key=lambda i: bench.ids[i])
    having: dict[int, list[int]] = defaultdict(list)
    ranks = {i: rank for rank, i in enumerate(names)}
    for rank, i in enumerate(names):
        for label in labels[i]:
            having[label].append(rank)
    classes = {label: _Class(ranks, [rank - k for k, rank in enumerate(ranks)]) for label, ranks in having.items()}
    plan = [made for i in range(len(labels)) if (made := _focus_mosaic(bench, labels[i], names, ranks, classes, i))]
    if not plan:
        raise AbslrpError(
            "no two of these images share a label while two others lack it: Focus needs such four, give more images."
        )
    return plan


@dataclass(frozen=True)
class _Class:
    """The ranks of the images that have a class, and how many before each lack it."""

    having: list[int]
    lacking: list[int]

    def without(self, k: int) -> int:
        """The rank of the k-th image that lacks the class."""
        return k + bisect_right(self.lacking, k)


def _focus_mosaic(
    bench: Bench,
    labels: frozenset[int],
    names: list[int],
    ranks: Mapping[int, int],
    classes: Mapping[int, _Class],
    i: int,
) -> FocusMosaic | None:
    chance = generator(bench.seed, "focus", bench.ids[i])
    mine = sorted(labels)
    for label in (mine[k] for k in distinct(chance, len(mine), len(mine))):
        found = classes[label]
        partners, rest = len(found.having) - 1, len(names) - len(found.having)
        if partners and rest > 1:
            (k,) = distinct(chance, 1, partners)
            partner = names[found.having[k + (k >= bisect_left(found.having, ranks[i]))]]
            one, other = (names[found.without(k)] for k in distinct(chance, 2, rest))
            four = [(i, True), (partner, True), (one, False), (other, False)]
            laid = [four[int(k)] for k in torch.randperm(4, generator=chance, device="cpu")]
            return FocusMosaic(bench.ids[i], i, tuple(n for n, _ in laid), tuple(p for _, p in laid), label)
    return None


def prepare_focus(
    bench: Bench, items: Sequence[FocusMosaic], options: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    tiles = torch.stack([bench.fetch(item.images) for item in items])
    mosaics = whole_tiles(tiles) if options["size"] == "whole" else compose(tiles, options["tiles"])
    where = torch.tensor([item.positive for item in items], device=mosaics.device)
    return mosaics, where, torch.tensor([item.label for item in items], device=mosaics.device)


def focus(
    bench: Bench, prepared: tuple[Tensor, Tensor, Tensor], explainer: Explainer, options: Mapping[str, Any]
) -> Outcome:
    """Positive relevance on the two images of the class over all of it; .5 is chance, and what an empty map gets."""
    mosaics, where, labels = prepared
    raw = bench.explained(explainer, mosaics, labels)
    parts = in_quadrants(positive_part(raw))
    found = {"score": ratio((parts * where).sum(1), parts.sum(1), 0.5)}
    if bench.details:
        found |= {"mosaic": mosaics, "mosaic_map": raw, "target": labels}
    return Outcome(found, flags_of(raw))


@dataclass(frozen=True)
class Boxed:
    """Pairs of an image and a class that has boxes in it; ``inside`` (pairs, height, width) are the boxes' pixels."""

    numbers: list[int]
    targets: Tensor
    inside: Tensor
    of_item: list[int]


def plan_boxes(bench: Bench, options: Mapping[str, Any]) -> list[ImageItem]:
    if bench.boxes is None:
        raise AbslrpError(
            "the pointing game and box mass need boxes=, one dict {class: [(x0, y0, x1, y1), ...]} per image."
        )
    found = [ImageItem(bench.ids[i], i) for i, boxes in enumerate(bench.boxes) if any(boxes.values())]
    if not found:
        raise AbslrpError("none of the images has a box: the pointing game and box mass have nothing to score.")
    return found


def prepare_boxes(bench: Bench, items: Sequence[ImageItem], options: Mapping[str, Any]) -> Boxed:
    boxes = bench.boxes or []
    pairs = [(k, c) for k, item in enumerate(items) for c in sorted(boxes[item.number]) if boxes[item.number][c]]
    numbers = [items[k].number for k, _ in pairs]
    size = bench.fetch(numbers[:1]).shape[-2:]
    inside = torch.stack([_pixels(boxes[n][c], size[0], size[1]) for n, (_, c) in zip(numbers, pairs, strict=True)])
    device = bench.fetch(numbers[:1]).device
    return Boxed(numbers, torch.tensor([c for _, c in pairs], device=device), inside.to(device), [k for k, _ in pairs])


def pointing(bench: Bench, boxed: Boxed, explainer: Explainer, options: Mapping[str, Any]) -> Outcome:
    """1 where the map's maximum lies in a box of the class; where several pixels share the maximum, their share."""
    raw = bench.maps(explainer, boxed.numbers, boxed.targets)
    pixels = pixel_maps(raw).flatten(1).clamp(min=0)
    top = pixels == pixels.amax(1, keepdim=True)
    hits = (top & boxed.inside.flatten(1)).sum(1) / top.sum(1)
    return _by_image(boxed, hits.double(), raw)


def box_mass(bench: Bench, boxed: Boxed, explainer: Explainer, options: Mapping[str, Any]) -> Outcome:
    """Positive relevance inside the boxes of the class over all of it; an empty map counts as a constant one."""
    raw = bench.maps(explainer, boxed.numbers, boxed.targets)
    mass = positive_part(raw).sum(1, dtype=torch.float64)
    within = (mass * boxed.inside).flatten(1).sum(1)
    area = boxed.inside.flatten(1).double().mean(1)
    total = mass.flatten(1).sum(1)
    return _by_image(boxed, torch.where(total > 0, within / total.clamp(min=1e-300), area), raw)


def _by_image(boxed: Boxed, scores: Tensor, raw: Tensor) -> Outcome:
    """Mean over the classes of each image."""
    count = max(boxed.of_item) + 1
    rows = torch.tensor(boxed.of_item, device=scores.device)
    means = scores.new_zeros(count).index_add(0, rows, scores) / torch.bincount(rows, minlength=count)
    flags: list[tuple[str, ...]] = [()] * count
    for k, flag in zip(boxed.of_item, flags_of(raw), strict=True):
        flags[k] = merged([flags[k]], [flag])[0]
    return Outcome({"score": means}, flags)


def _pixels(boxes: Sequence[tuple[float, float, float, float]], height: int, width: int) -> Tensor:
    """The pixels (height, width) whose corner lies in any box: x0 ≤ column < x1, y0 ≤ row < y1."""
    rows, columns = torch.arange(height, device="cpu")[:, None], torch.arange(width, device="cpu")[None]
    inside = torch.zeros(height, width, dtype=torch.bool, device="cpu")
    for x0, y0, x1, y1 in boxes:
        inside |= (columns >= x0) & (columns < x1) & (rows >= y0) & (rows < y1)
    return inside


def _labels(bench: Bench, name: str) -> Sequence[frozenset[int]]:
    if bench.labels is None:
        raise AbslrpError(
            f"metric {name!r} needs labels=, one class or several per image: pass them, or leave {name} out."
        )
    return bench.labels


def _register(name: str, description: str, citation: str, **steps: Any) -> None:
    register_metric(
        Metric(
            name=name, description=description, family="localization", citation=citation, higher_is_better=True, **steps
        )
    )


_register(
    "focus",
    "positive relevance on the two images of the class in a mosaic of four",
    "Arias-Duart et al. (2022), arXiv 2109.15035",
    settle=settle_focus,
    plan=plan_focus,
    prepare=prepare_focus,
    score=focus,
    options=_FOCUS,
    needs=("labels",),
)
for _name, _description, _citation, _score in (
    (
        "pointing-game",
        "maximum of the map inside a box of the class",
        "Zhang et al. (2016), arXiv 1608.00507",
        pointing,
    ),
    (
        "box-mass",
        "positive relevance inside the boxes of the class",
        "Kohlbrenner et al. (2020), arXiv 1910.09840",
        box_mass,
    ),
):
    _register(
        _name,
        _description,
        _citation,
        settle=lambda: {},
        plan=plan_boxes,
        prepare=prepare_boxes,
        score=_score,
        needs=("boxes",),
    )
