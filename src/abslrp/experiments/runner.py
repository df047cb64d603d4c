"""Runs: from a configuration to a store full of scores, going on where it stopped."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

import abslrp
from abslrp import registry
from abslrp.evaluate import choose_methods, pieces
from abslrp.experiments.config import Config, Variant, difference
from abslrp.experiments.engines import Engine, make_engine
from abslrp.experiments.store import FILE, Store
from abslrp.experiments.worker import Job, Probe, Setup, make_bench
from abslrp.inputs import models
from abslrp.inputs.datasets import Dataset, item_boxes, open_dataset, readable
from abslrp.inputs.models import LoadedModel
from abslrp.metrics.bench import Boxes
from abslrp.types import AbslrpError

CHUNK = {"cuda": 64, "cpu": 8}


@dataclass(frozen=True)
class Step:
    """How far a run is: while ``reading``, images that were looked at; while ``scoring``, scores that there are.

    ``began`` is how many there were when this process took over.
    """

    stage: str
    done: int
    total: int
    began: int = 0
    method: str = ""
    metric: str = ""
    images: int = 0


Progress = Callable[[Step], None]
Tell = Callable[[str], None]


def run(
    config: Config,
    out: str | os.PathLike[str],
    device: str = "cpu",
    batch: int | None = None,
    engine: str | Engine = "local",
    progress: Progress | None = None,
    loaded: LoadedModel | None = None,
    tell: Tell | None = None,
) -> Store:
    """Do what a configuration says and keep every score in ``out/run.sqlite``; what is there already is not done again.

    ``batch`` is how many inputs go through at once, by default what fits the memory; ``engine`` local, ray, or one of
    :mod:`abslrp.experiments.engines`; ``loaded`` a model of one's own in place of the configuration's. ``progress`` hears
    of every step, ``tell`` of what the user should know. A run with another configuration is refused, and left as it is.
    """
    folder, say, step = Path(out), tell or _silent, progress or _silent
    if (folder / FILE).is_file():
        # With its tables, should the last process have been killed before it made them.
        store = Store.open(folder, create=True)
        _check_same(store, config)
        if finished(store):
            return store
        store.close()
    chosen = make_engine(engine) if isinstance(engine, str) else engine
    loaded = loaded or load(config, chosen.driver_device(device))
    dataset = sampled(config, loaded)
    metrics, notes = _usable_metrics(config, dataset, loaded)
    if config.tf32 and device.startswith("cuda"):
        notes.append("Products were rounded to TF32.")
    store = Store.open(folder, create=True)
    try:
        facts = store.facts()
        skipped: dict[str, str] = {}
        if "hash" not in facts:
            dataset, skipped = _readable(dataset, loaded, step)
        else:
            dataset = _same_images(dataset, facts["ids"])
        setup = make_setup(config, dataset, loaded, metrics, device)
        _Run(store, config, setup, chosen, step, say).go(batch, skipped, notes)
    except BaseException:
        store.close()
        raise
    finally:
        chosen.close()
    return store


def finished(store: Store) -> bool:
    """Whether a run has all the scores that it was to have."""
    facts = _whole_facts(store)
    if "planned" not in facts:
        return False
    counts, unfit = store.counts(), store.unfit()
    labels = [one["label"] for one in facts["config"]["methods"] if one["label"] not in unfit]
    return all(
        counts.get((metric, label), 0) >= count for metric, count in facts["planned"].items() for label in labels
    )


def load(config: Config, device: str) -> LoadedModel:
    """The configuration's model; random weights are drawn by its seed, so that they are the same again."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return models.load_model(
            config.model,
            config.weights,
            num_classes=config.num_classes,
            device=device,
            pretrained=not config.random_weights,
        )


def sampled(config: Config, loaded: LoadedModel) -> Dataset:
    """The configuration's images, before any of them was read."""
    dataset = open_dataset(config.data, class_names=loaded.class_names, labels=config.labels, split=config.split)
    return dataset.sample(config.images or len(dataset), config.seed)


