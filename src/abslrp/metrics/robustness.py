"""Do maps stay when the input hardly changes? The local Lipschitz estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from abslrp.checks import number, whole
from abslrp.inputs.draws import generator
from abslrp.metrics.bench import Bench, Explainer, ImageItem, Outcome, every_image, merged
from abslrp.metrics.maps import flags_of, pixel_maps, ratio
from abslrp.registry import Metric, register_metric
from abslrp.types import AbslrpError

_DEFAULTS = {"samples": 20, "sigma": 0.1}
_ROOM = {"cuda": 2**31, "cpu": 2**28}
FAINT_NOISE = "noise below 1% of the image's spread"
"""The flag of an image with pixels so large that σ is next to nothing: what is measured then is little more than rounding."""
_FAINT = 0.01


def settle(**options: Any) -> dict[str, Any]:
    settled = {**_DEFAULTS, **options}
    whole("samples", settled["samples"])
    if number("sigma", settled["sigma"]) == 0:
        raise AbslrpError("sigma=0 changes no input: choose a number above 0, in the units of the model's input.")
    return settled


@dataclass(frozen=True)
class Nearby:
    """Some images with their predicted classes and the noise that all methods meet."""

    ids: list[str]
    numbers: list[int]
    images: Tensor
    targets: Tensor
    seed: int
    samples: int
    kept: Tensor | None
    """(images · samples, channel, height, width), where there is room for it."""

    def drawn(self) -> Iterator[Tensor]:
        """The noise of the first image's samples, then of the second's; one by one, so that no number at once matters."""
        for name in self.ids:
            chance = generator(self.seed, "lipschitz", name)
            for _ in range(self.samples):
                yield torch.randn(self.images.shape[1:], generator=chance, device="cpu", dtype=torch.float32)

    def parts(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Noise some samples at a time, and which image each is for."""
        rows = torch.arange(len(self.ids), device=self.images.device).repeat_interleave(self.samples).split(size)
        if self.kept is not None:
            yield from zip(self.kept.split(size), rows, strict=True)
            return
        one_by_one = self.drawn()
        for part in rows:
            yield torch.stack(list(islice(one_by_one, len(part)))).to(self.images), part


def prepare(bench: Bench, items: Sequence[ImageItem], options: Mapping[str, Any]) -> Nearby:
    numbers = [item.number for item in items]
    images, samples = bench.fetch(numbers), options["samples"]
    targets = bench.logits(numbers).argmax(1)
    near = Nearby([bench.ids[n] for n in numbers], numbers, images, targets, bench.seed, samples, None)
    if samples * images.nbytes > _ROOM.get(images.device.type, _ROOM["cpu"]):
        return near
    return replace(near, kept=torch.stack(list(near.drawn())).to(images))


def lipschitz(bench: Bench, near: Nearby, explainer: Explainer, options: Mapping[str, Any]) -> Outcome:
    """max over samples of ‖Â(x) − Â(x′)‖₂ / ‖x − x′‖₂, x′ = x + σ·noise, Â the pixel map over its largest magnitude.

    Noise is drawn from the seed and the image's name, so all methods meet the same. σ is in units of the input, as is the score: where
    pixels go from 0 to 255 give a larger ``sigma``.
    """
    raw = bench.maps(explainer, near.numbers, near.targets)
    start = unit_maps(raw)
    found = []
    for noise, rows in near.parts(explainer.size):
        x = near.images[rows]
        moved = x + float(options["sigma"]) * noise
        apart = (unit_maps(explainer(moved, near.targets[rows])) - start[rows]).flatten(1).norm(dim=1)
        found.append(ratio(apart, (moved - x).flatten(1).double().norm(dim=1), 0.0))
    spread = near.images.double().flatten(1).std(1, correction=0)
    faint = [(FAINT_NOISE,) if options["sigma"] < _FAINT * one else () for one in spread.tolist()]
    return Outcome({"score": torch.cat(found).view(len(raw), -1).amax(1)}, merged(flags_of(raw), faint))


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
