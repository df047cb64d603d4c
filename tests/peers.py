"""What other libraries compute, in their own ways, for measurements beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Peer = Callable[[nn.Module, Tensor], Any]


def _captum(name: str, **settings: Any) -> Peer:
    def run(model: nn.Module, x: Tensor) -> Any:
        import captum.attr

        return getattr(captum.attr, name)(model).attribute(x.clone().requires_grad_(), target=0, **settings)

    return run


def last_features(model: nn.Module) -> nn.Module:
    """The module whose output CAMs look at: the last convolution's block, or the last transformer block's norm."""
    for path in ("layer4", "features", "blocks"):
        found = getattr(model, path, None)
        if found is not None:
            last = found[-1]
            return last.norm1 if path == "blocks" else last  # type: ignore[no-any-return]
    raise ValueError("no features to look at")


def _captum_gradcam(model: nn.Module, x: Tensor) -> Any:
    import captum.attr

    return captum.attr.LayerGradCam(model, last_features(model)).attribute(x, target=0)


def _grad_cam(model: nn.Module, x: Tensor) -> Any:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    grid = (lambda t: t[:, 1:].reshape(len(t), 14, 14, -1).permute(0, 3, 1, 2)) if hasattr(model, "blocks") else None
    with GradCAM(model=model, target_layers=[last_features(model)], reshape_transform=grid) as cam:
        return cam(input_tensor=x.clone().requires_grad_(), targets=[ClassifierOutputTarget(0)] * len(x))


def _zennit(rule: str) -> Peer:
    def run(model: nn.Module, x: Tensor) -> Any:
        from zennit.attribution import Gradient
        from zennit.composites import EpsilonPlus, LayerMapComposite
        from zennit.rules import AlphaBeta, Epsilon, Norm, Pass
        from zennit.torchvision import ResNetCanonizer
        from zennit.types import Activation, AvgPool, Convolution, Linear

        if not any(isinstance(m, nn.Conv2d) for m in model.modules()) or hasattr(model, "blocks"):
            raise ValueError("no rules for attention")
        canonizers = [ResNetCanonizer()] if hasattr(model, "layer4") else []
        if rule == "EpsilonPlus":
            composite: Any = EpsilonPlus(canonizers=canonizers)
        else:
            made = {"Epsilon": lambda: Epsilon(epsilon=1e-6), "AlphaBeta": lambda: AlphaBeta(alpha=1.0, beta=0.0)}[rule]
            layers = [(Activation, Pass()), (Convolution, made()), (Linear, made()), (AvgPool, Norm())]
            composite = LayerMapComposite(layer_map=layers, canonizers=canonizers)
        with torch.no_grad():
            classes = model(x[:1]).shape[1]
        start = torch.eye(classes, device=x.device, dtype=x.dtype)[[0] * len(x)]
        with Gradient(model=model, composite=composite) as attributor:
            return attributor(x.clone().requires_grad_(), start)[1]

    return run


PEERS: dict[str, Peer] = {
    "Captum LRP": _captum("LRP"),
    "Captum guided backprop": _captum("GuidedBackprop"),
    "Captum GradCAM": _captum_gradcam,
    "Zennit ε": _zennit("Epsilon"),
    "Zennit α1β0": _zennit("AlphaBeta"),
    "Zennit EpsilonPlus": _zennit("EpsilonPlus"),
    "grad-cam GradCAM": _grad_cam,
}
