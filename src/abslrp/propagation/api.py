"""The two public doors of the engine: :func:`propagate` and :func:`register_operation`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from abslrp.propagation.conservation import CONSERVATIONS
from abslrp.propagation.engine import Propagation
from abslrp.propagation.functions import Planned
from abslrp.propagation.kinds import Gate, Smooth
from abslrp.propagation.operations.reductions import nonnegative_map
from abslrp.propagation.operations.table import OPERATIONS, STOPPED, follow_unmoved
from abslrp.propagation.plain import forget
from abslrp.propagation.rulesets import ATTENTION, CONTRIBUTIONS, FIRST, POOLING, RULESETS
from abslrp.propagation.starts import PASSES, check_start
from abslrp.propagation.structural import KEPT, STRUCTURAL
from abslrp.types import AbslrpError, brief

OPTIONS: dict[str, tuple[str, ...]] = {
    "conserve": tuple(CONSERVATIONS),
    "start": tuple(PASSES),
    "pooling": tuple(POOLING),
    "contributions": tuple(CONTRIBUTIONS),
    "attention": ATTENTION,
    "unknown": ("error", "gradient"),
    "head": ("same", "positive"),
    "first": tuple(FIRST),
}


def settle(ruleset: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options with the ruleset's defaults, checked one by one."""
    if not isinstance(ruleset, str) or ruleset not in RULESETS:
        raise AbslrpError(f"ruleset {brief(ruleset)} is unknown: choose one of {', '.join(RULESETS)}.")
    settled = dict(RULESETS[ruleset].defaults)
    for name, value in options.items():
        if name not in settled:
            raise AbslrpError(f"option {name!r} is unknown for {ruleset}: choose from {', '.join(sorted(settled))}.")
        if name == "start" and isinstance(value, Tensor):
            check_start(value)
            continue
        if name in OPTIONS and not (isinstance(value, str) and value in OPTIONS[name]):
            raise AbslrpError(f"{name}={brief(value)} is unknown: choose one of {', '.join(OPTIONS[name])}.")
        if name in ("eps", "gamma") and not _positive(value):
            raise AbslrpError(f"{name}={brief(value)} must be a number above 0, such as the default {settled[name]}.")
        if name == "relative" and not isinstance(value, bool):
            raise AbslrpError(f"relative={brief(value)} must be True or False.")
    return {**settled, **options}


def _positive(value: Any) -> bool:
    """Whether a value is a finite number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def propagate(ruleset: str = "abslrp", *, measure: bool = True, **options: Any) -> Propagation:
    """The engine itself, as a context in which any model carries relevance.

    Options: ``conserve`` sign, joint, each or none; ``contributions`` positive or agreeing; ``pooling`` winner or weighted;
    ``attention`` all, values or queries-keys; ``eps``; ``unknown`` error or gradient; ``start``, the default of ``relevance``;
    ``head`` same or positive, the contributions counted at the operation that makes the outputs; ``first`` same, epsilon or
    gamma, the rule of the linear operation that meets the input, where only contributions of both signs tell pixels apart.

    >>> import torch
    >>> model, x = torch.nn.Linear(2, 2, bias=False), torch.tensor([[1.0, 2.0]])
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 1.0], [0.0, -1.0]]))
    >>> with propagate("abslrp", conserve="none") as p:
    ...     out = model(x)
    >>> p.relevance(out, x, torch.tensor([[3.0, 0.0]]))
    tensor([[1., 2.]])
    >>> p.coverage.rows[0].kind
    'affine'
    """
    o = settle(ruleset, options)
    rules = RULESETS[ruleset].make(o)
    head = {**CONTRIBUTIONS["positive"], "maximum": rules["maximum"]} if o.get("head") == "positive" else rules
    return Propagation(
        rules,
        head,
        conserve=o.get("conserve", "none"),
        eps=o.get("eps", 1e-10),
        attention=o.get("attention", "all"),
        unknown=o["unknown"],
        measure=measure,
        start=o["start"],
        first=FIRST[o.get("first", "same")],
    )


def register_operation(function: Callable[..., Any], kind: str | Callable[..., Any], *, replace: bool = False) -> None:
    """Teach the engine a torch function it does not know.

    ``kind`` is ``"structural"`` (elements are only moved: the gradient is the transport), ``"elementwise"`` (smooth f of
    each element), ``"gate"`` (x where x > 0), ``"linear"`` (a linear map of its first argument with non-negative
    entries), ``"constant"`` (relevance stops), or a function of the same signature made of functions that the engine knows.

    >>> import torch
    >>> register_operation(torch.special.bessel_j0, "elementwise")
    >>> with propagate("abslrp") as p:
    ...     x = torch.ones(1, 2, requires_grad=True)
    ...     out = torch.special.bessel_j0(x)
    >>> p.coverage.layers[0].kind
    'activation'
    """
    if not callable(function):
        raise AbslrpError(f"function={brief(function)} cannot be called: pass the torch function to teach.")
    known = function in OPERATIONS or function in STRUCTURAL or function in STOPPED
    if known and not replace:
        raise AbslrpError(
            f"{getattr(function, '__name__', function)} already has a rule: pass replace=True to give it another."
        )
    if not callable(kind) and not (isinstance(kind, str) and kind in ("structural", "constant", *_KINDS)):
        raise AbslrpError(
            f"kind={brief(kind)} is unknown: choose structural, constant, {', '.join(_KINDS)}, or pass a function."
        )
    OPERATIONS.pop(function, None)
    forget(function)
    for group in (KEPT, STRUCTURAL, STOPPED):
        group.discard(function)
    if callable(kind):
        made_of = kind
        OPERATIONS[function] = lambda e, run, *args, **kwargs: lambda: made_of(*args, **kwargs)
    elif kind == "structural":
        STRUCTURAL.add(function)
    elif kind == "constant":
        STOPPED.add(function)
    else:
        OPERATIONS[function] = _KINDS[kind](function)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda e, run, x, *a, **k: Planned(Smooth(lambda v: function(v, *a, **k)), (x,), run, follow_unmoved)


def _gate(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda e, run, x, *a, **k: Planned(
        Gate(lambda v: v > 0, lambda v: function(v, *a, **k)), (x,), run, follow_unmoved
    )


def _linear(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda e, run, x, *a, **k: nonnegative_map(e, run, x, lambda v: function(v, *a, **k))


_KINDS = {"elementwise": _elementwise, "gate": _gate, "linear": _linear}
