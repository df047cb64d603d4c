"""Statistics of paired scores against hand-computed examples, enumeration and scipy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from abslrp.experiments import paper, statistics
from abslrp.experiments.statistics import best, holm, interval, pairwise, rank_agreement, ranks, wilcoxon
from abslrp.types import AbslrpError


def draw(n: int, seed: int = 0, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1, n)


def test_interval_of_two_values_by_hand() -> None:
    """Means of two draws from {0, 1} are 0, 1/2, 1 with weights 1/4, 1/2, 1/4."""
    values = np.array([0.0, 1.0])
    wide, narrow = interval(values, level=0.95), interval(values, level=0.4)
    assert (wide.mean, wide.low, wide.high) == (0.5, 0.0, 1.0)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_interval_agrees_with_scipy(level: float) -> None:
    values = np.exp(draw(60))
    ours = interval(values, level=level, draws=20000)
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=level, n_resamples=20000, method="percentile", random_state=5
    ).confidence_interval
    assert ours.mean == pytest.approx(values.mean(), abs=1e-12)
    np.testing.assert_allclose([ours.low, ours.high], theirs, atol=0.03)


def test_interval_is_deterministic_and_follows_the_seed() -> None:
    values = draw(30)
    assert interval(values) == interval(values)
    assert interval(values, seed=1) != interval(values, seed=2)


def test_interval_without_spread_has_no_width() -> None:
    assert interval(np.array([0.7])) == statistics.Interval(0.7, 0.7, 0.7)
    same = interval(np.full(7, 0.1))
    assert same.low == same.mean == same.high


def test_interval_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws in many blocks are as good as in one, and as many as were asked for."""
    values, whole = draw(50), interval(draw(50), draws=4000)
    monkeypatch.setattr(statistics, "_MOST_COUNTS", 50 * 300)
    blocks = interval(values, draws=4000)
    np.testing.assert_allclose([blocks.low, blocks.high], [whole.low, whole.high], atol=0.03)
    assert not np.array_equal(statistics._counts(50, 300, 0, 0), statistics._counts(50, 300, 0, 1))


def test_every_draw_takes_as_many_as_there_are() -> None:
    counts = statistics._counts(9, 500, 3, 0)
    assert counts.shape == (500, 9) and np.all(counts.sum(axis=1) == 9)
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.2)


@pytest.mark.parametrize("settings", [{"level": 0.0}, {"level": 1.0}, {"draws": 0}])
def test_interval_refuses_settings_that_make_none(settings: dict) -> None:
    with pytest.raises(AbslrpError, match=next(iter(settings))):
        interval(draw(4), **settings)


@pytest.mark.parametrize("n", range(1, 10))
def test_wilcoxon_is_the_share_of_signs_as_extreme(n: int) -> None:
    """All 2ⁿ signs are alike under the null: p is the share whose rank sum lies as far from its middle."""
    differences = draw(n, seed=n, mean=0.8)
    rank = np.abs(differences).argsort().argsort() + 1
    sums = np.array([np.dot(rank, signs) for signs in product([-1, 1], repeat=n)])
    expected = np.mean(np.abs(sums) >= abs(np.dot(rank, np.sign(differences))))
    assert wilcoxon(differences, np.zeros(n)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [10, 40, 51, 300])
def test_wilcoxon_agrees_with_scipy(n: int) -> None:
    a, b = draw(n, 1), draw(n, 2, mean=0.2)
    assert wilcoxon(a, b) == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert wilcoxon(a, b) == pytest.approx(wilcoxon(b, a))
    # Rounded scores have ties and zeros.
    a, b = a.round(1), b.round(1)
    kept = a != b
    assert wilcoxon(a, b) == pytest.approx(stats.wilcoxon(a[kept], b[kept]).pvalue)


