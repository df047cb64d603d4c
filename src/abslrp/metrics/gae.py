"""Global Attribution Evaluation: is a map consistent with what masking does, and does it know the class?

Vukadin, Afrić, Šilić, Delač (2024), doi 10.1145/3649458, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from abslrp.checks import choice, whole
from abslrp.inputs.masking import MODES, SCHEDULES, Masking, mask_by_gradient
from abslrp.inputs.mosaics import TILES, Mosaic, compose, in_quadrants, mosaic_plan, quadrants
from abslrp.metrics.bench import Bench, Explainer, Outcome, merged
from abslrp.metrics.maps import flags_of, l1, positive_part, ratio
from abslrp.registry import Metric, register_metric
from abslrp.types import AbslrpError

SETTINGS = {
    "paper": {"schedule": "incremental", "tiles": "antialias", "positive": "uniform"},
    "authors": {"schedule": "authors", "tiles": "nearest", "positive": "recognised"},
}
POSITIVES = ("uniform", "recognised")
NEGATIVE_LOGIT = "initial output not positive"
_DEFAULTS = {"settings": "paper", "T": 10, "schedule": None, "tiles": None, "positive": None, "mosaics": None}
_MOST_STEPS = 200


def settle(**options: Any) -> dict[str, Any]:
    """The options with every gap filled from ``settings``: the paper's text, or the authors' code.

    >>> settle(settings="authors", tiles="antialias")["schedule"]
    'authors'
    """
    given = {**_DEFAULTS, **options}
    base = SETTINGS[choice("settings", given["settings"], SETTINGS)]
    whole("T", given["T"], 2)
    if given["T"] > _MOST_STEPS:
        raise AbslrpError(f"T={given['T']} is too many steps: choose at most {_MOST_STEPS}.")
    if given["mosaics"] is not None:
        whole("mosaics", given["mosaics"])
    settled = {**given, **{name: base[name] if given[name] is None else given[name] for name in base}}
    for name, known in (("schedule", SCHEDULES), ("tiles", TILES), ("positive", POSITIVES)):
        choice(name, settled[name], known)
    return settled


@dataclass(frozen=True)
class Prepared:
    """What all methods share: the mosaics with their positives, and the masked positives, each image once."""

    mosaics: Tensor
    places: Tensor
    classes: Tensor
    numbers: list[int]
    row: list[int]
    masking: Masking
    score_values: Tensor


def plan(bench: Bench, options: Mapping[str, Any]) -> list[Mosaic]:
    return mosaic_plan(bench.ids, bench.seed, options["mosaics"])


def prepare(bench: Bench, items: Sequence[Mosaic], options: Mapping[str, Any]) -> Prepared:
    """Lay the mosaics out, choose the positives and mask them; one gradient for each step, mode and image."""
    numbers = sorted({n for item in items for n in item.images})
    at = {n: k for k, n in enumerate(numbers)}
    images, logits = bench.fetch(numbers), bench.logits(numbers).double()
    four = torch.tensor([[at[n] for n in item.images] for item in items], device=images.device)
    predicted = logits.argmax(1)[four]
    mosaics = compose(images[four], options["tiles"])
    places = torch.tensor([item.own for item in items], device=images.device)
    if options["positive"] == "recognised":
        places = _recognised(bench.outputs(mosaics).double().gather(1, predicted), [item.draw for item in items])
    classes = predicted.gather(1, places[:, None])[:, 0]
    chosen = four.gather(1, places[:, None])[:, 0]
    values = score_values(logits[chosen].softmax(1), predicted, places)
    positives, row = torch.unique(chosen, return_inverse=True)
    targets = logits[positives].argmax(1)
    masking = mask_by_gradient(images[positives], targets, bench.gradient, T=options["T"], schedule=options["schedule"])
    return Prepared(mosaics, places, classes, [numbers[k] for k in positives.tolist()], row.tolist(), masking, values)


def _recognised(logits: Tensor, draws: Sequence[float]) -> Tensor:
    """One of four places by the softmax of the mosaic's logits (batch, 4) for the four predicted classes."""
    reached = logits.softmax(1).cumsum(1)
    u = torch.tensor(draws, dtype=reached.dtype, device=reached.device)[:, None] * reached[:, -1:]
    return (reached <= u).sum(1).clamp(max=3)


def score_values(probabilities: Tensor, classes: Tensor, places: Tensor) -> Tensor:
    """The score map's value in each quarter: 2 s[c_i] / s[c_p] − 1, which is 1 for the positive itself.

    ``probabilities`` (batch, N) are the positive image's own; ``classes`` (batch, 4) those predicted for the four.

    >>> score_values(torch.tensor([[0.8, 0.2]]), torch.tensor([[0, 1, 0, 1]]), torch.tensor([0])).tolist()
    [[1.0, -0.5, 1.0, -0.5]]
    """
    s = probabilities.gather(1, classes)
    values = 2 * s / s.gather(1, places[:, None]) - 1
    return values.scatter(1, places[:, None], 1.0)


def score(bench: Bench, prepared: Prepared, explainer: Explainer, options: Mapping[str, Any]) -> Outcome:
    """LC of every positive, C of every mosaic, and their product."""
    masking = prepared.masking
    first = bench.maps(explainer, prepared.numbers, masking.targets)
    local = local_consistency(masking, positive_part(first), similarities(bench, masking, first, explainer))
    tiled = bench.explained(explainer, prepared.mosaics, prepared.classes)
    contrast = contrastiveness(positive_part(tiled), prepared.score_values)
    flags = merged(*(_by_item(f, prepared.row) for f in (flags_of(first), _logit_flags(masking))), flags_of(tiled))
    parts = {name: values[prepared.row] for name, values in local.items()}
    parts |= {"C": contrast, "score": parts["LC"] * contrast}
    if bench.details:
        parts |= _pictures(prepared, first, tiled)
    return Outcome(parts, flags)


