"""Where relevance starts: from targets to relevance of the outputs, of shape (batch, classes)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from abslrp.types import AbslrpError


def target(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 at the target, 0 elsewhere.

    >>> target(torch.zeros(1, 3), torch.tensor([1]))
    tensor([[0., 1., 0.]])
    """
    start = torch.zeros(outputs.shape, dtype=torch.float32, device=outputs.device)
    return start.scatter(1, targets.reshape(-1, 1).to(outputs.device), 1.0)


def others(outputs: Tensor, targets: Tensor) -> Tensor:
    """1/(N−1) at every class but the target: the second pass of a two-pass start.

    >>> others(torch.zeros(1, 3), torch.tensor([1]))
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    return (1 - target(outputs, targets)) / max(outputs.shape[1] - 1, 1)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 at the target and −1/N at every other class (Gu et al. 2019, as in Vukadin et al. 2024).

    >>> contrastive(torch.zeros(1, 4), torch.tensor([0]))
    tensor([[ 1.0000, -0.2500, -0.2500, -0.2500]])
    """
    hot = target(outputs, targets)
    return hot - (1 - hot) / outputs.shape[1]


def logit(outputs: Tensor, targets: Tensor) -> Tensor:
    """The target's own output at the target, 0 elsewhere (Captum's convention).

    >>> logit(torch.tensor([[2.0, 3.0]]), torch.tensor([1]))
    tensor([[0., 3.]])
    """
    return target(outputs, targets) * outputs.detach().float()


PASSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], ...]] = {
    "contrastive": (contrastive,),
    "two-pass": (target, others),
    "target": (target,),
    "logit": (logit,),
}
"""Every start by name with its passes; of two, each map is divided by its own L1 norm and the second is subtracted."""


def passes(start: str | Tensor, outputs: Tensor, targets: Tensor) -> list[Tensor]:
    """The relevance of the outputs for each pass of a start, given by name or as a tensor (batch, classes)."""
    if isinstance(start, Tensor):
        if start.shape != outputs.shape:
            raise AbslrpError(
                f"start has shape {tuple(start.shape)}, expected the outputs' shape {tuple(outputs.shape)}: "
                "pass one relevance for each output."
            )
        return [start.detach().to(outputs.device, torch.promote_types(outputs.dtype, torch.float32))]
    if start not in PASSES:
        raise AbslrpError(
            f"start={start!r} is unknown: choose one of {', '.join(PASSES)}, or pass a tensor (batch, classes)."
        )
    return [make(outputs, targets) for make in PASSES[start]]
