"""The absLRP rules for one sample, in float64, from explicit transport matrices.

Every operation is turned into one matrix M per input, M[i, j] being the share of output j's relevance that goes to
input i; `carry` applies the matrices and keeps the mass. Letters: x inputs, h outputs, R relevance of the outputs, r
relevance of an input, sigma the sign of h with sign(0) = +1, (.)^+ the positive part. Tensors are flattened row by row
where they meet a matrix. Nothing here knows abslrp, batches or speed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Linear = Callable[[Tensor], Tensor]
Bilinear = Callable[[Tensor, Tensor], Tensor]

CONTRIBUTIONS = ("positive", "agreeing")
CONSERVE = ("none", "sign", "joint", "each")
WHICH = ("all", "values", "queries-keys")

EPS = 1e-9
MASKED = 1e-30

TOY_INPUT = (1.0, 1.0)
TOY_OUTPUT_WEIGHTS = (1.0, 1.0)
TOY_NETWORKS = (
    # hidden weights, absLRP map, alpha1-beta0 map
    (((2.0, -1.0), (-1.0, 2.0)), (0.5, 0.5), (0.5, 0.5)),
    (((2.0, -1.0), (-5.0, 6.0)), (0.25, 0.75), (0.5, 0.5)),
    (((2.0, -1.0), (-17.0, 18.0)), (0.1, 0.9), (0.5, 0.5)),
)


def double(value: Any) -> Tensor:
    """A detached float64 tensor of any tensor, number or nested sequence."""
    return torch.as_tensor(value, dtype=torch.float64).detach()


def sign(h: Tensor) -> Tensor:
    """sigma: +1 where h >= 0, -1 where h < 0."""
    return torch.where(h >= 0, 1.0, -1.0).to(torch.float64)


def jacobian(function: Linear, x: Tensor) -> Tensor:
    """The (outputs, inputs) matrix of a linear map: column i is function(e_i)."""
    x = double(x)
    columns = []
    for i in range(x.numel()):
        unit = torch.zeros(x.numel(), dtype=torch.float64)
        unit[i] = 1.0
        columns.append(double(function(unit.reshape(x.shape))).flatten())
    return torch.stack(columns, dim=1)


# ---------------------------------------------------------------------------------------------------------------------
# Conservation


def carry(transports: Sequence[Tensor], R: Tensor, conserve: str) -> list[Tensor]:
    """Apply the (inputs, outputs) matrices of all inputs of one operation to R and keep the mass; flat results.

    none:   r = M R
    sign:   r = M (k+ R+ + k- R-),   k+- = sum_j |R+-_j| / sum_ij |M_ij| |R+-_j|   (i over the elements of all inputs)
    joint:  r = k M R,               k   = sum_j |R_j|   / sum_ij |M_ij| |R_j|
    each:   r = M R / sum |M R|      for every input by itself
    Where a denominator is 0 the share is lost.
    """
    R = double(R).flatten()

    def factor(part: Tensor) -> float:
        before = part.abs().sum().item()
        after = sum((M.abs() @ part.abs()).sum().item() for M in transports)
        return before / after if after > 0 else 0.0

    if conserve == "sign":
        positive, negative = R.clamp(min=0), R.clamp(max=0)
        R = factor(positive) * positive + factor(negative) * negative
    elif conserve == "joint":
        R = factor(R) * R
    elif conserve not in ("none", "each"):
        raise ValueError(f"conserve={conserve!r}")

    results = [M @ R for M in transports]
    if conserve == "each":
        norms = [r.abs().sum() for r in results]
        results = [r / norm if norm > 0 else torch.zeros_like(r) for r, norm in zip(results, norms, strict=True)]
    return results


def transport(contribution: Tensor, h: Tensor, contributions: str, eps: float) -> Tensor:
    """M from the (inputs, outputs) matrix z of contributions to the flat outputs h.

    positive:  M_ij = (z_ij)^+ / (|h_j| + eps)
    agreeing:  M_ij = (z_ij sigma_j)^+ / (|h_j| + eps)
    """
    h = h.flatten()
    if contributions == "agreeing":
        contribution = contribution * sign(h)
    elif contributions != "positive":
        raise ValueError(f"contributions={contributions!r}")
    return contribution.clamp(min=0) / (h.abs() + eps)


# ---------------------------------------------------------------------------------------------------------------------
# Operations


def affine(
    function: Linear,
    x: Tensor,
    bias: Tensor | float | None,
    R: Tensor,
    *,
    contributions: str = "positive",
    eps: float = EPS,
    conserve: str = "none",
) -> Tensor:
    """Relevance of x in h = function(x) + bias, function being linear without a bias; `bias` broadcasts to h.

    r_i = sum_j (x_i w_ij)^+ / (|h_j| + eps) R_j
    """
    x = double(x)
    w = jacobian(function, x).T  # (inputs, outputs)
    h = double(function(x))
    if bias is not None:
        h = h + double(bias)
    M = transport(x.reshape(-1, 1) * w, h, contributions, eps)
    return carry([M], R, conserve)[0].reshape(x.shape)


def product(
    function: Bilinear,
    a: Tensor,
    b: Tensor,
    R: Tensor,
    *,
    contributions: str = "positive",
    eps: float = EPS,
    conserve: str = "none",
) -> tuple[Tensor, Tensor]:
    """Relevances of a and b in h = function(a, b), bilinear; for each input the other is held as the weight.

    r_a_i = sum_j (a_i w_ij(b))^+ / (|h_j| + eps) R_j,   and the same for b with w(a)
    """
    a, b = double(a), double(b)
    h = double(function(a, b))
    w_a = jacobian(lambda u: function(u, b), a).T
    w_b = jacobian(lambda u: function(a, u), b).T
    M_a = transport(a.reshape(-1, 1) * w_a, h, contributions, eps)
    M_b = transport(b.reshape(-1, 1) * w_b, h, contributions, eps)
    r_a, r_b = carry([M_a, M_b], R, conserve)
    return r_a.reshape(a.shape), r_b.reshape(b.shape)


def total(
    terms: Sequence[Tensor],
    signs: Sequence[float],
    R: Tensor,
    *,
    constants: Tensor | float = 0.0,
    contributions: str = "positive",
    eps: float = EPS,
    conserve: str = "none",
) -> list[Tensor]:
    """Relevances of the terms of h = sum_k sign_k t_k + constants; a broadcast term gets the sum over its places.

    r_k = (sign_k t_k)^+ / (|h| + eps) R
    """
    terms = [double(term) for term in terms]
    h = double(constants)
    for term, factor in zip(terms, signs, strict=True):
        h = h + factor * term
    transports = []
    for term, factor in zip(terms, signs, strict=True):
        places = jacobian(lambda u: u.broadcast_to(h.shape), term).T  # (inputs, outputs), 1 where the element went
        transports.append(transport(factor * term.reshape(-1, 1) * places, h, contributions, eps))
    return [r.reshape(term.shape) for r, term in zip(carry(transports, R, conserve), terms, strict=True)]


def derivative(f: Callable[[Tensor], Tensor], value: float) -> float:
    """f'(value) of a scalar function."""
    point = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(f(point), point)
    return slope.item()


