"""What a run found, from its store: paired scores, means with intervals, tests, ranks and curves, ready to be shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from abslrp.experiments import paper, statistics
from abslrp.experiments.store import Store
from abslrp.reporting.comparison import MAIN, Comparison, MetricInfo, compare

COMBINED = "gae"
CONTROLS = frozenset({"constant", "random"})
_TITLES = {"aopc": "AOPC", "abpc": "ABPC", "pointing-game": "Pointing game", "box-mass": "Box mass"}
_GAE_SHOWN = ("LC", "C", MAIN)
_MOST_CURVES = 1000

Parts = dict[str, dict[str, np.ndarray]]
"""Scores (images,) of one metric by method and part."""


@dataclass(frozen=True)
class Standing:
    """One metric: its items, the scores by method and part, best mean first, and what the tests say."""

    info: MetricInfo
    description: str
    items: tuple[str, ...]
    scores: Parts
    best: statistics.Best
    pairs: statistics.Pairs

    @property
    def title(self) -> str:
        return self.info.title

    @property
    def main(self) -> dict[str, np.ndarray]:
        """The deciding scores by method."""
        return {method: parts[self.info.main] for method, parts in self.scores.items()}

    def corrected(self, one: str, other: str) -> float:
        """The p-value between two methods after Holm's correction over all pairs."""
        at = self.pairs.methods.index
        return float(self.pairs.corrected[at(one), at(other)])

    def place(self, method: str) -> int | None:
        """The rank of a method by its mean, 1 for the best; equals share the better one."""
        if method not in self.scores:
            return None
        sign = 1 if self.info.higher_is_better else -1
        mine = self.main[method].mean()
        return 1 + sum(sign * other.mean() > sign * mine for other in self.main.values())


@dataclass(frozen=True)
class Curves:
    """Mean curves of GAE over images, from the whole image on: the outputs are the model's, the rest by method."""

    outputs: Mapping[str, np.ndarray]
    similarity: Mapping[str, Mapping[str, np.ndarray]]
    images: int

    def difference(self, method: str | None = None) -> np.ndarray:
        """LeRF less MoRF, of the output or of a method's maps."""
        curves = self.outputs if method is None else self.similarity[method]
        return np.asarray(curves["lerf"] - curves["morf"])


@dataclass(frozen=True)
class Findings:
    """All that a report says in numbers. ``planned`` is how many items each metric was to score, where it is known."""

    facts: Mapping[str, Any]
    model: str
    data: str
    standings: Mapping[str, Standing]
    comparison: Comparison
    agreement: statistics.Agreement | None
    flagged: Mapping[str, Mapping[str, int]]
    flags: Mapping[str, int]
    skipped: Mapping[str, str]
    unfit: Mapping[str, str]
    planned: Mapping[str, int] = field(default_factory=dict)
    curves: Curves | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def deciding(self) -> Standing | None:
        """The metric that names the best method: GAE, or the only one there is."""
        if COMBINED in self.standings or len(self.standings) == 1:
            return self.standings.get(COMBINED) or next(iter(self.standings.values()))
        return None

    @property
    def leader(self) -> str | None:
        """The method that the report looks at: the best of the deciding metric, else of the first metric."""
        first = self.deciding or next(iter(self.standings.values()), None)
        return first.best.best if first else None

    @property
    def images(self) -> int:
        """How many images (or mosaics) the deciding metric, or else the largest, has scored."""
        counts = [len(one.items) for one in ([self.deciding] if self.deciding else self.standings.values()) if one]
        return max(counts, default=0)

    @property
    def missing(self) -> dict[str, tuple[int, int]]:
        """For each metric that is not through: how many items it has, and how many it was to have."""
        done = {name: len(self.standings[name].items) if name in self.standings else 0 for name in self.planned}
        return {name: (done[name], planned) for name, planned in self.planned.items() if done[name] < planned}


