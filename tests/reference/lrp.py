"""Other relevance rules for one sample, in float64, on explicit weight matrices.

Weights are (outputs, inputs) as in torch.nn.Linear; x, bias and R are flat. z[i, j] = x_i w_ij is the contribution of
input i to output j, (.)^+ and (.)^- the positive and negative parts (the latter is negative), sign(0) = +1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .rules import Bilinear, double, jacobian, sign


def contributions(weight: Tensor, x: Tensor) -> Tensor:
    """z_ij = x_i w_ij as an (inputs, outputs) matrix."""
    weight, x = double(weight), double(x)
    outputs, inputs = weight.shape
    z = torch.zeros(inputs, outputs, dtype=torch.float64)
    for i in range(inputs):
        for j in range(outputs):
            z[i, j] = x[i] * weight[j, i]
    return z


def bias_of(bias: Tensor | None, outputs: int) -> Tensor:
    """The bias, or zeros."""
    return torch.zeros(outputs, dtype=torch.float64) if bias is None else double(bias)


def stabilised(values: Tensor, eps: float | Tensor) -> Tensor:
    """values + eps sign(values)."""
    return values + eps * sign(values)


def epsilon(
    weight: Tensor, x: Tensor, bias: Tensor | None, R: Tensor, *, eps: float = 1e-6, relative: bool = False
) -> Tensor:
    """LRP-epsilon: r_i = sum_j x_i w_ij / (h_j + eps sign(h_j)) R_j, the bias being part of h.

    relative: eps times the root mean square of the sample's h.
    """
    z = contributions(weight, x)
    h = z.sum(dim=0) + bias_of(bias, z.shape[1])
    size = h.square().mean().sqrt() if relative else 1.0
    return z / stabilised(h, eps * size) @ double(R)


def alpha_beta(
    weight: Tensor,
    x: Tensor,
    bias: Tensor | None,
    R: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 1.0,
    eps: float = 1e-9,
) -> Tensor:
    """LRP-alpha-beta: each part over its own sum with its own clamped bias.

    r_i = sum_j ( alpha z_ij^+ / (sum_k z_kj^+ + b_j^+ + eps) - beta z_ij^- / (sum_k z_kj^- + b_j^- - eps) ) R_j
    """
    if alpha - beta != 1:
        raise ValueError(f"alpha - beta must be 1, not {alpha} - {beta}")
    z = contributions(weight, x)
    b = bias_of(bias, z.shape[1])
    positive, negative = z.clamp(min=0), z.clamp(max=0)
    M_positive = positive / (positive.sum(dim=0) + b.clamp(min=0) + eps)
    M_negative = negative / (negative.sum(dim=0) + b.clamp(max=0) - eps)
    return (alpha * M_positive - beta * M_negative) @ double(R)


def gamma(
    weight: Tensor, x: Tensor, bias: Tensor | None, R: Tensor, *, gamma: float = 0.25, eps: float = 1e-6
) -> Tensor:
    """LRP-gamma, generalised to inputs of both signs: what agrees with h is strengthened.

    h_j > 0:  zg_ij = z_ij + gamma z_ij^+,   bg_j = b_j + gamma b_j^+
    h_j < 0:  zg_ij = z_ij + gamma z_ij^-,   bg_j = b_j + gamma b_j^-
    r_i = sum_j zg_ij / (hg_j + eps sign(hg_j)) R_j,   hg_j = sum_k zg_kj + bg_j;   outputs with h_j = 0 pass nothing on
    Where x >= 0 and h > 0 this is the weight w + gamma w^+.
    """
    z, R = contributions(weight, x), double(R)
    inputs, outputs = z.shape
    b = bias_of(bias, outputs)
    r = torch.zeros(inputs, dtype=torch.float64)
    for j in range(outputs):
        h = z[:, j].sum() + b[j]
        if h > 0:
            column, offset = z[:, j] + gamma * z[:, j].clamp(min=0), b[j] + gamma * b[j].clamp(min=0)
        elif h < 0:
            column, offset = z[:, j] + gamma * z[:, j].clamp(max=0), b[j] + gamma * b[j].clamp(max=0)
        else:
            continue
        r += column / stabilised(column.sum() + offset, eps) * R[j]
    return r


def surplus_spread(r: Tensor, R: Tensor) -> Tensor:
    """Psi of RAP: r minus (sum r - sum R) / (number of non-zero r), at the non-zero r; nothing if all are zero."""
    r = double(r)
    alive = r != 0
    if not alive.any():
        return r
    return r - alive * (r.sum() - double(R).sum()) / alive.sum()


def rap(
    weight: Tensor,
    x: Tensor,
    bias: Tensor | None,
    R: Tensor,
    *,
    beta: str = "signed",
    shift: bool = True,
) -> Tensor:
    """RAP as in the paper's equation, then Psi.

    r_i = sum_j ( alpha_j z_ij^+ / sum_k z_kj^+ + beta_j z_ij^- / sum_k z_kj^- ) R_j
    alpha_j = sum_k z_kj^+ / sum_k |z_kj|,   beta_j = sum_k z_kj^- / sum_k |z_kj|
    signed: beta as written, negative, so that the bracket is z_ij / sum_k |z_kj|
    absolute: |beta|, so that it is |z_ij| / sum_k |z_kj|
    The bias is the input x_0 = 1: it is in the sums over k,
    its own relevance left to Psi. A part of sum 0 passes nothing on.
    """
    z, R = contributions(weight, x), double(R)
    inputs, outputs = z.shape
    b = bias_of(bias, outputs)
    r = torch.zeros(inputs, dtype=torch.float64)
    for j in range(outputs):
        positive, negative = z[:, j].clamp(min=0), z[:, j].clamp(max=0)
        sum_positive = positive.sum() + b[j].clamp(min=0)
        sum_negative = negative.sum() + b[j].clamp(max=0)
        size = sum_positive + sum_negative.abs()
        if sum_positive > 0:
            alpha_j = sum_positive / size
            r += alpha_j * positive / sum_positive * R[j]
        if sum_negative < 0:
            beta_j = {"signed": sum_negative, "absolute": sum_negative.abs()}[beta] / size
            r += beta_j * negative / sum_negative * R[j]
    return surplus_spread(r, R) if shift else r


# ---------------------------------------------------------------------------------------------------------------------
# Attention matrices: (heads, tokens, tokens), rows attend to columns, blocks listed from first to last


def chain(blocks: Sequence[Tensor]) -> Tensor:
    """A_B ... A_2 A_1 of (tokens, tokens) matrices listed from the first block to the last."""
    result = torch.eye(blocks[0].shape[0], dtype=torch.float64)
    for block in blocks:
        result = double(block) @ result
    return result


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """Rollout: the chain of I + mean over heads of A."""
    tokens = attentions[0].shape[-1]
    return chain([torch.eye(tokens, dtype=torch.float64) + double(A).mean(dim=0) for A in attentions])


def tibav(gradients: Sequence[Tensor], relevances: Sequence[Tensor]) -> Tensor:
    """TIBAV: the chain of I + mean over heads of (gradient * relevance)^+, rows not normalised."""
    tokens = gradients[0].shape[-1]
    blocks = []
    for gradient, relevance in zip(gradients, relevances, strict=True):
        positive = (double(gradient) * double(relevance)).clamp(min=0)
        blocks.append(torch.eye(tokens, dtype=torch.float64) + positive.mean(dim=0))
    return chain(blocks)


def cls_row(matrix: Tensor, *, cls: int = 0, tokens_only: bool = True) -> Tensor:
    """The row of the CLS token, without its own column."""
    row = double(matrix)[cls]
    return torch.cat([row[:cls], row[cls + 1 :]]) if tokens_only else row


def last_attention(attention: Tensor) -> Tensor:
    """Mean over heads of the last block's attention."""
    return double(attention).mean(dim=0)


