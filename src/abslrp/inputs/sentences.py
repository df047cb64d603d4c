"""Sentences from files, and the text classifiers of the transformers library that read them."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from abslrp.inputs.archives import check_folder, only_tensors
from abslrp.inputs.fetching import needs, offline_when_unreachable
from abslrp.inputs.plain import expanded, read_text, shown
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.inputs.weights import check_finite
from abslrp.types import AbslrpError

TABLES = (".tsv", ".csv", ".txt")
"""What names a file of sentences."""

_SENTENCE, _LABEL = ("sentence", "text"), "label"
_LONGEST, _DIGITS = 100_000, 20
_PATHLIKE = (".", "~", "/", os.sep)


@dataclass(frozen=True)
class Sentences:
    """The sentences of a file, and their labels as written there, where it has them."""

    texts: tuple[str, ...]
    labels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class TextClassifier:
    """A classifier in evaluation mode with its tokenizer, and what it calls its classes."""

    model: Any
    tokenizer: Any
    class_names: list[str]
    name: str


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a file of sentences.

    >>> is_table("dev.tsv"), is_table("photos")
    (True, False)
    """
    return Path(path).suffix.casefold() in TABLES


def read_sentences(path: str | os.PathLike[str]) -> Sentences:
    """Read a TSV or CSV with a column ``sentence`` or ``text`` and perhaps one ``label``, or a text file, a sentence a line.

    A table without a heading is taken if it has one column, or two of which the second are numbers of classes. In TSV files
    quotation marks are letters like any other, as in those of GLUE.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "dev.tsv")
    ...     _ = file.write_text("sentence\\tlabel\\na \\"fine\\" film\\t1\\n")
    ...     read_sentences(file)
    Sentences(texts=('a "fine" film',), labels=('1',))
    """
    path = expanded(path)
    rows = _rows(path)
    if not rows:
        raise AbslrpError(f"{path} holds no sentence: give a file with at least one.")
    headed, at, label = _columns(path, [row for _, row in rows])
    wide = len(rows[0][1])
    rows = rows[headed:]
    for number, row in rows:
        if len(row) != wide or not row[at].strip():
            what = "has no sentence" if len(row) == wide else f"has {len(row)} columns instead of {wide}"
            raise AbslrpError(f"line {number} of {path} {what}: mend it or leave it out.")
    if not rows:
        raise AbslrpError(f"{path} holds a heading and no sentence: give a file with at least one.")
    texts = tuple(row[at].strip() for _, row in rows)
    return Sentences(texts, None if label is None else tuple(row[label].strip() for _, row in rows))


