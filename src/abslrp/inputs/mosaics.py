"""Four images in one: which stand together, how they are laid out, and which part is whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from abslrp.inputs.draws import distinct, generator, seed_of
from abslrp.types import AbslrpError

TILES = ("antialias", "nearest")


@dataclass(frozen=True)
class Mosaic:
    """Four images by number, row by row from the top left; ``own`` is the place of the image that the mosaic was made
    for, ``draw`` in [0, 1) settles whatever else chance decides."""

    key: str
    images: tuple[int, int, int, int]
    own: int
    draw: float

    @property
    def number(self) -> int:
        return self.images[self.own]


def mosaic_plan(ids: Sequence[str], seed: int, number: int | None = None) -> list[Mosaic]:
    """One mosaic for every image, with three others in random places; more or fewer by ``number``.

    Drawn from the seed and the images' names, so the order of the images does not matter.

    >>> [m.images[m.own] for m in mosaic_plan(["a", "b", "c", "d", "e"], seed=0)]
    [0, 1, 2, 3, 4]
    """
    if len(ids) < 4:
        raise AbslrpError(f"{len(ids)} images make no mosaic of four different ones: give at least 4 images.")
    names = sorted(range(len(ids)), key=lambda i: ids[i])
    ranks = {i: rank for rank, i in enumerate(names)}
    plan = []
    for turn in range(-(-(number or len(ids)) // len(ids))):
        for i in range(len(ids)):
            key = ids[i] if turn == 0 else f"{ids[i]}#{turn + 1}"
            chance = generator(seed, "mosaic", key)
            others = distinct(chance, 3, len(ids) - 1)
            four = [i, *(names[rank + (rank >= ranks[i])] for rank in others)]
            places = torch.randperm(4, generator=chance, device="cpu").tolist()
            plan.append(
                Mosaic(key, _four(four, places), places.index(0), float(torch.rand((), generator=chance, device="cpu")))
            )
    if number is None or number == len(plan):
        return plan
    full = number // len(ids) * len(ids)
    rest = sorted(plan[full:], key=lambda m: seed_of(seed, "chosen", m.key))[: number - full]
    kept = {m.key for m in rest}
    return plan[:full] + [m for m in plan[full:] if m.key in kept]


def _four(images: list[int], places: list[int]) -> tuple[int, int, int, int]:
    a, b, c, d = (images[k] for k in places)
    return a, b, c, d


def quadrants(height: int, width: int) -> list[tuple[slice, slice]]:
    """The four parts of a picture, row by row from the top left.

    >>> quadrants(4, 5)[3]
    (slice(2, 4, None), slice(2, 5, None))
    """
    rows = (slice(0, height // 2), slice(height // 2, height))
    columns = (slice(0, width // 2), slice(width // 2, width))
    return [(r, c) for r in rows for c in columns]


def compose(tiles: Tensor, how: str = "antialias") -> Tensor:
    """Mosaics (batch, channel, height, width) of four images each (batch, 4, channel, height, width), at half their size.

    >>> compose(torch.arange(4.0).view(1, 4, 1, 1, 1).expand(1, 4, 1, 2, 2))[0, 0].tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    height, width = tiles.shape[-2:]
    if tiles.ndim != 5 or min(height, width) < 2:
        raise AbslrpError(
            f"images of shape {tuple(tiles.shape[2:])} make no mosaic: give images (channel, height, width) of at least 2×2."
        )
    made = torch.empty_like(tiles[:, 0])
    for place, (rows, columns) in enumerate(quadrants(height, width)):
        size = (rows.stop - rows.start, columns.stop - columns.start)
        if how == "nearest":
            small = F.interpolate(tiles[:, place], size, mode="nearest")
        else:
            # On the CPU torch enlarges no half precision; single precision is what it computes in elsewhere.
            wide = tiles[:, place].to(torch.promote_types(tiles.dtype, torch.float32))
            small = F.interpolate(wide, size, mode="bilinear", antialias=True).to(tiles.dtype)
        made[..., rows, columns] = small
    return made


def whole_tiles(tiles: Tensor) -> Tensor:
    """Mosaics of four images at their own size: twice as high and as wide.

    >>> whole_tiles(torch.zeros(1, 4, 3, 8, 8)).shape
    torch.Size([1, 3, 16, 16])
    """
    upper, lower = torch.cat([tiles[:, 0], tiles[:, 1]], -1), torch.cat([tiles[:, 2], tiles[:, 3]], -1)
    return torch.cat([upper, lower], -2)


def in_quadrants(maps: Tensor) -> Tensor:
    """The sums (batch, 4) of maps (batch, channel, height, width) over each quarter, in float64.

    >>> in_quadrants(torch.ones(1, 1, 4, 4)).tolist()
    [[4.0, 4.0, 4.0, 4.0]]
    """
    parts = [maps[..., r, c].flatten(1).sum(1, dtype=torch.float64) for r, c in quadrants(*maps.shape[-2:])]
    return torch.stack(parts, 1)
