"""What is wrong with a model for an explanation, and where: one sentence for each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isfinite, log
from typing import Any

import torch
from torch import Tensor, nn

from abslrp.methods.grids import watched
from abslrp.propagation.api import propagate
from abslrp.propagation.coverage import Coverage, Layer
from abslrp.query import logits, make_query, undisturbed

_LEAST = torch.finfo(torch.float32).eps
"""Less of the start than this is as small as the rounding of what was lost; more than its reciprocal rounds as much as it means."""
_ALL = 1e-3  # what a share may lack and still be said to be all
_FLOOR = 1e-45
_SHARE = 0.5


@dataclass(frozen=True)
class Examination:
    """What was found: ``problems`` spoil the map, ``notes`` need not; ``coverage`` and ``maps`` are None where the model's own
    outputs are not finite."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    coverage: Coverage | None = None
    maps: Tensor | None = None

    @property
    def sound(self) -> bool:
        return not self.problems


@dataclass
class Activations:
    """What the outputs of a model's modules hold: the first that is not finite, and those that are 0 everywhere."""

    broken: str = ""
    dead: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, module: nn.Module, output: Any) -> None:
        value = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return
        if not self.broken and not bool(value.isfinite().all()):
            self.broken = _named(name, module)
        # A module that holds others only hands on what they found.
        if not any(module.children()) and not bool(value.any()):
            self.dead[name] = _named(name, module)


def examine(
    model: Callable[..., Any], x: Tensor, method: str = "abslrp", *, targets: Any = None, **options: Any
) -> Examination:
    """Run inputs through a model and carry the relevance of the predicted classes back, looking for what goes wrong.

    With m_k the relevance Σ|R| that operation k gets (from the outputs on) as a share of the start's, relevance vanishes where
    less arrives than the rounding of float32, 1.2e-7, and explodes where m exceeds the reciprocal, 8.4e6, beyond which what
    cancels rounds as much as what is left means. The layer named is the one behind which max m of all that follow falls the
    most, or up to which max m grows the most; where none alone makes half of the way, in logarithms, it is the one that
    crosses the bound.

    >>> dead = torch.nn.Linear(4, 4)
    >>> _ = dead.weight.data.zero_(), dead.bias.data.fill_(-1.0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), dead, torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    >>> print(examine(model, torch.ones(1, 3)).problems[0])
    relevance vanishes in 3 (torch.nn.functional.linear): it gets all of the start's and passes on nothing, ...
    """
    query = make_query(model, x, targets, None, None)
    seen = Activations()
    with undisturbed(query.inputs):
        with torch.no_grad(), ExitStack() as hooks:
            if isinstance(query.model, nn.Module):
                hooks.enter_context(watched(query.model, seen.note))
            outputs = query.forward(query.inputs.detach().clone())
        if not bool(outputs.isfinite().all()):
            return Examination((_not_finite(seen),), ())
        leaf = query.inputs.detach().clone()
        with propagate(method, **options) as engine:
            outputs = logits(query.call(engine.watch(leaf)), len(leaf))
        maps = engine.relevance(outputs, leaf, "target", targets=query.aim(outputs), retain=False)
    coverage = engine.coverage
    found = tuple(problems(coverage, maps, seen.dead))
    return Examination(found, tuple(_notes(coverage, seen)), coverage, maps)


def problems(coverage: Coverage, maps: Tensor, dead: Mapping[str, str]) -> Iterator[str]:
    """What spoils a map, from what the engine measured on the way and the modules known to be dead."""
    way = coverage.layers[::-1]  # relevance comes from the outputs
    for layer in way:
        if not isfinite(layer.mass_in) or not isfinite(layer.mass_out):
            yield (
                f"relevance stops being finite in {_place(layer)}: it outgrew the numbers of the model, so use a rule that keeps "
                "sums (--option conserve=sign), or run the model in float32."
            )
            return
    if not bool(maps.isfinite().all()):
        yield "the map is not finite, though relevance was on its way: look at what the model does to its input first."
    if coverage.arrived < _LEAST:
        yield _vanished(way, coverage.arrived, dead)
    elif max((one.mass_out for one in way), default=0.0) > 1 / _LEAST or coverage.arrived > 1 / _LEAST:
        yield _exploded(way, coverage.arrived)


