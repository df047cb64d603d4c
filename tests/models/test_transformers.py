"""Vision Transformers: one map whichever attention was selected, and detail below the size of a patch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.networks import shared_images, shared_network
from torch import Tensor, nn

import abslrp
from abslrp.inputs.torchvision_ops import ensure_torchvision

METHODS = ("abslrp", "abslrp-agree", "abslrp-transformer", "lrp-epsilon")
# Class token, mean pooling, distillation token, registers and layer scale, windows with relative positions, shifted ones,
# relative position bias, rotary positions, another resolution than the weights'.
VARIANTS: dict[str, tuple[str, dict[str, object], int]] = {
    "class token": ("vit_tiny_patch16_224", {"img_size": 64, "depth": 3}, 64),
    "mean pooling": ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2, "global_pool": "avg"}, 64),
    "patches of 32": ("vit_small_patch32_224", {"img_size": 96, "depth": 2}, 96),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 64, "depth": 2}, 64),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "depth": 2, "num_classes": 5}, 56),
    "shifted windows": ("swin_tiny_patch4_window7_224", {"img_size": 56, "depths": (2, 2)}, 56),
    "relative bias": ("beit_base_patch16_224", {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3}, 64),
    "rotary": ("eva02_tiny_patch14_224", {"img_size": 56, "depth": 2, "num_classes": 5}, 56),
    "any resolution": ("vit_tiny_patch16_224", {"dynamic_img_size": True, "depth": 2}, 96),
}


def timm_model(name: str, **options: object) -> nn.Module:
    ensure_torchvision()
    import timm

    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, **options)
    return model.eval()


def set_fused(model: nn.Module, fused: bool) -> int:
    found = [m for m in model.modules() if hasattr(m, "fused_attn")]
    for module in found:
        module.fused_attn = fused
    return len(found)


def both(
    model: nn.Module, select: Callable[[nn.Module, bool], object], x: Tensor, method: str
) -> tuple[Tensor, Tensor]:
    maps = []
    for fused in (True, False):
        select(model, fused)
        maps.append(abslrp.explain(model, x, 1, method).maps)
    return maps[0], maps[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_attention_gives_the_same_map(variant: str) -> None:
    name, options, size = VARIANTS[variant]
    model = timm_model(name, **options).double()
    assert set_fused(model, True)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)).double()
    for method in METHODS:
        fused, plain = both(model, set_fused, x, method)
        assert plain.abs().max() > 0
        torch.testing.assert_close(fused, plain, rtol=0, atol=1e-6 * float(plain.abs().max()))


@pytest.mark.parametrize("architecture", ["ViT", "DeiT", "Beit"])
def test_eager_and_sdpa_of_transformers_give_the_same_map(architecture: str) -> None:
    ensure_torchvision()
    import transformers

    config = getattr(transformers, f"{architecture}Config")(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, image_size=32, patch_size=8
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{architecture}ForImageClassification")(config).double().eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
    for method in METHODS:
        fused, plain = both(model, lambda m, fused: m.set_attn_implementation("sdpa" if fused else "eager"), x, method)
        # one scales the queries, the other their products, beside which ε is not the same
        torch.testing.assert_close(fused, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize("method", METHODS)
def test_fused_attention_on_real_weights(method: str, shared: Path) -> None:
    model, x = shared_network(shared, "vit-tiny"), shared_images(shared, "vit-tiny", 2, seed=3)
    fused, plain = both(model.double(), set_fused, x.double(), method)
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


def detail(maps: Tensor, patch: int = 16) -> float:
    """The share of a map's energy that is left when the best surface of second order is taken from every patch."""
    pixels = maps.sum(1).double()
    cut = pixels.unfold(1, patch, patch).unfold(2, patch, patch).reshape(-1, patch * patch)
    u, v = torch.meshgrid(*[torch.linspace(-1, 1, patch, dtype=torch.float64)] * 2, indexing="ij")
    surface = torch.stack([torch.ones_like(u), u, v, u * v, u * u, v * v]).reshape(6, -1).mT
    smooth = cut @ (surface @ torch.linalg.pinv(surface)).mT
    return float((cut - smooth).square().sum() / cut.square().sum())


def test_detail_is_what_lies_below_a_patch() -> None:
    flat = F.interpolate(torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0)), scale_factor=16.0)
    bent = F.interpolate(flat[:, :, ::16, ::16], size=(64, 64), mode="bilinear")
    noise = torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(1))
    assert detail(flat) < 1e-12 and detail(bent) < 0.05 and detail(noise) > 0.95


def check_detail(model: nn.Module, x: Tensor) -> None:
    """Contributions of both signs at the patch embedding leave most of a map's energy below the patches. Rules that count
    positive ones only leave a tenth or two, many times what an enlarged CAM does: within a patch they follow brightness."""
    coarse = detail(abslrp.explain(model, x, method="hirescam").maps)
    assert coarse < 0.03
    for method in METHODS[:3]:
        assert detail(abslrp.explain(model, x, method=method, first="epsilon").maps) > 0.5
        assert detail(abslrp.explain(model, x, method=method).maps) > max(5 * coarse, 0.05)


def test_maps_have_detail_within_patches() -> None:
    model = timm_model("vit_tiny_patch16_224", img_size=64, depth=3)
    check_detail(model, torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)))


def test_real_maps_have_detail_within_patches(shared: Path) -> None:
    check_detail(shared_network(shared, "vit-tiny"), shared_images(shared, "vit-tiny", 4, seed=3))


def test_at_the_level_of_patches_there_is_no_detail() -> None:
    model = timm_model("vit_tiny_patch16_224", img_size=64, depth=2)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert detail(abslrp.explain(model, x, 1, "abslrp", level="patches").maps) < 1e-9
