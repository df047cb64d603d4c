"""Maps from attention matrices, which the engine records wherever values are summed by a softmax."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from abslrp.methods.grids import enlarged, grid_of, need_images, normal
from abslrp.propagation.api import propagate
from abslrp.propagation.engine import Propagation
from abslrp.propagation.starts import target
from abslrp.query import Answer, Query
from abslrp.registry import Method, register_method
from abslrp.types import AbslrpError


def _attend(query: Query, ruleset: str) -> tuple[Propagation, Tensor]:
    """A forward under the engine that records the attention matrices."""
    leaf = query.inputs.detach().clone().requires_grad_()
    with propagate(ruleset, measure=False) as engine:
        engine.watch(leaf)
        outputs = query.forward(leaf.clone())
    if not engine.attentions:
        raise AbslrpError("the model has no attention (no softmax that sums values): choose another method.")
    return engine, outputs


def _matrices(values: list[Tensor], batch: int) -> list[Tensor]:
    """Recorded tensors as (batch, heads, tokens, tokens), all of one size."""
    square = [v for v in values if v.shape[-1] == v.shape[-2]]
    shaped = [v.reshape(batch, -1, *v.shape[-2:]) for v in square if v.numel() and len(v) % batch == 0]
    sizes = {v.shape[-1] for v in shaped}
    if len(shaped) != len(values) or len(sizes) != 1 or any(len(v) != batch for v in values if v.ndim == 4):
        raise AbslrpError(
            "the model's attention is not over all tokens of the image (windows, pooling or class attention), "
            "so its matrices cannot be chained: choose another method."
        )
    return [normal(v) for v in shaped]


def chain(blocks: list[Tensor]) -> Tensor:
    """Â_B ··· Â_2 Â_1 of (batch, tokens, tokens) matrices, first block first.

    >>> chain([torch.tensor([[[1.0, 1.0], [0.0, 1.0]]]), torch.tensor([[[1.0, 0.0], [2.0, 1.0]]])])
    tensor([[[1., 1.],
             [2., 3.]]])
    """
    result = blocks[0]
    for block in blocks[1:]:
        result = block @ result
    return result


def _picture(matrix: Tensor, query: Query) -> Tensor:
    """The class token's row (the mean row where there is none) over the picture's tokens, enlarged."""
    prefix, rows, columns = grid_of(matrix.shape[-1], *query.inputs.shape[-2:])
    row = matrix[:, 0] if prefix else matrix.mean(1)
    return enlarged(row[:, prefix:].unflatten(1, (rows, columns)), query.inputs)


def last_matrix(query: Query) -> Answer:
    """The last block's attention (batch, tokens, tokens), mean over heads."""
    engine, outputs = _attend(query, "gradient")
    last = _matrices(engine.attentions, len(query.inputs))[-1].detach()
    return Answer(last.mean(1), query.aim(outputs), outputs.detach())


def rollout_matrix(query: Query) -> Answer:
    """Π_b (I + mean over heads of A_b) (Abnar and Zuidema 2020), (batch, tokens, tokens)."""
    engine, outputs = _attend(query, "gradient")
    matrices = [m.detach().mean(1) for m in _matrices(engine.attentions, len(query.inputs))]
    identity = torch.eye(matrices[0].shape[-1], device=matrices[0].device, dtype=matrices[0].dtype)
    return Answer(chain([identity + m for m in matrices]), query.aim(outputs), outputs.detach())


def tibav_matrix(query: Query) -> Answer:
    """Π_b (I + mean over heads of (∇A_b · R_b)⁺), R by LRP-α1β0 (Chefer et al. 2021), (batch, tokens, tokens)."""
    batch = len(query.inputs)
    engine, outputs = _attend(query, "gradient")
    targets = query.aim(outputs)
    hot = target(outputs, targets)
    gradients = torch.autograd.grad(outputs, engine.attentions, hot.to(outputs.dtype))
    ruled, again = _attend(query, "tibav")
    relevances = ruled.relevances(again, ruled.attentions, hot)
    blocks = []
    for g, r in zip(_matrices(list(gradients), batch), _matrices(relevances, batch), strict=True):
        identity = torch.eye(g.shape[-1], device=g.device, dtype=g.dtype)
        blocks.append(identity + (g * r).clamp(min=0).mean(1))
    return Answer(chain(blocks), targets, outputs.detach())


MATRICES: dict[str, Callable[[Query], Answer]] = {
    "last-layer-attention": last_matrix,
    "rollout": rollout_matrix,
    "tibav": tibav_matrix,
}


def _register(name: str, description: str, citation: str, class_specific: bool, sensitive: bool = True) -> None:
    def run(query: Query) -> Answer:
        need_images(query.inputs, "an attention map")
        matrix, targets, outputs = MATRICES[name](query)
        return Answer(_picture(matrix, query), targets, outputs)

    needs = ("attention",)
    register_method(
        Method(name, description, "attention", citation, run, {}, needs, class_specific, sensitive=sensitive)
    )


_register(
    "last-layer-attention",
    "the class token's attention in the last block",
    "Caron et al. (2021), arXiv 2104.14294",
    False,
)
# Insensitive to the weights as measured, see abslrp.sanity: with the upper half of ViT-Tiny shuffled a rank correlation of .94.
_register(
    "rollout", "attention chained through the blocks", "Abnar, Zuidema (2020), arXiv 2005.00928", False, sensitive=False
)
_register(
    "tibav",
    "gradient times relevance of attention, chained through the blocks",
    "Chefer, Gur, Wolf (2021), arXiv 2012.09838",
    True,
)