def test_wilcoxon_leaves_equal_images_out() -> None:
    ahead = np.array([1.0, 2, 3, 4, 5])
    assert wilcoxon(ahead, np.zeros(5)) == 2 / 2**5
    assert wilcoxon(np.append(ahead, [0, 0, 0]), np.zeros(8)) == 2 / 2**5
    assert wilcoxon(ahead, ahead) == 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "differences", [[0.0], [1.0], [1, 1], [1, -1], [0, 2], [1, 1, 1], [0, 0, 2, -2], [1, 1, 2, 2, 3]]
)
def test_wilcoxon_of_few_images_is_a_probability(differences: list[float]) -> None:
    p = wilcoxon(np.array(differences), np.zeros(len(differences)))
    assert 0 < p <= 1


def test_holm_by_hand() -> None:
    """Sorted .005 .01 .03 .04 times 4 3 2 1 is .02 .03 .06 .04; the last may not fall below the one before."""
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_array_equal(holm([0.5, 0.6]), [1, 1])
    assert holm([]).shape == (0,)


def test_holm_keeps_order_and_bounds() -> None:
    p = np.random.default_rng(0).random(40) ** 4
    corrected = holm(p)
    assert np.all(np.diff(corrected[np.argsort(p)]) >= 0)
    assert np.all((corrected >= p) & (corrected <= 1))


@pytest.mark.parametrize("p", [[-0.1], [1.1], [float("nan")], [[0.1]]])
def test_holm_refuses_what_is_no_p(p: list) -> None:
    with pytest.raises(AbslrpError):
        holm(p)


def test_pairwise_asks_every_pair() -> None:
    scores = {"a": draw(30, 1), "b": draw(30, 2, mean=0.5), "c": draw(30, 3, mean=2)}
    pairs = pairwise(scores)
    assert pairs.methods == ("a", "b", "c")
    upper = [stats.wilcoxon(scores[x], scores[y]).pvalue for x, y in ("ab", "ac", "bc")]
    for matrix, expected in ((pairs.p, upper), (pairs.corrected, holm(upper))):
        np.testing.assert_allclose(matrix, matrix.T)
        np.testing.assert_array_equal(np.diag(matrix), 1)
        np.testing.assert_allclose(matrix[np.triu_indices(3, 1)], expected)
    assert pairs.differences[0, 2] == pytest.approx(scores["a"].mean() - scores["c"].mean())
    np.testing.assert_allclose(pairs.differences, -pairs.differences.T)


def test_pairwise_of_one_method() -> None:
    assert pairwise({"a": draw(3)}).p.tolist() == [[1.0]]


def test_best_stands_alone_or_shares_a_star() -> None:
    base = draw(40)
    wave = np.tile([0.1, -0.1], 20) * np.arange(1, 41)
    scores = {"far": base - 1, "top": base + 0.001, "close": base + wave - wave.mean()}
    found = best(scores, higher_is_better=True)
    assert (found.best, found.tied, found.starred) == ("top", ("close",), ("top", "close"))
    assert found.p_values["far"] < 0.05 <= found.p_values["close"]
    del scores["close"]
    alone = best(scores, higher_is_better=True)
    assert (alone.best, alone.tied, alone.starred) == ("top", (), ())
    assert best(scores, higher_is_better=False).best == "far"


def test_best_corrected_tells_less_apart() -> None:
    """Six images all ahead give p = 2/64; asked of two methods, Holm makes it 4/64 > .05."""
    scores = {"a": np.arange(1.0, 7), "b": np.zeros(6), "c": np.full(6, 0.5)}
    assert best(scores, True).starred == ()
    corrected = best(scores, True, corrected=True)
    assert corrected.starred == ("a", "b", "c")
    assert corrected.p_values == {"b": 4 / 64, "c": 4 / 64}
    assert best(scores, True, p=0.01).starred == ("a", "b", "c")


COLUMNS = [
    pytest.param(table, at, id=f"table {table.number} {column.metric}")
    for table in paper.TABLES.values()
    for at, column in enumerate(table.columns)
    if table.number != paper.ABLATION and column.part == paper.METRICS[column.metric].main
]


