"""The references on cases small enough to compute by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from . import lrp, rules

CONTRIBUTIONS, CONSERVE = rules.CONTRIBUTIONS, rules.CONSERVE
INF = float("inf")


def close(actual: Tensor, expected: object) -> None:
    torch.testing.assert_close(actual, rules.double(expected), rtol=1e-6, atol=1e-7)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def signed_mass(*tensors: Tensor) -> tuple[float, float]:
    return sum(t.clamp(min=0).sum().item() for t in tensors), sum(t.clamp(max=0).sum().item() for t in tensors)


# h = [3 - 2 + 1, -1 + 2 + b]
WEIGHT = rules.double([[3, 1], [-1, -1]])
X = rules.double([1, -2])


def linear(u: Tensor) -> Tensor:
    return WEIGHT @ u


# ---------------------------------------------------------------------------------------------------------------------
# rules.py


def test_jacobian_of_a_matrix_and_of_a_convolution() -> None:
    close(rules.jacobian(linear, X), WEIGHT)
    kernel = rules.double([[[2.0, 5.0]]])
    close(rules.jacobian(lambda u: F.conv1d(u, kernel), torch.zeros(1, 3)), [[2, 5, 0], [0, 2, 5]])


def test_affine_by_hand() -> None:
    R = rules.double([4, 3])
    close(rules.affine(linear, X, rules.double([1, 0]), R), [6, 6])
    close(rules.affine(linear, X, rules.double([1, -3]), R), [6, 3])
    close(rules.affine(linear, X, rules.double([1, -3]), R, contributions="agreeing"), [7.5, 0])


def test_affine_conservation_by_hand() -> None:
    bias, R = rules.double([1, 0]), rules.double([4, -3])
    close(rules.affine(linear, X, bias, R, conserve="none"), [6, -6])
    close(rules.affine(linear, X, bias, R, conserve="sign"), [4, -3])
    close(rules.affine(linear, X, bias, R, conserve="joint"), [3.5, -3.5])
    close(rules.affine(linear, X, bias, R, conserve="each"), [0.5, -0.5])


@pytest.mark.parametrize("contributions", CONTRIBUTIONS)
def test_affine_is_the_closed_form(contributions: str) -> None:
    weight, x, bias, R = random(4, 6), random(6, seed=1), random(4, seed=2), random(4, seed=3)
    h = weight @ x + bias
    s = R / (h.abs() + 1e-9)
    if contributions == "positive":
        expected = x.clamp(min=0) * (weight.clamp(min=0).T @ s) + x.clamp(max=0) * (weight.clamp(max=0).T @ s)
    else:
        expected = 0.5 * (x.abs() * (weight.abs().T @ s) + x * (weight.T @ (h.sign() * s)))
    close(rules.affine(lambda u: weight @ u, x, bias, R, contributions=contributions), expected)


def test_the_papers_listing_is_twice_the_equation() -> None:
    weight, x, R = random(4, 6), random(6, seed=1), random(4, seed=3)
    x.requires_grad_()
    h = weight @ x
    both = h + weight.abs() @ x.abs()
    (gradient,) = torch.autograd.grad(both, x, (R / (h.abs() + 1e-9)).detach())
    close(2 * rules.affine(lambda u: weight @ u, x, None, R), (gradient * x).detach())


def test_sign_of_zero_is_positive() -> None:
    minus = rules.double([[1, -1]])
    r = rules.affine(
        lambda u: minus @ u, rules.double([2, 2]), None, rules.double([1]), contributions="agreeing", eps=1
    )
    close(r, [2, 0])


def test_a_share_without_takers_is_lost() -> None:
    negative = rules.double([[-1.0], [2.0]])
    for conserve in ("sign", "joint", "each"):
        r = rules.affine(lambda u: negative @ u, rules.double([1]), None, rules.double([5, 0]), conserve=conserve)
        close(r, [0])
    # the negative relevance sits where nothing is positive: only it is lost
    r = rules.affine(lambda u: negative @ u, rules.double([1]), None, rules.double([-5, 3]), conserve="sign")
    close(r, [3])


def test_product_by_hand() -> None:
    r_a, r_b = rules.product(torch.mul, rules.double([2, -3]), rules.double([5, 1]), rules.double([7, 11]))
    close(r_a, [7, 0])
    close(r_b, [7, 0])
    r_a, r_b = rules.product(
        torch.mul, rules.double([2, -3]), rules.double([5, 1]), rules.double([7, 11]), contributions="agreeing"
    )
    close(r_a, [7, 11])
    close(r_b, [7, 11])
    # [1, -2] @ [3, 1]^T = 1 with contributions 3 and -2
    row, column = rules.double([[1, -2]]), rules.double([[3], [1]])
    r_a, r_b = rules.product(torch.matmul, row, column, rules.double([[2]]))
    close(r_a, [[6, 0]])
    close(r_b, [[6], [0]])
    r_a, r_b = rules.product(torch.matmul, row, column, rules.double([[2]]), conserve="sign")
    close(r_a, [[1, 0]])
    close(r_b, [[1], [0]])


def test_total_by_hand() -> None:
    a, b, R = rules.double([1, -4]), rules.double([3, 2]), rules.double([2, 6])
    r_a, r_b = rules.total([a, b], [1, 1], R)
    close(r_a, [0.5, 0])
    close(r_b, [1.5, 6])
    r_a, r_b = rules.total([a, b], [1, 1], R, contributions="agreeing")
    close(r_a, [0.5, 12])
    close(r_b, [1.5, 0])
    # a - b = [-2, -6]
    r_a, r_b = rules.total([a, b], [1, -1], R)
    close(r_a, [1, 0])
    close(r_b, [0, 0])
    r_a, r_b = rules.total([a, b], [1, -1], R, contributions="agreeing")
    close(r_a, [0, 4])
    close(r_b, [3, 2])


def test_total_broadcasts_and_constants_leave_their_share() -> None:
    a, b = rules.double([[1, 2], [3, 4]]), rules.double([1])
    R = rules.double([[2, 3], [4, 5]])
    r_a, r_b = rules.total([a, b], [1, 1], R)
    close(r_a, [[1, 2], [3, 4]])
    close(r_b, [4])
    (r_a,) = rules.total([a], [1], R, constants=rules.double([1]))
    close(r_a, [[1, 2], [3, 4]])
    (r_a,) = rules.total([a], [1], R, constants=rules.double([1]), conserve="sign")
    close(r_a, [[1.4, 2.8], [4.2, 5.6]])


def test_smooth_by_hand() -> None:
    # f = exp: f' = f = h, so r = 1/2 (|x| e^|x| / e^x + x) R
    x, R = rules.double([1, -1, 0]), rules.double([2, 2, 2])
    close(rules.smooth(torch.exp, x, R), [2, math.e**2 - 1, 0])
    # f = tanh, odd with an even derivative: x > 0 and x < 0 share f', contributions cancel where x < 0
    slope = 1 - math.tanh(1) ** 2
    close(rules.smooth(torch.tanh, x, R), [2 * slope / math.tanh(1), 0, 0])
    close(rules.smooth(torch.tanh, x, R, contributions="agreeing"), [2 * slope / math.tanh(1)] * 2 + [0])


def test_smooth_is_the_papers_listing() -> None:
    x, R = random(7), random(7, seed=1)
    x.requires_grad_()
    h = F.gelu(x)
    (gradient,) = torch.autograd.grad(h + F.gelu(x.abs()), x, (R / (h.abs() + 1e-9)).detach())
    close(rules.smooth(F.gelu, x, R), (gradient * x / 2).detach())


def test_softmax_by_hand() -> None:
    # x >= 0: ha = h, hence r = x R
    close(rules.softmax(rules.double([1, 2, 0]), 0, rules.double([3, 4, 5])), [3, 8, 0])
    # x = [1, -1]: ha = [1/2, 1/2], h = [p, 1 - p]
    p = 1 / (1 + math.exp(-2))
    expected = [0.5 * (p + 0.5) / p, 0.5 * (-(1 - p) + 0.5) / (1 - p)]
    close(rules.softmax(rules.double([1, -1]), 0, rules.double([1, 1])), expected)
    both = rules.softmax(rules.double([[1, 2], [-1, 0]]), 0, rules.double([[1, 1], [1, 1]]))
    close(both, [[expected[0], 2], [expected[1], 0]])


def test_softmax_ignores_what_is_masked_out() -> None:
    R = rules.double([3, 4, 5])
    expected = rules.softmax(rules.double([-1, 2]), 0, R[:2])
    for masked in (-INF, -1e9):
        r = rules.softmax(rules.double([-1, 2, masked]), 0, R)
        close(r, [*expected.tolist(), 0])
    close(rules.softmax(rules.double([-INF, -INF]), 0, R[:2]), [0, 0])


def test_gate_scale_and_max_winner() -> None:
    x, R = rules.double([1, -1, 0]), rules.double([5, 6, 7])
    close(rules.gate(x > 0, R), [5, 0, 0])
    close(rules.gate(x > -1, R), [5, 0, 7])
    close(rules.scale(rules.double([2, 0, -3]), x, R), [5, 0, 7])
    close(rules.scale(rules.double([2, 0, -3]), rules.double([4]), R), [12])
    windows = [[0, 1], [1, 2], [2, 3]]
    x = rules.double([-3, -2, -2, -4])
    close(rules.max_winner(x, windows, R), [0, 11, 7, 0])
    close(rules.max_winner(x, windows, R, pooling="weighted"), [0, 22, 14, 0])


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(2, 2, 0, 1), (3, 2, 1, 1), (2, 1, 0, 2)])
def test_windows_give_torchs_pooling_and_its_gradient(kernel: int, stride: int, padding: int, dilation: int) -> None:
    x = random(2, 5, 4).round().requires_grad_()  # rounded: ties
    h = F.max_pool2d(x, kernel, stride, padding, dilation)
    windows = rules.windows_2d((2, 5, 4), kernel, stride, padding, dilation)
    close(torch.stack([x.detach().flatten()[window].max() for window in windows]), h.detach().flatten())
    R = random(*h.shape, seed=1)
    (gradient,) = torch.autograd.grad(h, x, R)
    close(rules.max_winner(x, windows, R), gradient)


def test_norm_by_hand() -> None:
    # xhat = [(3 - 1) / 2, (-3 - 1) / 2] = [1, -2]; h = xhat w + b = [4 + 1, 2 - 1]
    x, R = rules.double([3, -3]), rules.double([10, 6])
    weight, bias = rules.double([4, -1]), rules.double([1, -1])
    # last step: [4/5, 2/1] R = [8, 12]; first: x/std = [1.5, -1.5] over [1, 2]
    close(rules.norm(x, 1.0, 2.0, weight, bias, R), [12, 0])
    close(rules.norm(x, 1.0, 2.0, weight, bias, R, contributions="agreeing"), [12, 9])
    close(rules.norm(x, 1.0, 2.0, None, None, R), [15, 0])
    close(rules.norm(x, 1.0, 2.0, None, bias, R), rules.norm(x, 1.0, 2.0, 1.0, bias, R))
    # each step keeps the mass by itself: [8, 12] becomes [6.4, 9.6], and all of it goes to the first
    close(rules.norm(x, 1.0, 2.0, weight, bias, R, conserve="sign"), [16, 0])
    # RMS: the first step is the identity; xhat = [1.5, -1.5], h = [7, 0.5]
    close(rules.norm(x, None, 2.0, weight, bias, R), [60 / 7, 18])
    close(rules.norm(x, None, 2.0, None, None, R), R)


@pytest.mark.parametrize("contributions", CONTRIBUTIONS)
def test_conservation_sums(contributions: str) -> None:
    a, b, weight, bias = random(2, 3), random(3, 4, seed=1), random(8, 6, seed=2), random(8, seed=5)
    terms = [random(2, 4, seed=6), random(4, seed=7)]
    R_vector, R_matrix = random(8, seed=3), random(2, 4, seed=4)

    def operations(conserve: str) -> list[tuple[list[Tensor], Tensor]]:
        options: dict[str, Any] = {"contributions": contributions, "conserve": conserve}
        return [
            ([rules.affine(lambda u: weight @ u.flatten(), a, bias, R_vector, **options)], R_vector),
            (list(rules.product(torch.matmul, a, b, R_matrix, **options)), R_matrix),
            (rules.total(terms, [1, -1], R_matrix, **options), R_matrix),
        ]

    for parts, R in operations("sign"):
        assert sum(r.sum().item() for r in parts) == pytest.approx(R.sum().item())
    for parts, _ in operations("each"):
        for r in parts:
            assert r.abs().sum().item() == pytest.approx(1)


@pytest.mark.parametrize("conserve", ["sign", "joint"])
def test_conservation_of_one_sign(conserve: str) -> None:
    a, b, R = random(2, 3), random(3, 4, seed=1), random(2, 4, seed=2).abs()
    parts = rules.product(torch.matmul, a, b, R, conserve=conserve)
    assert signed_mass(*parts) == pytest.approx((R.sum().item(), 0))
    parts = rules.product(torch.matmul, a, b, -R, conserve=conserve)
    assert signed_mass(*parts) == pytest.approx((0, -R.sum().item()))


def test_starts() -> None:
    close(rules.contrastive(1, 4), [-0.25, 1, -0.25, -0.25])
    target, others = rules.two_pass(1, 4)
    close(target, [0, 1, 0, 0])
    close(others, [1 / 3, 0, 1 / 3, 1 / 3])
    close(rules.two_pass_map(rules.double([3, -1]), rules.double([1, 1])), [0.25, -0.75])
    close(rules.two_pass_map(rules.double([3, -1]), rules.double([1, 1]), positive=True), [0.25, 0])
    close(rules.two_pass_map(rules.double([3, -1]), rules.double([0, 0])), [0.75, -0.25])


def test_attention_with_one_key_is_the_value_alone() -> None:
    # one key: a = 1, so that out = v; q k^T = 2 and softmax hands on x R = 2 R
    q, k, v = rules.double([[[1, 1]]]), rules.double([[[3, 1]]]), rules.double([[[5, -7]]])
    R = rules.double([[[2, 3]]])
    _, _, r_v = rules.attention(q, k, v, 0.5, None, R)
    close(r_v, [[[2, 0]]])
    # r_a = 2 and, the score being (3 + 1)/2 = 2, softmax gives 2 * 2 = 4, in parts 3/4 and 1/4
    r_q, r_k, _ = rules.attention(q, k, v, 0.5, None, R)
    close(r_q, [[[3, 1]]])
    close(r_k, [[[3, 1]]])
    r_q, r_k, r_v = rules.attention(q, k, v, 0.5, None, R, "values", conserve="sign")
    close(r_q, [[[0, 0]]])
    close(r_k, [[[0, 0]]])
    close(r_v, [[[5, 0]]])
    r_q, r_k, r_v = rules.attention(q, k, v, 0.5, None, R, "queries-keys", conserve="sign")
    close(r_q, [[[1.875, 0.625]]])
    close(r_k, [[[1.875, 0.625]]])
    close(r_v, [[[0, 0]]])


@pytest.mark.parametrize("conserve", CONSERVE)
@pytest.mark.parametrize("which", rules.WHICH)
def test_attention_masks(which: str, conserve: str) -> None:
    q, k, v, R = random(2, 3, 4), random(2, 5, 4, seed=1), random(2, 5, 4, seed=2), random(2, 3, 4, seed=3)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[:, 3:] = False
    masked = rules.attention(q, k, v, 0.5, mask, R, which, conserve=conserve, mask_step=False)
    without = rules.attention(q, k[:, :3], v[:, :3], 0.5, None, R, which, conserve=conserve)
    close(masked[0], without[0])
    for part, expected in zip(masked[1:], without[1:], strict=True):
        close(part[:, :3], expected)
        close(part[:, 3:], torch.zeros_like(part[:, 3:]))
    additive = torch.zeros(3, 5, dtype=torch.float64).masked_fill(~mask, -INF)
    for one, other in zip(
        rules.attention(q, k, v, 0.5, mask, R, which, conserve=conserve),
        rules.attention(q, k, v, 0.5, additive, R, which, conserve=conserve),
        strict=True,
    ):
        assert one.isfinite().all()
        close(one, other)


@pytest.mark.parametrize("contributions", CONTRIBUTIONS)
def test_attention_heads_are_apart_and_the_mass_is_kept(contributions: str) -> None:
    q, k, v, R = random(2, 3, 4), random(2, 5, 4, seed=1), random(2, 5, 4, seed=2), random(2, 3, 4, seed=3).abs()
    together = rules.attention(q, k, v, 0.5, None, R, contributions=contributions)
    for head in range(2):
        one = slice(head, head + 1)
        alone = rules.attention(q[one], k[one], v[one], 0.5, None, R[one], contributions=contributions)
        for both, single in zip(together, alone, strict=True):
            close(both[one], single)
    parts = rules.attention(q, k, v, 0.5, None, R, "values", contributions=contributions, conserve="sign")
    assert sum(part.sum().item() for part in parts) == pytest.approx(R.sum().item())


@pytest.mark.parametrize(("hidden", "abslrp", "alpha1beta0"), rules.TOY_NETWORKS)
def test_the_papers_toy_networks(
    hidden: Sequence[Sequence[float]], abslrp: Sequence[float], alpha1beta0: Sequence[float]
) -> None:
    for conserve in CONSERVE:
        for contributions in CONTRIBUTIONS:
            close(rules.toy(hidden, conserve=conserve, contributions=contributions), abslrp)
    close(rules.toy(hidden, rule=rules.alpha1beta0), alpha1beta0)


def test_mlp_by_hand() -> None:
    # hidden before ReLU: [2 - 1 + 1, 1 - 3] = [2, -2]; only the first is active; out = 2 * 2 - 1 = 3
    weights, biases = (
        [rules.double([[2, -1], [1, -3]]), rules.double([[2, 5]])],
        [rules.double([1, 0]), rules.double([-1])],
    )
    # r_hidden = [4/3 * 3, 0] = [4, 0]; r = [2/2 * 4, 0]
    close(rules.mlp(weights, biases, rules.double([1, 1]), rules.double([3])), [4, 0])
    close(rules.mlp(weights, biases, rules.double([1, 1]), rules.double([3]), conserve="sign"), [3, 0])


# ---------------------------------------------------------------------------------------------------------------------
# lrp.py


def test_epsilon_by_hand() -> None:
    bias, R = rules.double([1, -3]), rules.double([4, 6])
    # h = [2, -2]
    close(lrp.epsilon(WEIGHT, X, bias, R, eps=0), [6 + 3, -4 - 6])
    weight = rules.double([[3, -1], [-1, 1]])
    # z = [[3, -1], [2, -2]], h = [5, -3], stabilised by 1 to 6 and -4
    close(lrp.epsilon(weight, X, None, rules.double([6, 4]), eps=1), [3 + 1, 2 + 2])
    root = math.sqrt(17)
    close(lrp.epsilon(weight, X, None, rules.double([5 + root, 3 + root]), eps=1, relative=True), [3 + 1, 2 + 2])


def test_alpha_beta_by_hand() -> None:
    # z = [[3, -1], [-2, 2]]
    bias, R = rules.double([1, -3]), rules.double([4, 6])
    # positive: 3/(3+1) 4 and 2/2 6; negative: -2/-2 4 and -1/(-1-3) 6
    close(lrp.alpha_beta(WEIGHT, X, bias, R, alpha=1, beta=0), [3, 6])
    close(lrp.alpha_beta(WEIGHT, X, bias, R), [2 * 3 - 1.5, 2 * 6 - 4])
    close(lrp.alpha_beta(WEIGHT, X, bias, R, alpha=1, beta=0), rules.alpha1beta0(linear, X, bias, R))
    with pytest.raises(ValueError, match="must be 1"):
        lrp.alpha_beta(WEIGHT, X, bias, R, alpha=1, beta=1)


def test_gamma_by_hand() -> None:
    bias, R = rules.double([1, -3]), rules.double([5, 7])
    # h = [2, -2]; gamma 1: column 0 is [6, -2] + 2 = 6, column 1 is [-2, 2] - 6 = -6
    close(lrp.gamma(WEIGHT, X, bias, R, gamma=1), [5 + 7 / 3, -5 / 3 - 7 / 3])
    close(lrp.gamma(WEIGHT, X, bias, R, gamma=0), lrp.epsilon(WEIGHT, X, bias, R))
    close(lrp.gamma(rules.double([[1, -1]]), rules.double([2, 2]), None, rules.double([1])), [0, 0])
    # inputs and outputs both positive: the weights w + gamma w^+
    weight, x = rules.double([[2, -1]]), rules.double([1, 1])
    close(
        lrp.gamma(weight, x, None, rules.double([4]), gamma=0.5),
        lrp.epsilon(rules.double([[3, -1]]), x, None, rules.double([4])),
    )


def test_rap_by_hand() -> None:
    # z = [[3, -1], [-2, 2]]: sums of sizes 5 and 3
    R = rules.double([10, 6])
    close(lrp.rap(WEIGHT, X, None, R, shift=False), [6 - 2, -4 + 4])
    close(lrp.rap(WEIGHT, X, None, R, beta="absolute", shift=False), [6 + 2, 4 + 4])
    # surplus 3 - 13 over two non-zero neurons
    close(lrp.rap(WEIGHT, X, None, rules.double([10, 3]), shift=False), [5, -2])
    close(lrp.rap(WEIGHT, X, None, rules.double([10, 3])), [5 + 5, -2 + 5])
    close(lrp.rap(WEIGHT, X, None, R, beta="absolute"), [8, 8])
    # with the bias as an input: sizes 10 and 6
    close(lrp.rap(WEIGHT, X, rules.double([5, -3]), R, shift=False), [3 - 1, -2 + 2])


def test_surplus_spread() -> None:
    close(lrp.surplus_spread(rules.double([4, 0, -1]), rules.double([5])), [5, 0, 0])
    close(lrp.surplus_spread(rules.double([0, 0]), rules.double([5])), [0, 0])


def test_rollout_and_tibav_by_hand() -> None:
    first = rules.double([[[0, 1], [1, 0]], [[0, 0], [0, 0]]])  # mean [[0, .5], [.5, 0]]
    second = rules.double([[[1, 0], [0, 0]], [[1, 0], [2, 0]]])  # mean [[1, 0], [1, 0]]
    # [[2, 0], [1, 1]] @ [[1, .5], [.5, 1]]
    close(lrp.rollout([first, second]), [[2, 1], [1.5, 1.5]])
    close(lrp.cls_row(lrp.rollout([first, second])), [1])
    close(lrp.cls_row(lrp.rollout([first, second]), tokens_only=False), [2, 1])
    close(lrp.tibav([first, -second], [torch.ones(2, 2, 2), -torch.ones(2, 2, 2)]), [[2, 1], [1.5, 1.5]])
    close(lrp.tibav([first, second], [torch.ones(2, 2, 2), -torch.ones(2, 2, 2)]), [[1, 0.5], [0.5, 1]])
    close(lrp.last_attention(second), [[1, 0], [1, 0]])


def test_attnlrp_by_hand() -> None:
    # s = [1/2, 1/2]
    close(lrp.attnlrp_softmax(rules.double([3, 3]), 0, rules.double([4, 2])), [3, -3])
    close(lrp.attnlrp_softmax(rules.double([[3], [3], [-INF]]), 0, rules.double([[4], [2], [0]])), [[3], [-3], [0]])
    x = random(2, 3, 4)
    R = random(2, 3, 4, seed=1)
    s = torch.softmax(x, 1)
    close(lrp.attnlrp_softmax(x, 1, R), x * (R - s * R.sum(1, keepdim=True)))
    row, column = rules.double([[1, -2]]), rules.double([[3], [1]])
    r_a, r_b = lrp.attnlrp_product(torch.matmul, row, column, rules.double([[2]]))
    close(r_a, [[3, -2]])
    close(r_b, [[3], [-2]])
    a, b, R = random(2, 3), random(3, 2, seed=1), random(2, 2, seed=2)
    parts = lrp.attnlrp_product(torch.matmul, a, b, R)
    assert sum(part.sum().item() for part in parts) == pytest.approx(R.sum().item())
    close(lrp.attnlrp_norm(R), R)
