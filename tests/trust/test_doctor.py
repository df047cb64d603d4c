"""The doctor names what is wrong with a model and the layer where it happens, and says nothing where nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.test_methods import X, model_of
from tests.networks import shared_images, shared_network
from tests.unit.test_engine import same, snapshot
from torch import Tensor, nn

from abslrp import cli
from abslrp.doctor import Examination, examine
from abslrp.inputs import models
from abslrp.inputs.images import Transform
from abslrp.inputs.models import LoadedModel, load_model, sample_images
from abslrp.types import AbslrpError

SMALL = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def chain(depth: int = 6) -> nn.Sequential:
    """Convolutions at 0, 2, 4 …, each with its rectifier behind it."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Conv2d(8 if i else 3, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def residual(depth: int = 6) -> nn.Sequential:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(x)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    blocks = [Block() for _ in range(depth)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def drown(layer: nn.Conv2d) -> None:
    """The bias makes all of the output, so that nothing is left for the inputs."""
    layer.weight.data.mul_(1e-9), layer.bias.data.fill_(1.0)  # type: ignore[operator, union-attr]


def cancel(before: nn.Conv2d, layer: nn.Conv2d) -> None:
    """Two inputs that are the same take each other back, so that contributions are a billion times the output."""
    before.weight.data[1] = before.weight.data[0]
    before.bias.data[:2] = 1.0  # type: ignore[index]
    layer.weight.data[:, 0].add_(1e9), layer.weight.data[:, 1].sub_(1e9)


def only(found: Examination) -> str:
    assert len(found.problems) == 1, found.problems
    assert "\n" not in found.problems[0] and found.problems[0].endswith(".")
    return found.problems[0]


@pytest.mark.parametrize("place", [0, 4, 10])
@pytest.mark.parametrize(
    ("method", "options"), [("abslrp", {"conserve": "none"}), ("lrp-alpha1beta0", {}), ("lrp-gamma", {})]
)
def test_vanishing_names_the_layer(place: int, method: str, options: dict[str, Any]) -> None:
    model = chain()
    drown(model[place])  # type: ignore[arg-type]
    assert only(examine(model, SMALL, method, **options)).startswith(
        f"relevance vanishes in {place} (torch.nn.functional.conv2d): it gets "
    )


@pytest.mark.parametrize("place", [2, 4, 10])
@pytest.mark.parametrize(("method", "options"), [("abslrp", {"conserve": "none"}), ("lrp-epsilon", {})])
def test_exploding_names_the_layer(place: int, method: str, options: dict[str, Any]) -> None:
    model = chain()
    cancel(model[place - 2], model[place])  # type: ignore[arg-type]
    assert only(examine(model, SMALL, method, **options)).startswith(
        f"relevance explodes in {place} (torch.nn.functional.conv2d): it gets "
    )


def test_what_conservation_mends_is_no_problem() -> None:
    for harm in (lambda m: drown(m[4]), lambda m: cancel(m[2], m[4])):
        model = chain()
        harm(model)
        assert examine(model, SMALL).sound


@pytest.mark.parametrize("place", [1, 5, 11])
def test_a_dead_layer_is_named(place: int) -> None:
    model = chain()
    model[place - 1].bias.data.fill_(-1e3)  # type: ignore[union-attr, operator]
    found = examine(model, SMALL)
    assert f"because {place} (ReLU) gives it only zeros" in only(found) or place == 11
    assert f"{place} (ReLU)" in found.notes[0] and found.notes[0].endswith("no relevance passes.")
    assert not found.maps.any()  # type: ignore[union-attr]


def test_a_dead_branch_is_a_note_and_no_problem() -> None:
    model = residual()
    model[3].branch[0].bias.data.fill_(-1e3)  # type: ignore[union-attr, index, operator]
    found = examine(model, SMALL)
    assert found.sound
    assert found.notes == ("3.branch.1 (ReLU) is dead: only zeros come out for this input, and no relevance passes.",)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 6])
