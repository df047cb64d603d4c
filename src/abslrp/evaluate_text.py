"""Methods scored on texts: which words a map calls relevant, and whether the model agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from abslrp.evaluate import Methods, check_ids, choose_methods
from abslrp.metrics import text as kernels
from abslrp.progress import shown
from abslrp.query import check_model, full_precision, gradient, logits, undisturbed, unwrap
from abslrp.text import (
    Encoded,
    TextAttribution,
    batched,
    cover_embedding,
    equal_lengths,
    explain_text,
    text_query,
    token_relevance,
)
from abslrp.types import AbslrpError, Score, Scores

_AT_ONCE = 64


def evaluate_text(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    methods: Methods = "abslrp",
    metrics: str | Sequence[str] = "text-abpc",
    *,
    ids: Sequence[str] | None = None,
    progress: bool = False,
    **options: Any,
) -> Scores:
    """Score methods on texts, for the predicted class of each.

    ``text-abpc`` and ``text-aopc`` take words away in the order of their relevance (``how="remove"``, or ``"mask"``) and look at the
    target's probability; ``text-consistency`` is GAE's local consistency with words for features.
    """
    core: Any = unwrap(model)
    check_model(core)
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    settled = _settled(names, options)
    asked = choose_methods(methods, core)
    keys = check_ids(ids if ids is not None else [str(k) for k in range(len(texts))], torch.empty(len(texts)))
    found: dict[str, dict[str, Score]] = {name: {} for name in names}
    with full_precision():
        for one in asked:
            if callable(one.how):
                raise AbslrpError(
                    f"method {one.name!r} is a function, which texts do not take: name a method of abslrp."
                )
            maps = explain_text(core, tokenizer, list(texts), method=one.how, **one.options)
            for name in names:
                rows = [
                    _rows(name, core, tokenizer, a, one.how, dict(one.options), settled)
                    for a in shown(maps, f"{name} {one.name}", progress)
                ]
                found[name][one.name] = _score(name, one.name, rows, maps, keys)
    return Scores(found)


def _settled(names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    if not names:
        raise AbslrpError(f"metrics is empty: name at least one of {', '.join(kernels.TEXT_METRICS)}.")
    for name in names:
        if name not in kernels.TEXT_METRICS:
            near = get_close_matches(str(name), kernels.TEXT_METRICS, n=1, cutoff=0.3)
            raise AbslrpError(f"metric {name!r} is unknown for texts: did you mean {near[0] if near else 'text-abpc'}?")
    known = {option for name in names for option in kernels.TEXT_METRICS[name].options}
    unknown = sorted(set(options) - known)
    if unknown:
        raise AbslrpError(
            f"option {unknown[0]!r} is unknown for {', '.join(names)}: choose from {', '.join(sorted(known)) or 'none'}."
        )
    return kernels.settle(**options)


def _rows(
    name: str,
    model: nn.Module,
    tokenizer: Any,
    one: TextAttribution,
    method: str,
    options: dict[str, Any],
    settled: Mapping[str, Any],
) -> dict[str, float]:
    if name == "text-consistency":
        return _consistency(model, tokenizer, one, method, options, settled["T"])

    def probabilities(lists: Sequence[Sequence[int]]) -> Tensor:
        return class_probabilities(model, lists)

    given: dict[str, Any] = {"how": settled["how"], "mask": getattr(tokenizer, "mask_token_id", None)}
    _, morf = kernels.curve(one, probabilities, steps=settled["steps"], largest=True, **given)
    if name == "text-aopc":
        return {"score": kernels.aopc(morf)}
    _, lerf = kernels.curve(one, probabilities, steps=settled["steps"], largest=False, **given)
    return {"score": kernels.abpc(lerf, morf), "quarter": kernels.quarter(one, probabilities, **given)}


def class_probabilities(model: Any, lists: Sequence[Sequence[int]]) -> Tensor:
    """Probabilities (texts, classes) of token ids, equally long ones together, without padding."""
    device = next(model.parameters()).device
    found: dict[int, Tensor] = {}
    for rows in equal_lengths([len(ids) for ids in lists], _AT_ONCE if batched(model) else 1):
        ids = torch.tensor([list(lists[i]) for i in rows], device=device)
        with torch.no_grad():
            outputs = logits(model(input_ids=ids, attention_mask=torch.ones_like(ids)), len(rows))
        found.update(zip(rows, outputs.double().softmax(1).cpu(), strict=True))
    return torch.stack([found[i] for i in range(len(lists))])


def _consistency(
    model: nn.Module, tokenizer: Any, one: TextAttribution, method: str, options: dict[str, Any], T: int
) -> dict[str, float]:
    coded = Encoded(one.text, one.token_ids, one.tokens, one.of_word, one.spans)
    target = torch.tensor([one.target])
    query = text_query(model, [coded], target)
    cover = cover_embedding(query, tokenizer)
    of_word = torch.tensor([-1 if w is None else w for w in one.of_word])

    def masked(gone: set[int]) -> Tensor:
        x = query.inputs.clone()
        x[0, [k for k, w in enumerate(one.of_word) if w in gone]] = cover
        return x

    def per_word(tokens: Tensor) -> Tensor:
        words = torch.zeros(len(one.spans), dtype=torch.float64)
        return words.index_add(0, of_word[of_word >= 0], tokens.double().cpu()[of_word >= 0])

    def impact(gone: set[int]) -> tuple[Tensor, float]:
        x = masked(gone)
        with undisturbed(x):
            slope, _, outputs = gradient(query, x, target.to(x.device))
        scores = per_word((x * slope).abs().sum(-1)[0])
        scores[list(gone)] = 0.0
        return scores, float(outputs[0, one.target])

    def explained(gone: set[int]) -> Tensor:
        from dataclasses import replace

        x = masked(gone)
        with undisturbed(x):
            values = token_relevance(replace(query, inputs=x), [coded], method, options, tokenizer)[0]
        return per_word(values[0].detach())

    return kernels.consistency(one.relevance, impact, explained, T)


def _score(
    metric: str, method: str, rows: list[dict[str, float]], maps: Sequence[TextAttribution], keys: Sequence[str]
) -> Score:
    parts = {part: torch.tensor([row[part] for row in rows], dtype=torch.float64) for part in rows[0]}
    flags = tuple(() if bool(a.relevance.isfinite().all()) else ("not finite",) for a in maps)
    better = kernels.TEXT_METRICS[metric].higher_is_better
    return Score(metric, method, parts.pop("score"), tuple(keys), better, parts, flags)
