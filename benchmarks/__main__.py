"""``python -m benchmarks``: what each method costs beside one plain gradient (forward, backward to the input).

Time, peak memory and floating-point operations of every method as multiples of the plain gradient's, beside Captum, Zennit and
grad-cam for what they can run. All run in one process, in turn, and the median of the rounds counts. Weights are random.

python -m benchmarks --networks VGG16 ResNet50 ViT-Base/16 BERT-base --batch 1 8 --out out/benchmarks.json
python -m benchmarks --table out/benchmarks.json            # print it again, or put it between the markers of a page:
python -m benchmarks --table out/benchmarks.json --page docs/performance.md --name cpu
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.peers import PEERS
from torch import nn

import abslrp
from benchmarks.measure import Measured, measure
from benchmarks.networks import NETWORKS, Task, gradient
from benchmarks.results import put

MAIN = ("abslrp", "abslrp-agree", "lrp-epsilon", "lrp-alpha1beta0", "guided-backprop", "gradcam")
PRECISIONS = ("float32", "tf32", "bfloat16")
# What runs the model dozens of times or more is asked for by name.
LONG = ("integrated-gradients", "smoothgrad", "occlusion", "rise", "gradient-shap", "constant", "random")


REPLAYED = ", replayed"


def jobs_of(task: Task, names: list[str], peers: bool, graphs: bool, tf32: bool) -> dict[str, Any]:
    """Every job by name; what does not fit says so when it is tried. With ``graphs`` each replayed as a CUDA graph, too."""
    jobs: dict[str, Any] = {"gradient": lambda: gradient(task)}
    if graphs:
        jobs["gradient" + REPLAYED] = _Replayed(partial(gradient, task))
    for name in names:
        run = partial(abslrp.explain, task.model, task.inputs, 0, name, tf32=tf32)
        jobs[name] = partial(run, forward=task.forward)
        if graphs and task.forward is None:
            jobs[name + REPLAYED] = partial(run, cuda_graph=True)
    if peers and task.forward is None:
        plain = without_writing(task.model)
        jobs |= {name: lambda make=make: make(plain, task.inputs) for name, make in PEERS.items()}  # type: ignore[misc]
    return jobs


class _Replayed:
    """A job that is recorded as a CUDA graph when it is first called."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self._job, self._graph = job, None

    def __call__(self) -> None:
        if self._graph is None:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._job()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=side):
                self._made = self._job()
        self._graph.replay()


def without_writing(model: nn.Module) -> nn.Module:
    """A copy whose rectifiers do not write over their inputs, which hooks of others do not survive."""
    import copy

    made = copy.deepcopy(model)
    for module in made.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return made


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = list(MAIN) if options.methods == ["main"] else options.methods
    if options.methods == ["all"]:
        names = [name for name in abslrp.methods() if name not in LONG]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    found: dict[str, Any] = {}
    for network in options.networks:
        for batch in options.batch:
            torch.manual_seed(0)
            task = NETWORKS[network](batch).to(options.device)
            if options.precision == "bfloat16":
                task = task.to(torch.bfloat16)
            results = measure(
                jobs_of(task, names, options.peers, options.graphs, options.precision == "tf32"),
                options.rounds,
                options.device,
            )
            found[f"{network}, batch {batch}"] = {name: one._asdict() for name, one in results.items()}
            print(rows(f"{network}, batch {batch}", results), flush=True)
    return found


def rows(title: str, results: dict[str, Measured]) -> str:
    """A Markdown table of ratios to the gradient and of inputs per second; what refused says why."""
    unit = results["gradient"]
    assert unit.seconds
    batch = int(title.rpartition(" ")[2])
    lines = [
        f"**{title}**: one gradient {unit.seconds * 1000:.1f} ms, {unit.memory / 2**20:.0f} MiB, {unit.flops / 1e9:.1f} GFLOP, "
        f"{batch / unit.seconds:.0f} inputs per second",
        "",
        "| | time | memory | operations | inputs per second |",
        "|---|---|---|---|---|",
    ]
    for name, one in results.items():
        if name == "gradient":
            continue
        if one.refused:
            lines.append(f"| {name} | refuses: {one.refused.partition(': ')[2][:60] or one.refused[:60]} | | | |")
            continue
        # What a graph replays is not seen by the counter, and its memory stays taken.
        replayed = name.endswith(REPLAYED)
        memory = f"{one.memory / unit.memory:.2f}" if unit.memory and not replayed else ""
        operations = "" if replayed else f"{one.flops / max(unit.flops, 1):.2f}"
        lines.append(
            f"| {name} | {one.seconds / unit.seconds:.2f} | {memory} | {operations} | {batch / one.seconds:.3g} |"
        )
    return "\n".join(lines) + "\n"


def machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    return f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, {model}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--batch", nargs="+", type=int, default=[8])
    parser.add_argument("--methods", nargs="+", default=["main"], help="names, or main, or all")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--graphs", action="store_true", help="replayed as CUDA graphs, too")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks.json"))
    parser.add_argument("--table", type=Path, help="print the table of an earlier run instead")
    parser.add_argument("--page", type=Path, help="put that table into a page")
    parser.add_argument("--name", help="between the markers of this name")
    options = parser.parse_args()
    if options.table:
        stored = json.loads(options.table.read_text())
        settings = stored["settings"]
        text = [f"{settings['machine']}, torch {settings['torch'].partition('+')[0]}, {settings['precision']}.", ""]
        for title, results in stored["results"].items():
            text.append(rows(title, {name: Measured(**one) for name, one in results.items()}))
        if options.page:
            put(options.page, options.name, "\n".join(text).rstrip())
        else:
            print("\n".join(text))
        return 0
    found = run(options)
    settings = {
        "rounds": options.rounds,
        "precision": options.precision,
        "machine": machine(options.device),
        "torch": torch.__version__,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"settings": settings, "results": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
