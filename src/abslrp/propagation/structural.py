"""Functions that only move, copy, select or cast elements: their gradient is the right transport of relevance.

For each the place of the batch in the output is known, by one of four ways to follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.propagation import axes
from abslrp.propagation.axes import Axis


def named(names: str, *places: Any) -> set[Callable[..., Any]]:
    """The functions of these names in torch, torch.Tensor (also as in-place forms) and torch.nn.functional."""
    found = set()
    for name in names.split():
        for place in places or (torch, Tensor, F):
            for form in (name, f"{name}_"):
                function = getattr(place, form, None)
                if function is not None:
                    found.add(getattr(function, "__get__", function) if name in _PROPERTIES else function)
    return found


_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}

RESHAPED = named(
    "view reshape flatten unflatten squeeze unsqueeze ravel view_as reshape_as atleast_1d atleast_2d atleast_3d"
)
VIEWED = named(
    "transpose permute t movedim moveaxis swapaxes swapdims expand expand_as broadcast_to select narrow unbind split "
    "split_with_sizes chunk tensor_split hsplit vsplit dsplit __getitem__ unfold diagonal T mT H mH "
    "unsafe_chunk unsafe_split unsafe_split_with_sizes"
)
VIEWED.discard(F.unfold)
LEFT_ALIGNED = {F.fold, F.unfold} | named(
    "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle view_as_real view_as_complex complex "
    "max_unpool1d max_unpool2d max_unpool3d"
)
STACKED = named("stack")
KEPT = named(
    "contiguous clone to float double half bfloat16 type type_as cpu cuda alias "
    "cat concat concatenate hstack vstack dstack column_stack roll flip fliplr flipud pad dropout dropout1d dropout2d dropout3d "
    "alpha_dropout feature_dropout feature_alpha_dropout masked_fill where gather take_along_dim index_select index_copy "
    "index_fill index_put masked_select masked_scatter scatter take repeat tile repeat_interleave tril triu diag diag_embed "
    "select_scatter slice_scatter diagonal_scatter block_diag combinations cartesian_prod meshgrid broadcast_tensors "
    "requires_grad __setitem__ copy sort topk kthvalue resolve_conj resolve_neg pin_memory fill zero fill_diagonal "
    "as_strided msort rename refine_names align_to put __deepcopy__ flatten_dense_tensors argwhere nan_to_num "
    "real imag rot90 as_tensor asarray new_tensor grid_sampler_indices identity"
)
STRUCTURAL = RESHAPED | VIEWED | LEFT_ALIGNED | STACKED | KEPT

# Functions whose output keeps the sign of their input, so that "known to be ≥ 0" survives them.
SIGN_KEEPING = (
    RESHAPED
    | VIEWED
    | LEFT_ALIGNED
    | STACKED
    | named(
        "contiguous clone cat concat concatenate roll flip dropout dropout2d gather index_select repeat repeat_interleave to float"
    )
)


# Functions that may reorder or repeat the batch: where their arguments do not tell, they are tried on the sample numbers.
MOVING = named(
    "__getitem__ index_select gather take_along_dim roll flip fliplr flipud rot90 repeat tile repeat_interleave take msort sort topk"
)
_ALONG = named("index_select gather take_along_dim roll flip repeat_interleave sort topk")


def follow(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: Tensor,
    axis: Axis,
    outputs: Sequence[Tensor],
    batch: int,
) -> list[Axis | None]:
    """The batch's axis in each output of a structural function that got ``source``."""
    shape = source.shape
    moved: Iterable[Axis | None]
    if func in RESHAPED:
        return [axes.reshaped(axis, shape, out.shape, batch) for out in outputs]
    if func is Tensor.__setitem__ and args[0] is not source:
        return [_written(args, source, axis, batch)]
    if func in VIEWED and not any(isinstance(i, (Tensor, list)) for i in _indices((*args[1:], *kwargs.values()))):
        found = _seen(func, args, kwargs, source, axis)
        return [axes.fits(a, out.shape, batch) for a, out in zip(found, outputs, strict=True)]
    if func in MOVING and not (func in _ALONG and _spares(args, kwargs, axis, source.ndim)):
        return _tried(func, args, kwargs, source, axis, len(outputs), batch)
    if func in LEFT_ALIGNED:
        moved = (axes.in_place_of(axis, shape, out.shape) for out in outputs)
    elif func in STACKED:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % (source.ndim + 1)
        moved = [Axis(axis.dim + (dim <= axis.dim), axis.inner)] * len(outputs)
    else:
        moved = [axes.aligned(axis, shape, out.shape) for out in outputs]
    return [_whole(a, axis, shape, out.shape, batch) for a, out in zip(moved, outputs, strict=True)]


