"""The elementwise steps of :mod:`abslrp.propagation.balance` in C on a CPU, where a C compiler is found.

``native.c`` is compiled the first time that a large tensor needs it, which takes a few seconds, and kept in the user's own cache
folder for this source, compiler and processor. Without a compiler, or with ABSLRP_NATIVE=0, torch's own functions do the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from abslrp.propagation.kernels import KINDS, Recipe

SMALLEST = 1 << 15
_SOURCE = Path(__file__).with_name("native.c")
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
_SECONDS = 120
_AGREE, _CENTRED, _WEIGHTED, _FIRST, _SECOND = 1, 2, 4, 8, 16
_GAIN = 3
# How many operands must be as large as R, and of which others the flags tell that they differ along columns.
_WHOLE = {"shares": 2, "halves": 2}
_COLUMNS = {"halves": {_FIRST: (1, 2)}, "sum": {_FIRST: (0, 1)}, "norm": {_FIRST: (0, 2), _SECOND: (2, 4)}}

Shape = tuple[int, int, int]


class _Job(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("segments", "middle", "inner", "neighbours", "batch")),
        ("strides", ctypes.c_int64 * 12),
        *((name, ctypes.c_float) for name in ("eps", "first", "second")),
        *((name, ctypes.c_int32) for name in ("kind", "flags", "joint", "threads")),
    )


class _Place(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("r", "a", "b", "c", "d", "e", "out", "other"))


def usable(R: Tensor) -> bool:
    """Whether a step of this size is worth it here."""
    return R.device.type == "cpu" and R.dtype == torch.float32 and R.numel() >= SMALLEST and _library() is not None


class _How(NamedTuple):
    """All of a job that does not depend on the values; ``missing`` are the lengths of operands that are not there."""

    middle: int
    inner: int
    strides: tuple[int, ...]
    flags: int
    missing: tuple[int, ...]


@lru_cache(maxsize=4096)
def _how(recipe: Recipe, shapes: tuple[Shape, ...], layout: Any) -> _How | None:
    """None where the operands do not lie as the formula wants."""
    whole: Shape = layout.shape
    _, middle, inner = whole
    if any(shapes[k] != whole for k in recipe.slots[: _WHOLE.get(recipe.kind, 1)]):
        return None
    others = [shapes[k] if k >= 0 else None for k in recipe.slots[1:]] + [None] * (5 - len(recipe.slots))
    if recipe.kind in ("shares", "factor") or (recipe.kind == "sum" and others[0] == whole):
        middle, inner = 1, middle * inner
        others = [(whole[0], middle, inner) if shape == whole else None for shape in others]
    flags = _AGREE * recipe.agreeing
    if recipe.kind == "norm":
        flags |= _CENTRED * recipe.centred | _WEIGHTED * recipe.weighted
    missing = [1] * 4
    for flag, (start, end) in _COLUMNS.get(recipe.kind, {}).items():
        lengths = {shape[2] for shape in others[start:end] if shape is not None}
        if len(lengths) > 1:
            return None
        if lengths and lengths != {1}:
            flags |= flag
            missing[start:end] = [inner] * (end - start)
    strides = [s for shape in others for s in _strides(shape)]
    return _How(middle, inner, tuple(strides), flags, tuple(missing))


def _strides(shape: Shape | None) -> tuple[int, int, int]:
    """Along segments, rows and columns, 0 where the operand is the same all along."""
    if shape is None:
        return (0, 0, 0)
    first, second, third = shape
    return (second * third * (first > 1), third * (second > 1), int(third > 1))


def run(
    recipe: Recipe,
    R: Tensor,
    operands: Sequence[Tensor],
    shapes: tuple[Shape, ...],
    layout: Any,
    batch: int,
    joint: bool,
    out: Tensor | None = None,
) -> tuple[Tensor, ...] | None:
    """The scaled results, the first in ``out`` where it is given; None where no formula fits."""
    how, library = _how(recipe, shapes, layout), _library()
    if how is None or library is None or any(t.dtype != torch.float32 for t in operands):
        return None
    R = R.contiguous()
    kept = [operands[k].contiguous() if k >= 0 else None for k in recipe.slots]
    kept += [None] * (5 - len(kept))
    for place, length in enumerate(how.missing, 1):
        if kept[place] is None:
            kept[place] = torch.full((length,), 1.0 if place == _GAIN else 0.0)
    results = [torch.empty_like(R) if out is None else out]
    if recipe.kind == "sum":
        results.append(torch.empty_like(R))
    job = _Job(layout.shape[0], how.middle, how.inner, layout.neighbours, batch, (ctypes.c_int64 * 12)(*how.strides))
    job.eps, job.first, job.second = recipe.eps, recipe.first, recipe.second
    job.kind, job.flags, job.joint, job.threads = KINDS[recipe.kind], how.flags, joint, torch.get_num_threads()
    place_of = _Place(*(t.data_ptr() for t in (R, *kept, results[0], results[-1])))  # type: ignore[union-attr]
    count = layout.shape[0] * library.abslrp_groups(ctypes.byref(job))
    room = torch.empty(4 * (count + batch), dtype=torch.float64)
    scales = torch.empty(4 * batch)
    pointers = (room.data_ptr(), room.data_ptr() + 32 * count, scales.data_ptr())
    if library.abslrp_run(ctypes.byref(job), ctypes.byref(place_of), *map(ctypes.c_void_p, pointers)):
        return None
    return tuple(results)


# ---------------------------------------------------------------- compiling


@cache
def _library() -> Any:
    """The compiled source, or None where there is no way to it."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if os.environ.get("ABSLRP_NATIVE") == "0" or compiler is None or os.name != "posix":
        return None
    try:
        library = _opened(compiler)
        library.abslrp_groups.restype = ctypes.c_int64
        return library
    except (OSError, subprocess.SubprocessError):
        return None


def _opened(compiler: str) -> Any:
    """From the user's cache, by this source, compiler, processor and torch; without one from a folder that goes at once."""
    told = (_SOURCE.read_text(), compiler, str(Path(compiler).stat().st_mtime_ns), _processor(), torch.__version__)
    name = hashlib.sha256("\n".join((*told, *_FLAGS)).encode()).hexdigest()[:32] + ".so"
    home = _own_folder()
    if home is None:
        with tempfile.TemporaryDirectory(prefix="abslrp-") as folder:
            return ctypes.CDLL(str(_made(compiler, Path(folder, name))))
    library = home / name
    return ctypes.CDLL(str(library if library.is_file() else _made(compiler, library)))


def _made(compiler: str, library: Path) -> Path:
    """Compiled under another name first, so that nobody opens half of it."""
    unfinished = library.with_name(f"{library.name}.{os.getpid()}")
    subprocess.run(
        [compiler, *_FLAGS, str(_SOURCE), "-o", str(unfinished), "-lm"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=_SECONDS,
    )
    unfinished.replace(library)
    return library


def _own_folder() -> Path | None:
    """The user's cache folder, unless somebody else may write to it: what lies there is run."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "abslrp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if private and os.access(folder, os.W_OK) else None


def _processor() -> str:
    """What -march=native depends on: a home folder may be shared by machines of many kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = [line for line in dict.fromkeys(lines) if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join([platform.machine(), platform.processor(), platform.system(), *told])


__all__ = ["run", "usable"]
