"""From a text classifier and sentences to the relevance of words."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from abslrp.checks import whole
from abslrp.explain import answer
from abslrp.methods.attention import MATRICES
from abslrp.query import Answer, Query, check_model, plain_outputs, undisturbed, unwrap
from abslrp.registry import method as find_method
from abslrp.types import AbslrpError, Target, brief, check_targets

TEXT_DEFAULT = "lrp-text"
_NO_LIMIT = 10**6
_NOT_FOR_TEXT = {
    "rise": "makes maps of images",
    "guided-backprop": "is made for networks of ReLUs",
    "deconvolution": "is made for networks of ReLUs",
    "deeplift": "has no rule for attention",
}
# Their first positions are taken by padding.
_SHIFTED = {"roberta", "xlm-roberta", "camembert", "longformer", "xlm-roberta-xl"}


@dataclass(frozen=True)
class TextAttribution:
    """Relevance of the words of one text, and of the tokens they are made of.

    ``tokens`` are the model's own, special ones included; ``words`` join them as they stand in the text; ``of_word`` gives each
    token's word, or None. ``outputs`` (classes,) are the model's.
    """

    text: str
    words: tuple[str, ...]
    relevance: Tensor
    tokens: tuple[str, ...]
    token_relevance: Tensor
    of_word: tuple[int | None, ...]
    spans: tuple[tuple[int, int], ...]
    target: int
    outputs: Tensor
    method: str
    token_ids: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        pairs = zip(self.words, self.relevance.tolist(), strict=True)
        return " ".join(f"{word}({value:+.2g})" for word, value in pairs)

    def _repr_html_(self) -> str:
        """What Jupyter shows: the words on their colours."""
        from abslrp.reporting.words import marked

        return f'<p style="background:#fff;color:#141414;padding:.5em;line-height:2">{marked(self)}</p>'


@dataclass(frozen=True)
class Encoded:
    """A text as the model takes it."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    of_word: tuple[int | None, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.text[a:b] for a, b in self.spans)


def explain_text(
    model: nn.Module,
    tokenizer: Any,
    texts: str | Sequence[str],
    targets: Target = None,
    method: str = TEXT_DEFAULT,
    *,
    batch_size: int = 16,
    **options: Any,
) -> Any:
    """Relevance of the words of each text, for a sequence classifier of the transformers library.

    The relevance of a token is that of its input embedding e, summed, and that of a word the sum over its tokens:

        R_word = Σ_{t in word} Σ_d R(e_td).

    Special tokens are kept apart. Texts of equal length run together, so there is no padding that could get relevance or change a
    score. A list of texts gives a list of :class:`TextAttribution`, a single text gives one. ``targets`` is a class, one class per
    text, or None for the predicted ones. Texts longer than the model takes are cut, with a warning.

    Methods are those of :func:`abslrp.explain` that need no image; ``occlusion`` covers one word after the other. The default is
    ``lrp-text``; ``method="abslrp"`` is the rule that Vukadin, Afrić, Šilić, Delač (2024), doi 10.1145/3649458, apply to text.

    >>> from abslrp.inputs.sentences import tiny_classifier
    >>> a = explain_text(*tiny_classifier(), "a really good movie", targets=1)
    >>> a.words, a.tokens[2:4], a.relevance.shape, a.outputs.shape
    (('a', 'really', 'good', 'movie'), ('real', '##ly'), torch.Size([4]), torch.Size([2]))
    """
    core: Any = unwrap(model)
    check_model(core)
    check_method(method)
    whole("batch_size", batch_size)
    single = isinstance(texts, str)
    encoded = encode(tokenizer, core, text_list(texts))
    classes = check_targets(targets, len(encoded))
    highest = 0 if classes is None else int(classes.max())
    chosen = find_method(method)
    chosen.settle(options)
    found: dict[int, TextAttribution] = {}
    for rows in equal_lengths([len(one.ids) for one in encoded], batch_size if batched(core) else 1):
        with torch.inference_mode(False):
            group = [encoded[i] for i in rows]
            query = replace(text_query(core, group, None if classes is None else classes[rows]), highest=highest)
            with undisturbed(query.inputs):
                values, aimed, outputs = token_relevance(query, group, method, options, tokenizer)
        for k, i in enumerate(rows):
            found[i] = _attribution(group[k], values[k], int(aimed[k]), outputs[k], method, options)
    ordered = [found[i] for i in range(len(encoded))]
    return ordered[0] if single else ordered


