"""Rules: pure functions from an operation's inputs and output to the transport of relevance through it.

A rule returns the :class:`Transport` steps that relevance takes, last first (a norm has two). Each step is a linear map M
from the relevance R of the output to the relevances r = M(R) of the inputs, with its column sums c_j = Σ_i |M_ij|, from which
conservation knows beforehand how much M will hand out.

Letters as in the paper: x inputs, w weights, h output, s = R / (|h| + ε), x⁺ = max(x, 0), x⁻ = min(x, 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from abslrp.propagation import kernels
from abslrp.propagation.axes import Axis
from abslrp.propagation.balance import Elementwise, half_sum
from abslrp.propagation.kernels import Recipe
from abslrp.propagation.kinds import Gate, Linear, LinearMap, Maximum, Norm, Scale, Shift, Smooth, Softmax, Sum, summed

MASKED = 1e-30  # a softmax output below this was masked out: its input says nothing


@dataclass(slots=True, eq=False)
class Transport:
    """One linear step of relevance: ``pull`` is R ↦ r per input, ``columns`` the sums c_j = Σ_i |M_ij|.

    ``elementwise`` is the same in a form that conservation can take fast, where there is one; ``even`` tells that all c_j
    are 1, so that there is nothing to conserve.
    """

    pull: Callable[[Tensor], tuple[Tensor, ...]]
    columns: Callable[[], Tensor]
    elementwise: Elementwise | None = None
    even: bool = False


class Call:
    """What a rule is told: the inputs that take relevance, which of them are known to be ≥ 0, the output and where its
    batch lies. Where the output was not kept it is made again from the inputs."""

    def __init__(
        self,
        inputs: Sequence[Tensor],
        nonnegative: Sequence[bool],
        output: Tensor | None,
        axis: Axis | None,
        batch: int,
        shape: Sequence[int],
        kind: Any,
    ) -> None:
        self.inputs, self.nonnegative, self.axis, self.batch, self.shape = inputs, nonnegative, axis, batch, shape
        self._output, self._kind = output, kind

    @property
    def output(self) -> Tensor:
        if self._output is None:
            self._output = self._kind.value(self.inputs)
        return self._output


Steps = list[Transport]
Rule = Callable[..., Steps]


def where_positive(condition: Tensor, values: Tensor) -> Tensor:
    """The values where the condition is above 0, and 0 elsewhere: the backward of a rectifier, many times faster than a choice."""
    return torch.ops.aten.threshold_backward(values, condition, 0)


@cache
def _noise(dtype: torch.dtype) -> float:
    """What rounding may leave of a sum of absolute size 1."""
    return 8 * torch.finfo(dtype).eps


def cleaned(total: Tensor, size: Tensor) -> Tensor:
    """A sum of terms that cancel, with rounding noise taken for the 0 it stands for; ``size`` is the terms' absolute sum.

    Noise must be 0 because conservation would scale it up to the whole relevance where nothing else is left.
    """
    return where_positive(total.abs().sub_(size * _noise(total.dtype)), total)


def diagonal(factor: Tensor, like: Tensor) -> Transport:
    """An elementwise step r = m · R, summed over the places a broadcast input went to."""
    return Transport(lambda R: (summed(factor * R, like.shape),), factor.abs)


def local_factors(
    shape: Sequence[int],
    operands: tuple[Tensor, ...],
    factors: Callable[..., tuple[Tensor, ...]],
    likes: Sequence[Tensor],
    recipe: Recipe | None = None,
) -> Transport:
    """An elementwise step r_i = f_i · R with all f_i ≥ 0, functions of operands that broadcast to the output's shape."""

    def local(results: Sequence[Tensor], R: Tensor, *parts: Tensor) -> Tensor:
        for result, f in zip(results, factors(*parts), strict=True):
            torch.mul(f, R, out=result)
        return results[0] if len(results) == 1 else results[0] + results[1]

    def finish(results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(summed(r, like.shape) for r, like in zip(results, likes, strict=True))

    def columns() -> Tensor:
        found = factors(*operands)
        return (found[0] if len(found) == 1 else found[0] + found[1]).expand(shape)

    return Transport(
        lambda R: finish(tuple(f * R for f in factors(*operands))),
        columns,
        Elementwise(lambda: operands, local, finish, len(likes), recipe=recipe),
    )


def signs(h: Tensor, size: float = 1.0) -> Tensor:
    """σ = sign(h) with sign(0) = +1, times a size."""
    return torch.copysign(torch.full((), size, dtype=h.dtype, device="cpu"), h + 0.0)  # −0 + 0 = 0


def turned(t: Tensor, h: Tensor) -> Tensor:
    """t · σ with σ = sign(h), sign(0) = +1."""
    return torch.where(h < 0, -t, t) if h.is_cuda else t * signs(h)  # fewer kernels there, less memory traffic here


# ---------------------------------------------------------------- absLRP: the positive contributions over |h|


def linear_positive(op: Linear, call: Call, eps: float) -> Steps:
    """r_i = Σ_j (x_i w_ij)⁺ / (|h_j| + ε) · R_j  =  x⁺ · (W⁺ᵀ s) + x⁻ · (W⁻ᵀ s)  (Vukadin et al. 2024)."""
    maps = op.maps(call.inputs)
    x, known = call.inputs[0], call.nonnegative[0]
    if len(maps) == 1 and (known or maps[0].nonnegative):
        above = maps[0].positive()
        x = x if known else x.clamp(min=0)
        total = lambda: above.apply(x)  # noqa: E731
        hand = lambda s: (times(above, above.adjoint(s[0], x), x),)  # noqa: E731
        return [shared_out(call.output, eps, lambda: (total(),), lambda h, t: t, hand, Recipe("shares", eps))]
    return [_halved(op, call, maps, eps, agreeing=False)]


def shared_out(
    h: Tensor,
    eps: float,
    operands: Callable[[], tuple[Tensor, ...]],
    total: Callable[..., Tensor],
    hand: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    recipe: Recipe | None = None,
) -> Transport:
    """Shares s = R / (|h| + ε), handed to the inputs by a linear map that gives out c = total(h, *operands) / (|h| + ε)."""

    def local(results: Sequence[Tensor], R: Tensor, h: Tensor, *parts: Tensor) -> Tensor:
        s = torch.div(R, h.abs().add_(eps), out=results[0])
        return s * total(h, *parts)

    return Transport(
        lambda R: hand((R / h.abs().add_(eps),)),
        lambda: total(h, *operands()) / (h.abs() + eps),
        Elementwise(lambda: (h, *operands()), local, hand, recipe=recipe),
    )


def _halved(op: Linear, call: Call, maps: Sequence[LinearMap], eps: float, agreeing: bool) -> Transport:
    """Shares whose total is Σ_i (x_i w_ij σ_j)⁺ = ½ (σ_j Σ_i x_i w_ij + Σ_i |x_i w_ij|), σ = 1 unless ``agreeing``.

    Only there r is taken as such halves too: with σ = 1 they would leave noise where nothing is positive.
    """
    bias = () if op.bias is None else (op.bias.to(call.output.dtype),)
    sizes = [m.absolute() for m in maps]
    pairs = list(zip(sizes, call.inputs, strict=True))[: 1 if op.alike else None]
    weight = 0.5 * len(maps) / len(pairs)

    def absolutes() -> tuple[Tensor, ...]:
        return (*bias, *(m.apply(x.abs()) for m, x in pairs))

    def total(h: Tensor, *parts: Tensor) -> Tensor:
        signed = h - parts[0] if bias else h
        signed = turned(signed, h) if agreeing else signed
        found = [_above_noise(signed + a, a) for a in parts[len(bias) :]]
        return (found[0] if len(found) == 1 else found[0] + found[1]).mul_(weight)

    def hand(shares: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (s,) = shares
        if not agreeing:
            return tuple(positive_part(m, x, s, n) for m, x, n in zip(maps, call.inputs, call.nonnegative, strict=True))
        signed = turned(s, call.output)
        return tuple(
            half_sum(size.adjoint(s, x), m.adjoint(signed, x), x, size.fresh)
            for m, size, x in zip(maps, sizes, call.inputs, strict=True)
        )

    recipe = Recipe("halves", eps, agreeing, bool(bias), first=weight, slots=(0, 2, 1) if bias else (0, 1))
    return shared_out(call.output, eps, absolutes, total, hand, recipe if len(pairs) == 1 else None)


def _above_noise(total: Tensor, size: Tensor) -> Tensor:
    """A sum that cannot be negative, with what rounding left of 0 taken for 0; see :func:`cleaned`."""
    return where_positive(total - size * _noise(total.dtype), total)


def positive_part(m: LinearMap, x: Tensor, s: Tensor, nonnegative: bool) -> Tensor:
    if nonnegative or m.nonnegative:
        return times(m, m.positive().adjoint(s, x), x if nonnegative else x.clamp(min=0))
    above, below = m.adjoints(s, x)
    assert below is not None
    if kernels.usable(x) and above.dtype == x.dtype:
        return kernels.chosen(x, above, below)
    above, below = above.reshape(x.shape), below.reshape(x.shape)
    return where_positive(x, above).add_(where_positive(-x, below)).mul_(x)


def times(m: LinearMap, r: Tensor, x: Tensor) -> Tensor:
    """r · x, in place where r is memory of our own."""
    return r.mul_(x) if m.fresh else r * x


def without_bias(op: Linear, h: Tensor) -> Tensor:
    return h if op.bias is None else h - op.bias.to(h.dtype)


def linear_agreeing(op: Linear, call: Call, eps: float) -> Steps:
    """r_i = Σ_j (x_i w_ij σ_j)⁺ / (|h_j| + ε) · R_j  =  ½ [|x| · (|W|ᵀ s) + x · (Wᵀ (σ s))]."""
    return [_halved(op, call, op.maps(call.inputs), eps, agreeing=True)]


def _sum(op: Sum, call: Call, eps: float, agreeing: bool) -> Steps:
    if len(call.inputs) == 1:
        c = op.coefficients[0]

        def factor(x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
            # adding 0 is no operation: a mask of zeros must not change the map of what it does not hide
            part = x * c
            return (torch.where(part == h, 1.0, _share(part, h, eps, agreeing)),)

        return [local_factors(call.shape, (call.inputs[0], call.output), factor, call.inputs)]
    first, second = op.coefficients

    def factors(a: Tensor, b: Tensor, *h: Tensor) -> tuple[Tensor, ...]:
        parts = (a if first == 1 else a * first, b if second == 1 else b * second)
        total = h[0] if h else parts[0] + parts[1]
        return tuple(_share(part, total, eps, agreeing) for part in parts)

    outputs = () if op.complete else (call.output,)
    recipe = Recipe("sum", eps, agreeing, first=first, second=second) if op.complete else None
    return [local_factors(call.shape, (*call.inputs, *outputs), factors, call.inputs, recipe)]


def sum_positive(op: Sum, call: Call, eps: float) -> Steps:
    """r_a = (a)⁺ / (|h| + ε) · R for each summand a of h, with its sign."""
    return _sum(op, call, eps, False)


def sum_agreeing(op: Sum, call: Call, eps: float) -> Steps:
    """r_a = (a σ)⁺ / (|h| + ε) · R for each summand a of h, with its sign."""
    return _sum(op, call, eps, True)


def _smooth(op: Smooth, call: Call, eps: float, agreeing: bool) -> Steps:
    known = call.nonnegative[0]

    def factor(x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        if op.gelu and kernels.usable(x):
            return (kernels.gelu_factor(x, h, eps, agreeing),)
        size = x.abs()
        steep = op.slope(size) * size
        own = steep if known else op.slope(x) * x
        own = turned(own, h) if agreeing else own
        slope = torch.nan_to_num(cleaned(steep + own, steep.abs() + own.abs()), posinf=0.0, neginf=0.0)
        return (slope.div_(h.abs().add_(eps)).mul_(0.5),)

    return [_signed_factor(call, factor)]


def _signed_factor(call: Call, factor: Callable[..., tuple[Tensor, ...]], rows: bool = False) -> Transport:
    """An elementwise step whose factor of (input, output) may be negative here and there."""
    x, h = call.inputs[0], call.output

    def local(results: Sequence[Tensor], R: Tensor, *parts: Tensor) -> Tensor:
        (f,) = factor(*parts)
        results[0].copy_(R)
        results[1].copy_(f)
        return R * f.abs()

    def finish(results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        product = results[0] * results[1] if len(results) == 2 else results[0]
        return (summed(product, x.shape),)

    return Transport(
        lambda R: (summed(factor(x, h)[0] * R, x.shape),),
        lambda: factor(x, h)[0].abs(),
        Elementwise(
            lambda: (x, h), local, finish, 2, rows, 1, Recipe("factor", slots=(0,)), lambda *parts: factor(*parts)[0]
        ),
    )


def smooth_positive(op: Smooth, call: Call, eps: float) -> Steps:
    """r = ½ [|x| f′(|x|) + x f′(x)] · R / (|h| + ε), the paper's listing for elementwise f."""
    return _smooth(op, call, eps, False)


def smooth_agreeing(op: Smooth, call: Call, eps: float) -> Steps:
    """r = ½ [|x| f′(|x|) + σ x f′(x)] · R / (|h| + ε)."""
    return _smooth(op, call, eps, True)


def softmax_listing(op: Softmax, call: Call, eps: float) -> Steps:
    """r = ½ (x h + |x| hₐ) · R / (|h| + ε) with hₐ = softmax(|x|); maxima and sums are constants, masked places take no part."""
    last = op.dim in (-1, call.output.ndim - 1)

    def factor(x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        if last and kernels.usable(x) and kernels.fits_a_row(x):
            return (kernels.softmax_factor(x, h, eps, MASKED),)
        masked = h < MASKED
        x = x.masked_fill(masked, 0)
        size = x.abs()
        absolute = torch.softmax(size.masked_fill(masked, -torch.inf), -1 if last else op.dim)
        own, other = x * h, absolute * size
        found = cleaned(own + other, own.abs() + other).div_(h + eps).mul_(0.5)
        return (torch.nan_to_num(found.masked_fill_(masked, 0)),)

    if last:
        return [_signed_factor(call, factor, rows=True)]
    return [diagonal(factor(call.inputs[0], call.output)[0], call.inputs[0])]


def _norm(op: Norm, call: Call, eps: float, agreeing: bool) -> Steps:
    """Both steps as one: what they do is elementwise, and what conservation does twice it can do once."""
    x = call.inputs[0]
    mean, variance = op.moments(x)
    weighted = op.weight is not None or op.bias is not None
    if not weighted and mean is None:
        return identity(op, call)
    weight = () if op.weight is None else (op.weight.to(x.dtype),)
    bias = () if op.bias is None else (op.bias.to(x.dtype),)
    centred = () if mean is None else (mean,)

    def factor(x: Tensor, variance: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        std = (variance + op.eps).sqrt()
        offset = x - rest[0] if centred else x
        found = None
        if weighted:
            part = offset * (rest[len(centred)] / std if weight else 1 / std)
            found = _share(part, part + rest[-1] if bias else part, eps, agreeing)
        if centred:
            own = (turned(x, offset) if agreeing else x).clamp(min=0).div_(offset.abs().add_(std * eps))
            found = own if found is None else found.mul_(own)
        assert found is not None
        return (found,)

    operands = (x, variance, *centred, *weight, *bias)
    slots = (0, 1, 2 if centred else -1, 1 + len(centred) + 1 if weight else -1, len(operands) - 1 if bias else -1)
    recipe = Recipe("norm", eps, agreeing, bool(bias), bool(centred), weighted, second=op.eps, slots=slots)
    return [local_factors(x.shape, operands, factor, (x,), recipe)]


def _share(part: Tensor, h: Tensor, eps: float, agreeing: bool) -> Tensor:
    return (turned(part, h) if agreeing else part).clamp(min=0) / h.abs().add_(eps)


def norm_positive(op: Norm, call: Call, eps: float) -> Steps:
    """Statistics are constants; two affine steps in a row: x̂ = (x − μ)/σ, then x̂ · w + b."""
    return _norm(op, call, eps, False)


def norm_agreeing(op: Norm, call: Call, eps: float) -> Steps:
    """As :func:`norm_positive`, with the contributions that agree with the output of each step."""
    return _norm(op, call, eps, True)


# ---------------------------------------------------------------- steps that many rulesets share


def even(pull: Callable[[Tensor], tuple[Tensor, ...]]) -> Transport:
    """A step that hands out all that it gets, everywhere."""
    return Transport(pull, lambda: torch.ones((), device="cpu"), even=True)


def identity(op: object, call: Call, eps: float = 0.0) -> Steps:
    """r = R."""
    x = call.inputs[0]
    return [even(lambda R: (summed(R, x.shape),))]


def scale_identity(op: Scale, call: Call, eps: float = 0.0) -> Steps:
    """r = R where the constant is not 0, for h = x · constant; a constant 0 is a mask and takes the relevance away."""
    if not isinstance(op.constant, Tensor) and op.constant:
        return identity(op, call)
    x = call.inputs[0]
    kept = (op.constant if isinstance(op.constant, Tensor) else torch.zeros((), device="cpu")) != 0
    return [diagonal(kept.to(x.dtype).expand(call.shape), x)]


def gate_active(op: Gate, call: Call, eps: float = 0.0) -> Steps:
    """r = R where the unit is active, 0 where it is not."""
    return [local_factors(call.shape, (call.inputs[0],), lambda x: (op.active(x).to(x.dtype),), call.inputs)]


def maximum_winner(op: Maximum, call: Call, eps: float = 0.0) -> Steps:
    """All relevance to the element that is the maximum."""
    return [even(lambda R: op.winners(R, call.inputs))]


def maximum_weighted(op: Maximum, call: Call, eps: float = 0.0) -> Steps:
    """To the winner, times its activation: r = |h| · R there (the authors' code for VGG)."""
    size = call.output.abs()
    return [Transport(lambda R: op.winners(R * size, call.inputs), lambda: size)]


def shift_identity(op: Shift, call: Call, eps: float = 0.0) -> Steps:
    """r = R: what is taken from all classes alike is evidence for none."""
    return identity(op, call)


# Rules by which an input that is 0 gets no relevance. Where all who use a value follow one of them, units that are silent have
# no relevance to lose, and a gate need not look.
PROPORTIONAL: set[Rule] = {
    linear_positive,
    linear_agreeing,
    sum_positive,
    sum_agreeing,
    smooth_positive,
    smooth_agreeing,
    softmax_listing,
    norm_positive,
    norm_agreeing,
}
# Rules that give an element's relevance to elements that are 0 only if it is 0 itself.
PASSING: set[Rule] = {scale_identity, gate_active, maximum_winner, maximum_weighted}
