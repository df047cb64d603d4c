"""The pictures of a report: a handful of images and maps, chosen by their scores and made once more from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from abslrp import registry
from abslrp.experiments.findings import COMBINED, CONTROLS, Findings, Standing
from abslrp.experiments.studio import Studio, open_studio, plane, shown_tensor
from abslrp.inputs.models import LoadedModel
from abslrp.inputs.mosaics import Mosaic
from abslrp.metrics import gae
from abslrp.metrics.maps import positive_part
from abslrp.precision import full_precision
from abslrp.query import undisturbed
from abslrp.types import AbslrpError

_EXTREMES = 5
_GRID_IMAGES, _GRID_MAPS = 6, 150
_CLASS_IMAGES, _CLASS_METHODS, _LOOKED_AT = 3, 3, 48
_PLAUSIBLE = 0.08
_SAME = 0.02

Told = Callable[[str], None]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Picture:
    """An image (height, width, 3), the class that was explained, its maps (height, width) by method, and scores."""

    id: str
    label: str
    image: np.ndarray
    maps: Mapping[str, np.ndarray]
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MosaicPicture:
    """A mosaic, its maps and its C by method; ``place`` is the quarter that holds the class, row by row."""

    id: str
    label: str
    image: np.ndarray
    place: int
    maps: Mapping[str, np.ndarray]
    scores: Mapping[str, float]
    method: str
    good: bool


@dataclass(frozen=True)
class ImpactPicture:
    """What masking told of an image: the maps of both orders, their difference and its sign, and a method's map."""

    id: str
    label: str
    image: np.ndarray
    lerf: np.ndarray
    morf: np.ndarray
    difference: np.ndarray
    sign: np.ndarray
    method: str
    map: np.ndarray


@dataclass(frozen=True)
class ClassPicture:
    """An image with two plausible classes, with their chances, and for each method a map of either."""

    id: str
    image: np.ndarray
    classes: tuple[tuple[str, float], ...]
    maps: Mapping[str, Sequence[np.ndarray]]


@dataclass(frozen=True)
class Pictures:
    """All pictures of a report; what could not be made is empty, and ``notes`` says why."""

    best: tuple[Picture, ...] = ()
    worst: tuple[Picture, ...] = ()
    grid: tuple[Picture, ...] = ()
    mosaics: tuple[MosaicPicture, ...] = ()
    impact: ImpactPicture | None = None
    classes: tuple[ClassPicture, ...] = ()
    notes: tuple[str, ...] = ()


def make_pictures(
    findings: Findings,
    *,
    device: str = "cpu",
    data: str | None = None,
    weights: str | None = None,
    loaded: LoadedModel | None = None,
    told: Told = lambda what: None,
) -> Pictures:
    """Load the run's model and images and make a bounded number of pictures; ``told`` hears what is being done.

    ``data``, ``weights`` and ``loaded`` are those of :func:`abslrp.experiments.studio.open_studio`.
    """
    standing = findings.deciding or next(iter(findings.standings.values()), None)
    if standing is None:
        raise AbslrpError("the run has no scores yet.")
    told("loading the model")
    studio = open_studio(findings, device=device, data=data, weights=weights, loaded=loaded)
    combined = COMBINED in findings.standings and len(studio.ids) >= 4
    job = _Job(findings, standing, studio, studio.options(COMBINED) if combined else None)
    with undisturbed(studio.bench.query.inputs), full_precision():
        return _made(job, told)


@dataclass(frozen=True)
class _Job:
    """What the functions below work on; ``options`` are GAE's, None where the run has no GAE."""

    findings: Findings
    standing: Standing
    studio: Studio
    options: dict[str, Any] | None

    @property
    def leader(self) -> str:
        return self.standing.best.best


@dataclass(frozen=True)
class _Scored:
    """An item of the deciding metric and the number of the image that it scored."""

    key: str
    number: int


def _made(job: _Job, told: Told) -> Pictures:
    made: dict[str, Any] = {}
    steps: tuple[tuple[str, Callable[[_Job], dict[str, Any]]], ...] = (
        ("the best and worst maps", _extremes),
        ("every method on the same images", _grid),
        ("mosaics", _mosaics),
        ("impact maps", _impact),
        ("images with two classes", _classes),
    )
    for what, work in steps:
        told(what)
        try:
            made |= work(job)
        except (AbslrpError, RuntimeError) as error:
            job.studio.notes.append(f"Pictures of {what} are left out: {' '.join(str(error).split())}")
    return Pictures(**made, notes=tuple(job.studio.notes))


def _plan(job: _Job) -> dict[str, Mosaic]:
    return {item.key: item for item in gae.plan(job.studio.bench, job.options or gae.settle())}


def _prepared(job: _Job, keys: Sequence[str], **changed: Any) -> gae.Prepared:
    plan = _plan(job)
    return gae.prepare(job.studio.bench, [plan[key] for key in keys], {**(job.options or gae.settle()), **changed})


