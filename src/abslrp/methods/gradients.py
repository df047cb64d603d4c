"""Methods made of plain gradients or of changed inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.checks import MOST, choice, flag, number, seed_number, whole
from abslrp.methods.common import baseline_of, check_baseline, seeded
from abslrp.progress import shown
from abslrp.query import Answer, Query, gradient, plain_outputs
from abslrp.registry import Method, register_method
from abslrp.types import AbslrpError, brief

_RULES = ("midpoint", "right", "gauss-legendre")
# Gauss–Legendre's nodes are eigenvalues of a dense matrix, RISE's cells make a square of them.
_MOST_NODES = 1000


def _aimed(query: Query) -> tuple[Tensor, Tensor]:
    outputs = plain_outputs(query, query.inputs)
    return query.aim(outputs), outputs


def saliency(query: Query) -> Answer:
    """|∂y_t/∂x| (Simonyan et al. 2013)."""
    maps, targets, outputs = gradient(query, query.inputs)
    return Answer(maps.abs(), targets, outputs)


def input_x_gradient(query: Query) -> Answer:
    """x · ∂y_t/∂x (Shrikumar et al. 2016)."""
    maps, targets, outputs = gradient(query, query.inputs)
    return Answer(query.inputs * maps, targets, outputs)


def quadrature(name: str, steps: int) -> tuple[list[float], list[float]]:
    """Places and weights in [0, 1]: the middles or right ends of equal steps, or Gauss–Legendre's.

    >>> quadrature("midpoint", 2)
    ([0.25, 0.75], [0.5, 0.5])
    """
    if name == "gauss-legendre":
        places, weights = np.polynomial.legendre.leggauss(steps)
        return [float(p + 1) / 2 for p in places], [float(w) / 2 for w in weights]
    shift = 0.5 if name == "midpoint" else 1.0
    return [(i + shift) / steps for i in range(steps)], [1 / steps] * steps


def integrated_gradients(
    query: Query, steps: int, baseline: Any, rule: str, inner_batch: int, progress: bool
) -> Answer:
    """(x − x₀) · ∫₀¹ ∂y_t/∂x (x₀ + a (x − x₀)) da (Sundararajan et al. 2017)."""
    places, weights = quadrature(rule, steps)
    x = query.inputs
    base = baseline_of(baseline, x)
    targets, outputs = _aimed(query)
    total = _summed(
        query,
        lambda k: base + places[k] * (x - base),
        weights,
        targets,
        inner_batch,
        "integrated gradients",
        progress,
    )
    return Answer((x - base) * total, targets, outputs)


def check_integrated_gradients(options: Mapping[str, Any]) -> None:
    most = _MOST_NODES if choice("rule", options["rule"], _RULES) == "gauss-legendre" else MOST
    whole("steps", options["steps"], most=most)
    check_baseline(options["baseline"])
    check_long(options)


def smoothgrad(
    query: Query, samples: int, sigma: float, seed: int, absolute: bool, inner_batch: int, progress: bool
) -> Answer:
    """mean of ∂y_t/∂x at x + noise, noise of σ · (max − min) of the input (Smilkov et al. 2017)."""
    x = query.inputs
    spread = float(sigma) * (x.flatten(1).amax(1) - x.flatten(1).amin(1)).reshape(-1, *[1] * (x.ndim - 1))
    generator = seeded(seed)
    targets, outputs = _aimed(query)

    def noisy(_: int) -> Tensor:
        return x + torch.randn(x.shape[1:], generator=generator, device="cpu", dtype=torch.float32).to(x) * spread

    total = _summed(query, noisy, [1 / samples] * samples, targets, inner_batch, "smoothgrad", progress, absolute)
    return Answer(total, targets, outputs)


def check_smoothgrad(options: Mapping[str, Any]) -> None:
    whole("samples", options["samples"])
    number("sigma", options["sigma"])
    seed_number(options["seed"])
    flag("absolute", options["absolute"])
    check_long(options)


def check_long(options: Mapping[str, Any]) -> None:
    whole("inner_batch", options["inner_batch"])
    flag("progress", options["progress"])


def _summed(
    query: Query,
    point: Callable[[int], Tensor],
    weights: list[float],
    targets: Tensor,
    inner: int,
    title: str,
    progress: bool,
    absolute: bool = False,
) -> Tensor:
    """Σ weight · gradient over points, made in turn, as many at once as the inner batch allows."""
    total = torch.zeros_like(query.inputs)
    at_once = max(1, inner // len(query.inputs)) if query.divisible else 1
    groups = [range(i, min(i + at_once, len(weights))) for i in range(0, len(weights), at_once)]
    for group in shown(groups, title, progress):
        stacked = gradient(query, torch.cat([point(i) for i in group]), targets.repeat(len(group)))
        for i, g in zip(group, stacked.maps.chunk(len(group)), strict=True):
            total += weights[i] * (g.abs() if absolute else g)
    return total


# ---------------------------------------------------------------- changed inputs


def _places(x: Tensor) -> list[int]:
    """The dimensions that a window moves over: all but batch and channel, or the features of a table."""
    return list(range(2, x.ndim)) if x.ndim > 2 else [1] if x.ndim == 2 else []


def _logits(query: Query, x: Tensor, targets: Tensor, inner: int) -> Tensor:
    if not query.divisible:
        return plain_outputs(query, x).gather(1, targets.reshape(-1, 1))[:, 0]
    parts = [
        plain_outputs(query, part).gather(1, aim.reshape(-1, 1))[:, 0]
        for part, aim in zip(x.split(inner), targets.split(inner), strict=True)
    ]
    return torch.cat(parts)


def occlusion(query: Query, window: Any, stride: Any, baseline: Any, inner_batch: int, progress: bool) -> Answer:
    """How much the target's output drops where a window is covered, averaged over the windows that cover a place
    (Zeiler and Fergus 2014)."""
    x, dims = query.inputs, _places(query.inputs)
    sizes = [x.shape[d] for d in dims]
    sides = [max(1, round(s / 14)) for s in sizes] if window is None else _sides("window", window, len(dims))
    steps = [max(1, w // 2) for w in sides] if stride is None else _sides("stride", stride, len(dims))
    base = baseline_of(baseline, x)
    targets, outputs = _aimed(query)
    plain = outputs.gather(1, targets.reshape(-1, 1))[:, 0]
    total, count = torch.zeros_like(x), torch.zeros_like(x[:1])
    starts = [
        sorted({*range(0, max(n - w, 0) + 1, s), max(n - w, 0)}) for n, w, s in zip(sizes, sides, steps, strict=True)
    ]
    windows = [
        tuple([slice(None)] * dims[0] + [slice(a, a + w) for a, w in zip(corner, sides, strict=True)])
        for corner in product(*starts)
    ]
    at_once = max(1, inner_batch // len(x)) if query.divisible else 1
    groups = [windows[i : i + at_once] for i in range(0, len(windows), at_once)]
    for group in shown(groups, "occlusion", progress):
        covered = []
        for place in group:
            one = x.clone()
            one[place] = base[place]
            covered.append(one)
        drops = plain.repeat(len(group)) - _logits(query, torch.cat(covered), targets.repeat(len(group)), inner_batch)
        for place, drop in zip(group, drops.chunk(len(group)), strict=True):
            total[place] += drop.reshape(-1, *[1] * (x.ndim - 1))
            count[place] += 1
    return Answer(total / count.clamp(min=1), targets, outputs)


def check_occlusion(options: Mapping[str, Any]) -> None:
    for name in ("window", "stride"):
        if options[name] is not None:
            _sides(name, options[name], None)
    check_baseline(options["baseline"])
    check_long(options)


def _sides(name: str, value: Any, dims: int | None) -> list[int]:
    """One side for each dimension; how many there are is not known before the inputs are."""
    several = isinstance(value, (list, tuple))
    sides = list(value) if several else [value] * (1 if dims is None else dims)
    if several and (not sides or (dims is not None and len(sides) != dims)):
        count = "its" if dims is None else dims
        raise AbslrpError(f"{name}={brief(value)} must be one whole number, or one for each of the {count} dimensions.")
    return [whole(name, side) for side in sides]


def rise(query: Query, masks: int, cells: int, keep: float, seed: int, inner_batch: int, progress: bool) -> Answer:
    """Σ_m p_t(x · m) m / (number · keep) over random smooth masks, the same for all inputs (Petsiuk et al. 2018)."""
    x = query.inputs
    if x.ndim != 4:
        raise AbslrpError(f"rise needs images (batch, channels, height, width), got shape {tuple(x.shape)}.")
    height, width = x.shape[2:]
    generator = seeded(seed)
    targets, outputs = _aimed(query)
    total = torch.zeros_like(x[:, :1])
    at_once = max(1, inner_batch // len(x)) if query.divisible else 1
    groups = [range(i, min(i + at_once, masks)) for i in range(0, masks, at_once)]
    for group in shown(groups, "rise", progress):
        drawn = [_smooth_mask(cells, keep, height, width, generator).to(x) for _ in group]
        seen = _probability(query, torch.cat([x * mask for mask in drawn]), targets.repeat(len(group)), inner_batch)
        for mask, score in zip(drawn, seen.chunk(len(group)), strict=True):
            total += score.reshape(-1, 1, 1, 1) * mask
    return Answer((total / (masks * keep)).expand_as(x), targets, outputs)


def check_rise(options: Mapping[str, Any]) -> None:
    number("keep", options["keep"], 0.01, 0.99)
    whole("cells", options["cells"], most=_MOST_NODES)
    whole("masks", options["masks"])
    seed_number(options["seed"])
    check_long(options)


def _smooth_mask(cells: int, keep: float, height: int, width: int, generator: torch.Generator) -> Tensor:
    """A coarse grid of zeros and ones, enlarged and cut at a random place."""
    coarse = (torch.rand(1, 1, cells, cells, generator=generator, device="cpu", dtype=torch.float32) < keep).float()
    tall, wide = -(-height // cells), -(-width // cells)
    large = F.interpolate(coarse, size=((cells + 1) * tall, (cells + 1) * wide), mode="bilinear")
    top, left = (int(torch.randint(n, (1,), generator=generator, device="cpu")) for n in (tall, wide))
    return large[:, :, top : top + height, left : left + width]


def _probability(query: Query, x: Tensor, targets: Tensor, inner: int) -> Tensor:
    parts = x.split(inner) if query.divisible else [x]
    outputs = torch.cat([plain_outputs(query, part) for part in parts])
    return outputs.softmax(1).gather(1, targets.reshape(-1, 1))[:, 0]


def _register(
    name: str,
    description: str,
    citation: str,
    run: Any,
    family: str = "gradient",
    needs: tuple[str, ...] = (),
    check: Callable[[Mapping[str, Any]], object] | None = None,
    **options: Any,
) -> None:
    register_method(Method(name, description, family, citation, run, options, needs, check=check))


_LONG: dict[str, Any] = {"inner_batch": 16, "progress": False}
_register("saliency", "absolute gradient", "Simonyan, Vedaldi, Zisserman (2013), arXiv 1312.6034", saliency)
_register("input-x-gradient", "input times gradient", "Shrikumar et al. (2016), arXiv 1605.01713", input_x_gradient)
_register(
    "integrated-gradients",
    "gradients averaged on the way from a baseline, times the way",
    "Sundararajan, Taly, Yan (2017), arXiv 1703.01365",
    integrated_gradients,
    needs=("baseline",),
    check=check_integrated_gradients,
    steps=50,
    baseline=0.0,
    rule="midpoint",
    **_LONG,
)
_register(
    "smoothgrad",
    "gradients averaged over noisy copies",
    "Smilkov et al. (2017), arXiv 1706.03825",
    smoothgrad,
    check=check_smoothgrad,
    samples=20,
    sigma=0.15,
    seed=0,
    absolute=False,
    **_LONG,
)
_register(
    "occlusion",
    "drop of the output where a window is covered",
    "Zeiler, Fergus (2014), arXiv 1311.2901",
    occlusion,
    "perturbation",
    ("baseline",),
    check_occlusion,
    window=None,
    stride=None,
    baseline=0.0,
    **_LONG,
)
_register(
    "rise",
    "probability under random masks, summed at what they show",
    "Petsiuk, Das, Saenko (2018), arXiv 1806.07421",
    rise,
    "perturbation",
    check=check_rise,
    masks=500,
    cells=7,
    keep=0.5,
    seed=0,
    **_LONG,
)
