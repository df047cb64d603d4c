"""The metrics for one image, in float64, by explicit loops.

Images and maps are (channel, height, width) tensors. `forward` takes (1, C, H, W) and gives (1, N) logits, `explain`
takes an image and a target and gives its map. Letters: A a map, x an image, o the target's logit, (.)^+ the positive
part. "Flat" is row-major over all axes; every tie is won by the lower flat index. Nothing here knows abslrp, batches
or speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor

Forward = Callable[[Tensor], Tensor]
Explain = Callable[[Tensor, int], Tensor]
Box = tuple[float, float, float, float]

SCHEDULES = ("incremental", "authors")
MODES = ("morf", "lerf")
TILES = ("antialias", "nearest")

DIRECT, DIAGONAL = 1 / 6, 1 / 12
NEIGHBOURS = (
    # row offset, column offset, weight
    (-1, -1, DIAGONAL),
    (-1, 0, DIRECT),
    (-1, 1, DIAGONAL),
    (0, -1, DIRECT),
    (0, 1, DIRECT),
    (1, -1, DIAGONAL),
    (1, 0, DIRECT),
    (1, 1, DIAGONAL),
)


def double(value: Any) -> Tensor:
    """A detached float64 tensor of any tensor, number or nested sequence."""
    return torch.as_tensor(value, dtype=torch.float64).detach()


def flat(value: Any) -> list[float]:
    """The elements in row-major order."""
    return double(value).flatten().tolist()


def all_finite(value: Any) -> bool:
    """Whether no element is infinite or nan."""
    return all(math.isfinite(v) for v in flat(value))


def l1(value: Any) -> float:
    """sum_i |a_i|."""
    return sum(abs(v) for v in flat(value))


def l2(value: Any) -> float:
    """sqrt(sum_i a_i^2)."""
    return math.sqrt(sum(v * v for v in flat(value)))


def choose(name: str, allowed: Sequence[str]) -> str:
    """The name itself, if it is allowed: a misspelt option must not silently mean the other one."""
    if name not in allowed:
        raise ValueError(f"{name!r} is none of {', '.join(allowed)}")
    return name


def order(values: Sequence[float], largest: bool) -> list[int]:
    """The indices from the largest (smallest) value on, ties by the lower index first."""
    return sorted(range(len(values)), key=lambda i: (-values[i] if largest else values[i], i))


# ---------------------------------------------------------------------------------------------------------------------
# Maps


def positive(map: Tensor) -> Tensor:
    """The positive part over its maximum, zeros if there is none or if any element is not finite.

    A = map^+ / max(map^+)
    """
    values = flat(map)
    largest = max(values)
    if not all_finite(map) or largest <= 0:
        return torch.zeros(map.shape, dtype=torch.float64)
    return double([max(v, 0.0) / largest for v in values]).reshape(map.shape)


def pixels(map: Tensor) -> Tensor:
    """The (H, W) sum over channels, zeros if any element is not finite.

    P_ij = sum_c map_cij
    """
    channels, height, width = map.shape
    result = torch.zeros(height, width, dtype=torch.float64)
    if all_finite(map):
        for i in range(height):
            for j in range(width):
                result[i, j] = sum(map[c, i, j].item() for c in range(channels))
    return result


def similarity(a: Tensor, b: Tensor) -> float:
    """How alike two maps are, 1 if both are zero.

    1 - ||a - b||_1 / (||a||_1 + ||b||_1)
    """
    total = l1(a) + l1(b)
    return 1.0 if total == 0 else 1.0 - l1(double(a) - double(b)) / total


# ---------------------------------------------------------------------------------------------------------------------
# GAE: local consistency


def output(forward: Forward, x: Tensor, target: int) -> float:
    """o, the target's logit."""
    return forward(double(x)[None])[0, target].item()


def impact_scores(forward: Forward, x: Tensor, target: int) -> Tensor:
    """What masking each feature would change, to first order.

    |x * d|o|/dx|
    """
    leaf = double(x).clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(forward(leaf[None])[0, target].abs(), leaf)
    return (double(x) * gradient).abs()


def choose_incremental(scores: list[float], masked: set[int], total: int, largest: bool) -> list[int]:
    """The unmasked features with the largest (smallest) scores, as many as make `total` masked ones."""
    free = [i for i in order(scores, largest) if i not in masked]
    return free[: total - len(masked)]


def choose_authors(scores: list[float], masked: set[int], total: int, largest: bool) -> list[int]:
    """The `total` features with the largest (smallest) scores of all, a masked one being below every other."""
    ranked = order(scores, largest)
    free, gone = [i for i in ranked if i not in masked], [i for i in ranked if i in masked]
    return (free + gone if largest else gone + free)[:total]


