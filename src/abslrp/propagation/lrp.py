"""The older rules on the same engine: LRP-ε, αβ, γ, RAP, AttnLRP, guided backpropagation, deconvolution, DeepLIFT.

Letters: z_ij = x_i w_ij contributions, b bias, h = Σ_i z_ij + b output, z⁺ and z⁻ positive and negative parts (z⁻ ≤ 0). Where an
operation has two inputs, each the other's weight, each gets half, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from abslrp.propagation import rules
from abslrp.propagation.axes import Axis, BatchLost, sample_sums, spread
from abslrp.propagation.kinds import (
    Gate,
    Linear,
    LinearMap,
    Maximum,
    Norm,
    Smooth,
    Softmax,
    Sum,
    summed,
    vector_jacobian,
)
from abslrp.propagation.rules import (
    MASKED,
    Call,
    Steps,
    Transport,
    cleaned,
    diagonal,
    identity,
    positive_part,
    signs,
    times,
    without_bias,
)

_LEAST = 1e-30  # sums below this are made of numbers too small to be precise, and what is divided by them may overflow


def stabilised(h: Tensor, eps: float, call: Call | None = None) -> Tensor:
    """h + ε sign(h) with sign(0) = +1; with a ``call`` ε is a share of the root mean square of h over each sample."""
    if call is None:
        return h + signs(h, eps)
    if call.batch > 1 and call.axis is None:
        raise BatchLost("relative=True needs to tell the samples of a batch apart: pass one sample at a time.")
    squares = sample_sums(h.double().square(), call.axis, call.batch) * (call.batch / h.numel())
    size = (eps * squares.sqrt()).clamp(min=_LEAST)  # an output that is 0 everywhere has no size
    return h + spread(size.to(h.dtype), h.shape, call.axis) * signs(h)


def _each(op: Linear, call: Call) -> list[tuple[LinearMap, Tensor, bool]]:
    return list(zip(op.maps(call.inputs), call.inputs, call.nonnegative, strict=True))


def _absolute(pairs: Sequence[tuple[LinearMap, Tensor, bool]]) -> Tensor:
    """Σ_i |z_ij|."""
    m, x, _ = pairs[0]
    return m.absolute().apply(x.abs())


def _above(signed: Tensor, absolute: Tensor) -> Tensor:
    """Σ_i z⁺_ij."""
    return cleaned(absolute + signed, absolute).clamp_(min=0).mul_(0.5)


def _below(signed: Tensor, absolute: Tensor) -> Tensor:
    """Σ_i z⁻_ij."""
    return cleaned(signed - absolute, absolute).clamp_(max=0).mul_(0.5)


def _sums(op: Linear, call: Call, pairs: Sequence[tuple[LinearMap, Tensor, bool]]) -> tuple[Tensor, Tensor]:
    """Σ_i z⁺_ij and Σ_i z⁻_ij."""
    signed, absolute = without_bias(op, call.output), _absolute(pairs)
    return _above(signed, absolute), _below(signed, absolute)


def _negative_part(m: LinearMap, x: Tensor, s: Tensor, nonnegative: bool) -> Tensor:
    """Σ_j z⁻_ij s_j = x⁺ · (W⁻ᵀ s) + x⁻ · (W⁺ᵀ s)."""
    below = m.negative()
    r = torch.zeros_like(x) if below is None else below.adjoint(s, x) * x.clamp(min=0)
    return r if nonnegative else r + m.positive().adjoint(s, x) * x.clamp(max=0)


def _over(numerator: Tensor, denominator: Tensor) -> Tensor:
    nothing = denominator.abs() <= _LEAST
    return torch.where(nothing, 0.0, numerator / denominator.masked_fill(nothing, 1.0))


# ---------------------------------------------------------------- LRP-ε (Bach et al. 2015)


def linear_epsilon(op: Linear, call: Call, eps: float, relative: bool = False) -> Steps:
    """r_i = Σ_j z_ij / (h_j + ε sign h_j) · R_j, the bias in the denominator."""
    pairs, h = _each(op, call), call.output
    size = stabilised(h if len(pairs) == 1 else len(pairs) * h, eps, call if relative else None)

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        s = R / size
        return tuple(times(m, m.adjoint(s, x), x) for m, x, _ in pairs)

    return [
        Transport(
            pull,
            lambda: (len(pairs) * without_bias(op, h) / size).abs(),
        )
    ]


def sum_epsilon(op: Sum, call: Call, eps: float, relative: bool = False) -> Steps:
    """r_a = a / (h + ε sign h) · R for each summand a."""
    size = stabilised(call.output, eps, call if relative else None)
    return _parts([part / size for part in op.parts(call.inputs)], call)


def _parts(factors: list[Tensor], call: Call) -> Steps:
    def pull(R: Tensor) -> tuple[Tensor, ...]:
        return tuple(summed(f * R, x.shape) for f, x in zip(factors, call.inputs, strict=True))

    return [Transport(pull, lambda: sum((f.abs() for f in factors[1:]), factors[0].abs()))]


def _gain(op: Norm, std: Tensor) -> Tensor:
    """g = w/σ."""
    return 1 / std if op.weight is None else op.weight.to(std.dtype) / std


def _one_step(op: Norm, x: Tensor) -> tuple[Tensor, Tensor]:
    """A norm as one affine step: x · g with g = w/σ, and what is added to it."""
    mean, std = op.statistics(x)
    gain = _gain(op, std)
    added = torch.zeros_like(x) if mean is None else -mean * gain
    return x * gain, added if op.bias is None else added + op.bias.to(x.dtype)


def norm_epsilon(op: Norm, call: Call, eps: float, relative: bool = False) -> Steps:
    """The ε rule for x · w/σ + (b − μ w/σ), statistics constant."""
    x = call.inputs[0]
    statistics = op.statistics(x)
    h = op.value(call.inputs, statistics)
    return [diagonal((x * _gain(op, statistics[1])).div_(stabilised(h, eps, call if relative else None)), x)]


# ---------------------------------------------------------------- LRP-αβ (Bach et al. 2015)


def linear_alphabeta(op: Linear, call: Call, eps: float, alpha: float, beta: float) -> Steps:
    """r_i = Σ_j (α z⁺_ij / (Σ_k z⁺_kj + b⁺_j) − β z⁻_ij / (Σ_k z⁻_kj + b⁻_j)) · R_j."""
    pairs = _each(op, call)
    if all(m.nonnegative and nonnegative for m, _, nonnegative in pairs):
        alpha, beta = 1.0, 0.0  # an average of what is ≥ 0 has no negative part that could take back what α hands out
    signed, absolute = without_bias(op, call.output), _absolute(pairs)
    bias = None if op.bias is None else op.bias.to(signed.dtype)
    above = _above(signed, absolute)
    up = (above if bias is None else above + bias.clamp(min=0)) + eps
    below, down = above, up
    if beta:
        below = _below(signed, absolute)
        down = (below if bias is None else below + bias.clamp(max=0)) - eps
    share = 1 / len(pairs)

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        maps = []
        for m, x, nonnegative in pairs:
            r = positive_part(m, x, _part(R, alpha * share) / up, nonnegative)
            maps.append(r - _negative_part(m, x, _part(R, beta * share) / down, nonnegative) if beta else r)
        return tuple(maps)

    return [Transport(pull, lambda: alpha * above / up + (beta * below / down if beta else 0))]


def _part(R: Tensor, share: float) -> Tensor:
    return R if share == 1 else R * share


def _total(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])


def _alphabeta(parts: Sequence[Tensor], rest: Tensor | None, eps: float, alpha: float, beta: float) -> list[Tensor]:
    others = () if rest is None else (rest,)
    above = [p.clamp(min=0) for p in parts]
    up = _total([*above, *(p.clamp(min=0) for p in others)]) + eps
    found = [_part(p, alpha) / up for p in above]
    if not beta:
        return found
    below = [p.clamp(max=0) for p in parts]
    down = _total([*below, *(p.clamp(max=0) for p in others)]) - eps
    return [f - _part(p, beta) / down for f, p in zip(found, below, strict=True)]


def sum_alphabeta(op: Sum, call: Call, eps: float, alpha: float, beta: float) -> Steps:
    """The αβ rule for the summands; constants are a bias."""
    parts = op.parts(call.inputs)
    return _parts(_alphabeta(parts, _constants(op, call, parts), eps, alpha, beta), call)


def _constants(op: Sum, call: Call, parts: Sequence[Tensor]) -> Tensor | None:
    """What a sum adds to its parts, None where that is nothing."""
    if op.complete:
        return None
    total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return cleaned(call.output - total, call.output.abs() + total.abs())


def norm_alphabeta(op: Norm, call: Call, eps: float, alpha: float, beta: float) -> Steps:
    """The αβ rule for a norm as one affine step."""
    part, added = _one_step(op, call.inputs[0])
    return [diagonal(_alphabeta([part], added, eps, alpha, beta)[0], call.inputs[0])]


# ---------------------------------------------------------------- LRP-γ (Montavon et al. 2019), for inputs of both signs


def linear_gamma(op: Linear, call: Call, eps: float, gamma: float) -> Steps:
    """z_ij + γ z⁺_ij where h_j > 0, z_ij + γ z⁻_ij where h_j < 0, over their own sum with the bias alike (Andéol et al. 2022)."""
    pairs, h = _each(op, call), call.output
    above, below = _sums(op, call, pairs)
    bias = torch.zeros((), dtype=h.dtype, device=h.device) if op.bias is None else op.bias.to(h.dtype)
    plus, minus = h > 0, h < 0
    extra = torch.where(plus, above + bias.clamp(min=0), below + bias.clamp(max=0))
    size = len(pairs) * stabilised(h + gamma * extra, eps)

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        s = (R / size).masked_fill(h == 0, 0)
        return tuple(
            m.adjoint(s, x) * x + gamma * (positive_part(m, x, s * plus, n) + _negative_part(m, x, s * minus, n))
            for m, x, n in pairs
        )

    def columns() -> Tensor:
        handed = without_bias(op, h) + gamma * torch.where(plus, above, below)
        return (len(pairs) * handed / size).abs()

    return [Transport(pull, columns)]


# ---------------------------------------------------------------- RAP (Nam et al. 2019), the paper's equation


def linear_rap(op: Linear, call: Call, eps: float) -> Steps:
    """r_i = Σ_j (α_j z⁺_ij / Σ z⁺ + β_j z⁻_ij / Σ z⁻) · R_j = Σ_j z_ij / Σ_k |z_kj| · R_j, the bias being one of the k."""
    pairs = _each(op, call)
    above, below = _sums(op, call, pairs)
    size = above - below if op.bias is None else above - below + op.bias.to(above.dtype).abs()

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        s = _over(R, len(pairs) * size)
        return tuple(m.adjoint(s, x) * x for m, x, _ in pairs)

    return [Transport(pull, lambda: _over(above - below, size))]


def sum_rap(op: Sum, call: Call, eps: float) -> Steps:
    """r_a = a / Σ|a| · R for each summand; constants count in the sum."""
    parts = op.parts(call.inputs)
    rest = _constants(op, call, parts)
    size = _total([p.abs() for p in (*parts, *(() if rest is None else (rest,)))])
    return _parts([_over(p, size) for p in parts], call)


def norm_rap(op: Norm, call: Call, eps: float) -> Steps:
    """The same for a norm as one affine step."""
    part, added = _one_step(op, call.inputs[0])
    return [diagonal(_over(part, part.abs() + added.abs()), call.inputs[0])]


# ---------------------------------------------------------------- AttnLRP (Achtibat et al. 2024)


def softmax_attnlrp(op: Softmax, call: Call, eps: float) -> Steps:
    """r_i = x_i (R_i − h_i Σ_j R_j), the Taylor expansion of softmax at x."""
    h = call.output
    x = call.inputs[0].masked_fill(h < MASKED, 0)
    return [Transport(lambda R: (x * (R - h * R.sum(op.dim, keepdim=True)),), x.abs)]


def norm_attnlrp(op: Norm, call: Call, eps: float) -> Steps:
    """r = R for norms of the sample's own statistics; the ε rule where they are constants of training, as in BatchNorm."""
    return norm_epsilon(op, call, eps) if op.running else identity(op, call)


