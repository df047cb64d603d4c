"""Does the output follow when what a map calls relevant is taken away? ROAD, AOPC and ABPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from abslrp.checks import number, whole
from abslrp.inputs.draws import generator
from abslrp.inputs.imputation import impute
from abslrp.inputs.masking import order, select
from abslrp.metrics.bench import Bench, Explainer, ImageItem, Outcome, every_image
from abslrp.metrics.maps import flags_of, pixel_maps
from abslrp.registry import Metric, register_metric
from abslrp.types import AbslrpError, brief

_ROAD = {"percentages": (10, 20, 30, 40, 50, 70, 90), "noise": 0.01}
_REGIONS = {"L": 100, "region": 9}
_MOST_PERCENTAGES = 1000


@dataclass(frozen=True)
class Shown:
    """Some images with their predicted classes and the noise that belongs to each."""

    numbers: list[int]
    images: Tensor
    targets: Tensor
    noise: Tensor


def settle_road(**options: Any) -> dict[str, Any]:
    settled = {**_ROAD, **options}
    number("noise", settled["noise"])
    percentages = settled["percentages"]
    good = isinstance(percentages, Sequence) and 0 < len(percentages) <= _MOST_PERCENTAGES
    if not good or not all(isinstance(p, (int, float)) and p is not True and 0 < p < 100 for p in percentages):
        raise AbslrpError(f"percentages={brief(percentages)} must be numbers between 0 and 100, such as (10, 30, 50).")
    return {**settled, "percentages": tuple(percentages)}


def prepare_road(bench: Bench, items: Sequence[ImageItem], options: Mapping[str, Any]) -> Shown:
    steps = len(options["percentages"])
    return _shown(
        bench,
        items,
        lambda x, chance: torch.randn((steps, *x.shape), generator=chance, device="cpu", dtype=torch.float32),
        "road",
    )


def road(bench: Bench, shown: Shown, explainer: Explainer, options: Mapping[str, Any], *, largest: bool) -> Outcome:
    """Share of percentages at which the prediction survives the imputation of the most or least relevant pixels."""
    raw = bench.maps(explainer, shown.numbers, shown.targets)
    relevance = pixel_maps(raw).flatten(1)
    pixels, steps = relevance.shape[1], len(options["percentages"])
    counts = [min(max(round(percentage / 100 * pixels), 1), pixels - 1) for percentage in options["percentages"]]
    removed = torch.stack([select(relevance, count, largest=largest) for count in counts], 1)
    removed, noise = removed.view(-1, *raw.shape[-2:]), shown.noise.flatten(0, 1)
    hits = []
    # All percentages of all images, some at a time.
    for rows in torch.arange(len(removed), device=raw.device).split(bench.size):
        which = rows // steps
        outputs = bench.outputs(_refilled(shown.images[which], removed[rows], noise[rows], float(options["noise"])))
        right = (outputs.argmax(1) == shown.targets[which]).double()
        hits.append(torch.where(outputs.isnan().any(1), torch.nan, right))
    curve = torch.cat(hits).view(-1, steps)
    return Outcome({"score": curve.mean(1), "curve": curve}, flags_of(raw))


def _refilled(images: Tensor, removed: Tensor, noise: Tensor, strength: float) -> Tensor:
    return impute(images, removed) + strength * noise * removed.unsqueeze(1)


def settle_regions(**options: Any) -> dict[str, Any]:
    settled = {**_REGIONS, **options}
    whole("L", settled["L"])
    whole("region", settled["region"])
    return settled


def prepare_regions(bench: Bench, items: Sequence[ImageItem], options: Mapping[str, Any]) -> Shown:
    shown = _shown(
        bench,
        items,
        lambda x, chance: torch.rand(x.shape, generator=chance, device="cpu", dtype=torch.float32),
        "regions",
    )
    height, width = shown.images.shape[-2:]
    if min(height, width) < options["region"]:
        raise AbslrpError(
            f"region={options['region']} does not fit images of {height}×{width} pixels: choose a smaller region."
        )
    # Noise as wide as the image's own range, channel by channel.
    low, high = shown.images.amin((2, 3), keepdim=True), shown.images.amax((2, 3), keepdim=True)
    return Shown(shown.numbers, shown.images, shown.targets, low + shown.noise * (high - low))


def aopc(bench: Bench, shown: Shown, explainer: Explainer, options: Mapping[str, Any]) -> Outcome:
    """1/(L+1) Σ_k f(x₀) − f(x_k): how fast the output falls when the most relevant regions turn to noise."""
    raw = bench.maps(explainer, shown.numbers, shown.targets)
    morf = _curve(bench, shown, explainer.name, raw, options, largest=True)
    return Outcome({"score": (morf[:, :1] - morf).mean(1), "outputs_morf": morf}, flags_of(raw))


def abpc(bench: Bench, shown: Shown, explainer: Explainer, options: Mapping[str, Any]) -> Outcome:
    """1/(L+1) Σ_k f(x_k, least relevant first) − f(x_k, most relevant first)."""
    raw = bench.maps(explainer, shown.numbers, shown.targets)
    morf = _curve(bench, shown, explainer.name, raw, options, largest=True)
    lerf = _curve(bench, shown, explainer.name, raw, options, largest=False)
    return Outcome({"score": (lerf - morf).mean(1), "outputs_morf": morf, "outputs_lerf": lerf}, flags_of(raw))


def _curve(
    bench: Bench, shown: Shown, method: str, raw: Tensor, options: Mapping[str, Any], *, largest: bool
) -> Tensor:
    """The target's outputs (batch, L + 1) as the first k regions turn to noise; kept for metrics that share it."""
    key = ("regions", method, tuple(shown.numbers), options["L"], options["region"], largest)
    if key not in bench.kept:
        bench.kept[key] = torch.stack([_one_curve(bench, shown, i, raw[i], options, largest) for i in range(len(raw))])
    return bench.kept[key]


