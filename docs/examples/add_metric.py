"""Add a metric: how sparse maps are."""

import torch

import abslrp
from abslrp.metrics.bench import Outcome, every_image
from abslrp.metrics.maps import flags_of, positive_part
from abslrp.registry import Metric, register_metric


def sparseness(bench, numbers, explainer, options):
    maps = bench.maps(explainer, numbers, bench.logits(numbers).argmax(1))
    return Outcome({"score": 1 - positive_part(maps).flatten(1).double().mean(1)}, flags_of(maps))


register_metric(
    Metric(
        name="sparseness",
        description="1 less the mean of the positive map",
        family="robustness",
        citation="this page",
        higher_is_better=True,
        settle=lambda: {},
        plan=every_image,
        prepare=lambda bench, items, options: [item.number for item in items],
        score=sparseness,
    )
)
images, small = torch.randn(4, 1, 4, 4), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()
assert abslrp.evaluate(small, images, ["saliency", "constant"], "sparseness")["sparseness"]["constant"].mean == 0
