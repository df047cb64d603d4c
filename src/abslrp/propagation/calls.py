"""The many forms of one torch function: in place or not, with an output to write to, made of other functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from types import FunctionType, GetSetDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name

from abslrp.propagation import structural

QUERIES = {
    getattr(found, "__get__", found) if isinstance(found, (property, GetSetDescriptorType)) else found
    for name in [
        "shape",
        "dtype",
        "device",
        "ndim",
        "is_cuda",
        "is_sparse",
        "is_quantized",
        "is_leaf",
        "requires_grad",
        "layout",
        "is_meta",
        "grad_fn",
        "itemsize",
        "nbytes",
        "size",
        "dim",
        "numel",
        "ndimension",
        "stride",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "element_size",
        "get_device",
        "storage_offset",
        "__len__",
    ]
    if (found := getattr(Tensor, name, None)) is not None
}


def _in_place_forms() -> dict[Callable[..., Any], Callable[..., Any]]:
    """In-place callables and the ones that compute the same out of place."""
    twins = {}
    for place in (Tensor, torch, torch.nn.functional):
        for name in dir(place):
            plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name.replace("__i", "__", 1)
            if plain == name or not ((name.endswith("_") and not name.endswith("__")) or name.startswith("__i")):
                continue
            twin = getattr(place, plain, None)
            if (
                callable(twin)
                and callable(getattr(place, name))
                and name not in ("__invert__", "__init__", "__index__", "__int__", "__iter__")
            ):
                twins[getattr(place, name)] = twin
    return twins


_IN_PLACE = _in_place_forms()
WRITING = {Tensor.__setitem__, *_IN_PLACE}


def twin_of(func: Any) -> Any:
    """What computes the same as a function that writes over its first argument, without writing; None where it does not write."""
    return _IN_PLACE.get(func)


class Run:
    """An operation with its arguments, out of place; ``name`` is the function's."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.name = function.__name__

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)


@cache
def _inplace_signature(func: Any) -> inspect.Signature | None:
    if not isinstance(func, FunctionType) or "inplace" not in func.__code__.co_varnames:
        return None
    signature = inspect.signature(func)
    return signature if "inplace" in signature.parameters else None


def writes_if_told(func: Any) -> bool:
    """Whether a function has an argument that makes it write over its input."""
    return _inplace_signature(func) is not None


def writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a function of one tensor writes over it."""
    return func in _IN_PLACE or bool(kwargs.get("inplace", len(args) > 1 and args[1]))


_INPLACE = {"inplace"}


def out_of_place(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Tensor | None, tuple[Any, ...], dict[str, Any]]:
    """The function that computes the same without writing, what it would have written to, and its arguments."""
    if kwargs and kwargs.get("out") is not None:
        return func, kwargs["out"], args, {k: v for k, v in kwargs.items() if k != "out"}
    if func in structural.STRUCTURAL:
        return func, None, args, kwargs
    signature = _inplace_signature(func)
    if signature is not None:
        if len(args) == 1 and kwargs.keys() <= _INPLACE:
            return func, args[0] if kwargs.get("inplace") else None, args, {}
        bound = signature.bind(*args, **kwargs).arguments
        written = next(iter(bound.values())) if bound.pop("inplace", False) else None
        first = next(iter(bound))
        return func, written, (bound.pop(first),), {k: v for k, v in bound.items() if not k.startswith("_")}
    twin = _IN_PLACE.get(func)
    return (func, None, args, kwargs) if twin is None else (twin, args[0], args, kwargs)


@cache
def opened(func: Any) -> Callable[..., Any] | None:
    """A Python function of torch that is made of other torch functions, without the gate at its entrance that would send it
    back to the engine; None for what is no such function."""
    if not isinstance(func, FunctionType) or "handle_torch_function" not in func.__code__.co_names:
        return None
    gates = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**func.__globals__, **{gate: lambda *_: False for gate in gates}}
    inner = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    inner.__kwdefaults__ = func.__kwdefaults__
    return inner


_SCALARS = {int, float, bool, str, type(None)}


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    found: list[Tensor] = []
    _gather(value.values() if isinstance(value, dict) else value, found)
    return found


def _gather(items: Iterable[Any], found: list[Tensor]) -> None:
    for item in items:
        if type(item) in _SCALARS:
            continue
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            _gather(item, found)
        elif isinstance(item, dict):
            _gather(item.values(), found)


def function_name(func: Any) -> str:
    """As a user would write it."""
    return (
        str(resolve_name(func) or getattr(func, "__name__", func))
        .replace("torch._C._nn.", "torch.nn.functional.")
        .replace("torch.functional.", "torch.")
    )
