"""What a run is to do: how it is written, when two are the same, and what changed between them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abslrp.experiments import paper, presets
from abslrp.experiments.config import Config, difference, make_config, read_file, read_methods, read_metrics
from abslrp.types import AbslrpError


def read(text: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(one.label, one.name, dict(one.options)) for one in read_methods(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abslrp", [("abslrp", "abslrp", {})]),
        (" abslrp , gradcam,", [("abslrp", "abslrp", {}), ("gradcam", "gradcam", {})]),
        (["abslrp", "gradcam"], [("abslrp", "abslrp", {}), ("gradcam", "gradcam", {})]),
        ("mine=gradcam", [("mine", "gradcam", {})]),
        ("a=gradcam,b=abslrp", [("a", "gradcam", {}), ("b", "abslrp", {})]),
        ("abslrp:conserve=none", [("abslrp:conserve=none", "abslrp", {"conserve": "none"})]),
        (
            "agree-sign=abslrp-agree:conserve=sign,start=contrastive,gradcam",
            [("agree-sign", "abslrp-agree", {"conserve": "sign", "start": "contrastive"}), ("gradcam", "gradcam", {})],
        ),
        (
            "a=abslrp:conserve=sign,b=abslrp:conserve=none",
            [("a", "abslrp", {"conserve": "sign"}), ("b", "abslrp", {"conserve": "none"})],
        ),
        ("a=abslrp:conserve=sign,b=gradcam", [("a", "abslrp", {"conserve": "sign"}), ("b", "gradcam", {})]),
        (
            "o=occlusion:window=28,14,gradcam:layer=0",
            [("o", "occlusion", {"window": [28, 14]}), ("gradcam:layer=0", "gradcam", {"layer": "0"})],
        ),
        ("o=occlusion:window=(28,14),saliency", [("o", "occlusion", {"window": [28, 14]}), ("saliency", "saliency", {})]),
        ("r=rise:inner-batch=4", [("r", "rise", {"inner_batch": 4})]),
        (
            {"abslrp": {}, "sign": {"method": "abslrp-agree", "conserve": "sign"}, "g": "gradcam"},
            [("abslrp", "abslrp", {}), ("sign", "abslrp-agree", {"conserve": "sign"}), ("g", "gradcam", {})],
        ),
    ],
)  # fmt: skip
def test_methods_are_read_as_people_write_them(text: Any, found: list[Any]) -> None:
    assert read(text) == found


def test_metrics_are_filled_in_so_that_new_defaults_do_not_change_an_old_run() -> None:
    (gae,) = read_metrics("gae:settings=authors,T=4")
    assert (gae.options["schedule"], gae.options["T"]) == ("authors", 4)
    assert read_metrics("gae") == read_metrics({"gae": {"T": 10}}) == read_metrics(["gae:settings=paper"])
    assert [one.name for one in read_metrics("road-morf:percentages=10,30,focus")] == ["road-morf", "focus"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: read_methods("absrlp"), "did you mean abslrp"),
        (lambda: read_methods(""), "at least one"),
        (lambda: read_methods("abslrp,abslrp"), "named twice: give one of them a name"),
        (lambda: read_methods("abslrp:conserv=sign"), "'conserv' is unknown for abslrp: did you mean 'conserve'"),
        (lambda: read_methods("constant:x=1"), "'x' is unknown for constant: there is none"),
        (lambda: read_methods("abslrp:conserve"), "write KEY=VALUE"),
        (lambda: read_methods("=abslrp"), "write NAME"),
        (lambda: read_methods(7), "not understood"),
        (lambda: read_methods({"a": 7}), "table of options"),
        (lambda: read_methods({"abslrp": {"eps": float("nan")}}), "keeps numbers"),
        (lambda: read_metrics("gea"), "did you mean gae"),
        (lambda: read_metrics("gae:T=1"), "at least 2"),
        (lambda: read_metrics("mine=gae:T=4"), "cannot be called 'mine'"),
        (lambda: make_config({"image": 4}), "did you mean 'images'"),
        (lambda: make_config({"images": "4"}), "a whole number"),
        (lambda: make_config({"images": True}), "a whole number"),
        (lambda: make_config({"images": 0}), "at least 1"),
        (lambda: make_config({"seed": -1}), "at least 0"),
        (lambda: presets.expand({"preset": "papers"}), "choose one of paper"),
        (lambda: presets.expand({"preset": "paper"}), "--architecture vgg"),
        (lambda: presets.expand({"preset": "paper", "architecture": "bert"}), "choose one of vgg"),
        (lambda: presets.expand({"architecture": "vit"}), "for presets"),
        (lambda: presets.expand({"preset": "ablation", "model": "timm:resnet18"}), "does not tell that it is a ViT"),
        (lambda: presets.expand({"preset": "patches", "weights": "a.pt"}), "runs two models"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_a_sentence(call: Any, says: str) -> None:
    with pytest.raises(AbslrpError, match=says):
        call()


def base(**changes: Any) -> Config:
    return make_config({"methods": "abslrp,gradcam", "metrics": "gae,focus", "images": 8, **changes})


def test_the_hash_knows_what_decides_a_score_and_nothing_else() -> None:
    assert base().hash == base(methods="gradcam,abslrp", metrics="focus,gae").hash
    assert Config.from_dict(json.loads(json.dumps(base().to_dict()))) == base()
    changed = [
        *({"images": 9}, {"seed": 1}, {"methods": "abslrp"}, {"metrics": "gae:T=4,focus"}, {"split": "test"}),
        *({"model": "timm:resnet18"}, {"weights": "w.pt"}, {"data": "elsewhere"}, {"labels": "l.txt"}),
        *({"methods": "abslrp:eps=1e-3,gradcam"}, {"num_classes": 5}, {"random_weights": True}),
    ]
    assert len({base(**one).hash for one in [{}, *changed]}) == len(changed) + 1


def test_paths_are_the_same_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = base(data="data", weights="w.pt")
    assert (here.data, here.weights) == (str(tmp_path / "data"), str(tmp_path / "w.pt"))
    assert base(data="hf:data").data == f"hf:{tmp_path / 'data'}"
    assert base(data="samples").data == "samples"


def test_the_difference_is_told_in_words() -> None:
    old, new = base(), base(methods="abslrp:eps=1e-3,saliency", metrics="gae:T=4,focus", seed=2)
    assert difference(old, old) == []
    assert difference(old, new) == [
        "methods: with abslrp:eps=1e-3, saliency; without abslrp, gradcam",
        "metrics: gae changed (T 10 → 4)",
        "seed: 0 before, 2 now",
    ]
    assert difference(old, replace(old, labels="l.txt")) == ["labels: nothing before, l.txt now"]


def test_a_file_says_the_same_as_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'images = 8\nnum-classes = 5\nout = "there"\nbatch = "auto"\ngpus = 0.5\n'
        '[methods]\nabslrp = {}\nsign = { method = "abslrp-agree", conserve = "sign" }\n[metrics.gae]\nT = 4\n'
    )
    found = read_file(file)
    assert (found.pop("out"), found.pop("batch"), found.pop("gpus")) == ("there", "auto", 0.5)
    flags = {"images": 8, "num_classes": 5, "methods": "abslrp,sign=abslrp-agree:conserve=sign", "metrics": "gae:T=4"}
    assert make_config(found) == make_config(flags)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("imagse = 8", "has the key 'imagse', which is unknown: did you mean 'images'"),
        ("nonsense = 8", "choose from methods, metrics"),
        ("optional = []", "unknown"),
        ("images = ", "is no TOML"),
        ("device = 3", "device=3 is not understood: give text"),
    ],
)
def test_a_file_that_is_not_understood_is_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(AbslrpError, match=says):
        read_file(file)


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(AbslrpError, match="name a TOML file"):
        read_file(tmp_path / "gone.toml")


@pytest.mark.parametrize("kind", presets.ARCHITECTURES)
def test_the_papers_methods_are_all_here(kind: str) -> None:
    ((folder, values),) = presets.expand({"preset": "paper", "architecture": kind, "images": 8})
    config = make_config(values)
    assert (folder, config.images, config.optional) == ("", 8, ("focus",))
    assert [one.name for one in config.methods] == paper.methods_of(presets.ARCHITECTURES[kind])
    assert [one.name for one in config.metrics] == list(paper.METRICS)
    assert config.metrics[0].options["settings"] == "authors"
    for one in config.methods:
        for metric in paper.METRICS:
            found = presets.published("paper", kind, "imagenet", metric, one.name, "score")
            assert found is not None


def test_what_is_named_goes_before_the_preset() -> None:
    ((_, values),) = presets.expand({"preset": "paper", "model": "torchvision:resnet50", "metrics": "focus"})
    config = make_config(values)
    assert (config.architecture, config.optional, [one.name for one in config.metrics]) == ("resnet", (), ["focus"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("torchvision:vgg16", "vgg"), ("timm:vgg11_bn", "vgg"), ("torchvision:resnet50", "resnet"),
        ("timm:resnext50_32x4d", "resnet"), ("timm:vit_base_patch16_224", "vit"), ("hf:google/vit-base-patch16-224", "vit"),
        ("torchvision:vit_b_16", "vit"), ("timm:deit_tiny_patch16_224", "vit"), ("timm:convnext_tiny", None), ("", None),
    ],
)  # fmt: skip
def test_the_architecture_is_told_by_the_name(name: str, kind: str | None) -> None:
    assert presets.guess_architecture(name) == kind


def test_the_ablation_has_the_papers_rows() -> None:
    ((_, values),) = presets.expand({"preset": "ablation", "model": "timm:vit_tiny_patch16_224"})
    assert list(values["methods"]) == list(paper.ABLATIONS)
    assert [one.label for one in make_config(values).methods] == list(paper.ABLATIONS)
    assert presets.published("ablation", "vit", "imagenet", "gae", "patches", "score") == 0.041


def test_patches_are_a_pair_of_runs() -> None:
    runs = presets.expand({"preset": "patches", "images": 4})
    assert [folder for folder, _ in runs] == ["vit_base_patch16_384", "vit_base_patch32_224"]
    assert [make_config(values).model for _, values in runs] == list(presets.PATCH_MODELS)
    assert len(presets.expand({"preset": "patches", "model": "timm:vit_tiny_patch16_224"})) == 1
