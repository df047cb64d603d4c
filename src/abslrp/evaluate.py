"""From a model, images, methods and metrics to scores: paired, seeded, and the same in any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from abslrp.explain import explained as explain
from abslrp.inputs.draws import content_ids
from abslrp.memory import batch_size as fitting
from abslrp.memory import halving
from abslrp.metrics.bench import Bench, Boxes, Explainer, Outcome, numbers_only
from abslrp.precision import precision
from abslrp.progress import shown
from abslrp.query import check_inputs, check_model, make_query, undisturbed, unwrap
from abslrp.registry import Method, Metric
from abslrp.registry import method as find_method
from abslrp.registry import metric as find_metric
from abslrp.types import AbslrpError, Score, Scores, brief

Own = Callable[[Any, Tensor, Tensor], Tensor]
"""A method of one's own: (model, images, targets) -> maps of the images' shape."""

Methods = str | Sequence[str] | Mapping[str, str | tuple[str, Mapping[str, Any]] | Own]
Metrics = str | Sequence[str] | Mapping[str, Mapping[str, Any]]
Labels = Sequence[int | Sequence[int]] | Tensor

_MOST_AT_ONCE = 2**31
_CHUNK = {"cuda": 64, "cpu": 8}


@dataclass
class Asked:
    """A method under the name that results give it, with its options, bound to a model."""

    name: str
    model: Callable[..., Any]
    how: str | Own
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int = 1
    tf32: bool = False

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Maps; where the memory does not suffice, half as many at once from then on."""

        def run(x: Tensor, t: Tensor) -> Tensor:
            if len(x) < len(inputs):
                self.size = min(self.size, len(x))
            if not callable(self.how):
                return explain(self.model, x, t, self.how, tf32=self.tf32, **self.options).maps
            maps = self.how(self.model, x, t)
            if not isinstance(maps, Tensor) or maps.shape != x.shape:
                shape = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
                raise AbslrpError(f"method {self.name!r} gave {shape}, expected maps of shape {tuple(x.shape)}.")
            return maps.detach().to(x.device, torch.float32)

        return halving(run, inputs, targets, torch.cat)


def evaluate(
    model: Callable[..., Any],
    images: Tensor,
    methods: Methods = "abslrp",
    metrics: Metrics = "gae",
    *,
    labels: Labels | None = None,
    boxes: Sequence[Boxes] | None = None,
    ids: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    details: bool = False,
    progress: bool = False,
    tf32: bool = False,
    **options: Any,
) -> Scores:
    """Score methods by metrics on a model and images (batch, channel, height, width).

    ``methods`` are names, or a dict from a name of one's choice to a method's name, to (name, options), or to a function
    (model, images, targets) -> maps. ``metrics`` are names, or a dict from names to options; further keywords are options of
    every metric that knows them, such as ``settings="authors"`` for GAE. Targets are the predicted classes, but where a metric
    ``needs`` labels (one class or several per image) or boxes ({class: [(x0, y0, x1, y1), ...]} per image, in pixels).

    All chance comes from the seed and the images' ``ids`` (by default made of their pixels): neither the order of the images,
    nor ``batch_size`` (by default found from the free memory), nor the other methods change a score, and methods are paired.
    ``details=True`` keeps the maps and mosaics among the parts, for figures. On CUDA products are taken in full precision, but with
    ``tf32=True`` rounded to TF32 on the way: faster, and maps move by up to .03 of their size.

    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).eval()
    >>> s = evaluate(net, torch.randn(5, 3, 4, 4), methods=["input-x-gradient", "constant"], metrics=["gae"], T=4)
    >>> s["gae"]["input-x-gradient"].scores.shape, s["gae"]["constant"].mean
    (torch.Size([5]), 0.0)
    """
    model = unwrap(model)
    chosen = choose_metrics(metrics, options)
    check_model(model)
    x = images if not isinstance(images, Tensor) else _on_device(model, images)
    x = check_inputs(x, model, None)
    names = check_ids(ids, x)
    bench = Bench(
        make_query(model, x[:1], None, None, None),
        lambda numbers: x[list(numbers)],
        names,
        1,
        _seed(seed),
        _labels(labels, len(x)),
        _boxes(boxes, len(x)),
        details,
    )
    if not isinstance(tf32, bool):
        raise AbslrpError(f"tf32={brief(tf32)} must be True or False.")
    asked = choose_methods(methods, model)
    for one in asked:
        one.tf32 = tf32
    with undisturbed(x), precision(tf32 and x.is_cuda):
        set_sizes(bench, asked, x, batch_size)
        found: dict[str, dict[str, list[tuple[Piece, Outcome]]]] = {
            m.name: {a.name: [] for a in asked} for m, _ in chosen
        }
        work = list(pieces(bench, chosen, _CHUNK.get(x.device.type, _CHUNK["cpu"])))
        check_classes(bench)
        for piece, explainer, outcome in shown(
            run_pieces(bench, work, asked), "Evaluating", progress, len(work) * len(asked)
        ):
            found[piece.metric.name][explainer.name].append((piece, outcome))
    return Scores({m.name: {a.name: _score(m, a.name, found[m.name][a.name]) for a in asked} for m, _ in chosen})