# ---------------------------------------------------------------- gradients with another rule at rectifiers


def gate_guided(op: Gate, call: Call, eps: float = 0.0) -> Steps:
    """The gradient of the rectifier, of positive R only (Springenberg et al. 2014)."""
    x = call.inputs[0]
    if op.rectifier:
        back = torch.ops.aten.threshold_backward
        return [Transport(lambda R: (back(R.clamp(min=0), x, 0),), lambda: torch.ones((), device="cpu"))]
    return [
        Transport(lambda R: (vector_jacobian(op.function, x, R.clamp(min=0)),), lambda: torch.ones((), device="cpu"))
    ]


def gate_deconvolution(op: Gate, call: Call, eps: float = 0.0) -> Steps:
    """The rectifier on R itself, whatever the input was (Zeiler and Fergus 2014)."""
    return [Transport(lambda R: (R.clamp(min=0),), lambda: torch.ones((), device="cpu"))]


# ---------------------------------------------------------------- DeepLIFT, rescale rule (Shrikumar et al. 2017)


def _halves(t: Tensor, axis: Axis | None, batch: int) -> tuple[Tensor, Tensor]:
    """The inputs' and the baselines' half of a batch that holds both, one after the other."""
    place = axis or Axis(0, 1)
    folded = t.unflatten(place.dim, (-1, batch, place.inner))
    first, second = folded.chunk(2, place.dim + 1)
    return first, second


