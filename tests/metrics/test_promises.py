"""What every metric promises: the same score in any batch and any order, defined scores for broken maps, clear refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.test_engine import same, snapshot
from torch import Tensor, nn

import abslrp
from abslrp.registry import Metric, register_metric

QUICK: dict[str, dict[str, Any]] = {
    "gae": {"T": 4},
    "road-morf": {"percentages": (20, 60)},
    "road-lerf": {"percentages": (20, 60)},
    "lipschitz": {"samples": 3},
    "aopc": {"L": 5, "region": 4},
    "abpc": {"L": 5, "region": 4},
}
METRICS = list(abslrp.metrics())
METHODS = ["abslrp", "gradcam", "smoothgrad", "random"]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)).eval()


MODEL = network()
IMAGES = torch.randn(9, 3, 16, 16, generator=torch.Generator().manual_seed(2))
LABELS = [0, 1, 0, 1, 2, 2, 0, 1, 2]
BOXES = [{label: [(2.0, 2.0, 9.0, 12.0)]} for label in LABELS]


def scores(
    metrics: Any = METRICS, methods: Any = METHODS, images: Tensor = IMAGES, turn: Any = None, **settings: Any
) -> abslrp.Scores:
    turn = list(range(len(images))) if turn is None else turn
    chosen = {metric: QUICK.get(metric, {}) for metric in metrics}
    found: Any = [LABELS[i] for i in turn], [BOXES[i] for i in turn]
    return abslrp.evaluate(MODEL, images[turn], methods, chosen, labels=found[0], boxes=found[1], **settings)


@pytest.fixture(scope="module")
def whole() -> abslrp.Scores:
    return scores(batch_size=64)


@pytest.mark.parametrize("size", [1, 3, 8, None])
def test_batch_size_changes_no_score(whole: abslrp.Scores, size: int | None) -> None:
    other = scores(batch_size=size)
    for metric in METRICS:
        for method in METHODS:
            torch.testing.assert_close(other[metric][method].scores, whole[metric][method].scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_order_of_images_changes_no_score(whole: abslrp.Scores, seed: int) -> None:
    turn = torch.randperm(9, generator=torch.Generator().manual_seed(seed)).tolist()
    other = scores(turn=turn, batch_size=8)
    for metric in METRICS:
        for method in METHODS:
            expected = dict(zip(whole[metric][method].ids, whole[metric][method].scores.tolist(), strict=True))
            found = dict(zip(other[metric][method].ids, other[metric][method].scores.tolist(), strict=True))
            assert found == pytest.approx(expected, abs=1e-5)


def test_company_of_other_methods_and_metrics_changes_no_score(whole: abslrp.Scores) -> None:
    for metric in METRICS:
        alone = scores([metric], ["abslrp"], batch_size=8)[metric]["abslrp"]
        torch.testing.assert_close(alone.scores, whole[metric]["abslrp"].scores, rtol=0, atol=1e-5)


def test_same_seed_same_scores_and_another_seed_other_mosaics(whole: abslrp.Scores) -> None:
    again, other = scores(batch_size=64), scores(batch_size=64, seed=1)
    for metric in METRICS:
        assert torch.equal(again[metric]["smoothgrad"].scores, whole[metric]["smoothgrad"].scores)
    assert not torch.equal(other["gae"]["abslrp"].scores, whole["gae"]["abslrp"].scores)


@pytest.mark.parametrize("metric", METRICS)
def test_model_images_and_chance_are_left_alone(metric: str) -> None:
    before, state, copy = snapshot(MODEL), torch.get_rng_state(), IMAGES.clone()
    scores([metric])
    broken = {"broken": lambda model, x, targets: 1 / 0}
    with pytest.raises(ZeroDivisionError):
        scores([metric], broken)
    assert same(before, snapshot(MODEL)) and torch.equal(state, torch.get_rng_state()) and torch.equal(copy, IMAGES)


BROKEN = {
    "zero": (lambda m, x, t: torch.zeros_like(x), ("no positive relevance", "constant")),
    "negative": (lambda m, x, t: -x.abs() - 0.1, ("no positive relevance",)),
    "constant": (lambda m, x, t: torch.full_like(x, 3.0), ("constant",)),
    "nan": (lambda m, x, t: torch.where(x > 0, torch.nan, x), ("not finite",)),
    "infinite": (lambda m, x, t: torch.where(x > 0, torch.inf, x), ("not finite",)),
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_maps_get_a_defined_score_and_a_flag(metric: str, kind: str) -> None:
    method, flags = BROKEN[kind]
    found = scores([metric], {kind: method})[metric][kind]
    assert found.scores.isfinite().all() and found.flagged == len(found) > 0
    assert all(set(flags) <= set(flag) for flag in found.flags)
    assert all(part.isfinite().all() for part in found.parts.values())
    expected = {"gae": 0.0, "focus": 0.5}
    # A map that is negative or not finite counts as an empty one; an empty one says as much as a constant one.
    if metric in expected:
        assert found.scores.tolist() == pytest.approx([expected[metric]] * len(found))
    if metric == "lipschitz" and kind in ("zero", "constant", "nan"):
        assert found.scores.tolist() == [0.0] * len(found)


def test_random_maps_have_no_focus() -> None:
    found = scores(["focus"], ["random"])["focus"]["random"]
    assert found.mean == pytest.approx(0.5, abs=0.02)


def test_a_map_on_the_right_quarter_has_full_contrast_and_focus() -> None:
    def knows(model: Any, x: Tensor, targets: Tensor) -> Tensor:
        return lit(x)

    lit = lambda x: (x[:, :1] > 50).float().expand_as(x)  # noqa: E731
    images, labels = IMAGES.clone(), [0, 0, 1, 1, 1, 1, 1, 1, 1]
    images[:2] = 100.0
    found = abslrp.evaluate(MODEL, images, {"knows": knows}, "focus", labels=labels)["focus"]["knows"]
    lighted = [k for k, name in enumerate(found.ids) if found.ids.index(name) < 2]
    assert found.scores[lighted].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("metric", METRICS)
def test_metadata(metric: str) -> None:
    entry = abslrp.metrics()[metric]
    assert entry.family in ("combined", "faithfulness", "robustness", "localization")
    assert entry.description and entry.citation and isinstance(entry.higher_is_better, bool)
    assert set(entry.needs) <= {"labels", "boxes"}
    assert entry.higher_is_better == (metric not in ("road-morf", "lipschitz"))
    score = scores([metric], ["constant"])[metric]["constant"]
    assert set(entry.parts) <= set(score.parts)


def test_a_second_metric_of_the_same_name_is_refused() -> None:
    entry: Metric = abslrp.metrics()["gae"]
    with pytest.raises(abslrp.AbslrpError, match="registered already"):
        register_metric(entry)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metrics": "gea"}, "metric 'gea' is unknown: did you mean gae"),
        ({"metrics": []}, "metrics is empty"),
        ({"methods": []}, "methods is empty"),
        ({"methods": "absrlp"}, "did you mean abslrp"),
        ({"methods": {"mine": ("abslrp", {"speed": 1})}}, "option 'speed' is unknown for abslrp"),
        ({"metrics": "focus", "labels": None}, "'focus' needs labels="),
        ({"metrics": "pointing-game", "boxes": None}, "need boxes="),
        ({"metrics": "box-mass", "boxes": [{}] * 9}, "none of the images has a box"),
        ({"metrics": "focus", "labels": list(range(9))}, "no two of these images share a label"),
        ({"labels": [1, 2]}, "labels has 2 entries for 9 images"),
        ({"labels": [0.5] * 9}, "label 0.5 is no class index"),
        ({"labels": [-1] * 9}, "label -1 is no class index"),
        ({"boxes": [{0: [(1, 2)]}] * 9}, "boxes\\[0\\]"),
        ({"boxes": []}, "boxes has 0 entries"),
        ({"ids": ["a"] * 9}, "ids has 9 names, 1 of them different"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number"),
        ({"T": 1}, "T=1 must be a whole number of at least 2"),
        ({"T": 500}, "too many steps"),
        ({"speed": 1}, "option 'speed' is unknown for gae"),
        ({"metrics": {"gae": {"speed": 1}}}, "option 'speed' is unknown for gae"),
        ({"settings": "mine"}, "settings='mine' is unknown"),
        ({"schedule": "fast"}, "schedule='fast' is unknown"),
        ({"mosaics": 0}, "mosaics=0"),
        ({"metrics": "road-morf", "percentages": (0, 50)}, "must be numbers between 0 and 100"),
        ({"metrics": "road-morf", "percentages": 5}, "must be numbers between 0 and 100"),
        ({"metrics": "lipschitz", "sigma": 0}, "sigma=0 changes no input"),
        ({"metrics": "aopc", "region": 30}, "region=30 does not fit"),
        ({"images": IMAGES[:3], "labels": None, "boxes": None}, "3 images make no mosaic"),
        ({"images": "cat.jpg"}, "the inputs are a str"),
        ({"methods": {"mine": lambda m, x, t: x[:, 0]}}, "method 'mine' gave"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, str) else None,
)
def test_bad_input_gets_one_sentence(settings: dict[str, Any], words: str) -> None:
    given = {"images": IMAGES, "methods": "abslrp", "metrics": "gae", "labels": LABELS, "boxes": BOXES, **settings}
    with pytest.raises(abslrp.AbslrpError, match=words) as caught:
        abslrp.evaluate(MODEL, **given)
    assert "\n" not in str(caught.value)


def test_more_and_fewer_mosaics_than_images() -> None:
    few, many = (scores(["gae"], ["abslrp"], mosaics=n)["gae"]["abslrp"] for n in (4, 20))
    assert len(few) == 4 and len(many) == 20 and len(set(many.ids)) == 20
    whole = scores(["gae"], ["abslrp"])["gae"]["abslrp"]
    by_id = dict(zip(whole.ids, whole.scores.tolist(), strict=True))
    for found in (few, many):
        for name, value in zip(found.ids, found.scores.tolist(), strict=True):
            if name in by_id:
                assert value == pytest.approx(by_id[name], abs=1e-5)


def test_multi_label_images_stand_for_each_of_their_labels() -> None:
    labels = [[0, 1], [0], [1], [2], [2, 1], [0], [1], [2], [0, 2]]
    found = abslrp.evaluate(MODEL, IMAGES, "constant", ["focus", "gae"], labels=labels, T=3)
    assert found["focus"]["constant"].scores.tolist() == [0.5] * 9 and found["gae"]["constant"].mean == 0


def test_memory_that_does_not_suffice_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def greedy(model: Any, x: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(x))
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x * x

    found = scores(["gae"], {"greedy": greedy}, batch_size=8)["gae"]["greedy"]
    frugal = scores(["gae"], {"frugal": lambda m, x, t: x * x}, batch_size=1)["gae"]["frugal"]
    torch.testing.assert_close(found.scores, frugal.scores, rtol=0, atol=1e-5)
    assert seen[0] == 8 and max(seen[10:]) <= 2


def test_scores_print_as_a_table(whole: abslrp.Scores) -> None:
    text = str(whole)
    assert "gae ↑" in text and "lipschitz ↓" in text and "abslrp" in text and repr(whole).startswith("Scores(gae")
