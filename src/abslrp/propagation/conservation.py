"""How relevance is kept from growing: each takes a transport and the relevance R at its output and returns r at its inputs.

The bare equation hands out Σ_i (x_i w_ij)⁺ ≥ |h_j| at every neuron, so relevance grows by orders of magnitude in a deep
network and the negative part of the start drowns the target. All sums here are over one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from abslrp.propagation.axes import Axis, sample_sums, spread
from abslrp.propagation.balance import balanced, ratio
from abslrp.propagation.rules import Transport

Conserve = Callable[[Transport, Tensor, Axis | None, Sequence[Axis | None], int], tuple[Tensor, ...]]


def _scaled(R: Tensor, k: Tensor, axis: Axis | None) -> Tensor:
    """k⁺ R⁺ + k⁻ R⁻ for float64 factors (2, batch).

    Rounding a factor to R's precision would shift all of a sample's relevance one way, layer by layer, and a contrastive start
    lives on the difference of two masses. So a factor goes in as a short number, whose product with R is nearly exact, and the
    rest.
    """
    if R.dtype == torch.float64:
        parts = [k]
    else:
        short = (k.float().view(torch.int32) & ~0x1FFF).view(torch.float32)
        parts = [short, (k - short.double()).float()]
    up = R > 0
    result = R * torch.where(up, spread(parts[0][0], R.shape, axis), spread(parts[0][1], R.shape, axis))
    for up_rest, down_rest in parts[1:]:
        rest = torch.where(up, spread(up_rest, R.shape, axis), spread(down_rest, R.shape, axis))
        result = torch.addcmul(result, R, rest)
    return result


def sign(
    step: Transport, R: Tensor, axis: Axis | None, inputs: Sequence[Axis | None], batch: int
) -> tuple[Tensor, ...]:
    """r = M(k⁺ R⁺ + k⁻ R⁻) with k± = Σ R± / Σ_j c_j R±_j: positive and negative relevance each keep their sums."""
    if step.even:
        return step.pull(R)
    if step.elementwise is not None:
        maps = balanced(step.elementwise, R, axis, batch, joint=False)
        if maps is not None:
            return maps
    c = step.columns()
    above, below = R.clamp(min=0), R.clamp(max=0)
    up = ratio(sample_sums(above, axis, batch), sample_sums(above * c, axis, batch))
    down = ratio(sample_sums(below, axis, batch), sample_sums(below * c, axis, batch))
    return step.pull(_scaled(R, torch.stack([up, down]), axis))


def joint(
    step: Transport, R: Tensor, axis: Axis | None, inputs: Sequence[Axis | None], batch: int
) -> tuple[Tensor, ...]:
    """r = k M(R) with one factor for both signs, k = Σ |R| / Σ_j c_j |R_j|."""
    if step.even:
        return step.pull(R)
    if step.elementwise is not None:
        maps = balanced(step.elementwise, R, axis, batch, joint=True)
        if maps is not None:
            return maps
    size = R.abs()
    k = ratio(sample_sums(size, axis, batch), sample_sums(size * step.columns(), axis, batch))
    return step.pull(_scaled(R, torch.stack([k, k]), axis))


def each(
    step: Transport, R: Tensor, axis: Axis | None, inputs: Sequence[Axis | None], batch: int
) -> tuple[Tensor, ...]:
    """Every input's map to L1 norm 1 (the authors' current code)."""
    maps = []
    for r, its in zip(step.pull(R), inputs, strict=True):
        norm = sample_sums(r.abs(), its, batch)
        maps.append((r * spread(ratio(torch.ones_like(norm), norm), r.shape, its)).to(r.dtype))
    return tuple(maps)


def none(
    step: Transport, R: Tensor, axis: Axis | None, inputs: Sequence[Axis | None], batch: int
) -> tuple[Tensor, ...]:
    """The bare equation."""
    return step.pull(R)


def surplus(
    step: Transport, R: Tensor, axis: Axis | None, inputs: Sequence[Axis | None], batch: int
) -> tuple[Tensor, ...]:
    """r − Ψ at the non-zero r of a sample, Ψ = (Σ r − Σ R) / (their number): RAP's even spreading of the surplus."""
    maps = step.pull(R)
    alive = [(r != 0).to(r.dtype) for r in maps]
    total = sum(sample_sums(r, its, batch) for r, its in zip(maps, inputs, strict=True))
    number = sum(sample_sums(a, its, batch) for a, its in zip(alive, inputs, strict=True))
    psi = (total - sample_sums(R, axis, batch)) / torch.as_tensor(number).clamp(min=1)
    return tuple(r - a * spread(psi.to(r.dtype), r.shape, its) for r, a, its in zip(maps, alive, inputs, strict=True))


CONSERVATIONS: dict[str, Conserve] = {"sign": sign, "joint": joint, "each": each, "none": none, "surplus": surplus}
