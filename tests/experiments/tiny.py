"""A run that takes a second or two, to be started, killed and started again; also a program:

python -m tests.experiments.tiny run OUT DATA                   to the end
python -m tests.experiments.tiny ray OUT DATA                   on two workers, one of which is killed
python -m tests.experiments.tiny kill OUT DATA SECONDS TIMES    killed at random moments, then to the end
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from abslrp.experiments.config import Config, make_config
from abslrp.experiments.engines import Ray
from abslrp.experiments.runner import Step, run
from abslrp.experiments.store import Row, Store
from abslrp.inputs.images import Transform
from abslrp.inputs.models import LoadedModel

METHODS = "abslrp,gradcam,random,rough=smoothgrad:samples=3"
METRICS = "gae:T=4,settings=authors,road-morf:percentages=20,60,lipschitz:samples=3,focus"


def loaded(classes: int = 4, names: list[str] | None = None) -> LoadedModel:
    """A small network that tells tints apart."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU()]
    features, head = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(32, classes)
    with torch.no_grad():
        # Without this, one class would win everywhere.
        middle = features(0.45 + 0.5 * torch.randn(64, 3, 16, 16) + 0.6 * torch.randn(64, 3, 1, 1)).mean(0)
        head.weight.mul_(30)
        head.bias.copy_(-head.weight @ middle)
    model = nn.Sequential(*features, head).eval()
    return LoadedModel(model, Transform(size=(16, 16), resize=20), names, "tiny")


def pictures(folder: Path, count: int = 20, classes: int = 4) -> Path:
    """A folder of noise in class folders."""
    for number in range(count):
        path = folder / f"class{number % classes}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        chance = np.random.default_rng(number)
        # Tinted, so that the network does not take them all for the same.
        pixels = chance.integers(0, 128, (24, 30, 3)) + chance.integers(0, 128, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def configuration(data: Path, **changes: Any) -> Config:
    """What the tests run."""
    return make_config({"model": "tiny", "data": str(data), "methods": METHODS, "metrics": METRICS, **changes})


def contents(out: Path) -> tuple[list[Row], dict[tuple[str, ...], list[float]]]:
    """All rows and arrays of a run."""
    with Store.open(out) as store:
        arrays = {key: store.array(*key) for key in store.kept()}
        return store.rows(), {key: value.tolist() for key, value in arrays.items() if value is not None}


def _do(out: Path, data: Path, started: Callable[[], object] = lambda: None) -> float:
    """A run to its end; how many seconds it scored."""
    times: list[float] = []

    def step(one: Step) -> None:
        if one.stage == "scoring":
            times.append(time.monotonic())
            if len(times) == 2:  # the first thing that it scored
                started()

    run(configuration(data), out, progress=step, loaded=loaded()).close()
    return times[-1] - times[0] if times else 0.0


def _ray(out: Path, data: Path) -> list[int]:
    """Two workers, the first of which is killed as soon as some scores are there."""
    engine, killed = Ray("local", workers=2), []

    def step(one: Step) -> None:
        if one.done and not killed and engine.pids():
            killed.append(engine.pids()[0])
            os.kill(killed[0], signal.SIGKILL)

    run(configuration(data), out, engine=engine, progress=step, loaded=loaded()).close()
    return killed


def _kill(out: Path, data: Path, seconds: float, times: int) -> dict[str, list[int]]:
    """Children are forked before anything was computed here: they need not import everything again."""
    chance, ends, counts = random.Random(7), [], []
    configuration(data)  # imports what children would import
    for turn in range(times):
        hear, speak = os.pipe()
        child = os.fork()
        if not child:
            _do(out, data, lambda speak=speak: os.write(speak, b"."))
            os._exit(0)
        os.close(speak)
        # Every fourth soon after its birth, the others while they score; the first score takes as long as many later ones.
        if turn % 4:
            os.read(hear, 1)
        time.sleep(chance.uniform(0, seconds / 5))
        os.kill(child, signal.SIGKILL)
        ends.append(os.waitpid(child, 0)[1])
        os.close(hear)
        if (out / "run.sqlite").exists():
            with Store.open(out, create=True) as store:
                counts.append(sum(store.counts().values()))
    _do(out, data)
    return {"ends": ends, "counts": counts}


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    home, images = Path(words[0]), Path(words[1])
    if what == "kill":
        print(json.dumps(_kill(home, images, float(words[2]), int(words[3]))))
    else:
        print(json.dumps(_ray(home, images) if what == "ray" else _do(home, images)))
