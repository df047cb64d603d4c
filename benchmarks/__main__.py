"""``python -m benchmarks``: what each method costs beside one plain gradient (forward, backward to the input).

All methods of a network run interleaved in one process; the median of the rounds counts. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import abslrp
from abslrp.inputs.torchvision_ops import ensure_torchvision

METHODS = ("abslrp", "abslrp-agree", "lrp-epsilon", "lrp-alpha1beta0", "guided-backprop", "gradcam")


def networks() -> dict[str, Callable[[], nn.Module]]:
    ensure_torchvision()
    import timm
    import torchvision

    return {
        "VGG16": torchvision.models.vgg16,
        "ResNet50": torchvision.models.resnet50,
        "ViT-Base/16": lambda: timm.create_model("vit_base_patch16_224"),
    }


def plain_gradient(model: nn.Module, x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)
    return g


def seconds(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(model: nn.Module, batch: int, device: str, rounds: int) -> dict[str, float]:
    """Medians in seconds, the plain gradient's under "gradient"."""
    model = model.to(device).eval().requires_grad_(False)
    x = torch.randn(batch, 3, 224, 224, device=device)
    jobs: dict[str, Callable[[], object]] = {"gradient": lambda: plain_gradient(model, x)}
    jobs |= {name: lambda name=name: abslrp.explain(model, x, 0, name) for name in METHODS}  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            taken = seconds(job, device)
            if number:
                times[name].append(taken)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks.json"))
    options = parser.parse_args()
    results = {}
    print("| network | gradient | " + " | ".join(METHODS) + " |\n|" + "---|" * (len(METHODS) + 2))
    for name, build in networks().items():
        torch.manual_seed(0)
        results[name] = measure(build(), options.batch, options.device, options.rounds)
        unit = results[name]["gradient"]
        ratios = " | ".join(f"{results[name][m] / unit:.2f}" for m in METHODS)
        print(f"| {name} | {unit * 1000:.0f} ms | {ratios} |", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"batch": options.batch, "rounds": options.rounds, "device": options.device, "torch": torch.__version__}
    options.out.write_text(json.dumps({"settings": settings, "seconds": results}, indent=1))


if __name__ == "__main__":
    main()
