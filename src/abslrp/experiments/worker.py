"""One process's part in a run: a model, its images, and the pieces of work it is handed one after the other.

A piece has the same scores wherever and whenever it is done: all that is shared between pieces, outputs and maps of
images, is made in the same batches whatever was done before.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abslrp.evaluate import Asked, choose_methods, set_sizes
from abslrp.experiments.config import Variant
from abslrp.experiments.store import Row
from abslrp.inputs.datasets import Dataset
from abslrp.inputs.models import LoadedModel
from abslrp.metrics.bench import Bench, Boxes, Explainer, Outcome, numbers_only
from abslrp.precision import precision
from abslrp.query import make_query, undisturbed, unwrap
from abslrp.registry import Metric
from abslrp.registry import metric as find_metric
from abslrp.types import AbslrpError

CURVES = ("gae",)
"""Metrics whose curves are kept beside the scores."""

_ROOM = 2**29
_NOTHING: tuple[tuple[int, str], Any] = ((-1, ""), None)
BENCH = ""
"""Under this name :attr:`Probe.sizes` has the size for outputs and gradients."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know; it travels to other machines, so it holds no open file.

    ``dataset`` has the usable images alone, in the run's order; ``labels`` and ``boxes`` belong to them.
    """

    loaded: LoadedModel
    dataset: Dataset
    methods: tuple[Variant, ...]
    metrics: tuple[Variant, ...]
    seed: int
    device: str = "cpu"
    labels: list[frozenset[int]] | None = None
    boxes: list[Boxes] | None = None
    tf32: bool = False


@dataclass(frozen=True)
class Job:
    """One method under one metric on some items: what is written at once. ``own`` are the images of the chunk."""

    metric: str
    method: str
    chunk: int
    own: tuple[int, ...]
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Scored:
    """What a job came to; ``unfit`` tells why the method cannot be used, and then there are no rows."""

    job: Job
    rows: list[Row] = field(default_factory=list)
    arrays: dict[tuple[str, str, str, str], np.ndarray] = field(default_factory=dict)
    unfit: str = ""


@dataclass(frozen=True)
class Probe:
    """How many inputs each method takes at once, and why some methods cannot be used."""

    sizes: dict[str, int]
    unfit: dict[str, str]


class Misfit(AbslrpError):
    """A method cannot be used on this model."""


class Fitted(Asked):
    """A method whose refusals can be told from those of a metric."""

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        try:
            return super().__call__(inputs, targets)
        except AbslrpError as error:
            raise Misfit(str(error)) from error


class Images:
    """Images by number on the model's device; the latest are kept, within bounds, since mosaics ask for them again."""

    def __init__(self, dataset: Dataset, transform: Any, device: str, room: int = _ROOM) -> None:
        self._dataset, self._transform, self._device, self._room = dataset, transform, device, room
        self._kept: OrderedDict[int, Tensor] = OrderedDict()

    def __call__(self, numbers: Sequence[int]) -> Tensor:
        return torch.stack([self._one(n) for n in numbers]).to(self._device)

    def _one(self, number: int) -> Tensor:
        found = self._kept.pop(number, None)
        if found is None:
            found = self._dataset.tensor(self._dataset.items[number], self._transform)
        self._kept[number] = found
        while len(self._kept) > max(1, self._room // max(found.nbytes, 1)):
            self._kept.popitem(last=False)
        return found


@dataclass
class SteadyBench(Bench):
    """A bench that makes the outputs and maps of a chunk's own images first, and all at once.

    Rounding depends on the company an input has in its batch. A run that was interrupted asks for other things first
    than one that was not; it is to end with the same numbers, to the last bit.
    """

    own: tuple[int, ...] = ()
    met: set[str] = field(default_factory=set)

    def turn_to(self, own: tuple[int, ...]) -> None:
        """Begin a chunk, with nothing left of the last one."""
        self.forget()
        self._outputs.clear()
        self.met.clear()
        self.own = own

    def logits(self, numbers: Sequence[int]) -> Tensor:
        if BENCH not in self.met and self.own:
            self.met.add(BENCH)
            super().logits(self.own)
        return super().logits(numbers)

    def maps(self, explainer: Explainer, numbers: Sequence[int], targets: Tensor) -> Tensor:
        if explainer.name not in self.met and self.own:
            self.met.add(explainer.name)
            super().maps(explainer, self.own, self.logits(self.own).argmax(1))
        return super().maps(explainer, numbers, targets)


def make_bench(setup: Setup) -> SteadyBench:
    """The model on the run's images, ready for metrics."""
    loaded, device = setup.loaded, setup.device
    model = unwrap(loaded.model.to(device))
    blank = torch.zeros(1, 3, *loaded.transform.size, device=device)
    return SteadyBench(
        query=make_query(model, blank, None, None, None),
        fetch=Images(setup.dataset, loaded.transform, device),
        ids=[item.id for item in setup.dataset.items],
        size=1,
        seed=setup.seed,
        labels=setup.labels,
        boxes=setup.boxes,
    )


class Worker:
    """Does jobs. Those of one chunk and metric are best handed over in a row: they share what was prepared."""

    def __init__(self, setup: Setup) -> None:
        self.bench = make_bench(setup)
        self.metrics: dict[str, tuple[Metric, dict[str, Any]]] = {
            one.name: (find_metric(one.name), one.settings()) for one in setup.metrics
        }
        chosen = choose_methods(
            {one.label: (one.name, one.settings()) for one in setup.methods}, self.bench.query.model
        )
        self.asked = {one.name: Fitted(one.name, one.model, one.how, one.options, tf32=setup.tf32) for one in chosen}
        self._tf32 = setup.tf32 and setup.device.startswith("cuda")
        self._unfit: dict[str, str] = {}
        self._chunk = -1
        self._prepared = _NOTHING

    def probe(self, batch: int | None = None) -> Probe:
        """Try every method on one image, and find how many inputs fit the memory."""
        image = self.bench.fetch([0])
        with undisturbed(image), precision(self._tf32):
            target = self.bench.query.forward(image).detach().argmax(1)
            for name, one in self.asked.items():
                try:
                    one(image, target)
                except Misfit as error:
                    self._unfit[name] = str(error)
            usable = [one for name, one in self.asked.items() if name not in self._unfit]
            set_sizes(self.bench, usable, image, batch)
        return Probe({BENCH: self.bench.size, **{one.name: one.size for one in usable}}, dict(self._unfit))

    def use(self, probe: Probe) -> None:
        """Take over what was found by a probe."""
        self._unfit = dict(probe.unfit)
        self.bench.size = probe.sizes[BENCH]
        for name, one in self.asked.items():
            one.size = probe.sizes.get(name, self.bench.size)

    def score(self, job: Job) -> Scored:
        """The rows of a job; the same ones after any other jobs, or none."""
        if job.method in self._unfit:
            return Scored(job, unfit=self._unfit[job.method])
        metric, options = self.metrics[job.metric]
        with undisturbed(self.bench.query.inputs), precision(self._tf32):
            prepared = self._prepare(job, metric, options)
            try:
                outcome = numbers_only(metric.score(self.bench, prepared, self.asked[job.method], options))
            except Misfit as error:
                self._unfit[job.method] = str(error)
                return Scored(job, unfit=str(error))
        return _scored(job, metric, outcome)

    def _prepare(self, job: Job, metric: Metric, options: Mapping[str, Any]) -> Any:
        """What the methods share in a piece; made once, and let go of before that of the next piece is made."""
        if job.chunk != self._chunk:
            self.bench.turn_to(job.own)
            self._chunk = job.chunk
        key = (job.chunk, job.metric)
        if self._prepared[0] != key:
            self._prepared = _NOTHING
            self._prepared = (key, metric.prepare(self.bench, list(job.items), options))
        return self._prepared[1]


def _scored(job: Job, metric: Metric, outcome: Outcome) -> Scored:
    parts = {name: outcome.parts[name].double().cpu().tolist() for name in ("score", *metric.parts)}
    rows = [
        Row(item.key, job.method, job.metric, name, _finite(values[k], job, item.key), "; ".join(outcome.flags[k]))
        for k, item in enumerate(job.items)
        for name, values in parts.items()
    ]
    curves = _curves(outcome.parts) if job.metric in CURVES else {}
    arrays = {
        (item.key, job.method, job.metric, name): values[k]
        for k, item in enumerate(job.items)
        for name, values in curves.items()
    }
    return Scored(job, rows, arrays)


def _curves(parts: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: values.detach().cpu().numpy() for name, values in parts.items() if values.ndim == 2}


def _finite(value: float, job: Job, image: str) -> float:
    if not math.isfinite(value):
        raise AbslrpError(f"metric {job.metric!r} gave {value} for {image} under {job.method}: it must give a number.")
    return value
