"""Relevance is finite, and the same as in double precision, whatever the scale of weights and inputs, and in half precision."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.test_methods import CASES, X, model_of, run
from tests.networks import shared_images, shared_network
from torch import Tensor, nn

import abslrp
from abslrp.doctor import examine
from abslrp.propagation.balance import ratio

SCALES = (1e-6, 1e6)
HALF = (torch.float16, torch.bfloat16)
RELEVANCE = [n for n, m in abslrp.methods().items() if m.family == "relevance propagation"]
CARRIED = [*RELEVANCE, "deeplift", "guided-backprop", "deconvolution", "tibav"]
CONSERVING = ["abslrp", "abslrp-agree"]
RULED = [pytest.param(*c.values, id=c.id) for c in CASES if c.values[0] in CARRIED]
# The two passes of the first lie so near each other that the rest is rounding; the second divides by differences of softmax.
ILL = ("crap", "deeplift")

# Without conservation relevance grows from layer to layer, here beyond the type; carried smaller it would be finite and noise.
OUTGROWN = {
    ("vit-tiny", "attnlrp", torch.float16),
    ("vit-tiny", "attnlrp", torch.bfloat16),
    ("vit-tiny", "lrp-alpha2beta1", torch.float16),
    ("resnet50", "lrp-alpha2beta1", torch.float16),
}


def weights_scaled(model: nn.Module, by: float) -> nn.Module:
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d, nn.MultiheadAttention)):
                for parameter in module.parameters(recurse=False):
                    parameter.mul_(by)
    return model


def likeness(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two maps, the least of a batch; 1 where both are 0."""
    a, b = a.double().flatten(1), b.double().flatten(1)
    a, b = (t / t.abs().amax(1, keepdim=True).clamp(min=1e-300) for t in (a, b))
    sizes = a.norm(dim=1) * b.norm(dim=1)
    both = (a.norm(dim=1) + b.norm(dim=1)) == 0
    return float(torch.where(both, 1.0, (a * b).sum(1) / sizes.clamp(min=1e-300)).min())


@pytest.mark.parametrize(("name", "kind"), RULED)
def test_scaled_weights_and_inputs_give_finite_maps_as_in_double(name: str, kind: str) -> None:
    for scale in SCALES:
        for model, x in ((weights_scaled(model_of(kind), scale), X), (model_of(kind), X * scale)):
            found = run(name, model, x, 2)
            assert found.maps.isfinite().all() and found.outputs.isfinite().all()
            if name not in ILL and not (
                name == "tibav" and scale > 1
            ):  # its softmax is 0 and 1, whose gradient is rounding
                assert likeness(found.maps, run(name, model.double(), x.double(), 2).maps) > 0.85


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("name", "kind"), RULED)
def test_half_precision_gives_finite_maps_near_those_of_float32(name: str, kind: str, dtype: torch.dtype) -> None:
    found = run(name, model_of(kind).to(dtype), X.to(dtype), 2)
    assert found.maps.isfinite().all() and found.maps.dtype == torch.float32
    if name not in ILL:
        assert likeness(found.maps, run(name, model_of(kind), X, 2).maps) > 0.9


