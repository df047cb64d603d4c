"""Every rule equals its slow reference, in float64 to 1e-9, on small layers of every kind with signed inputs, in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.reference import rules as oracle
from torch import Tensor

import abslrp

OPTIONS = [(c, k) for c in oracle.CONTRIBUTIONS for k in oracle.CONSERVE]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def relevances(
    function: Callable[..., Tensor], inputs: list[Tensor], seed: int = 99, **options: Any
) -> tuple[list[Tensor], Tensor]:
    """Relevances of all inputs under the engine, and the R they started from."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    maps, start = [], torch.empty(0)
    for leaf in leaves:
        with abslrp.propagate("abslrp", **options) as p:
            out = function(*leaves)
        start = randn(*out.shape, seed=seed)
        maps.append(p.relevance(out, leaf, start))
    return maps, start


def check(function: Callable[..., Tensor], inputs: list[Tensor], expected: Callable[..., Any], **options: Any) -> None:
    maps, R = relevances(function, inputs, **options)
    for n in range(len(inputs[0])):
        wanted = expected(*(x[n] for x in inputs), R[n])
        wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
        for r, w in zip(maps, wanted, strict=True):
            torch.testing.assert_close(r[n], w, rtol=1e-9, atol=1e-11)


def one(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of a batch as a function of one sample."""
    return lambda x: function(x.unsqueeze(0)).squeeze(0)


W = {name: randn(*shape, seed=7) for name, shape in {
    "linear": (5, 4), "conv1d": (4, 3, 3), "conv2d": (4, 2, 3, 3), "conv2d_depthwise": (4, 1, 3, 3), "conv3d": (2, 2, 2, 2, 2),
    "transposed": (4, 3, 3, 3), "matrix": (4, 3), "left": (5, 3),
}.items()}  # fmt: skip

AFFINE: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], Tensor | None]] = {
    # function(x, bias), shape of a batch, bias as it broadcasts to the output
    "linear": (lambda x, b: F.linear(x, W["linear"], b), (3, 4), randn(5, seed=3)),
    "linear tokens": (lambda x, b: F.linear(x, W["linear"], b), (2, 3, 4), randn(5, seed=3)),
    "conv1d": (lambda x, b: F.conv1d(x, W["conv1d"], b, stride=2, padding=1), (2, 3, 7), randn(4, seed=3)),
    "conv2d": (lambda x, b: F.conv2d(x, W["conv2d"], b, padding=1), (2, 2, 4, 5), randn(4, seed=3)),
    "conv2d strided dilated": (lambda x, b: F.conv2d(x, W["conv2d"], b, stride=2, dilation=2, padding=2), (2, 2, 6, 5), randn(4, seed=3)),
    "conv2d grouped": (lambda x, b: F.conv2d(x, W["conv2d"], b, groups=2), (2, 4, 4, 4), randn(4, seed=3)),
    "conv2d depthwise": (lambda x, b: F.conv2d(x, W["conv2d_depthwise"], b, groups=4), (2, 4, 4, 4), randn(4, seed=3)),
    "conv2d same": (lambda x, b: F.conv2d(x, W["conv2d"], b, padding="same"), (2, 2, 4, 4), randn(4, seed=3)),
    "conv2d same even": (lambda x, b: F.conv2d(x, W["conv2d"][..., :2], b, padding="same"), (2, 2, 4, 4), randn(4, seed=3)),
    "conv3d": (lambda x, b: F.conv3d(x, W["conv3d"], b), (2, 2, 3, 3, 3), randn(2, seed=3)),
    "conv_transpose2d": (
        lambda x, b: F.conv_transpose2d(x, W["transposed"], b, stride=2, padding=1, output_padding=1),
        (2, 4, 3, 3),
        randn(3, seed=3),
    ),
    "conv_transpose1d": (lambda x, b: F.conv_transpose1d(x, W["conv1d"], b, stride=2), (2, 4, 5), randn(3, seed=3)),
    "matmul": (lambda x, b: x @ W["matrix"], (2, 3, 4), None),
    "matmul left": (lambda x, b: W["left"] @ x, (2, 3, 4), None),
    "matmul vector": (lambda x, b: x @ W["matrix"][:, 0], (2, 3, 4), None),
    "addmm": (lambda x, b: torch.addmm(b, x, W["matrix"]), (3, 4), randn(3, seed=3)),
    "addmm scaled": (lambda x, b: torch.addmm(b, x, W["matrix"], alpha=-2.0), (3, 4), randn(3, seed=3)),
    "baddbmm": (lambda x, b: torch.baddbmm(b, x, W["matrix"].expand(len(x), -1, -1)), (2, 3, 4), randn(3, seed=3)),
    "einsum": (lambda x, b: torch.einsum("bij,jk->bik", x, W["matrix"]), (2, 3, 4), None),
    "avg_pool2d": (lambda x, b: F.avg_pool2d(x, 2), (2, 2, 4, 4), None),
    "avg_pool1d": (lambda x, b: F.avg_pool1d(x, 3, 1, 1), (2, 2, 5), None),
    "adaptive_avg_pool2d": (lambda x, b: F.adaptive_avg_pool2d(x, (2, 3)), (2, 2, 5, 5), None),
    "adaptive_avg_pool3d": (lambda x, b: F.adaptive_avg_pool3d(x, 1), (2, 2, 2, 3, 2), None),
    "mean": (lambda x, b: x.mean((2, 3)), (2, 3, 2, 2), None),
    "mean keepdim": (lambda x, b: torch.mean(x, dim=1, keepdim=True), (2, 3, 4), None),
    "sum": (lambda x, b: x.sum(-1), (2, 3, 4), None),
    "cumsum": (lambda x, b: x.cumsum(1), (2, 4), None),
    "bilinear upsampling": (lambda x, b: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 1, 3, 3), None),
    "nearest upsampling": (lambda x, b: F.interpolate(x, size=(4, 5)), (2, 1, 3, 3), None),
    "bicubic upsampling": (lambda x, b: F.interpolate(x, size=(6, 5), mode="bicubic", align_corners=False), (2, 2, 4, 3), None),
    "bilinear half": (lambda x, b: F.bilinear(x, randn(1, 3, seed=4).expand(len(x), -1), randn(5, 4, 3, seed=5), b), (2, 4), randn(5, seed=3)),
}  # fmt: skip


@pytest.mark.parametrize(("contributions", "conserve"), OPTIONS)
@pytest.mark.parametrize("name", AFFINE)
def test_affine(name: str, contributions: str, conserve: str) -> None:
    function, shape, bias = AFFINE[name]
    x = randn(*shape)
    out_dims = function(x, bias).ndim
    spatial = name.startswith("conv")
    shaped = bias.reshape(-1, *[1] * (out_dims - 2)) if spatial and bias is not None else bias
    zero = None if bias is None else torch.zeros_like(bias)
    check(
        lambda x: function(x, bias),
        [x],
        lambda x, R: oracle.affine(
            one(lambda v: function(v, zero)), x, shaped, R, contributions=contributions, conserve=conserve
        ),
        contributions=contributions,
        conserve=conserve,
    )


@pytest.mark.parametrize("conserve", oracle.CONSERVE)
def test_affine_after_relu_takes_the_shorter_way_to_the_same(conserve: str) -> None:
    w, b = W["linear"], randn(5, seed=3)
    x = randn(3, 4)
    check(
        lambda x: F.linear(F.relu(x), w, b),
        [x],
        lambda x, R: oracle.gate(
            x > 0, oracle.affine(lambda v: w @ v, x.clamp(min=0), b, R, conserve=conserve), conserve=conserve
        ),
        conserve=conserve,
    )


PRODUCTS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "mul": (lambda a, b: a * b, (2, 3, 4), (2, 3, 4)),
    "mul broadcast": (lambda a, b: a * b, (2, 3, 4), (2, 3, 1)),
    "matmul": (lambda a, b: a @ b, (2, 3, 4), (2, 4, 2)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 2)),
    "heads": (lambda a, b: a @ b.transpose(-2, -1), (2, 2, 3, 4), (2, 2, 5, 4)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 3, 4), (2, 5, 4)),
    "einsum ellipsis": (lambda a, b: torch.einsum("...ij,...jk", a, b), (2, 3, 4), (2, 4, 2)),
    "bilinear": (lambda a, b: F.bilinear(a, b, randn(3, 4, 2, seed=5)), (2, 4), (2, 2)),
    "dynamic linear": (lambda a, b: (a.unsqueeze(1) * b).sum(-1), (1, 4), (1, 3, 4)),
}


@pytest.mark.parametrize(("contributions", "conserve"), OPTIONS)
@pytest.mark.parametrize("name", [n for n in PRODUCTS if n != "dynamic linear"])
def test_product(name: str, contributions: str, conserve: str) -> None:
    function, a, b = PRODUCTS[name]
    single = lambda x, y: function(x.unsqueeze(0), y.unsqueeze(0)).squeeze(0)  # noqa: E731
    check(
        function,
        [randn(*a), randn(*b, seed=1)],
        lambda x, y, R: oracle.product(single, x, y, R, contributions=contributions, conserve=conserve),
        contributions=contributions,
        conserve=conserve,
    )


def test_convolution_with_a_live_kernel() -> None:
    """Dynamic convolutions: the kernel depends on the input too."""
    x, w = randn(1, 2, 4, 4), randn(3, 2, 2, 2, seed=1)
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    for number in (0, 1):
        with abslrp.propagate("abslrp", conserve="none") as p:
            out = F.conv2d(*leaves)
        R = randn(*out.shape, seed=9)
        wanted = oracle.product(lambda a, b: F.conv2d(a.unsqueeze(0), b).squeeze(0), x[0], w, R[0])[number]
        torch.testing.assert_close(
            p.relevance(out, leaves[number], R).reshape(wanted.shape), wanted, rtol=1e-9, atol=1e-11
        )


@pytest.mark.parametrize(("contributions", "conserve"), OPTIONS)
@pytest.mark.parametrize(
    ("function", "signs"),
    [
        (lambda a, b: a + b, (1, 1)),
        (lambda a, b: a - b, (1, -1)),
        (lambda a, b: torch.add(a, b, alpha=-2.5), (1, -2.5)),
    ],
)
def test_sum(function: Callable[..., Tensor], signs: tuple[float, float], contributions: str, conserve: str) -> None:
    check(
        function,
        [randn(2, 3, 4), randn(2, 1, 4, seed=1)],
        lambda a, b, R: oracle.total([a, b], signs, R, contributions=contributions, conserve=conserve),
        contributions=contributions,
        conserve=conserve,
    )


@pytest.mark.parametrize(("contributions", "conserve"), OPTIONS)
def test_sum_with_a_constant_leaves_all_to_the_other(contributions: str, conserve: str) -> None:
    c = randn(3, 4, seed=5)
    for function, sign in ((lambda x: x + c, 1), (lambda x: c - x, -1), (lambda x: x.add(c), 1)):
        check(
            function,
            [randn(2, 3, 4)],
            lambda x, R, sign=sign: oracle.total(
                [x], [sign], R, constants=c, contributions=contributions, conserve=conserve
            ),
            contributions=contributions,
            conserve=conserve,
        )


def test_adding_nothing_changes_nothing() -> None:
    (r,), R = relevances(lambda x: x + torch.zeros(4), [randn(2, 4)])
    torch.testing.assert_close(r, R)


SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(F, name, None) or getattr(torch, name)
    for name in [
        "elu",
        "selu",
        "celu",
        "gelu",
        "silu",
        "mish",
        "softplus",
        "softsign",
        "softshrink",
        "tanhshrink",
        "logsigmoid",
        "hardsigmoid",
        "hardswish",
        "sigmoid",
        "tanh",
        "exp",
        "sin",
        "erf",
    ]
} | {"gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "pow": lambda x: x**3, "sqrt": lambda x: (x * x).sqrt()}


@pytest.mark.parametrize(("contributions", "conserve"), OPTIONS)
@pytest.mark.parametrize("name", [n for n in SMOOTH if n != "sqrt"])
def test_smooth_activations(name: str, contributions: str, conserve: str) -> None:
    f = SMOOTH[name]
    check(
        f,
        [randn(2, 7)],
        lambda x, R: oracle.smooth(f, x, R, contributions=contributions, conserve=conserve),
        contributions=contributions,
        conserve=conserve,
    )


GATES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (F.relu, lambda x: x > 0),
    "relu6": (F.relu6, lambda x: x > 0),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), lambda x: x > 0),
    "prelu": (lambda x: F.prelu(x, torch.tensor([0.2], dtype=torch.float64)), lambda x: x > 0),
    "rrelu": (F.rrelu, lambda x: x > 0),
    "hardtanh": (F.hardtanh, lambda x: x > -1),
    "threshold": (lambda x: F.threshold(x, 0.3, 0.0), lambda x: x > 0.3),
    "hardshrink": (F.hardshrink, lambda x: x.abs() > 0.5),
    "clamp": (lambda x: x.clamp(min=0.2, max=1.0), lambda x: x > 0.2),
    "clamp_max": (lambda x: torch.clamp(x, max=1.0), lambda x: x == x),
}


@pytest.mark.parametrize("conserve", oracle.CONSERVE)
@pytest.mark.parametrize("name", GATES)
def test_gates(name: str, conserve: str) -> None:
    f, active = GATES[name]
    check(f, [randn(2, 9) * 3], lambda x, R: oracle.gate(active(x), R, conserve=conserve), conserve=conserve)


@pytest.mark.parametrize("conserve", oracle.CONSERVE)
def test_softmax(conserve: str) -> None:
    check(
        lambda x: x.softmax(-1),
        [randn(2, 3, 5)],
        lambda x, R: oracle.softmax(x, -1, R, conserve=conserve),
        conserve=conserve,
    )
    check(
        lambda x: F.softmax(x, dim=1),
        [randn(2, 3, 5)],
        lambda x, R: oracle.softmax(x, 0, R, conserve=conserve),
        conserve=conserve,
    )


def test_log_softmax_takes_the_same_from_all_classes_and_so_nothing() -> None:
    (r,), R = relevances(lambda x: F.log_softmax(x, -1), [randn(2, 5)])
    torch.testing.assert_close(r, R)


def _moments(x: Tensor, dims: list[int], eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    return x.mean(dims, keepdim=True), (x.var(dims, correction=0, keepdim=True) + eps).sqrt()


w4, b4 = randn(4, seed=11), randn(4, seed=12)
m4, v4 = randn(4, seed=13), randn(4, seed=14).abs() + 0.1
column = lambda t: t.reshape(-1, 1, 1)  # noqa: E731
NORMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], Callable[[Tensor], tuple[Any, ...]]]] = {
    # function, shape, (mean, std, weight, bias) of one sample
    "batch": (lambda x: F.batch_norm(x, m4, v4, w4, b4), (2, 4, 3, 3), lambda x: (column(m4), column((v4 + 1e-5).sqrt()), column(w4), column(b4))),
    "batch bare": (lambda x: F.batch_norm(x, m4, v4), (2, 4, 3, 3), lambda x: (column(m4), column((v4 + 1e-5).sqrt()), None, None)),
    "batch 1d": (lambda x: F.batch_norm(x, m4, v4, w4, b4), (3, 4), lambda x: (m4, (v4 + 1e-5).sqrt(), w4, b4)),
    "layer": (lambda x: F.layer_norm(x, (4,), w4, b4), (2, 3, 4), lambda x: (*_moments(x, [-1]), w4, b4)),
    "layer no bias": (lambda x: F.layer_norm(x, (4,), w4), (2, 3, 4), lambda x: (*_moments(x, [-1]), w4, None)),
    "layer bare": (lambda x: F.layer_norm(x, (3, 4)), (2, 3, 4), lambda x: (*_moments(x, [-2, -1]), None, None)),
    "instance": (lambda x: F.instance_norm(x, weight=w4, bias=b4), (2, 4, 3, 3), lambda x: (*_moments(x, [1, 2]), column(w4), column(b4))),
    "rms": (lambda x: F.rms_norm(x, (4,), w4, 1e-6), (2, 3, 4), lambda x: (None, (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), w4, None)),
    "rms bare": (lambda x: F.rms_norm(x, (4,), None, 1e-6), (2, 3, 4), lambda x: (None, (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), None, None)),
    "group": (
        lambda x: F.group_norm(x, 2, w4, b4),
        (2, 4, 3, 3),
        lambda x: (*(t.reshape(2, 1, 1, 1).expand(2, 2, 1, 1).reshape(4, 1, 1) for t in _moments(x.reshape(2, -1), [1])), column(w4), column(b4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("contributions", "conserve"), OPTIONS)
@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, contributions: str, conserve: str) -> None:
    if name == "rms bare" and conserve == "each":
        conserve = "none"  # the reference takes this norm for no operation at all, the engine for an identity
    function, shape, parts = NORMS[name]
    check(
        function,
        [randn(*shape)],
        lambda x, R: oracle.norm(x, *parts(x), R, contributions=contributions, conserve=conserve),
        contributions=contributions,
        conserve=conserve,
    )


@pytest.mark.parametrize("conserve", oracle.CONSERVE)
@pytest.mark.parametrize("pooling", ["winner", "weighted"])
def test_max_pooling(pooling: str, conserve: str) -> None:
    check(
        lambda x: F.max_pool2d(x, 3, 2, 1),
        [randn(2, 2, 5, 5)],
        lambda x, R: oracle.max_winner(x, oracle.windows_2d((2, 5, 5), 3, 2, 1), R, pooling=pooling, conserve=conserve),
        pooling=pooling,
        conserve=conserve,
    )


def test_maxima_in_their_other_forms() -> None:
    rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    for f in (
        lambda x: x.amax(-1),
        lambda x: torch.max(x, -1).values,
        lambda x: x.max(dim=2)[0],
        lambda x: F.max_pool1d(x, 4).squeeze(-1),
    ):
        check(f, [randn(2, 3, 4)], lambda x, R: oracle.max_winner(x, rows, R))
    (a, b), R = relevances(torch.maximum, [randn(2, 4), randn(2, 4, seed=1)])
    torch.testing.assert_close(a + b, R)
    assert ((a != 0) == (randn(2, 4) > randn(2, 4, seed=1))).all()


@pytest.mark.parametrize("conserve", oracle.CONSERVE)
def test_scaling_by_a_constant(conserve: str) -> None:
    constant = torch.tensor([2.0, -3.0, 0.0, 0.5], dtype=torch.float64)
    for function in (lambda x: x * constant, lambda x: constant * x, lambda x: torch.mul(x, constant)):
        check(
            function, [randn(2, 3, 4)], lambda x, R: oracle.scale(constant, x, R, conserve=conserve), conserve=conserve
        )
    for function in (lambda x: x / 3, lambda x: -x, lambda x: 2 * x, lambda x: x / constant.abs().add(1)):
        (r,), R = relevances(function, [randn(2, 3, 4)], conserve="none")
        torch.testing.assert_close(r, R)


@pytest.mark.parametrize("which", oracle.WHICH)
@pytest.mark.parametrize(("contributions", "conserve"), OPTIONS)
@pytest.mark.parametrize("mask", ["none", "bool", "causal", "bias"])
def test_attention(mask: str, contributions: str, conserve: str, which: str) -> None:
    q, k, v = randn(2, 2, 3, 4), randn(2, 2, 3, 4, seed=1), randn(2, 2, 3, 5, seed=2)
    allowed = torch.ones(3, 3, dtype=torch.bool).tril()
    bias = randn(3, 3, seed=4)
    keywords = {"none": {}, "bool": {"attn_mask": allowed}, "causal": {"is_causal": True}, "bias": {"attn_mask": bias}}[
        mask
    ]
    its = {"none": None, "bool": allowed, "causal": allowed, "bias": bias}[mask]
    maps, R = (
        relevances(
            lambda *t: F.scaled_dot_product_attention(*t, **keywords),
            [q, k, v],
            contributions=contributions,
            conserve=conserve,
            attention=which,
        )
        if which == "all"
        else _partial(which, q, k, v, keywords, contributions, conserve)
    )
    for n in range(2):
        wanted = oracle.attention(
            q[n],
            k[n],
            v[n],
            0.5,
            its,
            R[n],
            which,
            contributions=contributions,
            conserve=conserve,
            mask_step=mask == "bias",
        )
        for r, w in zip(maps, wanted, strict=True):
            if r is not None:
                torch.testing.assert_close(r[n], w, rtol=1e-9, atol=1e-11)


def _partial(
    which: str, q: Tensor, k: Tensor, v: Tensor, keywords: dict[str, Any], contributions: str, conserve: str
) -> Any:
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    maps: list[Tensor | None] = [None, None, None]
    R = torch.empty(0)
    for number in (2,) if which == "values" else (0, 1):
        with abslrp.propagate("abslrp", contributions=contributions, conserve=conserve, attention=which) as p:
            out = F.scaled_dot_product_attention(*leaves, **keywords)
        R = randn(*out.shape, seed=99)
        maps[number] = p.relevance(out, leaves[number], R)
    return maps, R


@pytest.mark.parametrize(("hidden", "wanted", "alpha_beta"), oracle.TOY_NETWORKS)
def test_the_papers_toy_networks(hidden: Any, wanted: Any, alpha_beta: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 1, bias=False)
    ).eval()
    model[0].weight.data, model[2].weight.data = torch.tensor(hidden), torch.ones(1, 2)
    for conserve in ("sign", "joint", "none", "each"):
        r = abslrp.explain(model, torch.ones(1, 2), targets=0, conserve=conserve, start="target").maps
        torch.testing.assert_close(r / r.abs().sum(), torch.tensor([wanted]))
    torch.testing.assert_close(oracle.toy(hidden, rule=oracle.alpha1beta0), oracle.double(alpha_beta))


def test_starts() -> None:
    from abslrp.propagation import starts

    outputs = torch.randn(2, 5)
    targets = torch.tensor([3, 0])
    torch.testing.assert_close(starts.contrastive(outputs, targets)[0].double(), oracle.contrastive(3, 5))
    for mine, its in zip(starts.passes("two-pass", outputs, targets), oracle.two_pass(3, 5), strict=True):
        torch.testing.assert_close(mine[0].double(), its)
    assert starts.logit(outputs, targets)[1].tolist() == [outputs[1, 0].item(), 0, 0, 0, 0]


def test_at_the_head_evidence_is_what_raises_the_logit() -> None:
    """A negative logit's agreeing contributions are those against the class; softmax does not know a logit's sign."""
    model = torch.nn.Linear(3, 2, bias=False).eval()
    model.weight.data = torch.tensor([[1.0, -3.0, 0.5], [-1.0, 1.0, -2.0]])
    x = torch.ones(1, 3)
    start = torch.tensor([[1.0, 0.0]])
    ours = abslrp.explain(model, x, method="abslrp-agree", start=start).maps
    torch.testing.assert_close(ours, abslrp.explain(model, x, method="abslrp", start=start).maps)
    assert ours[0, 0] > 0 and ours[0, 1] == 0
    same = abslrp.explain(model, x, method="abslrp-agree", start=start, head="same").maps
    assert same[0, 1] > 0 and same[0, 0] == 0


def test_relevance_at_the_level_of_patches_is_even_inside_each_and_keeps_its_sum() -> None:
    from tests.contract.test_methods import X, model_of

    model = model_of("transformer")
    made = abslrp.explain(model, X, level="patches").maps
    tiles = made.unfold(2, 4, 4).unfold(3, 4, 4)
    assert (tiles == tiles[..., :1, :1]).all() and (made == made[:, :1]).all()
    at = abslrp.explain(model, X, at="patches").maps
    torch.testing.assert_close(made.sum((1, 2, 3)), at.sum((1, 2, 3)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(made[:, 0, ::4, ::4] * 48, at.sum(1), rtol=1e-4, atol=1e-6)
    assert abslrp.explain(model, X).maps.unfold(2, 4, 4).unfold(3, 4, 4).var((-1, -2)).min() > 0


def test_relevance_at_the_level_of_patches_needs_patches() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()
    with pytest.raises(abslrp.AbslrpError, match="cuts images into patches"):
        abslrp.explain(model, torch.randn(1, 3, 4, 4), level="patches")
    with pytest.raises(abslrp.AbslrpError, match="level='pixel' is unknown"):
        abslrp.explain(model, torch.randn(1, 3, 4, 4), level="pixel")
