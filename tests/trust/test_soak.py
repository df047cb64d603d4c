"""Many explanations in one process: nothing stays behind. The whole is ``python -m benchmarks.soak --count 20000``."""

from __future__ import annotations

import gc

import pytest
import torch
from benchmarks.soak import soak
from tests.contract.test_methods import model_of
from torch import Tensor, nn

import abslrp
from abslrp import memory


def alive() -> int:
    gc.collect()
    return sum(issubclass(type(one), Tensor) for one in gc.get_objects())


@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
def test_evaluations_leave_no_tensors(kind: str) -> None:
    """Counting what autograd keeps once held all activations of one forward for ever."""
    model, x = model_of(kind), torch.randn(4, 3, 16, 16)
    abslrp.evaluate(model, x, ["saliency"], "gae", T=2)
    before = alive()
    for _ in range(3):
        abslrp.evaluate(model, x, ["saliency"], "gae", T=2)
    assert alive() == before


def test_a_bound_on_memory_leaves_no_tensors() -> None:
    model, x = model_of("convolutional"), torch.randn(2, 3, 16, 16)
    abslrp.explain(model, x, max_memory="1GB")
    before = alive()
    abslrp.explain(model, x, max_memory="1GB")
    assert alive() == before


def test_what_a_node_saves_of_itself_is_counted_once() -> None:
    """The output of the exponential and of the sigmoid, 40 bytes each, and no more."""
    model = nn.Sequential(nn.Sigmoid(), nn.Softplus())
    one = memory._saved_bytes(lambda x: x.exp().sigmoid(), torch.randn(1, 10), ())
    assert one == 80
    assert memory.batch_size(model, torch.randn(4, 10), budget=10**6) == 8


@pytest.mark.slow
def test_a_soak_of_some_thousand_is_flat() -> None:
    found = soak(300, note=lambda text: None)
    assert found.explanations >= 300 and found.evaluations >= 20 and found.refused >= 13 * 20
    assert found.tensors[0] == found.tensors[1]
    assert not found.memory[0] or found.grown < 8 * 2**20
