"""On a GPU: the same maps as on the CPU, for every method, and in half precision."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.test_methods import CASES, X, model_of, run
from tests.networks import FILES, shared_images, shared_network
from torch import nn

import abslrp
from abslrp import graphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_cpu_and_gpu_agree(name: str, kind: str) -> None:
    model, x = model_of(kind).double(), X.double()
    here = run(name, model, x, [1, 4, 0])
    there = run(name, model.cuda(), x.cuda(), [1, 4, 0])
    assert there.maps.is_cuda and there.outputs.is_cuda and there.maps.dtype == torch.float32
    # torch runs another, fused encoder without gradients, which the methods meet that need none
    fused = abslrp.methods()[name].family in ("perturbation", "class activation map")
    atol = (1e-3 if fused else 1e-5) * float(here.maps.abs().max())
    torch.testing.assert_close(there.maps.cpu(), here.maps, rtol=1e-4, atol=atol)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_deterministic_on_the_gpu(name: str, kind: str) -> None:
    model, x = model_of(kind).cuda(), X.cuda()
    state = torch.cuda.get_rng_state()
    first, second = (run(name, model, x, 1).maps for _ in range(2))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5 * float(first.abs().max()))
    assert torch.equal(state, torch.cuda.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
def test_half_precision_on_the_gpu(kind: str, dtype: torch.dtype) -> None:
    model = model_of(kind).cuda()
    full = abslrp.explain(model, X.cuda(), 1, start="target").maps.flatten(1)
    half = abslrp.explain(model.to(dtype), X.cuda(), 1, start="target").maps.flatten(1)
    assert half.isfinite().all()
    for a, b in zip(full, half, strict=True):
        assert torch.corrcoef(torch.stack([a, b]))[0, 1] > 0.95


def test_inputs_on_another_device_are_a_clear_error() -> None:
    with pytest.raises(abslrp.AbslrpError, match="the inputs are on cpu and the model is on cuda:0"):
        abslrp.explain(model_of("convolutional").cuda(), X)


@pytest.mark.parametrize("metric", list(abslrp.metrics()))
def test_scores_are_those_of_the_cpu(metric: str) -> None:
    quick = {"gae": {"T": 4}, "lipschitz": {"samples": 3}, "aopc": {"L": 5, "region": 4}, "abpc": {"L": 5, "region": 4}}
    model, x = (
        model_of("convolutional").double(),
        torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(3)).double(),
    )
    given = {"labels": [0, 1, 0, 1, 2, 2], "boxes": [{k % 3: [(2.0, 2.0, 9.0, 12.0)]} for k in range(6)]}
    for size in (None, 2):
        found = [
            abslrp.evaluate(
                model.to(device), x, ["abslrp", "gradcam"], {metric: quick.get(metric, {})}, batch_size=size, **given
            )
            for device in ("cpu", "cuda")
        ]
        for method in ("abslrp", "gradcam"):
            torch.testing.assert_close(
                found[1][metric][method].scores, found[0][metric][method].scores, rtol=0, atol=1e-5
            )


@pytest.mark.parametrize("method", ["abslrp", "abslrp-agree", "abslrp-transformer"])
@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
def test_kernels_change_no_map(method: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels and torch's own functions, in float32, beside float64."""
    from abslrp.propagation import kernels

    pytest.importorskip("triton")
    model, x = model_of(kind).cuda(), X.cuda()
    assert kernels.usable(x)
    fast = abslrp.explain(model, x, 1, method).maps
    exact = abslrp.explain(model.double(), x.double(), 1, method).maps
    monkeypatch.setattr(kernels, "usable", lambda R: False)
    plain = abslrp.explain(model.float(), x, 1, method).maps
    size = float(exact.abs().max())
    for maps in (fast, plain):
        torch.testing.assert_close(maps, exact, rtol=0, atol=1e-4 * size)


