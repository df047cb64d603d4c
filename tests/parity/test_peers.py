"""Parity with the peer libraries, and what works here where they refuse or are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abslrp
from abslrp.inputs.torchvision_ops import ensure_torchvision

ensure_torchvision()
pytest.importorskip("captum")
pytest.importorskip("pytorch_grad_cam")

from tests.networks import shared_images, shared_network  # noqa: E402
from tests.parity.cases import CASES, Case, inputs, network  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.method}-{c.peer}-{c.network}-{c.note[:12]}")
def test_parity(case: Case) -> None:
    assert case.error() <= case.tolerance


class Functional(nn.Module):
    """The same network with functional rectifiers, or with one ReLU module used twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.r, self.s = nn.ReLU(), nn.ReLU()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu if self.kind == "functional" else self.r
        second = {"functional": F.relu, "reused": self.r, "modules": self.s}[self.kind]
        return self.c(second(self.b(first(self.a(x)))))


@pytest.mark.parametrize(
    "method", ["guided-backprop", "deconvolution", "deeplift", "lrp-epsilon", "lrp-alpha1beta0", "abslrp"]
)
@pytest.mark.parametrize("kind", ["functional", "reused"])
def test_functional_and_reused_rectifiers(method: str, kind: str) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    plain, other = (abslrp.explain(Functional(k).eval(), x, 1, method).maps for k in ("modules", kind))
    torch.testing.assert_close(other, plain)


def test_where_captum_is_silently_wrong_or_refuses() -> None:
    """Guided backpropagation there misses functional rectifiers; DeepLIFT refuses a reused one."""
    import captum.attr

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    wanted = captum.attr.GuidedBackprop(Functional("modules").eval()).attribute(x, target=1)
    missed = captum.attr.GuidedBackprop(Functional("functional").eval()).attribute(x, target=1)
    assert not torch.allclose(wanted, missed)
    torch.testing.assert_close(
        abslrp.explain(Functional("functional").eval(), x, 1, "guided-backprop").maps, wanted.detach()
    )
    with pytest.raises(Exception, match=r"reuse|more than once|already|deep"):
        captum.attr.DeepLift(Functional("reused").eval()).attribute(x, target=1)
    deep = captum.attr.DeepLift(Functional("modules").eval()).attribute(x, target=1)
    torch.testing.assert_close(
        abslrp.explain(Functional("reused").eval(), x, 1, "deeplift").maps, deep.detach(), rtol=1e-4, atol=1e-6
    )


def test_identity_modules_that_captums_lrp_refuses() -> None:
    import captum.attr

    model, x = network("ViT"), inputs("ViT")
    with pytest.raises(TypeError):
        captum.attr.LRP(model).attribute(x, target=1)
    assert abslrp.explain(model, x, 1, "lrp-epsilon").maps.isfinite().all()


def test_deeplift_sums_to_the_difference_of_outputs() -> None:
    model, x = network("VGG"), inputs("VGG")
    a = abslrp.explain(model, x, [1, 4], "deeplift")
    base = model(torch.zeros_like(x)).detach()
    difference = (a.outputs.double() - base).gather(1, torch.tensor([[1], [4]]))[:, 0]
    torch.testing.assert_close(a.maps.sum((1, 2, 3)).double(), difference, rtol=1e-4, atol=1e-5)


def test_deeplift_through_max_pooling_is_complete_and_captums_is_not() -> None:
    """Captum falls back to the first sample's gradient where the pooled inputs do not differ, and loses the sum."""
    import captum.attr

    model, x = network("VGG"), inputs("VGG")[:1]
    difference = float((model(x) - model(torch.zeros_like(x)))[0, 1])
    ours = float(abslrp.explain(model, x, 1, "deeplift").maps.sum())
    theirs = float(captum.attr.DeepLift(model).attribute(x.clone().requires_grad_(), target=1).sum())
    assert abs(ours - difference) < 1e-5 * abs(difference) < 1e-2 * abs(difference) < abs(theirs - difference)


