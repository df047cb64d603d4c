"""From names to methods and metrics; the command line, the docs and the contract tests read from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from abslrp.types import AbslrpError, brief

if TYPE_CHECKING:
    from abslrp.metrics.bench import Bench, Explainer, Outcome
    from abslrp.query import Answer, Query

METHOD_MODULES = tuple(f"abslrp.methods.{room}" for room in ("relevance", "gradients", "cam", "attention", "controls"))
METRIC_FAMILIES = ("combined", "faithfulness", "robustness", "localization")
METRIC_MODULES = tuple(f"abslrp.metrics.{room}" for room in ("gae", "faithfulness", "robustness", "localization"))


@dataclass(frozen=True)
class Method:
    """A way to make maps: ``run`` answers a query, ``options`` are its names with their defaults; ``at`` tells
    whether it can give the map of a module inside the model; ``check`` raises where the options' values are wrong;
    ``sensitive`` tells whether its maps depend on what the network has learned, by the measurement of :mod:`abslrp.sanity`."""

    name: str
    description: str
    family: str
    citation: str
    run: Callable[..., Answer] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    class_specific: bool = True
    at: bool = False
    check: Callable[[Mapping[str, Any]], object] | None = field(default=None, repr=False)
    sensitive: bool = True

    def settle(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, those not given with their defaults, checked as far as that needs no input."""
        for name in options:
            if name not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise AbslrpError(f"option {name!r} is unknown for {self.name}: choose from {known}.")
        settled = {**self.options, **options}
        if self.check is not None:
            self.check(settled)
        return settled

    def __call__(self, query: Query, **options: Any) -> Answer:
        return self.run(query, **self.settle(options))


class Item(Protocol):
    """What a metric scores: ``key`` names it in results, ``number`` is the image it belongs to."""

    @property
    def key(self) -> str: ...

    @property
    def number(self) -> int: ...


@dataclass(frozen=True)
class Metric:
    """A way to score maps, in four steps, so that what methods have in common is done once.

    ``settle`` checks the options; ``plan`` lists the items to score, by chance from the seed alone; ``prepare`` does for some of
    them what does not depend on the method; ``score`` scores one method on what was prepared. ``parts`` are the numbers that
    an item gets beside its score; ``needs`` names what the images must come with.
    """

    name: str
    description: str
    family: str
    citation: str
    higher_is_better: bool
    settle: Callable[..., dict[str, Any]] = field(repr=False)
    plan: Callable[[Bench, Mapping[str, Any]], list[Any]] = field(repr=False)
    prepare: Callable[[Bench, list[Any], Mapping[str, Any]], Any] = field(repr=False)
    score: Callable[[Bench, Any, Explainer, Mapping[str, Any]], Outcome] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


_METHODS: dict[str, Method] = {}
_METRICS: dict[str, Metric] = {}


def register_method(method: Method) -> Method:
    """Enter a method under its name; a second one of the same name is an error."""
    return _register("method", _METHODS, method)


def register_metric(metric: Metric) -> Metric:
    """Enter a metric under its name; a second one of the same name is an error."""
    return _register("metric", _METRICS, metric)


def methods() -> dict[str, Method]:
    """All methods by name.

    >>> methods()["abslrp"].family
    'relevance propagation'
    """
    for module in METHOD_MODULES:
        import_module(module)
    return dict(_METHODS)


def metrics() -> dict[str, Metric]:
    """All metrics by name.

    >>> metrics()["gae"].higher_is_better
    True
    """
    for module in METRIC_MODULES:
        import_module(module)
    # Whoever imported a module earlier must not change the order in which metrics are shown.
    known = [*METRIC_FAMILIES, *(one.family for one in _METRICS.values())]
    return dict(sorted(_METRICS.items(), key=lambda pair: known.index(pair[1].family)))


def method(name: str) -> Method:
    """The method of this name.

    >>> method("absrlp")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: method 'absrlp' is unknown: did you mean abslrp? 'abslrp methods' lists all.
    """
    return _find("method", methods(), name, "abslrp")


def metric(name: str) -> Metric:
    """The metric of this name.

    >>> metric("gea")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: metric 'gea' is unknown: did you mean gae? 'abslrp metrics' lists all.
    """
    return _find("metric", metrics(), name, "gae")


def _register(kind: str, known: dict[str, Any], entry: Any) -> Any:
    if entry.name in known:
        raise AbslrpError(f"{kind} {entry.name!r} is registered already: choose another name.")
    known[entry.name] = entry
    return entry


def _find(kind: str, known: dict[str, Any], name: str, usual: str) -> Any:
    if not isinstance(name, str) or name not in known:
        near = get_close_matches(name if isinstance(name, str) else "", known, n=1)
        raise AbslrpError(
            f"{kind} {brief(name)} is unknown: did you mean {near[0] if near else usual}? 'abslrp {kind}s' lists all."
        )
    return known[name]