def make_setup(
    config: Config, dataset: Dataset, loaded: LoadedModel, metrics: tuple[Variant, ...], device: str
) -> Setup:
    """What workers need to know."""
    labels, boxes = known_of(dataset, loaded)
    return Setup(loaded, dataset, config.methods, metrics, config.seed, device, labels, boxes, config.tf32)


def known_of(dataset: Dataset, loaded: LoadedModel) -> tuple[list[frozenset[int]] | None, list[Boxes] | None]:
    """The labels and boxes of the images, as classes of the model; None where there are none, or of other things."""
    told = any(item.labels or item.boxes for item in dataset.items)
    classes = _model_classes(dataset, loaded) if told else None
    if classes is None:
        return None, None
    labels = [frozenset(classes.get(label, label) for label in item.labels) for item in dataset.items]
    boxes: list[Boxes] = [
        {classes.get(label, label): found for label, found in item_boxes(item, loaded.transform).items()}
        for item in dataset.items
    ]
    return labels if any(labels) else None, boxes if any(boxes) else None


def _model_classes(dataset: Dataset, loaded: LoadedModel) -> Mapping[int, int] | None:
    """From the data's classes to the model's where these have other numbers, or None where they are about other things."""
    parameter = next(loaded.model.parameters(), None)
    blank = torch.zeros(1, 3, *loaded.transform.size, device=None if parameter is None else parameter.device)
    count = abslrp.explain(loaded.model, blank, method="constant").outputs.shape[1]
    theirs, ours = dataset.class_names, loaded.class_names
    if theirs is not None and ours is not None and theirs != ours:
        places = {name.casefold(): index for index, name in enumerate(ours)}
        if not all(name.casefold() in places for name in theirs):
            return None
        return {index: places[name.casefold()] for index, name in enumerate(theirs)}
    highest = max((label for item in dataset.items for label in (*item.labels, *item.boxes)), default=-1)
    fits = highest < count and (theirs is None or ours is not None or len(theirs) == count)
    return {} if fits else None


def _usable_metrics(config: Config, dataset: Dataset, loaded: LoadedModel) -> tuple[tuple[Variant, ...], list[str]]:
    """The metrics whose needs the data meets; others are refused, or left out where they are optional."""
    needs = {one.name: registry.metric(one.name).needs for one in config.metrics}
    if not any(needs.values()):
        return config.metrics, []
    labels, boxes = known_of(dataset, loaded)
    there = {"labels": labels is not None, "boxes": boxes is not None}
    usable, notes = [], []
    for one in config.metrics:
        missing = [need for need in needs[one.name] if not there.get(need, True)]
        if not missing:
            usable.append(one)
        elif one.name in config.optional:
            notes.append(f"{one.name} is left out: {dataset.name} has no {missing[0]} in the model's classes.")
        else:
            raise AbslrpError(
                f"metric {one.name!r} needs {missing[0]}, and {dataset.name} has none in the model's classes: "
                f"give --labels or other data, or leave {one.name} out."
            )
    return tuple(usable), notes


def _whole_facts(store: Store) -> dict[str, Any]:
    """The facts, of the shape in which runs write them: somebody may have worked on the file."""
    facts = store.facts()
    shapes = {
        "config": dict,
        "ids": list,
        "planned": dict,
        "sizes": dict,
        "versions": dict,
        "device": str,
        "notes": list,
    }
    if "hash" in facts:
        try:
            if all(isinstance(facts[name], kind) for name, kind in shapes.items()):
                Config.from_dict(facts["config"])
                if all(isinstance(count, int) for count in facts["planned"].values()):
                    return facts
        except (KeyError, TypeError, AttributeError):
            pass
        raise AbslrpError(f"{store.path} says of itself what no run says: give another --out to begin a new one.")
    return facts


def _check_same(store: Store, config: Config) -> None:
    facts = _whole_facts(store)
    if facts.get("hash") in (None, config.hash):
        return
    changes = difference(Config.from_dict(facts["config"]), config)
    store.close()
    raise AbslrpError(
        f"{store.path.parent} holds a run with another configuration ({'; '.join(changes)}): give the old one to go on "
        "with it, or another --out to begin a new one."
    )


