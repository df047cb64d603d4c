"""The table from torch callables to operation kinds. A row is a function with the torch function's own signature, so Python
itself brings positional and keyword forms together.

A row gets the engine ``e`` (which tensors carry relevance, which are known to be ≥ 0), ``run`` (the operation, out of
place) and the arguments, and answers with a :class:`Planned` operation, or with a function of no arguments to be run under
the engine where the operation falls apart into simpler ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.propagation import axes
from abslrp.propagation.axes import Axis
from abslrp.propagation.functions import Planned

Run = Callable[[], Any]


class Engine(Protocol):
    """What a row may ask."""

    attention: str

    def live(self, value: Any) -> bool: ...
    def nonnegative(self, value: Any) -> bool: ...
    def is_attention(self, value: Any) -> bool: ...
    def attended(self, matrix: Tensor) -> None: ...


Row = Callable[..., "Planned | Callable[[], Any]"]
OPERATIONS: dict[Callable[..., Any], Row] = {}
CONSTANT: set[Callable[..., Any]] = set()
"""Functions that make a new constant from a tensor, whatever it depends on."""
STOPPED: set[Callable[..., Any]] = set()
"""Functions whose result counts as a constant: statistics that normalise, steps without slope."""


def forms(*names: str) -> list[Callable[..., Any]]:
    """Every torch callable of these names: function, method and operator."""
    found = []
    for name in names:
        for place in (torch, Tensor, F, torch.special, torch._C._nn, torch.linalg):
            function = getattr(place, name, None)
            if callable(function):
                found.append(function)
    return found


def row(*names: str) -> Callable[[Row], Row]:
    """Enter a row for all callables of these names."""

    def enter(build: Row) -> Row:
        for function in forms(*names):
            OPERATIONS[function] = build
        return build

    return enter


def follow_same(axis: Axis, number: int, old: Sequence[int], new: Sequence[int]) -> Axis | None:
    """For operations that keep dimensions in their places."""
    return axes.in_place_of(axis, old, new)


def follow_unmoved(axis: Axis, number: int, old: Sequence[int], new: Sequence[int]) -> Axis | None:
    """For operations that keep the batch as it is."""
    return axis


def follow_aligned(axis: Axis, number: int, old: Sequence[int], new: Sequence[int]) -> Axis | None:
    """For operations that broadcast."""
    return axes.aligned(axis, old, new)