@pytest.mark.parametrize("agreeing", [False, True])
def test_kernels_of_rules_agree_with_the_rules(agreeing: bool) -> None:
    """Each kernel beside the same rule in float64 on the CPU, with places that are 0, huge, masked or no number."""
    from abslrp.propagation import rules
    from abslrp.propagation.kinds import LinearMap, Smooth, Softmax

    def call(x: torch.Tensor, h: torch.Tensor) -> rules.Call:
        return rules.Call((x,), (False,), h, None, len(x), h.shape, None)

    draw = torch.Generator().manual_seed(0)
    # What goes in is float32 already, and so is what came out: where outputs are near 0 their own rounding would show.
    x = torch.randn(5, 3, 197, generator=draw) * 3
    x[0, 0, :6] = torch.tensor([0.0, -0.0, 1e30, -1e30, 1e-30, -40.0])
    R = torch.randn(5, 3, 197, generator=draw)
    smooth = rules.smooth_agreeing if agreeing else rules.smooth_positive
    gelu = Smooth(nn.functional.gelu, gelu=True)
    hidden = torch.zeros(5, 1, 197, dtype=torch.bool)
    hidden[1, :, 100:] = True
    for op, apply, rule in (
        (gelu, nn.functional.gelu, smooth),
        (
            Softmax(-1),
            lambda v: torch.softmax(v.masked_fill(hidden.to(v.device), -torch.inf), -1),
            rules.softmax_listing,
        ),
    ):
        h = apply(x.double()).float()
        found = [
            rule(op, call(v, out), 1e-6)[0].pull(r)[0].cpu().double()
            for v, out, r in ((x.double(), h.double(), R.double()), (x.cuda(), h.cuda(), R.cuda()))
        ]
        torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)
    w, s = torch.randn(40, 197, generator=draw), torch.randn(5, 3, 40, generator=draw)
    for rows in (True, False):
        maps = [
            LinearMap(lambda v, w: v @ w.T, lambda g, v, w: (g.reshape(-1, 40) @ w).reshape(v.shape), v, True, rows)
            for v in (w.double(), w.cuda())
        ]
        for v in (x, x[:, 0], x[0, 0]):
            v = v.clamp(-9, 9)
            g = s if v.ndim == 3 else s[:, 0] if v.ndim == 2 else s[0, 0]
            exact = rules.positive_part(maps[0], v.double(), g.double(), False)
            fast = rules.positive_part(maps[1], v.cuda(), g.cuda(), False)
            torch.testing.assert_close(fast.cpu().double(), exact, rtol=1e-4, atol=1e-4)


def test_pixels_are_filled_in_as_on_the_cpu() -> None:
    from abslrp.inputs.imputation import impute

    draw = torch.Generator().manual_seed(0)
    for shape in ((45, 38), (64, 64), (1, 9), (7, 1)):
        images = torch.randn(5, 3, *shape, generator=draw)
        removed = torch.rand(5, *shape, generator=draw) < torch.tensor([0.1, 0.4, 0.7, 0.95, 0.0])[:, None, None]
        removed[:, 0, 0] = False
        there = impute(images.cuda(), removed.cuda()).cpu()
        torch.testing.assert_close(there, impute(images, removed), rtol=0, atol=2e-5)


