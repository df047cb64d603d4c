"""Maps made comparable: positive parts, pixel maps, and what is wrong with a map."""

from __future__ import annotations

import torch
from torch import Tensor

FLAGS = ("not finite", "no positive relevance", "constant")
"""What can be wrong with a map; an all-zero map has no positive relevance and is constant."""


def flags_of(maps: Tensor) -> list[tuple[str, ...]]:
    """What is wrong with each map.

    >>> flags_of(torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1.0, -2.0], [float("nan"), 1.0], [0.0, 1.0]]))
    [('no positive relevance', 'constant'), ('constant',), ('no positive relevance',), ('not finite',), ()]
    """
    flat = maps.detach().flatten(1)
    finite = flat.isfinite().all(1)
    positive = (flat > 0).any(1)
    constant = (flat == flat[:, :1]).all(1)
    columns = torch.stack([~finite, finite & ~positive, finite & constant], 1).tolist()
    return [tuple(flag for flag, set_ in zip(FLAGS, row, strict=True) if set_) for row in columns]


def positive_part(maps: Tensor) -> Tensor:
    """A⁺ / max A⁺ of every map; 0 where a map is not finite or nowhere positive.

    >>> positive_part(torch.tensor([[-1.0, 2.0, 4.0], [-1.0, -2.0, 0.0]])).tolist()
    [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]
    """
    flat = finite_or_zero(maps).flatten(1).clamp(min=0)
    peak = flat.amax(1, keepdim=True)
    return torch.where(peak > 0, flat / peak.clamp(min=torch.finfo(flat.dtype).tiny), 0.0).view(maps.shape)


def finite_or_zero(maps: Tensor) -> Tensor:
    """The maps, 0 all over where one holds anything that is not finite."""
    finite = maps.flatten(1).isfinite().all(1).view(-1, *[1] * (maps.ndim - 1))
    return torch.where(finite, maps, 0.0)


def pixel_maps(maps: Tensor) -> Tensor:
    """Relevance of pixels (batch, height, width): the sum over the channels, in float64.

    >>> pixel_maps(torch.ones(1, 3, 2, 2)).tolist()
    [[[3.0, 3.0], [3.0, 3.0]]]
    """
    return finite_or_zero(maps).sum(1, dtype=torch.float64)


def l1(maps: Tensor) -> Tensor:
    """The L1 norms (batch,) in float64."""
    return maps.abs().flatten(1).sum(1, dtype=torch.float64)


def ratio(top: Tensor, bottom: Tensor, otherwise: float) -> Tensor:
    """top / bottom, and a given number where bottom is 0.

    >>> ratio(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]), 7.0).tolist()
    [0.5, 7.0]
    """
    return torch.where(bottom != 0, top / torch.where(bottom != 0, bottom, 1.0), otherwise)
