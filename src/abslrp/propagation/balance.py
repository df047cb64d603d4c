"""Elementwise steps with conservation, in as few passes over memory as they allow.

Conservation asks how much a step would hand out before it knows how much it may. So a step is taken unscaled, while what it
got and what it hands out are summed for each sample, and then scaled. On the CPU this goes piece by piece, each small enough
to stay in the cache; on CUDA by kernels of our own where Triton is there, else with torch's over the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from abslrp.propagation import kernels, native
from abslrp.propagation.axes import Axis
from abslrp.propagation.kernels import Recipe

_PIECE = 1 << 17  # elements for each thread
_ROW, _LONG = 32, 1024
_LEAST = 2.0**-103  # the smallest normal float32 over its rounding

Local = Callable[..., Tensor]
Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Elementwise:
    """What a step does at each element of its output.

    ``local(results, R, *operands)`` fills in the unscaled results, g_i · R, and returns c · R, where all g_i and c are ≥ 0;
    operands broadcast against R. ``finish`` makes relevances of the inputs from the scaled results. ``rows`` tells that
    ``local`` looks at whole rows along the last dimension. ``results`` is their number, and ``scaled`` how many of them, from
    the first, are to be scaled: all unless told. ``recipe`` is the same for a kernel, of the operands or of one ``factor`` made
    of them.
    """

    operands: Callable[[], tuple[Tensor, ...]]
    local: Local
    finish: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
    results: int = 1
    rows: bool = False
    scaled: int | None = None
    recipe: Recipe | None = None
    factor: Callable[..., Tensor] | None = None


class Layout(NamedTuple):
    """A tensor as (segments, middle, inner): each segment belongs to one sample, ``neighbours`` in a row to the same."""

    shape: tuple[int, int, int]
    neighbours: int


class Way(NamedTuple):
    """The layout of a step's tensors, and the shapes that its operands take in it."""

    layout: Layout
    operands: tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=4096)
def _way(shape: Shape, operands: tuple[Shape, ...], axis: Axis | None, batch: int, rows: bool) -> Way | None:
    """How to walk over the samples, or None where they do not lie one after the other."""
    if not shape or (batch > 1 and (axis is None or axis.dim)):
        return None
    neighbours = shape[0] if batch == 1 or axis is None else axis.inner
    full = all(o == shape for o in operands)
    ways = [_row_split(shape)] if full and not rows else [len(shape) - 1] if rows else [2, len(shape) - 1, 1]
    for split in ways:
        if 1 <= split <= len(shape) and all(_fits(o, shape, split) for o in operands):
            whole = (shape[0], prod(shape[1:split]), prod(shape[split:]))
            return Way(Layout(whole, neighbours), tuple(_folded(o, shape, split) for o in operands))
    return None


def _row_split(shape: Shape) -> int:
    """Where to cut so that rows are long enough to be summed fast."""
    split = len(shape)
    while split > 1 and prod(shape[split:]) < _ROW:
        split -= 1
    return split


def _parts(own: Shape, shape: Shape, split: int) -> list[tuple[Shape, Shape]]:
    own = (1,) * (len(shape) - len(own)) + tuple(own)
    return [(own[:1], shape[:1]), (own[1:split], shape[1:split]), (own[split:], shape[split:])]


def _fits(own: Shape, shape: Shape, split: int) -> bool:
    return all(prod(mine) == 1 or tuple(mine) == tuple(full) for mine, full in _parts(own, shape, split))


def _folded(own: Shape, shape: Shape, split: int) -> tuple[int, int, int]:
    first, middle, inner = (prod(mine) for mine, _ in _parts(own, shape, split))
    return first, middle, inner