def read_findings(store: Store, *, curves: bool = True) -> Findings:
    """Read a run, finished or not, and do its statistics; the curves of a large run take seconds and can be left out.

    >>> import tempfile, pathlib
    >>> from abslrp.experiments.store import Row
    >>> with tempfile.TemporaryDirectory() as folder, Store.open(pathlib.Path(folder), create=True) as store:
    ...     store.add([Row(str(i), m, "focus", "score", i * s) for i in range(9) for m, s in (("a", 1), ("b", 2))])
    ...     read_findings(store).leader
    'b'
    """
    facts, rows = store.facts(), store.rows()
    config = _mapping(facts.get("config"))
    model, data = _model_name(facts, config), _data_name(facts, config)
    values: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    flags: Counter[str] = Counter()
    for row in rows:
        values.setdefault(row.metric, {}).setdefault(row.method, {}).setdefault(row.part, {})[row.image] = row.value
        if row.flag and row.part == MAIN:
            flags.update(row.flag.split("; "))
    infos, notes = _infos(facts, values)
    standings: dict[str, Standing] = {}
    for name, info in infos.items():
        made, said = _standing(info, values[name])
        notes += said
        if made is not None:
            standings[name] = made
    _sort_like_deciding(standings)
    flagged = store.flagged()
    return Findings(
        facts,
        model,
        data,
        standings,
        _comparison(standings, flagged, model, config),
        _agreement(standings),
        flagged,
        dict(flags.most_common()),
        store.skipped(),
        store.unfit(),
        _planned(facts),
        _curves(store, standings.get(COMBINED)) if curves else None,
        tuple(notes),
    )


def image_ids(facts: Mapping[str, Any]) -> list[str]:
    """The names of the run's images, in its order; none where the run did not write them down.

    >>> image_ids({"ids": ["b", "a"]}), image_ids({})
    (['b', 'a'], [])
    """
    for name in ("ids", "image_ids", "images"):
        found = facts.get(name)
        if isinstance(found, (list, tuple)):
            return [str(one.get("id") if isinstance(one, Mapping) else one) for one in found]
    return []


def architecture(model: str) -> str | None:
    """The paper's architecture that a model's name tells, or None.

    >>> architecture("timm:vit_base_patch16_224"), architecture("torchvision:resnet50"), architecture("timm:resnet18")
    ('vit-base', 'resnet50', None)
    """
    plain = model.casefold().replace("-", "_")
    known = {"vgg16": "vgg16", "resnet50": "resnet50", "vit_base_patch16": "vit-base", "vit_b_16": "vit-base"}
    return next((key for name, key in known.items() if name in plain), None)


