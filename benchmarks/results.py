"""Scores of methods on real networks: measured, kept as JSON, and written as docs/results.md.

python -m benchmarks.results run resnet50 --shared ../shared --mosaics 128 --out resnet50.json
python -m benchmarks.results write docs/results.md resnet50.json vit-tiny.json vgg16.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.networks import shared_images, shared_labels, shared_network

import abslrp
from abslrp.evaluate import Asked, Piece, choose_methods, choose_metrics, pieces, run_pieces, set_sizes
from abslrp.experiments.paper import published
from abslrp.experiments.statistics import best, interval, wilcoxon
from abslrp.metrics.bench import Bench
from abslrp.precision import full_precision
from abslrp.query import make_query, undisturbed
from abslrp.types import AbslrpError

# Enough for a comparison, and affordable for thousands of maps.
SHORT: dict[str, dict[str, Any]] = {
    "occlusion": {"window": 32, "stride": 32, "inner_batch": 256},
    "rise": {"masks": 100, "inner_batch": 256},
    "integrated-gradients": {"inner_batch": 128},
    "smoothgrad": {"inner_batch": 128},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "abslrp joint two-pass": ("abslrp", {"conserve": "joint", "start": "two-pass"}),
    "abslrp-agree sign contrastive": ("abslrp-agree", {"conserve": "sign", "start": "contrastive"}),
    "abslrp-agree joint two-pass head same": ("abslrp-agree", {"head": "same"}),
    "abslrp-agree sign contrastive head same": (
        "abslrp-agree",
        {"conserve": "sign", "start": "contrastive", "head": "same"},
    ),
}


def fitting(model: torch.nn.Module, x: torch.Tensor, wanted: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The methods that run on this model, with the options that this measurement gives them."""
    names = list(abslrp.methods()) if wanted == "all" else wanted.split(",")
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in names:
        how, options = VARIANTS.get(name, (name, SHORT.get(name, {})))
        try:
            abslrp.explain(model, x[:1], method=how, **options)
            found[name] = (how, options)
        except AbslrpError as error:
            print(f"{name} does not fit: {error}", file=sys.stderr)
    return found