def _readable(dataset: Dataset, loaded: LoadedModel, step: Progress) -> tuple[Dataset, dict[str, str]]:
    """The images that can be read, which is found out before anything is planned, and what is wrong with the others."""
    images = readable(dataset, loaded.transform)
    items = []
    step(Step("reading", 0, len(dataset)))
    for item, _ in images:
        items.append(item)
        step(Step("reading", len(items), len(dataset)))
    if not items:
        raise AbslrpError(f"none of the {len(dataset)} images can be read; of the first, {images.skipped[0][1]}")
    return replace(dataset, items=tuple(items)), dict(images.skipped)


def _same_images(dataset: Dataset, ids: list[str]) -> Dataset:
    items = {item.id: item for item in dataset.items}
    gone = [name for name in ids if name not in items]
    if gone:
        raise AbslrpError(
            f"{len(gone)} of the run's {len(ids)} images are no longer in {dataset.name}, such as {gone[0]}: put them back, "
            "or begin a new run with another --out."
        )
    return replace(dataset, items=tuple(items[name] for name in ids))


class _Run:
    """A run under way: what there is, what is to be done, and who hears of it."""

    def __init__(self, store: Store, config: Config, setup: Setup, engine: Engine, step: Progress, say: Tell) -> None:
        self.store, self.config, self.setup, self.engine = store, config, setup, engine
        self.step, self.say = step, say
        bench = make_bench(replace(setup, device=engine.driver_device(setup.device)))
        chosen = [(registry.metric(one.name), one.settings()) for one in setup.metrics]
        size = CHUNK.get(torch.device(setup.device).type, CHUNK["cpu"])
        self.work = list(pieces(bench, chosen, size))
        self.planned = {one.name: 0 for one in setup.metrics}
        for piece in self.work:
            self.planned[piece.metric.name] += len(piece.items)
        # Methods and their options are checked here, before any engine is started.
        choose_methods({one.label: (one.name, one.settings()) for one in setup.methods}, bench.query.model)

    def go(self, batch: int | None, skipped: Mapping[str, str], notes: list[str]) -> None:
        fingerprint = _fingerprint(self.setup.loaded)
        self._check_weights(fingerprint)
        self.engine.start(self.setup)
        probe = self._known_probe(batch) or self._begin(self.engine.probe(batch), fingerprint, skipped, notes)
        self._tell_once()
        labels = [one.label for one in self.setup.methods if one.label not in probe.unfit]
        if not labels:
            name, reason = next(iter(probe.unfit.items()))
            raise AbslrpError(f"no method can be used on {self.setup.loaded.name}; of {name}, {reason}")
        self._score(probe, labels)
        self.store.note(finished=_now())

    def _begin(self, probe: Probe, fingerprint: str, skipped: Mapping[str, str], notes: list[str]) -> Probe:
        """Write down all that is known before the first score; where another process was quicker, what it wrote holds."""
        facts = self.store.facts()
        if "hash" not in facts:
            made = self._facts(probe, fingerprint, notes)
            if not self.store.begin(made, skipped, probe.unfit):
                _check_same(self.store, self.config)
                facts = self.store.facts()
                if facts["ids"] != made["ids"]:
                    raise AbslrpError(
                        f"another process began {self.store.path.parent} with other images: run again to go on with it."
                    )
        return Probe(probe.sizes, self.store.unfit())

    def _known_probe(self, batch: int | None) -> Probe | None:
        """What was found when the run began: the same batches give the same numbers to the last bit."""
        facts = self.store.facts()
        if "sizes" not in facts or batch is not None or facts["device"] != device_name(self.setup.device):
            return None
        return Probe(facts["sizes"], self.store.unfit())

    def _check_weights(self, fingerprint: str) -> None:
        facts = self.store.facts()
        if facts.get("fingerprint") not in (None, fingerprint):
            raise AbslrpError(
                f"the weights of {self.setup.loaded.name} are not those that {self.store.path.parent} began with: give the "
                "same weights, or another --out."
            )

    def _facts(self, probe: Probe, fingerprint: str, notes: list[str]) -> dict[str, Any]:
        setup = self.setup
        metrics = [registry.metric(one.name) for one in setup.metrics]
        return {
            "config": self.config.to_dict(),
            "hash": self.config.hash,
            "versions": versions(),
            "device": device_name(setup.device),
            "engine": self.engine.name,
            "seed": self.config.seed,
            "ids": [item.id for item in setup.dataset.items],
            "labels": None if setup.labels is None else [sorted(one) for one in setup.labels],
            "class_names": setup.loaded.class_names,
            "model": setup.loaded.name,
            "dataset": setup.dataset.name,
            "planned": self.planned,
            "metrics": [
                {
                    "name": metric.name,
                    "higher_is_better": metric.higher_is_better,
                    "parts": list(metric.parts),
                    "options": dict(one.options),
                }
                for one, metric in zip(setup.metrics, metrics, strict=True)
            ],
            "fingerprint": fingerprint,
            "sizes": probe.sizes,
            "notes": notes,
            "started": _now(),
        }

    def _tell_once(self) -> None:
        facts = self.store.facts()
        before = {**facts["versions"], "device": facts["device"]}
        now = {**versions(), "device": device_name(self.setup.device)}
        changed = [f"{name} {before.get(name)} → {now[name]}" for name in now if before.get(name) != now[name]]
        if changed:
            self.say(f"since the run began, {', '.join(changed)}: scores may differ in their last digits.")
        for image, reason in self.store.skipped().items():
            self.say(f"skipped {image}: {reason}")
        for method, reason in self.store.unfit().items():
            self.say(f"left out {method}: {reason}")
        for note in facts["notes"]:
            self.say(note)

    def _score(self, probe: Probe, labels: list[str]) -> None:
        total = sum(self.planned.values()) * len(labels)
        counts = self.store.counts()
        done = sum(counts.get((metric, label), 0) for metric in self.planned for label in labels)
        began, images, unfit = done, len(self.setup.dataset), set(probe.unfit)
        self.step(Step("scoring", done, total, began, images=images))
        for scored in self.engine.scores(probe, self._chunks(unfit)):
            job = scored.job
            if scored.unfit and job.method not in unfit:
                unfit.add(job.method)
                self.store.set_unfit({job.method: scored.unfit})
                self.say(f"left out {job.method}: {scored.unfit}")
            if not scored.unfit:
                self.store.add(scored.rows, scored.arrays)
            done += len(job.items)
            self.step(Step("scoring", min(done, total), total, began, job.method, job.metric, images))

    def _chunks(self, unfit: set[str]) -> Iterator[list[Job]]:
        """What is not done yet, chunk by chunk, asked of the store at the last moment."""
        for start, chunk in groupby(self.work, key=lambda piece: piece.chunk):
            mine = list(chunk)
            own = tuple(sorted({item.number for piece in mine for item in piece.items}))
            jobs = []
            for piece in mine:
                there = self.store.done_of(piece.metric.name, (item.key for item in piece.items))
                for label in (one.label for one in self.setup.methods if one.label not in unfit):
                    if not all((item.key, label) in there for item in piece.items):
                        jobs.append(Job(piece.metric.name, label, start, own, piece.items))
            if jobs:
                yield jobs


def versions() -> dict[str, str]:
    """What the numbers were made with.

    >>> sorted(versions())
    ['abslrp', 'python', 'torch']
    """
    return {"abslrp": abslrp.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def device_name(device: str) -> str:
    """A device with what it is.

    >>> device_name("cpu")
    'cpu'
    """
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return device
    return f"{device} ({torch.cuda.get_device_name(device)})"


def _fingerprint(loaded: LoadedModel) -> str:
    """A hash of the model's weights: a run goes on with the same ones only."""
    found = hashlib.sha256()
    for name, value in loaded.model.state_dict().items():
        if isinstance(value, torch.Tensor):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _silent(_: Any) -> None:
    return None
