"""abslrp's methods as Quantus wants them: ``metric(model, x, y, explain_func=abslrp.quantus.explain_func)``. Quantus is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from abslrp.explain import explain


def explain_func(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    method: str = "abslrp",
    device: str | torch.device | None = None,
    batch_size: int | None = None,
    reduce_axes: Sequence[int] | None = None,
    **options: Any,
) -> np.ndarray:
    """Maps of arrays or tensors (batch, …) for classes (batch,), float32 of the inputs' shape.

    ``method`` and its options come through ``explain_func_kwargs={"method": "gradcam"}``. ``reduce_axes=(1,)`` sums maps over
    their channels, for metrics that want one.

    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).eval()
    >>> explain_func(net, np.ones((2, 3, 2, 2), dtype=np.float32), np.array([0, 2]), method="input-x-gradient").shape
    (2, 3, 2, 2)
    """
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    where = device if parameter is None else parameter.device
    x = torch.as_tensor(inputs, dtype=torch.float32, device=where)
    classes = torch.as_tensor(np.asarray(targets)).reshape(-1).long()
    found: np.ndarray = explain(model, x, classes, method, batch_size=batch_size, **options).maps.cpu().numpy()
    return found if reduce_axes is None else found.sum(axis=tuple(reduce_axes), keepdims=True)


__all__ = ["explain_func"]
