"""Removed pixels filled in from their neighbours, so that a removal leaves as little trace as it can."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from abslrp.types import AbslrpError

_DIRECT, _DIAGONAL = 1 / 6, 1 / 12
_LOOK_EVERY = 4
_TINY = torch.finfo(torch.float64).tiny
_DAMPED, _FARTHER = 0.8, 1.5
_BLOCK = 512


def impute(images: Tensor, removed: Tensor, *, tolerance: float = 1e-7, most: int = 1000) -> Tensor:
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
    if not bool(removed.any()):
        return images.clone()
    gone = removed.unsqueeze(1).double()
    known = images.double() * (1 - gone)
    system = _fine(gone)
    guess = _Cycle(system)
    right = (_neighbours(known) * gone).contiguous()
    goal = tolerance * right.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    solution = torch.zeros_like(right)
    residual = right.clone()
    direction = guess(residual)
    weight = _dot(residual, direction)
    for step in range(most):
        pushed = system.times(direction)
        length = _ratio(weight, _dot(direction, pushed))
        solution.addcmul_(length, direction)
        residual.addcmul_(length, pushed, value=-1)
        # An image that has arrived stands still, so that its company cannot carry it on.
        done = residual.flatten(1).norm(dim=1).view(-1, 1, 1, 1) <= goal
        if step % _LOOK_EVERY == 0 and bool(done.all()):
            break
        found = guess(residual)
        fresh = _dot(residual, found)
        direction = torch.addcmul(found, _ratio(fresh, weight), direction)
        weight = torch.where(done, 0.0, fresh)
    # Blocks move known pixels too, which takes part in nothing.
    return solution.mul_(gone).add_(known).to(images.dtype)


@dataclass(frozen=True)
class _Grid:
    """v ↦ A v on pixels, or on blocks of them: what a pixel costs, and its ties to the next one to the right, below, below to
    the right and below to the left."""

    own: Tensor
    ties: tuple[Tensor, Tensor, Tensor, Tensor]

    def times(self, v: Tensor) -> Tensor:
        """(A v)_i = a_i v_i − Σ_j a_ij v_j."""
        kernels = _kernels(v)
        if kernels is not None:
            return self.launch(kernels.times, torch.empty_like(v), v, v.shape[1])
        found = self.own * v
        for tie, (here, there) in zip(self.ties, _ENDS, strict=True):
            if tie[here].numel():
                found[here].addcmul_(tie[here], v[there], value=-1)
                found[there].addcmul_(tie[here], v[here], value=-1)
        return found

    def launch(self, kernel: Any, out: Tensor, v: Tensor, *others: Any) -> Tensor:
        """A kernel on the values and these ties, another tensor if it takes one, the output, its size and further numbers."""
        tensors = [one for one in others if isinstance(one, Tensor)]
        numbers = [one for one in others if not isinstance(one, Tensor)]
        grid = (-(-out.numel() // _BLOCK),)
        kernel[grid](v, self.own, *self.ties, *tensors, out, out.numel(), *v.shape[-2:], *numbers, BLOCK=_BLOCK)
        return out

    def to(self, dtype: torch.dtype) -> _Grid:
        right, below, falling, rising = (tie.to(dtype) for tie in self.ties)
        return _Grid(self.own.to(dtype), (right, below, falling, rising))

    def halved(self) -> _Grid:
        """The same for blocks of 2 × 2 that are moved as one."""
        own = _quarters(self.own)
        right, below, falling, rising = (_quarters(tie) for tie in self.ties)
        inner = right[0] + right[2] + below[0] + below[1] + falling[0] + rising[1]
        # The block to the right begins the tie that rises to the left.
        beside = F.pad(rising[0][..., 1:], (0, 1))
        ties = (
            right[1] + right[3] + falling[1] + beside,
            below[2] + below[3] + falling[2] + rising[3],
            falling[3],
            rising[2],
        )
        return _Grid(sum(own[1:], own[0]) - 2 * inner, ties)


_ALL, _FIRST, _LAST = slice(None), slice(None, -1), slice(1, None)
# Where the ties of a grid begin and end: to the right, below, below to the right, below to the left.
_ENDS = (
    ((..., _ALL, _FIRST), (..., _ALL, _LAST)),
    ((..., _FIRST, _ALL), (..., _LAST, _ALL)),
    ((..., _FIRST, _FIRST), (..., _LAST, _LAST)),
    ((..., _FIRST, _LAST), (..., _LAST, _FIRST)),
)
_WEIGHTS = (_DIRECT, _DIRECT, _DIAGONAL, _DIAGONAL)


def _fine(gone: Tensor) -> _Grid:
    """The system of the removed pixels."""
    ties = []
    for weight, (here, there) in zip(_WEIGHTS, _ENDS, strict=True):
        tie = torch.zeros_like(gone)
        torch.mul(gone[here], gone[there], out=tie[here]).mul_(weight)
        ties.append(tie)
    right, below, falling, rising = ties
    return _Grid(_neighbours(torch.ones_like(gone)) * gone, (right, below, falling, rising))


def _neighbours(values: Tensor) -> Tensor:
    """Σ_j w_ij x_j over the neighbours inside the image."""
    found = torch.zeros_like(values)
    for weight, (here, there) in zip(_WEIGHTS, _ENDS, strict=True):
        found[here].add_(values[there], alpha=weight)
        found[there].add_(values[here], alpha=weight)
    return found


class _Cycle:
    """A cheap guess at the solution: a step on the pixels, one on blocks twice as wide for what is left, and so on, and back.

    Plain conjugate gradients cross a wide hole one pixel a step; blocks leap. What they find is taken 1.5 times, since blocks
    are stiffer than what they stand for. In float32, because a guess need not be exact.
    """

    def __init__(self, system: _Grid) -> None:
        grids = [system]
        while max(grids[-1].own.shape[-2:]) > 1:
            grids.append(grids[-1].halved())
        self._grids = [grid.to(torch.float32) for grid in grids]
        # A block without removed pixels is not moved at all.
        self._steps = [torch.where(grid.own > 1e-6, 1 / grid.own.clamp(min=1e-6), 0.0) for grid in self._grids]

    def __call__(self, residual: Tensor) -> Tensor:
        size = residual.abs().amax((1, 2, 3), keepdim=True).clamp(min=_TINY)
        return self._guess(0, (residual / size).float()).double() * size

    def _guess(self, level: int, wanted: Tensor) -> Tensor:
        grid, step = self._grids[level], self._steps[level]
        if level == len(self._grids) - 1:
            return step * wanted
        kernels = _kernels(wanted)
        if kernels is not None:
            blocks = (-(-wanted.shape[-2] // 2), -(-wanted.shape[-1] // 2))
            many = wanted.shape[1]
            far = grid.launch(
                kernels.left, wanted.new_empty(*wanted.shape[:2], *blocks), wanted, *blocks, many, _DAMPED
            )
            far = self._guess(level + 1, far)
            return grid.launch(kernels.back, torch.empty_like(wanted), wanted, far, *blocks, many, _DAMPED, _FARTHER)
        found = (step * wanted).mul_(_DAMPED)
        left = _quarters(wanted - grid.times(found))
        far = self._guess(level + 1, sum(left[1:], left[0]))
        for quarter, own in zip(_quarters(found, padded=False), _fitting(far, found.shape), strict=True):
            quarter.add_(own, alpha=_FARTHER)
        return found.addcmul_(step, wanted - grid.times(found), value=_DAMPED)


@cache
def _compiled() -> Any:
    """The same in kernels, or None where there is no Triton."""
    try:
        from abslrp.inputs import triton_stencils
    except (ImportError, RuntimeError):
        return None
    return triton_stencils


def _kernels(v: Tensor) -> Any:
    return _compiled() if v.is_cuda else None


def _quarters(values: Tensor, padded: bool = True) -> list[Tensor]:
    """The pixels above left, above right, below left and below right of every block of 2 × 2."""
    height, width = values.shape[-2:]
    if padded and (height % 2 or width % 2):
        values = F.pad(values, (0, width % 2, 0, height % 2))
    return [values[..., row::2, column::2] for row in (0, 1) for column in (0, 1)]


def _fitting(blocks: Tensor, shape: torch.Size) -> list[Tensor]:
    """What blocks give to each of :func:`_quarters`; those at an odd edge have less."""
    height, width = shape[-2] // 2, shape[-1] // 2
    return [blocks[..., : height if row else None, : width if column else None] for row in (0, 1) for column in (0, 1)]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).view(-1, 1, 1, 1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((b > 0) & (a > 0), a / b.clamp(min=_TINY), 0.0)
