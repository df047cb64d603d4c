"""The engine leaves models alone, meets every form of a function alike, and refuses what it does not know."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abslrp
from abslrp.propagation.functions import BatchLost


def relevance(function: Callable[[Tensor], Tensor], x: Tensor, **options: Any) -> Tensor:
    leaf = x.clone().requires_grad_()
    with abslrp.propagate("abslrp", **options) as p:
        out = function(leaf.clone())
    start = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return p.relevance(out, leaf, start)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


C = randn(3, 4, seed=5)
FORMS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "add": [
        lambda x: x + C, lambda x: C + x, lambda x: torch.add(x, C), lambda x: x.add(C), lambda x: operator.iadd(x, C), lambda x: x.add_(C),
        lambda x: torch.add(input=x, other=C), lambda x: torch.add(x, C, out=torch.empty_like(x).detach()), lambda x: torch.add(C, x, alpha=1),
    ],
    "sub": [lambda x: x - C, lambda x: torch.sub(x, C), lambda x: x.sub_(C), lambda x: operator.isub(x, C), lambda x: torch.subtract(x, C)],
    "rsub": [lambda x: C - x, lambda x: torch.rsub(x, C), lambda x: torch.sub(C, x)],
    "scalar rsub": [lambda x: 1 - x, lambda x: torch.rsub(x, 1), lambda x: x.neg().add(1) if False else 1.0 - x],
    "mul": [lambda x: x * C, lambda x: C * x, lambda x: x.mul_(C), lambda x: torch.multiply(x, C), lambda x: operator.imul(x, C)],
    "product": [lambda x: x * x.sin(), lambda x: x.mul(x.sin()), lambda x: x.clone().mul_(x.sin()), lambda x: torch.mul(x, other=x.sin())],
    "div": [lambda x: x / 3, lambda x: x.div_(3), lambda x: torch.div(x, 3), lambda x: torch.true_divide(x, 3), lambda x: operator.itruediv(x, 3)],
    "relu": [
        F.relu, torch.relu, lambda x: x.relu(), lambda x: x.relu_(), lambda x: F.relu(x, True), lambda x: F.relu(x, inplace=True),
        lambda x: F.relu_(x), lambda x: torch.relu_(x), nn.ReLU(), nn.ReLU(inplace=True), lambda x: F.threshold(x, 0, 0, inplace=True),
    ],
    "elu": [F.elu, lambda x: F.elu(x, 1.0, True), nn.ELU(inplace=True), lambda x: F.elu_(x), lambda x: F.elu(input=x, alpha=1.0)],
    "sigmoid": [torch.sigmoid, F.sigmoid, lambda x: x.sigmoid(), lambda x: x.sigmoid_(), nn.Sigmoid(), torch.special.expit],
    "silu": [F.silu, nn.SiLU(inplace=True), lambda x: F.silu(x, inplace=True)],
    "hardswish": [F.hardswish, nn.Hardswish(inplace=True)],
    "clamp": [lambda x: x.clamp(0.1, 2), lambda x: torch.clamp(x, min=0.1, max=2), lambda x: x.clamp_(0.1, 2), lambda x: torch.clip(x, 0.1, 2)],
    "softmax": [lambda x: x.softmax(-1), lambda x: F.softmax(x, dim=-1), lambda x: torch.softmax(x, -1), nn.Softmax(-1)],
    "matmul": [lambda x: x @ C.T, lambda x: torch.matmul(x, C.T), lambda x: x.matmul(C.T), lambda x: torch.mm(x, C.T) if x.ndim == 2 else x @ C.T],
    "linear": [lambda x: F.linear(x, C), lambda x: F.linear(input=x, weight=C, bias=None)],
    "mean": [lambda x: x.mean(-1), lambda x: torch.mean(x, -1), lambda x: torch.mean(x, dim=[-1]), lambda x: x.mean(dim=-1, keepdim=False)],
    "sum": [lambda x: x.sum(1), lambda x: torch.sum(x, dim=1), lambda x: torch.einsum("bij->bj", x)],
    "layer norm": [lambda x: F.layer_norm(x, (4,)), nn.LayerNorm(4, elementwise_affine=False), lambda x: F.layer_norm(x, normalized_shape=[4])],
    "lerp": [lambda x: torch.lerp(C, x, 0.3), lambda x: C.lerp(x, 0.3)],
    "addcmul": [lambda x: torch.addcmul(C, x, x.cos(), value=0.5), lambda x: C.addcmul(x, x.cos(), value=0.5), lambda x: C + (x * x.cos()) * 0.5],
    "glu": [lambda x: F.glu(x, -1), lambda x: x[..., :2] * x[..., 2:].sigmoid()],
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_function_gives_the_same(name: str) -> None:
    x = randn(2, 3, 4)
    reference = relevance(FORMS[name][0], x)
    assert reference.abs().sum() > 0
    for form in FORMS[name][1:]:
        torch.testing.assert_close(relevance(form, x), reference)


class InPlace(nn.Module):
    """Writes over what earlier rules still need, in every way torch allows."""

    def __init__(self, careful: bool) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 3)
        self.careful = careful

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.careful:
            y = F.relu(y)
            z = y + 0.5
            z = z * 2
            z = torch.cat([torch.zeros_like(z[:, :1]), z[:, 1:]], 1)
            z = F.leaky_relu(z.flatten(1), 0.2)
        else:
            F.relu_(y)
            z = y
            z += 0.5
            z.mul_(2)
            z[:, 0] = 0
            z = z.flatten(1)
            F.leaky_relu(z, 0.2, inplace=True)
        return self.head(z)


def test_in_place_operations_change_nothing() -> None:
    careful, careless = InPlace(True).eval(), InPlace(False).eval()
    careless.load_state_dict(careful.state_dict())
    x = torch.randn(2, 3, 8, 8)
    before = x.clone()
    a, b = abslrp.explain(careful, x), abslrp.explain(careless, x)
    torch.testing.assert_close(a.maps, b.maps)
    torch.testing.assert_close(a.outputs, b.outputs)
    assert torch.equal(x, before)


def test_input_written_in_place_is_left_as_it_was() -> None:
    x = torch.rand(2, 4)
    before = x.clone()
    a = abslrp.explain(lambda v: v.sub_(0.5) @ torch.ones(4, 2), x)
    assert torch.equal(x, before)
    assert a.maps.abs().sum() > 0


def snapshot(model: nn.Module) -> list[Any]:
    state = []
    for name, module in model.named_modules():
        attributes = {k: id(v) for k, v in vars(module).items() if k not in ("_parameters", "_buffers", "_modules")}
        hooks = [dict(getattr(module, h)) for h in vars(module) if h.endswith("_hooks")]
        state.append((name, module.training, attributes, hooks))
    tensors = [(k, v.clone(), v.requires_grad, v.grad) for k, v in [*model.named_parameters(), *model.named_buffers()]]
    return [state, tensors]


def same(a: list[Any], b: list[Any]) -> bool:
    return a[0] == b[0] and all(
        k == n and torch.equal(v, w) and r == q and g is h
        for (k, v, r, g), (n, w, q, h) in zip(a[1], b[1], strict=True)
    )


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        if self.fail:
            raise RuntimeError("in the middle")
        return self.last(x)


def test_model_gradients_and_random_state_are_left_as_found() -> None:
    model = Breaks().eval()
    model.first.register_forward_hook(lambda *_: None)
    before, state = snapshot(model), torch.get_rng_state()
    for options in ({}, {"at": "norm"}, {"method": "abslrp-agree"}):
        abslrp.explain(model, torch.zeros(2, 4) + 1, **options)
        assert same(before, snapshot(model))
    assert torch.equal(state, torch.get_rng_state())
    model.fail = True
    before = snapshot(model)
    for options in ({}, {"at": "norm"}):
        with pytest.raises(RuntimeError, match="in the middle"):
            abslrp.explain(model, torch.randn(2, 4), **options)
        assert same(before, snapshot(model))
    model.fail = False
    assert abslrp.explain(model, torch.randn(2, 4)).maps.isfinite().all()


def test_frozen_and_trainable_weights_give_the_same_map() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).eval()
    x = torch.randn(2, 4)
    trainable = abslrp.explain(model, x).maps
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    torch.testing.assert_close(abslrp.explain(model, x).maps, trainable, rtol=0, atol=0)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_works_in_any_gradient_mode(context: Callable[[], Any]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(2, 4)
    plain = abslrp.explain(model, x).maps
    with context():
        torch.testing.assert_close(abslrp.explain(model, x).maps, plain)
        torch.testing.assert_close(abslrp.explain(model, x.clone()).maps, plain)
    model_grads = [p.grad for p in model.parameters()]
    assert model_grads == [None] * 4


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4))
        self.odd = Cumprod()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.odd(self.body(x)))


class Cumprod(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumprod(x, 1)


def test_unknown_function_is_an_error_that_names_it_its_place_and_the_remedy() -> None:
    model, x = Unknown().eval(), torch.randn(2, 4)
    with pytest.raises(
        abslrp.UnsupportedOperation,
        match=r"^torch.cumprod in odd has no rule: .*register_operation.*unknown='gradient'\.$",
    ):
        abslrp.explain(model, x)
    assert abslrp.explain(model, x, unknown="gradient").maps.abs().sum() > 0


def test_function_without_a_gradient_is_an_error_too() -> None:
    with pytest.raises(abslrp.UnsupportedOperation, match="spherical_bessel_j0"):
        abslrp.explain(lambda x: torch.special.spherical_bessel_j0(x) @ torch.ones(4, 2), torch.randn(2, 4))
    for harmless in (
        torch.zeros_like,
        torch.Tensor.detach,
        lambda x: x.data,
        lambda x: x.new_ones(x.shape),
        torch.rand_like,
        lambda x: (x > 0).float(),
    ):
        abslrp.explain(lambda x, f=harmless: (x + f(x)) @ torch.ones(4, 2), torch.randn(2, 4))


def test_complex_layers_are_refused_with_a_sentence() -> None:
    w = torch.randn(4, 2, dtype=torch.complex64)
    with pytest.raises(abslrp.UnsupportedOperation, match="got complex numbers"):
        abslrp.explain(
            lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) @ w).sum(-1), torch.randn(2, 8)
        )


def test_methods_can_be_listed_twice() -> None:
    assert abslrp.methods().keys() == abslrp.methods().keys() >= {"abslrp", "abslrp-agree"}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


def test_custom_autograd_function_is_an_error_not_a_silent_gradient() -> None:
    model = lambda x: Twice.apply(x) @ torch.ones(4, 2)  # noqa: E731
    with pytest.raises(abslrp.UnsupportedOperation, match="TwiceBackward"):
        abslrp.explain(model, torch.randn(2, 4))
    assert abslrp.explain(model, torch.randn(2, 4), unknown="gradient").maps.abs().sum() > 0


def test_register_operation() -> None:
    from abslrp.propagation.operations import OPERATIONS
    from abslrp.propagation.operations.table import STOPPED
    from abslrp.propagation.structural import STRUCTURAL

    x = torch.rand(2, 4) + 0.5
    model = lambda v: torch.cumprod(v, 1) @ torch.ones(4, 2)  # noqa: E731
    try:
        abslrp.register_operation(torch.cumprod, lambda v, dim: torch.exp(torch.cumsum(torch.log(v), dim)))
        assert abslrp.explain(model, x).maps.isfinite().all()
        with pytest.raises(abslrp.AbslrpError, match="already has a rule"):
            abslrp.register_operation(torch.cumprod, "structural")
        for kind in ("structural", "elementwise", "gate", "linear"):
            abslrp.register_operation(torch.cumprod, kind, replace=True)
            assert abslrp.explain(model, x).maps.abs().sum() > 0
        with pytest.raises(abslrp.AbslrpError, match="kind='magic' is unknown"):
            abslrp.register_operation(torch.cumprod, "magic", replace=True)
    finally:
        OPERATIONS.pop(torch.cumprod, None)
        STRUCTURAL.discard(torch.cumprod)
        STOPPED.discard(torch.cumprod)


def test_conservation_keeps_both_masses_through_a_whole_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 10),
    ).eval()  # fmt: skip
    x = torch.rand(3, 3, 12, 12) + 0.1
    for start in ("target", "contrastive"):
        with abslrp.propagate("abslrp", conserve="sign") as p:
            out = model(x)
        r = p.relevance(out, x, start, targets=[1, 2, 3])
        whole = 1.0 if start == "target" else 1 - 9 / 10
        torch.testing.assert_close(r.sum((1, 2, 3)), torch.full((3,), whole), rtol=0, atol=1e-5)
    assert sum(row.lost + row.gained for row in p.coverage.rows) < 1e-4


def test_coverage_tells_kinds_structure_and_losses() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)).eval()
    model[0].weight.data, model[0].bias.data = -torch.eye(4), torch.ones(4) * 0.1
    x = torch.rand(2, 4) + 1
    with abslrp.propagate("abslrp") as p:
        out = model(x)
    p.relevance(out, x, "target")
    kinds = {row.kind: row for row in p.coverage.rows}
    assert kinds["affine"].calls == 2 and kinds["gate"].calls == 1 and p.coverage.structural == 1
    assert [layer.path for layer in p.coverage.layers] == ["0", "2", "3"]
    assert p.coverage.arrived == 0 and kinds["affine"].lost == pytest.approx(1)
    assert "affine" in str(p.coverage)


def test_statistics_written_by_hand_are_constants() -> None:
    def rms(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    x = randn(2, 3, 4)
    torch.testing.assert_close(relevance(rms, x), relevance(lambda v: F.rms_norm(v, (4,), None, 1e-6), x))
    torch.testing.assert_close(
        relevance(lambda v: F.normalize(v, dim=-1), x),
        relevance(lambda v: v / v.detach().norm(dim=-1, keepdim=True), x),
    )


def test_attention_written_by_hand_equals_the_fused_one() -> None:
    torch.manual_seed(0)  # near a pole ε shows: one scales the queries, the other their products
    q, k, v = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(3))
    x = randn(2, 5, 4)

    def by_hand(x: Tensor) -> Tensor:
        weights = (q(x) @ k(x).transpose(1, 2) * 0.5).softmax(-1)
        return F.dropout(weights, 0.1, training=False) @ v(x)

    def by_einsum(x: Tensor) -> Tensor:
        weights = torch.einsum("bic,bjc->bij", q(x) * 0.5, k(x)).softmax(-1)
        return torch.einsum("bij,bjc->bic", weights, v(x))

    for which in ("all", "values", "queries-keys"):
        fused = relevance(lambda x: F.scaled_dot_product_attention(q(x), k(x), v(x)), x, attention=which)
        torch.testing.assert_close(relevance(by_hand, x, attention=which), fused)
        torch.testing.assert_close(relevance(by_einsum, x, attention=which), fused)


@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_in_any_layout_does_not_mix_samples(batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, dtype=torch.float64).eval()
    head = nn.Linear(8, 3, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:  # (batch, tokens, channels), with as many tokens as samples
        h = layer(x if batch_first else x.transpose(0, 1))
        return head((h if batch_first else h.transpose(0, 1)).mean(1))

    x = randn(3, 3, 8)
    whole = abslrp.explain(model, x, targets=0)
    torch.testing.assert_close(whole.outputs, model(x).float())
    for n in range(3):
        torch.testing.assert_close(abslrp.explain(model, x[n : n + 1], targets=0).maps[0], whole.maps[n])


def test_lost_batch_falls_back_to_single_samples() -> None:
    w = randn(6, 2)

    def model(x: Tensor) -> Tensor:  # sorts the batch into rows and back, which no axis can follow
        order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))
        mixed = F.relu(x.reshape(-1)[order])
        return mixed[order.argsort()].reshape(x.shape) @ w

    x = randn(3, 6)
    leaf = x.clone().requires_grad_()
    with abslrp.propagate("abslrp") as p:
        out = model(leaf)
    with pytest.raises(BatchLost, match="one sample at a time"):
        p.relevance(out, leaf, "target")
    whole = abslrp.explain(model, x)
    torch.testing.assert_close(whole.maps[1], abslrp.explain(model, x[1:2]).maps[0])


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_networks(name: str, bidirectional: bool) -> None:
    torch.manual_seed(0)
    rnn = getattr(nn, name)(4, 5, num_layers=2, batch_first=True, bidirectional=bidirectional).eval()
    model = lambda x: rnn(x)[0][:, -1]  # noqa: E731
    x = torch.randn(2, 6, 4)
    a = abslrp.explain(model, x)
    torch.testing.assert_close(a.outputs, model(x))
    torch.testing.assert_close(
        a.maps[1:], abslrp.explain(model, x[1:], targets=a.targets[1:]).maps, rtol=1e-3, atol=1e-6
    )
    assert a.maps.abs().sum() > 0


def test_the_public_snippet_works_as_written() -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval(),
        torch.randn(2, 3, 8, 8),
    )
    start = torch.eye(5)[:2]
    with abslrp.propagate("abslrp", conserve="sign") as p:
        out = model(x)
    r = p.relevance(out, x, start)
    assert r.shape == x.shape and not x.requires_grad and x.grad is None
    torch.testing.assert_close(r, abslrp.explain(model, x, targets=[0, 1], start="target").maps)
    torch.testing.assert_close(p.relevance(out, x, "target", targets=[0, 1]), r)


def test_relevance_of_something_else_is_a_clear_error() -> None:
    model, x = nn.Linear(3, 2).eval(), torch.randn(1, 3)
    with abslrp.propagate() as p:
        out = model(x)
    with pytest.raises(abslrp.AbslrpError, match="do not depend on x"):
        p.relevance(out, torch.randn(1, 3))


def test_views_of_parameters_are_constants() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x + self.table[0]) * self.table.view(12)[:4].expand(len(x), -1))

    torch.manual_seed(0)
    model, x = Shifted().eval(), torch.randn(2, 4)
    trainable = abslrp.explain(model, x).maps
    model.requires_grad_(False)
    torch.testing.assert_close(abslrp.explain(model, x).maps, trainable, rtol=0, atol=0)


def test_what_comes_last_is_looked_at_too() -> None:
    with pytest.raises(abslrp.UnsupportedOperation, match="TwiceBackward"):
        abslrp.explain(lambda x: Twice.apply(x @ torch.ones(4, 2)), torch.randn(2, 4))


def test_vmap_is_refused() -> None:
    w = torch.randn(4, 2)
    with pytest.raises(abslrp.UnsupportedOperation, match="vmap"):
        abslrp.explain(lambda x: x @ w + torch.vmap(lambda row: row @ w)(x), torch.randn(2, 4))


def test_no_grad_inside_a_model_makes_constants() -> None:
    def model(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.sum(1, keepdim=True)
        return (x * scale) @ torch.ones(4, 2)

    x = torch.rand(2, 4)
    expected = abslrp.explain(lambda v: (v * v.detach().sum(1, keepdim=True)) @ torch.ones(4, 2), x).maps
    torch.testing.assert_close(abslrp.explain(model, x).maps, expected)


BUFFERS: dict[str, Callable[[Tensor], Tensor]] = {
    "setitem": lambda x: _filled(x),
    "copy": lambda x: _filled(x, True),
    "list index": lambda x: x[:, [2, 0, 1]],
    "unfold": lambda x: F.unfold(x.reshape(len(x), 1, 3, 4), 2),
    "rot90": lambda x: torch.rot90(x.reshape(len(x), 3, 4), 1, (1, 2)),
    "index batch": lambda x: x[torch.arange(len(x)), torch.tensor([1, 0, 2])[: len(x)]],
    "cat out": lambda x: torch.cat([x, x], 1, out=torch.empty(0, dtype=x.dtype)),
    "clamp live": lambda x: torch.clamp(x, min=x.mean(-1, keepdim=True)),
    "complex": lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(len(x), 6, 2).contiguous()) * torch.tensor(0.6 + 0.8j)
    ).flatten(1),
    "max with indices": lambda x: F.max_pool1d(x, 2, return_indices=True)[0],
    "median": lambda x: x.median(1).values,
    "scatter_reduce": lambda x: torch.zeros(len(x), 2, 4, dtype=x.dtype).scatter_reduce(
        1, torch.tensor([0, 1, 0]).reshape(1, 3, 1).expand_as(x), x, "mean", include_self=False
    ),
    "cdist": lambda x: torch.cdist(x, torch.zeros(2, 4, dtype=x.dtype)),
    "sparse": lambda x: (torch.eye(12, dtype=x.dtype).to_sparse() @ x.flatten(1).t()).t(),
}


def _filled(x: Tensor, copy: bool = False) -> Tensor:
    out = torch.zeros(len(x), 5, 4, dtype=x.dtype)
    for t in range(3):
        if copy:
            out[:, t].copy_(torch.sin(x[:, t]))
        else:
            out[:, t] = torch.sin(x[:, t])
    return out


@pytest.mark.parametrize("name", BUFFERS)
def test_samples_stay_apart_through_unusual_functions(name: str) -> None:
    x = randn(3, 3, 4)
    torch.manual_seed(0)
    w = torch.randn(BUFFERS[name](x).flatten(1).shape[1], 2, dtype=torch.float64)
    model = lambda v: torch.tanh(BUFFERS[name](v * 1.5).flatten(1)) @ w  # noqa: E731
    whole = abslrp.explain(model, x, targets=0, start="target")
    torch.testing.assert_close(whole.outputs, model(x).float())
    for n in range(3):
        if name == "index batch" and n:
            break
        torch.testing.assert_close(
            abslrp.explain(model, x[n : n + 1], targets=0, start="target").maps[0], whole.maps[n]
        )


def test_a_plain_input_stays_an_input_to_the_end() -> None:
    """Operations that fall apart enter the engine once more and must not end it."""

    class Residual(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + F.scaled_dot_product_attention(x, x, x) + x.sin()).mean(1)

    x = randn(2, 3, 4)
    with abslrp.propagate("abslrp") as p:
        out = Residual()(x)
    assert not x.requires_grad
    plain = p.relevance(out, x, "target", targets=1)
    leaf = x.clone().requires_grad_()
    with abslrp.propagate("abslrp") as p:
        out = Residual()(leaf)
    torch.testing.assert_close(p.relevance(out, leaf, "target", targets=1), plain)


class _Mixed(nn.Module):
    """Rectifiers in every form, sums in place, attention, views written over, and statistics written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.third, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.drop, self.smooth = nn.Dropout(inplace=True), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.norm(self.first(x)), inplace=True)
        b = self.smooth(self.second(a).relu_() * 1.5)
        b += a
        b[:, 0].relu_()
        tokens = torch.relu(self.third(b.flatten(2).mT)) / b.flatten(2).std(dim=2).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(tokens, tokens, tokens) + torch.softmax(tokens @ tokens.mT, -1) @ tokens
        return self.head(self.drop(F.relu(mixed.clone())).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("ruleset", ["guided-backprop", "deconvolution", "gradient"])
def test_functions_run_as_they_are_give_the_map_of_those_that_are_measured(ruleset: str) -> None:
    torch.manual_seed(2)
    model, maps = _Mixed().double().eval(), []
    for measure in (True, False):
        leaf = randn(2, 3, 4, 4).requires_grad_()
        with abslrp.propagate(ruleset, measure=measure) as p:
            p.watch(leaf)
            outputs = model(leaf.clone())
        maps.append(p.relevance(outputs, leaf, torch.ones_like(outputs), retain=False))
    torch.testing.assert_close(maps[1], maps[0])
    assert maps[0].abs().sum() > 0


class _Apart(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0


def test_an_activation_in_place_does_not_stop_guided_backpropagation() -> None:
    torch.manual_seed(0)
    ends, maps = (nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)), []
    for inplace in (False, True):
        model = nn.Sequential(ends[0], nn.SiLU(inplace), *ends[1:]).eval()
        maps.append(abslrp.explain(model, randn(2, 3, 4, 4).float(), 0, "guided-backprop").maps)
    assert maps[0].abs().sum() > 0
    torch.testing.assert_close(maps[1], maps[0])


def test_a_norm_of_a_norm() -> None:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(4), nn.BatchNorm2d(4)]
    for norm in norms:
        norm.running_mean.fill_(0.1)  # type: ignore[union-attr]
    first, last, x = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 4), randn(2, 3, 4, 4).float()
    found, apart = (
        abslrp.explain(nn.Sequential(first, norms[0], *between, norms[1], last, nn.Flatten()).eval(), x, 0).maps
        for between in ([], [_Apart()])
    )
    assert found.abs().sum() > 0
    torch.testing.assert_close(found, apart)


