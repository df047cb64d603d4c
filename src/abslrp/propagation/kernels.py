"""The elementwise steps of :mod:`abslrp.propagation.balance` as two kernels on CUDA, where Triton is installed.

The first kernel sums what a step gets and what it would hand out, the second finds the factors from these sums and writes the
scaled results. Neither writes anything in between, and nothing waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

_BLOCK = 1024
_PROGRAMS = 2048
_PARTIAL = 1024


class Recipe(NamedTuple):
    """Which of the kernels' formulas a step is, with its numbers.

    ``shares``: s = R / (|h| + ε), c = total / (|h| + ε), operands (h, total). ``halves``: the same with
    total = first · (σ (h − b) + a)⁺, operands (h, a, b). ``sum``: R · (first · a σ)⁺ / (|h| + ε) and likewise b, operands
    (a, b), h = first · a + second · b. ``norm``: operands (x, variance, mean, w, b), ``second`` the norm's own ε.
    ``factor``: R · f, c = |f|, operand f.
    """

    kind: str
    eps: float = 0.0
    agreeing: bool = False
    bias: bool = False
    centred: bool = False
    weighted: bool = False
    first: float = 1.0
    second: float = 1.0
    slots: tuple[int, ...] = (0, 1)
    """Which of the step's operands are the formula's, in its order; −1 where there is none."""


KINDS = {"shares": 0, "halves": 1, "sum": 2, "norm": 3, "factor": 4}


@cache
def _compiled() -> Any:
    """The kernels, or None where there is no Triton."""
    try:
        from abslrp.propagation import triton_kernels
    except (ImportError, RuntimeError):
        return None
    return triton_kernels


def usable(R: Tensor) -> bool:
    return R.dtype == torch.float32 and R.device.type == "cuda" and _compiled() is not None


class _Launch(NamedTuple):
    grid: tuple[int]
    partial: int
    numbers: tuple[Any, ...]
    flags: dict[str, Any]
    rows: dict[str, Any]


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


@lru_cache(maxsize=4096)
def _launch(
    recipe: Recipe, shapes: tuple[tuple[int, int, int], ...], layout: Any, batch: int, joint: bool
) -> _Launch | None:
    """All that does not depend on the values; None where a sample's parts lie too far apart for one kernel."""
    (segments, middle, inner), neighbours = layout
    length = middle * inner
    if segments != batch * neighbours or not 0 < length < 2**31 or neighbours > _PARTIAL:
        return None
    if any(shapes[k] != layout.shape for k in recipe.slots[: 1 if recipe.kind in ("norm", "sum", "factor") else 2]):
        return None
    groups = max(1, min(_ceil(length, _BLOCK), _ceil(_PROGRAMS, segments), _PARTIAL // neighbours))
    per = _ceil(_ceil(length, groups), _BLOCK) * _BLOCK
    strides: list[int] = []
    for k in recipe.slots[1:]:
        first, second, third = shapes[max(k, 0)]
        strides += [0 if first == 1 else second * third, 0 if second == 1 else third, 0 if third == 1 else 1]
    strides += [0] * (12 - len(strides))
    numbers = (length, inner, groups, per, recipe.eps, recipe.first, recipe.second, *strides)
    flags = {
        "KIND": KINDS[recipe.kind],
        "AGREE": recipe.agreeing,
        "BIAS": recipe.bias,
        "CENTRED": recipe.centred,
        "WEIGHTED": recipe.weighted,
        "GAIN": len(recipe.slots) > 3 and recipe.slots[3] >= 0,
        "JOINT": joint,
        "BLOCK": _BLOCK,
    }
    count = neighbours * groups
    rows = {"ROWS": count, "WIDE": 1 << (count - 1).bit_length()}
    return _Launch((segments * groups,), segments * groups * 4, (neighbours, *numbers), flags, {**flags, **rows})


def run(
    recipe: Recipe,
    R: Tensor,
    operands: Sequence[Tensor],
    shapes: tuple[tuple[int, int, int], ...],
    layout: Any,
    batch: int,
    joint: bool,
) -> tuple[Tensor, ...] | None:
    """The scaled results, or None where no kernel fits."""
    how = _launch(recipe, shapes, layout, batch, joint)
    if how is None:
        return None
    kernels = _compiled()
    R = R.contiguous()
    slots = [operands[k if k > 0 else 0].contiguous() for k in recipe.slots]
    slots += [slots[0]] * (5 - len(slots))
    partial = torch.empty(how.partial, dtype=torch.float64, device=R.device)
    results = tuple(torch.empty_like(R) for _ in range(2 if recipe.kind == "sum" else 1))
    kernels.sums[how.grid](R, *slots, partial, *how.numbers[1:], **how.flags)
    kernels.scaled[how.grid](R, *slots, partial, results[0], results[-1], *how.numbers, **how.rows)
    return results


# ---------------------------------------------------------------- parts of rules, each in one kernel

_WIDEST = 8192


def gelu_factor(x: Tensor, h: Tensor, eps: float, agreeing: bool) -> Tensor:
    """½ [|x| f′(|x|) + σ x f′(x)] / (|h| + ε) for f = GELU, σ = 1 unless ``agreeing``."""
    x, h = x.contiguous(), h.contiguous()
    out = torch.empty_like(x)
    _compiled().gelu_factor[(_ceil(x.numel(), _BLOCK),)](x, h, out, x.numel(), eps, AGREE=agreeing, BLOCK=_BLOCK)
    return out


def fits_a_row(x: Tensor) -> bool:
    """Whether one program can hold a row of the last dimension."""
    return 0 < x.shape[-1] <= _WIDEST


def softmax_factor(x: Tensor, h: Tensor, eps: float, masked: float) -> Tensor:
    """½ (x h + |x| hₐ) / (h + ε) along the last dimension, hₐ = softmax(|x|), where h is not below ``masked``; see :func:`fits_a_row`."""
    x, h = x.contiguous(), h.contiguous()
    width = x.shape[-1]
    out = torch.empty_like(x)
    wide = 1 << (width - 1).bit_length()
    _compiled().softmax_factor[(x.numel() // width,)](x, h, out, width, eps, MASKED=masked, WIDE=wide)
    return out


def chosen(x: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """x · above where x > 0, x · below elsewhere. Both are of x's shape, or (rows, width) that may be halves of longer rows."""
    x = x.contiguous()
    above, below = (t if t.ndim == 2 and t.stride(1) == 1 else t.contiguous() for t in (above, below))
    width = x.shape[-1] if x.ndim else 1
    rows = [t.stride(0) if t.ndim == 2 else width for t in (above, below)]
    out = torch.empty_like(x)
    _compiled().chosen[(_ceil(x.numel(), _BLOCK),)](x, above, below, out, x.numel(), width, *rows, BLOCK=_BLOCK)
    return out


def halves(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """½ (a |x| + b x), in place of a."""
    _compiled().halves[(_ceil(a.numel(), _BLOCK),)](x, a, b, a.numel(), BLOCK=_BLOCK)
    return a