def _one_curve(bench: Bench, shown: Shown, i: int, raw: Tensor, options: Mapping[str, Any], largest: bool) -> Tensor:
    side = options["region"]
    sums = F.avg_pool2d(pixel_maps(raw[None])[:, None], side, divisor_override=1)[0, 0]
    ranks = torch.empty(sums.numel(), dtype=torch.long, device=raw.device)
    ranks[order(sums.flatten()[None], largest=largest)[0]] = torch.arange(sums.numel(), device=raw.device)
    height, width = raw.shape[-2:]
    steps = min(options["L"], sums.numel())
    late = torch.full((height, width), steps + 1, device=raw.device)
    grid = ranks.view(sums.shape).repeat_interleave(side, 0).repeat_interleave(side, 1)
    late[: grid.shape[0], : grid.shape[1]] = grid
    values = []
    for ks in torch.arange(steps + 1, device=raw.device).split(bench.size):
        hit = late < ks[:, None, None]
        inputs = torch.where(hit[:, None], shown.noise[i], shown.images[i])
        values.append(bench.outputs(inputs)[:, shown.targets[i]])
    return torch.cat(values).double()


def _shown(bench: Bench, items: Sequence[ImageItem], draw: Any, purpose: str) -> Shown:
    numbers = [item.number for item in items]
    images = bench.fetch(numbers)
    if images.ndim != 4:
        raise AbslrpError(f"inputs of shape {tuple(images.shape)} are no images (batch, channel, height, width).")
    noise = torch.stack([draw(images[0], generator(bench.seed, purpose, bench.ids[n])) for n in numbers])
    return Shown(numbers, images, bench.logits(numbers).argmax(1), noise.to(images))


def _register(name: str, description: str, citation: str, higher: bool, **steps: Any) -> None:
    register_metric(
        Metric(
            name=name,
            description=description,
            family="faithfulness",
            citation=citation,
            higher_is_better=higher,
            plan=every_image,
            **steps,
        )
    )


_RONG = "Rong et al. (2022), arXiv 2202.00449"
_SAMEK = "Samek et al. (2017), arXiv 1509.06321"
for _name, _words, _largest in (("road-morf", "most", True), ("road-lerf", "least", False)):
    _register(
        _name,
        f"accuracy when the {_words} relevant pixels are filled in from their neighbours",
        _RONG,
        not _largest,
        settle=settle_road,
        prepare=prepare_road,
        score=lambda bench, shown, explainer, options, largest=_largest: road(
            bench, shown, explainer, options, largest=largest
        ),
        options=_ROAD,
    )
_register(
    "aopc",
    "fall of the output when the most relevant regions turn to noise",
    _SAMEK,
    True,
    settle=settle_regions,
    prepare=prepare_regions,
    score=aopc,
    options=_REGIONS,
)
_register(
    "abpc",
    "gap between losing the least and the most relevant regions",
    _SAMEK,
    True,
    settle=settle_regions,
    prepare=prepare_regions,
    score=abpc,
    options=_REGIONS,
)