def smooth(
    f: Callable[[Tensor], Tensor],
    x: Tensor,
    R: Tensor,
    *,
    contributions: str = "positive",
    eps: float = EPS,
    conserve: str = "none",
) -> Tensor:
    """Relevance of x in h = f(x), f being smooth and elementwise.

    r = 1/2 [ |x| f'(|x|) + x f'(x) ] / (|h| + eps) R,   agreeing: the second summand times sigma
    """
    x = double(x)
    h = double(f(x)).flatten()
    shares = []
    for value, output in zip(x.flatten().tolist(), h.tolist(), strict=True):
        sigma = 1.0 if contributions == "positive" or output >= 0 else -1.0
        share = abs(value) * derivative(f, abs(value)) + value * derivative(f, value) * sigma
        shares.append(0.5 * share / (abs(output) + eps))
    M = torch.diag(double(shares))
    return carry([M], R, conserve)[0].reshape(x.shape)


def softmax(
    x: Tensor,
    dim: int,
    R: Tensor,
    *,
    contributions: str = "positive",
    eps: float = EPS,
    conserve: str = "none",
) -> Tensor:
    """Relevance of x in h = exp(x - m) / S along dim, maximum m and sum S held constant.

    r = 1/2 (x h + |x| ha) / (|h| + eps) R,   ha = exp(|x| - ma) / Sa with its own constants
    Entries with h < 1e-30 are masked out: not in ma and Sa, and r = 0. As h > 0, `contributions` makes no difference.
    """
    del contributions
    x = double(x)
    lines = x.movedim(dim, -1)
    shares = torch.zeros_like(lines)
    for place in itertools.product(*(range(n) for n in lines.shape[:-1])):
        line = lines[place].tolist()
        m = max(line)
        if m == float("-inf"):  # a row that is masked out entirely
            continue
        weights = double([value - m for value in line]).exp()
        h = (weights / weights.sum()).tolist()
        alive = [i for i in range(len(line)) if h[i] >= MASKED]
        ma = max(abs(line[i]) for i in alive)
        weights_a = {i: double(abs(line[i]) - ma).exp().item() for i in alive}
        Sa = sum(weights_a.values())
        for i in alive:
            ha = weights_a[i] / Sa
            shares[place][i] = 0.5 * (line[i] * h[i] + abs(line[i]) * ha) / (h[i] + eps)
    M = torch.diag(shares.movedim(-1, dim).flatten())
    return carry([M], R, conserve)[0].reshape(x.shape)


