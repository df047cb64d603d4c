"""Explanations recorded as CUDA graphs and replayed.

At small batches a GPU waits for Python, which has a rule to find for every operation. What was recorded once runs again
without Python. A recording belongs to a model with its weights where they are, to a shape, a method, its options and torch's
settings; when any of these is another, another one is made. Values are not looked at: weights may change in place.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from abslrp.query import Answer, Query, check_model, check_values, parts_of
from abslrp.registry import Method
from abslrp.types import AbslrpError, brief, capturing, out_of_memory, said

_MOST, _SHARE = 16, 4  # recordings of a model, and the part of the GPU's memory that they may hold: a fourth
_TRIES = 2
_ATTENTIONS = ("flash", "mem_efficient", "math", "cudnn")
_PLAIN = (bool, int, float, str, type(None))
_QUICK = set(_PLAIN)
_WITHOUT = (type, torch.dtype, torch.device, torch.layout, torch.memory_format)  # what holds no tensors
_SEVERAL = (dict, list, tuple, set, frozenset)
_OWN = set(vars(nn.Module()))
_DEPTH, _MANY = 4, 1024  # of what modules hold in lists and dicts
_NEAR = 1e-2

Ask = Callable[[Method, Query, dict[str, Any]], Answer]


@dataclass
class Recording:
    """A graph with the memory it reads and writes, and what of the model it took for granted.

    The model's tensors are held, too: a replay then reads no memory that has gone, and may begin before it is known whether they
    were replaced. It waits for that where not all that a module holds could be seen (``open``).
    """

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    targets: Tensor | None
    answer: Answer
    model: list[Any]
    held: list[torch.UntypedStorage]
    open: bool
    size: int
    free: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())

    def reaches(self, query: Query) -> bool:
        """Whether the classes that are asked for were there when this was recorded."""
        if query.targets is None:
            return True
        return max(query.highest, int(query.targets.max())) < self.answer.outputs.shape[1]

    def replay(self, query: Query, finite: Tensor | None = None) -> Answer:
        """The answer for other inputs; where they are not ``finite``, which may not be known yet, one that means nothing."""
        stream = torch.cuda.current_stream(self.inputs.device)
        stream.wait_event(self.free)
        self.inputs.copy_(query.inputs if finite is None else torch.where(finite, query.inputs, self.inputs))
        if self.targets is not None and query.targets is not None:
            self.targets.copy_(query.targets)
        self.graph.replay()
        found = Answer(*(part.clone() for part in self.answer))
        self.free.record(stream)
        return found


_recordings: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, Recording]] = WeakKeyDictionary()
_lock = threading.RLock()


def recorded(ask: Ask, tf32: bool, method: Method, query: Query, options: dict[str, Any]) -> Answer:
    """What ``ask`` answers, from a recording that is made where there is none yet."""
    model: Any = query.model
    if capturing(query.inputs):
        _look(query, None)
        return ask(method, query, options)
    with _lock, torch.cuda.device(query.inputs.device):
        mine = _recordings.setdefault(model, OrderedDict())
        key = (
            method.name,
            tuple(sorted(options.items())),
            query.at,
            query.targets is None,
            tf32,
            *_settings(query.inputs),
        )
        found, answer = mine.get(key), None
        values = None if query.checked else _Values(query.inputs)
        if found is not None and not found.open and found.reaches(query):
            answer = found.replay(query, None if values is None else values.finite)
        # The rest is looked at while the GPU is at work; what it makes is thrown away if it was the wrong thing.
        _look(query, values)
        state = _state(model)
        if found is None or found.model != state:
            found = answer = None
            for old in [k for k, one in mine.items() if one.model != state]:
                _drop(mine, old)  # their memory goes before the new one needs it
            mine[key] = found = _record(lambda still: ask(method, still, options), query, method.name)
        mine.move_to_end(key)
        room = torch.cuda.get_device_properties(query.inputs.device).total_memory // _SHARE
        while len(mine) > _MOST or (len(mine) > 1 and sum(one.size for one in mine.values()) > room):
            _drop(mine, next(iter(mine)))
        if answer is None:
            if query.targets is not None:
                query.aim(found.answer.outputs)  # a class that is not there must not reach the GPU
            answer = found.replay(query)
    if query.targets is None:
        query.aim(answer.outputs)  # predicted from numbers
    return answer


class _Values:
    """Whether inputs are finite, asked of the GPU before it has anything else to do, so that the answer is there early."""

    def __init__(self, inputs: Tensor) -> None:
        self.finite = inputs.isfinite().all()
        self._here = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
        self._here.copy_(self.finite, non_blocking=True)
        self._known = torch.cuda.current_stream(inputs.device).record_event()

    def check(self) -> None:
        self._known.synchronize()
        check_values(self._here)


def _look(query: Query, values: _Values | None) -> None:
    """What :func:`make_query` left for later."""
    model: Any = query.model
    if not query.checked:
        check_model(model)
    _check_hooks(model)
    if values is not None:
        values.check()


def _check_hooks(model: nn.Module) -> None:
    if any([m._forward_hooks or m._forward_pre_hooks for m in parts_of(model)]):
        hooked = next(n for n, m in model.named_modules() if m._forward_hooks or m._forward_pre_hooks)
        raise AbslrpError(
            f"cuda_graph=True cannot be used with the hooks on {hooked or 'the model'}, which would not run again: "
            "leave cuda_graph out."
        )


def _drop(mine: OrderedDict[Hashable, Recording], key: Hashable) -> None:
    mine.pop(key).free.synchronize()  # another stream may be at it


def forget(model: nn.Module) -> None:
    """Give back the memory of a model's recordings, with the weights they read; the model's end does so, too."""
    with _lock:
        for one in _recordings.pop(model, {}).values():
            one.free.synchronize()


def check(query: Query, options: dict[str, Any]) -> None:
    """Whether explanations can be recorded at all."""
    model = query.model
    wrong = ""
    if not query.inputs.is_cuda:
        wrong = f"needs inputs on a CUDA device, and these are on {query.inputs.device}"
    elif not query.divisible:
        wrong = "cannot be used with forward=, whose own tensors cannot be seen"
    elif not isinstance(model, nn.Module):
        wrong = "needs a torch.nn.Module, since the weights of a plain function cannot be seen"
    else:
        odd = next((n for n, value in options.items() if not _plain(value)), None)
        if odd is not None:
            wrong = f"cannot be used with {odd}={brief(options[odd])}, only with options that are numbers or names"
    if wrong:
        raise AbslrpError(f"cuda_graph=True {wrong}: leave cuda_graph out.")
    if query.checked and isinstance(model, nn.Module):
        _check_hooks(model)


def _record(run: Callable[[Query], Answer], query: Query, name: str) -> Recording:
    model: Any = query.model
    x = query.inputs.detach().clone()
    targets = None if query.targets is None else query.targets.to(x.device, copy=True)
    still = replace(query, inputs=x, targets=targets)
    side = torch.cuda.Stream(x.device)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        for _ in range(_TRIES):  # kernels are compiled and chosen, which cannot be recorded
            expected = run(still)
    torch.cuda.current_stream(x.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.memory_reserved(x.device)
    try:
        with torch.cuda.graph(graph, stream=side), _no_garbage():
            answer = run(still)
    except Exception as error:
        if out_of_memory(error):
            raise
        raise AbslrpError(
            f"{name} on {type(query.model).__name__} cannot be recorded as a CUDA graph, which sees no values "
            f"({said(error)}): leave cuda_graph out."
        ) from error
    size = torch.cuda.memory_reserved(x.device) - before
    held, hidden = _holdings(model)
    found = Recording(graph, x, targets, answer, _state(model), held, hidden, size)
    if not _alike(found.replay(still).maps, expected.maps):
        raise AbslrpError(
            f"{name} on {type(query.model).__name__} gave another map when its CUDA graph was replayed, so something in it "
            "changes from call to call: leave cuda_graph out."
        )
    return found


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Memory of somebody else's that Python gave back just now would end the recording."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _alike(maps: Tensor, expected: Tensor) -> bool:
    apart = (maps - expected).nan_to_num(0.0).abs().sum()
    return bool(apart <= _NEAR * expected.nan_to_num(0.0).abs().sum())


def _settings(x: Tensor) -> tuple[Hashable, ...]:
    """What decides which kernels run."""
    return (
        tuple(x.shape),
        x.dtype,
        x.device,
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        *(getattr(torch.backends.cudnn, name) for name in ("enabled", "deterministic", "benchmark")),
        *_products(),
        *(getattr(torch.backends.cuda, f"{name}_sdp_enabled", bool)() for name in _ATTENTIONS),
        torch.are_deterministic_algorithms_enabled(),
    )


def _products() -> Iterator[Hashable]:
    """How products are rounded; torch's older names raise where its newer ones were used."""
    matmul = torch.backends.cuda.matmul
    yield matmul.allow_fp16_reduced_precision_reduction
    yield matmul.allow_bf16_reduced_precision_reduction
    for read in (lambda: torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision):
        try:
            yield read()
        except RuntimeError:
            yield None
    for place in (torch.backends.cudnn, matmul):
        for part in (place, getattr(place, "conv", None)):
            yield getattr(part, "fp32_precision", None)


