"""What the call stack knows: in which module an operation runs, and what the model was called with.

Read only when it is needed (an error, a coverage report), so that no hook is ever put on a model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import Tensor, nn


def _module_frames() -> Iterator[tuple[FrameType, nn.Module]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            yield frame, owner
        frame = frame.f_back


def module_path() -> str:
    """The dotted path, from the outermost module, of the module that is running; "" outside of any module."""
    modules = [module for _, module in _module_frames()]
    if not modules:
        return ""
    inner, root = modules[0], modules[-1]
    if inner is root:
        return type(root).__name__
    names = {id(module): name for name, module in root.named_modules(remove_duplicate=False)}
    return names.get(id(inner)) or type(inner).__name__


def root_inputs() -> list[Tensor]:
    """The floating-point tensors that the outermost running module was called with."""
    frames = list(_module_frames())
    if not frames:
        return []
    root = frames[-1][1]
    found: list[Tensor] = []
    for frame, module in reversed(frames):
        if module is root and frame.f_code.co_name in ("_wrapped_call_impl", "_call_impl"):
            _collect((frame.f_locals.get("args"), frame.f_locals.get("kwargs")), found)
            return found
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            found.append(value)
    elif isinstance(value, dict):
        _collect(tuple(value.values()), found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


def where() -> str:
    """For a message: in which module this happens."""
    path = module_path()
    return f" in {path}" if path else ""
