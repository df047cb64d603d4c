"""The autograd function that stands in for an operation: its forward is the operation, its backward asks the rule."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from abslrp.propagation.axes import Axis, BatchLost
from abslrp.propagation.conservation import Conserve, each
from abslrp.propagation.coverage import mass
from abslrp.propagation.kinds import Kind, Norm, summed
from abslrp.propagation.rules import Call, Steps, Transport


@dataclass(slots=True, eq=False)
class Planned:
    """An operation as the table of operations describes it, before it runs.

    ``inputs`` are the tensors that take relevance, ``compute`` runs the operation itself, ``follow`` tells where the batch
    lies in the output, given the axis in an input, the number of that input, its shape and the output's.
    """

    kind: Kind
    inputs: tuple[Tensor, ...]
    compute: Callable[[], Tensor]
    follow: Callable[[Axis, int, Sequence[int], Sequence[int]], Axis | None]
    nonnegative: bool = False
    attention: bool = False


class Host(Protocol):
    """What the backward needs of the engine."""

    batch: int
    conserve: Conserve
    last_pass: bool
    measuring: bool
    unlinked: bool

    def rule(self, kind: Kind, call: Call, head: bool, first: bool) -> Steps: ...
    def measured(self, record: int, R: Tensor, change: Any) -> None: ...


class Kept:
    """Tensors kept for the backward. Held by reference; cloned by :class:`Keeper` just before someone writes over them."""

    __slots__ = ("__weakref__", "tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors: list[Tensor] = list(tensors)


@dataclass(slots=True, eq=False)
class Remade:
    """A norm's output, which is cheap to make again, instead of kept."""

    kept: Kept
    kind: Norm
    dtype: torch.dtype

    def __call__(self) -> Tensor:
        return _wide(self.kind.value([_wide(self.kept.tensors[0])]).to(self.dtype))


class Keeper:
    """Knows who keeps which memory, so that in-place operations never change what a rule will see."""

    def __init__(self) -> None:
        self._by_storage: dict[int, list[weakref.ref[Kept]]] = {}

    def keep(self, tensors: Sequence[Tensor]) -> Kept:
        kept = Kept([t if t.is_meta else t.detach() for t in tensors])
        reference, known = weakref.ref(kept), self._by_storage
        for tensor in kept.tensors:
            if not tensor.is_meta:
                known.setdefault(_storage(tensor), []).append(reference)
        return kept

    def about_to_write(self, target: Tensor) -> None:
        """Give every keeper of this memory a copy of its own."""
        place = _storage(target)
        for reference in self._by_storage.pop(place, ()):
            kept = reference()
            if kept is not None:
                kept.tensors = [t.clone() if _storage(t) == place else t for t in kept.tensors]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class Relevance(torch.autograd.Function):
    """Forward: the operation. Backward: R at the output to r at the inputs, by rule and conservation.

    Rules compute in float32 at least: in half precision 1/(|h| + ε) would overflow.
    """

    @staticmethod
    def forward(
        ctx: Any, host: Host, planned: Planned, keeper: Keeper, meta: dict[str, Any], *inputs: Tensor
    ) -> Tensor:
        writes = meta.pop("writes", None)
        output: Tensor = planned.compute() if writes is None else writes()
        if writes is not None:
            ctx.mark_dirty(output)
        elif output._is_view() or any([output is x for x in inputs]):
            output = output.clone()
        # The engine holds attention matrices, which hold this graph: a strong reference back would keep all of it for ever,
        # because Python's garbage collector does not see through autograd's nodes.
        ctx.host, ctx.kind, ctx.meta = weakref.proxy(host), planned.kind, meta
        meta["shape"], keeps = output.shape, meta["keeps"]
        shown = [
            _outline(x.shape, x.dtype) if keeps == "nothing" or again is not None else x
            for x, again in zip(inputs, meta["remade"], strict=True)
        ]
        meta["kept"] = ctx.kept = keeper.keep([*shown, output] if keeps == "all" else shown)
        return output

    @staticmethod
    def backward(ctx: Any, R: Tensor) -> tuple[Any, ...]:
        host, meta = ctx.host, ctx.meta
        if "lost" in meta and bool(R.any()):
            raise BatchLost(
                f"{meta['lost']} mixes or moves the batch in a way that cannot be followed: pass one sample at a time."
            )
        maps: tuple[Tensor, ...] = (_wide(R),)
        if meta["passing"] and not meta["state"].loose and not host.unlinked:
            if host.measuring:
                host.measured(meta["record"], R, 0.0)
            shape = ctx.kept.tensors[0].shape
            _forget(host, ctx)
            return (None, None, None, None, summed(maps[0], shape))
        kept = [_wide(t) for t in ctx.kept.tensors]
        count = len(meta["inputs"])
        inputs, output = kept[:count], kept[count] if len(kept) > count else None
        if meta["keeps"] != "nothing":
            inputs = [x if again is None else again() for x, again in zip(inputs, meta["remade"], strict=True)]
        if meta["late"] is not None:  # of a silent gate the output tells as much as the input
            inputs = [_wide(t) for t in meta["late"].tensors]
        call = Call(inputs, meta["nonnegative"], output, meta["output"], host.batch, meta["shape"], ctx.kind)
        steps = host.rule(ctx.kind, call, meta["head"], meta["first"])
        change: Any = 0.0
        for number, step in enumerate(steps):
            axes = meta["inputs"] if number == len(steps) - 1 else (meta["output"],)
            handed: list[Tensor] = []
            before = maps[0]
            maps = host.conserve(
                _metered(step, handed) if host.measuring else step, before, meta["output"], axes, host.batch
            )
            if host.measuring:
                change = change + (handed[0] if host.conserve is not each else sum(map(mass, maps))) - mass(before)
        if host.measuring:
            host.measured(meta["record"], R, change)
        _forget(host, ctx)
        return (None, None, None, None, *maps)


