"""Calls after which the first dimension is the batch as it was before, told from their arguments alone.

Where only rectifiers have a rule, most functions run as they are and nobody follows the batch (:mod:`abslrp.propagation.plain`).
That is right while samples lie one after the other; a call that is not known to leave them so goes by the engine, which looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from abslrp.propagation.axes import Axis
from abslrp.propagation.operations.table import forms

Check = Callable[[Tensor, tuple[Any, ...], dict[str, Any]], bool]
_FIRST = Axis(0, 1)


def leaves_samples(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> bool:
    """Whether what depends on the input has the samples in its first dimension, and the result has them there, too."""
    check, x = _CHECKS.get(func), args[0]
    if check is None or not _first(x, batch):
        return False
    rest = args[1:]
    for other in (*rest, *kwargs.values()) if kwargs else rest:
        if not isinstance(other, Tensor):
            continue
        if other.grad_fn is not None or (other.requires_grad and not isinstance(other, Parameter)):
            if func not in _PAIRS or other.ndim != x.ndim or not _first(other, batch):
                return False
        elif other.ndim > x.ndim and func not in _WEIGHTED:
            return False
    return check(x, rest, kwargs)


def _first(x: Tensor, batch: int) -> bool:
    state = getattr(x, "_abslrp", None)
    return x.ndim > 0 and x.shape[0] == batch and (state is None or state.axis == _FIRST)


def _always(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _least(ndim: int) -> Check:
    return lambda x, rest, kwargs: x.ndim >= ndim


def _spatial(ndim: int) -> Check:
    return lambda x, rest, kwargs: x.ndim == ndim + 2


def _argument(name: str, rest: tuple[Any, ...], kwargs: dict[str, Any], place: int = 0) -> Any:
    return kwargs[name] if name in kwargs else rest[place] if len(rest) > place else None


def _beyond(name: str, place: int = 0, more: int = 0) -> Check:
    """The dimensions that an argument names are there, and none is the first."""

    def check(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        dims = _argument(name, rest, kwargs, place)
        dims = dims if isinstance(dims, (tuple, list)) else (dims,)
        return bool(dims) and all(isinstance(d, int) and d % (x.ndim + more) for d in dims)

    return check


def _normed(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    shape = _argument("normalized_shape", rest, kwargs)
    return isinstance(shape, (tuple, list)) and len(shape) < x.ndim


def _sizes(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The elements stay in their order, so that a first size of the batch's keeps the samples."""
    sizes = rest[0] if rest and isinstance(rest[0], (tuple, list)) else rest
    return not kwargs and len(sizes) > 0 and isinstance(sizes[0], int) and sizes[0] == x.shape[0]


def _moved(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dims = rest[0] if rest and isinstance(rest[0], (tuple, list)) else rest
    return not kwargs and len(dims) == x.ndim and dims[0] in (0, -x.ndim)


def _swapped(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return not kwargs and len(rest) == 2 and all(isinstance(d, int) and d % x.ndim for d in rest)


def _indexed(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    index = rest[0] if isinstance(rest[0], tuple) else ()
    known = all(i is None or i is Ellipsis or isinstance(i, (int, slice)) for i in index)
    return known and len(index) > 0 and index[0] == slice(None)


def _product(x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if kwargs or len(rest) != 1 or not isinstance(rest[0], Tensor):
        return False
    return x.ndim >= 3 if rest[0].ndim == x.ndim else x.ndim >= 2 and rest[0].ndim == 2


def _checks(*parts: tuple[str, Check]) -> dict[Callable[..., Any], Check]:
    return {function: check for names, check in parts for function in forms(*names.split())}


_LINEAR = _checks(
    *((f"conv{n}d conv_transpose{n}d", _spatial(n)) for n in (1, 2, 3)),
    ("linear", _least(2)),
    ("batch_norm group_norm instance_norm", _least(2)),
    ("layer_norm rms_norm", _normed),
)
_WEIGHTED = set(_LINEAR)
_BINARY = _checks(
    ("add __add__ __radd__ __iadd__ add_ sub __sub__ __isub__ sub_ mul __mul__ __rmul__ __imul__ mul_", _always),
    ("matmul __matmul__ bmm mm", _product),
    ("scaled_dot_product_attention", _least(3)),
)
_PAIRS = set(_BINARY)
_CHECKS: dict[Callable[..., Any], Check] = {
    **_LINEAR,
    **_BINARY,
    **_checks(
        *((f"avg_pool{n}d adaptive_avg_pool{n}d max_pool{n}d", _spatial(n)) for n in (1, 2, 3)),
        ("neg __neg__ relu relu_ relu6 leaky_relu hardtanh contiguous clone dropout", _always),
        ("elu selu gelu silu mish softplus hardswish hardsigmoid sigmoid tanh", _always),
        ("softmax log_softmax mean sum", _beyond("dim")),
        ("flatten", _beyond("start_dim")),
        ("view reshape", _sizes),
        ("permute", _moved),
        ("transpose", _swapped),
        ("unsqueeze", _beyond("dim", more=1)),
        ("squeeze unbind", _beyond("dim")),
        ("chunk split", _beyond("dim", 1)),
        ("__getitem__", _indexed),
    ),
}