def _ranked(job: _Job) -> list[str]:
    """The leader's items from the best to the worst, those whose image is known."""
    sign = -1 if job.standing.info.higher_is_better else 1
    order = np.argsort(sign * job.standing.main[job.leader], kind="stable")
    known = _plan(job) if job.standing.info.name == COMBINED and job.options else set(job.studio.ids)
    return [key for key in (job.standing.items[place] for place in order) if key in known]


def _images(job: _Job, keys: Sequence[str], count: int) -> list[_Scored]:
    """The first few of the items, each image once.

    Under the authors' settings the image that GAE scores is drawn from the four of the mosaic, and asked for here.
    """
    at = {name: number for number, name in enumerate(job.studio.ids)}
    if job.standing.info.name != COMBINED or job.options is None:
        numbers = [at[key] for key in keys]
    elif job.options["positive"] == "uniform":
        plan = _plan(job)
        numbers = [plan[key].number for key in keys]
    else:
        # Two steps of masking instead of all of them: only the choice is wanted.
        prepared = _prepared(job, keys, T=2)
        numbers = [prepared.numbers[row] for row in prepared.row]
    found: dict[int, _Scored] = {}
    for key, number in zip(keys, numbers, strict=True):
        found.setdefault(number, _Scored(key, number))
    return list(found.values())[:count]


def _pictures(job: _Job, chosen: Sequence[_Scored], methods: Sequence[str]) -> tuple[Picture, ...]:
    """The chosen images, each with the maps of some methods for the predicted class."""
    if not chosen:
        return ()
    studio, numbers = job.studio, [one.number for one in chosen]
    inputs, targets = studio.bench.fetch(numbers), studio.bench.logits(numbers).argmax(1)
    made = {method: studio.maps(method, inputs, targets) for method in methods if method in studio.methods}
    return tuple(
        Picture(
            studio.ids[one.number],
            studio.label(int(targets[row])),
            studio.photograph(one.number),
            {method: plane(maps[row]) for method, maps in made.items() if maps is not None},
            _scores_of(job.standing, job.leader, one.key),
        )
        for row, one in enumerate(chosen)
    )


def _scores_of(standing: Standing, method: str, key: str) -> dict[str, float]:
    place, info = standing.items.index(key), standing.info
    return {
        (info.title if part == info.main else part): float(values[place])
        for part, values in standing.scores[method].items()
    }


