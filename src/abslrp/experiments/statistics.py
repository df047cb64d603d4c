"""Statistics of scores that are paired: every method was scored on the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from abslrp.types import AbslrpError

Scores = Mapping[str, np.ndarray]
"""One score for every image, shape (images,), of each method."""

_MOST_COUNTS = 2**21


@dataclass(frozen=True)
class Interval:
    """A mean and the interval around it."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Pairs:
    """Every method against every other: all matrices are (methods, methods) in the order of ``methods``.

    ``p`` are Wilcoxon's p-values, ``corrected`` the same after Holm's correction over all pairs, and
    ``differences`` the mean of the row less that of the column.
    """

    methods: tuple[str, ...]
    p: np.ndarray
    corrected: np.ndarray
    differences: np.ndarray


@dataclass(frozen=True)
class Best:
    """The method with the best mean, those that cannot be told from it, and the p-value of each against it."""

    best: str
    tied: tuple[str, ...]
    p_values: Mapping[str, float]

    @property
    def starred(self) -> tuple[str, ...]:
        """The methods that carry a star: the best and those tied with it, or none when the best stands alone."""
        return (self.best, *self.tied) if self.tied else ()


@dataclass(frozen=True)
class Ranks:
    """Ranks of methods, 1 for the best: ``average`` of the ranks within each image, ``of_means`` of the mean scores."""

    average: Mapping[str, float]
    of_means: Mapping[str, float]


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau between metrics: a matrix (metrics, metrics) in the order of ``metrics``."""

    metrics: tuple[str, ...]
    tau: np.ndarray


def interval(values: np.ndarray, *, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """The mean with its percentile bootstrap interval, the same in every run.

    The bounds are the (1 ∓ level)/2 quantiles of the means of ``draws`` samples of n values, drawn with
    replacement from the n that there are.

    B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1979.

    >>> interval(np.array([0.0, 1.0, 0.0, 1.0]))
    Interval(mean=0.5, low=0.0, high=1.0)
    >>> interval(np.array([0.7]))
    Interval(mean=0.7, low=0.7, high=0.7)
    """
    if not 0 < level < 1:
        raise AbslrpError(f"level is {level}: give a share between 0 and 1")
    if draws < 1:
        raise AbslrpError(f"draws is {draws}: give 1 or more")
    values = _finite("the values", values)
    n, first = len(values), values[0]
    # Differences from one of the values keep rounding out: equal values give an interval without width.
    deviations = values - first
    rows = min(draws, max(1, _MOST_COUNTS // n))
    blocks = [_counts(n, rows, seed, block) @ deviations / n for block in range(-(-draws // rows))]
    low, high = np.quantile(np.concatenate(blocks)[:draws], [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(first + deviations.mean()), float(first + low), float(first + high))


def wilcoxon(a: np.ndarray, b: np.ndarray) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test between two methods on the same images.

    Images with equal scores are left out; where all are equal, nothing speaks against equality and p is 1.
    The distribution is exact where scipy can have it so, for few images without equal differences.

    F. Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1, 1945.

    >>> wilcoxon(np.array([1.0, 2, 3, 4, 5]), np.zeros(5))
    0.0625
    """
    paired = _paired({"a": a, "b": b})
    differences = paired["a"] - paired["b"]
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    return float(stats.wilcoxon(differences, zero_method="wilcox", alternative="two-sided").pvalue)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """P-values corrected for having asked m questions, by Holm's step-down procedure.

    In rising order of p, p'₍ᵢ₎ = max over j ≤ i of min(1, (m − j + 1) · p₍ⱼ₎).

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
        raise AbslrpError("holm needs a list of p-values between 0 and 1")
    order = np.argsort(p, kind="stable")
    raised = p[order] * np.arange(len(p), 0, -1)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(raised), 1) if len(p) else raised
    return corrected


def pairwise(scores: Scores) -> Pairs:
    """Wilcoxon's test of every method against every other, plain and after :func:`holm` over all pairs.

    >>> pairs = pairwise({"a": np.arange(1.0, 7), "b": np.zeros(6), "c": np.zeros(6)})
    >>> pairs.p[0].tolist(), pairs.corrected[0].tolist()
    ([1.0, 0.03125, 0.03125], [1.0, 0.09375, 0.09375])
    """
    paired = _paired(scores)
    names = tuple(paired)
    rows, columns = np.triu_indices(len(names), k=1)
    p = [wilcoxon(paired[names[i]], paired[names[j]]) for i, j in zip(rows, columns, strict=True)]
    means = np.array([paired[name].mean() for name in names])
    plain, corrected = np.ones((2, len(names), len(names)))
    for matrix, entries in ((plain, np.asarray(p)), (corrected, holm(p))):
        matrix[rows, columns] = matrix[columns, rows] = entries
    return Pairs(names, plain, corrected, means[:, None] - means[None, :])


def best(scores: Scores, higher_is_better: bool, p: float = 0.05, *, corrected: bool = False) -> Best:
    """The method with the best mean, and all that Wilcoxon's test cannot tell from it at ``p``: the paper's stars.

    With ``corrected`` the p-values of all methods against the best pass through :func:`holm` first; the paper does
    without.

    D. Vukadin et al., ACM TIST, 2024, doi:10.1145/3649458.

    >>> scores = {"a": np.arange(8) + 0.5, "b": np.arange(8) + 0.5, "c": np.zeros(8)}
    >>> best(scores, higher_is_better=True).starred
    ('a', 'b')
    """
    paired = _paired(scores)
    sign = 1 if higher_is_better else -1
    first = max(paired, key=lambda name: sign * paired[name].mean())
    others = [name for name in paired if name != first]
    tests = np.array([wilcoxon(paired[first], paired[name]) for name in others])
    p_values = dict(zip(others, (holm(tests) if corrected else tests).tolist(), strict=True))
    return Best(first, tuple(name for name in others if p_values[name] >= p), p_values)


def ranks(scores: Scores, higher_is_better: bool) -> Ranks:
    """Ranks of the methods, within each image and then averaged, and of their means; equals share their ranks.

    >>> ranks({"a": np.array([3.0, 1.0]), "b": np.array([2.0, 1.0])}, higher_is_better=True).average
    {'a': 1.25, 'b': 1.75}
    """
    paired = _paired(scores)
    values = np.stack(list(paired.values())) * (-1 if higher_is_better else 1)  # (methods, images)
    average = stats.rankdata(values, axis=0).mean(axis=1)
    of_means = stats.rankdata(values.mean(axis=1))
    return Ranks(
        dict(zip(paired, average.tolist(), strict=True)),
        dict(zip(paired, of_means.tolist(), strict=True)),
    )


def rank_agreement(means: Mapping[str, Mapping[str, float]], higher_is_better: Mapping[str, bool]) -> Agreement:
    """Kendall's τ_b between the orders in which metrics put the methods, 1 for the same order, −1 for the reverse.

    ``means`` are the mean scores of the methods by metric; a metric whose lower scores are better is turned round.
    Two metrics are compared on the methods both have; τ is nan where fewer than two differ.

    M. G. Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945.

    >>> means = {"gae": {"a": 0.3, "b": 0.1}, "lipschitz": {"a": 0.2, "b": 0.5}}
    >>> rank_agreement(means, {"gae": True, "lipschitz": False}).tau.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    for metric in means:
        if metric not in higher_is_better:
            raise AbslrpError(f"the direction of {metric!r} is unknown: say whether higher is better")
    metrics = tuple(means)
    tau = np.eye(len(metrics))
    for i, one in enumerate(metrics):
        for j, other in enumerate(metrics[:i]):
            turn = 1 if higher_is_better[one] == higher_is_better[other] else -1
            tau[i, j] = tau[j, i] = turn * _tau(means[one], means[other])
    return Agreement(metrics, tau)