@dataclass(frozen=True)
class Piece:
    """Some items of one metric: what is done at once, and again after a crash."""

    metric: Metric
    options: Mapping[str, Any]
    items: tuple[Any, ...]
    chunk: int = 0


def pieces(bench: Bench, chosen: Sequence[tuple[Metric, Mapping[str, Any]]], size: int) -> Iterator[Piece]:
    """The work, some images at a time, every metric on the same ones before the next, because metrics share maps."""
    plans = [(metric, options, metric.plan(bench, options)) for metric, options in chosen]
    for start in range(0, len(bench.ids), size):
        for metric, options, items in plans:
            mine = tuple(item for item in items if start <= item.number < start + size)
            if mine:
                yield Piece(metric, options, mine, start)


def run_pieces(bench: Bench, work: Sequence[Piece], asked: Sequence[Asked]) -> Iterator[tuple[Piece, Asked, Outcome]]:
    """Every method on every piece."""
    chunk = -1
    for piece in work:
        if piece.chunk != chunk:
            bench.forget()
            chunk = piece.chunk
        prepared = piece.metric.prepare(bench, list(piece.items), piece.options)
        for explainer in asked:
            yield piece, explainer, numbers_only(piece.metric.score(bench, prepared, explainer, piece.options))


def choose_metrics(metrics: Metrics, options: Mapping[str, Any]) -> list[tuple[Metric, dict[str, Any]]]:
    """Metrics with their settled options; an option that none of them knows is an error."""
    asked = dict(metrics) if isinstance(metrics, Mapping) else {n: {} for n in names_of("metrics", metrics, "gae")}
    if not asked:
        raise AbslrpError("metrics is empty: name at least one, such as 'gae'; 'abslrp metrics' lists all.")
    for name, its in asked.items():
        if not isinstance(its, Mapping):
            raise AbslrpError(
                f"metrics[{brief(name)}]={brief(its)} cannot be read: expected a dict of options, {{}} for none."
            )
    known = {name: find_metric(name) for name in asked}
    for option in options:
        if not any(option in metric.options for metric in known.values()):
            names = sorted({o for metric in known.values() for o in metric.options})
            raise AbslrpError(
                f"option {option!r} is unknown for {', '.join(known)}: choose from {', '.join(names) or 'none'}."
            )
    chosen = []
    for name, metric in known.items():
        mine = {o: v for o, v in options.items() if o in metric.options} | dict(asked[name])
        unknown = sorted(set(mine) - set(metric.options))
        if unknown:
            raise AbslrpError(
                f"option {unknown[0]!r} is unknown for {name}: choose from {', '.join(metric.options) or 'none'}."
            )
        chosen.append((metric, metric.settle(**mine)))
    return chosen


def choose_methods(methods: Methods, model: Callable[..., Any]) -> list[Asked]:
    """Methods by the names that results will give them."""
    named: dict[Any, Any]
    named = dict(methods) if isinstance(methods, Mapping) else {n: n for n in names_of("methods", methods, "abslrp")}
    if not named:
        raise AbslrpError("methods is empty: name at least one, such as 'abslrp'; 'abslrp methods' lists all.")
    asked = []
    for name, what in named.items():
        how, options = what if isinstance(what, tuple) and len(what) == 2 else (what, {})
        if isinstance(how, tuple) or not isinstance(options, Mapping):
            raise AbslrpError(
                f"methods[{brief(name)}]={brief(what)} cannot be read: expected a method's name, (name, options), or a function."
            )
        if isinstance(how, Method) or not callable(how):
            how = how.name if isinstance(how, Method) else how
            find_method(how).settle(options)
        asked.append(Asked(str(name), model, how, options))
    return asked


def names_of(what: str, given: Any, usual: str) -> list[str]:
    """Names as a list, from a single one or several."""
    try:
        names = [given] if isinstance(given, str) else list(given)
    except TypeError:
        names = [None]
    if not all(isinstance(name, str) for name in names):
        raise AbslrpError(
            f"{what}={brief(given)} cannot be read: expected a name such as {usual!r}, several of them, or a dict from names."
        )
    return names


