"""Which rule serves a Vision Transformer best: chosen by GAE on one half of the images, reported on the other.

python -m benchmarks.transformers choose --shared ../shared --out vit-choice.json
python -m benchmarks.transformers report --shared ../shared --out vit-report.json
python -m benchmarks.transformers ablation --shared ../shared --out vit-ablation.json
python -m benchmarks.transformers write docs/results.md vit-choice.json vit-report.json vit-ablation.json
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.networks import shared_images, shared_network

import abslrp
from abslrp.experiments.statistics import interval, wilcoxon
from abslrp.propagation import lrp, rules
from benchmarks.results import put

Variant = tuple[str, dict[str, Any]]
AGREE, GAMMA, PAPER = "abslrp-agree", "lrp-gamma", "abslrp"
JOINT = {"conserve": "joint", "start": "two-pass"}

CHOICE: dict[str, Variant] = {
    "abslrp": (PAPER, {}),
    "abslrp, ε .1": (PAPER, {"eps": 0.1}),
    "abslrp, joint, two-pass, ε .01": (PAPER, {**JOINT, "eps": 0.01}),
    "abslrp, joint, two-pass, ε .1": (PAPER, {**JOINT, "eps": 0.1}),
    "agree": (AGREE, {}),
    "agree, ε .001": (AGREE, {"eps": 0.001}),
    "agree, ε .01": (AGREE, {"eps": 0.01}),
    "agree, ε .03": (AGREE, {"eps": 0.03}),
    "agree, ε .1": (AGREE, {"eps": 0.1}),
    "agree, ε .01, head as the rest": (AGREE, {"eps": 0.01, "head": "same"}),
    "agree, ε .01, sign, contrastive": (AGREE, {"eps": 0.01, "conserve": "sign", "start": "contrastive"}),
    "agree, values, ε .003": (AGREE, {"eps": 0.003, "attention": "values"}),
    "agree, values, ε .01": (AGREE, {"eps": 0.01, "attention": "values"}),
    "agree, values, ε .03": (AGREE, {"eps": 0.03, "attention": "values"}),
    "agree, values, ε .1": (AGREE, {"eps": 0.1, "attention": "values"}),
    "agree, values, ε .01, head as the rest": (AGREE, {"eps": 0.01, "attention": "values", "head": "same"}),
    "agree, ε .01, softmax as in AttnLRP": (AGREE, {"eps": 0.01, "softmax": lrp.softmax_attnlrp}),
    "agree, ε .01, softmax passed": (AGREE, {"eps": 0.01, "softmax": rules.identity}),
    "agree, values, ε .01, GELU passed": (AGREE, {"eps": 0.01, "attention": "values", "activation": rules.identity}),
    "agree, values, ε .01, LayerNorm as in LRP-ε": (
        AGREE,
        {"eps": 0.01, "attention": "values", "norm": lrp.norm_epsilon},
    ),
    "LRP-γ, two-pass": (GAMMA, {"start": "two-pass"}),
    "LRP-γ, contrastive": (GAMMA, {"start": "contrastive"}),
    "LRP-γ, joint, two-pass": (GAMMA, {**JOINT}),
    "LRP-γ, two-pass, LayerNorm as in agree": (GAMMA, {"start": "two-pass", "norm": rules.norm_agreeing}),
    "hirescam": ("hirescam", {}),
}
REPORT: dict[str, Variant] = {
    "abslrp-transformer": ("abslrp-transformer", {}),
    "abslrp": (PAPER, {}),
    "abslrp-agree": (AGREE, {}),
    "hirescam": ("hirescam", {}),
    "lrp-gamma": (GAMMA, {}),
}
ABLATION: dict[str, Variant] = {
    "abslrp": (PAPER, {}),
    "patches": (PAPER, {"level": "patches"}),
    "values": (PAPER, {"attention": "values"}),
    "queries-keys": (PAPER, {"attention": "queries-keys"}),
}
HALVES = {"choose": (0, CHOICE, ("authors",)), "report": (1, REPORT, ("authors", "incremental"))}
HALVES["ablation"] = (1, ABLATION, ("authors",))


def own_rules(method: str, options: dict[str, Any], model: Any, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A method with the rule of one kind of operation exchanged."""
    kinds = {k: v for k, v in options.items() if callable(v)}
    plain = {k: v for k, v in options.items() if not callable(v)}
    if method == AGREE:
        plain = {"head": "positive", **plain}
    with abslrp.propagate(method, measure=False, **plain) as engine:
        alike = engine._head is engine._rules
        engine._rules = {**engine._rules, **kinds}
        engine._head = engine._rules if alike else engine._head
        leaf = x.detach().clone().requires_grad_()
        engine.watch(leaf)
        outputs = model(leaf.clone())
    return engine.relevance(outputs, leaf, targets=targets, retain=False)


def run(arguments: argparse.Namespace) -> None:
    half, variants, settings = HALVES[arguments.verb]
    model = shared_network(arguments.shared, "vit-tiny").to(arguments.device)
    x = shared_images(arguments.shared, "vit-tiny", 500, 0)[half::2].to(arguments.device)
    ids = [f"{k:04d}" for k in range(half, 500, 2)]
    methods = {
        name: partial(own_rules, method, options) if any(map(callable, options.values())) else (method, options)
        for name, (method, options) in variants.items()
    }
    found: dict[str, Any] = {"verb": arguments.verb, "half": half, "scores": {}}
    for one in settings:
        given = {"settings": "authors"} if one == "authors" else {}
        scores = abslrp.evaluate(model, x, methods, "gae", ids=ids, progress=True, **given)["gae"]  # type: ignore[arg-type]
        found["scores"][one] = {
            name: {"score": s.scores.tolist(), **{part: s.parts[part].tolist() for part in ("LC", "C")}}
            for name, s in scores.items()
        }
        Path(arguments.out).write_text(json.dumps(found))


def write(arguments: argparse.Namespace) -> None:
    for file in arguments.files:
        put(Path(arguments.page), Path(file).stem, table(json.loads(Path(file).read_text())))


def table(found: dict[str, Any]) -> str:
    """Means with 95 % intervals and Wilcoxon's p against the first of the report, or the paper's rule, best first."""
    lines = []
    for settings, rows in found["scores"].items():
        against = "abslrp-transformer" if found["verb"] == "report" else "abslrp"
        number = len(next(iter(rows.values()))["score"])
        lines += [
            f"{number} mosaics of the images with {('even', 'odd')[found['half']]} numbers, settings `{settings}`.",
            "",
            f"| method | LC | C | GAE | 95 % | p against {against} |",
            "|---|---|---|---|---|---|",
        ]
        for name in sorted(rows, key=lambda n: -float(np.mean(rows[n]["score"]))):
            score = np.array(rows[name]["score"])
            spread = interval(score)
            p = "" if name == against else f"{wilcoxon(np.array(rows[against]['score']), score):.2g}"
            lc, c = (float(np.mean(rows[name][part])) for part in ("LC", "C"))
            lines.append(
                f"| {name} | {lc:.3f} | {c:.3f} | {spread.mean:.3f} | {spread.low:.3f}–{spread.high:.3f} | {p} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True, dest="verb")
    for verb in HALVES:
        one = verbs.add_parser(verb)
        one.add_argument("--shared", type=Path, default=Path("../shared"))
        one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        one.add_argument("--out", default=f"vit-{verb}.json")
        one.set_defaults(call=run)
    writes = verbs.add_parser("write")
    writes.add_argument("page")
    writes.add_argument("files", nargs="+")
    writes.set_defaults(call=write)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
