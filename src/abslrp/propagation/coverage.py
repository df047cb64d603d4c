"""What the engine met on its way through a model, and where relevance was gained or lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Layer:
    """One operation that met a rule. Masses are Σ|R| over the batch, as shares of the start's, once relevance has passed."""

    path: str
    function: str
    kind: str
    mass_in: float = 0.0
    mass_out: float = 0.0


@dataclass(frozen=True)
class Row:
    """All operations of one kind together; ``gained`` and ``lost`` as shares of the starting relevance."""

    kind: str
    calls: int
    gained: float
    lost: float


@dataclass
class Coverage:
    """Which operations had a rule, what was structural, what was passed by gradient, and what each kind did to relevance.

    ``lost_elsewhere`` is relevance that no rule lost: what stopped at class tokens, masks and cropped borders, and what of
    opposite sign met and cancelled, as in any contrastive start.
    """

    layers: list[Layer] = field(default_factory=list)
    structural_functions: Counter[str] = field(default_factory=Counter)
    by_gradient: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    arrived: float = 0.0

    @property
    def structural(self) -> int:
        return sum(self.structural_functions.values())

    @property
    def rows(self) -> list[Row]:
        kinds = dict.fromkeys(layer.kind for layer in self.layers)
        rows = []
        for kind in kinds:
            changes = [layer.mass_out - layer.mass_in for layer in self.layers if layer.kind == kind]
            gained = sum(c for c in changes if c > 0)
            rows.append(Row(kind, len(changes), gained, sum(-c for c in changes if c < 0)))
        return rows

    @property
    def lost_elsewhere(self) -> float:
        return 1.0 + sum(row.gained - row.lost for row in self.rows) - self.arrived

    def __str__(self) -> str:
        lines = [f"{'kind':<12}{'calls':>7}{'gained':>10}{'lost':>10}"]
        lines += [f"{r.kind:<12}{r.calls:>7}{r.gained:>10.4f}{r.lost:>10.4f}" for r in self.rows]
        lines.append(f"{'structural':<12}{self.structural:>7}")
        for title, counts in (("by gradient", self.by_gradient), ("stopped", self.stopped)):
            if counts:
                lines.append(f"{title:<12}{sum(counts.values()):>7}  {', '.join(counts)}")
        lines.append(f"relevance that arrived {self.arrived:.4f}, lost elsewhere {self.lost_elsewhere:.4f}")
        return "\n".join(lines)


class Meter:
    """Collects masses on the device, without waiting for it, until somebody reads the coverage."""

    def __init__(self) -> None:
        self.coverage = Coverage()
        self._masses: list[tuple[int, Tensor, Tensor]] = []
        self._start: Tensor | None = None
        self._end: Tensor | None = None

    def layer(self, path: str, function: str, kind: str) -> int:
        self.coverage.layers.append(Layer(path, function, kind))
        return len(self.coverage.layers) - 1

    def begin(self, start: Tensor) -> None:
        self._masses, self._start = [], mass(start)

    def passed(self, layer: int, R: Tensor, change: Tensor | float) -> None:
        before = mass(R)
        self._masses.append((layer, before, before + change))

    def end(self, arrived: Tensor) -> None:
        self._end = mass(arrived)

    def read(self) -> Coverage:
        if self._start is None or self._end is None:
            return self.coverage
        whole = float(self._start) or 1.0
        for layer in self.coverage.layers:
            layer.mass_in = layer.mass_out = 0.0
        for number, before, after in self._masses:
            layer = self.coverage.layers[number]
            layer.mass_in += float(before) / whole
            layer.mass_out += float(after) / whole
        self.coverage.arrived = float(self._end) / whole
        return self.coverage


def mass(relevance: Tensor) -> Tensor:
    """Σ|R|, in float32 at least."""
    return relevance.detach().abs().sum(dtype=torch.float64 if relevance.dtype == torch.float64 else torch.float32)
