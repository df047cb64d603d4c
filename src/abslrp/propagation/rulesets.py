"""Which rule for which kind of operation: data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from abslrp.propagation import rules
from abslrp.propagation.rules import Steps

Rule = Callable[..., Steps]


@dataclass(frozen=True)
class Ruleset:
    """A rule for every kind, and the options the method starts with."""

    rules: Mapping[str, Rule]
    defaults: Mapping[str, Any]


_SHARED: dict[str, Rule] = {
    "scale": rules.scale_identity,
    "gate": rules.gate_active,
    "softmax": rules.softmax_listing,
    "shift": rules.shift_identity,
    "maximum": rules.maximum_winner,
}
_POSITIVE: dict[str, Rule] = {
    **_SHARED,
    "affine": rules.linear_positive,
    "product": rules.linear_positive,
    "sum": rules.sum_positive,
    "activation": rules.smooth_positive,
    "norm": rules.norm_positive,
}
_AGREEING: dict[str, Rule] = {
    **_SHARED,
    "affine": rules.linear_agreeing,
    "product": rules.linear_agreeing,
    "sum": rules.sum_agreeing,
    "activation": rules.smooth_agreeing,
    "norm": rules.norm_agreeing,
}

POOLING: dict[str, Rule] = {"winner": rules.maximum_winner, "weighted": rules.maximum_weighted}
CONTRIBUTIONS: dict[str, Mapping[str, Rule]] = {"positive": _POSITIVE, "agreeing": _AGREEING}
ATTENTION = ("all", "values", "queries-keys")

RULESETS: dict[str, Ruleset] = {
    "abslrp": Ruleset(_POSITIVE, {"contributions": "positive", "conserve": "sign", "start": "contrastive"}),
    "abslrp-agree": Ruleset(_AGREEING, {"contributions": "agreeing", "conserve": "joint", "start": "two-pass"}),
}
