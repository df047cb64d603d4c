"""Norms: their statistics are constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.propagation.functions import Planned
from abslrp.propagation.kinds import Norm
from abslrp.propagation.operations.table import Engine, Run, follow_unmoved, row


def _moments(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, list(dims), correction=0, keepdim=True)
    return mean, variance


def _per_channel(t: Tensor | None, x: Tensor) -> Tensor | None:
    return None if t is None else t.detach().reshape((1, -1, *[1] * (x.ndim - 2)))


def _norm_plan(
    run: Run,
    x: Tensor,
    moments: Callable[[Tensor], Any],
    eps: float,
    weight: Tensor | None,
    bias: Tensor | None,
    running: bool = False,
) -> Planned:
    weight, bias = (None if t is None else t.detach() if t.requires_grad else t for t in (weight, bias))
    return Planned(Norm(moments, eps, weight, bias, running), (x,), run, follow_unmoved)


@row("layer_norm")
def layer_norm(
    e: Engine,
    run: Run,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *rest: Any,
    **more: Any,
) -> Any:
    dims = range(-len(normalized_shape), 0)
    return _norm_plan(run, input, lambda x: _moments(x, dims), eps, weight, bias)


@row("rms_norm")
def rms_norm(
    e: Engine,
    run: Run,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    dims, small = list(range(-len(normalized_shape), 0)), torch.finfo(input.dtype).eps if eps is None else eps
    return _norm_plan(run, input, lambda x: (None, x.square().mean(dims, keepdim=True)), small, weight, None)


@row("batch_norm")
def batch_norm(
    e: Engine, run: Run, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *rest: Any,
) -> Any:  # fmt: skip
    mean, variance = _per_channel(running_mean, input), _per_channel(running_var, input)

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        if training or mean is None or variance is None:
            return _moments(x, [0, *range(2, x.ndim)])
        return mean.to(x.dtype), variance.to(x.dtype)

    running = not training and running_mean is not None
    return _norm_plan(run, input, moments, eps, _per_channel(weight, input), _per_channel(bias, input), running)


@row("instance_norm")
def instance_norm(
    e: Engine, run: Run, input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, *rest: Any,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return lambda: F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return _norm_plan(
        run, input, lambda x: _moments(x, range(2, x.ndim)), eps, _per_channel(weight, input), _per_channel(bias, input)
    )


@row("group_norm")
def group_norm(
    e: Engine,
    run: Run,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> Any:
    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        channels = x.shape[1]
        mean, variance = _moments(x.reshape(len(x), num_groups, -1), [2])
        widen = lambda t: t.expand(-1, -1, channels // num_groups).reshape(len(x), channels, *[1] * (x.ndim - 2))  # noqa: E731
        return widen(mean), widen(variance)

    return _norm_plan(run, input, moments, eps, _per_channel(weight, input), _per_channel(bias, input))
