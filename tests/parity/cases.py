"""Our maps beside those of Captum, Zennit and grad-cam: each case returns the relative error max|ours − theirs| / max|theirs|.

The tests hold every case to its tolerance, and ``python -m tests.parity`` writes docs/parity.md from the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abslrp
from abslrp.inputs.torchvision_ops import ensure_torchvision

ensure_torchvision()
warnings.filterwarnings("ignore", module="captum|zennit|pytorch_grad_cam|torch")


@dataclass(frozen=True)
class Case:
    method: str
    peer: str
    network: str
    note: str
    tolerance: float
    error: Callable[[], float]


CASES: list[Case] = []


def case(method: str, peer: str, network: str, note: str = "", tolerance: float = 1e-8) -> Callable[..., Any]:
    def enter(function: Callable[[], float]) -> Callable[[], float]:
        CASES.append(Case(method, peer, network, note, tolerance, function))
        return function

    return enter


class Vgg(nn.Module):
    """VGG's shape, small, with a view instead of a Flatten module (which Captum's LRP refuses) and every module used once."""

    def __init__(self, pool: type[nn.Module] = nn.MaxPool2d, norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((3, 8), (8, 8), (8, 12), (12, 12)):
            layers += [nn.Conv2d(a, b, 3, padding=1), *([nn.BatchNorm2d(b)] if norm else []), nn.ReLU()] + (
                [pool(2)] if b != a else []
            )
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(12 * 16, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        return self.classifier(h.reshape(len(h), -1))  # type: ignore[no-any-return]


def _unsettle(model: nn.Module) -> None:
    """Statistics that do something, rectifiers that do not write over what hooks of others still need."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
        if isinstance(module, nn.ReLU):
            module.inplace = False


@cache
def network(name: str) -> nn.Module:
    import timm
    import torchvision

    torch.manual_seed(0)
    if name.startswith("VGG"):
        model: nn.Module = Vgg(nn.AvgPool2d if "average" in name else nn.MaxPool2d, "BatchNorm" in name)
        _unsettle(model)
    elif name == "ResNet18":
        model = torchvision.models.resnet18(num_classes=6)
        _unsettle(model)
    else:
        model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=6, depth=3)
    return model.double().eval()


def inputs(name: str) -> Tensor:
    size = {"VGG": 16, "VGG, average pooling": 16, "VGG with BatchNorm": 16, "ResNet18": 48, "ViT": 64}[name]
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5)).double()


TARGETS = [1, 4]


def apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.detach().double()).abs().max() / theirs.detach().abs().max())


def ours(method: str, name: str, **options: Any) -> Tensor:
    """Our map, in float64: explain rounds to float32, so the method is asked directly."""
    from abslrp.query import make_query, undisturbed

    model, x = network(name), inputs(name)
    query = make_query(model, x, TARGETS, None, None)
    with undisturbed(x):
        return abslrp.methods()[method](query, **options).maps.detach()


def captum(kind: str, name: str, **settings: Any) -> Tensor:
    import captum.attr

    x = inputs(name).requires_grad_()
    return getattr(captum.attr, kind)(network(name)).attribute(x, target=torch.tensor(TARGETS), **settings)


for _name in ("VGG", "ResNet18", "ViT"):
    for _method, _kind in (("saliency", "Saliency"), ("input-x-gradient", "InputXGradient")):
        case(_method, "Captum", _name)(lambda m=_method, k=_kind, n=_name: apart(ours(m, n), captum(k, n)))
    case("integrated-gradients", "Captum", _name, "Gauss–Legendre, 20 steps in both")(
        lambda n=_name: apart(
            ours("integrated-gradients", n, steps=20, rule="gauss-legendre"),
            captum("IntegratedGradients", n, n_steps=20, method="gausslegendre"),
        )
    )
for _name in ("VGG", "ResNet18"):
    for _method, _kind in (("deconvolution", "Deconvolution"), ("guided-backprop", "GuidedBackprop")):
        case(_method, "Captum", _name)(lambda m=_method, k=_kind, n=_name: apart(ours(m, n), captum(k, n)))