@pytest.mark.parametrize("table, at", COLUMNS)
def test_stars_of_the_paper(table: paper.PaperTable, at: int) -> None:
    """Scores with the paper's means: those it stars differ from the best by noise, the others by a steady step."""
    higher = paper.METRICS[table.columns[at].metric].higher_is_better
    top = (max if higher else min)(table.rows, key=lambda method: table.rows[method][at].value)
    rng = np.random.default_rng(table.number)
    image = rng.normal(0, 1, 100)
    scores = {top: image + table.rows[top][at].value + (1e-9 if higher else -1e-9)}
    for method, row in table.rows.items():
        if method != top:
            noise = rng.normal(0, 1, 50) * (1 if row[at].starred else 1e-6)
            scores[method] = image + row[at].value + np.concatenate([noise, -noise])
    found = best(scores, higher)
    assert {found.best, *found.tied} == {method for method, row in table.rows.items() if row[at].best}
    assert set(found.starred) == {method for method, row in table.rows.items() if row[at].starred}


def test_ranks_by_hand() -> None:
    """Images rank a b c as 1 2 3, then 2.5 1 2.5; by the mean b leads."""
    scores = {"a": np.array([3.0, 1.0]), "b": np.array([2.0, 9.0]), "c": np.array([0.0, 1.0])}
    found = ranks(scores, higher_is_better=True)
    assert found.average == {"a": 1.75, "b": 1.5, "c": 2.75}
    assert found.of_means == {"a": 2.0, "b": 1.0, "c": 3.0}
    assert ranks(scores, higher_is_better=False).of_means == {"a": 2.0, "b": 3.0, "c": 1.0}


def test_rank_agreement_by_hand() -> None:
    """One of three pairs is swapped: tau = (2 − 1) / 3; a metric of the other direction is turned round."""
    means = {
        "gae": {"a": 3.0, "b": 2.0, "c": 1.0},
        "focus": {"a": 0.9, "b": 0.1, "c": 0.2},
        "lipschitz": {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.0},
    }
    found = rank_agreement(means, {"gae": True, "focus": True, "lipschitz": False})
    assert found.metrics == ("gae", "focus", "lipschitz")
    np.testing.assert_allclose(found.tau, [[1, 1 / 3, 1], [1 / 3, 1, 1 / 3], [1, 1 / 3, 1]])


@pytest.mark.filterwarnings("error")
def test_rank_agreement_is_nan_where_nothing_differs() -> None:
    means = {"x": {"a": 1.0, "b": 2.0}, "flat": {"a": 1.0, "b": 1.0}, "apart": {"c": 1.0}}
    tau = rank_agreement(means, dict.fromkeys(means, True)).tau
    assert np.isnan(tau[0, 1]) and np.isnan(tau[0, 2]) and tau[0, 0] == 1


def test_rank_agreement_needs_directions() -> None:
    with pytest.raises(AbslrpError, match="'gae'"):
        rank_agreement({"gae": {"a": 1.0}}, {})


@pytest.mark.parametrize(
    "scores, words",
    [
        ({"a": [1.0, 2.0], "b": [1.0]}, "'a' has 2 scores but 'b' has 1"),
        ({"a": [1.0, 2.0], "b": [1.0, np.nan]}, "'b' hold 1 of 2"),
        ({"a": [np.inf, -np.inf], "b": [1.0, 2.0]}, "'a' hold 2 of 2"),
        ({"a": [[1.0]]}, "shape"),
        ({"a": []}, "shape"),
        ({}, "no scores"),
    ],
)
@pytest.mark.parametrize("function", [pairwise, lambda s: best(s, True), lambda s: ranks(s, True)])
def test_scores_that_cannot_be_paired(function, scores: dict, words: str) -> None:
    with pytest.raises(AbslrpError, match=words):
        function({name: np.array(values) for name, values in scores.items()})


def test_nan_does_not_reach_a_test_or_an_interval() -> None:
    for call in (interval, lambda values: wilcoxon(values, np.zeros(2))):
        with pytest.raises(AbslrpError, match="not finite"):
            call(np.array([1.0, np.nan]))
