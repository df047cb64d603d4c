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