def _vanished(way: Sequence[Layer], arrived: float, dead: Mapping[str, str]) -> str:
    # Behind each operation: the most that any later one gets, whatever the branches.
    gets = [one.mass_in for one in way[1:]] + [arrived]
    left = [1.0, *list(accumulate(reversed(gets), max))[::-1]]
    steps = [log(max(b, _FLOOR) / max(a, _FLOOR)) for a, b in pairwise(left)]
    worst = min(range(len(steps)), key=steps.__getitem__)
    place, part = way[worst], left[worst + 1]
    if steps[worst] > _SHARE * log(_LEAST):
        low = next(k for k, one in enumerate(left[1:]) if one < _LEAST)
        return (
            f"relevance vanishes little by little, in {_place(way[low])} below {_LEAST:.1e} of the start's, so the map tells "
            "nothing: use a rule that keeps sums (--option conserve=sign)."
        )
    if place.mass_out > _SHARE * place.mass_in:  # handed out, and not met again
        return (
            f"relevance vanishes behind {_place(place)}: {_words(part)} of what it passes on comes further; the rest met "
            "relevance of the other sign, or stopped where no rule sees it, such as at class tokens, masks or cropped borders."
        )
    cause = next(
        (f", because {dead[one.path]} gives it only zeros" for one in way[worst + 1 :][:1] if one.path in dead), ""
    )
    return (
        f"relevance vanishes in {_place(place)}: it gets {_words(place.mass_in)} of the start's and passes on "
        f"{_words(place.mass_out)}{cause}, so the map tells nothing."
    )


def _exploded(way: Sequence[Layer], arrived: float) -> str:
    # An operation may hand out more than its sums tell, where it is of both signs: then the next one gets more.
    gets = [one.mass_in for one in way[1:]] + [arrived]
    most = [1.0, *accumulate((max(one.mass_out, more) for one, more in zip(way, gets, strict=True)), max)]
    most = list(accumulate(most, max))
    steps = [log(b / a) for a, b in pairwise(most)]
    worst = max(range(len(steps)), key=steps.__getitem__)
    end = "so what cancels in the map rounds as much as what is left: use a rule that keeps sums (--option conserve=sign)."
    if steps[worst] < -_SHARE * log(_LEAST):
        high = next(k for k, one in enumerate(most[1:]) if one > 1 / _LEAST)
        return (
            f"relevance explodes little by little to {most[-1]:.1e} times the start's, most in {_place(way[worst])} and beyond "
            f"{1 / _LEAST:.1e} in {_place(way[high])}, {end}"
        )
    return (
        f"relevance explodes in {_place(way[worst])}: it gets {_words(way[worst].mass_in)} of the start's and makes "
        f"{most[worst + 1]:.1e} times the start's of it, {end}"
    )


def _not_finite(seen: Activations) -> str:
    where = f", first in {seen.broken}" if seen.broken else ""
    return f"the model's outputs hold NaN or infinite values{where}: look at its weights there, and at what it gets."


def _notes(coverage: Coverage, seen: Activations) -> Iterator[str]:
    if seen.dead:
        more = f" and {len(seen.dead) - 1} more" if len(seen.dead) > 1 else ""
        are = "are" if more else "is"
        yield f"{next(iter(seen.dead.values()))}{more} {are} dead: only zeros come out for this input, and no relevance passes."
    if coverage.stopped:
        names = ", ".join(f"{name} ({count})" for name, count in coverage.stopped.items())
        yield f"relevance stops at {names}: what comes out counts as a constant."


def _named(name: str, module: nn.Module) -> str:
    return f"{name} ({type(module).__name__})"


def _place(layer: Layer) -> str:
    return f"{layer.path or '(top)'} ({layer.function})"


def _words(part: float) -> str:
    return "nothing" if part <= _FLOOR else "all" if abs(part - 1) < _ALL else f"{part:.2g}"