def _pieces(shape: tuple[int, int, int]) -> Iterator[tuple[slice, slice]]:
    """Slices of the first two dimensions, each of about a piece's size."""
    segments, middle, inner = shape
    rows = max(1, _PIECE * torch.get_num_threads() // max(inner, 1))
    if rows < middle:
        for s in range(segments):
            for start in range(0, middle, rows):
                yield slice(s, s + 1), slice(start, start + rows)
        return
    many = max(1, rows // max(middle, 1))
    for s in range(0, segments, many):
        yield slice(s, s + many), slice(None)


def balanced(step: Elementwise, R: Tensor, axis: Axis | None, batch: int, joint: bool) -> tuple[Tensor, ...] | None:
    """The step with k⁺ and k⁻ (one for both where ``joint``), or None where the samples do not lie one after the other."""
    operands = step.operands()
    way = _way(R.shape, tuple([o.shape for o in operands]), axis, batch, step.rows)
    if way is None:
        return None
    results = _by_kernel(step, R, operands, way, batch, joint)
    if results is None:
        folded = [o.reshape(shape) for o, shape in zip(operands, way.operands, strict=True)]
        work = _on_cpu if R.device.type == "cpu" else _at_once
        results = work(step, R.reshape(way.layout.shape), folded, way.layout, batch, joint)
        del folded
    del operands  # what follows may be large itself
    return step.finish(tuple(r.reshape(R.shape) for r in results))


def _by_kernel(
    step: Elementwise, R: Tensor, operands: tuple[Tensor, ...], way: Way, batch: int, joint: bool
) -> tuple[Tensor, ...] | None:
    """The scaled results by code of our own, where there is a formula for the step and a way to run it."""
    recipe, shapes, layout = step.recipe, way.operands, way.layout
    if recipe is None:
        return None
    if kernels.usable(R):
        if step.factor is not None:
            operands, shapes = (step.factor(*operands),), (layout.shape,)
        return kernels.run(recipe, R, operands, shapes, layout, batch, joint)
    if not native.usable(R):
        return None
    if step.factor is None:
        return native.run(recipe, R, operands, shapes, layout, batch, joint)
    found = R.new_empty(layout.shape)
    folded = [o.reshape(shape) for o, shape in zip(operands, shapes, strict=True)]
    for rows in _pieces(layout.shape):
        found[rows] = step.factor(*(_cut(o, rows) for o in folded))
    return native.run(recipe, R, (found,), (layout.shape,), layout, batch, joint, out=found)


def half_sum(a: Tensor, b: Tensor, x: Tensor, own: bool) -> Tensor:
    """½ (a |x| + b x), in place of a where that is memory of our ``own``."""
    if not own or not (a.is_contiguous() and b.is_contiguous() and x.is_contiguous()):
        return (a * x.abs()).addcmul_(b, x).mul_(0.5)
    if kernels.usable(a) and b.dtype == x.dtype == a.dtype:
        return kernels.halves(a, b, x)
    size = _PIECE * torch.get_num_threads() if a.device.type == "cpu" else max(a.numel(), 1)
    flat = [t.reshape(-1) for t in (a, b, x)]
    for start in range(0, a.numel(), size):
        one, other, part = (t[start : start + size] for t in flat)
        one.mul_(part.abs()).addcmul_(other, part).mul_(0.5)
    return a


def _on_cpu(
    step: Elementwise, R: Tensor, operands: list[Tensor], how: Layout, batch: int, joint: bool
) -> tuple[Tensor, ...]:
    pieces = list(_pieces(how.shape))
    sums = _places(R, how, joint)
    results = [R.new_empty(R.shape) for _ in range(step.results)]
    for rows in pieces:
        part = R[rows]
        handed = step.local([r[rows] for r in results], part, *(_cut(o, rows) for o in operands))
        _row_sums([s[rows] for s in sums], part, handed, joint)
    factors = _factors(_of_segments(sums), how, batch, joint, R.dtype)
    scaled = results[: step.scaled]
    for rows in pieces:
        _scale([r[rows] for r in scaled], [f[rows[0]] for f in factors])
    return tuple(results)


def _at_once(
    step: Elementwise, R: Tensor, operands: list[Tensor], how: Layout, batch: int, joint: bool
) -> tuple[Tensor, ...]:
    results = [R.new_empty(R.shape) for _ in range(step.results)]
    handed = step.local(results, R, *operands)
    sums = _places(R, how, joint)
    _row_sums(sums, R, handed, joint)
    _scale(results[: step.scaled], _factors(_of_segments(sums), how, batch, joint, R.dtype))
    return tuple(results)


def _cut(operand: Tensor, rows: tuple[slice, slice]) -> Tensor:
    first, second = (s if size > 1 else slice(None) for s, size in zip(rows, operand.shape, strict=False))
    return operand[first, second]


def _places(R: Tensor, how: Layout, joint: bool) -> list[Tensor]:
    """Where the sums of the rows go; those of long rows are taken in double, for which torch is slower."""
    dtype = torch.float64 if how.shape[2] > _LONG else R.dtype
    return [R.new_empty(how.shape[:2], dtype=dtype) for _ in range(2 if joint else 4)]


def _of_segments(sums: Sequence[Tensor]) -> Tensor:
    return torch.stack([s.sum(1, dtype=torch.float64) for s in sums])


def _row_sums(sums: Sequence[Tensor], R: Tensor, handed: Tensor, joint: bool) -> None:
    """Σ|R| and Σ|cR|, or ΣR⁺, ΣcR⁺, ΣR⁻, ΣcR⁻, of every row.

    Rows first, then their sums in double: exact enough, and the same for any number of threads.
    """
    found = [R.abs(), handed.abs()] if joint else []
    if not joint:
        found = [R.clamp(min=0), handed.clamp(min=0), R.clamp(max=0), handed.clamp(max=0)]
    for place, values in zip(sums, found, strict=True):
        torch.sum(values, 2, dtype=place.dtype, out=place)


def ratio(wanted: Tensor, given: Tensor) -> Tensor:
    """wanted / given, and 0 where nothing is given, or so little that it is made of numbers too small to be precise: that
    share is lost, never divided by. So no factor overflows float32."""
    lost = given.abs() <= (wanted.abs() * _LEAST).clamp(min=torch.finfo(given.dtype).tiny)
    return torch.where(lost, 0.0, wanted / given.masked_fill(lost, 1.0))


def _factors(sums: Tensor, how: Layout, batch: int, joint: bool, dtype: torch.dtype) -> list[Tensor]:
    """The factors of each segment, (segments, 1, 1): k for all, or k⁻ for all and k⁺ − k⁻ for what is positive.

    A factor common to both signs may be rounded, but rounding their ratio would shift a sample's relevance one way, layer by
    layer, and a contrastive start lives on the difference of two masses. So k⁻ is rounded first and the difference made to
    keep the ratio.
    """
    of_sample = sums.reshape(len(sums), -1, batch, how.neighbours).sum((1, 3))
    given, handed = of_sample[0::2], of_sample[1::2]
    k = ratio(given, handed)
    if joint:
        factors = [k[0]]
    else:
        up, down = k[0], torch.where(k[1] == 0, k[0], k[1])
        short = down.to(dtype).double()
        factors = [short, torch.where(down == 0, up, up * (short / down.masked_fill(down == 0, 1.0)) - short)]
    outer = how.shape[0] // (batch * how.neighbours)
    return [f.to(dtype).reshape(1, -1, 1).expand(outer, -1, how.neighbours).reshape(-1, 1, 1) for f in factors]


def _scale(results: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
    for r in results:
        above = r.clamp(min=0) if len(factors) > 1 else None
        r.mul_(factors[0])
        if above is not None:
            r.addcmul_(above, factors[1])


__all__ = ["Elementwise", "balanced", "half_sum", "ratio"]
