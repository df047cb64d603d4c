"""Sums, scalings, products of elements and activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.propagation.functions import Planned
from abslrp.propagation.kinds import Gate, Scale, Shift, Smooth, Softmax, Sum
from abslrp.propagation.operations.products import MULTIPLY
from abslrp.propagation.operations.table import Engine, Row, Run, follow_aligned, follow_unmoved, forms, row


def _sum_plan(e: Engine, run: Run, terms: Sequence[tuple[Any, float]]) -> Planned:
    live = [(t, c) for t, c in terms if e.live(t)]
    positive = all(c >= 0 and e.nonnegative(t) for t, c in terms)
    kind = Sum(tuple(c for _, c in live), complete=len(live) == len(terms))
    return Planned(kind, tuple(t for t, _ in live), run, follow_aligned, positive)


@row("add", "__add__", "__radd__")
def add(e: Engine, run: Run, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum_plan(e, run, [(input, 1.0), (other, float(alpha))])


@row("sub", "subtract", "__sub__")
def sub(e: Engine, run: Run, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum_plan(e, run, [(input, 1.0), (other, -float(alpha))])


@row("rsub", "__rsub__")
def rsub(e: Engine, run: Run, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _sum_plan(e, run, [(input, -float(alpha)), (other, 1.0)])


def _scale_plan(e: Engine, run: Run, x: Tensor, constant: Any) -> Planned:
    value = constant.detach() if isinstance(constant, Tensor) else float(bool(constant))
    return Planned(Scale(value), (x,), run, follow_aligned, e.nonnegative(x) and e.nonnegative(constant))


@row("mul", "multiply", "__mul__", "__rmul__")
def mul(e: Engine, run: Run, input: Any, other: Any) -> Any:
    if any(isinstance(t, Tensor) and t.is_complex() for t in (input, other)):
        return lambda: _complex_product(torch.as_tensor(input), torch.as_tensor(other))
    if e.live(input) and e.live(other):
        return MULTIPLY.plan(e, run, input, other)
    return _scale_plan(e, run, input, other) if e.live(input) else _scale_plan(e, run, other, input)


def _complex_product(a: Tensor, b: Tensor) -> Tensor:
    """(p + iq)(r + is) in real numbers, which is what rules know."""
    parts = [torch.view_as_real(t).unbind(-1) if t.is_complex() else (t, None) for t in (a, b)]
    (p, q), (r, s) = parts
    if s is None or q is None:
        u, v, w = (p, q, r) if s is None else (r, s, p)
        assert v is not None
        return torch.view_as_complex(torch.stack([u * w, v * w], -1))
    return torch.view_as_complex(torch.stack([p * r - q * s, p * s + q * r], -1))


@row("div", "divide", "true_divide", "__truediv__", "__div__")
def div(e: Engine, run: Run, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """What one divides by normalises: a statistic, and so a constant."""
    if rounding_mode is not None:
        return lambda: torch.div(input.detach(), other, rounding_mode=rounding_mode).detach()
    if not e.live(input):
        return lambda: torch.div(input, other.detach())
    return Planned(Scale(1.0), (input,), run, follow_aligned, e.nonnegative(input) and e.nonnegative(other))


@row("neg", "negative", "__neg__")
def neg(e: Engine, run: Run, input: Tensor) -> Any:
    return _scale_plan(e, run, input, -1)


@row("positive", "__pos__", "conj", "conj_physical")
def positive(e: Engine, run: Run, input: Tensor) -> Any:
    return _scale_plan(e, run, input, 1)


_GATES: dict[str, Callable[..., Callable[[Tensor], Tensor]]] = {
    "relu": lambda: lambda x: x > 0,
    "relu6": lambda: lambda x: x > 0,
    "leaky_relu": lambda negative_slope=0.01: lambda x: x > 0,
    "prelu": lambda weight: lambda x: x > 0,
    "rrelu": lambda lower=0.125, upper=0.33, training=False: lambda x: x > 0,
    "hardtanh": lambda min_val=-1.0, max_val=1.0: lambda x: x > min_val,
    "threshold": lambda threshold, value: lambda x: x > threshold,
    "hardshrink": lambda lambd=0.5: lambda x: x.abs() > lambd,
    "clamp": lambda min=None, max=None: lambda x: x == x if min is None else x > min,
    "clip": lambda min=None, max=None: lambda x: x == x if min is None else x > min,
    "clamp_min": lambda min: lambda x: x > min,
    "clamp_max": lambda max: lambda x: x == x,
}
_SMOOTH = [
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "softsign",
    "softshrink",
    "tanhshrink",
    "logsigmoid",
    "log_sigmoid",
    "hardsigmoid",
    "hardswish",
    "sigmoid",
    "tanh",
    "expit",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "square",
    "abs",
    "absolute",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "arcsin",
    "arccos",
    "arctan",
    "arcsinh",
    "arctanh",
    "erf",
    "erfc",
    "erfinv",
    "sinc",
    "logit",
    "pow",
    "float_power",
    "__pow__",
    "lgamma",
    "digamma",
    "xlogy",
    "__abs__",
    "i0",
]
_NONNEGATIVE = {
    *(
        [
            "relu",
            "relu6",
            "sigmoid",
            "hardsigmoid",
            "softplus",
            "exp",
            "exp2",
            "expit",
            "abs",
            "absolute",
            "__abs__",
            "square",
            "sqrt",
            "cosh",
            "erfc",
            "threshold_zero",
        ]
    ),
}


def _gate(name: str) -> Row:
    active = _GATES[name]

    def build(e: Engine, run: Run, input: Tensor, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        function = getattr(F, name, None) or getattr(torch, name)
        if any(e.live(a) for a in (*args, *kwargs.values())):
            if not name.startswith(("clamp", "clip")):
                return lambda: function(input, *(a.detach() if isinstance(a, Tensor) else a for a in args))
            bounds = dict(zip(("max",) if name == "clamp_max" else ("min", "max"), args, strict=False)) | kwargs
            return lambda: _between(input, bounds.get("min"), bounds.get("max"))
        return Planned(
            Gate(
                active(*args, **kwargs),
                lambda x: function(x, *args, **kwargs),
                _silent(name, *args, **kwargs),
                name == "relu",
            ),
            (input,),
            run,
            follow_unmoved,
            name in _NONNEGATIVE or e.nonnegative(input),
        )

    return build


def _silent(name: str, *args: Any, **kwargs: Any) -> bool:
    """Whether a unit that is not active gives 0."""
    if name in ("relu", "relu6", "hardshrink"):
        return True
    least = kwargs.get("min", kwargs.get("min_val", args[0] if args else None))
    return name in ("clamp", "clip", "clamp_min", "hardtanh") and isinstance(least, (int, float)) and least == 0


def _between(x: Tensor, least: Any, most: Any) -> Tensor:
    """Clamping to bounds that carry relevance themselves."""
    for bound, limit in ((least, torch.maximum), (most, torch.minimum)):
        if bound is not None:
            x = limit(x, torch.as_tensor(bound, dtype=x.dtype, device=x.device))
    return x


def _smooth(name: str) -> Row:
    def build(e: Engine, run: Run, input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        if not e.live(input) or any(e.live(a) for a in (*args, *kwargs.values())):
            return lambda: _power(input, *args, **kwargs)
        function = next(f for f in forms(name))
        squared = name in ("pow", "__pow__", "float_power") and bool(args) and args[0] == 2
        closed = _SLOPES.get(name) if not args and not kwargs else None
        gelu = name == "gelu" and not args and kwargs.get("approximate", "none") == "none"
        return Planned(
            Smooth(lambda x: function(x, *args, **kwargs), closed, gelu),
            (input,),
            run,
            follow_unmoved,
            squared or name in _NONNEGATIVE,
        )

    return build


def _power(base: Any, exponent: Any) -> Tensor:
    """base ** exponent with a live exponent, as exp(exponent · log base)."""
    return torch.exp(exponent * torch.log(torch.as_tensor(base)))


def _sigmoid_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s)


def _silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": _sigmoid_slope,
    "silu": _silu_slope,
    "tanh": lambda x: 1 - torch.tanh(x).square(),
    "exp": torch.exp,
}

for _name in _GATES:
    row(_name)(_gate(_name))
for _name in _SMOOTH:
    row(_name)(_smooth(_name))


@row("__rpow__")
def rpow(e: Engine, run: Run, input: Tensor, other: Any) -> Any:
    return lambda: _power(other, input)


@row("softmax", "_softmax")
def softmax(e: Engine, run: Run, input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    if dim is None:
        dim = 0 if input.ndim in (0, 1, 3) else 1
    return Planned(Softmax(dim), (input,), run, follow_unmoved, nonnegative=True, attention=True)


@row("log_softmax")
def log_softmax(e: Engine, run: Run, input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    return Planned(Shift(), (input,), run, follow_unmoved)