def test_a_function_with_a_new_meaning_does_not_run_as_it_is() -> None:
    from abslrp.propagation import plain
    from abslrp.propagation.operations import OPERATIONS

    groups, before = (plain._GRADIENT, plain._RECTIFIED), OPERATIONS[torch.tanh]
    try:
        abslrp.register_operation(torch.tanh, lambda x: torch.relu(x), replace=True)
        x = torch.tensor([[-1.0, 2.0]], requires_grad=True)
        with abslrp.propagate("guided-backprop", measure=False) as p:
            p.watch(x)
            out = torch.tanh(x.clone())
        assert p.relevance(out, x, torch.tensor([[1.0, 1.0]])).tolist() == [[0.0, 1.0]]
    finally:
        OPERATIONS[torch.tanh] = before
        for group in groups:
            group.add(torch.tanh)


class Mixed(nn.Module):
    """Looks at the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h = F.relu(self.b(h) + h.mean(0, keepdim=True)[:, :, 1:-1, 1:-1])
        return self.head(h.mean((2, 3)))


class Attending(nn.Module):
    """Attention over tokens, or, where these are taken for the batch, over the batch."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.a, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.a(x).flatten(2).transpose(1, 2))
        return self.head(F.relu(self.attention(h, h, h, need_weights=False)[0]).mean(1))