def test_memory_is_shared_out_on_the_gpu() -> None:
    model, x = model_of("convolutional").cuda(), X.cuda()
    whole = abslrp.explain(model, x, 1).maps
    parts = abslrp.explain(model, x, 1, max_memory="1MB").maps
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.parametrize("method", ["abslrp", "abslrp-agree", "lrp-epsilon", "guided-backprop", "saliency"])
@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
def test_explain_can_be_captured_in_a_cuda_graph(method: str, kind: str) -> None:
    model, x = model_of(kind).cuda(), X.cuda()
    static, targets = x.clone(), torch.tensor([1, 4, 0], device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            abslrp.explain(model, static, targets, method)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        maps = abslrp.explain(model, static, targets, method).maps
    for shift in (0.0, 0.5):
        static.copy_(x + shift)
        graph.replay()
        torch.cuda.synchronize()
        plain = abslrp.explain(model, x + shift, targets, method).maps
        torch.testing.assert_close(maps, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


# ---------------------------------------------------------------- explain(cuda_graph=True)


RECORDED = [
    ("abslrp", {}),
    ("abslrp-agree", {}),
    ("abslrp-transformer", {}),
    ("lrp-epsilon", {"relative": True}),
    ("lrp-alpha2beta1", {}),
    ("guided-backprop", {}),
    ("integrated-gradients", {"steps": 3}),
    ("gradcam", {}),
]


@pytest.mark.parametrize(("method", "options"), RECORDED, ids=[name for name, _ in RECORDED])
@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
@pytest.mark.parametrize("targets", [None, 1, [1, 4, 0]], ids=str)
def test_replayed_maps_are_the_same(method: str, options: dict[str, Any], kind: str, targets: Any) -> None:
    model = model_of(kind).cuda()
    for x in (X.cuda(), X.cuda().flip(0) * 0.7, X.cuda() + 0.3):
        plain = abslrp.explain(model, x, targets, method, **options)
        replayed = abslrp.explain(model, x, targets, method, cuda_graph=True, **options)
        size = float(plain.maps.abs().max())
        torch.testing.assert_close(replayed.maps, plain.maps, rtol=0, atol=1e-4 * size)
        torch.testing.assert_close(replayed.outputs, plain.outputs)
        assert torch.equal(replayed.targets.cpu(), plain.targets.cpu())
    assert len(graphs._recordings[model]) == 1


def test_replay_sees_other_weights_shapes_and_settings() -> None:
    model, x = model_of("convolutional").cuda(), X.cuda()

    def agree(x: torch.Tensor, **options: Any) -> None:
        plain, replayed = (abslrp.explain(model, x, 1, cuda_graph=on, **options).maps for on in (False, True))
        torch.testing.assert_close(replayed, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))

    first = abslrp.explain(model, x, 1, cuda_graph=True).maps
    with torch.no_grad():
        model[0].weight.mul_(-1)  # in place: the recording reads them where they are
    agree(x)
    assert not torch.equal(first, abslrp.explain(model, x, 1, cuda_graph=True).maps)
    assert len(graphs._recordings[model]) == 1
    model[0].weight.data = model[0].weight.data * -1  # elsewhere now
    agree(x)
    model.cpu()
    torch.cuda.empty_cache()
    model.cuda()
    agree(x)
    model[0].stride = (2, 2)
    agree(x)
    head = model[-1]
    model[-1] = nn.Linear(head.in_features, 9).cuda().eval()  # more classes than were recorded
    assert torch.equal(abslrp.explain(model, x, 8, cuda_graph=True).targets.cpu(), torch.tensor([8, 8, 8]))
    model[-1] = head
    agree(x)
    for options in ({"conserve": "joint"}, {"start": "target"}, {"batch_size": 2}):
        agree(x, **options)
    agree(x[:1])
    for batch in range(1, 21):
        agree(x[:1].repeat(batch, 1, 1, 1))
    assert len(graphs._recordings[model]) <= graphs._MOST
    graphs.forget(model)
    assert model not in graphs._recordings


def test_replay_sees_other_tensors_in_a_list() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scales = model_of("convolutional"), [torch.ones(3, 1, 1, device="cuda")]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x * self.scales[0])

    model, x = Listed().eval().cuda(), X.cuda()
    for scale in (1.0, -2.0, 0.5):
        model.scales[0] = torch.tensor([scale, 1.0, 3.0], device="cuda").view(3, 1, 1)
        torch.cuda.empty_cache()
        plain, replayed = (abslrp.explain(model, x, 1, "saliency", cuda_graph=on).maps for on in (False, True))
        torch.testing.assert_close(replayed, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))


