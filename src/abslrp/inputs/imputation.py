"""Removed pixels filled in from their neighbours, so that a removal leaves as little trace as it can."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from abslrp.types import AbslrpError

_DIRECT, _DIAGONAL = 1 / 6, 1 / 12
_LOOK_EVERY = 8
_TINY = torch.finfo(torch.float64).tiny


def impute(images: Tensor, removed: Tensor, *, tolerance: float = 1e-7, most: int = 5000) -> Tensor:
    """Each removed pixel as the weighted mean of its neighbours, all of them at once.

    Σ_j w_ij (x_i − x_j) = 0 for every removed pixel i, with w = 1/6 for direct and 1/12 for diagonal neighbours inside the
    image: the noisy linear imputation of Rong et al. (2022), arXiv 2202.00449, without its noise. The system is symmetric
    and positive, so conjugate gradients solve it for a whole batch on its device, in float64; each image stops by itself.

    ``images`` (batch, channel, height, width), ``removed`` (batch, height, width).

    >>> x = torch.tensor([[[[0.0, 9.0, 6.0]]]])
    >>> impute(x, torch.tensor([[[False, True, False]]]))
    tensor([[[[0., 3., 6.]]]])
    """
    if bool(removed.flatten(1).all(1).any()):
        raise AbslrpError("all pixels of an image are removed: nothing is left to fill it from, keep at least one.")
    gone = removed.unsqueeze(1).double()
    known = images.double() * (1 - gone)
    degree = _neighbours(torch.ones_like(gone))
    right = _neighbours(known) * gone
    if not bool(removed.any()):
        return images.clone()
    coarse = _coarse(gone, degree)

    def apply(v: Tensor) -> Tensor:
        return (degree * v - _neighbours(v)).mul_(gone)

    def relaxed(r: Tensor) -> Tensor:
        """A cheap guess at the solution for r: each pixel by itself, and each block of pixels as a whole."""
        z = r / degree
        for level in coarse:
            blocks = F.avg_pool2d(_padded(r, level.side), level.side, divisor_override=1) / level.stiffness
            z += _spread(blocks, level.side, r.shape)
        return z.mul_(gone)

    goal = tolerance * right.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    solution = torch.zeros_like(right)
    residual = right.clone()
    direction = relaxed(residual)
    weight = _dot(residual, direction)
    for step in range(most):
        pushed = apply(direction)
        length = _ratio(weight, _dot(direction, pushed))
        solution += length * direction
        residual -= length * pushed
        # An image that has arrived stands still, so that its company cannot carry it on.
        done = residual.flatten(1).norm(dim=1).view(-1, 1, 1, 1) <= goal
        if step % _LOOK_EVERY == 0 and bool(done.all()):
            break
        guess = relaxed(residual)
        fresh = _dot(residual, guess)
        direction = guess.add_(_ratio(fresh, weight) * direction)
        weight = torch.where(done, 0.0, fresh)
    return (known + solution * gone).to(images.dtype)


@dataclass(frozen=True)
class _Level:
    """Blocks of side × side pixels moved as one: ``stiffness`` is what that costs, eᵀAe."""

    side: int
    stiffness: Tensor


def _coarse(gone: Tensor, degree: Tensor) -> list[_Level]:
    """Levels of blocks twice as large each; plain conjugate gradients cross a wide hole one pixel a step, blocks leap."""
    height, width = gone.shape[-2:]
    levels, side = [], 2
    while side < max(height, width):
        inner = _neighbours(gone, side) * gone
        cost = F.avg_pool2d(_padded(degree * gone - inner, side), side, divisor_override=1)
        # A block without removed pixels is not moved at all.
        levels.append(_Level(side, torch.where(cost > 1e-12, cost, torch.inf)))
        side *= 2
    return levels


def _neighbours(values: Tensor, side: int | None = None) -> Tensor:
    """Σ_j w_ij x_j over the neighbours inside the image, or inside the own block of side × side pixels."""
    across = _beside(values, -1, side)
    rows = _beside(values, -2, side)
    return (across + rows).mul_(_DIRECT).add_(_beside(across, -2, side), alpha=_DIAGONAL)


def _beside(values: Tensor, axis: int, side: int | None) -> Tensor:
    """The sum of the values before and after, along an axis."""
    size = values.shape[axis]
    found = torch.zeros_like(values)
    before, after = values.narrow(axis, 0, size - 1), values.narrow(axis, 1, size - 1)
    if side is not None:
        shape = [1] * values.ndim
        shape[axis] = size - 1
        joined = ((torch.arange(size - 1, device=values.device) + 1) % side != 0).view(shape)
        before, after = before * joined, after * joined
    found.narrow(axis, 1, size - 1).add_(before)
    found.narrow(axis, 0, size - 1).add_(after)
    return found


def _padded(values: Tensor, side: int) -> Tensor:
    height, width = values.shape[-2:]
    return F.pad(values, (0, -width % side, 0, -height % side))


def _spread(blocks: Tensor, side: int, shape: torch.Size) -> Tensor:
    wide = blocks.repeat_interleave(side, -2).repeat_interleave(side, -1)
    return wide[..., : shape[-2], : shape[-1]]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).view(-1, 1, 1, 1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((b > 0) & (a > 0), a / b.clamp(min=_TINY), 0.0)
