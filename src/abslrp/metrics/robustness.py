"""Do maps stay when the input hardly changes? The local Lipschitz estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from abslrp.checks import number, whole
from abslrp.inputs.draws import generator
from abslrp.metrics.bench import Bench, Explainer, ImageItem, Outcome, every_image
from abslrp.metrics.maps import flags_of, pixel_maps, ratio
from abslrp.registry import Metric, register_metric
from abslrp.types import AbslrpError

_DEFAULTS = {"samples": 20, "sigma": 0.1}


def settle(**options: Any) -> dict[str, Any]:
    settled = {**_DEFAULTS, **options}
    whole("samples", settled["samples"])
    if number("sigma", settled["sigma"]) == 0:
        raise AbslrpError("sigma=0 changes no input: choose a number above 0, in the units of the model's input.")
    return settled


def prepare(bench: Bench, items: Sequence[ImageItem], options: Mapping[str, Any]) -> list[int]:
    return [item.number for item in items]


def lipschitz(bench: Bench, numbers: list[int], explainer: Explainer, options: Mapping[str, Any]) -> Outcome:
    """max over samples of ‖Â(x) − Â(x′)‖₂ / ‖x − x′‖₂, x′ = x + σ·noise, Â the pixel map over its largest magnitude.

    Noise is drawn from the seed and the image's name, so all methods meet the same.
    """
    targets = bench.logits(numbers).argmax(1)
    raw = bench.maps(explainer, numbers, targets)
    scores = []
    for i, (n, start) in enumerate(zip(numbers, unit_maps(raw), strict=True)):
        x = bench.fetch([n])
        chance = generator(bench.seed, "lipschitz", bench.ids[n])
        worst = torch.zeros((), dtype=torch.float64, device=x.device)
        left = options["samples"]
        # Drawn one by one, so that the number of samples at once does not matter.
        while left:
            count = min(left, explainer.size)
            left -= count
            drawn = [
                torch.randn(x.shape[1:], generator=chance, device="cpu", dtype=torch.float32) for _ in range(count)
            ]
            noise = torch.stack(drawn).to(x)
            near = x + float(options["sigma"]) * noise
            maps = unit_maps(explainer(near, targets[i].expand(count)))
            apart = (maps - start).flatten(1).norm(dim=1)
            step = (near - x).flatten(1).double().norm(dim=1)
            worst = torch.maximum(worst, ratio(apart, step, 0.0).max())
        scores.append(worst)
    return Outcome({"score": torch.stack(scores)}, flags_of(raw))


def unit_maps(maps: Tensor) -> Tensor:
    """Pixel maps (batch, height, width), each divided by its largest magnitude.

    >>> unit_maps(torch.tensor([[[[1.0, -2.0]]]])).tolist()
    [[[0.5, -1.0]]]
    """
    pixels = pixel_maps(maps)
    peak = pixels.abs().amax((1, 2), keepdim=True)
    return ratio(pixels, peak.expand_as(pixels), 0.0)


register_metric(
    Metric(
        name="lipschitz",
        description="largest change of the map over the change of the input, nearby",
        family="robustness",
        citation="Alvarez-Melis, Jaakkola (2018), arXiv 1806.08049",
        higher_is_better=False,
        settle=settle,
        plan=every_image,
        prepare=prepare,
        score=lipschitz,
        options=_DEFAULTS,
    )
)
