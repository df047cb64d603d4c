"""From names to methods; the command line, the docs and the contract tests read from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from abslrp.types import AbslrpError

if TYPE_CHECKING:
    from abslrp.query import Answer, Query

METHOD_MODULES = tuple(f"abslrp.methods.{room}" for room in ("relevance", "gradients", "cam", "attention", "controls"))


@dataclass(frozen=True)
class Method:
    """A way to make maps: ``run`` answers a query, ``options`` are its names with their defaults; ``at`` tells
    whether it can give the map of a module inside the model."""

    name: str
    description: str
    family: str
    citation: str
    run: Callable[..., Answer] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    class_specific: bool = True
    at: bool = False

    def __call__(self, query: Query, **options: Any) -> Answer:
        return self.run(query, **{**self.options, **options})


_METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Enter a method under its name; a second one of the same name is an error."""
    if method.name in _METHODS:
        raise AbslrpError(f"method {method.name!r} is registered already: choose another name.")
    _METHODS[method.name] = method
    return method


def methods() -> dict[str, Method]:
    """All methods by name.

    >>> methods()["abslrp"].family
    'relevance propagation'
    """
    for module in METHOD_MODULES:
        import_module(module)
    return dict(_METHODS)


def method(name: str) -> Method:
    """The method of this name.

    >>> method("absrlp")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: method 'absrlp' is unknown: did you mean abslrp? 'abslrp methods' lists all.
    """
    known = methods()
    if name not in known:
        near = get_close_matches(str(name), known, n=1)
        raise AbslrpError(
            f"method {name!r} is unknown: did you mean {near[0] if near else 'abslrp'}? 'abslrp methods' lists all."
        )
    return known[name]
