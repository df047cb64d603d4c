"""Evaluation takes products in full precision and puts the user's setting back."""

import pytest
import torch

import abslrp
from abslrp.query import full_precision


def test_full_precision_is_put_back() -> None:
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), full_precision():
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
        _ = 1 / 0
    assert torch.backends.cudnn.allow_tf32 == before


def test_methods_run_in_full_precision_inside_evaluate() -> None:
    seen = []
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()

    def method(model: object, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cudnn.allow_tf32)
        return x

    abslrp.evaluate(model, torch.randn(4, 1, 4, 4), {"mine": method}, "gae", T=2)
    assert seen and not any(seen)
