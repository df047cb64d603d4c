"""Pooling, means, sums, maxima and interpolation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abslrp.propagation import axes
from abslrp.propagation.axes import Axis
from abslrp.propagation.functions import Planned
from abslrp.propagation.kinds import Linear, LinearMap, Maximum, vector_jacobian
from abslrp.propagation.operations.table import (
    Engine,
    Row,
    Run,
    follow_aligned,
    follow_same,
    follow_unmoved,
    forms,
    row,
)


def nonnegative_map(
    e: Engine,
    run: Run,
    x: Tensor,
    function: Callable[[Tensor], Tensor],
    follow: Callable[..., Axis | None] = follow_same,
) -> Planned:
    """A linear map with non-negative entries, given by the function itself."""
    maps = [LinearMap(lambda v, _: function(v), lambda g, v, _: vector_jacobian(function, v, g))]
    return Planned(Linear(lambda _: maps), (x,), run, follow, e.nonnegative(x))


def _average(name: str) -> Row:
    function = forms(name)[0]

    def build(e: Engine, run: Run, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        return nonnegative_map(e, run, input, lambda x: function(x, *args, **kwargs))

    return build


for _name in (
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "cumsum",
):
    row(_name)(_average(_name))


def _dims(dim: Any) -> list[int]:
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


def _reduction(function: Callable[..., Tensor]) -> Row:
    def build(
        e: Engine,
        run: Run,
        input: Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        axis: Any = None,
        keepdims: bool | None = None,
        dtype: Any = None,
    ) -> Any:
        over, keep = _dims(axis if dim is None else dim), bool(keepdim or keepdims)
        reduce = (lambda x: function(x, over, keepdim=keep)) if over else (lambda x: function(x))
        return nonnegative_map(e, run, input, reduce, lambda a, _, old, new: axes.reduced(a, over, len(old), keep))

    return build


row("mean")(_reduction(torch.mean))
row("nanmean")(_reduction(torch.nanmean))
row("nansum")(_reduction(torch.nansum))
row("sum")(_reduction(torch.sum))


def _max_pool(name: str) -> Row:
    pool = getattr(F, name)

    def build(e: Engine, run: Run, input: Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Any:
        if return_indices or _called(run).endswith("_with_indices"):
            return lambda: (pool(input, *args, **kwargs), _untouched(run)[1])
        if name == "max_pool2d" and input.ndim == 4:
            return _max_pool2d(e, input, *args, **kwargs)
        plain = lambda x: pool(x, *args, **kwargs)  # noqa: E731
        kind = Maximum(lambda R, t: (vector_jacobian(plain, t[0], R),))
        return Planned(kind, (input,), run, follow_unmoved, e.nonnegative(input))

    return build


def _max_pool2d(
    e: Engine,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Planned:
    """Keeps the winners' places, which the pooling finds anyway."""
    pairs = [[v, v] if isinstance(v, int) else list(v) for v in (kernel_size, stride or kernel_size, padding, dilation)]
    places: list[Tensor] = []

    def compute() -> Tensor:
        h, indices = torch.ops.aten.max_pool2d_with_indices(x, *pairs, ceil_mode)
        places[:] = [indices]
        return h

    def winners(R: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return (back(R.contiguous(), inputs[0], *pairs, ceil_mode, places[0]),)

    return Planned(Maximum(winners), (x,), compute, follow_unmoved, e.nonnegative(x))


for _name in (
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
):
    row(_name, f"_{_name}", f"{_name}_with_indices")(_max_pool(_name))


# ---------------------------------------------------------------- maxima


def _winners(function: Callable[..., Tensor]) -> Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, ...]]:
    """Sends values to where the maxima came from, by torch's own backward of the function."""

    def back(R: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs]
            value = function(*leaves)
        return torch.autograd.grad(value, leaves, R.to(value.dtype))

    return back