def deep(layers: int, by: float, activation: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    made = [part for _ in range(layers) for part in (nn.Linear(16, 16, bias=False), activation())]
    return weights_scaled(nn.Sequential(*made, nn.Linear(16, 4, bias=False)).eval(), by)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
@pytest.mark.parametrize(("layers", "by"), [(6, 1e-6), (7, 1e-5), (8, 1e-6), (5, 1e6), (30, 1.0)])
@pytest.mark.parametrize("name", RELEVANCE)
def test_activations_at_the_edges_of_float32(name: str, layers: int, by: float, activation: type[nn.Module]) -> None:
    """From 1e38 down to what float32 rounds to 0, with every conservation and with ε relative to outputs that are all 0."""
    model, x = deep(layers, by, activation), torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    options: list[dict[str, Any]] = [
        {},
        *({"conserve": c} for c in ("none", "each", "joint", "sign")),
        {"relative": True},
    ]
    for given in options:
        if all(key in abslrp.methods()[name].options for key in given):
            assert abslrp.explain(model, x, 1, name, **given).maps.isfinite().all(), given


def homogeneous(by: float) -> nn.Module:
    """A network whose first layer takes inputs ``by`` times as large and whose last gives logits as many times larger."""
    torch.manual_seed(0)
    first, last = nn.Conv2d(3, 6, 3), nn.Linear(6, 5)
    with torch.no_grad():
        first.weight.div_(by), last.weight.mul_(by), last.bias.mul_(by)
    middle = (nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(first, *middle, last).eval()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["abslrp", "abslrp-agree", "lrp-alpha1beta0", "clrp", "rap", "guided-backprop"])
def test_the_same_function_in_other_units_has_the_same_map(name: str, scale: float) -> None:
    """Inputs and weights in other units, logits larger by as much: rules that are ratios give the same map, but for their ε."""
    plain = run(name, homogeneous(1.0), X, 2).maps
    assert likeness(run(name, homogeneous(scale), X * scale, 2).maps, plain) > 0.999


def test_a_factor_that_would_overflow_is_lost() -> None:
    tiny = torch.tensor([0.0, 1e-38, 1e-310, 0.25], dtype=torch.float64)
    assert ratio(torch.ones(4, dtype=torch.float64), tiny).tolist() == [0.0, 0.0, 0.0, 4.0]
    assert ratio(tiny[1:2], tiny[1:2]).tolist() == [1.0]


def test_float16_relevance_that_is_too_large_is_carried_smaller() -> None:
    """Exact, since the rules are linear in R: a power of two in and out."""
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    for size in (1.0, 1e2, 1e4):
        start = torch.full((2, 3), size)
        with abslrp.propagate("lrp-epsilon") as p:
            out = model(x)
        wanted = p.relevance(out, x, start)
        half, y = copy.deepcopy(model).half(), x.half()
        with abslrp.propagate("lrp-epsilon") as p:
            out = half(y)
        found = p.relevance(out, y, start)  # times 4096 it would be more than float16 holds
        assert found.isfinite().all() and likeness(found, wanted) > 0.99


@pytest.mark.parametrize(("name", "kind"), RULED)
def test_the_same_call_twice_is_the_same_bit_for_bit(name: str, kind: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model, x = model_of(kind).to(dtype), X.to(dtype)
        assert torch.equal(run(name, model, x, 2).maps, run(name, model, x, 2).maps)


@pytest.mark.parametrize("name", ["abslrp", "abslrp-agree", "lrp-epsilon"])
def test_one_thread_and_two_agree(name: str) -> None:
    model, x = model_of("convolutional"), torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(run(name, model, x, 2).maps)
    finally:
        torch.set_num_threads(before)
    assert likeness(*found) > 1 - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("network", ["vit-tiny", "resnet50", "vgg16"])
def test_real_networks_in_half_precision(network: str, dtype: torch.dtype, shared: Path) -> None:
    """Finite where relevance fits the type, else the doctor says so; where sums are kept, near the maps of float32."""
    model, x = shared_network(shared, network), shared_images(shared, network, 1, seed=3)
    target = int(model(x).argmax())
    half = copy.deepcopy(model).to(dtype)
    for name in RELEVANCE:
        if (network, name, dtype) in OUTGROWN:
            found = examine(half, x.to(dtype), name).problems
            assert any("relevance stops being finite in" in one or "explodes" in one for one in found), found
            continue
        maps = abslrp.explain(half, x.to(dtype), target, name).maps
        assert maps.isfinite().all() and maps.any(), name
        if name in CONSERVING:
            assert likeness(maps, abslrp.explain(model, x, target, name).maps) > 0.75, name


@pytest.mark.slow
@pytest.mark.parametrize("network", ["vit-tiny", "resnet50", "vgg16"])
def test_real_networks_with_other_units(network: str, shared: Path) -> None:
    """The input and the first layer in other units: the same function, and for relevance that keeps sums the same map."""
    model, x = shared_network(shared, network), shared_images(shared, network, 1, seed=3)
    target = int(model(x).argmax())
    for name in RELEVANCE:
        plain = abslrp.explain(model, x, target, name).maps
        for scale in SCALES:
            other = copy.deepcopy(model)
            first = next(m for m in other.modules() if isinstance(m, nn.Conv2d))
            first.weight.data.div_(scale)
            maps = abslrp.explain(other, x * scale, target, name).maps
            assert maps.isfinite().all(), (name, scale)
            if name in CONSERVING:
                assert likeness(maps, plain) > 0.98, (name, scale)