def gate(active: Tensor, R: Tensor, *, conserve: str = "none") -> Tensor:
    """R where the unit is active, 0 where it is not.

    active is x > 0 for ReLU, LeakyReLU, PReLU and ReLU6, x > min for Hardtanh and clamp.
    """
    M = torch.diag(double(active).flatten())
    return carry([M], R, conserve)[0].reshape(active.shape)


def norm(
    x: Tensor,
    mean: Tensor | float | None,
    std: Tensor | float,
    weight: Tensor | float | None,
    bias: Tensor | float | None,
    R: Tensor,
    *,
    contributions: str = "positive",
    eps: float = EPS,
    conserve: str = "none",
) -> Tensor:
    """Relevance of x in a norm with constant statistics: two elementwise affine steps, each conserved by itself.

    last step:   h = xhat w + b,            contribution xhat w   (left out without weight and bias)
    first step:  xhat = (x - mean) / std,   contribution x / std  (RMS norm, mean None: a scaling, identity on R)
    """
    x, std, R = double(x), double(std), double(R)
    xhat = (x if mean is None else x - double(mean)) / std
    r = R
    if weight is not None or bias is not None:
        contribution = xhat * (1.0 if weight is None else double(weight))
        h = contribution + (0.0 if bias is None else double(bias))
        r = elementwise(contribution, h, r, contributions=contributions, eps=eps, conserve=conserve)
    if mean is not None:
        r = elementwise(x / std, xhat, r, contributions=contributions, eps=eps, conserve=conserve)
    return r.reshape(x.shape)


def elementwise(contribution: Tensor, h: Tensor, R: Tensor, *, contributions: str, eps: float, conserve: str) -> Tensor:
    """An affine step whose outputs have one input each: r_i = (z_i)^+ / (|h_i| + eps) R_i."""
    M = transport(torch.diag(contribution.flatten()), h, contributions, eps)
    return carry([M], R, conserve)[0].reshape(contribution.shape)


def scale(constant: Tensor | float, x: Tensor, R: Tensor, *, conserve: str = "none") -> Tensor:
    """Relevance of x in h = constant * x: R where the constant is not 0, summed over the places a broadcast x went."""
    x, constant = double(x), double(constant)
    shape = (constant * x).shape
    places = jacobian(lambda u: u.broadcast_to(shape), x).T
    M = places * (constant != 0).broadcast_to(shape).flatten()
    return carry([M], R, conserve)[0].reshape(x.shape)


def max_winner(
    x: Tensor,
    windows: Sequence[Sequence[int]],
    R: Tensor,
    *,
    pooling: str = "winner",
    conserve: str = "none",
) -> Tensor:
    """Relevance of x in h_j = max of x over window j, a list of indices into flat x; R has one entry per window.

    winner:    R_j goes to the first maximum of window j
    weighted:  |x_winner| R_j does
    """
    x = double(x)
    values = x.flatten().tolist()
    M = torch.zeros(len(values), len(windows), dtype=torch.float64)
    for j, window in enumerate(windows):
        winner = window[0]
        for i in window:
            if values[i] > values[winner]:
                winner = i
        M[winner, j] = {"winner": 1.0, "weighted": abs(values[winner])}[pooling]
    return carry([M], R, conserve)[0].reshape(x.shape)


def windows_2d(
    shape: tuple[int, int, int], kernel: int, stride: int, padding: int = 0, dilation: int = 1
) -> list[list[int]]:
    """The windows of a 2d pooling over (channel, height, width) as flat indices, in the order of the flat output.

    Padding belongs to no window.
    """
    channels, height, width = shape
    reach = dilation * (kernel - 1) + 1
    tops = range(-padding, height + padding - reach + 1, stride)
    lefts = range(-padding, width + padding - reach + 1, stride)
    windows = []
    for channel, top, left in itertools.product(range(channels), tops, lefts):
        window = []
        for u, v in itertools.product(range(kernel), range(kernel)):
            row, column = top + u * dilation, left + v * dilation
            if 0 <= row < height and 0 <= column < width:
                window.append((channel * height + row) * width + column)
        windows.append(window)
    return windows


# ---------------------------------------------------------------------------------------------------------------------
# Starts


def contrastive(target: int, n: int) -> Tensor:
    """1 at the target, -1/N at every other class."""
    return double([1.0 if c == target else -1.0 / n for c in range(n)])


