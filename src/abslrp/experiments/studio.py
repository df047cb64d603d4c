"""The model, the images and the methods of a run, set up once more to make pictures of what was only scored."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abslrp.evaluate import Asked, choose_methods
from abslrp.experiments.config import Config, Variant
from abslrp.experiments.findings import Findings, image_ids
from abslrp.experiments.runner import load, make_setup, sampled
from abslrp.experiments.worker import make_bench
from abslrp.inputs.datasets import Dataset
from abslrp.inputs.images import Transform
from abslrp.inputs.models import LoadedModel
from abslrp.metrics.bench import Bench
from abslrp.reporting.files import class_label
from abslrp.types import AbslrpError, said

_BATCH = 8
# On a CPU these would take minutes for what is a picture of a few hundred pixels.
_SHORT: dict[str, dict[str, Any]] = {
    "integrated-gradients": {"steps": 16},
    "smoothgrad": {"samples": 8},
    "occlusion": {"window": 28},
    "rise": {"masks": 60},
}


@dataclass
class Studio:
    """What pictures are made with; ``notes`` tells the reader what is not as it was in the run."""

    loaded: LoadedModel
    dataset: Dataset
    config: Config
    bench: Bench
    methods: dict[str, Asked] = field(default_factory=dict)
    shortened: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def ids(self) -> Sequence[str]:
        return self.bench.ids

    def photograph(self, number: int) -> np.ndarray:
        """An image as the network sees it, uint8 (height, width, 3)."""
        return self.loaded.transform.display(self.dataset.read(self.dataset.items[number]))

    def label(self, index: int) -> str:
        """What a class is called."""
        return class_label(index, self.loaded.class_names)

    def maps(self, method: str, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Maps (batch, channel, height, width) of inputs; None, and a note, where the method fails."""
        try:
            return self.bench.explained(self.methods[method], inputs, targets)
        except (AbslrpError, RuntimeError, NotImplementedError) as error:
            note = f"{method} has no pictures: {said(error)}."
            if note not in self.notes:
                self.notes.append(note)
            return None

    def options(self, metric: str) -> dict[str, Any] | None:
        """The options that a metric had in the run, or None."""
        return next((one.settings() for one in self.config.metrics if one.name == metric), None)


def open_studio(
    findings: Findings,
    *,
    device: str = "cpu",
    data: str | None = None,
    weights: str | None = None,
    loaded: LoadedModel | None = None,
) -> Studio:
    """Load what the run's configuration names; ``data`` and ``weights`` say where they lie now, if they were moved.

    ``loaded`` is the model of a run that was made with one of the caller's own.
    """
    config, ids = _config(findings), image_ids(findings.facts)
    if not ids:
        raise AbslrpError("the run does not say which images it was made with.")
    if data is not None:
        config = replace(config, data=_absolute(data))
    if weights is not None:
        config = replace(config, weights=_absolute(weights))
    loaded = loaded or load(config, device)
    dataset = _of_run(sampled(config, loaded), ids)
    steady = make_bench(make_setup(config, dataset, loaded, config.metrics, device))
    bench = Bench(steady.query, steady.fetch, steady.ids, _BATCH, steady.seed, steady.labels, steady.boxes)
    studio = Studio(loaded, dataset, config, bench)
    _add_methods(studio, findings.comparison.methods, device)
    return studio


def plane(maps: Tensor) -> np.ndarray:
    """A map (channel, height, width) with its channels summed, as it is drawn.

    >>> plane(torch.ones(3, 1, 2)).tolist()
    [[3.0, 3.0]]
    """
    return np.asarray(maps.sum(0).float().cpu().numpy())


def shown_tensor(image: Tensor, transform: Transform) -> np.ndarray:
    """A network's input (3, height, width) as a picture again, uint8 (height, width, 3).

    >>> from PIL import Image
    >>> transform = Transform(size=(2, 2))
    >>> shown_tensor(transform(Image.new("RGB", (2, 2), (9, 99, 200))), transform)[0, 0].tolist()
    [9, 99, 200]
    """
    mean, std = (torch.tensor(values)[:, None, None] for values in (transform.mean, transform.std))
    pixels = (image.detach().cpu().float() * std + mean).clamp(0, 1)
    pixels = pixels.flip(0) if transform.bgr else pixels
    return np.asarray((pixels.permute(1, 2, 0) * 255).round().byte().numpy())


def _config(findings: Findings) -> Config:
    plain = findings.facts.get("config")
    if not isinstance(plain, Mapping):
        raise AbslrpError("the run does not say which model and images it was made with.")
    try:
        return Config.from_dict(plain)
    except (KeyError, TypeError) as error:
        raise AbslrpError(
            f"the run's configuration cannot be read ({said(error)}): it was made by another version."
        ) from None


def _absolute(path: str) -> str:
    """A path as configurations have it; the samples and what lies in a library's own format keep their prefix."""
    prefix = "hf:" if path.startswith("hf:") else ""
    return path if path == "samples" else prefix + os.path.abspath(os.path.expanduser(path.removeprefix("hf:")))


def _of_run(dataset: Dataset, ids: Sequence[str]) -> Dataset:
    items = {item.id: item for item in dataset.items}
    gone = [name for name in ids if name not in items]
    if gone:
        raise AbslrpError(f"{len(gone)} of the run's {len(ids)} images are not in the data, such as {gone[0]}.")
    return replace(dataset, items=tuple(items[name] for name in ids))


def _add_methods(studio: Studio, names: Sequence[str], device: str) -> None:
    """The methods that have scores, with the run's options; slow ones with fewer samples on a CPU."""
    known, shortened = {one.label: one for one in studio.config.methods}, []
    for name in names:
        one = known.get(name, Variant(name, name))
        given = one.settings()
        short = {key: value for key, value in _SHORT.get(one.name, {}).items() if device == "cpu" and key not in given}
        try:
            (asked,) = choose_methods({name: (one.name, {**short, **given})}, studio.bench.query.model)
        except AbslrpError as error:
            studio.notes.append(f"{name} has no pictures: {error}")
            continue
        asked.size = _BATCH
        studio.methods[name] = asked
        if short:
            studio.shortened.add(name)
            shortened.append(f"{name} ({', '.join(f'{key}={value}' for key, value in short.items())})")
    if shortened:
        studio.notes.append(f"Drawn with fewer samples than they were scored with: {', '.join(shortened)}.")