class Rectified(torch.autograd.Function):
    """A rectifier max(x, 0) whose backward is the rectifier of R, and with ``gated`` of active units only."""

    @staticmethod
    def forward(ctx: Any, host: Host, keeper: Keeper, run: Callable[[], Tensor], gated: bool, x: Tensor) -> Tensor:
        output = run()
        if output is x:
            ctx.mark_dirty(x)
        ctx.host, ctx.kept = weakref.proxy(host), keeper.keep([output] if gated else [])
        return output

    @staticmethod
    def backward(ctx: Any, R: Tensor) -> tuple[Any, ...]:
        r = _wide(R).clamp(min=0)
        for output in ctx.kept.tensors:
            r = torch.ops.aten.threshold_backward.default(r, _wide(output), 0)
        if ctx.host.last_pass:
            ctx.kept.tensors = []
        return (None, None, None, None, r)


# Without what torch does before for tensors of torch.func, which the engine refuses.
apply_relevance: Any = super(torch.autograd.Function, Relevance).apply
apply_rectified: Any = super(torch.autograd.Function, Rectified).apply


def _forget(host: Host, ctx: Any) -> None:
    """Free what was kept, once no relevance will come again."""
    if host.last_pass:
        ctx.kept.tensors = []
        if ctx.meta["late"] is not None:
            ctx.meta["late"].tensors = []


def _metered(step: Transport, handed: list[Tensor]) -> Transport:
    """The same step, telling how much it hands out before contributions of opposite sign cancel at an input."""

    def pull(R: Tensor) -> tuple[Tensor, ...]:
        handed.append(mass(R * step.columns()))
        return step.pull(R)

    return Transport(pull, step.columns)


@lru_cache(maxsize=1024)
def _outline(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor of this shape without memory."""
    with torch.inference_mode(False):
        return torch.empty((), dtype=dtype, device="meta").expand(shape)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