def two_pass(target: int, n: int) -> tuple[Tensor, Tensor]:
    """The two starts: the one-hot target, and 1/(N-1) on the others."""
    return (
        double([1.0 if c == target else 0.0 for c in range(n)]),
        double([0.0 if c == target else 1.0 / (n - 1) for c in range(n)]),
    )


def two_pass_map(of_target: Tensor, of_others: Tensor, *, positive: bool = False) -> Tensor:
    """A/|A|_1 - B/|B|_1 of the maps of the two starts; cLRP and cRAP keep the positive part. A zero map stays zero."""
    difference = torch.zeros_like(double(of_target))
    for factor, values in ((1.0, double(of_target)), (-1.0, double(of_others))):
        if values.abs().sum() > 0:
            difference += factor * values / values.abs().sum()
    return difference.clamp(min=0) if positive else difference


# ---------------------------------------------------------------------------------------------------------------------
# Compositions


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale_factor: float,
    mask: Tensor | None,
    R: Tensor,
    which: str = "all",
    *,
    contributions: str = "positive",
    eps: float = EPS,
    conserve: str = "none",
    mask_step: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Relevances of q, k, v (heads, tokens, features) in softmax(scale q k^T + mask) v, each step conserved by itself.

    q scale: identity;  (q scale) @ k^T: product;  + mask: total with a constant;  softmax;  a @ v: product
    values: a is a constant, so that q and k get 0.  queries-keys: v is a constant and gets 0.
    A boolean mask is True where attention is allowed: the constant 0 there and -inf elsewhere.
    `mask_step=False` takes the mask into the forward pass but gives it no step of its own.
    """
    q, k, v = double(q), double(k), double(v)
    options: dict[str, Any] = {"contributions": contributions, "eps": eps, "conserve": conserve}

    def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-1, -2)

    scaled = scale_factor * q
    products = scores_of(scaled, k)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, float("-inf"))
    scores = products if mask is None else products + double(mask)
    a = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # a row that is masked out entirely attends to nothing

    r_q, r_k, r_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if which == "values":
        return r_q, r_k, affine(lambda u: a @ u, v, None, R, **options)
    if which == "queries-keys":
        r_a = affine(lambda u: u @ v, a, None, R, **options)
    elif which == "all":
        r_a, r_v = product(torch.matmul, a, v, R, **options)
    else:
        raise ValueError(f"which={which!r}")
    r = softmax(scores, -1, r_a, **options)
    if mask is not None and mask_step:
        (r,) = total([products], [1.0], r, constants=mask, **options)
    r_q, r_k = product(scores_of, scaled, k, r, **options)
    return scale(scale_factor, q, r_q), r_k, r_v


def alpha1beta0(function: Linear, x: Tensor, bias: Tensor | float | None, R: Tensor, *, eps: float = EPS) -> Tensor:
    """LRP-alpha1-beta0 in h = function(x) + bias, the rule that the toy networks tell from absLRP.

    r_i = sum_j (x_i w_ij)^+ / (sum_k (x_k w_kj)^+ + b_j^+ + eps) R_j
    """
    x, R = double(x), double(R)
    positive = (x.reshape(-1, 1) * jacobian(function, x).T).clamp(min=0)  # (inputs, outputs)
    bias = double(0.0 if bias is None else bias).broadcast_to(R.shape).flatten()
    return (positive / (positive.sum(dim=0) + bias.clamp(min=0) + eps) @ R.flatten()).reshape(x.shape)


def mlp(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    x: Tensor,
    R: Tensor,
    *,
    rule: Callable[..., Tensor] = affine,
    **options: Any,
) -> Tensor:
    """Relevance of x in a network of linear layers with a ReLU between each two; weights are (outputs, inputs).

    `rule` is `affine` or `alpha1beta0`, with its options.
    """
    weights = [double(weight) for weight in weights]
    inputs, before_relu = [double(x)], []
    for weight, bias in zip(weights, biases, strict=True):
        h = weight @ inputs[-1] + (0.0 if bias is None else double(bias))
        before_relu.append(h)
        inputs.append(h.clamp(min=0))
    r = double(R)
    for layer in reversed(range(len(weights))):
        if layer < len(weights) - 1:
            r = gate(before_relu[layer] > 0, r)
        weight = weights[layer]
        r = rule(lambda u, weight=weight: weight @ u, inputs[layer], biases[layer], r, **options)
    return r


def toy(hidden: Sequence[Sequence[float]], *, rule: Callable[..., Tensor] = affine, **options: Any) -> Tensor:
    """The L1-normalised map of one of the paper's toy networks: x = [1, 1], these hidden weights, output weights 1."""
    r = mlp(
        [double(hidden), double([TOY_OUTPUT_WEIGHTS])],
        [None, None],
        double(TOY_INPUT),
        double([1.0]),
        rule=rule,
        **options,
    )
    return r / r.abs().sum()