def check_method(method: Any, label: str | None = None) -> None:
    """One sentence for a method that texts cannot take."""
    if callable(method):
        raise AbslrpError(f"method {label!r} is a function, which texts do not take: name a method of abslrp.")
    chosen = find_method(method)
    if chosen.family == "class activation map" or method in _NOT_FOR_TEXT:
        reason = _NOT_FOR_TEXT.get(method, "makes maps of images")
        raise AbslrpError(f"{method} {reason}: choose another method for text, such as {TEXT_DEFAULT}.")


def text_list(texts: Any) -> list[Any]:
    """One text or several as a list."""
    if isinstance(texts, (bytes, Mapping, Tensor)):
        several = None
    elif isinstance(texts, str):
        several = [texts]
    else:
        several = list(texts) if hasattr(texts, "__iter__") and not hasattr(texts, "__array__") else plain_list(texts)
    if several is None:
        raise AbslrpError(f"texts={brief(texts)} cannot be read: expected a text, or a list of texts.")
    return several


def plain_list(array: Any) -> list[Any] | None:
    """An array of one dimension as a list."""
    values = array.tolist() if hasattr(array, "tolist") else None
    return values if isinstance(values, list) else None


def encode(tokenizer: Any, model: Any, texts: Sequence[str]) -> list[Encoded]:
    """Texts as tokens with their words, cut to what the model takes."""
    if not texts:
        raise AbslrpError("texts is empty: give at least one text.")
    if not getattr(tokenizer, "is_fast", False):
        raise AbslrpError(
            f"the tokenizer {type(tokenizer).__name__} does not tell which characters a token stands for: "
            "load it with AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    most = _longest(tokenizer, getattr(model, "config", None))
    return [_encode(tokenizer, text, number, most) for number, text in enumerate(texts)]


def _encode(tokenizer: Any, text: Any, number: int, most: int) -> Encoded:
    if not isinstance(text, str) or not text.strip():
        raise AbslrpError(f"text {number} is {brief(text)}, expected a text with at least one word.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise AbslrpError(f"text {number} is {brief(text)}, which holds half a character: read its file as UTF-8.")
    whole = tokenizer(text, add_special_tokens=True, verbose=False)
    coded = tokenizer(text, truncation=True, max_length=most, return_offsets_mapping=True, verbose=False)
    if len(whole["input_ids"]) > len(coded["input_ids"]):
        warnings.warn(
            f"text {number} has {len(whole['input_ids'])} tokens and the model takes {most}: the rest is left out.",
            stacklevel=4,
        )
    ids, offsets, words = coded["input_ids"], coded["offset_mapping"], coded.word_ids()
    numbers: dict[int, int] = {}
    spans: list[list[int]] = []
    of_word: list[int | None] = []
    for word, (start, end) in zip(words, offsets, strict=True):
        while word is not None and start < end and text[start].isspace():
            start += 1
        if word is None or start >= end:
            of_word.append(None)
            continue
        if word not in numbers:
            numbers[word] = len(spans)
            spans.append([start, end])
        spans[numbers[word]][1] = max(end, spans[numbers[word]][1])
        of_word.append(numbers[word])
    if not spans:
        raise AbslrpError(f"text {number} has no word the tokenizer knows: {text[:60]!r}.")
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return Encoded(text, tuple(ids), tuple(tokens), tuple(of_word), tuple((a, b) for a, b in spans))


def _longest(tokenizer: Any, config: Any) -> int:
    limits = [int(min(getattr(tokenizer, "model_max_length", _NO_LIMIT), _NO_LIMIT))]
    places = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if isinstance(places, int) and places > 0:
        limits.append(places - 2 if getattr(config, "model_type", "") in _SHIFTED else places)
    return min(limits)


def equal_lengths(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Numbers of texts that have the same length, at most so many together.

    >>> equal_lengths([3, 5, 3, 3], 2)
    [[0, 2], [3], [1]]
    """
    groups: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        groups.setdefault(length, []).append(number)
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]


def batched(model: Any) -> bool:
    """Whether the model takes several texts at once: decoders without a padding token do not."""
    config = getattr(model, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False)) or getattr(config, "pad_token_id", 0) is not None


def text_query(model: Any, group: Sequence[Encoded], targets: Tensor | None) -> Query:
    """The question to the model, with the embeddings of equally long texts as inputs."""
    table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    if not isinstance(table, nn.Module):
        raise AbslrpError(
            f"{type(model).__name__} has no input embeddings: pass a sequence classifier of the transformers library."
        )
    device = next(model.parameters()).device
    with torch.inference_mode(False), torch.no_grad():
        embedded = table(torch.tensor([one.ids for one in group], device=device)).detach()

    def forward(x: Tensor) -> Any:
        mask = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        parts = [slice(None)] if batched(model) else [slice(k, k + 1) for k in range(len(x))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.cat([_class_scores(model, x[part], mask[part]) for part in parts])

    return Query(model, embedded, targets, forward)


def _class_scores(model: Any, x: Tensor, mask: Tensor) -> Tensor:
    try:
        found = model(inputs_embeds=x, attention_mask=mask)
    except (TypeError, NotImplementedError) as error:
        raise AbslrpError(
            f"{type(model).__name__} does not take embeddings ({error}): pass another classifier."
        ) from error
    scores = getattr(found, "logits", None)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != len(x):
        raise AbslrpError(
            f"{type(model).__name__} gives no class scores for whole texts: pass a sequence classifier, such as "
            "AutoModelForSequenceClassification loads."
        )
    return scores


def token_relevance(
    query: Query, group: Sequence[Encoded], method: str, options: dict[str, Any], tokenizer: Any
) -> Answer:
    """Relevance (batch, tokens) of equally long texts."""
    if method in MATRICES:
        matrix, aimed, outputs = MATRICES[method](query)
        return Answer(matrix[:, reader(matrix, group)], aimed, outputs)
    if method == "occlusion":
        return _occluded(query, group, tokenizer)
    maps, aimed, outputs = answer(find_method(method), query, options)
    # Controls know nothing of a token's width: one number each.
    return Answer(maps[..., 0] if find_method(method).family == "control" else maps.sum(-1), aimed, outputs)


def reader(matrix: Tensor, group: Sequence[Encoded]) -> int:
    """The token whose attention decides: the first, or the last where the model reads from left to right.

    ``matrix`` (batch, tokens, tokens) tells: in a decoder no token looks ahead.
    """
    causal = matrix.shape[-1] > 1 and not bool(matrix.triu(1).any())
    return 0 if group[0].of_word[0] is None and not causal else len(group[0].ids) - 1


def _occluded(query: Query, group: Sequence[Encoded], tokenizer: Any) -> Answer:
    """How much the target's output falls when a word is covered by the mask token (0 where there is none), shared by its tokens."""
    x = query.inputs
    outputs = plain_outputs(query, x)
    aimed = query.aim(outputs)
    cover = cover_embedding(query, tokenizer)
    values = torch.zeros(x.shape[:2], device=x.device)
    for row, one in enumerate(group):
        places = [[k for k, word in enumerate(one.of_word) if word == w] for w in range(len(one.spans))]
        covered = x[row].repeat(len(places), 1, 1)
        for w, tokens in enumerate(places):
            covered[w, tokens] = cover
        after = torch.cat([plain_outputs(query, part) for part in covered.split(16)])[:, aimed[row]]
        for w, tokens in enumerate(places):
            values[row, tokens] = (outputs[row, aimed[row]] - after[w]).float() / len(tokens)
    return Answer(values, aimed, outputs)


def cover_embedding(query: Query, tokenizer: Any) -> Tensor:
    """The embedding of the mask token, or of nothing."""
    token = getattr(tokenizer, "mask_token_id", None)
    model: Any = query.model
    if token is None:
        return torch.zeros_like(query.inputs[0, 0])
    with torch.inference_mode(False), torch.no_grad():
        found: Tensor = model.get_input_embeddings()(torch.tensor([token], device=query.inputs.device))[0]
    return found


def per_word(one: Encoded, values: Tensor) -> Tensor:
    """The sum of the tokens' values (tokens,) over each word."""
    words = torch.zeros(len(one.spans), dtype=values.dtype)
    for k, word in enumerate(one.of_word):
        if word is not None:
            words[word] += values[k]
    return words


def _attribution(
    one: Encoded, values: Tensor, target: int, outputs: Tensor, method: str, options: dict[str, Any]
) -> TextAttribution:
    values = values.detach().float().cpu()
    return TextAttribution(
        one.text,
        one.words,
        per_word(one, values),
        one.tokens,
        values,
        one.of_word,
        one.spans,
        target,
        outputs.detach().float().cpu(),
        method,
        one.ids,
        dict(options),
    )
