"""``python -m benchmarks.paper_runs NETWORK OUT``: the paper's comparison on a network and images of ../shared.

The same as ``abslrp evaluate --preset paper``, but for networks that no library builds as they are stored. A run that was stopped
goes on where it was; ``--seconds`` stops it by itself. ``--page docs/results.md`` puts the table into a page.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from tests.networks import TRANSFORMS, shared_network

from abslrp.experiments.config import make_config
from abslrp.experiments.presets import expand
from abslrp.experiments.runner import Step, run
from abslrp.inputs.datasets import open_dataset
from abslrp.inputs.models import LoadedModel

KINDS = {"resnet50": "resnet", "vit-tiny": "vit", "vgg16": "vgg"}

IMAGENETTE = [
    *("tench", "English springer", "cassette player", "chain saw", "church"),
    *("French horn", "garbage truck", "gas pump", "golf ball", "parachute"),
]


class Enough(Exception):
    """The time is over; what is done is kept."""


def loaded(shared: Path, name: str, device: str) -> LoadedModel:
    """The network with the names of its classes; those of ImageNet's are in the data's classes.csv."""
    names = IMAGENETTE if name == "vgg16" else open_dataset(shared / "data" / "imagenet-val").class_names
    return LoadedModel(shared_network(shared, name).to(device), TRANSFORMS[name], names, name)


def configured(shared: Path, name: str, options: argparse.Namespace) -> Any:
    folder = shared / "data" / ("imagenette-val" if name == "vgg16" else "imagenet-val")
    given = {
        "preset": "paper",
        "architecture": KINDS[name],
        "model": name,
        "data": str(folder),
        "images": options.images,
        "seed": options.seed,
        "methods": options.methods,
        "metrics": options.metrics,
        "tf32": options.tf32 or None,
    }
    ((_, values),) = expand({key: value for key, value in given.items() if value is not None})
    return make_config(values)


def told(store: Any, out: Path, model: LoadedModel, page: Path | None) -> None:
    """The tables and the report, and the table in a page, where what they need is installed.

    The same command makes them later elsewhere, from the finished run.
    """
    try:
        from abslrp.commands import table_of, write_tables
        from abslrp.report_command import write_run_report
        from benchmarks.results import put

        write_tables(table_of(store), out)
        if page is not None:
            put(page, f"paper-{model.name}", (out / "table.md").read_text().strip())
        device = "cuda" if next(model.model.parameters()).is_cuda else "cpu"
        print(write_run_report(out, loaded=model, device=device, tell=print))
    except ImportError as error:
        print(f"no tables here ({error}): run the same command where they can be made; all scores are in {store.path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=list(KINDS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--images", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods")
    parser.add_argument("--metrics")
    parser.add_argument("--tf32", action="store_true", help="products rounded to TF32")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    begun = time.perf_counter()
    last = begun

    def step(now: Step) -> None:
        nonlocal last
        passed = time.perf_counter()
        if passed - last > 10:
            last = passed
            print(f"{now.stage} {now.done} of {now.total} {now.metric} {now.method} {passed - begun:.0f} s", flush=True)
        if passed - begun > options.seconds:
            raise Enough

    try:
        model = loaded(options.shared, options.network, options.device)
        config = configured(options.shared, options.network, options)
        store = run(config, options.out, options.device, progress=step, loaded=model, tell=print)
        print(f"finished in {time.perf_counter() - begun:.0f} s")
        told(store, options.out, model, options.page)
    except Enough:
        print(f"stopped after {options.seconds:.0f} s; the same command goes on")


if __name__ == "__main__":
    main()