def masked_states(
    forward: Forward, x: Tensor, target: int, T: int, schedule: str, mode: str
) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """The masked images x_1..x_n, the scores each was chosen by (those of the image before it) and their outputs o_t.

    x_t = x_{t-1} with S_t set to 0,   S_t chosen by |x_{t-1} * d|o_{t-1}|/dx_{t-1}|
    incremental, t = 1..T:   S_t of the features not yet masked, so that round(t n / T) are masked after step t
    authors, t = 1..T-1:     S_t = the first round(t n / T) of all features
    """
    incremental, largest = choose(schedule, SCHEDULES) == "incremental", choose(mode, MODES) == "morf"
    current, masked, n = double(x).clone(), set[int](), x.numel()
    states, maps, outputs = [], [], []
    for t in range(1, T + 1 if incremental else T):
        scores = impact_scores(forward, current, target)
        chooser = choose_incremental if incremental else choose_authors
        masked.update(chooser(flat(scores), masked, round(t * n / T), largest))
        values = [0.0 if i in masked else v for i, v in enumerate(flat(x))]
        current = double(values).reshape(x.shape)
        states.append(current)
        maps.append(scores)
        outputs.append(output(forward, current, target))
    return states, maps, outputs


def cumulative_impact(maps: Iterable[Tensor], shape: Sequence[int]) -> Tensor:
    """The mean of the step maps, each over its L1 norm; a zero map is left out, so that both modes weigh the same.

    I = 1/n sum_t m_t / ||m_t||_1   over the n maps that are not zero
    """
    result = torch.zeros(*shape, dtype=torch.float64)
    count = 0
    for step in maps:
        norm = l1(step)
        if norm > 0:
            result += step / norm
            count += 1
    return result / max(count, 1)


def robustness(output_difference: Sequence[float], similarity_difference: Sequence[float]) -> float:
    """How far the two difference curves agree, 0 if both are zero.

    LC_R = 1 - 2 ||d^o - d^A||_1 / (||d^o||_1 + ||d^A||_1)
    """
    apart = sum(abs(o - a) for o, a in zip(output_difference, similarity_difference, strict=True))
    total = l1(output_difference) + l1(similarity_difference)
    return 0.0 if total == 0 else 1.0 - 2.0 * apart / total


def faithfulness(map: Tensor, impact: Tensor) -> float:
    """The share of relevance on features of high impact less that on features of low impact, with sign(0) = 0.

    LC_F = sum A sign(I) / ||A||_1
    """
    total = 0.0
    for a, i in zip(flat(map), flat(impact), strict=True):
        if i > 0:
            total += a
        elif i < 0:
            total -= a
    return total / l1(map)


def local_consistency(
    forward: Forward, explain: Explain, x: Tensor, target: int, T: int, schedule: str
) -> dict[str, Any]:
    """All that GAE's local consistency is made of; the curves begin with the unmasked image.

    o_t = o(x_t) / |o(x_0)|,   d^o = o^Le - o^Mo,   d^A = sim^Le - sim^Mo,   I = I^Le - I^Mo
    LC = ((LC_R + LC_F) / 2)^+,   all three 0 where the initial map is empty
    """
    initial = output(forward, x, target)
    if initial == 0:
        raise ValueError("an initial logit of 0 cannot normalise the others")
    A = positive(explain(double(x), target))
    result: dict[str, Any] = {}
    for mode in MODES:
        states, maps, outputs = masked_states(forward, x, target, T, schedule, mode)
        result[f"outputs_{mode}"] = [o / abs(initial) for o in [initial, *outputs]]
        result[f"similarity_{mode}"] = [1.0] + [similarity(A, positive(explain(s, target))) for s in states]
        result[f"impact_{mode}"] = cumulative_impact(maps, x.shape)
    for name, curve in (("output_difference", "outputs"), ("similarity_difference", "similarity")):
        pairs = zip(result[f"{curve}_lerf"], result[f"{curve}_morf"], strict=True)
        result[name] = [lerf - morf for lerf, morf in pairs]
    result["impact"] = result["impact_lerf"] - result["impact_morf"]
    empty = l1(A) == 0
    result["LC_R"] = 0.0 if empty else robustness(result["output_difference"], result["similarity_difference"])
    result["LC_F"] = 0.0 if empty else faithfulness(A, result["impact"])
    result["LC"] = max(0.0, (result["LC_R"] + result["LC_F"]) / 2)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Mosaics: GAE's contrastiveness, and Focus


