"""What every method promises, on a convolutional network and on a transformer; a new method is held to it by registering."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from tests.unit.test_engine import same, snapshot
from torch import Tensor, nn

import abslrp

QUICK: dict[str, dict[str, Any]] = {
    "rise": {"masks": 6},
    "integrated-gradients": {"steps": 4},
    "smoothgrad": {"samples": 3},
    "occlusion": {"window": 8},
}


class Transformer(nn.Module):
    """A small Vision Transformer with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.blocks(h)[:, 0])


def convolutional() -> nn.Module:
    layers = (
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
    )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5))


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = {"convolutional": convolutional, "transformer": Transformer}[kind]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean), nn.init.uniform_(module.weight, 0.5, 2.0)  # type: ignore[arg-type]
    return model.eval()


X = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
CASES = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name, method in abslrp.methods().items()
    for kind in ("convolutional", "transformer")
    if not (kind == "convolutional" and "attention" in method.needs)
]


def run(name: str, model: Any, x: Tensor, targets: Any = None, **options: Any) -> abslrp.Attribution:
    return abslrp.explain(model, x, targets, name, **{**QUICK.get(name, {}), **options})


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_nothing_stays_in_memory(name: str, kind: str) -> None:
    """Without the garbage collector: a cycle through autograd's graph would keep every activation until it comes by, or for ever."""
    model = model_of(kind)
    run(name, model, X)
    gc.collect()
    gc.disable()
    try:
        before = sum(issubclass(type(o), Tensor) for o in gc.get_objects())
        run(name, model, X)
        assert sum(issubclass(type(o), Tensor) for o in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_shape_type_outputs_and_targets(name: str, kind: str) -> None:
    model = model_of(kind)
    a = run(name, model, X)
    assert a.maps.shape == X.shape and a.maps.dtype == torch.float32 and a.maps.device == X.device
    assert a.maps.isfinite().all() and not a.maps.requires_grad and not a.outputs.requires_grad
    torch.testing.assert_close(a.outputs, model(X).detach())
    assert torch.equal(a.targets, a.outputs.argmax(1)) and a.method == name


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_same_seed_same_map_and_model_untouched(name: str, kind: str) -> None:
    model, x = model_of(kind), X.clone()
    before, state = snapshot(model), torch.get_rng_state()
    first = run(name, model, x, 2)
    assert torch.equal(first.maps, run(name, model, x, 2).maps)
    assert same(before, snapshot(model)) and torch.equal(state, torch.get_rng_state()) and torch.equal(x, X)
    with torch.no_grad():
        assert torch.equal(first.maps, run(name, model, x, 2).maps)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_batch_size_order_and_company_do_not_matter(name: str, kind: str) -> None:
    model, x, targets = model_of(kind).double(), X.double(), torch.tensor([0, 3, 1])
    whole = run(name, model, x, targets).maps
    close = {"rtol": 1e-5, "atol": 1e-6 * float(whole.abs().max()) + 1e-12}
    torch.testing.assert_close(run(name, model, x, targets, batch_size=1).maps, whole, **close)
    torch.testing.assert_close(run(name, model, x, targets, batch_size=2).maps, whole, **close)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(run(name, model, x[order], targets[order]).maps, whole[order], **close)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_targets_are_honoured(name: str, kind: str) -> None:
    model = model_of(kind)
    one, other = (run(name, model, X, t).maps for t in (1, 4))
    assert torch.equal(run(name, model, X, [1, 4, 1]).maps[1], other[1]) or torch.allclose(
        run(name, model, X, [1, 4, 1]).maps[1], other[1], rtol=1e-3, atol=1e-5
    )
    if abslrp.methods()[name].class_specific:
        assert not torch.allclose(one, other)
    else:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", abslrp.methods())
def test_every_method_says_what_it_is(name: str) -> None:
    method = abslrp.methods()[name]
    assert method.description and method.family and method.citation
    with pytest.raises(
        abslrp.AbslrpError, match=f"option 'nonsense' is unknown for {name.replace('+', chr(92) + '+')}: choose from"
    ):
        abslrp.explain(model_of("transformer"), X, method=name, nonsense=1)


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("integrated-gradients", {"steps": 0}, "steps=0 must be a whole number of at least 1"),
    ("integrated-gradients", {"rule": "left"}, "rule='left' is unknown: choose one of midpoint, right, gauss-legendre"),
    ("integrated-gradients", {"baseline": torch.zeros(7)}, "does not fit inputs of shape"),
    ("smoothgrad", {"sigma": -1}, "sigma=-1 must be a number of at least 0"),
    ("smoothgrad", {"seed": "x"}, "seed='x' must be a whole number"),
    ("occlusion", {"window": (1, 2, 3)}, "window="),
    ("rise", {"keep": 2}, "keep=2 must be a number from 0.01 to 0.99"),
    ("gradcam", {"layer": "layer9"}, "module 'layer9' is not in the model"),
    ("gradcam", {"layer": "9"}, "module '9' is not in the model"),
    ("lrp-gamma", {"gamma": 0}, "gamma=0 must be a number above 0"),
    ("lrp-epsilon", {"relative": 3}, "relative=3 must be True or False"),
    ("rollout", {}, "the model has no attention"),
    ("saliency", {"at": "0"}, "at='0' cannot be used with saliency"),
    ("random", {"seed": -1}, "seed=-1"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_OPTIONS)
def test_bad_options_get_one_clear_sentence(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(abslrp.AbslrpError, match=message) as error:
        abslrp.explain(model_of("convolutional"), X, method=name, **options)
    assert "\n" not in str(error.value) and str(error.value).endswith((".", "?"))


@pytest.mark.parametrize(
    "name", [n for n, m in abslrp.methods().items() if m.family in ("class activation map", "attention") or n == "rise"]
)
def test_methods_for_images_say_so(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    with pytest.raises(abslrp.AbslrpError, match="needs images"):
        abslrp.explain(model, torch.randn(2, 4), method=name)


@pytest.mark.parametrize(
    "name",
    [n for n, m in abslrp.methods().items() if m.family not in ("class activation map", "attention") and n != "rise"],
)
def test_the_others_take_tables_and_signals(name: str) -> None:
    options = {k: v for k, v in QUICK.get(name, {}).items() if k != "window"}
    for shape, model in (
        ((2, 6), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))),
        ((2, 2, 12), nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3))),
    ):
        a = abslrp.explain(model.eval(), torch.randn(shape), method=name, **options)
        assert a.maps.shape == shape and a.maps.isfinite().all()
