"""Functions that may run as they are where only rectifiers have a rule: relevance is their own gradient then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from abslrp.propagation.calls import WRITING, Run, twin_of, writes, writes_if_told
from abslrp.propagation.functions import Host, Keeper, apply_rectified
from abslrp.propagation.lrp import RECTIFIED, gate_guided
from abslrp.propagation.operations import CONSTANT, STOPPED
from abslrp.propagation.operations.composite import attention
from abslrp.propagation.operations.table import forms
from abslrp.propagation.rulesets import Rule
from abslrp.propagation.samples import leaves_samples
from abslrp.propagation.states import writable
from abslrp.propagation.structural import STRUCTURAL

_LINEAR = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul __matmul__ bmm mm addmm baddbmm "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mean sum "
    "add __add__ __radd__ __iadd__ add_ sub __sub__ __isub__ sub_ mul __mul__ __rmul__ __imul__ mul_ neg __neg__"
)
_OTHERS = (
    "batch_norm layer_norm group_norm instance_norm rms_norm max_pool1d max_pool2d max_pool3d log_softmax "
    "elu selu gelu silu mish softplus hardswish hardsigmoid sigmoid tanh"
)
_RECTIFIERS = "relu relu_ relu6 leaky_relu hardtanh"
_ATTENTION = "softmax"
_MADE_OF = {function: attention for function in forms("scaled_dot_product_attention")}
"""Functions that may run as what they are made of, which overflows later than the fused one."""


def _found(names: str) -> set[Callable[..., Any]]:
    return {function for function in forms(*names.split()) if function not in STOPPED | CONSTANT}


def _moving() -> set[Callable[..., Any]]:
    """The structural functions that write to nothing, or only if they are told."""
    known: Any = STRUCTURAL - CONSTANT - WRITING
    return {f for f in known if not getattr(f, "__name__", "").endswith("_")}


_COMMON = _found(f"{_LINEAR} {_OTHERS}") | _moving()
_GRADIENT = _COMMON | _found(_RECTIFIERS)
_MAX = set(forms("relu", "relu_"))
_RECTIFIED = _COMMON | _found(_ATTENTION) | _MAX | set(_MADE_OF)
_MAY_WRITE = WRITING | {f for f in _GRADIENT | _RECTIFIED if writes_if_told(f)}


def forget(function: Callable[..., Any]) -> None:
    """A function that somebody gave another meaning, and those that do the same in place."""
    for known in (_GRADIENT, _RECTIFIED, _MAX):
        known -= {f for f in known if f is function or twin_of(f) is function}


class Shortcut:
    """Runs what may run as it is, and max(x, 0) where nothing else has a rule; NotImplemented for a call that needs more."""

    def __init__(self, rule: Rule | None) -> None:
        self.functions = _GRADIENT if rule is None else _RECTIFIED
        self._ruled, self._gated = rule is not None, rule is gate_guided

    def __call__(self, host: Host, keeper: Keeper, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _alone(args, kwargs):
            return NotImplemented
        if self._ruled and host.batch > 1 and not leaves_samples(func, args, kwargs, host.batch):
            return NotImplemented
        if func in _MAX and self._ruled:
            if writes(func, args, kwargs):
                if not writable(args[0], args[0]):
                    return NotImplemented
                keeper.about_to_write(args[0])
            return apply_rectified(host, keeper, Run(func, args, kwargs), self._gated, args[0])
        if func in _MAY_WRITE:
            keeper.about_to_write(args[0])
        return _MADE_OF.get(func, func)(*args, **kwargs)


def shortcut(rules: Mapping[str, Rule]) -> Shortcut | None:
    """The shortcut under these rules, where there is one; with no rule at all attention matrices are looked for."""
    if not rules:
        return Shortcut(None)
    return Shortcut(rules["gate"]) if set(rules) == {"gate"} and rules["gate"] in RECTIFIED else None


def _alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call depends on the input by its first argument, and none is an attention matrix."""
    if not args or not isinstance(args[0], Tensor) or args[0].grad_fn is None or kwargs.get("out") is not None:
        return False
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            state = getattr(value, "_abslrp", None)
            if state is not None and state.attention:
                return False
    return torch._C._functorch.maybe_current_level() is None
