"""Does the output follow when the words that a map calls relevant are taken away? AOPC, ABPC and consistency for texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from abslrp.checks import choice, whole
from abslrp.inputs.masking import masked_counts
from abslrp.metrics.maps import ratio
from abslrp.registry import METRIC_FAMILIES
from abslrp.types import AbslrpError

HOW = ("remove", "mask")


class Worded(Protocol):
    """A text as a method explained it: relevance of its words, its token ids, and which word each token belongs to."""

    @property
    def relevance(self) -> Tensor: ...

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def of_word(self) -> tuple[int | None, ...]: ...

    @property
    def target(self) -> int: ...


Probabilities = Callable[[Sequence[Sequence[int]]], Tensor]
"""From lists of token ids to probabilities (texts, classes)."""


@dataclass(frozen=True)
class TextMetric:
    """A metric of texts, as :class:`abslrp.registry.Metric` is one of images."""

    name: str
    description: str
    family: str
    citation: str
    higher_is_better: bool
    options: Mapping[str, Any]
    parts: tuple[str, ...]


def curve(
    one: Worded, probabilities: Probabilities, *, steps: int, how: str, mask: int | None, largest: bool
) -> tuple[list[int], Tensor]:
    """Probability of the target as words go, most or least relevant first: the numbers of words gone, and (steps + 1,).

    At most ``steps`` steps; texts with fewer words lose one at a time. Ties go to the earlier word.
    """
    words = len(one.relevance)
    turn = torch.sort(one.relevance.double().nan_to_num(0.0), descending=largest, stable=True).indices.tolist()
    counts = sorted({round(k * words / steps) for k in range(steps + 1)}) if words > steps else list(range(words + 1))
    texts = [without(one, set(turn[:count]), how, mask) for count in counts]
    return counts, probabilities(texts)[:, one.target].double().cpu()


def without(one: Worded, gone: set[int], how: str, mask: int | None) -> list[int]:
    """The token ids without some words, or with the mask token in their place; special tokens stay."""
    if how == "remove":
        return [t for t, word in zip(one.token_ids, one.of_word, strict=True) if word not in gone]
    if mask is None:
        raise AbslrpError("how='mask' needs a tokenizer with a mask token: use how='remove'.")
    return [mask if word in gone else t for t, word in zip(one.token_ids, one.of_word, strict=True)]


def quarter(one: Worded, probabilities: Probabilities, *, how: str, mask: int | None) -> float:
    """Probability kept without the least relevant quarter of the words, less the same for the most relevant quarter."""
    words = len(one.relevance)
    turn = torch.sort(one.relevance.double().nan_to_num(0.0), descending=True, stable=True).indices.tolist()
    count = max(1, round(words / 4))
    kept = probabilities([without(one, set(part), how, mask) for part in (turn[-count:], turn[:count])])[:, one.target]
    return float(kept[0] - kept[1])


def aopc(morf: Tensor) -> float:
    """1/(L+1) Σ_k f(x₀) − f(x_k)."""
    return float((morf[0] - morf).mean())


def abpc(lerf: Tensor, morf: Tensor) -> float:
    """1/(L+1) Σ_k f(x_k, least relevant first) − f(x_k, most relevant first)."""
    return float((lerf - morf).mean())


def settle(**options: Any) -> dict[str, Any]:
    settled = {"steps": 20, "how": "remove", "T": 5, **options}
    whole("steps", settled["steps"])
    whole("T", settled["T"], 2)
    choice("how", settled["how"], HOW)
    return settled


def consistency(
    words: Tensor,
    impact: Callable[[set[int]], tuple[Tensor, float]],
    explained: Callable[[set[int]], Tensor],
    T: int,
) -> dict[str, float]:
    """GAE's local consistency with words for features: LC_R, LC_F and LC.

    ``words`` is the relevance of the words; ``impact`` gives each word's |x · ∂o/∂x| and the output with some words masked,
    ``explained`` the relevance then. Words are masked by impact, most and least first, T steps, as pixels are in images.
    """
    start = _positive(words)
    number = len(words)
    outputs: dict[str, list[float]] = {}
    alike: dict[str, list[float]] = {}
    shares: dict[str, Tensor] = {}
    first_scores, first = impact(set())
    scale = abs(first) or 1.0
    for mode in ("morf", "lerf"):
        gone: set[int] = set()
        scores = first_scores
        total, steps = torch.zeros(number, dtype=torch.float64), 0
        outputs[mode], alike[mode] = [first / scale], [1.0]
        for count in masked_counts(number, T, "incremental", mode):
            if float(scores.sum()) > 0:
                total, steps = total + scores / scores.sum(), steps + 1
            turn = torch.sort(scores, descending=mode == "morf", stable=True).indices.tolist()
            left = [w for w in turn if w not in gone]
            gone |= set(left[: count - len(gone)])
            scores, output = impact(gone)
            outputs[mode].append(output / scale)
            alike[mode].append(_alike(start, _positive(explained(gone))))
        shares[mode] = total / max(steps, 1)
    d_output = torch.tensor(outputs["lerf"]).double() - torch.tensor(outputs["morf"]).double()
    d_map = torch.tensor(alike["lerf"]).double() - torch.tensor(alike["morf"]).double()
    robust = 1 - ratio(2 * (d_output - d_map).abs().sum(), d_output.abs().sum() + d_map.abs().sum(), 1.0)
    faithful = ratio((start * (shares["lerf"] - shares["morf"]).sign()).sum(), start.sum(), 0.0)
    if not float(start.sum()):
        robust = faithful = torch.zeros((), dtype=torch.float64)
    return {"LC_R": float(robust), "LC_F": float(faithful), "score": max(0.0, float(robust + faithful) / 2)}


def _positive(words: Tensor) -> Tensor:
    clean = words.double()
    clean = torch.where(clean.isfinite().all(), clean, 0.0).clamp(min=0)
    return clean / clean.max() if float(clean.max()) > 0 else clean


def _alike(a: Tensor, b: Tensor) -> float:
    total = float(a.sum() + b.sum())
    return 1.0 - float((a - b).abs().sum()) / total if total else 1.0


_SAMEK = "after Samek et al. (2017), arXiv 1509.06321"
TEXT_METRICS = {
    metric.name: metric
    for metric in (
        TextMetric(
            "text-abpc",
            "gap between losing the least and the most relevant words",
            METRIC_FAMILIES[1],
            _SAMEK,
            True,
            {"steps": 20, "how": "remove"},
            ("quarter",),
        ),
        TextMetric(
            "text-aopc",
            "fall of the probability when the most relevant words go",
            METRIC_FAMILIES[1],
            _SAMEK,
            True,
            {"steps": 20, "how": "remove"},
            (),
        ),
        TextMetric(
            "text-consistency",
            "local consistency of GAE with words for features",
            METRIC_FAMILIES[0],
            "after Vukadin et al. (2024), doi 10.1145/3649458",
            True,
            {"T": 5},
            ("LC_R", "LC_F"),
        ),
    )
}
