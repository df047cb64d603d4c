"""Operations linear in each of their factors: matrix products and convolutions, with either factor alive or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.propagation import axes
from abslrp.propagation.axes import Axis
from abslrp.propagation.functions import Planned
from abslrp.propagation.kinds import Linear, LinearMap, summed
from abslrp.propagation.operations.table import Engine, Row, Run, follow_aligned, follow_same, row


class Bilinear:
    """h = B(a, b), linear in each factor, with both adjoints and the way the batch goes."""

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        left: Callable[[Tensor, Tensor, Tensor], Tensor],
        right: Callable[[Tensor, Tensor, Tensor], Tensor],
        follow: tuple[Callable[..., Axis | None], Callable[..., Axis | None]] = (follow_same, follow_same),
        rows: bool = False,
    ) -> None:
        self.follow = follow
        self._left = LinearMap(lambda x, w: function(x, w), lambda g, x, w: left(g, x, w), fresh=True, rows=rows)
        self._right = LinearMap(lambda x, w: function(w, x), lambda g, x, w: right(g, w, x), fresh=True)

    def plan(self, e: Engine, run: Run, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Planned:
        """The operation with one or two live factors: an affine map, or a product with each the other's weight."""
        left, right = e.live(a), e.live(b)
        if left and right:
            first, second = e.is_attention(a), e.is_attention(b)
            if first or second:
                e.attended(a if first else b)
                if e.attention != "all":
                    left = first is not (e.attention == "values")
                    right = not left
        if left and right:
            maps = lambda t: [self._left._with(t[1]), self._right._with(t[0])]  # noqa: E731
            return Planned(Linear(maps, bias, "product"), (a, b), run, self._both, self._sign(e, a, b, bias))
        live, map_, other = (a, self._left, b) if left else (b, self._right, a)
        fixed = map_._with(other.detach())
        step = self.follow[0 if left else 1]
        return Planned(
            Linear(lambda _: [fixed], bias),
            (live,),
            run,
            lambda axis, _, old, new: step(axis, 0, old, new),
            self._sign(e, a, b, bias),
        )

    def _both(self, axis: Axis, number: int, old: Sequence[int], new: Sequence[int]) -> Axis | None:
        return self.follow[number](axis, number, old, new)

    @staticmethod
    def _sign(e: Engine, a: Tensor, b: Tensor, bias: Tensor | None) -> bool:
        return bias is None and e.nonnegative(a) and e.nonnegative(b)


def _matmul_rows(axis: Axis, number: int, old: Sequence[int], new: Sequence[int]) -> Axis | None:
    return axes.aligned(axis, old, new) if axis.dim < len(old) - 1 else None


def _matmul_columns(axis: Axis, number: int, old: Sequence[int], new: Sequence[int]) -> Axis | None:
    return axes.aligned(axis, old, new) if axis.dim != len(old) - 2 else None


def _linear_rows(axis: Axis, number: int, old: Sequence[int], new: Sequence[int]) -> Axis | None:
    return axis if axis.dim < len(old) - 1 else None


LINEAR = Bilinear(
    F.linear,
    lambda g, x, w: (g.reshape(-1, w.shape[0]) @ w).reshape(x.shape),
    lambda g, x, w: g.reshape(-1, w.shape[0]).mT @ x.reshape(-1, w.shape[1]),
    (_linear_rows, lambda axis, _, old, new: None),
    rows=True,
)
MATMUL = Bilinear(
    torch.matmul,
    lambda g, a, b: summed(g @ b.mT, a.shape),
    lambda g, a, b: summed(a.mT @ g, b.shape),
    (_matmul_rows, _matmul_columns),
)
MULTIPLY = Bilinear(
    torch.mul,
    lambda g, a, b: summed(g * b, a.shape),
    lambda g, a, b: summed(g * a, b.shape),
    (follow_aligned, follow_aligned),
)


