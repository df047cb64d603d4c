"""On real networks the metrics rank methods as measured before, and no batch changes a score."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.networks import shared_images, shared_labels, shared_network

import abslrp


@pytest.mark.slow
def test_gae_ranks_methods_on_resnet50(shared: Path) -> None:
    """cLRP and absLRP together, ahead of GuidedGradCAM, ahead of GradCAM, ahead of Input×Gradient."""
    model, x = shared_network(shared, "resnet50"), shared_images(shared, "resnet50", 24)
    methods = ["abslrp", "clrp", "guided-gradcam", "gradcam", "input-x-gradient"]
    found = abslrp.evaluate(model, x, methods, "gae", settings="authors", mosaics=10)["gae"]
    mean = {method: found[method].mean for method in methods}
    assert min(mean["abslrp"], mean["clrp"]) > mean["guided-gradcam"] > mean["gradcam"] > mean["input-x-gradient"]
    assert abs(mean["abslrp"] - mean["clrp"]) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "methods"), [("vit-tiny", ["abslrp", "abslrp-agree", "hirescam"]), ("vgg16", ["abslrp", "gradcam"])]
)
def test_batches_of_real_images_change_no_score(name: str, methods: list[str], shared: Path) -> None:
    model, x = shared_network(shared, name), shared_images(shared, name, 6)
    one, all_ = (abslrp.evaluate(model, x, methods, "gae", mosaics=3, batch_size=size)["gae"] for size in (1, 8))
    for method in methods:
        torch.testing.assert_close(one[method].scores, all_[method].scores, rtol=0, atol=1e-4)


def test_cheap_methods_rank_on_vgg16(shared: Path) -> None:
    """The default share: GradCAM knows the class, Input×Gradient is near chance, a constant map knows nothing.

    With 24 images: of 12 only five have a partner of their class, and what lies on a few tiles is no chance.
    """
    model, x = shared_network(shared, "vgg16"), shared_images(shared, "vgg16", 24)
    labels = shared_labels(shared, "vgg16", 24)
    with torch.no_grad():
        assert (model(x).argmax(1) == torch.tensor(labels)).float().mean() > 0.8
    found = abslrp.evaluate(model, x, ["gradcam", "input-x-gradient", "constant"], "focus", labels=labels)["focus"]
    assert len(found["gradcam"]) > 20 and found["gradcam"].mean > 0.85
    assert 0.4 < found["input-x-gradient"].mean < 0.6
    assert found["constant"].scores.tolist() == [0.5] * len(found["constant"])
