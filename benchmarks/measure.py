"""Time, peak memory and floating-point operations of jobs that run in turn in one process."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Measured(NamedTuple):
    """Medians; ``refused`` tells why there are none."""

    seconds: float = 0.0
    memory: int = 0
    flops: int = 0
    refused: str = ""


def measure(jobs: Mapping[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, Measured]:
    """Every job once to warm up, once for its memory and operations, then all in turn for their time."""
    found: dict[str, Measured] = {}
    for name, job in jobs.items():
        try:
            job()
        except Exception as error:  # of other libraries anything may come
            found[name] = Measured(refused=_first_line(error))
            continue
        found[name] = Measured(memory=peak(job, device), flops=operations(job))
    times: dict[str, list[float]] = {name: [] for name, one in found.items() if not one.refused}
    for _ in range(rounds):
        for name in times:
            times[name].append(seconds(jobs[name], device))
    return {name: one if one.refused else one._replace(seconds=median(times[name])) for name, one in found.items()}


def seconds(job: Callable[[], Any], device: str) -> float:
    if device.startswith("cuda"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        job()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


def operations(job: Callable[[], Any]) -> int:
    """Multiplications and additions of products and convolutions, forward and backward."""
    with _Counter() as counter:
        job()
    return counter.total


class _Counter(TorchDispatchMode):
    """torch's own formulas, without its module tracker, which does not survive a gradient to the input."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


def peak(job: Callable[[], Any], device: str) -> int:
    """Bytes above what was held before: of the allocator on CUDA, of the process elsewhere (Linux only, else 0)."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        job()
        return int(torch.cuda.max_memory_allocated() - before)
    if sys.platform != "linux":
        return 0
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        job()
        return max(_status("VmHWM") - before, 0)
    except (OSError, StopIteration):
        return 0


def resident() -> int:
    """Bytes that the process holds now (Linux only, else 0)."""
    return _status("VmRSS") if sys.platform == "linux" else 0


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _first_line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"[:120]
