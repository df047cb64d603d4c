"""What methods share: checked numbers, baselines, inner batches, a tap on a module."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from abslrp.query import Answer, Query
from abslrp.types import AbslrpError

T = TypeVar("T")


def whole(name: str, value: Any, least: int = 1) -> int:
    """The value if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AbslrpError(f"{name}={value!r} must be a whole number of at least {least}.")
    return value


def number(name: str, value: Any, least: float = 0.0, most: float = float("inf")) -> float:
    """The value if it is a number in a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        bound = f"from {least} to {most}" if most < float("inf") else f"of at least {least}"
        raise AbslrpError(f"{name}={value!r} must be a number {bound}.")
    return float(value)


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """The value if it is one of the known names."""
    if value not in known:
        raise AbslrpError(f"{name}={value!r} is unknown: choose one of {', '.join(known)}.")
    return str(value)


def baseline_of(baseline: Any, x: Tensor) -> Tensor:
    """A baseline for every input: a number, or a tensor that broadcasts to the inputs."""
    try:
        value = torch.as_tensor(baseline, dtype=x.dtype, device=x.device)
        return value.expand(x.shape)
    except (RuntimeError, TypeError, ValueError):
        raise AbslrpError(
            f"baseline={baseline if not isinstance(baseline, Tensor) else tuple(baseline.shape)!r} does not fit inputs of "
            f"shape {tuple(x.shape)}: pass a number or a tensor that broadcasts to them."
        ) from None


def shown(items: Sequence[T], title: str, progress: bool) -> Iterator[T]:
    """The items, with a progress bar on request."""
    if not progress:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=title, console=Console(stderr=True))


def gradient(query: Query, x: Tensor, targets: Tensor | None = None) -> Answer:
    """∂(target's output)/∂x for every input, for given targets or those the query aims at."""
    leaf = x.detach().clone().requires_grad_()
    outputs = query.forward(leaf.clone())
    aimed = query.aim(outputs) if targets is None else targets
    return Answer(grad_of(outputs.gather(1, aimed.reshape(-1, 1)), leaf), aimed, outputs.detach())


def grad_of(chosen: Tensor, x: Tensor) -> Tensor:
    """The gradient of a sum of outputs, or one sentence where there is none."""
    if not chosen.requires_grad:
        raise AbslrpError("the outputs do not depend on the inputs: the model's output has no gradient.")
    (g,) = torch.autograd.grad(chosen.sum(), x, allow_unused=True)
    if g is None:
        raise AbslrpError("the outputs do not depend on the inputs, or on the layer that was named.")
    return g


def plain_outputs(query: Query, x: Tensor) -> Tensor:
    with torch.no_grad():
        return query.forward(x.detach().clone())


def seeded(seed: Any) -> torch.Generator:
    return torch.Generator().manual_seed(whole("seed", seed, 0))


class Tap:
    """Takes a module's last output while it runs, and hands the model a copy that it may write over."""

    def __init__(self, module: nn.Module | None) -> None:
        self.value: Tensor | None = None
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
            self.value = output
            return output.clone()
        if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
            self.value = output[0]
            rest = [output[0].clone(), *output[1:]]
            return type(output)(*rest) if hasattr(output, "_fields") else type(output)(rest)
        return None
