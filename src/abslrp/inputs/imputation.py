"""Removed pixels filled in from their neighbours, so that a removal leaves as little trace as it can."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from abslrp.types import AbslrpError

_DIRECT, _DIAGONAL = 1 / 6, 1 / 12
_LOOK_EVERY = 25


def impute(images: Tensor, removed: Tensor, *, tolerance: float = 1e-9, most: int = 5000) -> Tensor:
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
    kernel = _kernel(images)
    degree = _neighbours(torch.ones_like(gone), kernel)
    right = _neighbours(known, kernel) * gone
    scale = right.flatten(1).norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny).view(-1, 1, 1, 1)

    def apply(v: Tensor) -> Tensor:
        return (degree * v - _neighbours(v, kernel)) * gone

    # A pixel alone is solved by dividing by its degree, which is therefore what scales the steps.
    solution = right / degree
    residual = right - apply(solution)
    direction = residual / degree * gone
    weight = _dot(residual, residual / degree)
    for step in range(most):
        pushed = apply(direction)
        length = _ratio(weight, _dot(direction, pushed))
        solution = solution + length * direction
        residual = residual - length * pushed
        fresh = _dot(residual, residual / degree)
        direction = residual / degree * gone + _ratio(fresh, weight) * direction
        # An image that has arrived stands still, so that its company cannot carry it on.
        done = residual.flatten(1).norm(dim=1).view(-1, 1, 1, 1) <= tolerance * scale
        weight = torch.where(done, 0.0, fresh)
        if step % _LOOK_EVERY == 0 and bool(done.all()):
            break
    return (known + solution * gone).to(images.dtype)


def _kernel(images: Tensor) -> Tensor:
    rows = [
        [_DIAGONAL, _DIRECT, _DIAGONAL],
        [_DIRECT, 0.0, _DIRECT],
        [_DIAGONAL, _DIRECT, _DIAGONAL],
    ]
    return torch.tensor(rows, dtype=torch.float64, device=images.device).view(1, 1, 3, 3)


def _neighbours(values: Tensor, kernel: Tensor) -> Tensor:
    flat = values.flatten(0, 1).unsqueeze(1)
    return F.conv2d(flat, kernel, padding=1).view(values.shape)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).view(-1, 1, 1, 1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((b > 0) & (a > 0), a / b.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
