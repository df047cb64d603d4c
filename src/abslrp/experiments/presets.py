"""Runs that the paper describes, ready to be made again on any model and data of the kind.

D. Vukadin et al., ACM TIST, 2024, doi:10.1145/3649458.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abslrp.checks import choice
from abslrp.experiments import paper
from abslrp.types import AbslrpError

PRESETS: dict[str, str] = {
    "paper": "the paper's methods for the architecture, GAE with the authors' settings, ROAD, Lipschitz and Focus",
    "ablation": "absLRP for ViT: whole, at the patches, through the values only, through queries and keys only",
    "patches": "absLRP and HiResCAM on many small patches (ViT-B/16 at 384) and on few large ones (ViT-B/32 at 224)",
}
ARCHITECTURES: dict[str, str] = {"vgg": "vgg16", "resnet": "resnet50", "vit": "vit-base"}
"""What the presets know, and what the paper's tables call it."""

PATCH_MODELS: tuple[str, ...] = ("timm:vit_base_patch16_384", "timm:vit_base_patch32_224")
GAE: dict[str, Any] = {"settings": "authors"}
_METRICS: dict[str, dict[str, Any]] = {"gae": GAE, "road-morf": {}, "road-lerf": {}, "lipschitz": {}, "focus": {}}
_ABLATION: dict[str, dict[str, Any]] = {
    "abslrp": {"method": "abslrp"},
    "patches": {"method": "abslrp", "level": "patches"},
    "values": {"method": "abslrp", "attention": "values"},
    "queries-keys": {"method": "abslrp", "attention": "queries-keys"},
}
_SIGNS = {"vgg": ("vgg",), "resnet": ("resnet", "resnext", "resnetv2"), "vit": ("vit_", "vit-", "deit")}


def guess_architecture(model: str) -> str | None:
    """The architecture that a model's name tells, or None.

    >>> guess_architecture("torchvision:vgg16_bn"), guess_architecture("timm:vit_tiny_patch16_224")
    ('vgg', 'vit')
    """
    name = model.casefold().rpartition(":")[2]
    return next((kind for kind, signs in _SIGNS.items() if any(sign in name for sign in signs)), None)


def expand(values: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The runs that were asked for: the folder of each below the one that was named, and its values.

    What was named outright stands; the preset fills in the rest.

    >>> [(folder, one["architecture"], len(one["methods"])) for folder, one in expand(
    ...     {"preset": "paper", "model": "torchvision:vgg16"})]
    [('', 'vgg', 20)]
    """
    given = {key: value for key, value in values.items() if value is not None}
    if "preset" not in given:
        if "architecture" in given:
            raise AbslrpError("--architecture is for presets: name one, --preset paper, or leave it out.")
        return [("", given)]
    preset = choice("preset", given["preset"], PRESETS)
    if "architecture" in given:
        choice("architecture", given["architecture"], ARCHITECTURES)
    if preset == "patches":
        return _patches(given)
    kind = given.get("architecture") or guess_architecture(str(given.get("model", "")))
    if preset == "ablation":
        return [("", _ablation(given, kind))]
    if kind is None:
        raise AbslrpError(
            f"the paper's methods depend on the architecture, which the name of {_model(given)} does not tell: add "
            f"--architecture {'|'.join(ARCHITECTURES)}."
        )
    # The user's own metrics are taken at their word; of the paper's, Focus is left out where there are no labels.
    optional = {} if "metrics" in given else {"optional": ("focus",)}
    filled = {"methods": paper.methods_of(ARCHITECTURES[kind]), "metrics": _METRICS, **optional}
    return [("", {**filled, **given, "architecture": kind})]


def published(preset: str | None, kind: str | None, dataset: str, metric: str, method: str, part: str) -> float | None:
    """The paper's figure for a run of a preset, or None where it has none.

    >>> published("paper", "vgg", "imagenet", "gae", "abslrp", "score")
    0.272
    >>> published("ablation", "vit", "voc", "gae", "values", "score")
    0.047
    """
    if preset == "ablation" and metric == "gae" and part == paper.MAIN:
        found = paper.table(paper.ABLATION).figure(method, dataset, metric, paper.METRICS[metric].main)
        return None if found is None else found.value
    if preset == "paper" and kind in ARCHITECTURES:
        return paper.published(ARCHITECTURES[kind], dataset, metric, method, part)
    return None


def _ablation(given: dict[str, Any], kind: str | None) -> dict[str, Any]:
    if kind != "vit":
        raise AbslrpError(
            f"the ablation takes attention apart, and the name of {_model(given)} does not tell that it is a ViT: name one, "
            "such as --model timm:vit_base_patch16_224, or add --architecture vit."
        )
    return {"methods": _ABLATION, "metrics": {"gae": GAE}, **given, "architecture": kind}


def _patches(given: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    filled = {"methods": ["abslrp", "hirescam"], "metrics": {"gae": GAE}, **given, "architecture": "vit"}
    if "model" in given:
        return [("", filled)]
    if "weights" in given:
        raise AbslrpError("--preset patches runs two models, and --weights fits one: name it too, --model timm:NAME.")
    return [(model.partition(":")[2], {**filled, "model": model}) for model in PATCH_MODELS]


def _model(given: Mapping[str, Any]) -> str:
    return str(given["model"]) if "model" in given else "the default model"