def run(arguments: argparse.Namespace) -> None:
    model = shared_network(arguments.shared, arguments.network).to(arguments.device)
    x = shared_images(arguments.shared, arguments.network, arguments.images, arguments.seed).to(arguments.device)
    named = fitting(model, x, arguments.methods)
    given: dict[str, Any] = {}
    if "gae" in arguments.metrics:
        given |= {"settings": arguments.settings, "mosaics": arguments.mosaics}
    if "lipschitz" in arguments.metrics:
        given |= {"samples": arguments.samples}
    chosen = choose_metrics(arguments.metrics.split(","), given)
    asked = choose_methods(named, model)
    bench = Bench(make_query(model, x[:1], None, None, None), lambda n: x[list(n)], _ids(x), 1, arguments.seed)
    if "focus" in arguments.metrics:
        labels = shared_labels(arguments.shared, arguments.network, arguments.images, arguments.seed)
        bench.labels = [frozenset([label]) for label in labels]
    rows: dict[str, dict[str, dict[str, list[Any]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    seconds: dict[str, float] = defaultdict(float)
    with undisturbed(x), nullcontext() if arguments.tf32 else full_precision():
        set_sizes(bench, asked, x, arguments.batch)
        work = list(pieces(bench, chosen, arguments.chunk))
        since = time.perf_counter()
        for piece, one, outcome in run_pieces(bench, work, asked):
            _take(rows[piece.metric.name][one.name], piece, outcome)
            now = time.perf_counter()
            seconds[one.name] += now - since
            since = now
    result = {
        "network": arguments.network,
        "settings": arguments.settings,
        "images": len(x),
        "seed": arguments.seed,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "options": {name: options for name, (_, options) in named.items() if options},
        "sizes": {one.name: one.size for one in asked},
        "seconds": seconds,
        "scores": rows,
    }
    Path(arguments.out).write_text(json.dumps(result))
    _tell(result, asked)


def _take(rows: dict[str, list[Any]], piece: Piece, outcome: Any) -> None:
    rows["key"] += [item.key for item in piece.items]
    rows["flags"] += [list(flag) for flag in outcome.flags]
    for name, values in outcome.parts.items():
        if values.ndim == 1:
            rows[name] += [round(v, 6) for v in values.double().tolist()]


def _ids(x: torch.Tensor) -> list[str]:
    return [f"{k:04d}" for k in range(len(x))]


def _tell(result: dict[str, Any], asked: list[Asked]) -> None:
    for metric, methods in result["scores"].items():
        for one in asked:
            parts = {k: v for k, v in methods[one.name].items() if k not in ("key", "flags")}
            means = {k: round(sum(v) / len(v), 3) for k, v in parts.items()}
            print(
                f"{metric:10} {one.name:42} {means} {result['seconds'][one.name]:.0f} s, batch {one.size}", flush=True
            )


TITLES = {
    "resnet50": ("ResNet50, ImageNet validation images", "resnet50", "the paper's ResNet50"),
    "vit-tiny": ("ViT-Tiny/16, ImageNet validation images", "vit-base", "the paper's ViT-Base"),
    "vgg16": ("VGG16 (average-pooled head), Imagenette validation images", "vgg16", "the paper's VGG16 on ImageNet"),
}


def write(arguments: argparse.Namespace) -> None:
    """Tables of the results of several runs, put between the markers of a page."""
    for file in arguments.files:
        put(Path(arguments.page), Path(file).stem, table(json.loads(Path(file).read_text())))


def put(page: Path, name: str, made: str) -> None:
    """A text in place of what stands between the markers of a page."""
    text = page.read_text()
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in text or end not in text:
        raise SystemExit(f"{page} has no place for {name}: add the lines {begin} and {end}.")
    head, rest = text.split(begin)
    page.write_text(f"{head}{begin}\n{made}\n{end}{rest.split(end)[1]}")


def table(result: dict[str, Any]) -> str:
    """LC, C and GAE with 95 % intervals, Wilcoxon's p against absLRP, and the paper's figures, best first."""
    title, architecture, whose = TITLES[result["network"]]
    rows = result["scores"]["gae"]
    scores = {method: np.array(parts["score"]) for method, parts in rows.items()}
    found = best(scores, True)
    number = len(next(iter(scores.values())))
    lines = [
        f"{title}: {number} mosaics of {result['images']} images, settings `{result['settings']}`, seed {result['seed']}, "
        f"{result['device']}, torch {result['torch'].partition('+')[0]}. In brackets {whose}.",
        "",
        "| method | LC | C | GAE | 95 % | p against abslrp |",
        "|---|---|---|---|---|---|",
    ]
    for method in sorted(scores, key=lambda m: -scores[m].mean()):
        star = "*" if method in found.starred else ""
        means = {part: float(np.mean(rows[method][part])) for part in ("LC", "C")}
        spread = interval(scores[method])
        p = "" if method == "abslrp" or "abslrp" not in scores else f"{wilcoxon(scores[method], scores['abslrp']):.2g}"
        named = [f"{means[part]:.3f}{_paper(architecture, method, part)}" for part in means]
        gae = f"{spread.mean:.3f}{star}"
        gae = f"**{gae}**" if method == found.best or method in found.tied else gae
        lines.append(
            f"| {method} | {' | '.join(named)} | {gae}{_paper(architecture, method, 'GAE')} "
            f"| {spread.low:.3f}–{spread.high:.3f} | {p} |"
        )
    return "\n".join(lines)


def _paper(architecture: str, method: str, part: str) -> str:
    value = published(architecture, "imagenet", "gae", method, part)
    return "" if value is None else f" ({value:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("network", choices=["resnet50", "vit-tiny", "vgg16"])
    runs.add_argument("--shared", type=Path, default=Path("../shared"))
    runs.add_argument("--images", type=int, default=500)
    runs.add_argument("--mosaics", type=int)
    runs.add_argument("--methods", default="all")
    runs.add_argument("--metrics", default="gae")
    runs.add_argument("--tf32", action="store_true", help="round as torch does on CUDA unless told not to")
    runs.add_argument("--samples", type=int, default=10)
    runs.add_argument("--settings", default="authors")
    runs.add_argument("--seed", type=int, default=0)
    runs.add_argument("--batch", type=int)
    runs.add_argument("--chunk", type=int, default=64)
    runs.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    runs.add_argument("--out", default="results.json")
    runs.set_defaults(call=run)
    writes = verbs.add_parser("write")
    writes.add_argument("page")
    writes.add_argument("files", nargs="+")
    writes.set_defaults(call=write)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
