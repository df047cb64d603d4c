"""LRP-ε, αβ, γ, RAP and AttnLRP on the engine equal their slow references, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.reference import lrp, rules
from torch import Tensor

import abslrp


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def carried(
    ruleset: str, function: Callable[..., Tensor], *inputs: Tensor, **options: Any
) -> tuple[list[Tensor], Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    maps, R = [], torch.empty(0)
    for leaf in leaves:
        with abslrp.propagate(ruleset, **options) as p:
            out = function(*leaves)
        R = randn(*out.shape, seed=99)
        maps.append(p.relevance(out, leaf, R))
    return maps, R


W, B = randn(5, 4, seed=1), randn(5, seed=2)
LINEAR: dict[str, Callable[..., Tensor]] = {
    "lrp-epsilon": lambda w, x, b, R: lrp.epsilon(w, x, b, R, eps=1e-6),
    "lrp-alpha1beta0": lambda w, x, b, R: lrp.alpha_beta(w, x, b, R, alpha=1, beta=0),
    "lrp-alpha2beta1": lambda w, x, b, R: lrp.alpha_beta(w, x, b, R, alpha=2, beta=1),
    "lrp-gamma": lambda w, x, b, R: lrp.gamma(w, x, b, R, gamma=0.25),
    "rap": lambda w, x, b, R: lrp.rap(w, x, b, R),
    "attnlrp": lambda w, x, b, R: lrp.epsilon(w, x, b, R, eps=1e-6),
}


@pytest.mark.parametrize("bias", [B, None], ids=["bias", "bare"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str, bias: Tensor | None) -> None:
    x = randn(3, 4)
    (r,), R = carried(name, lambda v: F.linear(v, W, bias), x)
    for n in range(3):
        torch.testing.assert_close(r[n], LINEAR[name](W, x[n], bias, R[n]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", LINEAR)
def test_convolution(name: str) -> None:
    w, b, x = randn(3, 2, 3, 3, seed=1), randn(3, seed=2), randn(2, 2, 4, 4)
    (r,), R = carried(name, lambda v: F.conv2d(v, w, b, padding=1), x)
    matrix = rules.jacobian(lambda v: F.conv2d(v.unsqueeze(0), w, padding=1).squeeze(0), x[0])
    spread = b.reshape(-1, 1, 1).expand(3, 4, 4).flatten()
    for n in range(2):
        wanted = LINEAR[name](matrix, x[n].flatten(), spread, R[n].flatten())
        torch.testing.assert_close(r[n].flatten(), wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", LINEAR)
def test_sums_are_linear_layers_of_ones(name: str) -> None:
    a, b = randn(1, 4), randn(1, 4, seed=1)
    maps, R = carried(name, lambda u, v: u + v, a, b)
    eye = torch.eye(4, dtype=torch.float64)
    rule = LINEAR["lrp-epsilon" if name == "lrp-gamma" else name]
    wanted = rule(torch.cat([eye, eye], 1), torch.cat([a[0], b[0]]), None, R[0])
    torch.testing.assert_close(torch.cat([m[0] for m in maps]), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["lrp-epsilon", "lrp-alpha1beta0", "lrp-alpha2beta1"])
def test_batch_norm_is_one_affine_step(name: str) -> None:
    m, v, w, b = randn(4, seed=3), randn(4, seed=4).abs() + 0.5, randn(4, seed=5), randn(4, seed=6)
    x = randn(2, 4)
    (r,), R = carried(name, lambda t: F.batch_norm(t, m, v, w, b), x)
    gain = w / (v + 1e-5).sqrt()
    for n in range(2):
        torch.testing.assert_close(
            r[n], LINEAR[name](torch.diag(gain), x[n], b - m * gain, R[n]), rtol=1e-8, atol=1e-10
        )


def test_attnlrp_softmax_and_products() -> None:
    x = randn(2, 3, 5)
    (r,), R = carried("attnlrp", lambda v: v.softmax(-1), x)
    for n in range(2):
        torch.testing.assert_close(r[n], lrp.attnlrp_softmax(x[n], -1, R[n]))
    a, b = randn(2, 3, 4), randn(2, 4, 2, seed=1)
    maps, R = carried("attnlrp", lambda u, v: u @ v, a, b, eps=1e-9)
    for n in range(2):
        for mine, its in zip(maps, lrp.attnlrp_product(torch.matmul, a[n], b[n], R[n]), strict=True):
            torch.testing.assert_close(mine[n], its, rtol=1e-9, atol=1e-11)
    (r,), R = carried("attnlrp", lambda v: F.layer_norm(v, (5,)), x)
    torch.testing.assert_close(r, lrp.attnlrp_norm(R))
    (r,), R = carried("attnlrp", F.gelu, x)
    torch.testing.assert_close(r, R)


def test_relative_epsilon() -> None:
    x = randn(1, 4)
    (r,), R = carried("lrp-epsilon", lambda v: F.linear(v, W, B), x, relative=True, eps=0.1)
    torch.testing.assert_close(r[0], lrp.epsilon(W, x[0], B, R[0], eps=0.1, relative=True))


@pytest.mark.parametrize(("hidden", "wanted", "alpha_beta"), rules.TOY_NETWORKS)
def test_the_papers_toy_networks_under_alpha1beta0(hidden: Any, wanted: Any, alpha_beta: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 1, bias=False)
    ).eval()
    model[0].weight.data, model[2].weight.data = torch.tensor(hidden), torch.ones(1, 2)
    r = abslrp.explain(model, torch.ones(1, 2), targets=0, method="lrp-alpha1beta0").maps
    torch.testing.assert_close(r / r.sum(), torch.tensor([alpha_beta]))


def test_contrastive_wrappers() -> None:
    """cLRP and cRAP: two passes, each over its own L1 norm, subtracted, positive part."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).double().eval()
    x = randn(2, 6)
    w = [layer.weight.detach() for layer in (model[0], model[2])]
    b = [layer.bias.detach() for layer in (model[0], model[2])]
    for name, rule in (("clrp", LINEAR["lrp-alpha1beta0"]), ("crap", LINEAR["rap"])):
        a = abslrp.explain(model, x, targets=2, method=name)
        for n in range(2):
            h = F.relu(F.linear(x[n], w[0], b[0]))
            maps = []
            for start in rules.two_pass(2, 4):
                r = rule(w[1], h, b[1], start)
                r = torch.where(F.linear(x[n], w[0], b[0]) > 0, r, 0.0)
                if name == "crap":
                    r = lrp.surplus_spread(r, r)
                maps.append(rule(w[0], x[n], b[0], r))
            torch.testing.assert_close(
                a.maps[n].double(), rules.two_pass_map(*maps, positive=True), rtol=1e-5, atol=1e-7
            )