def dataset(data: str) -> str | None:
    """The paper's dataset that a folder's name tells, or None.

    >>> dataset("/data/imagenet-val"), dataset("VOCdevkit/VOC2012"), dataset("imagenette")
    ('imagenet', 'voc', None)
    """
    plain = data.casefold()
    if "imagenette" in plain or "imagewoof" in plain:
        return None
    return "imagenet" if "imagenet" in plain else "voc" if "voc" in plain else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _model_name(facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    for found in (facts.get("model"), facts.get("model_name"), config.get("model")):
        if isinstance(found, str) and found:
            return found
    return "efficientnet-lite0" if "model" in config else "the model"


def _data_name(facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    for found in (facts.get("dataset"), facts.get("data"), config.get("data")):
        if isinstance(found, str) and found:
            return found
    return ""


def _planned(facts: Mapping[str, Any]) -> dict[str, int]:
    planned = _mapping(facts.get("planned"))
    return {str(name): count for name, count in planned.items() if isinstance(count, int)}


def _infos(facts: Mapping[str, Any], names: Iterable[str]) -> tuple[dict[str, MetricInfo], list[str]]:
    """What is known of each metric, the combined one first; a metric without a direction is left out with a line."""
    from abslrp import registry

    told = facts.get("metrics")
    listed = [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []
    known = {str(one.get("name")): one for one in listed} | dict(_mapping(told) or _mapping(facts.get("metric_info")))
    registered = registry.metrics()
    order = [name for name in registered if name in set(names)] + sorted(set(names) - set(registered))
    infos, notes = {}, []
    for name in order:
        better = _mapping(known.get(name)).get("higher_is_better")
        if better is None and name in registered:
            better = registered[name].higher_is_better
        if better is None:
            notes.append(f"{name} is left out: the run does not say whether higher is better.")
            continue
        title = paper.METRICS[name].title if name in paper.METRICS else _TITLES.get(name, name)
        infos[name] = MetricInfo(name, bool(better), MAIN, _GAE_SHOWN if name == COMBINED else (), title)
    return infos, notes


def _standing(
    info: MetricInfo, values: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> tuple[Standing | None, list[str]]:
    """The metric on the images that every method has a score of, since the tests are paired."""
    from abslrp import registry

    parts = [part for part in info.shown if all(part in one for one in values.values())]
    if MAIN not in parts:
        return None, [f"{info.title} is left out: some method has no score."]
    done = {method: _finite(one, parts) for method, one in values.items()}
    shared = set.intersection(*done.values())
    notes = []
    while not shared and len(done) > 1:
        fewest = min(done, key=lambda method: len(done[method]))
        del done[fewest]
        notes.append(f"{fewest} is left out of {info.title}: it shares no scored image with the other methods.")
        shared = set.intersection(*done.values())
    if not shared:
        return None, [f"{info.title} is left out: it has no finite score."]
    most = max(map(len, done.values()))
    if len(shared) < most:
        notes.append(f"{info.title} compares the {len(shared)} of {most} images that all methods have a score of.")
    items = tuple(sorted(shared))
    sign = -1 if info.higher_is_better else 1
    scores = {m: {part: np.array([values[m][part][key] for key in items]) for part in parts} for m in done}
    ordered = dict(sorted(scores.items(), key=lambda pair: (sign * pair[1][MAIN].mean(), pair[0])))
    main = {method: one[MAIN] for method, one in ordered.items()}
    info = MetricInfo(info.name, info.higher_is_better, MAIN, tuple(parts) if len(parts) > 1 else (), info.title)
    known = registry.metrics().get(info.name)
    best = statistics.best(main, info.higher_is_better)
    return Standing(info, known.description if known else "", items, ordered, best, statistics.pairwise(main)), notes


def _finite(parts: Mapping[str, Mapping[str, float]], wanted: Sequence[str]) -> set[str]:
    keys = set.intersection(*(set(parts[part]) for part in wanted))
    return {key for key in keys if all(math.isfinite(parts[part][key]) for part in wanted)}


def _sort_like_deciding(standings: dict[str, Standing]) -> None:
    """Put the combined metric first, wherever the store has it."""
    if COMBINED in standings:
        first = standings.pop(COMBINED)
        rest = dict(standings)
        standings.clear()
        standings.update({COMBINED: first, **rest})


def _comparison(
    standings: Mapping[str, Standing],
    flagged: Mapping[str, Mapping[str, int]],
    model: str,
    config: Mapping[str, Any],
) -> Comparison:
    from abslrp.experiments import presets

    preset, kind, place = config.get("preset"), architecture(model), dataset(str(config.get("data") or ""))

    def published(metric: str, method: str, part: str) -> float | None:
        if preset is not None:
            return presets.published(preset, config.get("architecture"), place or "imagenet", metric, method, part)
        return paper.published(kind, place, metric, method, part) if kind and place else None

    scores = {name: one.scores for name, one in standings.items()}
    return compare(scores, {name: one.info for name, one in standings.items()}, flagged=flagged, published=published)


def _agreement(standings: Mapping[str, Standing]) -> statistics.Agreement | None:
    if len(standings) < 2:
        return None
    means = {name: {m: float(v.mean()) for m, v in one.main.items()} for name, one in standings.items()}
    return statistics.rank_agreement(means, {name: one.info.higher_is_better for name, one in standings.items()})


def _curves(store: Store, standing: Standing | None) -> Curves | None:
    """The mean of the curves that were kept; the outputs do not depend on the method and are read once."""
    if standing is None:
        return None
    kept: dict[str, dict[str, set[str]]] = {}
    for image, method, metric, part in store.kept():
        if metric == COMBINED and method in standing.scores:
            kept.setdefault(method, {}).setdefault(part, set()).add(image)
    similarity = {}
    for method in standing.scores:
        found = _mean_pair(store, method, "similarity", kept.get(method, {}))
        if found is not None:
            similarity[method] = found
    outputs = next((pair for m in similarity if (pair := _mean_pair(store, m, "outputs", kept[m])) is not None), None)
    if outputs is None:
        return None
    images = max(len(parts.get("similarity_lerf", ())) for parts in kept.values())
    return Curves(outputs, similarity, min(images, _MOST_CURVES))


def _mean_pair(store: Store, method: str, what: str, kept: Mapping[str, set[str]]) -> dict[str, np.ndarray] | None:
    images = sorted(kept.get(f"{what}_lerf", set()) & kept.get(f"{what}_morf", set()))[:_MOST_CURVES]
    pair = {}
    for mode in ("lerf", "morf"):
        found = [store.array(image, method, COMBINED, f"{what}_{mode}") for image in images]
        known = [np.asarray(one, dtype=np.float64) for one in found if one is not None and np.isfinite(one).all()]
        known = [one for one in known if one.ndim == 1 and one.shape == known[0].shape]
        if not known:
            return None
        pair[mode] = np.mean(known, axis=0)
    return pair if pair["lerf"].shape == pair["morf"].shape else None