@case("deeplift", "Captum", "VGG, average pooling", "baseline 0; modules used once, as Captum needs")
def _deeplift() -> float:
    return apart(ours("deeplift", "VGG, average pooling"), captum("DeepLift", "VGG, average pooling"))


@case("deeplift", "Captum", "VGG, average pooling", "another image as baseline")
def _deeplift_baseline() -> float:
    base = inputs("VGG").flip(0)
    return apart(
        ours("deeplift", "VGG, average pooling", baseline=base),
        captum("DeepLift", "VGG, average pooling", baselines=base),
    )


@case("lrp-epsilon", "Captum", "VGG", "ε = 1e-9 and start from the logit in both", tolerance=1e-6)
def _lrp_captum() -> float:
    return apart(ours("lrp-epsilon", "VGG", eps=1e-9, start="logit"), captum("LRP", "VGG"))


@case("occlusion", "Captum", "VGG", "window 4, stride 2", tolerance=1e-6)
def _occlusion() -> float:
    theirs = captum("Occlusion", "VGG", sliding_window_shapes=(3, 4, 4), strides=(3, 2, 2))
    return apart(ours("occlusion", "VGG", window=4, stride=2), theirs)


@case("gradcam", "Captum", "VGG", "core: neither ReLU nor enlargement there")
def _gradcam_captum() -> float:
    import captum.attr

    from abslrp.methods.cam import gradcam

    layer = "features.7"
    theirs = captum.attr.LayerGradCam(network("VGG"), network("VGG").get_submodule(layer)).attribute(
        inputs("VGG"), target=torch.tensor(TARGETS)
    )
    A, g = captured("VGG", layer)
    return apart(gradcam(A, g).unsqueeze(1), theirs)


def captured(name: str, layer: str) -> tuple[Tensor, Tensor]:
    from abslrp.methods.common import Tap

    model, x = network(name), inputs(name).requires_grad_()
    with Tap(model.get_submodule(layer)) as tap:
        out = model(x)
    assert tap.value is not None
    (g,) = torch.autograd.grad(out.gather(1, torch.tensor(TARGETS)[:, None]).sum(), tap.value)
    return tap.value.detach(), g


# ---------------------------------------------------------------- Zennit


def zennit(name: str, rule: Any, model: nn.Module | None = None, canonizers: Any = None, **more: Any) -> Tensor:
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite
    from zennit.rules import Pass
    from zennit.types import Activation, AvgPool, Convolution, Linear

    layers = [(Activation, Pass()), (Convolution, rule), (Linear, rule), (AvgPool, more.get("average", rule))]
    layers += more.get("layers", [])
    composite = LayerMapComposite(layer_map=layers, canonizers=canonizers or [])
    start = torch.eye(6, dtype=torch.float64)[TARGETS]
    with Gradient(model=model or network(name), composite=composite) as attributor:
        return attributor(inputs(name).requires_grad_(), start)[1]  # type: ignore[no-any-return]


def _zennit_rules() -> dict[str, Any]:
    from zennit import rules

    return {
        "lrp-epsilon": (rules.Epsilon(1e-6), {"eps": 1e-6}, 1e-8),
        "lrp-alpha1beta0": (rules.AlphaBeta(1, 0, stabilizer=1e-9), {}, 1e-6),
        "lrp-alpha2beta1": (rules.AlphaBeta(2, 1, stabilizer=1e-9), {}, 1e-6),
        "lrp-gamma": (rules.Gamma(0.25, stabilizer=1e-6), {"eps": 1e-6}, 1e-6),
    }


for _method in ("lrp-epsilon", "lrp-alpha1beta0", "lrp-alpha2beta1", "lrp-gamma"):

    @case(_method, "Zennit", "VGG", tolerance=1e-6)
    def _zennit_vgg(method: str = _method) -> float:
        rule, options, _ = _zennit_rules()[method]
        return apart(ours(method, "VGG", **options), zennit("VGG", rule))