def test_outputs_that_are_not_finite_name_where_they_begin(value: float, place: int) -> None:
    model = chain()
    model[place].weight.data[0, 0] = value  # type: ignore[union-attr, operator, index]
    found = examine(model, SMALL)
    assert only(found).startswith(
        f"the model's outputs hold NaN or infinite values, first in {place} (Conv2d): look at its weights there"
    )
    assert found.coverage is None


def test_little_by_little_names_where_the_bound_is_crossed() -> None:
    torch.manual_seed(0)
    found = examine(chain(30), SMALL, "lrp-alpha1beta0")
    sentence = only(found)
    assert sentence.startswith("relevance vanishes little by little, in ")
    number = int(sentence.removeprefix("relevance vanishes little by little, in ").split()[0])
    layers = {layer.path: layer for layer in found.coverage.layers}  # type: ignore[union-attr]
    assert layers[str(number)].mass_out < torch.finfo(torch.float32).eps < layers[str(number + 2)].mass_out


def test_where_relevance_stops_at_a_constant() -> None:
    class Detached(nn.Module):
        def __init__(self, whole: bool) -> None:
            super().__init__()
            self.first, self.last, self.whole = nn.Linear(4, 4), nn.Linear(4, 3), whole

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.last(h.round() if self.whole else h + h.round())  # type: ignore[no-any-return]

    torch.manual_seed(0)
    x = torch.randn(1, 4)
    found = examine(Detached(False).eval(), x)
    assert found.sound and found.notes == (
        "relevance stops at torch.Tensor.round (1): what comes out counts as a constant.",
    )
    with pytest.raises(AbslrpError, match=r"relevance stops at torch.Tensor.round in Detached"):
        examine(Detached(True).eval(), x)


@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
@pytest.mark.parametrize("method", ["abslrp", "abslrp-agree", "lrp-epsilon", "lrp-gamma", "rap"])
def test_no_false_alarm_on_small_networks(kind: str, method: str) -> None:
    model = model_of(kind)
    before = snapshot(model)
    found = examine(model, X, method)
    assert found.problems == () and found.notes == ()
    assert same(before, snapshot(model))


@pytest.mark.parametrize("spec", [None, "torchvision:resnet18", "timm:vit_tiny_patch16_224"])
def test_no_false_alarm_on_usual_networks(spec: str | None) -> None:
    torch.manual_seed(0)
    loaded = load_model(spec, pretrained=spec is None)
    x = loaded.transform(sample_images()["chelsea"])[None]
    found = examine(loaded.model, x)
    assert found.problems == () and found.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "vit-tiny", "vgg16"])
def test_no_false_alarm_on_real_networks(name: str, shared: Path) -> None:
    model, x = shared_network(shared, name), shared_images(shared, name, 2)
    for method in ("abslrp", "abslrp-agree", "lrp-epsilon", "lrp-gamma", "rap"):
        found = examine(model, x, method)
        assert found.problems == () and found.notes == ()


@pytest.mark.slow
def test_attnlrp_explodes_on_a_real_transformer(shared: Path) -> None:
    """Its ε of 1e-6 leaves poles at the residual sums, which multiply from block to block."""
    model, x = shared_network(shared, "vit-tiny"), shared_images(shared, "vit-tiny", 1, 3)
    assert only(examine(model, x, "attnlrp")).startswith("relevance explodes little by little to ")


def test_the_command_says_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain()
    drown(model[4])  # type: ignore[arg-type]
    loaded = LoadedModel(model, Transform(size=(12, 12), resize=14), None, "drowned")
    monkeypatch.setattr(models, "load_model", lambda *args, **kwargs: loaded)
    assert cli.main(["doctor", "--option", "conserve=none"]) == 0
    said = capsys.readouterr().out
    assert "drowned has a problem: relevance vanishes in 4 (torch.nn.functional.conv2d)" in said
    assert "works" not in said
    assert cli.main(["doctor"]) == 0
    assert "drowned works: the map is finite and not zero." in capsys.readouterr().out
    model[2].weight.data.fill_(float("nan"))  # type: ignore[union-attr, operator]
    assert cli.main(["doctor"]) == 0
    assert (
        "drowned has a problem: the model's outputs hold NaN or infinite values, first in 2 (Conv2d)"
        in capsys.readouterr().out
    )
