"""Where a network keeps its picture: the layer whose output is the last map of the image, and how its elements lie on it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isqrt
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abslrp.propagation.api import propagate
from abslrp.query import Query
from abslrp.types import AbslrpError

_KEPT = 8
MOST_PREFIX = 16  # class, distillation and register tokens that a picture may follow


@dataclass(frozen=True)
class Event:
    """A module that finished, with its output's shape; or, with no name, values summed by an attention matrix."""

    name: str
    module: nn.Module | None
    shape: tuple[int, ...]


def walk(query: Query) -> list[Event]:
    """Everything that happened in one forward of one input, in order."""
    model = query.model
    if not isinstance(model, nn.Module):
        raise AbslrpError("the layer cannot be found in a plain function: pass the torch.nn.Module and forward=.")
    events: list[Event] = []
    x = query.inputs[:1] if query.divisible else query.inputs
    leaf = x.detach().clone().requires_grad_()
    with propagate("gradient", measure=False) as engine:
        seen = 0

        def note(name: str, module: nn.Module, output: Any) -> None:
            nonlocal seen
            if len(engine.attentions) > seen:
                events.append(Event("", None, tuple(engine.attentions[-1].shape)))
                seen = len(engine.attentions)
            value = output[0] if isinstance(output, (tuple, list)) and output else output
            if isinstance(value, Tensor):
                events.append(Event(name, module, tuple(value.shape)))

        engine.watch(leaf)
        with watched(model, note):
            query.run(leaf.clone())
    return events


@contextmanager
def watched(model: nn.Module, note: Any) -> Iterator[None]:
    """Tell ``note`` of every module's output in this thread, with hooks that are gone afterwards."""
    thread = threading.get_ident()

    def hook(name: str) -> Any:
        def tell(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() == thread:
                note(name, module, output)

        return tell

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


Order = list[tuple[str, tuple[int, ...]]]
"""The modules that finished, one after the other, and the shapes of one input's outputs."""

_layers: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, tuple[str, Order] | None]] = WeakKeyDictionary()
_lock = threading.Lock()


def known_layer(query: Query) -> tuple[str, Order | None]:
    """:func:`find_layer`, or what it found before, with the order of modules that has to be seen for it to hold.

    The order is looked at from the first call on, since torch computes what is looked at otherwise, and maps would differ by rounding.
    """
    model: Any = query.model
    if not query.divisible or not isinstance(model, nn.Module):
        return find_layer(query), None
    with _lock:
        mine = _layers.setdefault(model, OrderedDict())
        known = query.inputs.shape[1:] in mine
        found = mine.get(query.inputs.shape[1:])
    if found is not None:
        return found
    events = walk(query)
    layer, order = _last_map(events), [(e.name, e.shape[1:]) for e in events if e.module is not None]
    if known:
        return layer, None
    with _lock:
        mine[query.inputs.shape[1:]] = layer, order
        while len(mine) > _KEPT:
            mine.popitem(last=False)
    return layer, order


def forget_layer(query: Query) -> None:
    """Look for the layer each time from now on: the model does not do the same every time."""
    model: Any = query.model
    with _lock:
        _layers.setdefault(model, OrderedDict())[query.inputs.shape[1:]] = None


@contextmanager
def order_of(model: Any) -> Iterator[Order]:
    """The order of modules while the model runs inside."""
    order: Order = []

    def note(name: str, module: nn.Module, output: Any) -> None:
        value = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(value, Tensor):
            order.append((name, tuple(value.shape[1:])))

    with watched(model, note):
        yield order


def find_layer(query: Query) -> str:
    """The layer to look at: before the last attention the norm that feeds it, else the last map of convolutions."""
    return _last_map(walk(query))


def _last_map(events: list[Event]) -> str:
    attended = [i for i, e in enumerate(events) if e.module is None]
    norms = [i for i, e in enumerate(events) if _is_norm(e) and _spatial(e.shape)]
    if attended:
        before = [i for i in norms if i < attended[-1]]
        if before:
            return events[before[-1]].name
    convolutions = [i for i, e in enumerate(events) if _is_conv(e) and len(e.shape) == 4 and min(e.shape[2:]) > 1]
    tokens = [i for i in norms if len(events[i].shape) == 3]
    if convolutions and not (tokens and tokens[-1] > convolutions[-1]):
        last = events[convolutions[-1]]
        same = [e for e in events if len(e.shape) == 4 and e.shape[2:] == last.shape[2:] and not _is_pool(e)]
        return same[-1].name
    if tokens:
        return events[tokens[-1]].name
    raise AbslrpError("no layer with a map of the image was found in this model: name one with layer=.")


def _is_norm(event: Event) -> bool:
    return event.module is not None and "norm" in type(event.module).__name__.lower()


def _is_conv(event: Event) -> bool:
    return event.module is not None and "conv" in type(event.module).__name__.lower()


def _is_pool(event: Event) -> bool:
    return event.module is not None and "pool" in type(event.module).__name__.lower()


def _spatial(shape: tuple[int, ...]) -> bool:
    return (len(shape) == 3 and shape[1] >= 4) or (len(shape) == 4 and shape[1] > 1 and shape[2] > 1)


def grid_of(tokens: int, height: int, width: int) -> tuple[int, int, int]:
    """How many tokens come before the picture's, and its rows and columns: the fewest that leave the image's aspect.

    >>> grid_of(197, 224, 224), grid_of(201, 224, 224), grid_of(50, 224, 224), grid_of(198, 224, 224)
    ((1, 14, 14), (5, 14, 14), (1, 7, 7), (2, 14, 14))
    >>> grid_of(1 + 14 * 28, 224, 448)
    (1, 14, 28)
    """
    for prefix in range(min(MOST_PREFIX, tokens - 1) + 1):
        picture = tokens - prefix
        for rows in range(max(1, isqrt(picture * height // max(width, 1)) - 1), picture + 1):
            if rows * rows * width > picture * height * 1.2:
                break
            if picture % rows == 0 and abs(rows * width - picture // rows * height) <= max(height, width) * 0.5:
                columns = picture // rows
                if rows > 1 and columns > 1:
                    return prefix, rows, columns
    raise AbslrpError(
        f"{tokens} tokens cannot be laid out as a picture of {height} by {width}: name another layer with layer=."
    )


def as_maps(values: Tensor, image: Tensor) -> Tensor:
    """A layer's output as (batch, channels, rows, columns): channels first, channels last, or tokens."""
    height, width = image.shape[-2:]
    if values.ndim == 4:
        _, a, b, c = values.shape
        first, last = abs(b * width - c * height), abs(a * width - b * height)
        return values if first <= last and not (first == last and a < c and a == b) else values.permute(0, 3, 1, 2)
    if values.ndim == 3:
        prefix, rows, columns = grid_of(values.shape[1], height, width)
        return values[:, prefix:].transpose(1, 2).unflatten(2, (rows, columns))
    raise AbslrpError(
        f"the layer's output has shape {tuple(values.shape)}, expected a map or tokens: name another with layer=."
    )


def enlarged(coarse: Tensor, image: Tensor) -> Tensor:
    """Maps (batch, rows, columns) at the image's size, alike in all its channels."""
    large = F.interpolate(coarse.unsqueeze(1), size=image.shape[-2:], mode="bilinear", align_corners=False)
    return large.expand(image.shape)


def need_images(x: Tensor, name: str) -> None:
    if x.ndim != 4:
        raise AbslrpError(
            f"{name} needs images (batch, channels, height, width), got inputs of shape {tuple(x.shape)}."
        )


def normal(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
