"""What methods share: baselines, inner batches, a tap on a module."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from abslrp.checks import seed_number
from abslrp.types import AbslrpError, brief

T = TypeVar("T")


def baseline_of(baseline: Any, x: Tensor) -> Tensor:
    """A baseline for every input: a number, or a tensor that broadcasts to the inputs."""
    try:
        value = check_baseline(baseline)
        # A number is written on the device itself: while a CUDA graph is recorded nothing can be sent there.
        on_device = (
            value.to(x.device, x.dtype) if isinstance(baseline, Tensor) or value.ndim else x.new_full((), float(value))
        )
        return on_device.expand(x.shape)
    except RuntimeError:
        raise AbslrpError(
            f"baseline={brief(baseline)} does not fit inputs of shape {tuple(x.shape)}: "
            "pass a number or a tensor that broadcasts to them."
        ) from None


def check_baseline(baseline: Any) -> Tensor:
    """The baseline as a tensor, if it is made of finite real numbers."""
    try:
        value = torch.as_tensor(baseline, device=None if isinstance(baseline, Tensor) else "cpu").detach()
        good = not value.is_complex() and value.dtype != torch.bool and bool(value.isfinite().all())
    except (RuntimeError, TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise AbslrpError(
            f"baseline={brief(baseline)} cannot be read: pass a finite number or a tensor that broadcasts to the inputs."
        )
    return value


def seeded(seed: Any) -> torch.Generator:
    return torch.Generator().manual_seed(seed_number(seed))


class Tap:
    """Takes a module's last output while it runs, and hands the model a copy that it may write over.

    With ``leaf`` gradients begin there: what comes before need not be kept, so run the model under ``torch.no_grad``.
    """

    def __init__(self, module: nn.Module | None, leaf: bool = False) -> None:
        self.value: Tensor | None = None
        self._leaf = leaf
        self._module = module
        self._handle: Any = None
        self._thread = threading.get_ident()

    def __enter__(self) -> Tap:
        if self._module is not None:
            self._handle = self._module.register_forward_hook(self._take)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _take(self, module: nn.Module, args: Any, output: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        if isinstance(output, Tensor):
            return self._begin(output)
        if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
            rest = [self._begin(output[0]), *output[1:]]
            return type(output)(*rest) if hasattr(output, "_fields") else type(output)(rest)
        return None

    def _begin(self, output: Tensor) -> Tensor:
        if self._leaf:
            output = output.detach().requires_grad_()
            torch.set_grad_enabled(True)
        self.value = output
        return output.clone()