for _method in ("lrp-epsilon", "lrp-alpha1beta0", "lrp-alpha2beta1", "lrp-gamma"):

    @case(
        _method,
        "Zennit",
        "VGG with BatchNorm",
        "merged by its canonizer there, which leaves the norm's 1e-5 in; exactly here",
        tolerance=1e-3,
    )
    def _zennit_vgg_bn(method: str = _method) -> float:
        import copy

        from torch.nn.utils.fusion import fuse_conv_bn_eval
        from zennit.canonizers import SequentialMergeBatchNorm

        from abslrp.query import make_query, undisturbed

        rule, options, _ = _zennit_rules()[method]
        model = copy.deepcopy(network("VGG with BatchNorm"))
        theirs = zennit("VGG with BatchNorm", rule, model, [SequentialMergeBatchNorm()])
        layers: list[nn.Module] = []
        for layer in model.features:
            if isinstance(layer, nn.BatchNorm2d):
                layers[-1] = fuse_conv_bn_eval(layers[-1], layer)
            else:
                layers.append(layer)
        model.features = nn.Sequential(*layers)
        query = make_query(model.eval(), inputs("VGG with BatchNorm"), TARGETS, None, None)
        with undisturbed(query.inputs):
            return apart(abslrp.methods()[method](query, **options).maps, theirs)


def merged(model: nn.Module) -> nn.Module:
    """A copy of a torchvision ResNet with every BatchNorm merged into its convolution, as Zennit's canonizer does in place."""
    import copy

    from torch.nn.utils.fusion import fuse_conv_bn_eval

    model = copy.deepcopy(model)
    for module in model.modules():
        names = [n for n, _ in module.named_children()]
        for conv, bn in ((n, n.replace("conv", "bn")) for n in names if n.startswith("conv")):
            setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, bn)))
            setattr(module, bn, nn.Identity())
        if isinstance(getattr(module, "downsample", None), nn.Sequential):
            module.downsample = nn.Sequential(fuse_conv_bn_eval(module.downsample[0], module.downsample[1]))
    return model.eval()


@case("lrp-epsilon", "Zennit", "ResNet18", "BatchNorm merged for both; residual sums by its Norm rule")
def _zennit_resnet() -> float:
    from zennit.layer import Sum
    from zennit.rules import Epsilon, Norm
    from zennit.torchvision import ResNetCanonizer

    from abslrp.query import make_query, undisturbed

    model = merged(network("ResNet18"))
    query = make_query(model, inputs("ResNet18"), TARGETS, None, None)
    with undisturbed(query.inputs):
        mine = abslrp.methods()["lrp-epsilon"](query).maps
    return apart(mine, zennit("ResNet18", Epsilon(1e-6), model, [ResNetCanonizer()], layers=[(Sum, Norm())]))


# ---------------------------------------------------------------- grad-cam


for _method, _kind in (
    ("gradcam", "GradCAM"),
    ("gradcam++", "GradCAMPlusPlus"),
    ("hirescam", "HiResCAM"),
    ("layercam", "LayerCAM"),
):
    for _name, _layer in (("VGG", "features.7"), ("ResNet18", "layer4")):

        @case(_method, "grad-cam", _name, "before its min–max", tolerance=1e-6)
        def _grad_cam(method: str = _method, kind: str = _kind, name: str = _name, layer: str = _layer) -> float:
            import pytorch_grad_cam
            from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

            targets = [ClassifierOutputTarget(t) for t in TARGETS]
            model = network(name).float()
            try:
                module = model.get_submodule(layer)
                with getattr(pytorch_grad_cam, kind)(model, [module]) as cam:
                    cam(inputs(name).float(), targets)
                    A, g = (
                        t[0].detach().numpy()
                        for t in (cam.activations_and_grads.activations, cam.activations_and_grads.gradients)
                    )
                    theirs = cam.get_cam_image(inputs(name).float(), module, targets, A, g, False)
                large = F.interpolate(
                    torch.as_tensor(theirs).clamp(min=0).unsqueeze(1), size=inputs(name).shape[-2:], mode="bilinear"
                )
                mine = abslrp.explain(model, inputs(name).float(), TARGETS, method, layer=layer).maps[:, :1]
                return apart(mine, large)
            finally:
                network(name).double()
