"""The kinds of operation that rules know, with exactly what a rule needs of each.

A kind holds no data of the sample: inputs and output are handed to the rule beside it, so that one object describes the
operation and the engine alone decides what is kept, cloned or freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

Keeps = Literal["all", "inputs", "nothing"]
"""What a rule needs to see again: inputs and output, only the inputs, from which the output is known, or neither."""


def vector_jacobian(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    """gᵀ ∂f/∂x by torch's own backward of one function, for maps torch has no public adjoint of."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        value = function(leaf)
    return torch.autograd.grad(value, leaf, g.to(value.dtype))[0]


def summed(t: Tensor, shape: Sequence[int]) -> Tensor:
    """The sums over the places that a broadcast input went to."""
    return t if t.shape == shape else t.sum_to_size(shape)


Part = Callable[..., Tensor]
"""(weight, room or None) ↦ a part of the weight, in that room if there is one."""


def _positive(w: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.clamp(w, min=0, out=out)


def _negative(w: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.clamp(w, max=0, out=out)


def _absolute(w: Tensor, out: Tensor | None = None) -> Tensor:
    return torch.abs(w, out=out)


@dataclass(slots=True, eq=False)
class LinearMap:
    """x ↦ A(x), linear, with the adjoint g ↦ Aᵀg.

    Where ``weight`` is given, A is linear in the weight too, so the parts A⁺, A⁻ and |A| are the same function with another
    weight. Where it is None, A has non-negative entries (pooling, sums), so A⁺ = |A| = A and A⁻ = 0.
    """

    function: Callable[[Tensor, Any], Tensor]
    transpose: Callable[[Tensor, Tensor, Any], Tensor]
    weight: Tensor | None = None
    fresh: bool = False
    """The adjoint's result is memory of its own, which may be written to."""
    rows: bool = False
    """The rows of the weight are the elements of the output's last dimension."""

    @property
    def nonnegative(self) -> bool:
        return self.weight is None

    def _weight(self, x: Tensor) -> Tensor | None:
        return None if self.weight is None else self.weight.to(x.dtype)

    def apply(self, x: Tensor) -> Tensor:
        return self.function(x, self._weight(x))

    def adjoint(self, g: Tensor, x: Tensor) -> Tensor:
        """Aᵀg; ``x`` tells the shape of the input."""
        return self.transpose(g, x, self._weight(x))

    def adjoints(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """A⁺ᵀg, and A⁻ᵀg where there is an A⁻; of rows of weights on a GPU as one product, and then as (rows, width)."""
        w = self._weight(x)
        if w is not None and self.rows and x.is_cuda and 2 * w.numel() <= _LARGE[False]:
            parts = w.new_empty(w.shape[0], 2 * w.shape[1])
            _positive(w, parts[:, : w.shape[1]])
            _negative(w, parts[:, w.shape[1] :])
            above, below = (g.reshape(-1, w.shape[0]) @ parts).split(w.shape[1], 1)
            return above, below
        negative = self.negative()
        return self.positive().adjoint(g, x), None if negative is None else negative.adjoint(g, x)

    def positive(self) -> LinearMap:
        return self if self.weight is None else self._part(_positive)

    def negative(self) -> LinearMap | None:
        return None if self.weight is None else self._part(_negative)

    def absolute(self) -> LinearMap:
        return self if self.weight is None else self._part(_absolute)

    def _with(self, weight: Tensor) -> LinearMap:
        return LinearMap(self.function, self.transpose, weight, self.fresh, self.rows)

    def _part(self, part: Part) -> LinearMap:
        assert self.weight is not None
        if self.rows and self.weight.numel() > _LARGE[self.weight.device.type == "cpu"]:
            return _streamed(self, self.weight, part)
        return self._with(part(self.weight))


_LARGE = {True: 1 << 22, False: 1 << 26}


def _streamed(whole: LinearMap, weight: Tensor, part: Part) -> LinearMap:
    """A part of a large weight, made some rows at a time and never held as a whole.

    One room for all of them: taken and given back each time, rooms of this size leave gaps that nothing else fits.
    """
    size = max(1, _LARGE[weight.device.type == "cpu"] // max(weight[0].numel(), 1))
    starts = range(0, len(weight), size)

    def parts(w: Tensor) -> Iterator[tuple[slice, Tensor]]:
        room = torch.empty_like(w[:size])
        for i in starts:
            rows = slice(i, i + size)
            yield rows, part(w[rows], room[: len(w[rows])])

    def apply(x: Tensor, w: Tensor) -> Tensor:
        return torch.cat([whole.function(x, some) for _, some in parts(w)], -1)

    def transpose(g: Tensor, x: Tensor, w: Tensor) -> Tensor:
        found: Tensor | None = None
        for rows, some in parts(w):
            r = whole.transpose(g[..., rows], x, some)
            found = r if found is None else found.add_(r)
        assert found is not None
        return found

    return LinearMap(apply, transpose, weight, True)


@dataclass(slots=True, eq=False)
class Linear:
    """h = Σ-of-products in each input, plus a constant bias: convolutions, products, pooling, sums over dimensions.

    ``maps`` gives one map per input that takes relevance; with two of them each is the weight of the other, and both have the
    same terms, unless a third factor is summed into the weights (``alike`` False).
    """

    maps: Callable[[Sequence[Tensor]], list[LinearMap]]
    bias: Tensor | None = None
    kind: str = "affine"
    alike: bool = True
    keeps: ClassVar[Keeps] = "all"


@dataclass(slots=True, eq=False)
class Sum:
    """h = Σ_k coefficient_k · x_k + constants, with broadcasting."""

    coefficients: tuple[float, ...]
    complete: bool = False
    """No constants, so that h is known from the inputs."""
    kind: str = "sum"

    @property
    def keeps(self) -> Keeps:
        return "inputs" if self.complete else "all"

    def parts(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The summands that take relevance."""
        return [x if c == 1 else x * c for x, c in zip(inputs, self.coefficients, strict=True)]

    def value(self, inputs: Sequence[Tensor]) -> Tensor:
        a, b = self.parts(inputs)
        return a + b


@dataclass(slots=True, eq=False)
class Scale:
    """h = x · constant, elementwise with broadcasting."""

    constant: Tensor | float
    kind: str = "scale"
    keeps: ClassVar[Keeps] = "nothing"


@dataclass(slots=True, eq=False)
class Smooth:
    """h = f(x) elementwise; ``derivative`` is f′ where it has a short closed form, ``gelu`` tells that f is the exact GELU."""

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor] | None = None
    gelu: bool = False
    kind: str = "activation"
    keeps: ClassVar[Keeps] = "all"

    def slope(self, x: Tensor) -> Tensor:
        if self.derivative is not None:
            return self.derivative(x)
        return vector_jacobian(self.function, x, torch.ones((), dtype=x.dtype, device=x.device).expand(x.shape))


@dataclass(slots=True, eq=False)
class Gate:
    """h = x where the unit is active and something fixed or damped elsewhere: the ReLU family, clamping.

    ``silent`` tells that a unit that is not active gives 0; then ``active`` says the same of the output as of the input.
    ``rectifier`` tells that it is max(x, 0) and nothing else.
    """

    active: Callable[[Tensor], Tensor]
    function: Callable[[Tensor], Tensor]
    silent: bool = False
    rectifier: bool = False
    kind: str = "gate"
    keeps: ClassVar[Keeps] = "all"


@dataclass(slots=True, eq=False)
class Softmax:
    """h = exp(x − m) / S along a dimension."""

    dim: int
    kind: str = "softmax"
    keeps: ClassVar[Keeps] = "all"


@dataclass(slots=True, eq=False)
class Shift:
    """h = x − c with the same c for all classes of a sample, as log_softmax's logarithm of the sum."""

    kind: str = "shift"
    keeps: ClassVar[Keeps] = "nothing"


@dataclass(slots=True, eq=False)
class Norm:
    """h = (x − μ)/σ · w + b with μ and σ constants, σ² = variance + ε; μ None for norms that do not centre.

    ``running`` tells that the statistics are those of training, not the sample's own.
    """

    moments: Callable[[Tensor], tuple[Tensor | None, Tensor]]
    eps: float
    weight: Tensor | None = None
    bias: Tensor | None = None
    running: bool = False
    kind: str = "norm"
    keeps: ClassVar[Keeps] = "inputs"

    def statistics(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """μ and σ."""
        mean, variance = self.moments(x)
        return mean, (variance + self.eps).sqrt()

    def value(self, inputs: Sequence[Tensor], statistics: tuple[Tensor | None, Tensor] | None = None) -> Tensor:
        (x,) = inputs
        mean, std = statistics or self.statistics(x)
        h = (x if mean is None else x - mean) / std
        h = h if self.weight is None else h * self.weight.to(x.dtype)
        return h if self.bias is None else h + self.bias.to(x.dtype)


@dataclass(slots=True, eq=False)
class Maximum:
    """h = the largest of a window; ``winners`` sends values back to where the maxima came from."""

    winners: Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, ...]]
    kind: str = "maximum"
    keeps: ClassVar[Keeps] = "all"


Kind = Linear | Sum | Scale | Smooth | Gate | Softmax | Shift | Norm | Maximum
