"""The metric oracles on cases small enough to compute by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from . import metrics
from .metrics import double

NAN, INF = float("nan"), float("inf")


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(double(actual), double(expected), rtol=1e-12, atol=1e-12)


def row(*values: float) -> Tensor:
    """An image of one channel and one row."""
    return double([[values]])


def total(x: Tensor) -> Tensor:
    """One logit: the sum of the image."""
    return x.flatten(1).sum(dim=1, keepdim=True)


def itself(x: Tensor, target: int) -> Tensor:
    """Gradient times input of `total`."""
    return x


# ---------------------------------------------------------------------------------------------------------------------
# Maps


def test_positive() -> None:
    close(metrics.positive(row(-1, 2, 4)), row(0, 0.5, 1))
    close(metrics.positive(row(-1, -2)), row(0, 0))
    for bad in (NAN, INF, -INF):
        close(metrics.positive(row(1, bad)), row(0, 0))


def test_pixels_sum_the_channels() -> None:
    close(metrics.pixels(double([[[1, 2]], [[3, -5]]])), [[4, -3]])
    close(metrics.pixels(double([[[1, 2]], [[3, NAN]]])), [[0, 0]])


def test_similarity() -> None:
    close(metrics.similarity(row(1, 0.5), row(0.5, 0)), 0.5)
    assert metrics.similarity(row(1, 0), row(0, 1)) == 0
    assert metrics.similarity(row(0, 0), row(0, 0)) == 1
    assert metrics.similarity(row(1, 0), row(0, 0)) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Masking: o = x0 x1 + x2 + x3 at (2, 3, 4, 1) has the scores (6, 6, 4, 1); without x0 they are (0, 0, 4, 1).

X = row(2, 3, 4, 1)


def product(x: Tensor) -> Tensor:
    a, b, c, d = x.flatten(1).unbind(1)
    return torch.stack([torch.zeros_like(a), a * b + c + d], dim=1)


@pytest.mark.parametrize(
    "schedule, mode, states, scores, outputs",
    [
        (
            "incremental",
            "morf",
            [(0, 3, 4, 1), (0, 3, 0, 1), (0, 3, 0, 0), (0, 0, 0, 0)],
            [(6, 6, 4, 1), (0, 0, 4, 1), (0, 0, 0, 1), (0, 0, 0, 0)],
            [5, 1, 0, 0],
        ),
        (
            "incremental",
            "lerf",
            [(2, 3, 4, 0), (2, 3, 0, 0), (0, 3, 0, 0), (0, 0, 0, 0)],
            [(6, 6, 4, 1), (6, 6, 4, 0), (6, 6, 0, 0), (0, 0, 0, 0)],
            [10, 6, 0, 0],
        ),
        (
            "authors",
            "morf",
            [(0, 3, 4, 1), (0, 3, 0, 0), (0, 0, 0, 0)],
            [(6, 6, 4, 1), (0, 0, 4, 1), (0, 0, 0, 0)],
            [5, 0, 0],
        ),
        (
            "authors",
            "lerf",
            [(2, 3, 4, 0), (2, 3, 0, 0), (0, 3, 0, 0)],
            [(6, 6, 4, 1), (6, 6, 4, 0), (6, 6, 0, 0)],
            [10, 6, 0],
        ),
    ],
)
def test_masked_states_by_hand(schedule: str, mode: str, states: list, scores: list, outputs: list) -> None:
    actual = metrics.masked_states(product, X, 1, 4, schedule, mode)
    close(torch.stack(actual[0]), [[[s]] for s in states])
    close(torch.stack(actual[1]), [[[s]] for s in scores])
    close(actual[2], outputs)


def test_scores_are_magnitudes_and_vanish_with_the_output() -> None:
    close(metrics.impact_scores(total, row(2, -3), 0), row(2, 3))
    # d|o|/do = 0 at o = 0
    close(metrics.impact_scores(total, row(3, -3), 0), row(0, 0))


def test_a_zero_of_the_image_is_not_a_masked_feature() -> None:
    # Both score 0 here: feature 0 is a zero of the image, feature 1 is masked.
    assert metrics.choose_authors([0.0, 0.0, 5.0], {1}, 1, largest=False) == [1]
    assert metrics.choose_authors([0.0, 0.0, 5.0], {1}, 2, largest=False) == [1, 0]
    assert metrics.choose_authors([0.0, 0.0, 5.0], {1}, 2, largest=True) == [2, 0]
    assert metrics.choose_incremental([0.0, 0.0, 5.0], {1}, 2, largest=False) == [0]


@pytest.mark.parametrize(
    "n, T, schedule, mode, counts",
    [
        (10, 10, "incremental", "morf", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (10, 10, "incremental", "lerf", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (10, 10, "authors", "morf", [1, 3, 6, 10, 10, 10, 10, 10, 10]),
        (10, 10, "authors", "lerf", [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        # 5/2 rounds to the even 2; 7/4, 14/4, 21/4 to 2, 4, 5
        (5, 2, "incremental", "morf", [2, 5]),
        (7, 4, "incremental", "lerf", [2, 4, 5, 7]),
    ],
)
def test_how_many_are_masked(n: int, T: int, schedule: str, mode: str, counts: list[int]) -> None:
    states, _, _ = metrics.masked_states(total, row(*range(1, n + 1)), 0, T, schedule, mode)
    assert [int((s == 0).sum()) for s in states] == counts


def test_misspelt_options_raise() -> None:
    for schedule, mode in (("author", "morf"), ("authors", "MoRF")):
        with pytest.raises(ValueError, match="is none of"):
            metrics.masked_states(total, X, 0, 2, schedule, mode)
    with pytest.raises(ValueError, match="is none of"):
        metrics.mosaic([X] * 4, "bilinear")


# ---------------------------------------------------------------------------------------------------------------------
# Local consistency of o = x0 + x1 at (3, 1) with A = (1, 1/3): MoRF goes by (0, 1), LeRF by (3, 0), both end at 0.


def test_local_consistency_by_hand() -> None:
    got = metrics.local_consistency(total, itself, row(3, 1), 0, 2, "incremental")
    expected = {
        "outputs_morf": [1, 1 / 4, 0],
        "outputs_lerf": [1, 3 / 4, 0],
        "similarity_morf": [1, 2 / 7, 0],
        "similarity_lerf": [1, 6 / 7, 0],
        "output_difference": [0, 1 / 2, 0],
        "similarity_difference": [0, 4 / 7, 0],
        "impact_morf": row(0.375, 0.625),
        "impact_lerf": row(0.875, 0.125),
        "impact": row(0.5, -0.5),
        "LC_R": 13 / 15,
        "LC_F": 1 / 2,
        "LC": 41 / 60,
    }
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        close(got[name], value)


def test_local_consistency_of_the_authors_schedule() -> None:
    # One step only, whose two impact maps are one: sign(0) = 0.
    got = metrics.local_consistency(total, itself, row(3, 1), 0, 2, "authors")
    close(got["outputs_morf"], [1, 1 / 4])
    close(got["impact_lerf"], row(0.75, 0.25))
    close([got["LC_R"], got["LC_F"], got["LC"]], [13 / 15, 0, 13 / 30])


def test_a_negative_initial_logit_keeps_its_sign() -> None:
    got = metrics.local_consistency(lambda x: -total(x), itself, row(3, 1), 0, 2, "incremental")
    close(got["outputs_morf"], [-1, -1 / 4, 0])
    close(got["similarity_morf"], [1, 2 / 7, 0])
    close([got["LC_R"], got["LC_F"], got["LC"]], [-1, 1 / 2, 0])


def test_an_empty_initial_map_scores_nothing() -> None:
    got = metrics.local_consistency(total, lambda x, target: -x, row(3, 1), 0, 2, "incremental")
    assert (got["LC_R"], got["LC_F"], got["LC"]) == (0, 0, 0)
    # Empty maps equal each other, so the curves stay.
    close(got["similarity_morf"], [1, 1, 1])
    close(got["outputs_morf"], [1, 1 / 4, 0])


def test_flat_curves_and_zero_step_maps_score_nothing() -> None:
    got = metrics.local_consistency(
        lambda x: 5 + 0 * total(x), lambda x, target: torch.ones_like(x), row(3, 1), 0, 2, "incremental"
    )
    close(got["impact_morf"], row(0, 0))
    assert (got["LC_R"], got["LC_F"]) == (0, 0)


def test_an_initial_logit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="initial logit"):
        metrics.local_consistency(total, itself, row(1, -1), 0, 2, "incremental")


# ---------------------------------------------------------------------------------------------------------------------
# Mosaics


def test_mosaic_nearest_of_odd_sizes() -> None:
    # Upper and left tiles have one line (index 0), lower and right ones two (indices 0 and floor(3/2) = 1).
    grid = double([[[0, 1, 2], [10, 11, 12], [20, 21, 22]]])
    got = metrics.mosaic([grid, grid + 100, grid + 200, grid + 300], "nearest")
    close(got, [[[0, 100, 101], [200, 300, 301], [210, 310, 311]]])


def test_mosaic_antialiased() -> None:
    # A triangle as wide as two pixels each way: weights 3/7, 3/7, 1/7 at the border of four.
    tile = double([[[0] * 4, [0] * 4, [7] * 4, [0] * 4]])
    got = metrics.mosaic([tile, 2 * tile, 3 * tile, 4 * tile], "antialias")
    close(got, [[[1, 1, 2, 2], [3, 3, 6, 6], [3, 3, 4, 4], [9, 9, 12, 12]]])


def test_score_map() -> None:
    got = metrics.score_map((2, 3, 2), 2, [1, 0, 3, 3], [0.1, 0.2, 0.3, 0.4])
    close(got, [[[0, -0.5], [1, 1], [1, 1]]] * 2)


def test_contrastiveness() -> None:
    scores = double([[[1, -1], [0, -0.5]]])
    close(metrics.contrastiveness(double([[[3, 1], [2, 2]]]), scores), 1 / 8)
    # Negative relevance counts neither way, a negative sum is clamped, an empty map scores nothing.
    close(metrics.contrastiveness(double([[[3, -9], [1, 0]]]), scores), 3 / 4)
    assert metrics.contrastiveness(double([[[1, 9], [0, 0]]]), scores) == 0
    assert metrics.contrastiveness(double([[[-1, 0], [0, 0]]]), scores) == 0


def test_focus() -> None:
    map = double([[[1, 2, -7], [3, 4, 0], [0, 0, 6]]])
    close(metrics.focus(map, [0, 3]), 11 / 16)
    close(metrics.focus(map, [1, 2]), 5 / 16)
    assert metrics.focus(-map.abs(), [0, 1]) == 0.5
    assert metrics.focus(map / 0, [0, 1]) == 0.5


# ---------------------------------------------------------------------------------------------------------------------
# ROAD


def test_impute_one_pixel() -> None:
    x = double([[[0, 1, 2], [3, 99, 5], [6, 7, 80]]])
    centre = torch.zeros(3, 3, dtype=torch.bool)
    centre[1, 1] = True
    # direct (1 + 3 + 5 + 7) / 6 and diagonal (0 + 2 + 6 + 80) / 12
    got = metrics.impute(x, centre)
    close(got[0, 1, 1], 16 / 6 + 88 / 12)
    close(torch.where(centre, 0.0, got), torch.where(centre, 0.0, x))
    assert x[0, 1, 1] == 99
    # At a corner two direct neighbours and one diagonal remain: 2/5, 2/5, 1/5.
    corner = torch.tensor([[True, False], [False, False]])
    close(metrics.impute(double([[[9, 5], [10, 20]], [[9, 0], [0, 5]]]), corner)[:, 0, 0], [10, 1])


def test_impute_pixels_that_need_each_other() -> None:
    removed = torch.tensor([[False, True, True, False]])
    close(metrics.impute(row(0, 9, 9, 3), removed), row(0, 1, 2, 3))
    close(metrics.impute(row(5, 9, 9, 7), torch.tensor([[True, True, True, False]])), row(7, 7, 7, 7))


def test_impute_nothing_and_everything() -> None:
    close(metrics.impute(row(1, 2), torch.tensor([[False, False]])), row(1, 2))
    close(metrics.impute(row(1, 2), torch.tensor([[True, True]])), row(0, 0))


def test_top_pixels_break_ties_by_index() -> None:
    P = double([[1, 2], [2, 0]])
    assert metrics.top_pixels(P, 1, largest=True).tolist() == [[False, True], [False, False]]
    assert metrics.top_pixels(P, 3, largest=False).tolist() == [[True, True], [False, True]]
    assert metrics.top_pixels(P, 0, largest=True).tolist() == [[False, False], [False, False]]


def above_ten(x: Tensor) -> Tensor:
    """Class 0 where the sum is above 10 (a tie is class 0 too), else class 1."""
    return torch.cat([total(x) - 10, 0 * total(x)], dim=1)


def test_road_by_hand() -> None:
    x, map, none = row(0, 9, 9, 3), row(0, 2, 3, 0), row(0, 0, 0, 0)

    def hits(percentages: list[float], largest: bool, noise: Tensor = none, target: int = 0) -> list[bool]:
        return metrics.road(above_ten, x, target, map, percentages, largest, [noise] * len(percentages))

    # 0: 21; 25: (0, 9, 6, 3); 50: (0, 1, 2, 3); 100: nothing is left
    assert hits([0, 25, 50, 100], True) == [True, True, False, False]
    assert hits([50], True, target=1) == [True]
    # (9, 9, 9, 9)
    assert hits([50], False) == [True]
    # Noise counts where pixels were removed only: 6 + 4 = 10 is still a hit.
    assert hits([50], True, row(0, 2, 2, 0)) == [True]
    assert hits([50], True, row(50, 2, 1, 50)) == [False]


def test_road_takes_pixels_by_the_sum_of_channels_and_rounds_to_even() -> None:
    seen = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x[0])
        return total(x)

    x = double([[[1, 2, 4, 8, 16]], [[0, 0, 1, 0, 0]]])
    map = double([[[9, 0, 2, 0, 1]], [[-9, 0, 2, 0, 1]]])
    # Half of five is two: pixels 2 and 4 (sums 4 and 2), not 0 (9 - 9).
    metrics.road(forward, x, 0, map, [50], True, [torch.zeros_like(x)])
    close(seen[0], [[[1, 2, 5, 8, 8]], [[0, 0, 0, 0, 0]]])


# ---------------------------------------------------------------------------------------------------------------------
# Lipschitz


def test_lipschitz_by_hand() -> None:
    # (.5, 1) against (1, 1), (.25, 1) and, with all of the map gone, (0, 0)
    ratio = metrics.lipschitz
    close(ratio(itself, row(1, 2), 0, [row(1, 0)]), 0.5)
    close(ratio(itself, row(1, 2), 0, [row(0, 2)]), 0.125)
    close(ratio(itself, row(1, 2), 0, [row(-1, -2)]), math.sqrt(1.25 / 5))
    close(ratio(itself, row(1, 2), 0, [row(0, 2), row(1, 0), row(0, 2)]), 0.5)
    close(ratio(itself, row(1, 2), 0, [row(0, INF), row(1, 0)]), 0.5)


def test_lipschitz_divides_by_the_largest_magnitude_of_the_pixel_map() -> None:
    # Pixels (1, -4) and (2, -4): (1/4, -1) and (1/2, -1)
    x, noise = double([[[0, -2]], [[1, -2]]]), double([[[1, 0]], [[0, 0]]])
    close(metrics.lipschitz(itself, x, 0, [noise]), 0.25)


# ---------------------------------------------------------------------------------------------------------------------
# AOPC and ABPC


def test_perturbation_curve_by_hand() -> None:
    # Two channels of five by five ones, four squares of two; the fifth row and column are never replaced.
    x = torch.ones(2, 5, 5, dtype=torch.float64)
    noise = 2 * torch.ones(2, 5, 5, dtype=torch.float64)
    noise[:, :2, 2:4] = 3
    map = torch.zeros(2, 5, 5, dtype=torch.float64)
    map[:, :, 4] = 100
    map[0, 0, 0], map[1, 1, 1], map[0, 0, 2], map[0, 3, 3] = 5, -9, 1, 2

    def curve(L: int, largest: bool) -> list[float]:
        return metrics.perturbation_curve(total, x, 0, map, noise, L, 2, largest)

    # Regions -4, 1, 0, 2: each adds 8, the second 16.
    close(curve(3, True), [50, 58, 74, 82])
    close(curve(9, True), [50, 58, 74, 82, 90])
    close(curve(4, False), [50, 58, 66, 82, 90])
    # Ties: the regions in their order.
    flat = metrics.perturbation_curve(total, x, 0, torch.ones_like(x), noise, 2, 2, True)
    close(flat, [50, 58, 74])


def test_areas() -> None:
    close(metrics.aopc([4, 3, 1]), 4 / 3)
    close(metrics.abpc([4, 4, 3], [4, 3, 1]), 1)


# ---------------------------------------------------------------------------------------------------------------------
# Boxes


def test_pointing() -> None:
    map = double([[[0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 1]]])
    assert metrics.pointing(map, [(1, 0, 2, 1)]) == 0.5
    assert metrics.pointing(map, [(1, 0, 2, 1), (0, 0, 2, 1)]) == 0.5
    assert metrics.pointing(map, [(1, 0, 3, 2)]) == 1
    # x1 and y1 are outside, x is the column.
    assert metrics.pointing(map, [(0, 0, 1, 2), (0, 1, 2, 2)]) == 0
    assert metrics.pointing(map, []) == 0
    # The channels' sum decides: 3 - 3 against 1 + 1.
    assert metrics.pointing(double([[[3, 1]], [[-3, 1]]]), [(1, 0, 2, 1)]) == 1


@pytest.mark.parametrize("map", [row(0, 0, 0), row(-1, -2, -1), row(0, -2, 0), row(9, NAN, 0), row(INF, 0, 0)])
def test_maps_without_a_say_count_as_constant(map: Tensor) -> None:
    close(metrics.pointing(map, [(1, 0, 2, 1)]), 1 / 3)
    close(metrics.box_mass(map, [(1, 0, 2, 1)]), 1 / 3)


def test_box_mass() -> None:
    map = double([[[1, 2], [3, -9]], [[-1, 0], [0, 4]]])
    close(metrics.box_mass(map, [(0, 0, 2, 1)]), 3 / 10)
    close(metrics.box_mass(map, [(0, 0, 1, 2), (0, 1, 2, 2)]), 8 / 10)
    assert metrics.box_mass(map, []) == 0
