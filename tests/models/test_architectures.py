"""Any architecture: finite, non-zero maps, the same in a batch and alone, the model's own output, no unknown operation.

Weights are random. The maps of a random network are the small difference of two nearly equal flows of relevance, so the rounding
of another batch size shows in them; it is compared in float64, where the samples of a batch must not touch each other at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abslrp
from abslrp.inputs.torchvision_ops import ensure_torchvision

ensure_torchvision()
timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")
transformers = pytest.importorskip("transformers")

FAST = {
    "torchvision:vgg16_bn", "torchvision:resnet18", "torchvision:densenet121", "torchvision:mobilenet_v3_small", "torchvision:swin_t", "torchvision:vit_b_32",
    "torchvision:googlenet", "timm:vit_tiny_patch16_224", "timm:convnextv2_atto", "timm:tf_efficientnet_lite0",
    "timm:xcit_nano_12_p16_224",
}  # fmt: skip
NAMES = """
torchvision: vgg16 vgg16_bn resnet18 resnet50 densenet121 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large efficientnet_b0 convnext_tiny swin_t
torchvision: swin_v2_t vit_b_16 vit_b_32 regnet_y_400mf googlenet inception_v3 shufflenet_v2_x0_5 squeezenet1_0 maxvit_t alexnet mnasnet0_5
timm: vit_base_patch16_224 vit_tiny_patch16_224 deit3_small_patch16_224 deit_tiny_distilled_patch16_224 beit_base_patch16_224 swinv2_tiny_window8_256
timm: convnextv2_atto mixer_s16_224 maxvit_nano_rw_256 tf_efficientnet_lite0 seresnet50 xcit_nano_12_p16_224 cait_xxs24_224 vit_small_patch14_reg4_dinov2
timm: mobilevit_xxs coat_lite_tiny levit_128s pit_ti_224 poolformer_s12 edgenext_xx_small efficientformer_l1 resnest14d repvgg_a0 nfnet_f0 gmlp_ti16_224
"""


def listed() -> list[Any]:
    names = [
        f"{line.split(':')[0]}:{name}" for line in NAMES.strip().splitlines() for name in line.split(":")[1].split()
    ]
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


def build(name: str) -> tuple[nn.Module, int]:
    source, _, short = name.partition(":")
    torch.manual_seed(0)
    if source == "timm":
        model = timm.create_model(short, **({"img_size": 224} if "dinov2" in short else {}))
        size = 224 if "dinov2" in short else model.default_cfg["input_size"][-1]
    else:
        extra = {"init_weights": False, "aux_logits": True} if short in ("googlenet", "inception_v3") else {}
        model = getattr(torchvision.models, short)(**extra)
        size = (
            224 if short.startswith(("vit", "maxvit")) else 128
        )  # the others take any size: small ones keep the tests short
    for parameter in model.parameters():
        if not parameter.any():  # heads and layer scales that start at 0 would hide everything behind them
            nn.init.normal_(parameter, std=0.02)
    return model.eval(), size


def check(model: nn.Module, x: Tensor, forward: Callable[[Tensor], Any] | None = None) -> None:
    with torch.no_grad():
        plain = (forward or model)(x)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for method in ("abslrp", "abslrp-agree"):
        a = abslrp.explain(model, x, method=method, forward=forward)
        torch.testing.assert_close(a.outputs, plain, rtol=1e-4, atol=1e-4 * plain.abs().max().item())
        assert a.maps.isfinite().all()
        assert (a.maps.abs().flatten(1).sum(1) > 0).all()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def check_batches(model: nn.Module, x: Tensor, forward: Callable[[Tensor], Any] | None = None) -> None:
    model, x = model.double(), x.double()
    whole = abslrp.explain(model, x, forward=forward)
    alone = abslrp.explain(model, x[1:], targets=whole.targets[1:], forward=forward)
    torch.testing.assert_close(whole.maps[1:], alone.maps, rtol=1e-4, atol=1e-4 * alone.maps.abs().max().item())


@pytest.mark.parametrize("name", listed())
def test_image_classifiers(name: str) -> None:
    model, size = build(name)
    x = torch.randn(2, 3, size, size)
    check(model, x)
    check_batches(model, x)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
VISION = {
    "ViT": {**SMALL, "image_size": 32, "patch_size": 8},
    "DeiT": {**SMALL, "image_size": 32, "patch_size": 8},
    "Dinov2": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
    "Swin": {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    },
    "ConvNext": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
}
TEXT = {
    "Bert": {**SMALL, "vocab_size": 50},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 50},
    "Roberta": {**SMALL, "vocab_size": 50},
    "Electra": {**SMALL, "vocab_size": 50, "embedding_size": 32},
    "DebertaV2": {**SMALL, "vocab_size": 50},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "pad_token_id": 0},
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", VISION)
def test_transformers_vision(name: str, attention: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(num_labels=5, **VISION[name])
    if name != "ConvNext":
        config._attn_implementation = attention
    model = getattr(transformers, f"{name}ForImageClassification")(config).eval()
    x = torch.randn(3, 3, 32, 32)
    check(model, x, lambda v: model(v).logits)
    check_batches(model, x)


def text_model(name: str, attention: str) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(num_labels=3, **TEXT[name])
    if name != "DebertaV2":
        config._attn_implementation = attention
    model: nn.Module = getattr(transformers, f"{name}ForSequenceClassification")(config)
    return model.eval()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", TEXT)
def test_transformers_text_from_embeddings(name: str, attention: str) -> None:
    model = text_model(name, attention)
    x = torch.randn(2, 7, 32)
    check(model, x, lambda v: model(inputs_embeds=v).logits)
    check_batches(model, x, lambda v: model(inputs_embeds=v).logits)


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "Roberta"])
def test_padding_takes_no_relevance_and_changes_nothing(name: str) -> None:
    model = text_model(name, "sdpa").double()
    x = torch.randn(1, 9, 32, dtype=torch.float64)
    mask = torch.tensor([[1] * 6 + [0] * 3])
    alone = abslrp.explain(model, x[:, :6], targets=1, forward=lambda v: model(inputs_embeds=v).logits)
    padded = abslrp.explain(model, x, targets=1, forward=lambda v: model(inputs_embeds=v, attention_mask=mask).logits)
    torch.testing.assert_close(padded.maps[:, :6], alone.maps, rtol=1e-5, atol=1e-9)
    assert not padded.maps[:, 6:].any()


@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_eager_and_fused_attention_give_the_same_map(name: str) -> None:
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    eager, fused = (text_model(name, a).double() for a in ("eager", "sdpa"))
    maps = [
        abslrp.explain(m, x, targets=1, forward=lambda v, m=m: m(inputs_embeds=v).logits).maps for m in (eager, fused)
    ]
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-5, atol=1e-7)