@row("linear")
def linear(e: Engine, run: Run, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if e.live(bias):
        return lambda: torch.add(F.linear(input, weight), bias)  # type: ignore[arg-type]
    if weight.ndim == 1 or input.ndim == 1:
        out = lambda: torch.matmul(input, weight.mT if weight.ndim > 1 else weight)  # noqa: E731
        return out if bias is None else lambda: torch.add(out(), bias)
    return LINEAR.plan(e, run, input, weight, bias)


@row("matmul", "__matmul__", "bmm", "mm", "mv", "dot", "vdot", "inner")
def matmul(e: Engine, run: Run, input: Tensor, other: Tensor | None = None, **names: Tensor) -> Any:
    b = other if other is not None else next(iter(names.values()))
    if input.is_sparse or b.is_sparse:
        return lambda: torch.matmul(*(t.to_dense() if t.is_sparse else t for t in (input, b)))
    if input.ndim == 1 and b.ndim == 1:
        return lambda: (input * b).sum()
    if input.ndim == 1:
        return lambda: torch.matmul(input.unsqueeze(0), b).squeeze(-2)
    if b.ndim == 1:
        return lambda: torch.matmul(input, b.unsqueeze(-1)).squeeze(-1)
    return MATMUL.plan(e, run, input, b)


@row("__rmatmul__")
def rmatmul(e: Engine, run: Run, input: Tensor, other: Tensor) -> Any:
    return lambda: torch.matmul(other, input)


@row("addmm", "addmv", "addbmm", "baddbmm", "_addmm_activation")
def addmm(
    e: Engine,
    run: Run,
    input: Tensor,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    beta: float = 1,
    alpha: float = 1,
    **names: Tensor,
) -> Any:
    factors = [t for t in (a, b, *names.values()) if t is not None]
    a, b = factors
    if e.live(input) or a.ndim != b.ndim or alpha == 0:
        product = lambda: torch.matmul(a, b)  # noqa: E731
        summed = (lambda: product().sum(0)) if a.ndim == 3 and input.ndim == 2 else product
        return lambda: torch.add(torch.mul(input, beta), torch.mul(summed(), alpha))
    if beta == 0:  # torch ignores the values of the input then, also NaN
        return MATMUL.plan(e, run, a * alpha if alpha != 1 else a, b)
    if alpha != 1:
        return lambda: (
            torch.baddbmm(input, a * alpha, b, beta=beta)
            if a.ndim == 3
            else torch.addmm(input, a * alpha, b, beta=beta)
        )
    return MATMUL.plan(e, run, a, b, input.detach() * beta)


@row("bilinear")
def bilinear(e: Engine, run: Run, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    w = weight.detach()
    left = lambda x2: torch.einsum("oij,...j->...oi", w.to(x2.dtype), x2)  # noqa: E731
    right = lambda x1: torch.einsum("oij,...i->...oj", w.to(x1.dtype), x1)  # noqa: E731
    contract = LinearMap(
        lambda x, v: torch.einsum("...oi,...i->...o", v, x), lambda g, x, v: torch.einsum("...oi,...o->...i", v, g)
    )
    both = e.live(input1) and e.live(input2)

    def maps(t: Sequence[Tensor]) -> list[LinearMap]:
        if both:
            return [contract._with(left(t[1])), contract._with(right(t[0]))]
        return [contract._with(left(input2.detach()) if e.live(input1) else right(input1.detach()))]

    lives = tuple(t for t in (input1, input2) if e.live(t))
    return Planned(Linear(maps, bias, "product" if both else "affine", alike=False), lives, run, _linear_rows)


def _convolution(
    e: Engine, run: Run, x: Tensor, w: Tensor, bias: Tensor | None, spatial: int, stride: Any, padding: Any, dilation: Any, groups: int,
    transposed: bool = False, output_padding: Any = 0,
) -> Any:  # fmt: skip
    given = (tuple(v) if isinstance(v, list) else v for v in (stride, padding, dilation, output_padding))
    op = _sliding(spatial, *given, transposed, groups)
    shaped = None if bias is None else bias.detach().reshape(-1, *[1] * spatial)
    return op.plan(e, run, x, w, shaped)


@lru_cache(maxsize=1024)
def _sliding(
    spatial: int, stride: Any, padding: Any, dilation: Any, extra: Any, transposed: bool, groups: int
) -> Bilinear:
    """Convolutions with these numbers."""
    each = lambda v: (v,) * spatial if isinstance(v, int) else tuple(v) * (spatial if len(v) == 1 else 1)  # noqa: E731
    shared = (each(stride), each(padding), each(dilation), transposed, each(extra), groups)
    aten = torch.ops.aten
    convolution, backward = aten.convolution.default, aten.convolution_backward.default
    return Bilinear(
        lambda a, b: convolution(a, b, None, *shared),
        lambda g, a, b: backward(g, a, b, None, *shared, (True, False, False))[0],
        lambda g, a, b: backward(g, a, b, None, *shared, (False, True, False))[1],
        (follow_same, lambda axis, _, old, new: None if axis.dim else Axis(1, axis.inner)),
    )


def _conv(spatial: int) -> Row:
    function = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]

    def build(
        e: Engine,
        run: Run,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if input.ndim == spatial + 1:
            return lambda: function(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
        if e.live(bias):
            assert bias is not None
            return lambda: (
                function(input, weight, None, stride, padding, dilation, groups) + bias.reshape(-1, *[1] * spatial)
            )
        if padding == "valid":
            padding = 0
        if padding == "same":
            rates = [dilation] * spatial if isinstance(dilation, int) else list(dilation)
            total = [d * (k - 1) for d, k in zip(rates, weight.shape[2:], strict=True)]
            if any(t % 2 for t in total):
                sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
                return lambda: function(F.pad(input, sides), weight, bias, stride, 0, dilation, groups)
            padding = [t // 2 for t in total]
        return _convolution(e, run, input, weight, bias, spatial, stride, padding, dilation, groups)

    return build


def _conv_transpose(spatial: int) -> Row:
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]

    def build(
        e: Engine, run: Run, input: Tensor, weight: Tensor, bias: Tensor | None = None,
        stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    ) -> Any:  # fmt: skip
        if input.ndim == spatial + 1:
            return lambda: function(
                input.unsqueeze(0), weight, bias, stride, padding, output_padding, groups, dilation
            ).squeeze(0)
        return _convolution(
            e, run, input, weight, bias, spatial, stride, padding, dilation, groups, True, output_padding
        )

    return build


for _spatial in (1, 2, 3):
    row(f"conv{_spatial}d")(_conv(_spatial))
    row(f"conv_transpose{_spatial}d")(_conv_transpose(_spatial))