def test_rollout_last_attention_and_tibav_against_their_definitions() -> None:
    from tests.contract.test_methods import X, model_of

    model = model_of("transformer").double()
    x = X.double()
    recorded: list[Tensor] = []
    with abslrp.propagate("gradient", measure=False) as p:
        leaf = x.clone().requires_grad_()
        out = model(leaf)
    recorded = [a.reshape(3, 2, 17, 17) for a in p.attentions]
    assert len(recorded) == 2
    up = lambda row: F.interpolate(row.reshape(1, 1, 4, 4), size=(16, 16), mode="bilinear")[0, 0]  # noqa: E731
    for n in range(3):
        matrices = [a[n].detach() for a in recorded]
        roll = lrp.cls_row(lrp.rollout(matrices))
        torch.testing.assert_close(
            abslrp.explain(model, x, method="rollout").maps[n, 0].double(), up(roll), rtol=1e-5, atol=1e-7
        )
        last = lrp.cls_row(lrp.last_attention(matrices[-1]))
        torch.testing.assert_close(
            abslrp.explain(model, x, method="last-layer-attention").maps[n, 0].double(), up(last), rtol=1e-5, atol=1e-7
        )
    tibav = abslrp.explain(model, x, targets=1, method="tibav").maps
    gradients = torch.autograd.grad(out[:, 1].sum(), p.attentions)
    relevances = []
    for matrix_number in range(2):
        with abslrp.propagate("tibav", measure=False) as ruled:
            leaf = x.clone().requires_grad_()
            out = model(leaf)
        relevances.append(ruled.relevance(out, ruled.attentions[matrix_number], "target", targets=1))
    for n in range(3):
        chained = lrp.tibav(
            [g.reshape(3, 2, 17, 17)[n] for g in gradients], [r.reshape(3, 2, 17, 17)[n] for r in relevances]
        )
        torch.testing.assert_close(tibav[n, 0].double(), up(lrp.cls_row(chained)), rtol=1e-5, atol=1e-7)


def test_alpha2_does_not_double_at_average_pooling() -> None:
    """After a ReLU an average has no negative contributions; α = 2 would hand out twice the relevance."""
    x = randn(2, 3, 4, 4)
    (r,), R = carried("lrp-alpha2beta1", lambda v: F.adaptive_avg_pool2d(F.relu(v), 1), x)
    torch.testing.assert_close(r.sum((1, 2, 3)), R.sum((1, 2, 3)), rtol=1e-6, atol=1e-8)


def test_relative_epsilon_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    ).eval()
    x = torch.randn(3, 3, 8, 8) * torch.tensor([1.0, 10.0, 100.0]).reshape(3, 1, 1, 1)
    whole = abslrp.explain(model, x, 1, "lrp-epsilon", relative=True, eps=0.1).maps
    for k in range(3):
        alone = abslrp.explain(model, x[k : k + 1], 1, "lrp-epsilon", relative=True, eps=0.1).maps[0]
        torch.testing.assert_close(whole[k], alone, rtol=0, atol=1e-5 * float(alone.abs().max()))