def test_layers_are_found() -> None:
    import timm
    import torchvision

    from abslrp.methods.grids import find_layer
    from abslrp.query import make_query

    expected = {
        "resnet18": "layer4", "vgg11": "features.19", "densenet121": "features", "convnext_tiny": "features.7", "swin_t": "features.7.1.norm1",
        "vit_b_32": "encoder.layers.encoder_layer_11.ln_1", "mobilenet_v2": "features.18",
    }  # fmt: skip
    for name, layer in expected.items():
        model = getattr(torchvision.models, name)(num_classes=3).eval()
        size = 224 if name.startswith("vit") else 64
        found = find_layer(make_query(model, torch.randn(1, 3, size, size), None, None, None))
        assert found in (layer, layer.rpartition(".")[0]) or found.startswith(f"{layer}."), (name, found)
    for name, layer in {
        "vit_tiny_patch16_224": "blocks.11.norm1",
        "deit_tiny_distilled_patch16_224": "blocks.11.norm1",
    }.items():
        model = timm.create_model(name, num_classes=3).eval()
        x = torch.randn(1, 3, 224, 224)
        assert find_layer(make_query(model, x, None, None, None)) == layer
        assert abslrp.explain(model, x, 0, "hirescam").maps.shape == x.shape


def test_attention_methods_work_in_batches_from_three_libraries() -> None:
    import timm
    import torchvision
    import transformers

    small = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        num_labels=3,
    )
    models = {
        "timm": (timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3), 32),
        "torchvision": (torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 48, num_classes=3), 32),
        "transformers": (transformers.ViTForImageClassification(small), 32),
    }
    for model, size in models.values():
        for parameter in model.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1)
        model = model.double().eval()
        x = torch.randn(3, 3, size, size).double()
        for method in ("rollout", "last-layer-attention", "tibav"):
            whole = abslrp.explain(model, x, 1, method).maps
            assert whole.shape == x.shape and (whole >= 0).all() and whole.any()
            torch.testing.assert_close(abslrp.explain(model, x[1:2], 1, method).maps[0], whole[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "kind", "name"),
    [
        ("saliency", "Saliency", "vit-tiny"),
        ("guided-backprop", "GuidedBackprop", "vgg16"),
        pytest.param("saliency", "Saliency", "resnet50", marks=pytest.mark.slow),
        pytest.param("guided-backprop", "GuidedBackprop", "resnet50", marks=pytest.mark.slow),
        pytest.param("deconvolution", "Deconvolution", "vgg16", marks=pytest.mark.slow),
        pytest.param("input-x-gradient", "InputXGradient", "vit-tiny", marks=pytest.mark.slow),
    ],
)
def test_parity_with_captum_on_real_weights(method: str, kind: str, name: str, shared: Path) -> None:
    import captum.attr

    model, x = shared_network(shared, name), shared_images(shared, name, 2)
    targets = model(x).argmax(1)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    theirs = getattr(captum.attr, kind)(model).attribute(x.clone().requires_grad_(), target=targets).detach()
    ours = abslrp.explain(model, x, targets, method).maps
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4


