"""Rules: pure functions from an operation's inputs and output to the transport of relevance through it.

A rule returns the :class:`Transport` steps that relevance takes, last first (a norm has two). Each step is a linear map M
from the relevance R of the output to the relevances r = M(R) of the inputs, with its column sums c_j = Σ_i |M_ij|, from which
conservation knows beforehand how much M will hand out.

Letters as in the paper: x inputs, w weights, h output, s = R / (|h| + ε), x⁺ = max(x, 0), x⁻ = min(x, 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from abslrp.propagation.axes import Axis
from abslrp.propagation.kinds import Gate, Linear, LinearMap, Maximum, Norm, Scale, Shift, Smooth, Softmax, Sum

MASKED = 1e-30  # a softmax output below this was masked out: its input says nothing


@dataclass(frozen=True)
class Transport:
    """One linear step of relevance: ``pull`` is R ↦ r per input, ``columns`` the sums c_j = Σ_i |M_ij|."""

    pull: Callable[[Tensor], tuple[Tensor, ...]]
    columns: Callable[[], Tensor]


@dataclass(frozen=True)
class Call:
    """What a rule is told: the inputs that take relevance, which of them are known to be ≥ 0, the output and where its
    batch lies."""

    inputs: Sequence[Tensor]
    nonnegative: Sequence[bool]
    output: Tensor
    axis: Axis | None = None
    batch: int = 1


Steps = list[Transport]


def cleaned(total: Tensor, size: Tensor) -> Tensor:
    """A sum of terms that cancel, with rounding noise taken for the 0 it stands for; ``size`` is the terms' absolute sum.

    Noise must be 0 because conservation would scale it up to the whole relevance where nothing else is left.
    """
    return torch.where(total.abs() <= 8 * torch.finfo(total.dtype).eps * size, 0.0, total)


def diagonal(factor: Tensor, like: Tensor) -> Transport:
    """An elementwise step r = m · R, summed over the places a broadcast input went to."""
    return Transport(lambda R: ((factor * R).sum_to_size(like.shape),), factor.abs)


def signs(h: Tensor) -> Tensor:
    """σ = sign(h) with sign(0) = +1."""
    return torch.where(h < 0, -1.0, 1.0).to(h.dtype)


# ---------------------------------------------------------------- absLRP: the positive contributions over |h|


def linear_positive(op: Linear, call: Call, eps: float) -> Steps:
    """r_i = Σ_j (x_i w_ij)⁺ / (|h_j| + ε) · R_j  =  x⁺ · (W⁺ᵀ s) + x⁻ · (W⁻ᵀ s)  (Vukadin et al. 2024)."""
    h, maps = call.output, op.maps(call.inputs)
    size = h.abs() + eps

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        s = R / size
        return tuple(positive_part(m, x, s, n) for m, x, n in zip(maps, call.inputs, call.nonnegative, strict=True))

    def columns() -> Tensor:
        if len(maps) == 1 and (call.nonnegative[0] or maps[0].nonnegative):
            return maps[0].positive().apply(call.inputs[0].clamp(min=0)) / size
        return _halves(op, call, maps, without_bias(op, h)) / size

    return [Transport(pull, columns)]


def positive_part(m: LinearMap, x: Tensor, s: Tensor, nonnegative: bool) -> Tensor:
    r = m.positive().adjoint(s, x)
    if nonnegative:
        return r * x
    r = r * x.clamp(min=0)
    below = m.negative()
    return r if below is None else r + below.adjoint(s, x) * x.clamp(max=0)


def without_bias(op: Linear, h: Tensor) -> Tensor:
    return h if op.bias is None else h - op.bias.to(h.dtype)


def _halves(op: Linear, call: Call, maps: Sequence[LinearMap], signed: Tensor) -> Tensor:
    """Σ_i (x_i w_ij)⁺ = ½ (Σ_i x_i w_ij + Σ_i |x_i w_ij|), over all inputs; inputs of a product share their terms."""
    pairs = list(zip(maps, call.inputs, strict=True))
    if op.alike:
        pairs = pairs[:1]
    absolutes = [m.absolute().apply(x.abs()) for m, x in pairs]
    halves = [0.5 * cleaned(signed + a, a).clamp(min=0) for a in absolutes]
    return halves[0] * len(maps) if op.alike else torch.stack(halves).sum(0)


def linear_agreeing(op: Linear, call: Call, eps: float) -> Steps:
    """r_i = Σ_j (x_i w_ij σ_j)⁺ / (|h_j| + ε) · R_j  =  ½ [|x| · (|W|ᵀ s) + x · (Wᵀ (σ s))]."""
    h, maps = call.output, op.maps(call.inputs)
    size, sigma = h.abs() + eps, signs(h)

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        s = R / size
        return tuple(
            0.5 * (m.absolute().adjoint(s, x) * x.abs() + m.adjoint(s * sigma, x) * x)
            for m, x in zip(maps, call.inputs, strict=True)
        )

    def columns() -> Tensor:
        return _halves(op, call, maps, sigma * without_bias(op, h)) / size

    return [Transport(pull, columns)]


def _sum(op: Sum, call: Call, eps: float, sigma: Tensor | None) -> Steps:
    h = call.output
    size = h.abs() + eps
    factors = []
    for x, coefficient in zip(call.inputs, op.coefficients, strict=True):
        part = x * coefficient
        factor = (part if sigma is None else part * sigma).clamp(min=0) / size
        # adding 0 is no operation: a mask of zeros must not change the map of what it does not hide
        factors.append(torch.where(part == h, 1.0, factor) if len(call.inputs) == 1 else factor)

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        return tuple((f * R).sum_to_size(x.shape) for f, x in zip(factors, call.inputs, strict=True))

    return [Transport(pull, lambda: factors[0] if len(factors) == 1 else factors[0] + factors[1])]


def sum_positive(op: Sum, call: Call, eps: float) -> Steps:
    """r_a = (a)⁺ / (|h| + ε) · R for each summand a of h, with its sign."""
    return _sum(op, call, eps, None)


def sum_agreeing(op: Sum, call: Call, eps: float) -> Steps:
    """r_a = (a σ)⁺ / (|h| + ε) · R for each summand a of h, with its sign."""
    return _sum(op, call, eps, signs(call.output))


def _smooth(op: Smooth, call: Call, eps: float, sigma: Tensor | float) -> Steps:
    x = call.inputs[0]
    steep = x.abs() * op.slope(x.abs())
    own = sigma * (steep if call.nonnegative[0] else x * op.slope(x))
    slope = torch.nan_to_num(cleaned(steep + own, steep.abs() + own.abs()), posinf=0.0, neginf=0.0)
    return [diagonal(0.5 * slope / (call.output.abs() + eps), x)]


def smooth_positive(op: Smooth, call: Call, eps: float) -> Steps:
    """r = ½ [|x| f′(|x|) + x f′(x)] · R / (|h| + ε), the paper's listing for elementwise f."""
    return _smooth(op, call, eps, 1.0)


