"""Where relevance starts: from targets to relevance of the outputs, of shape (batch, classes)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from abslrp.types import AbslrpError, Target, brief, capturing, check_targets


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


def check_start(start: Tensor) -> None:
    """One sentence for a tensor that is no relevance."""
    unusual = start.is_meta or start.is_quantized or start.is_nested or start.layout is not torch.strided
    if unusual or start.is_complex():
        raise AbslrpError("start is no plain tensor of real numbers: pass a dense tensor (batch, classes) of them.")
    if not capturing(start) and not bool(start.double().isfinite().all()):
        raise AbslrpError("start holds NaN or infinite values: pass a finite relevance for each output.")


def aim(outputs: Tensor, targets: Target) -> Tensor:
    """The classes to start from: those asked for, checked, or the predicted ones."""
    if (
        outputs.ndim != 2
        or not outputs.shape[1]
        or not outputs.is_floating_point()
        or outputs.is_sparse
        or outputs.is_meta
    ):
        raise AbslrpError(
            f"the outputs have shape {tuple(outputs.shape)}, expected class scores (batch, classes): reduce them to that, or pass "
            "start as a tensor of their shape."
        )
    classes = check_targets(targets, len(outputs))
    if classes is None:
        return outputs.detach().argmax(1)
    if not capturing(classes) and int(classes.max()) >= outputs.shape[1]:
        raise AbslrpError(
            f"target {int(classes.max())} is out of range: the model has {outputs.shape[1]} classes, 0 to {outputs.shape[1] - 1}."
        )
    return classes


def passes(start: str | Tensor, outputs: Tensor, targets: Target) -> list[Tensor]:
    """The relevance of the outputs for each pass of a start, given by name or as a tensor (batch, classes)."""
    if isinstance(start, Tensor):
        check_start(start)
        if start.shape != outputs.shape:
            raise AbslrpError(
                f"start has shape {tuple(start.shape)}, expected the outputs' shape {tuple(outputs.shape)}: "
                "pass one relevance for each output."
            )
        return [start.detach().to(outputs.device, torch.promote_types(outputs.dtype, torch.float32))]
    if not isinstance(start, str) or start not in PASSES:
        raise AbslrpError(
            f"start={brief(start)} is unknown: choose one of {', '.join(PASSES)}, or pass a tensor (batch, classes)."
        )
    aimed = aim(outputs, targets)
    return [make(outputs, aimed) for make in PASSES[start]]