def _state(model: nn.Module) -> list[Any]:
    """Where the tensors of a model lie, and its settings."""
    found: list[Any] = []
    for module in parts_of(model):
        # The class by its number: a class may hold its module, which would then never end.
        found += (id(module), id(type(module)), *map(id, module._modules.values()))
        for group in (module._parameters, module._buffers):
            if group:
                found += [None if t is None else (t.data_ptr(), t.shape, t.stride(), t.dtype) for t in group.values()]
        for name, value in vars(module).items():
            if type(value) in _QUICK:
                if name[0] != "_":
                    found += (name, value)
            elif name[0] != "_" or isinstance(value, Tensor) or (name not in _OWN and isinstance(value, _SEVERAL)):
                found.append((name, _seen(value)))
    return found


def _seen(value: Any, depth: int = _DEPTH) -> Any:
    """What is in lists and dicts, how and where a tensor lies, and of anything else which object it is."""
    if _plain(value):
        return value
    if isinstance(value, Tensor):
        return (value.data_ptr(), value.shape, value.stride(), value.dtype) if _strided(value) else id(value)
    inner = _inner(value, depth)
    return id(value) if inner is None else (id(type(value)), [_seen(one, depth - 1) for one in inner])


def _inner(value: Any, depth: int) -> list[Any] | None:
    """What is in a list or dict, if it is not too large to be looked at each time."""
    if not depth or not isinstance(value, _SEVERAL) or len(value) > _MANY:
        return None
    return [part for item in value.items() for part in item] if isinstance(value, dict) else list(value)


def _holdings(model: nn.Module) -> tuple[list[torch.UntypedStorage], bool]:
    """The memory of a model's tensors, and whether there may be more, in objects that are not looked into."""
    held: list[torch.UntypedStorage] = []
    hidden = False

    def take(value: Any, depth: int) -> bool:
        """Whether all of it was seen."""
        if isinstance(value, Tensor):
            if value.is_cuda and _strided(value):
                held.append(value.untyped_storage())
            return _strided(value)
        inner = _inner(value, depth)
        if inner is not None:
            return all([take(one, depth - 1) for one in inner])
        return _plain(value) or isinstance(value, _WITHOUT)

    for module in parts_of(model):
        for group in (module._parameters, module._buffers):
            for tensor in group.values():
                take(tensor, 0)
        for name, value in vars(module).items():
            if name not in _OWN and not take(value, _DEPTH) and name[0] != "_":
                hidden = True
    return held, hidden


def _strided(value: Tensor) -> bool:
    return value.layout is torch.strided and not value.is_nested


def _plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_plain, value)))
