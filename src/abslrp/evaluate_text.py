"""Methods scored on texts: which words a map calls relevant, and whether the model agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from abslrp.evaluate import Methods, check_ids, choose_methods, names_of
from abslrp.metrics import text as kernels
from abslrp.precision import full_precision
from abslrp.progress import shown
from abslrp.query import check_model, gradient, logits, undisturbed, unwrap
from abslrp.text import (
    TEXT_DEFAULT,
    Encoded,
    TextAttribution,
    batched,
    check_method,
    cover_embedding,
    equal_lengths,
    explain_text,
    per_word,
    text_list,
    text_query,
    token_relevance,
)
from abslrp.types import AbslrpError, Score, Scores, brief

_AT_ONCE = 64
_REMOVAL = ("text-abpc", "text-aopc")


def evaluate_text(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    methods: Methods = TEXT_DEFAULT,
    metrics: str | Sequence[str] = "text-abpc",
    *,
    ids: Sequence[str] | None = None,
    batch_size: int = 16,
    progress: bool = False,
    **options: Any,
) -> Scores:
    """Score methods on texts, for the class that the model predicts for each.

    ``text-aopc`` and ``text-abpc`` take words away in the order of their relevance (``how="remove"``, or ``"mask"``) and follow the
    target's probability f, after Samek et al. (2017), arXiv 1509.06321:

        AOPC = 1/(L+1) Σ_k f(x₀) − f(x_k),    ABPC = 1/(L+1) Σ_k f(x_k, least first) − f(x_k, most first).

    The part ``quarter`` of ABPC is the same for a quarter of the words alone. ``text-consistency`` is the local consistency of GAE
    with words for features, in ``T`` steps, after Vukadin, Afrić, Šilić, Delač (2024), doi 10.1145/3649458.

    ``methods`` are names, or a dict from a name of one's choice to a name or to (name, options). Neither the order of the texts nor
    ``batch_size`` changes a score, and methods are paired.

    >>> from abslrp.inputs.sentences import tiny_classifier
    >>> scores = evaluate_text(*tiny_classifier(), ["a good plot", "a bad movie"], ["random", "rollout"])
    >>> scores["text-abpc"]["rollout"].scores.shape
    torch.Size([2])
    """
    core: Any = unwrap(model)
    check_model(core)
    names = list(dict.fromkeys(names_of("metrics", metrics, "text-abpc")))
    texts = text_list(texts)
    settled = _settled(names, options)
    asked = choose_methods(methods, core)
    for one in asked:
        check_method(one.how, one.name)
    keys = check_ids(
        ids if ids is not None else [str(k) for k in range(len(texts))], torch.empty(len(texts), device="cpu")
    )
    found: dict[str, dict[str, Score]] = {name: {} for name in names}
    with torch.inference_mode(False), full_precision():
        for one in shown(asked, "Evaluating", progress):
            how = Explainer(core, tokenizer, str(one.how), dict(one.options), batch_size)
            maps = how(list(texts))
            _need_classes(maps[0], core)
            rows = _removed(how, maps, names, settled)
            if "text-consistency" in names:
                rows["text-consistency"] = _consistencies(how, maps, settled["T"])
            for name in names:
                found[name][one.name] = _score(name, one.name, rows[name], maps, keys)
    return Scores(found)


@dataclass(frozen=True)
class Explainer:
    """A method with its options, bound to a model."""

    model: Any
    tokenizer: Any
    method: str
    options: dict[str, Any]
    batch_size: int

    def __call__(self, texts: list[str]) -> list[TextAttribution]:
        found: list[TextAttribution] = explain_text(
            self.model, self.tokenizer, texts, method=self.method, batch_size=self.batch_size, **self.options
        )
        return found


def _settled(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    if not names:
        raise AbslrpError(f"metrics is empty: name at least one of {', '.join(kernels.TEXT_METRICS)}.")
    for name in names:
        if name not in kernels.TEXT_METRICS:
            near = get_close_matches(str(name), kernels.TEXT_METRICS, n=1, cutoff=0.3)
            raise AbslrpError(
                f"metric {brief(name)} is unknown for texts: did you mean {near[0] if near else 'text-abpc'}?"
            )
    known = {option for name in names for option in kernels.TEXT_METRICS[name].options}
    unknown = sorted(set(options) - known)
    if unknown:
        raise AbslrpError(
            f"option {unknown[0]!r} is unknown for {', '.join(names)}: choose from {', '.join(sorted(known)) or 'none'}."
        )
    return kernels.settle(**options)


def _need_classes(one: TextAttribution, model: Any) -> None:
    if len(one.outputs) < 2:
        raise AbslrpError(
            f"{type(model).__name__} has one output, whose probability is always 1: score a classifier of two classes or more."
        )


def _removed(
    how: Explainer, maps: Sequence[TextAttribution], names: Sequence[str], settled: Mapping[str, Any]
) -> dict[str, list[dict[str, float]]]:
    """Rows of the metrics that take words away, the texts of all curves asked at once."""
    wanted = [name for name in _REMOVAL if name in names]
    if not wanted:
        return {}
    given: dict[str, Any] = {"how": settled["how"], "mask": getattr(how.tokenizer, "mask_token_id", None)}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in wanted}
    for start in range(0, len(maps), _AT_ONCE):
        part = maps[start : start + _AT_ONCE]
        parts = [
            (
                kernels.curve_texts(one, steps=settled["steps"], largest=True, **given),
                kernels.curve_texts(one, steps=settled["steps"], largest=False, **given),
                kernels.quarter_texts(one, **given),
            )
            for one in part
        ]
        kept = iter(class_probabilities(how.model, [ids for three in parts for lists in three for ids in lists]))
        for one, three in zip(part, parts, strict=True):
            morf, lerf, quarter = (torch.stack([next(kept)[one.target] for _ in lists]) for lists in three)
            both = {
                "text-abpc": {"score": kernels.abpc(lerf, morf), "quarter": float(quarter[0] - quarter[1])},
                "text-aopc": {"score": kernels.aopc(morf)},
            }
            for name in wanted:
                rows[name].append(both[name])
    return rows


def class_probabilities(model: Any, lists: Sequence[Sequence[int]]) -> Tensor:
    """Probabilities (texts, classes) of token ids, equally long ones together, without padding; equal texts are asked once."""
    device = next(model.parameters()).device
    different = list(dict.fromkeys(tuple(ids) for ids in lists))
    found: dict[tuple[int, ...], Tensor] = {}
    for rows in equal_lengths([len(ids) for ids in different], _AT_ONCE if batched(model) else 1):
        ids = torch.tensor([different[i] for i in rows], dtype=torch.long, device=device)
        with torch.no_grad():
            outputs = logits(model(input_ids=ids, attention_mask=torch.ones_like(ids)), len(rows))
        found.update(zip((different[i] for i in rows), outputs.double().softmax(1).cpu(), strict=True))
    return torch.stack([found[tuple(ids)] for ids in lists])


def _consistencies(how: Explainer, maps: Sequence[TextAttribution], T: int) -> list[dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for rows in equal_lengths([len(one.token_ids) for one in maps], how.batch_size if batched(how.model) else 1):
        found.update(zip(rows, _consistency(how, [maps[i] for i in rows], T), strict=True))
    return [found[i] for i in range(len(maps))]


def _consistency(how: Explainer, group: Sequence[TextAttribution], T: int) -> list[dict[str, float]]:
    """Local consistency of equally long texts."""
    coded = [Encoded(one.text, one.token_ids, one.tokens, one.of_word, one.spans) for one in group]
    targets = torch.tensor([one.target for one in group])
    query = text_query(how.model, coded, targets)
    cover = cover_embedding(query, how.tokenizer)

    def masked(gone: Sequence[set[int]]) -> Tensor:
        x = query.inputs.clone()
        for row, (one, words) in enumerate(zip(group, gone, strict=True)):
            x[row, [k for k, w in enumerate(one.of_word) if w in words]] = cover
        return x

    def impact(gone: Sequence[set[int]]) -> tuple[list[Tensor], list[float]]:
        x = masked(gone)
        with undisturbed(x):
            slope, _, outputs = gradient(query, x, targets.to(x.device))
        sizes = (x * slope).abs().sum(-1).double().cpu()
        scores = [per_word(one, size) for one, size in zip(coded, sizes, strict=True)]
        for score, words in zip(scores, gone, strict=True):
            score[list(words)] = 0.0
        return scores, outputs.double().cpu().gather(1, targets[:, None])[:, 0].tolist()

    def explained(gone: Sequence[set[int]]) -> list[Tensor]:
        x = masked(gone)
        with undisturbed(x):
            values = token_relevance(replace(query, inputs=x), coded, how.method, how.options, how.tokenizer)[0]
        return [per_word(one, value) for one, value in zip(coded, values.detach().double().cpu(), strict=True)]

    return kernels.consistency([one.relevance for one in group], impact, explained, T)


def _score(
    metric: str, method: str, rows: list[dict[str, float]], maps: Sequence[TextAttribution], keys: Sequence[str]
) -> Score:
    parts = {part: torch.tensor([row[part] for row in rows], dtype=torch.float64) for part in rows[0]}
    flags = tuple(() if bool(a.relevance.isfinite().all()) else ("not finite",) for a in maps)
    better = kernels.TEXT_METRICS[metric].higher_is_better
    return Score(metric, method, parts.pop("score"), tuple(keys), better, parts, flags)
