"""Which features go first: exact selections, and the gradient-guided masking of GAE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SCHEDULES = ("incremental", "authors")
MODES = ("morf", "lerf")
_NEVER = 255

Gradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From inputs and classes to (∂ of each class's output / ∂ input, that output (batch,))."""


def select(scores: Tensor, count: int, *, largest: bool) -> Tensor:
    """Exactly ``count`` places of every row of (batch, features), true where the scores are largest or smallest.

    Ties go to the lower index.

    >>> select(torch.tensor([[3.0, 1.0, 3.0, 2.0]]), 1, largest=True).tolist()
    [[True, False, False, False]]
    """
    features = scores.shape[1]
    if count <= 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    if count >= features:
        return torch.ones_like(scores, dtype=torch.bool)
    rank = features - count + 1 if largest else count
    edge = scores.kthvalue(rank, dim=1, keepdim=True).values
    beyond = scores > edge if largest else scores < edge
    ties = scores == edge
    wanted = count - beyond.sum(1, keepdim=True)
    return beyond | (ties & (ties.cumsum(1) <= wanted))


def order(scores: Tensor, *, largest: bool) -> Tensor:
    """The places of every row (batch, features) from the first to the last; ties go to the lower index."""
    return torch.sort(scores, dim=1, descending=largest, stable=True).indices


def masked_counts(features: int, T: int, schedule: str, mode: str) -> list[int]:
    """How many features are masked after each step.

    ``incremental``: t/T after step t = 1 … T. ``authors``: step t masks t/T of all features by the current score, nine
    steps for T = 10; masked features have no score, so most-relevant-first never meets them again, and
    least-relevant-first meets them first.

    >>> masked_counts(100, 10, "authors", "morf")
    [10, 30, 60, 100, 100, 100, 100, 100, 100]
    >>> masked_counts(100, 10, "authors", "lerf") == masked_counts(100, 10, "incremental", "morf")[:9]
    True
    """
    if schedule == "incremental":
        return [round(t * features / T) for t in range(1, T + 1)]
    counts: list[int] = []
    for t in range(1, T):
        chosen = round(t * features / T)
        before = counts[-1] if counts else 0
        counts.append(min(features, before + chosen) if mode == "morf" else chosen)
    return counts


@dataclass(frozen=True)
class Masking:
    """Images masked step by step, in both orders, and what it did to the explained output.

    For each mode: ``steps`` (batch, ...) is the step at which a feature goes, 255 where it never does; ``outputs``
    (batch, steps + 1) are the class's outputs from the whole image on; ``impact`` (batch, ...) is the mean of the steps' maps
    |x ∂o/∂x|, each divided by its L1 norm, over those steps that had any image left. (A sum in place of the mean would give the
    mode with more steps the upper hand: under the authors' schedule most-relevant-first is through after four of nine.)
    """

    images: Tensor
    targets: Tensor
    counts: dict[str, list[int]]
    steps: dict[str, Tensor]
    outputs: dict[str, Tensor]
    impact: dict[str, Tensor]

    def state(self, index: Tensor, mode: str, step: int) -> Tensor:
        """The images of these numbers as they are after a step."""
        return torch.where(self.steps[mode][index] > step, self.images[index], 0.0)

    def states(self) -> list[tuple[str, int]]:
        """The steps that differ: once everything is masked, nothing changes any more, in either mode."""
        features = self.images[0].numel()
        found = [(mode, t + 1) for mode in MODES for t, count in enumerate(self.counts[mode]) if count < features]
        empty = [(mode, self.counts[mode].index(features) + 1) for mode in MODES if features in self.counts[mode]]
        return found + empty[:1]

    def same_as(self, mode: str, step: int) -> tuple[str, int]:
        """The state among :meth:`states` that equals this one."""
        features = self.images[0].numel()
        if self.counts[mode][step - 1] < features:
            return mode, step
        return next((m, t) for m, t in self.states() if self.counts[m][t - 1] == features)


def mask_by_gradient(
    images: Tensor, targets: Tensor, gradient: Gradient, *, T: int = 10, schedule: str = "incremental"
) -> Masking:
    """Mask the features whose loss changes the output most (morf) or least (lerf), looking anew at every step.

    The score of a feature is |x · ∂|o|/∂x| at the image as masked so far; masking sets it to 0 in the space of the input.
    Vukadin, Afrić, Šilić, Delač (2024), doi 10.1145/3649458, section 3.2.

    >>> linear = lambda x, t: (torch.tensor([[1.0, 2.0]]).expand(x.shape), (x * torch.tensor([1.0, 2.0])).sum(1))
    >>> m = mask_by_gradient(torch.ones(1, 2), torch.tensor([0]), linear, T=2)
    >>> m.outputs["morf"].tolist(), m.outputs["lerf"].tolist()
    ([[3.0, 1.0, 0.0]], [[3.0, 2.0, 0.0]])
    """
    features = images[0].numel()
    counts = {mode: masked_counts(features, T, schedule, mode) for mode in MODES}
    slope, first = gradient(images, targets)
    begin = (images * slope).abs().nan_to_num(0.0, 0.0, 0.0).flatten(1)
    found = {mode: _masked(images, targets, gradient, counts[mode], begin, first, mode == "morf") for mode in MODES}
    return Masking(
        images,
        targets,
        counts,
        {mode: found[mode][0] for mode in MODES},
        {mode: found[mode][1] for mode in MODES},
        {mode: found[mode][2] for mode in MODES},
    )


def _masked(
    images: Tensor,
    targets: Tensor,
    gradient: Gradient,
    counts: list[int],
    scores: Tensor,
    first: Tensor,
    largest: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    steps = torch.full(scores.shape, _NEVER, dtype=torch.uint8, device=images.device)
    impact = _shares(scores)
    outputs, before, output = [first], 0, first
    for t, count in enumerate(counts, 1):
        if count > before:
            left = scores.masked_fill(steps != _NEVER, -torch.inf if largest else torch.inf)
            steps.masked_fill_(select(left, count - before, largest=largest), t)
            now = torch.where((steps == _NEVER).view(images.shape), images, 0.0)
            slope, output = gradient(now, targets)
            scores = (now * slope).abs().nan_to_num(0.0, 0.0, 0.0).flatten(1)
        outputs.append(output)
        if t < len(counts):
            impact += _shares(scores)
        before = count
    return steps.view(images.shape), torch.stack(outputs, 1).double(), _shares(impact).view(images.shape)


def _shares(scores: Tensor) -> Tensor:
    total = scores.sum(1, keepdim=True, dtype=torch.float64)
    return torch.where(total > 0, scores / total.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