def _columns(path: Path, rows: list[list[str]]) -> tuple[int, int, int | None]:
    """How many lines are headings, and where sentences and labels stand."""
    heads = [cell.strip().casefold() for cell in rows[0]]
    at = next((heads.index(name) for name in _SENTENCE if name in heads), None)
    # A sentence that is one of these words alone is not a heading of a plain text file.
    if at is not None and path.suffix.casefold() != ".txt":
        return 1, at, heads.index(_LABEL) if _LABEL in heads else None
    if len(heads) == 1:
        return 0, 0, None
    if all(len(row) == 2 and row[1].strip().isdecimal() for row in rows):
        return 0, 0, 1
    raise AbslrpError(
        f"{path} begins with {shown(', '.join(rows[0]))!r}: name its columns in the first line, sentence (or text) and label."
    )


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers, cut into columns."""
    if not is_table(path):
        raise AbslrpError(f"{shown(path, 300)} is no file of sentences: give a .tsv, a .csv or a .txt.")
    try:
        file = io.StringIO(read_text(path), newline="")
        if path.suffix.casefold() == ".txt":
            lines = enumerate((line.rstrip("\r\n") for line in io.StringIO(file.getvalue(), newline=None)), 1)
            rows = [(number, [line]) for number, line in lines if line.strip()]
        else:
            tabbed = path.suffix.casefold() == ".tsv"
            reader = (
                csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if tabbed else csv.reader(file, strict=True)
            )
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        raise AbslrpError(
            f"{shown(path, 300)} cannot be read ({error.strerror or error}): name a file of sentences."
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise AbslrpError(f"{path} is not a table in UTF-8 ({error}): save it anew as TSV or CSV.") from None
    for number, row in rows:
        if max(map(len, row)) > _LONGEST:
            raise AbslrpError(
                f"line {number} of {path} has more than {_LONGEST} letters: it is no sentence, leave it out."
            )
    return rows


def class_indices(labels: Sequence[str], class_names: Sequence[str]) -> list[int]:
    """Labels, numbers or names, as numbers of classes.

    >>> class_indices(["1", "Negative"], ["negative", "positive"])
    [1, 0]
    """
    names = [name.casefold() for name in class_names]
    found = []
    for label in labels:
        number = label.isdecimal() and len(label) < _DIGITS
        index = int(label) if number else names.index(label.casefold()) if label.casefold() in names else -1
        if not 0 <= index < len(names):
            raise AbslrpError(
                f"label {shown(label)!r} is no class of the model: write one of {', '.join(class_names[:5])}, or a number from 0 to "
                f"{len(names) - 1}."
            )
        found.append(index)
    return found


def load_text_classifier(spec: str, device: str | torch.device = "cpu") -> TextClassifier:
    """Load a sequence classifier of the transformers library with its tokenizer: a folder, or a name of the hub, ``hf:`` or plain.

    >>> load_text_classifier("./nowhere")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: ./nowhere is no folder: name a folder with config.json and tokenizer.json, or a model of the hub.
    """
    from abslrp.inputs.models import _device

    target = _device(device)
    name = os.path.expanduser(spec.removeprefix("hf:"))
    local = os.path.isdir(name)
    if not name.strip() or (not local and (spec.removeprefix("hf:").startswith(_PATHLIKE) or os.path.exists(name))):
        raise AbslrpError(
            f"{spec} is no folder: name a folder with config.json and tokenizer.json, or a model of the hub."
        )
    if local and not os.path.isfile(os.path.join(name, "config.json")):
        raise AbslrpError(f"{spec} holds no config.json: name a folder that save_pretrained of transformers wrote.")
    with needs("transformers", "a text classifier", "text"):
        if importlib.util.find_spec("torchvision") is not None:
            ensure_torchvision()
        importlib.import_module("transformers")
    from abslrp.inputs.huggingface import quiet

    check_folder(name)
    with quiet(), offline_when_unreachable(), only_tensors():
        model = _model(name, spec, local)
        tokenizer = _tokenizer(name, spec, local)
    check_finite(model, spec)
    names = [str(model.config.id2label[k]) for k in range(int(model.config.num_labels))]
    return TextClassifier(model.float().eval().to(target), tokenizer, names, spec)


def _model(name: str, label: str, local: bool) -> Any:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from abslrp.inputs.huggingface import refuse_new_weights

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise AbslrpError(_unread(label, "configuration", error, local)) from error
    if type(config) not in AutoModelForSequenceClassification._model_mapping:
        raise AbslrpError(f"{label} is a {config.model_type} model, which is no text classifier: name one that is.")
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            name, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:
        raise AbslrpError(_unread(label, "model", error, local)) from error
    refuse_new_weights(report, label)
    return model


def _tokenizer(name: str, label: str, local: bool) -> Any:
    from transformers import AutoTokenizer

    missing = f"{label} has no tokenizer: put its tokenizer.json beside its config.json."
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise AbslrpError(missing if local else _unread(label, "tokenizer", error, local)) from error
    # Without files some tokenizers are made all the same, and know nothing but their special tokens.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise AbslrpError(missing)
    return tokenizer


def _unread(label: str, what: str, error: Exception, local: bool) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".:")
    if local:
        return f"the {what} in {label} cannot be read ({reason}): name a folder that save_pretrained of transformers wrote."
    return f"{label} is no folder here, and its {what} could not be fetched ({reason}): name a folder, or connect to the network."


_WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "good",
    "bad",
    "movie",
    "##s",
    "##ly",
    "real",
    "very",
    "plot",
    "was",
    "the",
    ",",
    ".",
    "!",
]


def tiny_classifier() -> tuple[Any, Any]:
    """A BERT of two layers with random weights and a vocabulary of a dozen words, with its tokenizer: for trying things.

    >>> model, tokenizer = tiny_classifier()
    >>> tokenizer.tokenize("a really good movie")
    ['a', 'real', '##ly', 'good', 'movie']
    """
    with needs("transformers", "the tiny text classifier", "text"):
        if importlib.util.find_spec("torchvision") is not None:
            ensure_torchvision()
        transformers = importlib.import_module("transformers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordPiece({word: k for k, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    ends = [(word, _WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    special = {f"{word}_token": f"[{word.upper()}]" for word in ("unk", "pad", "cls", "sep", "mask")}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=16, **special)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    names = {0: "negative", 1: "positive"}
    config = transformers.BertConfig(
        vocab_size=len(_WORDS),
        max_position_embeddings=16,
        id2label=names,
        label2id={v: k for k, v in names.items()},
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
    return model.eval(), tokenizer
