"""How many inputs may go through at once: found from the memory at hand, halved where that was too many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from abslrp.types import AbslrpError, brief, out_of_memory

T = TypeVar("T")

_SHARE = 0.5
_MOST = {"cuda": 256, "cpu": 8}
_PROBE = 2
_UNKNOWN = 4 * 2**30
# The engine keeps about three times what a plain backward keeps, and a method may hold two maps more.
_FACTOR = 4


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def amount(name: str, value: Any) -> int:
    """Bytes, given as a number or as a text with a unit.

    >>> amount("max_memory", "1.5 GB"), amount("max_memory", 2**20)
    (1500000000, 1048576)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMG]?I?B)\s*", value.upper()) if isinstance(value, str) else None
    number = value if found is None else float(found[1]) if found[1].count(".") < 2 and found[1] != "." else None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < float("inf"):
        raise AbslrpError(
            f"{name}={brief(value)} must be a number of bytes above 0, or a text such as '500MB' or '4GB'."
        )
    return max(1, int(number * (1 if found is None else _UNITS[found[2]])))


def batch_size(
    run: Callable[[Tensor], Any], inputs: Tensor, budget: int | None = None, weights: Iterable[Tensor] = ()
) -> int:
    """How many inputs fit the budget in bytes (half of what is free, if none is given) when ``run`` is called on them.

    On CUDA the peak of a run of two is measured. Elsewhere what autograd keeps for one is counted, without the ``weights``;
    there, more than eight at once would not be faster.

    >>> layer = torch.nn.Linear(1000, 1000)
    >>> batch_size(layer, torch.randn(3, 1000), budget=10 * layer.weight.nbytes) >= 1
    True
    """
    kind = inputs.device.type
    room = free_memory(inputs.device) * _SHARE if budget is None else budget
    cost = _cuda_cost(run, inputs[:_PROBE]) if kind == "cuda" else _saved_bytes(run, inputs[:1], weights) * _FACTOR
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


def _saved_bytes(run: Callable[[Tensor], Any], inputs: Tensor, weights: Iterable[Tensor]) -> int:
    kept: dict[int, int] = {}
    known = {weight.untyped_storage().data_ptr() for weight in weights}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        # A node that saves its own output would hold itself for ever, through what the hook returns.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.enable_grad():
        run(inputs.detach().clone().requires_grad_())
    return sum(size for place, size in kept.items() if place not in known)
