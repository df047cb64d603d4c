"""Every metric, and every part of GAE, against loops in float64 that look at one image at a time."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from tests.reference import metrics as reference
from torch import Tensor, nn

import abslrp
from abslrp.inputs.draws import content_ids, generator
from abslrp.inputs.mosaics import mosaic_plan
from abslrp.metrics.localization import plan_focus

TOLERANCE = 1e-6
METHODS = ("abslrp", "input-x-gradient", "gradcam", "random", "constant")
CLASSES = 4


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES)).double().eval()


MODEL = network()
IMAGES = torch.randn(6, 3, 11, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
IDS = [f"image-{k}" for k in range(6)]
LABELS = [0, 0, 1, 1, [0, 2], 2]
BOXES: list[dict[int, list[Any]]] = [
    {0: [(2, 3, 8, 9)]},
    {0: [(0, 0, 12, 11)]},
    {1: [(1, 1, 2, 2), (5, 5, 9, 9)]},
    {},
    {0: [(0, 0, 3, 3)], 2: [(6, 2, 12, 5)]},
    {2: []},
]


def forward(x: Tensor) -> Tensor:
    return MODEL(x)  # type: ignore[no-any-return]


def explainer(method: str) -> Any:
    return lambda x, target: abslrp.explain(MODEL, x[None], target, method).maps[0].double()


def predicted(x: Tensor) -> int:
    return int(forward(x[None]).argmax())


def run(metric: str, method: str, **options: Any) -> Any:
    return abslrp.evaluate(
        MODEL, IMAGES, [method], [metric], ids=IDS, labels=LABELS, boxes=BOXES, details=True, batch_size=4, **options
    )[metric][method]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {"T": 5},
        {"settings": "authors", "T": 5},
        {"schedule": "authors"},
        {"positive": "recognised", "tiles": "nearest", "T": 3},
    ],
    ids=["paper", "authors", "authors-schedule", "recognised"],
)
def test_gae_and_all_its_parts(method: str, options: dict[str, Any]) -> None:
    found = run("gae", method, **options)
    authors = options.get("settings") == "authors"
    schedule = options.get("schedule", "authors" if authors else "incremental")
    how = options.get("tiles", "nearest" if authors else "antialias")
    for k, item in enumerate(mosaic_plan(IDS, 0)):
        tiles = [IMAGES[n] for n in item.images]
        classes = [predicted(tile) for tile in tiles]
        made = reference.mosaic(tiles, how)
        place = item.own
        if authors or options.get("positive") == "recognised":
            chances = forward(made[None])[0, classes].softmax(0).cumsum(0)
            place = next(i for i in range(4) if item.draw < float(chances[i].detach()))
        image, target = tiles[place], classes[place]
        local = reference.local_consistency(forward, explainer(method), image, target, options.get("T", 10), schedule)
        scores = reference.score_map(made.shape, place, classes, forward(image[None])[0].softmax(0).tolist())
        map_ = explainer(method)(made, target)
        contrast = reference.contrastiveness(reference.positive(map_), scores)
        expected = {**local, "C": contrast, "mosaic": made, "mosaic_map": map_, "position": place, "target": target}
        expected["score_map"] = scores[0] if scores.ndim == 3 else scores
        expected["image"], expected["map"] = image, explainer(method)(image, target)
        for name, value in expected.items():
            got = found.parts[name][k].double()
            torch.testing.assert_close(
                got, torch.as_tensor(value).double().view(got.shape), rtol=0, atol=TOLERANCE, msg=name
            )
        assert float(found.scores[k]) == pytest.approx(local["LC"] * contrast, abs=TOLERANCE)
    assert set(found.parts) == {*expected}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("metric", "largest"), [("road-morf", True), ("road-lerf", False)])
def test_road(method: str, metric: str, largest: bool) -> None:
    percentages = (10, 35, 70, 95)
    found = run(metric, method, percentages=percentages, noise=0.3)
    for k, x in enumerate(IMAGES):
        noises = torch.randn((4, *x.shape), generator=generator(0, "road", IDS[k])).double() * 0.3
        hits = reference.road(
            forward, x, predicted(x), explainer(method)(x, predicted(x)), percentages, largest, noises
        )
        assert found.parts["curve"][k].tolist() == [float(h) for h in hits]
        assert float(found.scores[k]) == pytest.approx(sum(hits) / 4)


@pytest.mark.parametrize("method", METHODS)
def test_lipschitz(method: str) -> None:
    found = run("lipschitz", method, samples=5, sigma=0.2)
    for k, x in enumerate(IMAGES):
        chance = generator(0, "lipschitz", IDS[k])
        noises = [0.2 * torch.randn(x.shape, generator=chance).double() for _ in range(5)]
        expected = reference.lipschitz(explainer(method), x, predicted(x), noises)
        assert float(found.scores[k]) == pytest.approx(expected, abs=TOLERANCE)


def test_noise_that_is_next_to_nothing_is_flagged() -> None:
    from abslrp.metrics.robustness import FAINT_NOISE

    spread = IMAGES[0].double().std(correction=0).item()
    assert FAINT_NOISE in run("lipschitz", "abslrp", samples=1, sigma=0.009 * spread).flags[0]
    assert run("lipschitz", "abslrp", samples=1, sigma=0.011 * spread).flags[0] == ()


@pytest.mark.parametrize("method", METHODS)
def test_focus(method: str) -> None:
    found = run("focus", method)

    class Bench:
        ids, seed = IDS, 0
        labels: ClassVar = [frozenset([one] if isinstance(one, int) else one) for one in LABELS]

    plan = plan_focus(Bench, {})  # type: ignore[arg-type]
    assert len(plan) == len(found) == 6
    for k, item in enumerate(plan):
        assert [item.label in Bench.labels[n] for n in item.images] == list(item.positive)
        assert sum(item.positive) == 2 and len(set(item.images)) == 4 and item.number in item.images
        made = reference.mosaic([IMAGES[n] for n in item.images], "antialias")
        expected = reference.focus(explainer(method)(made, item.label), [p for p in range(4) if item.positive[p]])
        assert float(found.scores[k]) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("L", "region"), [(4, 3), (100, 2)])
def test_aopc_and_abpc(method: str, L: int, region: int) -> None:
    drop, gap = (run(metric, method, L=L, region=region) for metric in ("aopc", "abpc"))
    for k, x in enumerate(IMAGES):
        low, high = x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True)
        noise = low + torch.rand(x.shape, generator=generator(0, "regions", IDS[k])).double() * (high - low)
        map_ = explainer(method)(x, predicted(x))
        curves = {
            largest: reference.perturbation_curve(forward, x, predicted(x), map_, noise, L, region, largest)
            for largest in (True, False)
        }
        assert drop.parts["outputs_morf"][k].tolist() == pytest.approx(curves[True], abs=TOLERANCE)
        assert gap.parts["outputs_lerf"][k].tolist() == pytest.approx(curves[False], abs=TOLERANCE)
        assert float(drop.scores[k]) == pytest.approx(reference.aopc(curves[True]), abs=TOLERANCE)
        assert float(gap.scores[k]) == pytest.approx(reference.abpc(curves[False], curves[True]), abs=TOLERANCE)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("metric", "oracle"), [("pointing-game", reference.pointing), ("box-mass", reference.box_mass)]
)
def test_boxes(method: str, metric: str, oracle: Any) -> None:
    found = run(metric, method)
    assert found.ids == ("image-0", "image-1", "image-2", "image-4")
    for k, name in enumerate(found.ids):
        i = IDS.index(name)
        each = [oracle(explainer(method)(IMAGES[i], c), boxes) for c, boxes in BOXES[i].items()]
        assert float(found.scores[k]) == pytest.approx(sum(each) / len(each), abs=TOLERANCE)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_imputation_equals_a_sparse_direct_solve(share: float) -> None:
    from abslrp.inputs.imputation import impute

    chance = torch.Generator().manual_seed(3)
    images = torch.randn(3, 3, 40, 31, generator=chance)
    removed = torch.rand(3, 40, 31, generator=chance) < share
    removed[1, 5:35, 5:28] = True  # a hole as wide as the image, where plain averaging takes longest
    made = impute(images, removed)
    for k in range(3):
        torch.testing.assert_close(
            made[k].double(), reference.impute(images[k].double(), removed[k]), rtol=0, atol=1e-4
        )
    alone = torch.cat([impute(images[k : k + 1], removed[k : k + 1]) for k in range(3)])
    torch.testing.assert_close(made, alone, rtol=0, atol=0)


def test_imputation_is_quick_whatever_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holes of every form beside a sparse direct solve, in a few steps each."""
    from abslrp.inputs import imputation

    steps = 0
    guess = imputation._Cycle.__call__

    def counted(self: imputation._Cycle, residual: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return guess(self, residual)

    monkeypatch.setattr(imputation._Cycle, "__call__", counted)
    i, j = torch.meshgrid(torch.arange(45), torch.arange(38), indexing="ij")
    away = ((i - 22.0) ** 2 + (j - 19.0) ** 2).sqrt()
    holes = {
        "all but a corner": (i + j) > 0,
        "all but one": (i != 20) | (j != 30),
        "a board": (i + j) % 2 == 0,
        "rows": i % 9 != 0,
        "a line": (i == 20) & (j > 0),
        "a diagonal": (i - j).abs() <= 1,
        "a spiral": (torch.atan2(i - 22.0, j - 19.0) * 3 + away / 2).sin() > 0,
        "a maze": (i % 4 != 0) | (j == (i // 4 % 2) * 37),
        "one": (i == 3) & (j == 3),
    }
    images = torch.randn(len(holes), 3, 45, 38, generator=torch.Generator().manual_seed(5))
    for image, (name, hole) in zip(images, holes.items(), strict=True):
        steps = 0
        made = imputation.impute(image[None], hole[None])[0]
        torch.testing.assert_close(
            made.double(),
            reference.impute(image.double(), hole),
            rtol=0,
            atol=1e-4,
            msg=lambda text, n=name: f"{n}: {text}",
        )
        assert torch.equal(made[:, ~hole], image[:, ~hole])
        assert steps <= 40, name


def test_names_made_of_pixels_do_not_depend_on_the_order() -> None:
    turned = content_ids(IMAGES.flip(0))
    assert turned[::-1] == content_ids(IMAGES) and len(set(turned)) == len(IMAGES)