@row("amax", "amin", "logsumexp")
def extreme(e: Engine, run: Run, input: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    """The largest or smallest; logsumexp is their soft form, whose weights sum to 1 as a winner's do."""
    over = _dims(dim)
    name = _called(run)
    function = getattr(torch, name)
    follow = lambda a, _, old, new: axes.reduced(a, over, len(old), keepdim)  # noqa: E731
    return Planned(
        Maximum(_winners(lambda x: function(x, dim=over, keepdim=keepdim))),
        (input,),
        run,
        follow,
        name != "logsumexp" and e.nonnegative(input),
    )


def _untouched(run: Run) -> Any:
    """The operation's own result, for the indices in it."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return run()


def _called(run: Run) -> str:
    return str(getattr(run, "name", ""))


@row("max", "min", "median")
def largest(e: Engine, run: Run, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """max and min in their three forms: of everything, along a dimension with indices, of two tensors."""
    name = _called(run)
    if not args and not kwargs:
        return lambda: input.flatten().median(0).values if name == "median" else getattr(torch, f"a{name}")(input)
    second: Any = args[0] if args else kwargs.get("other", kwargs.get("dim"))
    if isinstance(second, Tensor):
        return lambda: getattr(torch, f"{name}imum")(input, second)

    def split() -> Any:
        result = _untouched(run)
        indices = result.indices
        keep = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
        values = input.gather(second, indices if keep else indices.unsqueeze(second))
        return type(result)((values if keep else values.squeeze(second), indices))

    return split


@row("maximum", "minimum", "fmax", "fmin")
def larger(e: Engine, run: Run, input: Tensor, other: Tensor) -> Any:
    function = getattr(torch, _called(run))
    live = tuple(t for t in (input, other) if e.live(t))
    if len(live) == 2:
        kind = Maximum(_winners(function))
    else:
        fixed = (other if e.live(input) else input).detach()
        kind = Maximum(_winners(lambda x: function(x, fixed.to(x.dtype))))
    return Planned(kind, live, run, follow_aligned, e.nonnegative(input) and e.nonnegative(other))


# ---------------------------------------------------------------- interpolation and scattering


class Separable:
    """x ↦ Σ_k H_k x W_kᵀ: interpolation with weights of both signs (bicubic), whose parts are again such sums."""

    nonnegative = False
    fresh = False

    def __init__(self, terms: list[tuple[Tensor, Tensor]]) -> None:
        self._terms = terms

    def apply(self, x: Tensor) -> Tensor:
        return torch.stack([h.to(x) @ x @ w.to(x).mT for h, w in self._terms]).sum(0)

    def adjoint(self, g: Tensor, x: Tensor) -> Tensor:
        return torch.stack([h.to(g).mT @ g @ w.to(g) for h, w in self._terms]).sum(0)

    def adjoints(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.positive().adjoint(g, x), self.negative().adjoint(g, x)

    def positive(self) -> Separable:
        return Separable(
            [(h.clamp(min=0), w.clamp(min=0)) for h, w in self._terms]
            + [(h.clamp(max=0), w.clamp(max=0)) for h, w in self._terms]
        )

    def negative(self) -> Separable:
        return Separable(
            [(h.clamp(min=0), w.clamp(max=0)) for h, w in self._terms]
            + [(h.clamp(max=0), w.clamp(min=0)) for h, w in self._terms]
        )

    def absolute(self) -> Separable:
        return Separable([(h.abs(), w.abs()) for h, w in self._terms])


@row("interpolate", "upsample", "upsample_bilinear", "upsample_nearest")
def interpolate(
    e: Engine,
    run: Run,
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    *args: Any,
    **kwargs: Any,
) -> Any:
    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, size, scale_factor, mode, *args, **kwargs)

    if mode != "bicubic":
        return nonnegative_map(e, run, input, resize)
    height, width = input.shape[-2:]
    eye = lambda n: torch.eye(n, dtype=torch.float64, device=input.device)  # noqa: E731
    rows = resize(eye(height).reshape(height, 1, height, 1).expand(-1, -1, -1, width))[:, 0, :, 0].mT
    columns = resize(eye(width).reshape(width, 1, 1, width).expand(-1, -1, height, -1))[:, 0, 0, :].mT
    map_: Any = Separable([(rows, columns)])
    return Planned(Linear(lambda _: [map_]), (input,), run, follow_same)


@row("grid_sample", "grid_sampler")
def grid_sample(
    e: Engine, run: Run, input: Tensor, grid: Tensor, mode: str = "bilinear", *args: Any, **kwargs: Any
) -> Any:
    """Sampling at places that count as constants."""
    if not e.live(input):
        return lambda: F.grid_sample(input, grid.detach(), mode, *args, **kwargs)
    if mode == "bicubic":
        return NotImplemented
    places = grid.detach()
    return nonnegative_map(e, run, input, lambda x: F.grid_sample(x, places.to(x.dtype), mode, *args, **kwargs))


@row("scatter_reduce")
def scatter_reduce(
    e: Engine, run: Run, input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Sums, means and extremes of a source's elements at their new places, of a constant start."""
    if not e.live(src) or e.live(input) or reduce == "prod":
        return NotImplemented
    start = input.detach()

    def place(x: Tensor, onto: Tensor = start) -> Tensor:
        return torch.scatter_reduce(onto.to(x.dtype), dim, index, x, reduce, include_self=include_self)

    if reduce in ("amax", "amin"):
        return Planned(Maximum(_winners(place)), (src,), run, follow_same)
    zero = torch.zeros_like(start)
    planned = nonnegative_map(e, run, src, lambda x: place(x, zero))
    assert isinstance(planned.kind, Linear)
    bias = _untouched(run) - place(src.detach(), zero)
    return Planned(Linear(planned.kind.maps, bias), planned.inputs, run, follow_same)


@row("index_add", "scatter_add")
def scattered(
    e: Engine,
    run: Run,
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor | None = None,
    *,
    src: Tensor | None = None,
    alpha: float = 1,
) -> Any:
    """input + the source's elements summed at their new places."""
    name, moved = _called(run), source if source is not None else src
    assert moved is not None
    place = getattr(torch, name)
    if not e.live(moved):
        return lambda: torch.add(input, place(torch.zeros_like(input), dim, index, moved), alpha=alpha)
    if e.live(input) or alpha != 1:
        return lambda: torch.add(input, place(torch.zeros_like(input.detach()), dim, index, moved), alpha=alpha)
    zeros = torch.zeros_like(input)
    planned = nonnegative_map(e, run, moved, lambda x: place(zeros.to(x.dtype), dim, index, x))
    assert isinstance(planned.kind, Linear)
    return Planned(Linear(planned.kind.maps, input.detach()), planned.inputs, run, follow_same)