# ---------------------------------------------------------------------------------------------------------------------
# AttnLRP (Achtibat et al. 2024)


def attnlrp_softmax(x: Tensor, dim: int, R: Tensor) -> Tensor:
    """AttnLRP's softmax rule: r_i = x_i (R_i - s_i sum_j R_j) along dim; 0 where x is -inf."""
    lines, relevances = double(x).movedim(dim, -1), double(R).movedim(dim, -1)
    r = torch.zeros_like(lines)
    flat_lines, flat_R, flat_r = (t.reshape(-1, lines.shape[-1]) for t in (lines, relevances, r))
    for line, relevance, result in zip(flat_lines, flat_R, flat_r, strict=True):
        if torch.isneginf(line).all():  # a row that is masked out entirely
            continue
        s = torch.softmax(line, dim=0)
        for i in range(len(line)):
            if not torch.isneginf(line[i]):
                result[i] = line[i] * (relevance[i] - s[i] * relevance.sum())
    return flat_r.reshape(lines.shape).movedim(-1, dim)


def attnlrp_product(function: Bilinear, a: Tensor, b: Tensor, R: Tensor, *, eps: float = 1e-9) -> tuple[Tensor, Tensor]:
    """AttnLRP's bilinear rule, the epsilon rule for each input with the other as weight, halved.

    r_a_i = sum_j a_i w_ij(b) / (2 h_j + eps sign(h_j)) R_j,   and the same for b with w(a)
    """
    a, b, R = double(a), double(b), double(R)
    h = double(function(a, b)).flatten()
    w_a, w_b = jacobian(lambda u: function(u, b), a).T, jacobian(lambda u: function(a, u), b).T
    s = R.flatten() / stabilised(2 * h, eps)
    return (a.flatten() * (w_a @ s)).reshape(a.shape), (b.flatten() * (w_b @ s)).reshape(b.shape)


def attnlrp_norm(R: Tensor) -> Tensor:
    """AttnLRP's rule for normalisations: the identity, r = R."""
    return double(R).clone()
