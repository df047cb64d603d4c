"""``python -m benchmarks.gae``: images per second of a whole GAE evaluation, against its floor.

The floor is what cannot be avoided: 2T gradients of every image, which all methods share, and 2T maps per method, each at the cost
that it has on its own in batches of the same size. Weights and images are random.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import abslrp
from abslrp.evaluate import choose_methods, set_sizes
from abslrp.metrics.bench import Bench
from abslrp.precision import full_precision
from abslrp.query import make_query, undisturbed
from benchmarks.networks import NETWORKS, Task, gradient


def seconds(job: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    job()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def sizes(task: Task, methods: list[str]) -> dict[str, int]:
    """How many inputs the evaluation sends through at once, of the gradient and of each method."""
    asked = choose_methods(methods, task.model)
    x = task.inputs
    bench = Bench(
        make_query(task.model, x[:1], None, None, None), lambda n: x[list(n)], [str(k) for k in range(len(x))], 1, 0
    )
    with undisturbed(x), full_precision():
        set_sizes(bench, asked, x, None)
    return {"gradient": bench.size, **{one.name: one.size for one in asked}}


def per_input(task: Task, batch: int, job: Callable[[Task], Any], device: str) -> float:
    """Seconds for one input, the median of three runs of a batch."""
    x = torch.randn(batch, *task.inputs.shape[1:], device=task.inputs.device)
    one = Task(task.model, x)
    with full_precision():
        job(one)
        return median(seconds(lambda: job(one), device) for _ in range(3)) / batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS)[:3], default=["ResNet50"])
    parser.add_argument("--methods", nargs="+", default=["abslrp", "gradcam"])
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="T")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks-gae.json"))
    options = parser.parse_args()
    found = {}
    for network in options.networks:
        torch.manual_seed(0)
        task = NETWORKS[network](options.images).to(options.device)
        many = sizes(task, options.methods)
        cost = {"gradient": per_input(task, many["gradient"], gradient, options.device)}
        for name in options.methods:
            run = lambda t, name=name: abslrp.explain(t.model, t.inputs, 0, name)  # noqa: E731
            cost[name] = per_input(task, many[name], run, options.device)
        floor = 2 * options.steps * options.images * sum(cost.values())
        whole = partial(abslrp.evaluate, task.model, task.inputs, options.methods, "gae", T=options.steps)
        if options.device == "cuda":
            whole()  # kernels are compiled, and convolutions chosen, once
        taken = seconds(whole, options.device)
        found[network] = {"batch": many, "seconds per input": cost, "floor": floor, "taken": taken}
        print(
            f"{network}: {options.images / taken:.3f} images per second with {', '.join(options.methods)}; "
            f"{taken:.1f} s, {taken / floor:.2f} of the floor of {floor:.1f} s",
            flush=True,
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
