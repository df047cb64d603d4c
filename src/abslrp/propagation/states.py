"""What the engine knows of a tensor, beside its values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from abslrp.propagation.axes import Axis, fits
from abslrp.propagation.functions import Planned, Remade


class State:
    """What the engine knows of a tensor: where its batch lies, whether it is ≥ 0, whether it is an attention matrix.

    ``loose`` tells that elements that are 0 may get relevance; ``sources`` are tensors whose elements these are; ``raw`` that
    they are the input's, moved, scaled or shifted at most; ``remade`` how the tensor can be made again.
    """

    __slots__ = ("attention", "axis", "loose", "nonnegative", "raw", "remade", "sources", "version")

    def __init__(
        self,
        axis: Axis | None,
        nonnegative: bool,
        attention: bool,
        version: int,
        sources: Iterable[State] = (),
        raw: bool = False,
    ) -> None:
        self.axis, self.nonnegative, self.attention, self.version = axis, nonnegative, attention, version
        self.loose, self.sources, self.raw = False, tuple(sources), raw
        self.remade: Remade | None = None

    def loosen(self) -> None:
        waiting = [self]
        while waiting:
            state = waiting.pop()
            if not state.loose:
                state.loose = True
                waiting.extend(state.sources)


def agreed(planned: Planned, states: Sequence[State], output: Tensor, batch: int) -> Axis | None:
    """Where the batch lies in what an operation made, if all of its inputs agree."""
    shape, found = output.shape, None
    for n, (state, x) in enumerate(zip(states, planned.inputs, strict=True)):
        way = planned.follow(state.axis, n, x.shape, shape) if state.axis else None
        way = fits(way, shape, batch)
        if way is None or (n and way != found):
            return None
        found = way
    return found


def mark_head(outputs: Tensor) -> None:
    """Tell the operations that make the outputs, down to the first linear ones, that they are the model's head."""
    nodes, seen = [outputs.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        meta = getattr(node, "meta", None)
        if isinstance(meta, dict) and "head" in meta:
            if meta["head"]:
                continue
            meta["head"] = True
            if node.kind.kind in ("affine", "product", "norm"):  # type: ignore[union-attr]
                continue
        nodes.extend(parent for parent, _ in getattr(node, "next_functions", ()) if parent is not None)


def remade(x: Tensor, state: State) -> Remade | None:
    """How to make a tensor again, where it is still what it was when it was made."""
    return state.remade if state.version == x._version else None


def writable(written: Tensor, x: Tensor) -> bool:
    """Whether an operation may write over its input as the model does: not over a view, which others share, or an input."""
    return written is x and not written._is_view() and not written.is_leaf