def set_sizes(bench: Bench, asked: Sequence[Asked], images: Tensor, size: int | None) -> None:
    """How many inputs go through at once: as told, or as the memory allows."""
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise AbslrpError(
            f"batch_size={brief(size)} must be a whole number of at least 1, or None to find it from the memory."
        )
    size = None if size is None else min(size, _MOST_AT_ONCE)
    probe = images[:2]
    if len(probe) < 2:
        probe = torch.cat([probe, probe])
    target = torch.zeros(len(probe), dtype=torch.long, device=images.device)
    bench.size = size or fitting(
        lambda x: bench.gradient(x, target[: len(x)]) if x.is_cuda else bench.query.forward(x), probe
    )
    for one in asked:
        if size is not None or not images.is_cuda:
            one.size = size or bench.size
        else:
            one.size = fitting(lambda x, one=one: one(x, target[: len(x)]), probe)  # type: ignore[misc]


def _score(metric: Metric, method: str, rows: list[tuple[Piece, Outcome]]) -> Score:
    """The pieces put together, items in the order of the images."""
    items = [item for piece, _ in rows for item in piece.items]
    turn = sorted(range(len(items)), key=lambda k: (items[k].key.count("#"), items[k].number))
    names = rows[0][1].parts
    parts = {name: torch.cat([outcome.parts[name] for _, outcome in rows])[turn].cpu() for name in names}
    flags = [flag for _, outcome in rows for flag in outcome.flags]
    return Score(
        metric.name,
        method,
        parts.pop("score").double(),
        tuple(items[k].key for k in turn),
        metric.higher_is_better,
        parts,
        tuple(flags[k] for k in turn),
    )


def _on_device(model: Callable[..., Any], images: Tensor) -> Tensor:
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return images if parameter is None or images.is_meta else images.to(parameter.device)


def check_ids(ids: Sequence[str] | None, images: Tensor) -> list[str]:
    """Names of the images: as given, each once, or made of their pixels."""
    if ids is None:
        return content_ids(images)
    given = plain(ids)
    if isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
        raise AbslrpError(
            f"ids={brief(ids)} cannot be read: expected a list of names, one for each of {len(images)} images."
        )
    names = [str(name) for name in given]
    if len(names) != len(images) or len(set(names)) != len(names):
        raise AbslrpError(
            f"ids has {len(names)} names, {len(set(names))} of them different, for {len(images)} images: give each its own."
        )
    return names


def plain(value: Any) -> Any:
    """Arrays and tensors as lists; None where they hold no values that can be read."""
    try:
        return value.tolist() if hasattr(value, "tolist") else value
    except RuntimeError:
        return None


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise AbslrpError(f"seed={brief(seed)} must be a whole number of at least 0.")
    return seed


def _labels(labels: Labels | None, count: int) -> list[frozenset[int]] | None:
    if labels is None:
        return None
    wanted = "expected one class, or several, for each image"
    rows = plain(labels)
    if not isinstance(rows, (list, tuple)):
        raise AbslrpError(f"labels={brief(labels)} cannot be read: {wanted}.")
    if len(rows) != count:
        raise AbslrpError(f"labels has {len(rows)} entries for {count} images: {wanted}.")
    several = (list, tuple, set, frozenset)
    lists = [list(row) if isinstance(row, several) else [row] for row in map(plain, rows)]
    for entry in (entry for one in lists for entry in one):
        if not _is_class(entry):
            raise AbslrpError(f"label {brief(entry)} is no class index: {wanted}.")
    return [frozenset(int(entry) for entry in one) for one in lists]


def _is_class(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 0


def _boxes(boxes: Sequence[Boxes] | None, count: int) -> Sequence[Boxes] | None:
    if boxes is None:
        return None
    wanted = "expected for each image a dict {class: [(x0, y0, x1, y1), ...]} in pixels"
    if not isinstance(boxes, Sequence):
        raise AbslrpError(f"boxes={brief(boxes)} cannot be read: {wanted}.")
    if len(boxes) != count:
        raise AbslrpError(f"boxes has {len(boxes)} entries for {count} images: {wanted}.")
    for i, one in enumerate(boxes):
        if not isinstance(one, Mapping) or not all(_is_class(c) and _are_boxes(found) for c, found in one.items()):
            raise AbslrpError(f"boxes[{i}]={brief(one)} cannot be read: {wanted}.")
    return boxes


def _are_boxes(found: Any) -> bool:
    """Whether a value lists boxes of four finite numbers each."""
    try:
        rows = [[float(side) for side in box] for box in found]
    except (TypeError, ValueError, OverflowError):
        return False
    return all(len(row) == 4 and all(isfinite(side) for side in row) for row in rows)


def check_classes(bench: Bench) -> None:
    """Labels and boxes of classes that the model has."""
    told = {*(c for one in bench.labels or () for c in one), *(c for one in bench.boxes or () for c in one)}
    if told and max(told) >= (count := bench.logits([0]).shape[1]):
        raise AbslrpError(
            f"class {max(told)} among the labels or boxes is out of range: the model has {count} classes, 0 to {count - 1}."
        )


__all__ = ["Asked", "Explainer", "Piece", "evaluate", "pieces", "run_pieces"]
