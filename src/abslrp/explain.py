"""The shortest way from a model and inputs to maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from abslrp.propagation.functions import BatchLost
from abslrp.query import Answer, Query, make_query, undisturbed
from abslrp.registry import Method
from abslrp.registry import method as find_method
from abslrp.types import AbslrpError, Attribution, Target


def explain(
    model: Callable[..., Any],
    images: Tensor,
    targets: Target = None,
    method: str = "abslrp",
    *,
    forward: Callable[[Tensor], Any] | None = None,
    at: str | None = None,
    batch_size: int | None = None,
    **options: Any,
) -> Attribution:
    """Maps of what the model looked at, one per input, by any registered method.

    ``images`` (batch, ...) may be images, volumes, signals or tables; ``targets`` is a class, one class per input, or None for
    the predicted ones. ``forward`` serves models with several inputs: it takes the inputs and returns the model's output.
    ``at`` names a module: the map is that of its output (of its last call) instead of the input's. ``batch_size`` bounds how
    many inputs go through at once; maps do not depend on it. Further options are the method's own, see ``abslrp methods``.

    The model must be in eval mode; it, its gradients, the inputs and the random state are left as found.

    Relevance after Vukadin, Afrić, Šilić, Delač (2024), *Advancing Attribution-Based Neural Network Explainability through
    Relative Absolute Magnitude Layer-Wise Relevance Propagation and Multi-Component Evaluation*, doi 10.1145/3649458:
    R_i = Σ_j (x_i w_ij)⁺ / (|Σ_k x_k w_kj| + ε) · R_j.

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    >>> a = explain(model, torch.randn(5, 3), targets=1)
    >>> a.maps.shape, a.outputs.shape, a.targets.tolist()
    (torch.Size([5, 3]), torch.Size([5, 2]), [1, 1, 1, 1, 1])
    """
    chosen = find_method(method)
    unknown = sorted(set(options) - set(chosen.options))
    if unknown:
        raise AbslrpError(
            f"option {unknown[0]!r} is unknown for {method}: choose from {', '.join(sorted(chosen.options)) or 'none'}."
        )
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise AbslrpError(f"batch_size={batch_size!r} must be a whole number of at least 1, or None for all at once.")
    if batch_size is not None and forward is not None:
        raise AbslrpError(
            "batch_size cannot be used with forward=, whose other inputs cannot be split: call explain on parts instead."
        )
    if at is not None and not chosen.at:
        raise AbslrpError(f"at={at!r} cannot be used with {method}, which makes maps of the input only.")
    query = make_query(model, images, targets, forward, at)
    with undisturbed(query.inputs):
        parts = [answer(chosen, part, options) for part in _parts(query, batch_size)]
    maps, classes, outputs = (torch.cat(column) for column in zip(*parts, strict=True))
    return Attribution(maps.float(), classes, outputs.float(), method, dict(options))


def answer(method: Method, query: Query, options: dict[str, Any]) -> Answer:
    try:
        answer = method(query, **options)
    except BatchLost:
        if not query.divisible or len(query.inputs) == 1:
            raise
        singles = [method(one, **options) for one in _parts(query, 1)]
        answer = Answer(*(torch.cat(column) for column in zip(*singles, strict=True)))
    return Answer(*(column.detach() for column in answer))


def _parts(query: Query, size: int | None) -> list[Query]:
    size = size or len(query.inputs)
    return [
        replace(
            query,
            inputs=query.inputs[i : i + size],
            targets=None if query.targets is None else query.targets[i : i + size],
        )
        for i in range(0, len(query.inputs), size)
    ]
