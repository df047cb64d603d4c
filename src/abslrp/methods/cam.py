"""Class activation maps: one capture, one weighting function each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from abslrp.methods.common import Tap
from abslrp.methods.grids import as_maps, enlarged, forget_layer, known_layer, need_images, normal, order_of
from abslrp.methods.relevance import propagated
from abslrp.propagation.axes import BatchLost
from abslrp.query import Answer, Query, grad_of, named_module
from abslrp.registry import Method, register_method
from abslrp.types import AbslrpError, brief

Weighting = Callable[[Tensor, Tensor], Tensor]
"""From activations A and gradients g (batch, channels, rows, columns) to a map (batch, rows, columns)."""


def gradcam(A: Tensor, g: Tensor) -> Tensor:
    """Σ_c mean(g_c) A_c.

    >>> gradcam(torch.ones(1, 2, 1, 2), torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]]]))
    tensor([[[2., 2.]]])
    """
    return (g.mean((2, 3), keepdim=True) * A).sum(1)


def gradcam_plus_plus(A: Tensor, g: Tensor) -> Tensor:
    """Σ_c w_c A_c with w_c = Σ α g⁺ and α = g² / (2 g² + ΣA · g³).

    >>> gradcam_plus_plus(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
    tensor([[[0.5000, 0.5000]]])
    """
    below = 2 * g**2 + A.sum((2, 3), keepdim=True) * g**3 + 1e-6
    alpha = torch.where(g != 0, g**2 / below, 0.0)
    return ((alpha * g.clamp(min=0)).sum((2, 3), keepdim=True) * A).sum(1)


def hirescam(A: Tensor, g: Tensor) -> Tensor:
    """Σ_c g_c · A_c."""
    return (g * A).sum(1)


def layercam(A: Tensor, g: Tensor) -> Tensor:
    """Σ_c g⁺_c · A_c."""
    return (g.clamp(min=0) * A).sum(1)


def eigencam(A: Tensor, g: Tensor) -> Tensor:
    """The first principal component of the places' activations, with the sign of their mean."""
    places = A.flatten(2).transpose(1, 2)
    # Decompositions fail on what is huge or not finite: the size is taken out before, and put back with its NaN afterwards.
    size = places.abs().amax((1, 2), keepdim=True)
    places = torch.where((size > 0) & size.isfinite(), places / size, 0.0)
    _, _, directions = torch.linalg.svd(places - places.mean(1, keepdim=True), full_matrices=False)
    shares = (places @ directions[:, :1].transpose(1, 2))[..., 0]
    shares = shares * torch.sign(shares.sum(1, keepdim=True)) * size[..., 0]
    return shares.unflatten(1, A.shape[2:])


def cam(query: Query, weighting: Weighting, layer: str | None) -> Answer:
    """ReLU of the weighted activations of a layer, enlarged to the image."""
    need_images(query.inputs, "a class activation map")
    name, expected = (layer, None) if layer else known_layer(query)
    watching = nullcontext() if expected is None else order_of(query.model)
    with torch.no_grad(), watching as order, Tap(named_module(query.model, name), leaf=True) as tap:
        outputs = query.forward(query.inputs.detach().clone())
    if order != expected:
        forget_layer(query)
        return cam(query, weighting, layer)
    if tap.value is None:
        raise AbslrpError(f"layer {name!r} did not run or gave no tensor: name another with layer=.")
    if tap.value.ndim and len(tap.value) != len(query.inputs):
        # One by one they may be told apart: a layer that runs once for each input shows the last of them only.
        raise (BatchLost if len(query.inputs) > 1 else AbslrpError)(
            f"layer {name!r} gave {len(tap.value)} maps for {len(query.inputs)} input(s): name another with layer=."
        )
    targets = query.aim(outputs)
    g = grad_of(outputs.gather(1, targets.reshape(-1, 1)), tap.value)
    coarse = weighting(*(normal(as_maps(t, query.inputs)) for t in (tap.value.detach(), g)))
    return Answer(enlarged(coarse.clamp(min=0), query.inputs), targets, outputs.detach())


def guided_gradcam(query: Query, layer: str | None) -> Answer:
    """Guided backpropagation times GradCAM."""
    coarse = cam(query, gradcam, layer)
    guided = propagated(query, "guided-backprop", {})
    return Answer(guided.maps * coarse.maps, coarse.targets, coarse.outputs)


def _register(name: str, description: str, citation: str, run: Any, class_specific: bool = True) -> None:
    register_method(
        Method(
            name,
            description,
            "class activation map",
            citation,
            run,
            {"layer": None},
            ("layer",),
            class_specific,
            check=lambda options: check_layer(options["layer"]),
        )
    )


def check_layer(layer: Any) -> None:
    if layer is not None and (not isinstance(layer, str) or not layer):
        raise AbslrpError(
            f"layer={brief(layer)} must be the dotted name of a module, or None for the one that is found."
        )


def _cam(weighting: Weighting) -> Any:
    return lambda query, layer: cam(query, weighting, layer)


_register(
    "gradcam",
    "activations weighted by their mean gradients",
    "Selvaraju et al. (2017), arXiv 1610.02391",
    _cam(gradcam),
)
_register(
    "gradcam++",
    "weights from higher powers of the gradient",
    "Chattopadhay et al. (2018), arXiv 1710.11063",
    _cam(gradcam_plus_plus),
)
_register(
    "hirescam", "activations times gradients, place by place", "Draelos, Carin (2020), arXiv 2011.08891", _cam(hirescam)
)
_register(
    "layercam",
    "activations times positive gradients, place by place",
    "Jiang et al. (2021), doi 10.1109/TIP.2021.3089943",
    _cam(layercam),
)
_register(
    "eigencam",
    "first principal component of the activations",
    "Muhammad, Yeasin (2020), arXiv 2008.00299",
    _cam(eigencam),
    False,
)
_register(
    "guided-gradcam",
    "guided backpropagation times GradCAM",
    "Selvaraju et al. (2017), arXiv 1610.02391",
    guided_gradcam,
)
