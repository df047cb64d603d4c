"""Metrics against the libraries that others use, where those work; where not, the test says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import abslrp
from abslrp.inputs.draws import generator
from abslrp.inputs.imputation import impute
from abslrp.inputs.torchvision_ops import ensure_torchvision


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)).eval()


MODEL = network()
IMAGES = torch.randn(4, 3, 24, 24, generator=torch.Generator().manual_seed(5))
IDS = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def gradcam() -> Any:
    ensure_torchvision()
    return pytest.importorskip("pytorch_grad_cam.metrics.road", reason="grad-cam is not installed")


@pytest.fixture(scope="module")
def quantus() -> Any:
    ensure_torchvision()
    return pytest.importorskip("quantus", reason="Quantus is not installed")


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_imputation_equals_grad_cams(gradcam: Any, share: float) -> None:
    removed = torch.rand(4, 24, 24, generator=torch.Generator().manual_seed(1)) < share
    ours = impute(IMAGES, removed)
    for k in range(4):
        theirs = gradcam.NoisyLinearImputer(noise=0.0)(IMAGES[k], (~removed[k]).float())
        torch.testing.assert_close(ours[k], theirs.float().view(3, 24, 24), rtol=0, atol=1e-4)


def test_road_equals_grad_cams_where_no_relevance_is_tied(gradcam: Any) -> None:
    """Its percentile removes ties too, so the maps here have none; its score is a confidence, ours whether the class is kept."""
    percentages = (20, 50, 80)
    maps = abslrp.explain(MODEL, IMAGES, method="input-x-gradient").maps
    found = abslrp.evaluate(
        MODEL,
        IMAGES,
        {"fixed": lambda m, x, t: maps_of(x)},
        ["road-morf", "road-lerf"],
        ids=IDS,
        percentages=percentages,
        noise=0.0,
    )
    predicted = MODEL(IMAGES).argmax(1)
    for metric, make in (("road-morf", gradcam.ROADMostRelevantFirst), ("road-lerf", gradcam.ROADLeastRelevantFirst)):
        for k in range(4):
            hits = []
            for p in percentages:
                road = make(percentile=100 - p if metric == "road-morf" else p)
                road.imputer = gradcam.NoisyLinearImputer(noise=0.0)
                pixels = maps[k].sum(0).numpy()
                mask = torch.from_numpy(
                    pixels < np.percentile(pixels, 100 - p)
                    if metric == "road-morf"
                    else pixels > np.percentile(pixels, p)
                )
                x = road.imputer(IMAGES[k], mask.float()).float().view(1, 3, 24, 24)
                hits.append(float(MODEL(x).argmax(1)[0] == predicted[k]))
            assert found[metric]["fixed"].parts["curve"][k].tolist() == hits


def maps_of(x: Tensor) -> Tensor:
    return abslrp.explain(MODEL, x, method="input-x-gradient").maps


def test_lipschitz_equals_quantus_on_one_image_at_a_time(quantus: Any) -> None:
    """Quantus divides by the maximum over a whole batch, so one image at a time is where it agrees."""
    found = abslrp.evaluate(MODEL, IMAGES, "input-x-gradient", "lipschitz", ids=IDS, samples=6)["lipschitz"][
        "input-x-gradient"
    ]
    for k in range(4):
        chance = generator(0, "lipschitz", IDS[k])
        noises = iter([0.1 * torch.randn(IMAGES[k].shape, generator=chance).numpy()[None] for _ in range(6)])

        def explained(model: Any, inputs: np.ndarray, targets: np.ndarray, **_: Any) -> np.ndarray:
            maps = abslrp.explain(
                MODEL, torch.as_tensor(inputs).float(), torch.as_tensor(targets).long(), "input-x-gradient"
            ).maps
            return maps.sum(1, keepdim=True).double().numpy()

        metric = quantus.LocalLipschitzEstimate(
            nr_samples=6,
            perturb_func=lambda arr, **_: arr + next(noises).reshape(arr.shape),  # noqa: B023
            perturb_func_kwargs={},
            normalise=True,
            normalise_func=lambda a, **_: a / np.abs(a).max(),
            abs=False,
            disable_warnings=True,
            return_nan_when_prediction_changes=False,
        )
        target = int(MODEL(IMAGES[k : k + 1]).argmax())
        theirs = metric(
            model=MODEL,
            x_batch=IMAGES[k : k + 1].numpy(),
            y_batch=np.array([target]),
            a_batch=None,
            explain_func=explained,
            device="cpu",
        )
        assert float(found.scores[k]) == pytest.approx(float(theirs[0]), rel=1e-4)


def test_pointing_game_equals_quantus_where_there_is_a_mask(quantus: Any) -> None:
    boxes = [{0: [(3, 4, 15, 20)]}, {1: [(0, 0, 10, 10)]}, {2: [(8, 2, 24, 20)]}, {3: [(1, 1, 23, 23)]}]
    found = abslrp.evaluate(MODEL, IMAGES, "input-x-gradient", "pointing-game", boxes=boxes)["pointing-game"][
        "input-x-gradient"
    ]
    masks = np.zeros((4, 1, 24, 24), dtype=bool)
    for k, one in enumerate(boxes):
        for x0, y0, x1, y1 in next(iter(one.values())):
            masks[k, 0, y0:y1, x0:x1] = True
    targets = torch.arange(4)
    maps = abslrp.explain(MODEL, IMAGES, targets, "input-x-gradient").maps.sum(1, keepdim=True).numpy()
    metric = quantus.PointingGame(disable_warnings=True, abs=False, normalise=False)
    theirs = metric(
        model=MODEL, x_batch=IMAGES.numpy(), y_batch=targets.numpy(), a_batch=maps, s_batch=masks, device="cpu"
    )
    assert found.scores.tolist() == [float(hit) for hit in theirs]
