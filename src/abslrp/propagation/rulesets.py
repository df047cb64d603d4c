"""Which rule for which kind of operation: data only.

A kind without a rule takes torch's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from abslrp.propagation import lrp, rules
from abslrp.propagation.rules import Steps

Rule = Callable[..., Steps]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Ruleset:
    """The rules as a function of the options, and the options it starts with."""

    make: Callable[[Options], dict[str, Rule]]
    defaults: Mapping[str, Any]


class Known(dict[str, tuple[bool, Any, bool, bool]]):
    """Of each kind: whether it has a rule, the rule itself, whether it is passing, and whether it keeps silent units silent."""

    def __init__(self, chosen: Mapping[str, Rule]) -> None:
        super().__init__()
        self._chosen = chosen

    def __missing__(self, kind: str) -> tuple[bool, Any, bool, bool]:
        rule: Any = self._chosen.get(kind)
        rule = getattr(rule, "func", rule)
        passing = rule in rules.PASSING
        self[kind] = found = kind in self._chosen, rule, passing, passing or rule in rules.PROPORTIONAL
        return found


_PASSED: dict[str, Rule] = {
    "scale": rules.scale_identity,
    "shift": rules.shift_identity,
    "gate": rules.gate_active,
    "maximum": rules.maximum_winner,
}
_POSITIVE: dict[str, Rule] = {
    **_PASSED,
    "softmax": rules.softmax_listing,
    "affine": rules.linear_positive,
    "product": rules.linear_positive,
    "sum": rules.sum_positive,
    "activation": rules.smooth_positive,
    "norm": rules.norm_positive,
}
_AGREEING: dict[str, Rule] = {
    **_PASSED,
    "softmax": rules.softmax_listing,
    "affine": rules.linear_agreeing,
    "product": rules.linear_agreeing,
    "sum": rules.sum_agreeing,
    "activation": rules.smooth_agreeing,
    "norm": rules.norm_agreeing,
}
POOLING: dict[str, Rule] = {"winner": rules.maximum_winner, "weighted": rules.maximum_weighted}
CONTRIBUTIONS: dict[str, dict[str, Rule]] = {"positive": _POSITIVE, "agreeing": _AGREEING}
FIRST: dict[str, dict[str, Rule]] = {
    "same": {},
    "epsilon": {"affine": lrp.linear_epsilon},
    "gamma": {"affine": partial(lrp.linear_gamma, gamma=0.25)},
}
ATTENTION = ("all", "values", "queries-keys")


def _abslrp(o: Options) -> dict[str, Rule]:
    return {**CONTRIBUTIONS[o["contributions"]], "maximum": POOLING[o["pooling"]]}


def _lrp(linear: Rule, total: Rule, norm: Rule, softmax: Rule = rules.identity) -> dict[str, Rule]:
    """LRP as usually meant: activations pass relevance on, everything linear divides it."""
    passed = {**_PASSED, "activation": rules.identity, "softmax": softmax}
    return {**passed, "affine": linear, "product": linear, "sum": total, "norm": norm}


def _epsilon(o: Options) -> dict[str, Rule]:
    epsilon, total, norm = (
        partial(f, relative=o["relative"]) for f in (lrp.linear_epsilon, lrp.sum_epsilon, lrp.norm_epsilon)
    )
    return _lrp(epsilon, total, norm, lrp.softmax_attnlrp)


def _alphabeta(alpha: float, beta: float) -> Callable[[Options], dict[str, Rule]]:
    made = _lrp(
        *(partial(f, alpha=alpha, beta=beta) for f in (lrp.linear_alphabeta, lrp.sum_alphabeta, lrp.norm_alphabeta))
    )
    return lambda o: made


def _gamma(o: Options) -> dict[str, Rule]:
    return _lrp(partial(lrp.linear_gamma, gamma=o["gamma"]), lrp.sum_epsilon, lrp.norm_epsilon, lrp.softmax_attnlrp)


_ALPHA1 = _alphabeta(1.0, 0.0)
_RAP = _lrp(lrp.linear_rap, lrp.sum_rap, lrp.norm_rap)
_ATTNLRP = _lrp(lrp.linear_epsilon, lrp.sum_epsilon, lrp.norm_attnlrp, lrp.softmax_attnlrp)
_TIBAV = {**_ALPHA1({}), "norm": rules.identity}
_RESCALE: dict[str, Rule] = {
    "gate": lrp.rescale,
    "activation": lrp.rescale,
    "softmax": lrp.rescale,
    "maximum": lrp.rescale_maximum,
}

_PROPAGATED = {"conserve": "none", "start": "target", "attention": "all", "eps": 1e-9, "unknown": "error"}
_ABSLRP = {"pooling": "winner", "attention": "all", "eps": 1e-9, "unknown": "error", "head": "same", "first": "same"}
_NATIVE = {"start": "target", "unknown": "gradient"}

RULESETS: dict[str, Ruleset] = {
    "abslrp": Ruleset(_abslrp, {**_ABSLRP, "contributions": "positive", "conserve": "sign", "start": "contrastive"}),
    "abslrp-agree": Ruleset(
        _abslrp, {**_ABSLRP, "contributions": "agreeing", "conserve": "joint", "start": "two-pass"}
    ),
    "lrp-epsilon": Ruleset(_epsilon, {**_PROPAGATED, "attention": "values", "eps": 1e-6, "relative": False}),
    "lrp-text": Ruleset(
        _epsilon, {**_PROPAGATED, "conserve": "joint", "start": "logit", "eps": 1e-2, "relative": False}
    ),
    "lrp-gamma": Ruleset(_gamma, {**_PROPAGATED, "attention": "values", "eps": 1e-6, "gamma": 0.25}),
    "lrp-alpha1beta0": Ruleset(_ALPHA1, _PROPAGATED),
    "lrp-alpha2beta1": Ruleset(_alphabeta(2.0, 1.0), _PROPAGATED),
    "rap": Ruleset(lambda o: _RAP, {**_PROPAGATED, "conserve": "surplus"}),
    "attnlrp": Ruleset(lambda o: _ATTNLRP, {**_PROPAGATED, "start": "logit", "eps": 1e-6}),
    "tibav": Ruleset(lambda o: _TIBAV, _PROPAGATED),
    "guided-backprop": Ruleset(lambda o: {"gate": lrp.gate_guided}, _NATIVE),
    "deconvolution": Ruleset(lambda o: {"gate": lrp.gate_deconvolution}, _NATIVE),
    "deeplift": Ruleset(lambda o: _RESCALE, _NATIVE),
    "gradient": Ruleset(lambda o: {}, _NATIVE),
}
