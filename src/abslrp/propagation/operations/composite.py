"""Operations that fall apart into simpler ones, each of which then meets its own rule."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.propagation.axes import Axis
from abslrp.propagation.kinds import vector_jacobian
from abslrp.propagation.operations.products import Bilinear
from abslrp.propagation.operations.reductions import nonnegative_map
from abslrp.propagation.operations.table import CONSTANT, OPERATIONS, STOPPED, Engine, Run, forms, row


def composed(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function, written with torch's own functions, that does the same as these callables."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        row(*names)(lambda e, run, *args, **kwargs: lambda: function(*args, **kwargs))
        return function

    return enter


@composed("scaled_dot_product_attention")
def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(q kᵀ · scale + mask) v; masks are constants."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(query * (1 / sqrt(query.shape[-1]) if scale is None else scale), key.transpose(-2, -1))
    hidden: Tensor | None = None
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril().logical_not()
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = attn_mask.logical_not()
    elif attn_mask is not None:
        scores = scores + attn_mask
        if torch.isneginf(attn_mask).any():
            hidden = torch.isneginf(attn_mask)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, -1)
    if hidden is not None:  # a query that may look nowhere sees nothing
        weights = weights.masked_fill(hidden.all(-1, keepdim=True), 0)
    return torch.matmul(F.dropout(weights, dropout_p) if dropout_p else weights, value)


@composed("addcmul")
def addcmul(input: Tensor, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    return torch.add(input, torch.mul(tensor1, tensor2), alpha=value)


@composed("addcdiv")
def addcdiv(input: Tensor, tensor1: Any, tensor2: Any, *, value: float = 1) -> Tensor:
    return torch.add(input, torch.div(tensor1, tensor2), alpha=value)


@composed("lerp")
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return torch.add(torch.mul(input, 1 - weight), torch.mul(end, weight))


@composed("outer", "ger")
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    return torch.mul(input.unsqueeze(-1), vec2)


@composed("addr")
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return torch.add(torch.mul(input, beta), torch.mul(vec1.unsqueeze(-1), vec2), alpha=alpha)


@composed("diff")
def diff(input: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    for _ in range(n):
        input = input.narrow(dim, 1, input.shape[dim] - 1) - input.narrow(dim, 0, input.shape[dim] - 1)
    return input


@composed("cdist")
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, *rest: Any, **more: Any) -> Tensor:
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return apart.abs().sum(-1) if p == 1 else apart.abs().pow(p).sum(-1).pow(1 / p)


@composed("_grouped_mm")
def grouped_mm(
    input: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, **more: Any
) -> Tensor:
    if offs is None:
        return torch.matmul(input, mat2)
    ends = offs.tolist()
    parts = [torch.matmul(input[a:b], w) for a, b, w in zip([0, *ends], ends, mat2.unbind(0), strict=False)]
    return torch.cat(parts)


@composed("glu")
def glu(input: Tensor, dim: int = -1) -> Tensor:
    value, gate = input.chunk(2, dim)
    return torch.mul(value, torch.sigmoid(gate))


@composed("softmin")
def softmin(input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    return F.softmax(-input, dim)


@composed("cosine_similarity")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return torch.mul(F.normalize(x1, dim=dim, eps=eps), F.normalize(x2, dim=dim, eps=eps)).sum(dim)


@composed("__rtruediv__", "__rdiv__")
def divided_by(input: Tensor, other: Any) -> Tensor:
    return torch.div(other, input.detach())


@composed("__iter__")
def iterate(input: Tensor) -> Any:
    return iter(input.unbind(0))


@composed("tensordot")
def tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: None = None) -> Tensor:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    left, right = (list(range(a.ndim - dims, a.ndim)), list(range(dims))) if isinstance(dims, int) else map(list, dims)
    first, second = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip(left, right, strict=True):
        second[j % b.ndim] = first[i % a.ndim]
    letters = "abcdefghijklmnopqrstuvwxyz"
    result = [n for n in first + second if (n in first) != (n in second)]
    text = lambda numbers: "".join(letters[n] for n in numbers)  # noqa: E731
    return torch.einsum(f"{text(first)},{text(second)}->{text(result)}", a, b)


# ---------------------------------------------------------------- einsum


def _spell(equation: str, operands: list[Tensor]) -> tuple[list[list[str]], list[str]]:
    """The labels of every dimension of the operands and of the result; those under an ellipsis are named from the right."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        bare = left.replace(",", "").replace(".", "")
        result = ("..." if "..." in left else "") + "".join(sorted(c for c in set(bare) if bare.count(c) == 1))
    hidden = 0
    spelled = []
    for term, operand in zip(terms, operands, strict=True):
        before, dots, after = term.partition("...")
        free = operand.ndim - len(before) - len(after) if dots else 0
        hidden = max(hidden, free)
        spelled.append([*before, *(f".{i}" for i in reversed(range(free))), *after])
    before, dots, after = result.partition("...")
    return spelled, [*before, *(f".{i}" for i in reversed(range(hidden if dots else 0))), *after]


@row("einsum")
def einsum(e: Engine, run: Run, equation: str, *operands: Any) -> Any:
    tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not isinstance(equation, str):
        return NotImplemented
    labels, result = _spell(equation, tensors)
    if len(tensors) == 1:
        return nonnegative_map(e, run, tensors[0], lambda x: torch.einsum(equation, x), _by_label(labels[0], result))
    if len(tensors) > 2:
        return lambda: _pairwise(tensors, labels, result)
    op = Bilinear(
        lambda a, b: torch.einsum(equation, a, b),
        lambda g, a, b: vector_jacobian(lambda x: torch.einsum(equation, x, b), a, g),
        lambda g, a, b: vector_jacobian(lambda x: torch.einsum(equation, a, x), b, g),
        (_by_label(labels[0], result), _by_label(labels[1], result)),
    )
    return op.plan(e, run, tensors[0], tensors[1])