def quadrants(height: int, width: int) -> list[tuple[range, range]]:
    """Rows and columns of the top-left, top-right, bottom-left and bottom-right quadrant; the odd line goes last."""
    rows = (range(height // 2), range(height // 2, height))
    columns = (range(width // 2), range(width // 2, width))
    return [(r, c) for r in rows for c in columns]


def shrink(image: Tensor, height: int, width: int, how: str) -> Tensor:
    """The image at another size.

    nearest:  small_ij = image[floor(i H / height), floor(j W / width)]
    """
    if choose(how, TILES) == "antialias":
        size = (height, width)
        return F.interpolate(double(image)[None], size=size, mode="bilinear", align_corners=False, antialias=True)[0]
    channels, H, W = image.shape
    result = torch.zeros(channels, height, width, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            # Whole numbers: a float32 scale may land just below the index it means.
            result[:, i, j] = image[:, i * H // height, j * W // width]
    return result


def mosaic(tiles: Sequence[Tensor], how: str) -> Tensor:
    """Four images at half size, laid out row by row in one image of the same shape."""
    channels, height, width = tiles[0].shape
    result = torch.zeros(channels, height, width, dtype=torch.float64)
    for tile, (rows, columns) in zip(tiles, quadrants(height, width), strict=True):
        small = shrink(tile, len(rows), len(columns), how)
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                result[:, row, column] = small[:, i, j]
    return result


def score_map(shape: Sequence[int], position: int, classes: Sequence[int], probabilities: Any) -> Tensor:
    """What relevance is worth in each quadrant, `position` being the positive one.

    S = 1 in quadrant p,   2 s[c_i] / s[c_p] - 1 in quadrant i,   s the softmax of the positive image's own logits
    """
    s = flat(probabilities)
    result = torch.zeros(*shape, dtype=torch.float64)
    for i, (rows, columns) in enumerate(quadrants(shape[1], shape[2])):
        value = 1.0 if i == position else 2.0 * s[classes[i]] / s[classes[position]] - 1.0
        for row in rows:
            for column in columns:
                result[:, row, column] = value
    return result


def contrastiveness(map: Tensor, scores: Tensor) -> float:
    """The worth of the mosaic map's positive relevance, 0 for an empty map.

    C = (sum A S / ||A||_1)^+
    """
    A = positive(map)
    if l1(A) == 0:
        return 0.0
    total = sum(a * s for a, s in zip(flat(A), flat(scores), strict=True))
    return max(0.0, total / l1(A))


def focus(map: Tensor, positives: Sequence[int]) -> float:
    """The share of positive relevance in the listed quadrants, one half for an empty map.

    sum_{quadrants in positives} A / sum A
    """
    A = positive(map)
    if l1(A) == 0:
        return 0.5
    inside = 0.0
    for i, (rows, columns) in enumerate(quadrants(A.shape[1], A.shape[2])):
        if i in positives:
            inside += sum(l1(A[:, row, column]) for row in rows for column in columns)
    return inside / l1(A)


# ---------------------------------------------------------------------------------------------------------------------
# ROAD


def neighbours(i: int, j: int, height: int, width: int) -> list[tuple[int, int, float]]:
    """Row, column and weight of the up to eight neighbours that lie in the image."""
    around = [(i + di, j + dj, weight) for di, dj, weight in NEIGHBOURS]
    return [(row, column, weight) for row, column, weight in around if 0 <= row < height and 0 <= column < width]


def impute(x: Tensor, removed: Tensor) -> Tensor:
    """Every removed pixel as the weighted mean of its neighbours, solved for all of them at once.

    sum_j w_ij x_i = sum_j w_ij x_j   for i removed, j over the neighbours in the image
    """
    channels, height, width = x.shape
    result = double(x).clone()
    unknown = [(i, j) for i in range(height) for j in range(width) if removed[i, j]]
    if not unknown:
        return result
    if len(unknown) == height * width:
        # Any constant solves the equations then; zeros are the smallest.
        return torch.zeros_like(result)
    number = {pixel: k for k, pixel in enumerate(unknown)}
    matrix, right = lil_matrix((len(unknown), len(unknown)), dtype=np.float64), np.zeros((len(unknown), channels))
    for (i, j), k in number.items():
        for row, column, weight in neighbours(i, j, height, width):
            matrix[k, k] += weight
            if (row, column) in number:
                matrix[k, number[row, column]] -= weight
            else:
                right[k] += weight * double(x)[:, row, column].numpy()
    for c in range(channels):
        solution = spsolve(matrix.tocsc(), right[:, c])
        for (i, j), k in number.items():
            result[c, i, j] = solution[k]
    return result


def top_pixels(pixel_map: Tensor, k: int, largest: bool) -> Tensor:
    """The (H, W) mask of exactly the k largest (smallest) pixels."""
    chosen = set(order(flat(pixel_map), largest)[:k])
    return torch.tensor([i in chosen for i in range(pixel_map.numel())]).reshape(pixel_map.shape)


def road(
    forward: Forward,
    x: Tensor,
    target: int,
    map: Tensor,
    percentages: Sequence[float],
    largest: bool,
    noises: Sequence[Tensor],
) -> list[bool]:
    """Whether the target is still the prediction at each percentage; the score is the mean.

    hit_i = [argmax f(impute(x, M_i) + M_i noise_i) = target],   M_i the first round(p_i / 100 H W) pixels
    """
    hits = []
    for percentage, noise in zip(percentages, noises, strict=True):
        k = round(percentage / 100 * x.shape[1] * x.shape[2])
        removed = top_pixels(pixels(map), k, largest)
        imputed = impute(x, removed)
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                if removed[i, j]:
                    imputed[:, i, j] += noise[:, i, j]
        logits = flat(forward(imputed[None])[0])
        hits.append(order(logits, largest=True)[0] == target)
    return hits


# ---------------------------------------------------------------------------------------------------------------------
# Local Lipschitz estimate


def unit_pixels(map: Tensor) -> Tensor:
    """The pixel map over its own largest magnitude, zeros if it is zero or not finite.

    P / max |P|
    """
    P = pixels(map)
    largest = max(abs(v) for v in flat(P))
    return P if largest == 0 else double([v / largest for v in flat(P)]).reshape(P.shape)


def lipschitz(explain: Explain, x: Tensor, target: int, noises: Sequence[Tensor]) -> float:
    """The strongest change of the normalised pixel map for the change of the image, over (non-zero) noises.

    max_n ||A(x) - A(x + n)||_2 / ||n||_2
    """
    before = unit_pixels(explain(double(x), target))
    ratios = []
    for noise in noises:
        after = unit_pixels(explain(double(x) + double(noise), target))
        ratios.append(l2(before - after) / l2(noise))
    return max(ratios)


# ---------------------------------------------------------------------------------------------------------------------
# AOPC and ABPC


def regions(height: int, width: int, size: int) -> list[tuple[range, range]]:
    """Rows and columns of the full size x size squares from the top-left corner, row by row."""
    rows = [range(top, top + size) for top in range(0, height - size + 1, size)]
    columns = [range(left, left + size) for left in range(0, width - size + 1, size)]
    return [(r, c) for r in rows for c in columns]


def perturbation_curve(
    forward: Forward, x: Tensor, target: int, map: Tensor, noise: Tensor, L: int, region: int, largest: bool
) -> list[float]:
    """The target's logit f_0..f_L with the first k regions replaced by noise; L is at most the number of regions.

    f_k = f(x with regions 1..k from noise),   ordered by sum_{c, ij in region} map_cij
    """
    squares = regions(x.shape[1], x.shape[2], region)
    P = pixels(map)
    relevances = [sum(P[i, j].item() for i in rows for j in columns) for rows, columns in squares]
    current = double(x).clone()
    curve = [output(forward, current, target)]
    for chosen in order(relevances, largest)[:L]:
        rows, columns = squares[chosen]
        for i in rows:
            for j in columns:
                current[:, i, j] = noise[:, i, j]
        curve.append(output(forward, current, target))
    return curve


def aopc(curve: Sequence[float]) -> float:
    """The area over the perturbation curve.

    1 / (L + 1) sum_{k=0..L} (f_0 - f_k)
    """
    return sum(curve[0] - f for f in curve) / len(curve)


def abpc(lerf: Sequence[float], morf: Sequence[float]) -> float:
    """The area between the perturbation curves.

    1 / (L + 1) sum_{k=0..L} (f^Le_k - f^Mo_k)
    """
    return sum(le - mo for le, mo in zip(lerf, morf, strict=True)) / len(lerf)


# ---------------------------------------------------------------------------------------------------------------------
# Boxes


def in_boxes(i: int, j: int, boxes: Sequence[Box]) -> bool:
    """Whether pixel (i, j) lies in any box.

    x0 <= j < x1 and y0 <= i < y1
    """
    return any(x0 <= j < x1 and y0 <= i < y1 for x0, y0, x1, y1 in boxes)


def pointing(map: Tensor, boxes: Sequence[Box]) -> float:
    """The share of the maximal pixels that lie in any box; a map without a positive pixel counts as constant.

    |{argmax P} in boxes| / |{argmax P}|
    """
    P = pixels(map)
    highest = max(flat(P))
    every = [(i, j) for i in range(P.shape[0]) for j in range(P.shape[1])]
    maximal = [(i, j) for i, j in every if highest <= 0 or P[i, j].item() == highest]
    return sum(in_boxes(i, j, boxes) for i, j in maximal) / len(maximal)


def box_mass(map: Tensor, boxes: Sequence[Box]) -> float:
    """The share of positive relevance in the union of the boxes; an empty map counts as constant.

    sum_{c, ij in boxes} A_cij / sum A
    """
    A = positive(map)
    if l1(A) == 0:
        A = torch.ones_like(A)
    inside = 0.0
    for i in range(A.shape[1]):
        for j in range(A.shape[2]):
            if in_boxes(i, j, boxes):
                inside += l1(A[:, i, j])
    return inside / l1(A)
