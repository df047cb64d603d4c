"""The commands about texts: ``explain-text`` shows which words count, and ``evaluate`` on a table of sentences scores methods."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from abslrp.inputs.sentences import Sentences, TextClassifier
    from abslrp.reporting.comparison import Comparison
    from abslrp.text import TextAttribution
    from abslrp.types import Scores

PAGE, PICTURE, SCORES = "words.html", "words.png", "scores.csv"
_MOST_DRAWN = 40
_METRICS = ("text-abpc", "text-aopc", "text-consistency")
_TITLES = {"text-abpc": "ABPC", "text-aopc": "AOPC", "text-consistency": "LC"}
_FOR_IMAGES = [
    "weights",
    "num_classes",
    "random_weights",
    "tf32",
    "labels",
    "split",
    "preset",
    "architecture",
    "engine",
    "address",
    "workers",
    "gpus",
    "optional",
]


def explain_text(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]…", help="Texts, each in quotes.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A folder of transformers with its tokenizer, or a name of the hub.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A .tsv or .csv with a column sentence or text, or a .txt.")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="What explains; else lrp-text.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the method; may be repeated."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The class to explain: index or name; else the predicted one.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.")] = Path("abslrp-out"),
    batch: Annotated[int, typer.Option("--batch", min=1, help="Texts at a time.")] = 16,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, mps …")] = "cpu",
) -> None:
    """Show which words of texts speak for a class and which against: in colour on screen, as HTML and as PNG."""
    from abslrp.cli import read_settings
    from abslrp.inputs.models import resolve_target
    from abslrp.inputs.plain import check_writable
    from abslrp.registry import method as find_method
    from abslrp.reporting import words
    from abslrp.text import TEXT_DEFAULT, check_method
    from abslrp.text import explain_text as explain

    how = method or TEXT_DEFAULT
    check_method(how)
    settings = read_settings(option)
    find_method(how).settle(settings)
    given = _gathered(texts, file)
    check_writable(out)
    classifier = _loaded(model, device)
    names = classifier.class_names
    aim = None if target is None else resolve_target(target, names, len(names))
    with _said():
        found = explain(classifier.model, classifier.tokenizer, given, aim, how, batch_size=batch, **settings)
    lines = [words.Line(one, _caption(one, names)) for one in found]
    _show(lines)
    written = _write(lines, f"{_short(classifier.name)}, {how}", out)
    console = Console()
    for path in written:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    if len(lines) > _MOST_DRAWN:
        console.print(f"{PICTURE} holds the first {_MOST_DRAWN} of {len(lines)} texts.", markup=False, highlight=False)


def _gathered(texts: Sequence[str] | None, file: Path | None) -> list[str]:
    from abslrp.inputs.sentences import read_sentences
    from abslrp.types import AbslrpError

    given = [*(texts or []), *(read_sentences(file).texts if file is not None else ())]
    if not given:
        raise AbslrpError(
            'no text was given: write it in quotes, abslrp explain-text "a charming film", or name a --file.'
        )
    for text in given:
        if not text.strip():
            raise AbslrpError("a text is empty: give at least one word.")
    return given


def _loaded(model: str | None, device: str) -> TextClassifier:
    from abslrp.inputs.sentences import load_text_classifier
    from abslrp.types import AbslrpError

    if model is None:
        raise AbslrpError(
            "no model was named: add --model FOLDER, a folder of transformers with a text classifier and its tokenizer."
        )
    return load_text_classifier(model, device)


@contextmanager
def _said() -> Iterator[None]:
    """Let what the library warns of be read as sentences."""
    from abslrp.inputs.huggingface import quiet

    with quiet(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    notes = Console(stderr=True)
    for message in dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning):
        notes.print(f"note: {' '.join(message.split())}", markup=False, highlight=False, soft_wrap=True)


def _caption(one: TextAttribution, names: Sequence[str]) -> str:
    chances = one.outputs.double().softmax(0)
    said = f"{names[one.target]} {float(chances[one.target]):.1%}"
    predicted = int(one.outputs.argmax())
    return said if predicted == one.target else f"{said} (predicted: {names[predicted]})"


def _show(lines: Sequence[Any]) -> None:
    from abslrp.reporting import words

    console = Console(highlight=False)
    for line in lines:
        console.print(f"{line.caption}:", style="dim", markup=False, soft_wrap=True)
        coloured = console.is_terminal and console.color_system is not None and not console.no_color
        console.print(words.terminal(line.explained, coloured), soft_wrap=not console.is_terminal)


def _write(lines: Sequence[Any], title: str, folder: Path) -> list[Path]:
    from abslrp.reporting import words
    from abslrp.reporting.heatmaps import save_png, write_whole

    page = words.page(lines, title)
    drawn = words.picture(lines[:_MOST_DRAWN], f"{title}: red for the class, blue against")
    return [
        write_whole(folder / PAGE, lambda file: file.write(page.encode("utf-8"))),
        save_png(drawn, folder / PICTURE),
    ]


# ---------------------------------------------------------------- evaluate


def evaluate_sentences(values: Mapping[str, Any], out: Path, device: str = "cpu", batch: Any = "auto") -> None:
    """Score methods on a table of sentences, print the comparison, and write it with every single score into a folder."""
    from abslrp.commands import print_comparison, write_tables
    from abslrp.evaluate_text import evaluate_text
    from abslrp.experiments.config import read_methods
    from abslrp.inputs.plain import check_writable
    from abslrp.inputs.sentences import read_sentences
    from abslrp.reporting.heatmaps import write_whole
    from abslrp.text import TEXT_DEFAULT, check_method

    _refuse_foreign(values, out)
    methods = read_methods(values.get("methods") or f"{TEXT_DEFAULT},integrated-gradients,input-x-gradient,random")
    for one in methods:
        check_method(one.name)
    metrics, options = read_text_metrics(values.get("metrics") or ",".join(_METRICS))
    check_writable(out)
    numbers, sentences = _drawn(read_sentences(values["data"]), values.get("images"), int(values.get("seed") or 0))
    classifier = _loaded(values.get("model"), device)
    notes = _accuracy(classifier, sentences)
    with _said():
        found = evaluate_text(
            classifier.model,
            classifier.tokenizer,
            list(sentences.texts),
            {one.label: (one.name, one.settings()) for one in methods},
            metrics,
            ids=[str(number) for number in numbers],
            batch_size=_size(batch),
            progress=sys.stderr.isatty(),
            **options,
        )
    title = f"{_short(classifier.name)} on {_short(str(values['data']))}, {len(sentences)} sentences"
    comparison = compared(found, title, notes)
    written = write_tables(comparison, out)
    written.append(write_whole(out / SCORES, lambda file: file.write(scores_text(found).encode("utf-8"))))
    print_comparison(comparison)
    names = ", ".join(path.name for path in written)
    Console().print(f"{names} in {out}", markup=False, highlight=False, soft_wrap=True)


def _refuse_foreign(values: Mapping[str, Any], out: Path) -> None:
    from abslrp.experiments.store import FILE
    from abslrp.types import AbslrpError

    foreign = [key for key in _FOR_IMAGES if values.get(key) not in (None, ())]
    if foreign:
        flag = f"--{foreign[0].replace('_', '-')}"
        raise AbslrpError(f"{flag} is for images, and {values['data']} is a file of sentences: leave it out.")
    if (out / FILE).exists():
        raise AbslrpError(f"{out} holds a run on images already: choose another folder, --out FOLDER.")


def read_text_metrics(given: str | Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Metrics of texts as people write them, ``text-`` left out or not, and the options behind their names.

    >>> read_text_metrics("abpc:how=mask,steps=5,text-consistency")
    (['text-abpc', 'text-consistency'], {'how': 'mask', 'steps': 5})
    """
    from abslrp.experiments.config import read_value

    names: list[str] = []
    options: dict[str, Any] = {}
    for token in ",".join([given] if isinstance(given, str) else given).split(","):
        name, colon, pair = token.strip().partition(":")
        if colon or "=" not in name:
            full = f"text-{name}"
            names += [full if full in _METRICS else name] if name else []
        pair = pair if colon else name if "=" in name else ""
        if pair:
            key, _, value = pair.partition("=")
            options[key.strip()] = read_value(value.strip())
    return names, options