def _by_label(labels: list[str], result: list[str]) -> Callable[..., Axis | None]:
    return lambda axis, _, old, new: (
        Axis(result.index(labels[axis.dim]), axis.inner) if labels[axis.dim] in result else None
    )


def _pairwise(tensors: list[Tensor], labels: list[list[str]], result: list[str]) -> Tensor:
    """Contract the first two, keep what others or the result still need, and so on."""
    names = {name: chr(ord("a") + i) for i, name in enumerate(dict.fromkeys(sum(labels, result)))}
    text = lambda group: "".join(names[n] for n in group)  # noqa: E731
    value, have = tensors[0], labels[0]
    for number in range(1, len(tensors)):
        needed = set(result).union(*labels[number + 1 :])
        both = list(dict.fromkeys(have + labels[number]))
        keep = result if number == len(tensors) - 1 else [n for n in both if n in needed]
        value = torch.einsum(f"{text(have)},{text(labels[number])}->{text(keep)}", value, tensors[number])
        have = keep
    return value


# ---------------------------------------------------------------- recurrent networks


def _lstm_step(x: Tensor, state: tuple[Tensor, ...], w: list[Tensor]) -> tuple[Tensor, ...]:
    h, c = state
    i, f, g, o = (F.linear(x, w[0], _at(w, 2)) + F.linear(h, w[1], _at(w, 3))).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(x: Tensor, state: tuple[Tensor, ...], w: list[Tensor]) -> tuple[Tensor, ...]:
    (h,) = state
    xr, xz, xn = F.linear(x, w[0], _at(w, 2)).chunk(3, -1)
    hr, hz, hn = F.linear(h, w[1], _at(w, 3)).chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * h,)


def _rnn_step(activation: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda x, state, w: (activation(F.linear(x, w[0], _at(w, 2)) + F.linear(state[0], w[1], _at(w, 3))),)


def _at(w: list[Tensor], i: int) -> Tensor | None:
    return w[i] if i < len(w) else None


def _recurrent(name: str, step: Callable[..., tuple[Tensor, ...]]) -> None:
    def build(e: Engine, run: Run, input: Tensor, second: Any, *rest: Any) -> Any:
        if len(rest) != 7:
            return NotImplemented  # packed sequences
        weights, biases, layers, _, _, bidirectional, batch_first = rest
        if len(weights) != layers * (1 + bidirectional) * (4 if biases else 2):
            return NotImplemented  # projections

        def loop() -> Any:
            x = input.transpose(0, 1) if batch_first else input
            starts = second if isinstance(second, (list, tuple)) else [second]
            size = 4 if biases else 2
            finals: list[tuple[Tensor, ...]] = []
            for layer in range(layers):
                sides = []
                for side in range(1 + bidirectional):
                    number = layer * (1 + bidirectional) + side
                    w = list(weights[number * size : (number + 1) * size])
                    state = tuple(s[number] for s in starts)
                    steps = x.unbind(0)
                    seen = []
                    for item in reversed(steps) if side else steps:
                        state = step(item, state, w)
                        seen.append(state[0])
                    sides.append(torch.stack(seen[::-1] if side else seen))
                    finals.append(state)
                x = torch.cat(sides, -1) if bidirectional else sides[0]
            out = x.transpose(0, 1) if batch_first else x
            return (out, *(torch.stack([f[k] for f in finals]) for k in range(len(starts))))

        return loop

    row(name)(build)


_recurrent("lstm", _lstm_step)
_recurrent("gru", _gru_step)
_recurrent("rnn_tanh", _rnn_step(torch.tanh))
_recurrent("rnn_relu", _rnn_step(torch.relu))

for _cell, _step in (
    ("lstm_cell", _lstm_step),
    ("gru_cell", _gru_step),
    ("rnn_tanh_cell", _rnn_step(torch.tanh)),
    ("rnn_relu_cell", _rnn_step(torch.relu)),
):

    def _cell_build(e: Engine, run: Run, input: Tensor, hx: Any, *w: Any, _step: Any = _step) -> Any:
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        weights = [t for t in w if t is not None]
        return lambda: (lambda s: s if len(s) > 1 else s[0])(_step(input, states, weights))

    row(_cell)(_cell_build)


CONSTANT.update(
    forms(
        *("detach", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("bernoulli", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "numpy", "tolist", "item"),
    ),
    {getattr(Tensor, name).__get__ for name in ("data", "grad")},
)
STOPPED.update(
    forms(
        *(
            [
                "var",
                "std",
                "var_mean",
                "std_mean",
                "norm",
                "vector_norm",
                "matrix_norm",
                "rsqrt",
                "reciprocal",
                "round",
                "floor",
                "ceil",
                "trunc",
                "fix",
                "sign",
                "sgn",
                "heaviside",
            ]
        ),
        *(
            [
                "floor_divide",
                "__floordiv__",
                "fmod",
                "remainder",
                "__mod__",
                "histc",
                "bincount",
                "affine_grid",
                "affine_grid_generator",
                "cov",
                "corrcoef",
            ]
        ),
    )
)
for _function in STOPPED:
    OPERATIONS.pop(_function, None)