def smooth_agreeing(op: Smooth, call: Call, eps: float) -> Steps:
    """r = ½ [|x| f′(|x|) + σ x f′(x)] · R / (|h| + ε)."""
    return _smooth(op, call, eps, signs(call.output))


def softmax_listing(op: Softmax, call: Call, eps: float) -> Steps:
    """r = ½ (x h + |x| hₐ) · R / (|h| + ε) with hₐ = softmax(|x|); maxima and sums are constants, masked places take no part."""
    x, h = call.inputs[0], call.output
    masked = h < MASKED
    x = x.masked_fill(masked, 0)
    absolute = torch.softmax(x.abs().masked_fill(masked, -torch.inf), op.dim)
    own, other = x * h, x.abs() * absolute
    factor = 0.5 * cleaned(own + other, own.abs() + other) / (h.abs() + eps)
    return [diagonal(torch.nan_to_num(factor.masked_fill(masked, 0)), x)]


def _norm(op: Norm, call: Call, eps: float, agreeing: bool) -> Steps:
    x = call.inputs[0]
    mean, std = op.statistics(x)
    normed = (x if mean is None else x - mean) / std
    steps = []
    if op.weight is not None or op.bias is not None:
        part = normed if op.weight is None else normed * op.weight.to(x.dtype)
        steps.append(diagonal(_share(part, call.output, eps, agreeing), x))
    if mean is not None:
        steps.append(diagonal(_share(x / std, normed, eps, agreeing), x))
    return steps or identity(op, call)


def _share(part: Tensor, h: Tensor, eps: float, agreeing: bool) -> Tensor:
    return (part * signs(h) if agreeing else part).clamp(min=0) / (h.abs() + eps)


def norm_positive(op: Norm, call: Call, eps: float) -> Steps:
    """Statistics are constants; two affine steps in a row: x̂ = (x − μ)/σ, then x̂ · w + b."""
    return _norm(op, call, eps, False)


def norm_agreeing(op: Norm, call: Call, eps: float) -> Steps:
    """As :func:`norm_positive`, with the contributions that agree with the output of each step."""
    return _norm(op, call, eps, True)


# ---------------------------------------------------------------- steps that many rulesets share


def identity(op: object, call: Call, eps: float = 0.0) -> Steps:
    """r = R."""
    return [diagonal(torch.ones_like(call.output), call.inputs[0])]


def scale_identity(op: Scale, call: Call, eps: float = 0.0) -> Steps:
    """r = R where the constant is not 0, for h = x · constant; a constant 0 is a mask and takes the relevance away."""
    kept = torch.as_tensor(op.constant, device=call.output.device) != 0
    return [diagonal(kept.to(call.output.dtype).expand(call.output.shape), call.inputs[0])]


def gate_active(op: Gate, call: Call, eps: float = 0.0) -> Steps:
    """r = R where the unit is active, 0 where it is not."""
    return [diagonal(op.active(call.inputs[0]).to(call.output.dtype), call.inputs[0])]


def maximum_winner(op: Maximum, call: Call, eps: float = 0.0) -> Steps:
    """All relevance to the element that is the maximum."""
    return [Transport(lambda R: op.winners(R, call.inputs), lambda: torch.ones_like(call.output))]


def maximum_weighted(op: Maximum, call: Call, eps: float = 0.0) -> Steps:
    """To the winner, times its activation: r = |h| · R there (the authors' code for VGG)."""
    size = call.output.abs()
    return [Transport(lambda R: op.winners(R * size, call.inputs), lambda: size)]


def shift_identity(op: Shift, call: Call, eps: float = 0.0) -> Steps:
    """r = R: what is taken from all classes alike is evidence for none."""
    return identity(op, call)
