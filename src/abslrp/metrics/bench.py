"""What metrics work with: the model, the images and what is known of them, and a way to ask for maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from abslrp.query import Query, gradient, plain_outputs

Boxes = Mapping[int, Sequence[tuple[float, float, float, float]]]
"""Boxes (x0, y0, x1, y1) in input pixels by class."""


class Explainer(Protocol):
    """A method as metrics see it: a name, how many inputs it likes at once, and maps for inputs and classes."""

    name: str
    size: int

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor: ...


@dataclass
class Outcome:
    """Scores of some items: parts by name (items, ...), the metric's own score under ``score``, and flags per item."""

    parts: dict[str, Tensor]
    flags: list[tuple[str, ...]]


SCORE_NOT_FINITE = "score not finite"
"""The flag of an item for which the metric gave NaN, as where the model gives NaN for the image or what is left of it."""


def numbers_only(outcome: Outcome) -> Outcome:
    """The outcome with 0 for every score and part that is not finite, and a flag at each item that had one.

    >>> numbers_only(Outcome({"score": torch.tensor([float("nan"), 1.0])}, [(), ()]))
    Outcome(parts={'score': tensor([0., 1.])}, flags=[('score not finite',), ()])
    """
    plain = {name: part for name, part in outcome.parts.items() if part.ndim <= 2 and part.is_floating_point()}
    bad = torch.stack(
        [~part.flatten(1).isfinite().all(1) if part.ndim > 1 else ~part.isfinite() for part in plain.values()]
    )
    if not bool(bad.any()):
        return outcome
    flags = merged(outcome.flags, [(SCORE_NOT_FINITE,) if wrong else () for wrong in bad.any(0).tolist()])
    return Outcome({**outcome.parts, **{name: part.nan_to_num(0.0, 0.0, 0.0) for name, part in plain.items()}}, flags)


@dataclass(frozen=True)
class ImageItem:
    """An image to score: its name and its number."""

    key: str
    number: int


@dataclass
class Bench:
    """A model on a set of images. ``fetch`` gives images by number, on the model's device."""

    query: Query
    fetch: Callable[[Sequence[int]], Tensor]
    ids: Sequence[str]
    size: int
    seed: int = 0
    labels: Sequence[frozenset[int]] | None = None
    boxes: Sequence[Boxes] | None = None
    details: bool = False
    kept: dict[tuple[Any, ...], Tensor] = field(default_factory=dict, repr=False)
    _outputs: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _maps: dict[tuple[str, int, int], Tensor] = field(default_factory=dict, repr=False)

    def outputs(self, inputs: Tensor) -> Tensor:
        """The model's outputs (batch, classes), in batches."""
        return torch.cat([plain_outputs(self.query, part) for part in inputs.split(self.size)])

    def gradient(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """∂ of each class's output / ∂ input, and that output, in batches."""
        slopes, values = [], []
        for x, t in zip(inputs.split(self.size), targets.split(self.size), strict=True):
            slope, _, outputs = gradient(self.query, x, t)
            slopes.append(slope)
            values.append(outputs.gather(1, t.reshape(-1, 1))[:, 0])
        return torch.cat(slopes), torch.cat(values)

    def logits(self, numbers: Sequence[int]) -> Tensor:
        """The outputs of images by number, each computed once."""
        wanted = sorted({n for n in numbers if n not in self._outputs})
        if wanted:
            self._outputs.update(zip(wanted, self.outputs(self.fetch(wanted)), strict=True))
        return torch.stack([self._outputs[n] for n in numbers])

    def maps(self, explainer: Explainer, numbers: Sequence[int], targets: Tensor) -> Tensor:
        """Maps of images by number, each made once until :meth:`forget`; metrics share them."""
        keys = [(explainer.name, n, int(t)) for n, t in zip(numbers, targets.tolist(), strict=True)]
        fresh = {key: i for i, key in enumerate(keys) if key not in self._maps}
        if fresh:
            rows = list(fresh.values())
            made = self.explained(explainer, self.fetch([numbers[i] for i in rows]), targets[rows])
            self._maps.update(zip(fresh, made, strict=True))
        return torch.stack([self._maps[key] for key in keys])

    def explained(self, explainer: Explainer, inputs: Tensor, targets: Tensor) -> Tensor:
        """Maps of any inputs, in batches of the explainer's size."""
        parts = zip(inputs.split(explainer.size), targets.split(explainer.size), strict=True)
        return torch.cat([explainer(x, t) for x, t in parts])

    def forget(self) -> None:
        """Drop the maps and whatever else was kept for other metrics."""
        self._maps.clear()
        self.kept.clear()


def every_image(bench: Bench, options: Mapping[str, Any]) -> list[ImageItem]:
    """The plan of metrics that score one image after the other."""
    return [ImageItem(key, i) for i, key in enumerate(bench.ids)]


def merged(*flags: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The flags of several maps of the same items, each once.

    >>> merged([("constant",), ()], [("constant", "not finite"), ()])
    [('constant', 'not finite'), ()]
    """
    return [tuple(dict.fromkeys(flag for part in parts for flag in part)) for parts in zip(*flags, strict=True)]
