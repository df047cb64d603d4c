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
    needs: tuple[str, ...] = ("texts",)


def curve_texts(one: Worded, *, steps: int, how: str, mask: int | None, largest: bool) -> list[list[int]]:
    """Token ids of a text as words go, most or least relevant first, from all words to none.

    At most ``steps`` steps; texts with fewer words lose one at a time. Ties go to the earlier word.
    """
    words, turn = len(one.relevance), _turn(one, largest)
    counts = sorted({round(k * words / steps) for k in range(steps + 1)}) if words > steps else list(range(words + 1))
    return [without(one, set(turn[:count]), how, mask) for count in counts]


def without(one: Worded, gone: set[int], how: str, mask: int | None) -> list[int]:
    """The token ids without some words, or with the mask token in their place; special tokens stay."""
    if how == "remove":
        return [t for t, word in zip(one.token_ids, one.of_word, strict=True) if word not in gone]
    if mask is None:
        raise AbslrpError("how='mask' needs a tokenizer with a mask token: use how='remove'.")
    return [mask if word in gone else t for t, word in zip(one.token_ids, one.of_word, strict=True)]


def quarter_texts(one: Worded, *, how: str, mask: int | None) -> list[list[int]]:
    """Token ids without the least relevant quarter of the words, and without the most relevant quarter."""
    turn = _turn(one, True)
    count = max(1, round(len(turn) / 4))
    return [without(one, set(part), how, mask) for part in (turn[-count:], turn[:count])]


def _turn(one: Worded, largest: bool) -> list[int]:
    order: list[int] = torch.sort(
        one.relevance.double().nan_to_num(0.0), descending=largest, stable=True
    ).indices.tolist()
    return order


def aopc(morf: Tensor) -> float:
    """1/(L+1) Σ_k f(x₀) − f(x_k), the curve (L + 1,) being the target's probability as the most relevant words go.

    >>> aopc(torch.tensor([1.0, 0.5, 0.0]))
    0.5
    """
    return float((morf[0] - morf).mean())


def abpc(lerf: Tensor, morf: Tensor) -> float:
    """1/(L+1) Σ_k f(x_k, least relevant first) − f(x_k, most relevant first), both curves (L + 1,).

    >>> abpc(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([1.0, 0.25, 0.0]))
    0.25
    """
    return float((lerf - morf).mean())


def settle(**options: Any) -> dict[str, Any]:
    settled = {"steps": 20, "how": "remove", "T": 5, **options}
    whole("steps", settled["steps"])
    whole("T", settled["T"], 2)
    choice("how", settled["how"], HOW)
    return settled


Impact = Callable[[Sequence[set[int]]], tuple[list[Tensor], list[float]]]
"""From the words that are gone, text by text, to each word's |x · ∂o/∂x| (words,) and the output."""

Explained = Callable[[Sequence[set[int]]], list[Tensor]]
"""From the words that are gone, text by text, to the relevance (words,) then."""


@dataclass
class _Way:
    """A text as its words go in one order: outputs over the first, similarities to the first map, the shares of impact."""

    gone: set[int]
    scores: Tensor
    outputs: list[float]
    alike: list[float]
    total: Tensor
    steps: int = 0

    def mask(self, count: int, largest: bool) -> None:
        """Let words go by their impact until so many are gone."""
        if float(self.scores.sum()) > 0:
            self.total, self.steps = self.total + self.scores / self.scores.sum(), self.steps + 1
        turn = torch.sort(self.scores, descending=largest, stable=True).indices.tolist()
        left = [w for w in turn if w not in self.gone]
        self.gone = self.gone | set(left[: count - len(self.gone)])


def consistency(words: Sequence[Tensor], impact: Impact, explained: Explained, T: int) -> list[dict[str, float]]:
    """GAE's local consistency with words for features: LC_R, LC_F and LC = max(0, (LC_R + LC_F) / 2) of each text.

    ``words`` are the relevances of the words of some texts. Words are masked by impact, most and least first, T steps, as pixels
    are in images: LC_R tells whether the map changes as the output does, LC_F whether it lies on words whose loss counts.
    """
    starts = [_positive(one) for one in words]
    scores, first = impact([set() for _ in words])
    scales = [abs(value) or 1.0 for value in first]
    ways: dict[str, list[_Way]] = {}
    for mode in ("morf", "lerf"):
        ways[mode] = [
            _Way(set(), s, [f / scale], [1.0], torch.zeros_like(s))
            for s, f, scale in zip(scores, first, scales, strict=True)
        ]
        counts = [masked_counts(len(one), T, "incremental", mode) for one in words]
        for step in range(T):
            for way, its in zip(ways[mode], counts, strict=True):
                way.mask(its[step], mode == "morf")
            gone = [way.gone for way in ways[mode]]
            now, outputs = impact(gone)
            for k, relevance in enumerate(explained(gone)):
                way = ways[mode][k]
                way.scores = now[k]
                way.outputs.append(outputs[k] / scales[k])
                way.alike.append(_alike(starts[k], _positive(relevance)))
    return [_local(start, *pair) for start, *pair in zip(starts, ways["morf"], ways["lerf"], strict=True)]


def _local(start: Tensor, morf: _Way, lerf: _Way) -> dict[str, float]:
    d_output = _gap(lerf.outputs, morf.outputs)
    d_map = _gap(lerf.alike, morf.alike)
    robust = 1 - ratio(2 * (d_output - d_map).abs().sum(), d_output.abs().sum() + d_map.abs().sum(), 1.0)
    shares = [way.total / max(way.steps, 1) for way in (lerf, morf)]
    faithful = ratio((start * (shares[0] - shares[1]).sign()).sum(), start.sum(), 0.0)
    if not float(start.sum()):
        robust = faithful = torch.zeros((), dtype=torch.float64)
    return {"LC_R": float(robust), "LC_F": float(faithful), "score": max(0.0, float(robust + faithful) / 2)}


def _gap(lerf: list[float], morf: list[float]) -> Tensor:
    return torch.tensor(lerf, dtype=torch.float64) - torch.tensor(morf, dtype=torch.float64)


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