def test_what_cannot_be_replayed_is_said() -> None:
    model, x = model_of("convolutional").cuda(), X.cuda()
    with pytest.raises(abslrp.AbslrpError, match="target 7 is out of range"):
        abslrp.explain(model, x, 7, cuda_graph=True)
    abslrp.explain(model, x, 1, cuda_graph=True)
    with pytest.raises(abslrp.AbslrpError, match="target 7 is out of range"):
        abslrp.explain(model, x, 7, cuda_graph=True)
    with pytest.raises(abslrp.AbslrpError, match="'8' is in training mode"):
        model[-1].train()
        abslrp.explain(model, x, 1, cuda_graph=True)
    model.eval()
    for bad in (float("nan"), float("inf")):
        with pytest.raises(abslrp.AbslrpError, match="the inputs hold NaN or infinite values"):
            abslrp.explain(model, x.where(x < x.max(), bad), 1, cuda_graph=True)
    plain, replayed = (abslrp.explain(model, x, 1, cuda_graph=on).maps for on in (False, True))
    torch.testing.assert_close(replayed, plain, rtol=0, atol=1e-4 * float(plain.abs().max()))
    with pytest.raises(abslrp.AbslrpError, match="forward="):
        abslrp.explain(model, x, 1, forward=lambda v: model(v), cuda_graph=True)
    with pytest.raises(abslrp.AbslrpError, match="start="):
        abslrp.explain(model, x, 1, start=torch.ones(3, 5, device="cuda"), cuda_graph=True)

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) if x.sum().item() > 0 else self.inner(-x)

    with pytest.raises(abslrp.AbslrpError, match="cannot be recorded as a CUDA graph"):
        abslrp.explain(Looks().eval(), x, 1, cuda_graph=True)
    assert abslrp.explain(model, x, 1).maps.any()  # all is well afterwards
    handle = model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(abslrp.AbslrpError, match="hooks on 0"):
        abslrp.explain(model, x, 1, cuda_graph=True)
    handle.remove()


def test_recordings_end_with_their_model() -> None:
    model, x = model_of("convolutional").cuda(), X.cuda()
    gc.collect()
    count = len(graphs._recordings)
    abslrp.explain(model, x, 1, cuda_graph=True)
    assert len(graphs._recordings) == count + 1
    del model
    gc.collect()
    assert len(graphs._recordings) == count


# ---------------------------------------------------------------- real networks


REAL = {"resnet50": 4, "vgg16": 4, "vit-tiny": 4}


@pytest.mark.parametrize(
    "method", ["saliency", "abslrp", "abslrp-agree", "abslrp-transformer", "lrp-epsilon", "lrp-gamma", "gradcam"]
)
@pytest.mark.parametrize("name", list(REAL))
def test_real_networks_have_the_maps_of_the_cpu(name: str, method: str, shared: Path) -> None:
    """In float64 the same; in float32 as near as float32 comes, which is told by the CPU's own distance from its float64."""
    if not (shared / "weights" / f"{FILES[name]}.safetensors").is_file():
        pytest.skip(f"no weights of {name} here")
    model, x = shared_network(shared, name), shared_images(shared, name, REAL[name])
    here = abslrp.explain(model, x, method=method)
    targets = here.targets
    there = abslrp.explain(model.cuda(), x.cuda(), targets, method).maps.cpu()
    exact_there = abslrp.explain(model.double(), x.cuda().double(), targets, method).maps.cpu()
    exact = abslrp.explain(model.cpu(), x.double(), targets, method).maps

    def apart(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(((a - b).flatten(1).norm(dim=1) / b.flatten(1).norm(dim=1)).max())

    def most(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(((a - b).abs().flatten(1).amax(1) / b.abs().flatten(1).amax(1)).max())

    print(
        f"{name} {method}: GPU and CPU in float64 {apart(exact_there, exact):.0e}; in float32 {apart(there, here.maps):.1e}, at "
        f"most {most(there, here.maps):.1e} of the largest; from float64 the CPU {apart(here.maps, exact):.1e}, the GPU "
        f"{apart(there, exact):.1e}"
    )
    assert apart(exact_there, exact) < 1e-5
    assert apart(there, exact) < max(1e-2, 2 * apart(here.maps, exact))