@pytest.mark.parametrize(
    "method",
    ["gradcam", *(pytest.param(m, marks=pytest.mark.slow) for m in ("gradcam++", "layercam", "hirescam"))],
)
def test_parity_with_grad_cam_on_real_weights(method: str, shared: Path) -> None:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model, x = shared_network(shared, "resnet50"), shared_images(shared, "resnet50", 2)
    targets = model(x).argmax(1)
    kind = {"gradcam": "GradCAM", "gradcam++": "GradCAMPlusPlus", "layercam": "LayerCAM", "hirescam": "HiResCAM"}[
        method
    ]
    with getattr(pytorch_grad_cam, kind)(model, [model.layer4]) as cam:
        theirs = torch.as_tensor(cam(x, [ClassifierOutputTarget(int(t)) for t in targets]))
    ours = abslrp.explain(model, x, targets, method).maps[:, 0]
    low, high = ours.amin((1, 2), keepdim=True), ours.amax((1, 2), keepdim=True)
    torch.testing.assert_close((ours - low) / (high - low), theirs, rtol=0, atol=2e-3)  # theirs enlarges with cv2


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("lrp-epsilon", ("Epsilon", 1e-6)),
        pytest.param("lrp-alpha1beta0", ("AlphaBeta", 1, 0, 1e-9), marks=pytest.mark.slow),
        pytest.param("lrp-alpha2beta1", ("AlphaBeta", 2, 1, 1e-9), marks=pytest.mark.slow),
        pytest.param("lrp-gamma", ("Gamma", 0.25, 1e-6), marks=pytest.mark.slow),
    ],
)
def test_parity_with_zennit_on_real_weights(method: str, rule: tuple[Any, ...], shared: Path) -> None:
    import zennit.rules
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite
    from zennit.types import Activation, AvgPool, Convolution, Linear

    model, x = shared_network(shared, "vgg16"), shared_images(shared, "vgg16", 2)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    start = F.one_hot(model(x).argmax(1), 10).float()
    its = getattr(zennit.rules, rule[0])(*rule[1:])
    layers = [(Activation, zennit.rules.Pass()), (Convolution, its), (Linear, its), (AvgPool, its)]
    with Gradient(model=model, composite=LayerMapComposite(layer_map=layers)) as attributor:
        theirs = attributor(x.clone().requires_grad_(), start)[1].detach()
    ours = abslrp.explain(model, x, method=method, start=start).maps
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-3  # ε beside float32 activations near 0


def test_layers_are_remembered_while_the_model_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from abslrp.methods import grids

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
            self.head, self.order, self.looks = nn.Linear(3, 2), ["a", "b"], False
            self.register_buffer("turned", torch.tensor(False))

        def forward(self, x: Tensor) -> Tensor:
            order = self.order[::-1] if self.turned or (self.looks and x.sum() < 0) else self.order
            for name in order:
                x = getattr(self, name)(x).relu()
            return self.head(x.mean((2, 3)))

    walked: list[int] = []
    walk = grids.walk
    monkeypatch.setattr(grids, "walk", lambda query: walked.append(1) or walk(query))

    def gradcam(model: nn.Module, layer: str, walks: int, inputs: Tensor, **options: Any) -> None:
        walked.clear()
        made = abslrp.explain(model, inputs, 0, "gradcam", **options).maps
        assert len(walked) == walks
        torch.testing.assert_close(made, abslrp.explain(model, inputs, 0, "gradcam", layer=layer).maps)

    x = torch.randn(2, 3, 8, 8)
    net = Net().eval()
    gradcam(net, "b", 1, x)
    gradcam(net, "b", 0, x)
    gradcam(net, "b", 0, x[:1])
    gradcam(net, "b", 1, x[:, :, 1:])
    gradcam(net, "b", 1, x, forward=lambda v: net(v))
    gradcam(net, "b", 0, x)
    net.order[:] = ["b", "a"]
    for walks in (1, 1):  # from now on it is looked for each time
        gradcam(net, "a", walks, x)

    def turn(net: Any) -> None:
        net.turned.fill_(True)

    def replace(net: Any) -> None:
        net.b = nn.Sequential(nn.Conv2d(3, 3, 3), net.b).eval()

    def forward(net: Any) -> None:
        net.forward = lambda v: net.head(net.a(net.b(v)).mean((2, 3)))

    for change, layer in ((turn, "a"), (replace, "b"), (forward, "a")):
        net = Net().eval()
        gradcam(net, "b", 1, x)
        change(net)
        gradcam(net, layer, 1, x)
    net = Net().eval()
    net.looks = True
    gradcam(net, "b", 1, x.abs())
    gradcam(net, "a", 1, -x.abs())
    gradcam(net, "b", 1, x.abs())