class Stacked(nn.Module):
    """One image after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.stack([F.relu(self.a(one[None]))[0] for one in x]).mean((2, 3)))


class Folded(nn.Module):
    """Channels go into the batch and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.a(x))
        h = F.relu(self.b(h.reshape(-1, 1, 6, 6))).view(len(x), -1, 4, 4)
        return self.head(F.relu(h).mean((2, 3)))


@pytest.mark.parametrize("method", ["guided-backprop", "deconvolution", "guided-gradcam"])
@pytest.mark.parametrize(
    "model",
    [Mixed(), Attending(True), Attending(False), Stacked(), Folded()],
    ids=["mixed", "attending", "attending across", "stacked", "folded"],
)
def test_images_of_a_batch_are_not_mixed_where_only_rectifiers_have_a_rule(model: nn.Module, method: str) -> None:
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    targets = [0, 1, 2, 0]
    if isinstance(model, Folded) and method == "guided-gradcam":
        with pytest.raises(abslrp.AbslrpError, match="'b' gave 4 maps for 1 input"):
            abslrp.explain(model.eval(), x, targets, method)
        return
    together = abslrp.explain(model.eval(), x, targets, method)
    alone = [abslrp.explain(model, x[i : i + 1], targets[i], method) for i in range(4)]
    torch.testing.assert_close(together.maps, torch.cat([one.maps for one in alone]))
    torch.testing.assert_close(together.outputs, torch.cat([one.outputs for one in alone]))


def test_what_is_registered_holds_for_functions_in_place_too() -> None:
    code = """
import torch
from torch import nn
import abslrp
a, b, head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
class Net(nn.Module):
    def forward(self, x):
        return head(b(a(x).relu_()).relu_().mean((2, 3)))
x = torch.randn(2, 3, 8, 8, requires_grad=True)
(slope,) = torch.autograd.grad(Net()(x)[:, 0].sum(), x)
maps = lambda: abslrp.explain(Net().eval(), x.detach(), 0, "guided-backprop").maps
assert not torch.allclose(maps(), slope)
abslrp.register_operation(torch.Tensor.relu, "structural", replace=True)  # relevance passes it as the gradient does
assert torch.allclose(maps(), slope)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