def similarities(bench: Bench, masking: Masking, first: Tensor, explainer: Explainer) -> dict[str, Tensor]:
    """sim_t = 1 − ‖A − A_t‖₁ / (‖A‖₁ + ‖A_t‖₁) in each mode, from t = 0 on: (batch, steps + 1).

    All states of all images go through in batches of the explainer's size; equal states once.
    """
    start = positive_part(first)
    states = masking.states()
    count = len(start)
    found = torch.zeros(len(states), count, dtype=torch.float64, device=start.device)
    pairs = torch.cartesian_prod(*(torch.arange(n, device="cpu") for n in (len(states), count))).view(-1, 2)
    for part in pairs.split(explainer.size):
        which, rows = part[:, 0], part[:, 1].to(start.device)
        inputs = torch.cat([masking.state(rows[which == s], *states[s]) for s in which.unique().tolist()])
        maps = positive_part(explainer(inputs, masking.targets[rows]))
        found[which.to(start.device), rows] = similarity(start[rows], maps)
    at = {state: k for k, state in enumerate(states)}
    one = torch.ones(count, dtype=torch.float64, device=start.device)
    return {
        mode: torch.stack(
            [one, *(found[at[masking.same_as(mode, t + 1)]] for t in range(len(masking.counts[mode])))], 1
        )
        for mode in MODES
    }


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """1 − ‖a − b‖₁ / (‖a‖₁ + ‖b‖₁) of every pair of maps; two empty maps are alike.

    >>> similarity(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])).round(decimals=4).tolist()
    [0.6667]
    """
    return 1 - ratio(l1(a - b), l1(a) + l1(b), 0.0)


def local_consistency(masking: Masking, maps: Tensor, alike: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """LC_R, LC_F and LC with their curves, of normalised maps and the similarities of their masked images.

    LC_R = 1 − 2 ‖d^o − d^A‖₁ / (‖d^o‖₁ + ‖d^A‖₁),  LC_F = Σ A·sign(I_c) / ‖A‖₁,  LC = ((LC_R + LC_F) / 2)⁺
    """
    scale = masking.outputs["morf"][:, :1].abs()
    outputs = {mode: ratio(masking.outputs[mode], scale.expand_as(masking.outputs[mode]), 0.0) for mode in MODES}
    d_output, d_map = outputs["lerf"] - outputs["morf"], alike["lerf"] - alike["morf"]
    robust = 1 - ratio(2 * l1(d_output - d_map), l1(d_output) + l1(d_map), 1.0)
    impact = masking.impact["lerf"] - masking.impact["morf"]
    size = l1(maps)
    faithful = ratio((maps * impact.sign()).flatten(1).sum(1), size, 0.0)
    empty = size == 0
    robust, faithful = robust.masked_fill(empty, 0.0), faithful.masked_fill(empty, 0.0)
    return {
        "LC_R": robust,
        "LC_F": faithful,
        "LC": ((robust + faithful) / 2).clamp(min=0),
        **{f"outputs_{mode}": outputs[mode] for mode in MODES},
        **{f"similarity_{mode}": alike[mode] for mode in MODES},
        "output_difference": d_output,
        "similarity_difference": d_map,
    }


def contrastiveness(maps: Tensor, values: Tensor) -> Tensor:
    """C = (Σ A·S / ‖A‖₁)⁺ of normalised maps and the score map's value in each quarter (batch, 4).

    >>> contrastiveness(torch.ones(1, 1, 2, 2), torch.tensor([[1.0, 1.0, 1.0, -1.0]])).tolist()
    [0.5]
    """
    parts = in_quadrants(maps)
    return ratio((parts * values).sum(1), parts.sum(1), 0.0).clamp(min=0)


def score_maps(values: Tensor, shape: Sequence[int]) -> Tensor:
    """The score map as a picture (batch, height, width) of its four values."""
    made = values.new_empty(len(values), *shape[-2:])
    for place, (rows, columns) in enumerate(quadrants(*shape[-2:])):
        made[:, rows, columns] = values[:, place, None, None]
    return made


def _pictures(prepared: Prepared, first: Tensor, tiled: Tensor) -> dict[str, Tensor]:
    masking, row = prepared.masking, prepared.row
    return {
        "image": masking.images[row],
        "map": first[row],
        "impact_morf": masking.impact["morf"][row],
        "impact_lerf": masking.impact["lerf"][row],
        "impact": (masking.impact["lerf"] - masking.impact["morf"])[row],
        "mosaic": prepared.mosaics,
        "mosaic_map": tiled,
        "score_map": score_maps(prepared.score_values, prepared.mosaics.shape),
        "position": prepared.places,
        "target": prepared.classes,
    }


def _logit_flags(masking: Masking) -> list[tuple[str, ...]]:
    return [() if o > 0 else (NEGATIVE_LOGIT,) for o in masking.outputs["morf"][:, 0].tolist()]


def _by_item(flags: list[tuple[str, ...]], row: list[int]) -> list[tuple[str, ...]]:
    return [flags[k] for k in row]


register_metric(
    Metric(
        name="gae",
        description="local consistency under masking times contrastiveness in mosaics",
        family="combined",
        citation="Vukadin, Afrić, Šilić, Delač (2024), doi 10.1145/3649458",
        higher_is_better=True,
        settle=settle,
        plan=plan,
        prepare=prepare,
        score=score,
        options=_DEFAULTS,
        parts=("LC_R", "LC_F", "LC", "C"),
    )
)
