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
_NEAR = 1e-2

Ask = Callable[[Method, Query, dict[str, Any]], Answer]


@dataclass
class Recording:
    """A graph with the memory it reads and writes, and what of the model it took for granted.

    The model's tensors are held, too, so that a replay reads no memory that has gone while it is found out that they were replaced.
    """

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    targets: Tensor | None
    answer: Answer
    model: list[Any]
    held: list[torch.UntypedStorage]
    size: int
    free: torch.cuda.Event = field(default_factory=torch.cuda.Event)

    def reaches(self, query: Query) -> bool:
        """Whether the classes that are asked for were there when this was recorded."""
        if query.targets is None:
            return True
        return max(query.highest, int(query.targets.max())) < self.answer.outputs.shape[1]

    def replay(self, query: Query) -> Answer:
        stream = torch.cuda.current_stream(self.inputs.device)
        stream.wait_event(self.free)
        self.inputs.copy_(query.inputs)
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
    look = _looking(query)
    if capturing(query.inputs):
        look()
        return ask(method, query, options)
    model: Any = query.model
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
        if found is not None and found.reaches(query):
            answer = found.replay(query)
        # Looked at while the GPU is at work: what it reads is held, and what it makes is thrown away if it was the wrong thing.
        look()
        if found is not None and found.model != _state(model):
            del mine[key]  # its memory goes before the new one needs it
            found = answer = None
        if found is None:
            mine[key] = found = _record(lambda still: ask(method, still, options), query, method.name)
        mine.move_to_end(key)
        room = torch.cuda.get_device_properties(query.inputs.device).total_memory // _SHARE
        while len(mine) > _MOST or (len(mine) > 1 and sum(one.size for one in mine.values()) > room):
            mine.popitem(last=False)
        if answer is None:
            if query.targets is not None:
                query.aim(found.answer.outputs)  # a class that is not there must not reach the GPU
            answer = found.replay(query)
    if query.targets is None:
        query.aim(answer.outputs)  # predicted from numbers
    return answer


def _looking(query: Query) -> Callable[[], None]:
    """What checks the rest of a query. Whether its values are finite is asked of the GPU now, before it has anything else to do."""
    finite = None
    if not query.checked and not capturing(query.inputs):
        finite = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
        finite.copy_(query.inputs.isfinite().all(), non_blocking=True)
        known = torch.cuda.current_stream(query.inputs.device).record_event()

    def look() -> None:
        model: Any = query.model
        if not query.checked:
            check_model(model)
        if any([m._forward_hooks or m._forward_pre_hooks for m in parts_of(model)]):
            hooked = next(n for n, m in model.named_modules() if m._forward_hooks or m._forward_pre_hooks)
            raise AbslrpError(
                f"cuda_graph=True cannot be used with the hooks on {hooked or 'the model'}, which would not run again: "
                "leave cuda_graph out."
            )
        if finite is not None:
            known.synchronize()
            check_values(finite)

    return look


def forget(model: nn.Module) -> None:
    """Give back the memory of a model's recordings; the model's end does so, too."""
    with _lock:
        _recordings.pop(model, None)


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
    held = [t.untyped_storage() for t in _tensors(model) if t.is_cuda and t.layout is torch.strided]
    found = Recording(graph, x, targets, answer, _state(model), held, size)
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
        found += (id(module), type(module), *map(id, module._modules.values()))
        for group in (module._parameters, module._buffers):
            if group:
                found += [None if t is None else (t.data_ptr(), t.shape, t.stride()) for t in group.values()]
        for name, value in vars(module).items():
            if type(value) in _QUICK:
                if name[0] != "_":
                    found += (name, value)
            elif name[0] != "_" or isinstance(value, Tensor):
                found.append((name, _seen(value)))
    return found


def _seen(value: Any) -> Any:
    """What is in a list or dict, where a tensor lies, and of anything else which object it is."""
    if isinstance(value, dict):
        return [(_one(k), _one(v)) for k, v in value.items()]
    return [_one(v) for v in value] if isinstance(value, (list, tuple, set)) else _one(value)


def _one(value: Any) -> Any:
    if _plain(value):
        return value
    return value.data_ptr() if isinstance(value, Tensor) and value.layout is torch.strided else id(value)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    """The tensors of a model: weights, buffers, and those in lists and dicts of its modules."""
    for module in parts_of(model):
        for value in vars(module).values():
            several = (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, (list, tuple, set))
                else (value,)
            )
            yield from (one for one in several if isinstance(one, Tensor))


def _plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_plain, value)))
