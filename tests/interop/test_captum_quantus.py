"""abslrp under Captum's and Quantus' own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import abslrp
from abslrp.captum import AbsLRP
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.quantus import explain_func
from abslrp.types import AbslrpError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(6 * 64, 4),
    ).eval()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_it_is_one_of_captums_and_gives_the_same_maps(net: torch.nn.Module, x: torch.Tensor) -> None:
    attr = pytest.importorskip("captum.attr", reason="captum is not installed")
    made = AbsLRP(net)
    assert isinstance(made, attr.Attribution) and not made.has_convergence_delta()
    for target in (2, torch.tensor(2), torch.tensor([0, 1, 2]), [0, 1, 2]):
        expected = abslrp.explain(
            net, x, 2 if not isinstance(target, list) and torch.as_tensor(target).numel() == 1 else target
        ).maps
        assert torch.equal(made.attribute(x, target=target), expected)
    ours = AbsLRP(net, "input-x-gradient").attribute((x,), target=1)
    theirs = attr.InputXGradient(net).attribute((x,), target=1)
    assert isinstance(ours, tuple) and torch.allclose(ours[0], theirs[0].detach(), atol=1e-6)


def test_captums_tools_take_it(net: torch.nn.Module, x: torch.Tensor) -> None:
    attr = pytest.importorskip("captum.attr", reason="captum is not installed")
    metrics = pytest.importorskip("captum.metrics", reason="captum is not installed")
    tunnel = attr.NoiseTunnel(AbsLRP(net))
    torch.manual_seed(0)
    smooth = tunnel.attribute(x, nt_type="smoothgrad", nt_samples=4, stdevs=0.1, target=1)
    assert smooth.shape == x.shape and not torch.equal(smooth, AbsLRP(net).attribute(x, target=1))
    found = metrics.infidelity(
        net,
        lambda inputs: (0.1 * torch.ones_like(inputs), inputs - 0.1),
        x,
        AbsLRP(net).attribute(x, target=1),
        target=1,
    )
    assert found.shape == (3,) and bool(found.isfinite().all())


def test_several_inputs_and_further_arguments() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(3, 2), torch.nn.Linear(4, 2)

        def forward(self, a: torch.Tensor, b: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
            return (self.a(a) + self.b(b)) * factor

    model = Two().eval()
    a, b = torch.randn(5, 3), torch.randn(5, 4)
    both = AbsLRP(model, "input-x-gradient").attribute((a, b), target=1, additional_forward_args=2.0)
    assert torch.allclose(both[0], 2 * a * model.a.weight[1]) and torch.allclose(both[1], 2 * b * model.b.weight[1])


def test_what_cannot_be_is_told_in_one_sentence(net: torch.nn.Module, x: torch.Tensor) -> None:
    with pytest.raises(AbslrpError, match="did you mean abslrp"):
        AbsLRP(net, "absrlp")
    with pytest.raises(AbslrpError, match="several indices"):
        AbsLRP(net).attribute(x, target=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(AbslrpError, match="inputs is empty"):
        AbsLRP(net).attribute((), target=1)


def test_without_captum_it_works_the_same(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['captum'] = None; sys.modules['captum.attr'] = None\n"
        "import torch; from abslrp.captum import AbsLRP\n"
        "assert AbsLRP.__bases__ == (object,)\n"
        "print(AbsLRP(torch.nn.Linear(3, 2).eval()).attribute(torch.randn(2, 3), target=0).shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""}, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and "[2, 3]" in done.stdout, done.stderr


def test_quantus_scores_our_maps(net: torch.nn.Module, x: torch.Tensor) -> None:
    # Some builds of torchvision lack what Quantus imports.
    ensure_torchvision()
    quantus = pytest.importorskip("quantus", reason="quantus is not installed")
    y = np.array([0, 1, 2])
    maps = explain_func(net, x.numpy(), y, method="abslrp")
    assert np.array_equal(maps, abslrp.explain(net, x, torch.tensor([0, 1, 2])).maps.numpy())

    def scored(**given: Any) -> list[float]:
        metric = quantus.Sparseness(disable_warnings=True, display_progressbar=False)
        return list(metric(model=net, x_batch=x.numpy(), y_batch=y, device="cpu", **given))

    called = scored(a_batch=None, explain_func=explain_func, explain_func_kwargs={"method": "abslrp"})
    assert len(called) == 3 and np.isfinite(called).all()
    assert called == pytest.approx(scored(a_batch=maps), abs=1e-6)
    summed = scored(a_batch=None, explain_func=explain_func, explain_func_kwargs={"reduce_axes": (1,)})
    assert summed == pytest.approx(scored(a_batch=maps.sum(1, keepdims=True)), abs=1e-6) != called
    assert called != pytest.approx(
        scored(a_batch=None, explain_func=explain_func, explain_func_kwargs={"method": "gradcam", "layer": "0"}),
        abs=1e-3,
    )