def _seen(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], source: Tensor, axis: Axis
) -> Sequence[Axis | None]:
    """The axis of each output of a view, worked out once for each function, shape and arguments."""
    if not kwargs and args[0] is source and all(type(a) in (int, tuple, torch.Size) for a in args[1:]):
        try:
            return _known_view(func, source.shape, axis, args[1:])
        except TypeError:  # slices cannot be looked up
            pass
    return axes.viewed(axis, source.shape, lambda probe: _on(probe, source, func, args, kwargs))


@lru_cache(maxsize=4096)
def _known_view(
    func: Callable[..., Any], shape: torch.Size, axis: Axis, rest: tuple[Any, ...]
) -> tuple[Axis | None, ...]:
    return tuple(axes.viewed(axis, shape, lambda probe: func(probe, *rest)))


def _whole(moved: Axis | None, axis: Axis, old: Sequence[int], new: Sequence[int], batch: int) -> Axis | None:
    moved = axes.fits(moved, new, batch)
    same = moved is not None and (moved.inner != axis.inner or new[moved.dim] == old[axis.dim])
    return moved if same else None


def _on(probe: Tensor, source: Tensor, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same call on another tensor."""
    return func(
        *(probe if a is source else a for a in args), **{k: probe if v is source else v for k, v in kwargs.items()}
    )


def _spares(args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis, ndim: int) -> bool:
    """Whether the dimensions that a function names do not hold the batch."""
    dims = kwargs.get("dim", kwargs.get("dims", args[-1] if len(args) > 1 else None))
    given = [dims] if isinstance(dims, int) else dims
    if (
        "dim" not in kwargs
        and "dims" not in kwargs
        and len(args) > 1
        and isinstance(args[1], int)
        and any(isinstance(a, Tensor) for a in args[2:])
    ):
        given = [args[1]]
    return isinstance(given, (list, tuple)) and all(isinstance(d, int) and d % ndim != axis.dim for d in given)


def _numbers(source: Tensor, axis: Axis, batch: int) -> Tensor:
    """The number of its sample for every element of a tensor."""
    line = torch.arange(source.shape[axis.dim], device=source.device).div(axis.inner, rounding_mode="floor") % batch
    return line.to(torch.int16).reshape([-1 if d == axis.dim else 1 for d in range(source.ndim)]).expand(source.shape)


def _tried(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: Tensor,
    axis: Axis,
    outputs: int,
    batch: int,
) -> list[Axis | None]:
    result = _on(_numbers(source, axis, batch), source, func, args, kwargs)
    results = [result] if isinstance(result, Tensor) else [r for r in result if r.dtype == torch.int16]
    return [axes.read(r, batch) for r in results[:outputs]]


def _written(args: tuple[Any, ...], source: Tensor, axis: Axis, batch: int) -> Axis | None:
    """The axis of a constant tensor into which a part that has one was written."""
    numbers = torch.full(args[0].shape, -1, dtype=torch.int16, device=args[0].device)
    numbers[args[1]] = _numbers(source, axis, batch)
    return axes.read(numbers, batch)


def base_axis(part: Tensor, axis: Axis, batch: int) -> Axis | None:
    """The axis of the tensor that ``part`` is a view of, when the part was written over."""
    base = part._base
    assert base is not None
    numbers = torch.empty_strided(base.shape, base.stride(), dtype=torch.int16, device=base.device).fill_(-1)
    view = numbers.as_strided(part.shape, part.stride(), part.storage_offset() - base.storage_offset())
    view.copy_(_numbers(part, axis, batch))
    return axes.read(numbers, batch)


def _indices(args: Iterable[Any]) -> Iterable[Any]:
    for item in args:
        if isinstance(item, (tuple, list)):
            yield from item
        else:
            yield item