def _drawn(sentences: Sentences, count: int | None, seed: int) -> tuple[list[int], Sentences]:
    """So many of the sentences, in their order, drawn from the seed, and their numbers."""
    import random

    from abslrp.inputs.sentences import Sentences

    every = range(len(sentences))
    kept = list(every) if count is None or count >= len(sentences) else sorted(random.Random(seed).sample(every, count))
    labels = None if sentences.labels is None else tuple(sentences.labels[k] for k in kept)
    return kept, Sentences(tuple(sentences.texts[k] for k in kept), labels)


def _size(batch: Any) -> int:
    from abslrp.commands import read_batch

    return read_batch(batch) or 16


def _accuracy(classifier: TextClassifier, sentences: Sentences) -> list[str]:
    """How often the model is right, where the file tells."""
    from abslrp.evaluate_text import class_probabilities
    from abslrp.inputs.sentences import class_indices
    from abslrp.text import encode

    if sentences.labels is None:
        return []
    labels = class_indices(sentences.labels, classifier.class_names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coded = encode(classifier.tokenizer, classifier.model, list(sentences.texts))
    predicted = class_probabilities(classifier.model, [one.ids for one in coded]).argmax(1).tolist()
    right = sum(a == b for a, b in zip(predicted, labels, strict=True))
    return [
        f"The model's class is the file's label for {right} of {len(labels)} sentences; its own class is explained."
    ]


def compared(found: Scores, title: str, notes: Sequence[str] = ()) -> Comparison:
    """The comparison of methods on texts: means, intervals, and stars by Wilcoxon's test, corrected after Holm."""
    from abslrp.reporting.comparison import MetricInfo, compare

    scores: dict[str, dict[str, dict[str, Any]]] = {}
    info: dict[str, MetricInfo] = {}
    for metric, by_method in found.items():
        scores[metric] = {
            label: {"score": one.scores.numpy(), **{part: values.numpy() for part, values in one.parts.items()}}
            for label, one in by_method.items()
        }
        first = next(iter(by_method.values()))
        info[metric] = MetricInfo(
            metric, first.higher_is_better, parts=("score", *first.parts), title=_TITLES.get(metric, metric)
        )
    flagged = {metric: {label: one.flagged for label, one in by.items()} for metric, by in found.items()}
    return compare(scores, info, title=title, flagged=flagged, notes=notes, corrected=True)


def scores_text(found: Scores) -> str:
    """Every score as CSV: a line for each sentence, method, metric and part; sentences by their number in the file, from 0.

    >>> import torch
    >>> from abslrp.types import Score, Scores
    >>> print(scores_text(Scores({"text-aopc": {"random": Score("text-aopc", "random", torch.tensor([0.5]), ("0",), True)}})))
    sentence,method,metric,part,value
    0,random,text-aopc,score,0.5
    <BLANKLINE>
    """
    import csv
    import io

    from abslrp.reporting.comparison import harmless

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("sentence", "method", "metric", "part", "value"))
    for metric, by_method in found.items():
        for label, one in by_method.items():
            for part, values in {"score": one.scores, **one.parts}.items():
                writer.writerows(
                    (key, harmless(label), metric, part, value)
                    for key, value in zip(one.ids, values.tolist(), strict=True)
                )
    return text.getvalue()


def _short(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
