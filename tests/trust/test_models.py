"""Models of every kind, what they return, and what they are asked under: each call works or says one sentence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.test_methods import model_of
from tests.trust.judge import FEW, QUICK, Small, Wrapped, images, judged
from tests.trust.test_inputs import METHODS, WITHOUT_ATTENTION, some
from tests.unit.test_engine import same, snapshot
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import abslrp

pytestmark = pytest.mark.filterwarnings("ignore")
FIVE = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])


@dataclass
class Output:
    logits: Tensor


def _raise(error: BaseException) -> Any:
    raise error


def _write(x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


RETURNED: dict[str, Callable[[Small, Tensor], Any]] = {
    "a dict": lambda m, x: {"logits": m(x)},
    "an empty dict": lambda m, x: {},
    "a dict of None": lambda m, x: {"logits": None},
    "a tuple": lambda m, x: (m(x), 1),
    "a tuple of tuples": lambda m, x: ((m(x),),),
    "a tuple of None first": lambda m, x: (None, m(x)),
    "a loss first": lambda m, x: (m(x).sum(), m(x)),
    "a data class": lambda m, x: Output(m(x)),
    "None": lambda m, x: None,
    "a number": lambda m, x: 1.0,
    "an array": lambda m, x: m(x).detach().numpy(),
    "half a batch": lambda m, x: m(x)[: len(x) // 2],
    "two batches": lambda m, x: torch.cat([m(x), m(x)]),
    "no batch": lambda m, x: m(x).sum(0),
    "a sum": lambda m, x: m(x).sum(),
    "one score": lambda m, x: m(x)[:, 0],
    "no class": lambda m, x: m(x)[:, :0],
    "a map": lambda m, x: m(x)[:, :, None],
    "NaN": lambda m, x: m(x) * torch.nan,
    "one NaN": lambda m, x: torch.where(FIVE > 0, torch.nan, m(x)),
    "infinity": lambda m, x: m(x) * torch.inf,
    "a class that is ruled out": lambda m, x: m(x).masked_fill(FIVE > 0, -torch.inf),
    "classes": lambda m, x: m(x).argmax(1),
    "whole numbers": lambda m, x: (m(x) * 100).long(),
    "truth values": lambda m, x: m(x) > 0,
    "complex numbers": lambda m, x: m(x) * 1j,
    "eight bits": lambda m, x: m(x).to(torch.float8_e5m2),
    "half precision": lambda m, x: m(x).half(),
    "double precision": lambda m, x: m(x).double(),
    "something sparse": lambda m, x: m(x).to_sparse(),
    "something of the meta device": lambda m, x: m(x).to("meta"),
    "detached scores": lambda m, x: m(x).detach(),
    "scores of a detached input": lambda m, x: m(x.detach()),
    "scores without gradients": lambda m, x: torch.no_grad()(m.forward)(x),
    "scores of inference mode": lambda m, x: torch.inference_mode()(m.forward)(x),
    "a constant": lambda m, x: torch.ones(len(x), 5),
    "a weight": lambda m, x: m.head.bias.expand(len(x), 5),
    "zeros": lambda m, x: m(x) * 0,
    "an error": lambda m, x: _raise(RuntimeError("in\nthe middle")),
    "an error without words": lambda m, x: _raise(AssertionError()),
    "an error of its own": lambda m, x: _raise(type("Odd", (Exception,), {})("odd")),
    "an end of iteration": lambda m, x: _raise(StopIteration()),
    "endless recursion": lambda m, x: (lambda f: f(f))(lambda f: f(f)),
    "numpy inside": lambda m, x: m(torch.as_tensor(x.numpy())),
    "detached numpy inside": lambda m, x: m(torch.as_tensor(x.detach().numpy())),
    "item inside": lambda m, x: m(x * float(x.mean().item())),
    "a branch on data": lambda m, x: m(x) if bool(x.mean() > 0) else m(x * 2),
    "the input written over": lambda m, x: m(x.mul_(2)),
    "a part written over": lambda m, x: m(_write(x)),
    "a backward inside": lambda m, x: m(x + torch.autograd.grad(m(x).sum(), x, retain_graph=True)[0].detach()),
    "noise inside": lambda m, x: m(x + torch.randn_like(x)),
    "a seed inside": lambda m, x: (torch.manual_seed(3), m(x))[1],
    "gradients put out inside": lambda m, x: (torch.set_grad_enabled(False), m(x))[1],
    "vmap": lambda m, x: torch.vmap(lambda v: m(v[None])[0])(x),
    "a checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False),
    "an old checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(m, x, use_reentrant=True),
    "autocast inside": lambda m, x: torch.autocast("cpu", torch.bfloat16)(m.forward)(x),
    "a generator": lambda m, x: (y for y in [m(x)]),
    "sorted scores": lambda m, x: m(x).sort(1).values,
}  # fmt: skip


def _with(change: Callable[[Small], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = Small()
        change(model)
        return model.eval()

    return make


def _gradients(model: Small) -> None:
    model(images()).sum().backward()


def _quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(Small(), {nn.Linear}, torch.qint8).eval()


def _lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5)).eval()


def _of_inference() -> nn.Module:
    with torch.inference_mode():
        return Small()


def _compiled_inside(model: Small) -> None:
    model.conv = torch.compile(model.conv, backend="eager")  # type: ignore[assignment]


MADE: dict[str, Callable[[], Any]] = {
    "in training": lambda: Small().train(),
    "partly in training": lambda: _raise_none(Small(), lambda m: m.norm.train()),
    "a class": lambda: Small,
    "None": lambda: None,
    "a name": lambda: "resnet50",
    "weights alone": lambda: Small().state_dict(),
    "a method": lambda: Small().forward,
    "a partial": lambda: partial(Small()),
    "in half precision": lambda: Small().half(),
    "in bfloat16": lambda: Small().bfloat16(),
    "in double precision": lambda: Small().double(),
    "in two precisions": _with(lambda m: m.head.double()),
    "on another device": lambda: Small().to("meta"),
    "partly on another device": _with(lambda m: m.head.to("meta")),
    "frozen": _with(lambda m: m.requires_grad_(False)),
    "with gradients": _with(_gradients),
    "scripted": lambda: torch.jit.script(Small()),
    "traced": lambda: torch.jit.trace(Small(), images()),
    "frozen and scripted": lambda: torch.jit.freeze(torch.jit.script(Small())),
    "scripted inside": lambda: nn.Sequential(torch.jit.trace(Small(), images())).eval(),
    "a traced function": lambda: torch.jit.trace(lambda x: x.flatten(1)[:, :5] * 2, images()),
    "compiled": lambda: torch.compile(Small(), backend="eager"),
    "a compiled method": lambda: torch.compile(Small().forward, backend="eager"),
    "compiled inside": _with(_compiled_inside),
    "compiled in place": _with(lambda m: m.compile(backend="eager")),
    "a graph": lambda: torch.fx.symbolic_trace(Uncounted()),
    "exported": lambda: torch.export.export(Uncounted(), (images(),)),
    "an exported module": lambda: torch.export.export(Uncounted(), (images(),)).module(),
    "DataParallel": lambda: nn.DataParallel(Small()),
    "DataParallel of a compiled one": lambda: nn.DataParallel(torch.compile(Small(), backend="eager")),
    "quantised": _quantised,
    "with a forward hook": _with(lambda m: m.conv.register_forward_hook(lambda *a: a[2] * 2)),
    "with a forward pre-hook": _with(lambda m: m.conv.register_forward_pre_hook(lambda m, a: (a[0] * 2,))),
    "with a backward hook": _with(lambda m: m.conv.register_full_backward_hook(lambda *a: None)),
    "with a backward hook that raises": _with(lambda m: m.conv.register_full_backward_hook(lambda *a: 1 / 0)),
    "with a backward pre-hook": _with(lambda m: m.conv.register_full_backward_pre_hook(lambda *a: None)),
    "with a weight's hook": _with(lambda m: m.conv.weight.register_hook(lambda g: g * 2)),
    "with weight norm": _with(lambda m: parametrizations.weight_norm(m.head)),
    "with weight norm in training": lambda: _raise_none(Small(), lambda m: parametrizations.weight_norm(m.head)),
    "pruned, which sets its weights itself": _with(lambda m: prune.l1_unstructured(m.conv, "weight", 0.5)),
    "with spectral norm": _with(lambda m: parametrizations.spectral_norm(m.head)),
    "with orthogonal weights": _with(lambda m: parametrizations.orthogonal(m.head)),
    "with lazy weights": _lazy,
    "made in inference mode": _of_inference,
    "with NaN": _with(lambda m: m.conv.weight.data[0].fill_(torch.nan)),
    "with infinity": _with(lambda m: m.head.weight.data[0].fill_(torch.inf)),
    "with huge weights": _with(lambda m: m.head.weight.data.mul_(1e38)),
    "with nothing but zeros": _with(lambda m: [p.data.zero_() for p in m.parameters()]),
    "with complex weights": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5, dtype=torch.complex64)).eval(),
    "without weights": lambda: nn.Flatten().eval(),
    "that is a list": lambda: nn.ModuleList([Small()]).eval(),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(Uncounted()).eval(),
    "channels last": lambda: Small().to(memory_format=torch.channels_last),
}  # fmt: skip


class Uncounted(Small):
    """The same without its counter, which graphs cannot hold."""

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.adaptive_avg_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(h.flatten(1))  # type: ignore[no-any-return]


def _raise_none(model: Small, change: Callable[[Small], Any]) -> Small:
    change(model)
    return model


UNREADABLE = ("device", "lazy", "NaN", "exported", "traced", "scripted", "quantised", "itself")
"""What a snapshot cannot compare."""


def try_returned(kind: str, method: str, target: int | None) -> None:
    model, x = Wrapped(RETURNED[kind]), images()
    judged(lambda: abslrp.explain(model, x, target, method, **QUICK.get(method, {})), model, x)


def try_made(kind: str, methods: list[str]) -> None:
    model, x = MADE[kind](), images()
    x = x.double() if kind == "in double precision" else x
    seen = model if isinstance(model, nn.Module) and not any(word in kind for word in UNREADABLE) else None
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()] if seen is not None else []
    for method in methods:
        judged(lambda m=method: abslrp.explain(model, x, None, m, **QUICK.get(m, {})), seen, x)
    for p, grad in zip(seen.parameters() if seen is not None else (), grads, strict=True):
        assert (p.grad is None) == (grad is None) and (grad is None or torch.equal(p.grad, grad))


@some(120)
@given(st.sampled_from(sorted(RETURNED)), st.sampled_from(WITHOUT_ATTENTION), st.sampled_from([None, 1]))
def test_models_return_anything(kind: str, method: str, target: int | None) -> None:
    try_returned(kind, method, target)


@pytest.mark.parametrize("kind", MADE)
def test_models_of_any_kind(kind: str) -> None:
    try_made(kind, ["abslrp", "saliency", "gradcam", "occlusion"])


@pytest.mark.slow
def test_every_kind_of_model_under_every_method() -> None:
    for kind in RETURNED:
        for method in WITHOUT_ATTENTION:
            for target in (None, 1):
                try_returned(kind, method, target)
    for kind in MADE:
        try_made(kind, WITHOUT_ATTENTION)


WORKING = (
    "compiled", "a compiled method", "compiled inside", "compiled in place", "a graph", "DataParallel", "DataParallel of a compiled one",
    "frozen", "with gradients", "a method", "a partial", "with a backward hook", "with spectral norm", "averaged", "channels last",
)  # fmt: skip


@pytest.mark.parametrize("kind", WORKING)
def test_these_kinds_give_the_map_of_the_plain_model(kind: str) -> None:
    found = abslrp.explain(MADE[kind](), images(), 1).maps
    plain = abslrp.explain(MADE[kind]() if "norm" in kind else Small(), images(), 1).maps
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


def test_compiled_models_are_compiled_again_afterwards() -> None:
    model = MADE["compiled in place"]()
    with ThreadPoolExecutor(4) as pool:
        maps = list(pool.map(lambda _: abslrp.explain(model, images(), 1).maps, range(8)))
    assert all(torch.equal(one, maps[0]) for one in maps)
    assert torch._dynamo.eval_frame._stance.stance == "default"


REFUSED = {
    "scripted": "is scripted", "frozen and scripted": "is scripted", "a traced function": "is scripted", "exported": "is exported",
    "an exported module": "is exported", "with lazy weights": "weights of unknown size", "a class": "is the class Small",
    "on another device": "the inputs are on cpu and the model is on meta", "with a backward hook that raises": "backward raised ZeroDivisionError",
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_these_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(abslrp.AbslrpError, match=REFUSED[kind]):
        abslrp.explain(MADE[kind](), images())


@pytest.mark.parametrize("method", ["deeplift", "guided-backprop"])
def test_a_quantised_layer_is_no_map_of_zeros(method: str) -> None:
    with pytest.raises(abslrp.UnsupportedOperation, match="neither a rule nor a gradient"):
        abslrp.explain(_quantised(), images(), 1, method)
    assert abslrp.explain(_quantised(), images(), 1, "occlusion", window=4).maps.any()


# ---------------------------------------------------------------- what a call is made under


@contextmanager
def _default_type() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


UNDER: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "double precision by default": _default_type,
    "another device by default": lambda: torch.device("meta"),
    "deterministic algorithms": _deterministic,
    "anomaly detection": torch.autograd.detect_anomaly,
    "dual numbers": torch.autograd.forward_ad.dual_level,
    "saved tensors moved": torch.autograd.graph.save_on_cpu,
}
KINDS = [
    (name, kind)
    for name, method in METHODS.items()
    for kind in ("convolutional", "transformer")
    if not (kind == "convolutional" and "attention" in method.needs)
]


def try_under(name: str, kind: str, under: str) -> None:
    model, x, given_ = model_of(kind), torch.ones(2, 3, 16, 16).cumsum(3) / 16, QUICK.get(name, {})
    plain = judged(lambda: abslrp.explain(model, x, 1, name, **given_), model, x).maps

    def call() -> Any:
        with UNDER[under]():
            return abslrp.explain(model, x, 1, name, **given_)

    torch.testing.assert_close(
        judged(call, model, x).maps, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()) + 1e-12
    )


@some(40)
@given(st.sampled_from(KINDS), st.sampled_from(sorted(UNDER)))
def test_maps_are_the_same_under_anything(case: tuple[str, str], under: str) -> None:
    try_under(*case, under)


@pytest.mark.slow
def test_every_method_under_everything() -> None:
    for case in KINDS:
        for under in UNDER:
            try_under(*case, under)


def test_autocast_does_not_round_the_rules() -> None:
    model, x = model_of("transformer"), images().repeat(1, 1, 2, 2)
    plain = abslrp.explain(model, x, 1, "lrp-alpha2beta1").maps
    with torch.autocast("cpu", torch.bfloat16):
        rounded = abslrp.explain(model, x, 1, "lrp-alpha2beta1").maps
    # Once it was off by a factor of thousands, from products of 1/ε rounded to eight bits.
    assert torch.corrcoef(torch.stack([plain.flatten(), rounded.flatten()]))[0, 1] > 0.9


# ---------------------------------------------------------------- interruptions and company


@pytest.mark.parametrize(
    "method", ["abslrp", "abslrp-agree", "saliency", "gradcam", "guided-gradcam", "rise", "occlusion", "tibav"]
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interruption_passes_and_leaves_everything_as_it_was(method: str, error: type[BaseException]) -> None:
    model = model_of("transformer")
    hook = model.blocks.layers[0].linear1.register_forward_hook(lambda *a: _raise(error()))  # type: ignore[union-attr, index]
    before, state, x = snapshot(model), torch.get_rng_state(), torch.ones(2, 3, 16, 16)
    with pytest.raises(error):
        abslrp.explain(model, x, 1, method, **QUICK.get(method, {}))
    assert same(before, snapshot(model)) and torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not x.requires_grad
    hook.remove()
    assert abslrp.explain(model, x, 1, method, **QUICK.get(method, {})).maps.isfinite().all()


@pytest.mark.parametrize("method", ["abslrp", "gradcam", "guided-gradcam", "smoothgrad", "occlusion", "tibav"])
def test_threads_explain_one_model_at_the_same_time(method: str) -> None:
    model, x = model_of("transformer"), torch.ones(2, 3, 16, 16).cumsum(3) / 16
    given_ = QUICK.get(method, {})
    alone = {target: abslrp.explain(model, x, target, method, **given_).maps for target in range(4)}
    before, gate = snapshot(model), threading.Barrier(4)

    def run(target: int) -> Tensor:
        gate.wait()
        return abslrp.explain(model, x, target, method, **given_).maps

    with ThreadPoolExecutor(4) as pool:
        for target, maps in enumerate(pool.map(run, range(4))):
            torch.testing.assert_close(maps, alone[target], rtol=0, atol=1e-6 * float(alone[target].abs().max()))
    assert same(before, snapshot(model))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.side = Small(), nn.Linear(4, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.inner(x) + self.side(y)


@pytest.mark.parametrize("method", WITHOUT_ATTENTION)
def test_models_of_two_inputs_work_through_forward_or_say_why_not(method: str) -> None:
    model, x, y = Two().eval(), images(), torch.ones(2, 4)
    found = judged(
        lambda: abslrp.explain(model, x, 1, method, forward=lambda v: model(v, y), **QUICK.get(method, {})), model, x
    )
    assert isinstance(found, abslrp.Attribution) or method == "deeplift"
    refused = judged(lambda: abslrp.explain(model, x, 1, method, **QUICK.get(method, {})), model, x)
    assert isinstance(refused, abslrp.AbslrpError) and model.inner.runs[0] <= 40 * FEW
