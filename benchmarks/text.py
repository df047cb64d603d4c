"""Methods scored on texts: measured on SST-2 with the sentiment network of ../shared, kept as JSON, and written into docs/results.md.

python -m benchmarks.text choose --shared ../shared --out text-choice.json     # settings, on one half of the sentences
python -m benchmarks.text run --shared ../shared --out text.json               # methods, on all sentences
python -m benchmarks.text write docs/results.md text-choice.json text.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from abslrp.evaluate_text import evaluate_text
from abslrp.experiments.statistics import best, holm, interval, wilcoxon
from abslrp.inputs.sentences import load_text_classifier, read_sentences
from abslrp.text import TEXT_DEFAULT

METHODS = (
    "lrp-text",
    "abslrp",
    "abslrp-agree",
    "lrp-epsilon",
    "lrp-gamma",
    "lrp-alpha1beta0",
    "attnlrp",
    "input-x-gradient",
    "integrated-gradients",
    "rollout",
    "tibav",
    "occlusion",
    "random",
)
Asked = tuple[str, dict[str, Any]]


def variants() -> dict[str, Asked]:
    """The settings to choose the default from: rule, conservation, attention, ε, and the start."""
    found: dict[str, Asked] = {}

    def add(method: str, **options: Any) -> None:
        label = ", ".join([method, *(f"{key} {value}" for key, value in options.items())])
        found[label] = (method, options)

    for attention in ("values", "all"):
        for conserve in ("none", "joint"):
            for eps in (1e-6, 3e-3, 1e-2, 2e-2, 4e-2):
                add("lrp-epsilon", attention=attention, conserve=conserve, eps=eps)
    add("lrp-epsilon", attention="all", conserve="sign", eps=1e-2)
    for start in ("logit", "contrastive", "two-pass"):
        add("lrp-epsilon", attention="all", conserve="joint", eps=1e-2, start=start)
    for gamma in (0.02, 0.1):
        add("lrp-gamma", attention="all", conserve="joint", eps=1e-2, gamma=gamma)
    add("attnlrp", attention="all", eps=1e-2)
    for start in ("contrastive", "two-pass", "target"):
        add("abslrp", start=start, attention="values")
    for start in ("contrastive", "two-pass"):
        add("abslrp-agree", start=start, conserve="sign", attention="values")
    return found


def measure(job: tuple[str, str, dict[str, Any], list[str], argparse.Namespace]) -> tuple[str, dict[str, Any], float]:
    """The scores of one method by metric and part, and the seconds they took."""
    label, method, options, texts, arguments = job
    torch.set_num_threads(arguments.threads)
    classifier = load_text_classifier(str(arguments.shared / "weights" / "minilm-sentiment"), device=arguments.device)
    since = time.perf_counter()
    metrics = arguments.metrics.split(",")
    found = evaluate_text(
        classifier.model, classifier.tokenizer, texts, {label: (method, options)}, metrics, batch_size=arguments.batch
    )
    kept = {
        metric: {"score": _rounded(by[label].scores), **{name: _rounded(v) for name, v in by[label].parts.items()}}
        for metric, by in found.items()
    }
    return label, kept, time.perf_counter() - since


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def run(arguments: argparse.Namespace) -> None:
    sentences = read_sentences(arguments.shared / "data" / "sst2" / "dev.tsv")
    numbers = [k for k in range(len(sentences.texts)) if arguments.choose is False or k % 2 == 0][:: arguments.every]
    texts = [sentences.texts[k] for k in numbers]
    asked = variants() if arguments.choose else {name: (name, {}) for name in METHODS}
    if arguments.only:
        asked = {label: one for label, one in asked.items() if label.startswith(arguments.only)}
    jobs = [(label, method, options, texts, arguments) for label, (method, options) in asked.items()]
    scores: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    # A fresh process each: CUDA does not survive a fork.
    with ProcessPoolExecutor(arguments.workers, multiprocessing.get_context("spawn")) as pool:
        for label, kept, took in pool.map(measure, jobs):
            seconds[label] = round(took, 1)
            for metric, parts in kept.items():
                scores.setdefault(metric, {})[label] = parts
            means = {metric: round(float(np.mean(parts["score"])), 3) for metric, parts in kept.items()}
            print(f"{label:50} {means} {took:.0f} s", flush=True)
    result = {
        "kind": "choice" if arguments.choose else "methods",
        "numbers": numbers,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or "CPU",
        "torch": torch.__version__,
        "seconds": seconds,
        "scores": scores,
    }
    part = f"{arguments.out}.part"
    Path(part).write_text(json.dumps(result))
    os.replace(part, arguments.out)


def write(arguments: argparse.Namespace) -> None:
    """The tables of several files, each put between the markers of its name."""
    page = Path(arguments.page)
    text = page.read_text(encoding="utf-8")
    for file in arguments.files:
        name = Path(file).stem
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin not in text or end not in text:
            raise SystemExit(f"{page} has no place for {name}: add the lines {begin} and {end}.")
        result = json.loads(Path(file).read_text())
        head, rest = text.split(begin)
        made = choice_table(result) if result["kind"] == "choice" else method_table(result)
        text = f"{head}{begin}\n{made}\n{end}{rest.split(end)[1]}"
    page.write_text(text, encoding="utf-8")


def _where(result: dict[str, Any]) -> str:
    return f"{result['device']}, torch {result['torch'].partition('+')[0]}"


def choice_table(result: dict[str, Any]) -> str:
    """ABPC of the settings on the half that the default was chosen on, best first."""
    rows = {label: np.array(parts["score"]) for label, parts in result["scores"]["text-abpc"].items()}
    lines = [
        f"The {len(result['numbers'])} sentences with even numbers. {_where(result)}.",
        "",
        "| setting | ABPC | 95 % | quarter |",
        "|---|---|---|---|",
    ]
    for label in sorted(rows, key=lambda one: -rows[one].mean()):
        spread = interval(rows[label])
        quarter = float(np.mean(result["scores"]["text-abpc"][label]["quarter"]))
        lines.append(f"| {label} | {spread.mean:.3f} | {spread.low:.3f}–{spread.high:.3f} | {quarter:.3f} |")
    return "\n".join(lines)


def method_table(result: dict[str, Any]) -> str:
    """Means with 95 % intervals on all sentences and on the odd half, Wilcoxon's p against the default after Holm."""
    scores = result["scores"]
    every = {label: np.array(parts["score"]) for label, parts in scores["text-abpc"].items()}
    odd = np.array(result["numbers"]) % 2 == 1
    half = {label: values[odd] for label, values in every.items()}
    others = [label for label in every if label != TEXT_DEFAULT]
    tests = {
        name: dict(zip(others, holm([wilcoxon(part[TEXT_DEFAULT], part[o]) for o in others]), strict=True))
        for name, part in (("all", every), ("half", half))
    }
    found = best(half, True)
    more = [name for name in ("text-aopc", "text-consistency") if name in scores]
    heads = [_HEADS[name] for name in more]
    lines = [
        f"{len(odd)} sentences, of which {int(odd.sum())} (odd numbers) had no part in the choice of the default. {_where(result)}.",
        "",
        f"| method | ABPC, odd half | 95 % | p | ABPC, all | 95 % | p | {' | '.join(heads)} |",
        f"|---|---|---|---|---|---|---|{'---|' * len(more)}",
    ]
    for label in sorted(every, key=lambda one: -half[one].mean()):
        star = "*" if label in found.starred else ""
        cells = []
        for name, values in (("half", half[label]), ("all", every[label])):
            spread = interval(values)
            mean = f"{spread.mean:.3f}{star if name == 'half' else ''}"
            bold = name == "half" and label in (found.best, *found.starred)
            p = "" if label == TEXT_DEFAULT else f"{tests[name][label]:.2g}"
            cells += [f"**{mean}**" if bold else mean, f"{spread.low:.3f}–{spread.high:.3f}", p]
        cells += [f"{np.mean(scores[name][label]['score']):.3f}" for name in more]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


_HEADS = {"text-aopc": "AOPC, all", "text-consistency": "LC, all"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name in ("run", "choose"):
        runs = verbs.add_parser(name)
        runs.add_argument("--shared", type=Path, default=Path("../shared"))
        default = "text-abpc" if name == "choose" else "text-abpc,text-aopc,text-consistency"
        runs.add_argument("--metrics", default=default)
        runs.add_argument("--only", default="", help="labels that begin so")
        runs.add_argument("--every", type=int, default=1, help="every so manieth sentence")
        runs.add_argument("--batch", type=int, default=32)
        runs.add_argument("--workers", type=int, default=1)
        runs.add_argument("--threads", type=int, default=1)
        runs.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        runs.add_argument("--out", default="text-choice.json" if name == "choose" else "text.json")
        runs.set_defaults(call=run, choose=name == "choose")
    writes = verbs.add_parser("write")
    writes.add_argument("page")
    writes.add_argument("files", nargs="+")
    writes.set_defaults(call=write)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
