"""The shortest way from a model and inputs to maps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from abslrp import graphs, memory
from abslrp.precision import full_precision
from abslrp.propagation.axes import BatchLost
from abslrp.query import Answer, Query, make_query, undisturbed
from abslrp.registry import Method
from abslrp.registry import method as find_method
from abslrp.types import AbslrpError, Attribution, Target, brief, capturing


def explain(
    model: Callable[..., Any],
    images: Tensor,
    targets: Target = None,
    method: str = "abslrp",
    *,
    forward: Callable[[Tensor], Any] | None = None,
    at: str | None = None,
    batch_size: int | None = None,
    max_memory: int | float | str | None = None,
    tf32: bool = False,
    cuda_graph: bool = False,
    **options: Any,
) -> Attribution:
    """Maps of what the model looked at, one per input, by any registered method.

    ``images`` (batch, ...) may be images, volumes, signals or tables; ``targets`` is a class, one class per input, or None for
    the predicted ones. ``forward`` serves models with several inputs: it takes the inputs and returns the model's output.
    ``at`` names a module: the map is that of its output (of its last call) instead of the input's. ``batch_size`` bounds how
    many inputs go through at once, and so does ``max_memory``, in bytes or as in ``"4GB"``; maps do not depend on them, and
    where memory runs out nevertheless, half as many go through at once from then on. ``cuda_graph=True`` records the work on the
    first call and replays it on later ones with the same model, shape and options: at small batches a GPU waits for Python, which
    replaying does without; the model's own Python does not run then. On CUDA products of float32 are taken as such, as on the CPU,
    unless ``tf32=True`` leaves them to torch's settings. Further options are the method's own, see ``abslrp methods``.

    The model must be in eval mode; it, its gradients, the inputs and the random state are left as found.

    Relevance after Vukadin, Afrić, Šilić, Delač (2024), *Advancing Attribution-Based Neural Network Explainability through
    Relative Absolute Magnitude Layer-Wise Relevance Propagation and Multi-Component Evaluation*, doi 10.1145/3649458:
    R_i = Σ_j (x_i w_ij)⁺ / (|Σ_k x_k w_kj| + ε) · R_j.

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    >>> a = explain(model, torch.randn(5, 3), targets=1)
    >>> a.maps.shape, a.outputs.shape, a.targets.tolist()
    (torch.Size([5, 3]), torch.Size([5, 2]), [1, 1, 1, 1, 1])
    """
    found = explained(
        model,
        images,
        targets,
        method,
        forward=forward,
        at=at,
        batch_size=batch_size,
        max_memory=max_memory,
        tf32=tf32,
        cuda_graph=cuda_graph,
        **options,
    )
    _tell_not_finite(found)
    return found


def explained(
    model: Callable[..., Any],
    images: Tensor,
    targets: Target = None,
    method: str = "abslrp",
    *,
    forward: Callable[[Tensor], Any] | None = None,
    at: str | None = None,
    batch_size: int | None = None,
    max_memory: int | float | str | None = None,
    tf32: bool = False,
    cuda_graph: bool = False,
    **options: Any,
) -> Attribution:
    """As :func:`explain`, but silent about maps that are not finite, for those who flag and count them."""
    chosen = find_method(method)
    chosen.settle(options)
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise AbslrpError(
            f"batch_size={brief(batch_size)} must be a whole number of at least 1, or None for all at once."
        )
    for name, value in (("batch_size", batch_size), ("max_memory", max_memory)):
        if value is not None and forward is not None:
            raise AbslrpError(
                f"{name} cannot be used with forward=, whose other inputs cannot be split: call explain on parts instead."
            )
    budget = None if max_memory is None else memory.amount("max_memory", max_memory)
    for name, value in (("tf32", tf32), ("cuda_graph", cuda_graph)):
        if not isinstance(value, bool):
            raise AbslrpError(f"{name}={brief(value)} must be True or False.")
    if at is not None and not chosen.at:
        raise AbslrpError(f"at={brief(at)} cannot be used with {method}, which makes maps of the input only.")
    with torch.inference_mode(False):
        # What is replayed is looked at while the GPU is at work, see graphs.py.
        query = make_query(model, images, targets, forward, at, cuda_graph and batch_size is None and budget is None)
        if cuda_graph:
            graphs.check(query, options)
        precise = query.inputs.is_cuda and not tf32
        with undisturbed(query.inputs), full_precision() if precise else nullcontext():
            size = len(query.inputs) if batch_size is None else batch_size
            if budget is not None:
                size = min(size, _fitting(chosen, query, options, budget))
            ask = partial(graphs.recorded, answer, tf32) if cuda_graph else answer
            parts = _answers(ask, chosen, query, options, size)
        maps, classes, outputs = (torch.cat(column) for column in zip(*parts, strict=True))
        return Attribution(maps.float(), classes, outputs.float(), method, dict(options), None if at else query.inputs)


def _fitting(method: Method, query: Query, options: dict[str, Any], budget: int) -> int:
    """How many inputs fit a budget."""
    x = query.inputs[:2]
    if x.is_cuda:
        return memory.batch_size(
            lambda part: answer(method, replace(query, inputs=part, targets=None), options), x, budget
        )
    weights = query.model.parameters() if isinstance(query.model, nn.Module) else ()
    return memory.batch_size(query.forward, x, budget, weights)


def _answers(
    ask: Callable[..., Answer], method: Method, query: Query, options: dict[str, Any], size: int
) -> list[Answer]:
    """Some inputs at a time; where memory runs out, half as many from then on."""
    found: list[Answer] = []
    start = 0
    while start < len(query.inputs):
        part = _part(query, start, size)
        try:
            found.append(ask(method, part, _share(options, query, start, size)))
            start += size
            continue
        except Exception as error:
            if not memory.out_of_memory(error) or len(part.inputs) == 1 or not query.divisible:
                raise
        size = len(part.inputs) // 2
        if query.inputs.is_cuda:
            torch.cuda.empty_cache()
    return found


def answer(method: Method, query: Query, options: dict[str, Any]) -> Answer:
    try:
        answer = method(query, **options)
    except BatchLost:
        if not query.divisible or len(query.inputs) == 1:
            raise
        singles = [method(_part(query, i, 1), **_share(options, query, i, 1)) for i in range(len(query.inputs))]
        answer = Answer(*(torch.cat(column) for column in zip(*singles, strict=True)))
    return Answer(*(column.detach() for column in answer))


def _share(options: dict[str, Any], query: Query, start: int, size: int) -> dict[str, Any]:
    """The options for some of the inputs: of tensors that have a row for each, their rows."""
    rows = {
        name: value[start : start + size]
        for name in ("start", "baseline")
        if isinstance(value := options.get(name), Tensor)
        and (name == "start" or value.ndim == query.inputs.ndim)
        and value.ndim
        and len(value) == len(query.inputs)
    }
    return {**options, **rows}


def _tell_not_finite(found: Attribution) -> None:
    """A warning that names the maps that are not finite, and those of NaN: they are handed out, but not in silence."""
    if capturing(found.maps):
        return
    wrong = ~found.maps.flatten(1).isfinite().all(1) | found.outputs.isnan().any(1)
    bad = wrong.nonzero().flatten().tolist()
    if bad:
        more = f" and {len(bad) - 1} more" if bad[1:] else ""
        warnings.warn(
            f"the {found.method} map of input {bad[0]}{more} of {len(found)}, or the output it explains, holds NaN or infinite "
            "values: try inputs or weights of usual size, a larger eps, or float32 or float64.",
            RuntimeWarning,
            stacklevel=3,
        )


def _part(query: Query, start: int, size: int) -> Query:
    targets = None if query.targets is None else query.targets[start : start + size]
    return replace(query, inputs=query.inputs[start : start + size], targets=targets)
