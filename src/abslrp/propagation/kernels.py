"""The elementwise steps of :mod:`abslrp.propagation.balance` as two kernels on CUDA, where Triton is installed.

The first kernel sums what a step gets and what it would hand out, the second finds the factors from these sums and writes the
scaled results. Neither writes anything in between, and nothing waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

_BLOCK = 1024
_PROGRAMS = 2048
_PARTIAL = 1024


class Recipe(NamedTuple):
    """Which of the kernels' formulas a step is, with its numbers.

    ``shares``: s = R / (|h| + ε), c = total / (|h| + ε), operands (h, total). ``halves``: the same with
    total = weight · (σ (h − b) + a)⁺, operands (h, a, b). ``sum``: R · (first · a σ)⁺ / (|h| + ε) and likewise b, operands (a, b),
    h = first · a + second · b. ``norm``: operands (x, gain, mean, ε std, b). ``factor``: R · f, c = |f|, operand f.
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


_KINDS = {"shares": 0, "halves": 1, "sum": 2, "norm": 3, "factor": 4}


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


def run(
    recipe: Recipe,
    R: Tensor,
    operands: Sequence[Tensor],
    shape: tuple[int, int, int],
    neighbours: int,
    batch: int,
    joint: bool,
) -> tuple[Tensor, ...] | None:
    """The scaled results, or None where a sample's parts lie too far apart for one kernel."""
    segments, middle, inner = shape
    length = middle * inner
    if segments != batch * neighbours or length >= 2**31 or neighbours > _PARTIAL or not length:
        return None
    kernels = _compiled()
    groups = max(1, min(-(-length // _BLOCK), -(-_PROGRAMS // segments), _PARTIAL // neighbours))
    per = -(-(-(-length // groups)) // _BLOCK) * _BLOCK
    R = R.contiguous()
    if any(operands[k].shape != R.shape for k in recipe.slots[: 1 if recipe.kind in ("norm", "sum") else 2]):
        return None
    slots = [operands[max(k, 0)].contiguous() for k in recipe.slots]
    strides: list[int] = []
    for o in slots[1:]:
        sizes = o.shape
        strides += [
            0 if sizes[0] == 1 else sizes[1] * sizes[2],
            0 if sizes[1] == 1 else sizes[2],
            0 if sizes[2] == 1 else 1,
        ]
    strides += [0] * (12 - len(strides))
    slots += [slots[0]] * (5 - len(slots))
    partial = torch.empty(segments * groups * 4, dtype=torch.float64, device=R.device)
    count = 2 if recipe.kind == "sum" else 1
    results = [torch.empty_like(R) for _ in range(count)]
    shared = (length, inner, groups, per, recipe.eps, recipe.first, recipe.second, *strides)
    flags = {
        "KIND": _KINDS[recipe.kind],
        "AGREE": recipe.agreeing,
        "BIAS": recipe.bias,
        "CENTRED": recipe.centred,
        "WEIGHTED": recipe.weighted,
        "JOINT": joint,
        "BLOCK": _BLOCK,
    }
    grid = (segments * groups,)
    kernels.sums[grid](R, *slots, partial, *shared, **flags)
    rows = neighbours * groups
    kernels.scaled[grid](
        R,
        *slots,
        partial,
        results[0],
        results[-1],
        neighbours,
        *shared,
        **flags,
        ROWS=rows,
        WIDE=1 << (rows - 1).bit_length(),
    )
    return tuple(results)