def _both(t: Tensor, like: Tensor, place: Axis | None) -> Tensor:
    return torch.cat([t, t], (place or Axis(0, 1)).dim + 1).reshape(like.shape)


def rescale(op: Gate | Smooth | Softmax, call: Call, eps: float = 1e-10) -> Steps:
    """The multiplier Δh/Δx between input and baseline, and the gradient where Δx is nothing."""
    x, h = call.inputs[0], call.output
    (a, b), (p, q) = (_halves(t, call.axis, call.batch) for t in (x, h))
    near = (a - b).abs() < eps
    ratio = _both((p - q) / (a - b).masked_fill(near, 1), x, call.axis)
    close = _both(near, x, call.axis)

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        function = op.function if not isinstance(op, Softmax) else lambda v: torch.softmax(v, op.dim)
        return (torch.where(close, vector_jacobian(function, x, R), ratio * R),)

    return [Transport(pull, lambda: ratio.abs())]


def rescale_maximum(op: Maximum, call: Call, eps: float = 1e-10) -> Steps:
    """Of a maximum: what input and baseline add above each other goes to their own winners, over Δx."""
    if len(call.inputs) > 1:
        return [Transport(lambda R: op.winners(R, call.inputs), lambda: torch.ones((), device="cpu"))]
    x, h = call.inputs[0], call.output
    (a, b), (p, q) = (_halves(t, call.axis, call.batch) for t in (x, h))
    top = torch.maximum(p, q)
    rise = torch.cat([top - q, p - top], (call.axis or Axis(0, 1)).dim + 1).reshape(h.shape)
    near = (a - b).abs() < eps

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        first, second = _halves(op.winners(R * rise, call.inputs)[0], call.axis, call.batch)
        own, _ = _halves(op.winners(R, call.inputs)[0], call.axis, call.batch)
        return (_both(torch.where(near, own, (first + second) / (a - b).masked_fill(near, 1)), x, call.axis),)

    return [Transport(pull, lambda: torch.ones((), device="cpu"))]


RECTIFIED: set[rules.Rule] = {gate_guided, gate_deconvolution}
"""Rules that know a rectifier by its output."""

rules.PROPORTIONAL.update(
    (
        linear_epsilon,
        sum_epsilon,
        norm_epsilon,
        linear_alphabeta,
        sum_alphabeta,
        norm_alphabeta,
        linear_gamma,
        linear_rap,
        sum_rap,
        norm_rap,
        softmax_attnlrp,
    )
)
