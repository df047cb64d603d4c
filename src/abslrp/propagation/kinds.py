"""The kinds of operation that rules know, with exactly what a rule needs of each.

A kind holds no data of the sample: inputs and output are handed to the rule beside it, so that one object describes the
operation and the engine alone decides what is kept, cloned or freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def vector_jacobian(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    """gᵀ ∂f/∂x by torch's own backward of one function, for maps torch has no public adjoint of."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        value = function(leaf)
    return torch.autograd.grad(value, leaf, g.to(value.dtype))[0]


@dataclass(frozen=True)
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

    def positive(self) -> LinearMap:
        return self if self.weight is None else self._with(self.weight.clamp(min=0))

    def negative(self) -> LinearMap | None:
        return None if self.weight is None else self._with(self.weight.clamp(max=0))

    def absolute(self) -> LinearMap:
        return self if self.weight is None else self._with(self.weight.abs())

    def _with(self, weight: Tensor) -> LinearMap:
        return LinearMap(self.function, self.transpose, weight, self.fresh)


@dataclass(frozen=True)
class Linear:
    """h = Σ-of-products in each input, plus a constant bias: convolutions, products, pooling, sums over dimensions.

    ``maps`` gives one map per input that takes relevance; with two of them each is the weight of the other, and both have the
    same terms, unless a third factor is summed into the weights (``alike`` False).
    """

    maps: Callable[[Sequence[Tensor]], list[LinearMap]]
    bias: Tensor | None = None
    kind: str = "affine"
    alike: bool = True


@dataclass(frozen=True)
class Sum:
    """h = Σ_k coefficient_k · x_k + constants, with broadcasting."""

    coefficients: tuple[float, ...]
    complete: bool = False
    """No constants, so that h is known from the inputs."""
    kind: str = "sum"


@dataclass(frozen=True)
class Scale:
    """h = x · constant, elementwise with broadcasting."""

    constant: Tensor | float
    kind: str = "scale"


@dataclass(frozen=True)
class Smooth:
    """h = f(x) elementwise; ``derivative`` is f′ where it has a short closed form."""

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor] | None = None
    kind: str = "activation"

    def slope(self, x: Tensor) -> Tensor:
        if self.derivative is not None:
            return self.derivative(x)
        return vector_jacobian(self.function, x, torch.ones((), dtype=x.dtype, device=x.device).expand(x.shape))


@dataclass(frozen=True)
class Gate:
    """h = x where the unit is active and something fixed or damped elsewhere: the ReLU family, clamping."""

    active: Callable[[Tensor], Tensor]
    function: Callable[[Tensor], Tensor]
    kind: str = "gate"


@dataclass(frozen=True)
class Softmax:
    """h = exp(x − m) / S along a dimension."""

    dim: int
    kind: str = "softmax"


@dataclass(frozen=True)
class Shift:
    """h = x − c with the same c for all classes of a sample, as log_softmax's logarithm of the sum."""

    kind: str = "shift"


@dataclass(frozen=True)
class Norm:
    """h = (x − μ)/σ · w + b with μ and σ constants; μ None for norms that do not centre.

    ``running`` tells that the statistics are those of training, not the sample's own.
    """

    statistics: Callable[[Tensor], tuple[Tensor | None, Tensor]]
    weight: Tensor | None = None
    bias: Tensor | None = None
    running: bool = False
    kind: str = "norm"


@dataclass(frozen=True)
class Maximum:
    """h = the largest of a window; ``winners`` sends values back to where the maxima came from."""

    winners: Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, ...]]
    kind: str = "maximum"


Kind = Linear | Sum | Scale | Smooth | Gate | Softmax | Shift | Norm | Maximum
