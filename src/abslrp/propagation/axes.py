"""Where the samples of a batch lie in a tensor.

Conservation sums over a sample, so every tensor on the way has to know which of its elements belong to which sample,
also after the batch was folded into windows or heads (``(batch·windows, tokens, channels)``) or moved
(``(tokens, batch, channels)``). An :class:`Axis` says it in two numbers: along dimension ``dim`` the sample of
position i is ``(i // inner) % batch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from abslrp.types import AbslrpError


class BatchLost(AbslrpError):
    """The samples of a batch could not be told apart any more; one sample at a time always works."""


class Axis(NamedTuple):
    """The dimension that holds the batch, and how many neighbours in it belong to one sample."""

    dim: int
    inner: int


def fits(axis: Axis | None, shape: Sequence[int], batch: int) -> Axis | None:
    """The axis if a tensor of this shape can have it, else None: the batch was mixed, cut or summed away."""
    if axis is None or not 0 <= axis.dim < len(shape) or axis.inner < 1:
        return None
    return axis if shape[axis.dim] > 0 and shape[axis.dim] % (batch * axis.inner) == 0 else None


def sample_sums(values: Tensor, axis: Axis | None, batch: int) -> Tensor:
    """Sums over everything but the batch, of shape (batch,), in float64.

    Rows are summed in the tensor's own precision and their sums in float64, which costs nothing and keeps the small
    difference between two large masses that a contrastive start leaves.

    >>> sample_sums(torch.ones(2, 6), Axis(1, 2), 3)
    tensor([4., 4., 4.], dtype=torch.float64)
    """
    place = -1 if axis is None or batch == 1 else axis.dim
    if values.ndim > 2 and place < values.ndim - 1:
        values = values.sum(-1)
    if place < 0 or axis is None:
        return values.sum(dtype=torch.float64).reshape(1)
    shape = values.shape
    outer = shape[axis.dim] // (batch * axis.inner)
    folded = values.reshape(prod(shape[: axis.dim]), outer, batch, axis.inner * prod(shape[axis.dim + 1 :]))
    return folded.sum(dim=(0, 1, 3), dtype=torch.float64)


def spread(factors: Tensor, shape: Sequence[int], axis: Axis | None) -> Tensor:
    """Factors of shape (batch,) laid out so that they multiply a tensor of the given shape.

    >>> spread(torch.tensor([1.0, 2.0]), (4, 3), Axis(0, 2)).flatten()
    tensor([1., 1., 2., 2.])
    """
    if len(factors) == 1 or axis is None:
        return factors.reshape([1] * len(shape))
    outer = shape[axis.dim] // (len(factors) * axis.inner)
    line = factors.reshape(1, -1, 1).expand(outer, -1, axis.inner).reshape(-1)
    return line.reshape([-1 if d == axis.dim else 1 for d in range(len(shape))])


def reshaped(axis: Axis, old: Sequence[int], new: Sequence[int], batch: int) -> Axis | None:
    """The axis after elements kept their row-major order but took another shape.

    >>> reshaped(Axis(0, 1), (2, 3, 4), (6, 4), 2)
    Axis(dim=0, inner=3)
    >>> reshaped(Axis(1, 1), (5, 2, 4), (10, 4), 2)
    Axis(dim=0, inner=1)
    """
    stride = axis.inner * prod(old[axis.dim + 1 :])
    below = 1
    for dim in reversed(range(len(new))):
        if stride % below == 0 and new[dim] * below >= stride * batch:
            return fits(Axis(dim, stride // below), new, batch)
        below *= new[dim]
    return None


def aligned(axis: Axis, old: Sequence[int], new: Sequence[int]) -> Axis:
    """The axis after broadcasting, which aligns dimensions from the right."""
    return Axis(axis.dim + len(new) - len(old), axis.inner)


def in_place_of(axis: Axis, old: Sequence[int], new: Sequence[int]) -> Axis | None:
    """The axis after an operation that keeps dimensions where they are but may change their sizes.

    A batch folded with channels into one dimension (grouped convolutions) grows or shrinks with it.
    """
    if axis.dim >= min(len(old), len(new)):
        return None
    size, was = new[axis.dim], old[axis.dim]
    return axis if size == was else Axis(axis.dim, axis.inner * size // was)


def reduced(axis: Axis, dims: Sequence[int], ndim: int, keepdim: bool) -> Axis | None:
    """The axis after a reduction over ``dims`` (all of them where empty)."""
    gone = {d % ndim for d in dims} if dims else set(range(ndim))
    if axis.dim in gone:
        return None
    return axis if keepdim else Axis(axis.dim - sum(d < axis.dim for d in gone), axis.inner)


def viewed(axis: Axis, size: Sequence[int], view: Callable[[Tensor], Any]) -> list[Axis | None]:
    """The axis of each output of a view function, read off the strides of a view of nothing.

    The probe has stride 0 everywhere but along the batch, so the batch is where the outputs have another stride.
    """
    strides = [1 if d == axis.dim else 0 for d in range(len(size))]
    probe = torch.empty_strided(size, strides, device="meta")
    outputs = view(probe)
    found: list[Axis | None] = []
    for output in [outputs] if isinstance(outputs, Tensor) else outputs:
        dims = [
            d for d, (stride, size) in enumerate(zip(output.stride(), output.shape, strict=True)) if stride and size > 1
        ]
        whole = len(dims) == 1 and output.shape[dims[0]] == size[axis.dim]
        found.append(Axis(dims[0], axis.inner) if whole else None)
    return found


def read(numbers: Tensor, batch: int) -> Axis | None:
    """The axis of a tensor whose elements are the numbers of their samples, −1 for nobody's; None where they lie in no order.

    >>> read(torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]]), 2)
    Axis(dim=1, inner=2)
    >>> read(torch.tensor([[0, -1], [1, -1]]), 2)
    Axis(dim=0, inner=1)
    """
    known = numbers >= 0
    for dim, size in enumerate(numbers.shape):
        if size % batch or not size:
            continue
        places = torch.arange(size, device=numbers.device)
        for inner in dict.fromkeys((size // batch, *(n for n in range(1, size // batch) if size % (n * batch) == 0))):
            wanted = (places // inner % batch).reshape([-1 if d == dim else 1 for d in range(numbers.ndim)])
            if bool(((numbers == wanted) | ~known).all()):
                return Axis(dim, inner)
    return None
