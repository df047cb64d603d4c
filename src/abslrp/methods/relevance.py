"""Methods that carry relevance through the model: settings of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from abslrp.checks import choice
from abslrp.methods.common import Tap, baseline_of, check_baseline
from abslrp.propagation.api import propagate, settle
from abslrp.propagation.rulesets import RULESETS
from abslrp.propagation.starts import target
from abslrp.query import Answer, Query
from abslrp.registry import Method, register_method
from abslrp.types import AbslrpError

PAPER = "Vukadin, Afrić, Šilić, Delač (2024), doi 10.1145/3649458"
LEVELS = ("pixels", "patches")
BACH = "Bach et al. (2015), doi 10.1371/journal.pone.0130140"


def propagated(query: Query, ruleset: str, options: dict[str, Any], positive: bool = False) -> Answer:
    """One forward under the engine, then the passes of the start backwards."""
    settled = settle(ruleset, options)
    leaf = query.inputs.detach().clone().requires_grad_()
    with Tap(query.module()) as tap, propagate(ruleset, measure=False, **options) as engine:
        engine.watch(leaf)
        outputs = query.forward(leaf.clone())
    at = leaf if query.at is None else tap.value
    if at is None:
        raise AbslrpError(f"module {query.at!r} did not run or gave no tensor: name another module in at=.")
    targets = query.aim(outputs)
    maps = engine.relevance(outputs, at, settled["start"], targets=targets, retain=False)
    return Answer(maps.clamp(min=0) if positive else maps, targets, outputs.detach())


def levelled(query: Query, ruleset: str, options: dict[str, Any]) -> Answer:
    """As :func:`propagated`; at the level of patches relevance stops at the patch embedding and is spread evenly over each."""
    if options.pop("level") == "pixels":
        return propagated(query, ruleset, options)
    if query.at is not None:
        raise AbslrpError(f"level='patches' cannot be used with at={query.at!r}: it gives the map of the input.")
    maps, targets, outputs = propagated(replace(query, at=patch_embedding(query)), ruleset, options)
    x = query.inputs
    grid = maps.sum(1, keepdim=True)
    spread = F.interpolate(grid, x.shape[-2:], mode="nearest") * (grid[0].numel() / x[0].numel())
    return Answer(spread.expand(x.shape).contiguous(), targets, outputs)


def patch_embedding(query: Query) -> str:
    """The name of the first convolution that cuts its input into patches: as far from one to the next as each is wide."""
    modules = query.model.named_modules() if isinstance(query.model, nn.Module) else ()
    for name, module in modules:
        if isinstance(module, nn.Conv2d) and tuple(module.kernel_size) == tuple(module.stride) != (1, 1):
            return name
    raise AbslrpError(
        "level='patches' needs a model that cuts images into patches by a convolution: use level='pixels'."
    )


def deeplift(query: Query, baseline: Any = 0.0, **options: Any) -> Answer:
    """Multipliers between input and baseline, which run as one batch, times their difference."""
    x = query.inputs
    base = baseline_of(baseline, x)
    leaf = torch.cat([x, base]).detach().clone().requires_grad_()
    with propagate("deeplift", measure=False, **options) as engine:
        engine.watch(leaf)
        outputs = query.forward(leaf.clone())
    targets = query.aim(outputs[: len(x)])
    multipliers = engine.relevance(outputs, leaf, target(outputs, torch.cat([targets, targets])), retain=False)
    return Answer(multipliers[: len(x)] * (x - base), targets, outputs[: len(x)].detach())


def _register(
    name: str,
    description: str,
    citation: str,
    ruleset: str | None = None,
    positive: bool = False,
    family: str = "relevance propagation",
    sensitive: bool = True,
    **defaults: Any,
) -> None:
    rules = ruleset or name

    def run(query: Query, **options: Any) -> Answer:
        if "level" in options:
            return levelled(query, rules, options)
        return propagated(query, rules, options, positive)

    def check(options: Mapping[str, Any]) -> None:
        choice("level", options.get("level", LEVELS[0]), LEVELS)
        settle(rules, {name: value for name, value in options.items() if name != "level"})

    register_method(
        Method(
            name=name,
            description=description,
            family=family,
            citation=citation,
            run=run,
            options={**RULESETS[rules].defaults, **defaults},
            at=True,
            check=check,
            sensitive=sensitive,
        )
    )


_register(
    "abslrp",
    "positive contributions over the absolute output, contrastive start (the paper's)",
    PAPER,
    level="pixels",
)
# A logit's sign says nothing (softmax does not change when all logits are shifted), so at the head evidence for a class is
# what raises its logit, also where the logit is negative.
_register(
    "abslrp-agree",
    "contributions that agree with the output's sign, two-pass start (ours)",
    f"this library, after {PAPER}",
    head="positive",
    level="pixels",
)
# Chosen by GAE on ViT-Tiny among rules, starts and sizes of ε, see docs/results.md: an ε of .01 takes the poles away where an
# output is nearly 0, and relevance that went through queries and keys did more harm than good.
_register(
    "abslrp-transformer",
    "absLRP-agree through the values of attention, with an ε of .01 (ours, for transformers)",
    f"this library, after {PAPER}",
    "abslrp-agree",
    head="positive",
    level="pixels",
    attention="values",
    eps=1e-2,
)
_register("lrp-epsilon", "each contribution over the output, which ε keeps from 0", BACH)
_register(
    "lrp-text",
    "LRP-ε from the logit with ε = .01 and sums kept, the default for text (ours)",
    f"this library, after {BACH}",
)
_register(
    "lrp-gamma",
    "LRP-ε with contributions that agree with the output strengthened",
    "Montavon et al. (2019), LRP overview",
)
# Insensitive to the weights as measured, see abslrp.sanity: with the upper half of EfficientNet-Lite0 shuffled the maps of RAP
# keep a rank correlation of 1.00, those of LRP-α1β0 of .90 and those of guided backpropagation of .81.
_register("lrp-alpha1beta0", "positive contributions over their own sum", BACH, sensitive=False)
_register("lrp-alpha2beta1", "twice the positive contributions less the negative ones, each over its own sum", BACH)
_register(
    "clrp",
    "LRP-α1β0 for the target less the same for all other classes, positive part",
    "Gu, Yang, Tresp (2018), arXiv 1812.02100",
    "lrp-alpha1beta0",
    positive=True,
    start="two-pass",
)
_register(
    "rap",
    "contributions over their absolute sum, the surplus spread evenly",
    "Nam et al. (2020), arXiv 1904.00605",
    sensitive=False,
)
_register(
    "crap",
    "RAP for the target less RAP for all other classes, positive part",
    f"Nam et al. (2020); contrast as in {PAPER}",
    "rap",
    positive=True,
    start="two-pass",
)
_register(
    "attnlrp",
    "LRP-ε with Taylor rules for softmax and products in attention",
    "Achtibat et al. (2024), arXiv 2402.05602",
)
_register(
    "deconvolution",
    "gradient with the rectifier applied to it",
    "Zeiler, Fergus (2014), arXiv 1311.2901",
    family="gradient",
)
_register(
    "guided-backprop",
    "gradient through active units, positive part at every rectifier",
    "Springenberg et al. (2014), arXiv 1412.6806",
    family="gradient",
    sensitive=False,
)
register_method(
    Method(
        name="deeplift",
        description="change of output over change of input against a baseline, rescale rule",
        family="gradient",
        citation="Shrikumar, Greenside, Kundaje (2017), arXiv 1704.02685",
        run=deeplift,
        options={"baseline": 0.0, "unknown": "gradient"},
        needs=("baseline",),
        check=lambda options: (
            check_baseline(options["baseline"]),
            settle("deeplift", {"unknown": options["unknown"]}),
        ),
    )
)