def _tau(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    shared = [method for method in one if method in other]
    pair = np.array([[one[method], other[method]] for method in shared]).reshape(-1, 2)
    if len(shared) < 2 or np.any(np.ptp(pair, axis=0) == 0):
        return float("nan")
    return float(stats.kendalltau(pair[:, 0], pair[:, 1]).statistic)


# All methods of a comparison have the same number of images: the draws are made once and serve them all.
@lru_cache(maxsize=2)
def _counts(n: int, rows: int, seed: int, block: int) -> np.ndarray:
    """How often each of n values is drawn in each of ``rows`` samples: (rows, n)."""
    drawn = np.random.default_rng([seed, block]).integers(0, n, (rows, n))
    flat = (drawn + n * np.arange(rows)[:, None]).ravel()
    counts = np.bincount(flat, minlength=rows * n).reshape(rows, n).astype(np.float64)
    counts.flags.writeable = False
    return counts


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise AbslrpError(f"{name} have the shape {array.shape}: give one score for each image")
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise AbslrpError(f"{name} hold {bad} of {len(array)} that are not finite: leave these images out everywhere")
    return array


def _paired(scores: Scores) -> dict[str, np.ndarray]:
    if not scores:
        raise AbslrpError("there are no scores: give at least one method")
    paired = {name: _finite(f"the scores of {name!r}", values) for name, values in scores.items()}
    first, n = next((name, len(values)) for name, values in paired.items())
    for name, values in paired.items():
        if len(values) != n:
            raise AbslrpError(f"{first!r} has {n} scores but {name!r} has {len(values)}: score both on the same images")
    return paired
