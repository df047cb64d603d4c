"""How many inputs may go through at once: found from the memory at hand, halved where that was too many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_SHARE = 0.5
_MOST = {"cuda": 256, "cpu": 8}
_PROBE = 2
_UNKNOWN = 4 * 2**30
# The engine keeps about three times what a plain backward keeps, and a method may hold two maps more.
_FACTOR = 4


def batch_size(run: Callable[[Tensor], Any], inputs: Tensor, budget: int | None = None) -> int:
    """How many inputs fit the budget in bytes (half of what is free, if none is given) when ``run`` is called on them.

    On CUDA the peak of a run of two is measured. Elsewhere what autograd keeps for one is counted; there, more than eight
    at once would not be faster.

    >>> layer = torch.nn.Linear(1000, 1000)
    >>> batch_size(layer, torch.randn(3, 1000), budget=10 * layer.weight.nbytes) >= 1
    True
    """
    kind = inputs.device.type
    room = free_memory(inputs.device) * _SHARE if budget is None else budget
    cost = _cuda_cost(run, inputs[:_PROBE]) if kind == "cuda" else _saved_bytes(run, inputs[:1]) * _FACTOR
    return max(1, min(_MOST.get(kind, _MOST["cpu"]), int(room // max(cost, 1))))


def free_memory(device: torch.device) -> int:
    """Bytes that could still be had."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return _UNKNOWN


def out_of_memory(error: BaseException) -> bool:
    """Whether an error tells that memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def halving(run: Callable[[Tensor, Tensor], T], first: Tensor, second: Tensor, join: Callable[[list[T]], T]) -> T:
    """``run`` on both, in halves where the memory does not suffice for all at once."""
    try:
        return run(first, second)
    except Exception as error:
        if not out_of_memory(error) or len(first) == 1:
            raise
    if first.is_cuda:
        torch.cuda.empty_cache()
    middle = len(first) // 2
    parts = [halving(run, first[s], second[s], join) for s in (slice(0, middle), slice(middle, None))]
    return join(parts)


def _cuda_cost(run: Callable[[Tensor], Any], inputs: Tensor) -> float:
    torch.cuda.reset_peak_memory_stats(inputs.device)
    before = torch.cuda.memory_allocated(inputs.device)
    run(inputs)
    return (torch.cuda.max_memory_allocated(inputs.device) - before) / len(inputs)


def _saved_bytes(run: Callable[[Tensor], Any], inputs: Tensor) -> int:
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.enable_grad():
        run(inputs.detach().clone().requires_grad_())
    return sum(kept.values())