def _extremes(job: _Job) -> dict[str, Any]:
    ranked = _ranked(job)
    # Several items may have scored one image: more are looked at than are shown.
    top, bottom = (_images(job, keys[: 2 * _EXTREMES], 2 * _EXTREMES) for keys in (ranked, ranked[::-1]))
    known = len({one.number for one in (*top, *bottom)})
    best = top[: min(_EXTREMES, (known + 1) // 2)]
    taken = {one.number for one in best}
    worst = [one for one in bottom if one.number not in taken][: min(_EXTREMES, known - len(best))]
    return {"best": _pictures(job, best, [job.leader]), "worst": _pictures(job, worst, [job.leader])}


def _grid(job: _Job) -> dict[str, Any]:
    """Images spread evenly over the leader's ranking, so that they are neither its best nor its worst only."""
    ranked, methods = _ranked(job), job.findings.comparison.methods
    count = max(1, min(_GRID_IMAGES, _GRID_MAPS // max(1, len(methods))))
    # Where items share their images, twice as many give enough of them.
    known = _images(job, _spread(ranked, 2 * count), 2 * count)
    return {"grid": _pictures(job, _spread(known, count), methods)}


def _spread(several: Sequence[_T], count: int) -> list[_T]:
    """As many of several, evenly from the first to the last."""
    places = np.linspace(0, len(several) - 1, min(count, len(several))).round().astype(int).tolist()
    return [several[place] for place in places]


def _mosaics(job: _Job) -> dict[str, Any]:
    """The mosaics in which the leader, and a method that is consistent but blind to classes, fare best and worst."""
    standing = job.findings.standings.get(COMBINED)
    if standing is None or job.options is None or "C" not in standing.scores[job.leader]:
        return {}
    other = _blind(standing, job.leader)
    wanted = []
    for method in [job.leader] if other is None else [job.leader, other]:
        order = np.argsort(-standing.scores[method]["C"], kind="stable")
        wanted += [(method, standing.items[order[0]], True), (method, standing.items[order[-1]], False)]
    plan = _plan(job)
    wanted = [one for one in wanted if one[1] in plan]
    if not wanted:
        return {}
    methods = [job.leader] if other is None else [job.leader, other]
    return {"mosaics": _mosaic_pictures(job, wanted, [m for m in methods if m in job.studio.methods])}


def _mosaic_pictures(
    job: _Job, wanted: Sequence[tuple[str, str, bool]], methods: Sequence[str]
) -> tuple[MosaicPicture, ...]:
    standing, studio = job.findings.standings[COMBINED], job.studio
    prepared = _prepared(job, [key for _, key, _ in wanted], T=2)
    made = {method: studio.maps(method, prepared.mosaics, prepared.classes) for method in methods}
    maps = {method: found for method, found in made.items() if found is not None}
    _check(job, wanted, prepared, maps)
    return tuple(
        MosaicPicture(
            key,
            studio.label(int(prepared.classes[row])),
            shown_tensor(prepared.mosaics[row], studio.loaded.transform),
            int(prepared.places[row]),
            {name: plane(found[row]) for name, found in maps.items()},
            {name: float(standing.scores[name]["C"][standing.items.index(key)]) for name in maps},
            method,
            good,
        )
        for row, (method, key, good) in enumerate(wanted)
    )


def _check(
    job: _Job,
    wanted: Sequence[tuple[str, str, bool]],
    prepared: gae.Prepared,
    maps: Mapping[str, Tensor],
) -> None:
    """Note where the leader's C is not what it was: then model, data or code have changed since the run."""
    if job.leader not in maps or job.leader in job.studio.shortened:
        return
    standing = job.findings.standings[COMBINED]
    now = gae.contrastiveness(positive_part(maps[job.leader]), prepared.score_values).tolist()
    then = [standing.scores[job.leader]["C"][standing.items.index(key)] for _, key, _ in wanted]
    far = max(abs(a - b) for a, b in zip(now, then, strict=True))
    if far > _SAME:
        job.studio.notes.append(
            f"Made again, the contrastiveness of {job.leader} in a mosaic differs by {far:.2f} from that of the run: "
            "the model, the images or the code are not quite those that were scored."
        )


def _blind(standing: Standing, leader: str) -> str | None:
    """The method whose local consistency exceeds its contrastiveness most; no control."""
    gap = {
        method: float(parts["LC"].mean() - parts["C"].mean())
        for method, parts in standing.scores.items()
        if method != leader and method not in CONTROLS and "LC" in parts
    }
    return max(gap, key=lambda method: gap[method]) if gap else None


def _impact(job: _Job) -> dict[str, Any]:
    """The maps of masking for the image that the leader did best on."""
    ranked = _ranked(job)
    if job.options is None or job.standing.info.name != COMBINED or not ranked or job.leader not in job.studio.methods:
        return {}
    prepared, studio = _prepared(job, ranked[:1]), job.studio
    number, masking = prepared.numbers[0], prepared.masking
    made = studio.maps(job.leader, masking.images[:1], masking.targets[:1])
    if made is None:
        return {}
    lerf, morf = (masking.impact[mode][0].sum(0).cpu().numpy() for mode in ("lerf", "morf"))
    sign = (masking.impact["lerf"] - masking.impact["morf"])[0].sign().sum(0).cpu().numpy()
    label = studio.label(int(masking.targets[0]))
    shown = ImpactPicture(
        studio.ids[number], label, studio.photograph(number), lerf, morf, lerf - morf, sign, job.leader, plane(made[0])
    )
    return {"impact": shown}


def _classes(job: _Job) -> dict[str, Any]:
    """Images whose second class is nearly as likely as the first, several labels first, and maps of both."""
    studio, known = job.studio, registry.methods()
    methods = [
        name
        for name in job.standing.scores
        if name in studio.methods and name not in CONTROLS and _specific(studio.methods[name].how, known)
    ][:_CLASS_METHODS]
    count = min(_LOOKED_AT, len(studio.ids))
    numbers = _spread(range(len(studio.ids)), count)
    chances = studio.bench.logits(numbers).softmax(1)
    if chances.shape[1] < 2 or not methods:
        return {}
    top = chances.topk(2)
    likely = [row for row in range(len(numbers)) if float(top.values[row, 1]) >= _PLAUSIBLE]
    labels = studio.bench.labels or [frozenset()] * len(studio.ids)
    likely.sort(key=lambda row: (len(labels[numbers[row]]) < 2, -float(top.values[row, 1])))
    rows = likely[:_CLASS_IMAGES]
    if not rows:
        studio.notes.append(
            f"None of the {count} images looked at has a second class with a chance of {_PLAUSIBLE:.0%} or more."
        )
        return {}
    inputs = studio.bench.fetch([numbers[row] for row in rows])
    made = {name: [studio.maps(name, inputs, top.indices[rows, rank]) for rank in range(2)] for name in methods}
    return {
        "classes": tuple(
            ClassPicture(
                studio.ids[numbers[row]],
                studio.photograph(numbers[row]),
                tuple((studio.label(int(top.indices[row, rank])), float(top.values[row, rank])) for rank in range(2)),
                {
                    name: [plane(maps[place]) for maps in pair if maps is not None]
                    for name, pair in made.items()
                    if all(maps is not None for maps in pair)
                },
            )
            for place, row in enumerate(rows)
        )
    }


def _specific(how: Any, known: Mapping[str, registry.Method]) -> bool:
    return isinstance(how, str) and how in known and known[how].class_specific
