"""A run that was interrupted, however, ends with the rows of one that was not, to the last bit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiments.tiny import configuration, contents, loaded, pictures
from torch import nn

from abslrp.experiments.runner import Step, run
from abslrp.experiments.worker import Worker
from abslrp.inputs.models import LoadedModel

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def program(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.experiments.tiny", *map(str, words)],
        cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    said, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return said


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Any, float]:
    """What a run that nobody disturbs has, and the seconds that it scored."""
    out = tmp_path_factory.mktemp("whole")
    seconds = float(ended(program("run", out, data)))
    return contents(out), seconds


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_killed_ten_times_and_resumed(data: Path, whole: tuple[Any, float], tmp_path: Path) -> None:
    told = json.loads(ended(program("kill", tmp_path / "run", data, whole[1], 10)))
    assert sum(end == 9 for end in told["ends"]) >= 5  # a slow machine's clock may let some of them finish
    assert len({count for count in told["counts"] if 0 < count < 320}) > 1, told
    assert contents(tmp_path / "run") == whole[0]


def test_two_processes_on_one_run(data: Path, whole: tuple[Any, float], tmp_path: Path) -> None:
    for process in [program("run", tmp_path / "run", data) for _ in range(2)]:
        ended(process)
    assert contents(tmp_path / "run") == whole[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_many_open_a_new_run_at_once(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from abslrp.experiments.store import Row, Store\n"
        "def child(out, start):\n"
        "    while time.time() < start: pass\n"
        "    with Store.open(out, create=True) as store:\n"
        "        first = store.begin({'hash': ''}, {}, {})\n"
        "        store.add([Row('image', 'method', 'metric', 'score', 1.0)])\n"
        "    os._exit(7 if first else 0)\n"
        "for turn in range(20):\n"
        "    start, children = time.time() + 0.03, []\n"
        "    for _ in range(6):\n"
        "        children.append(os.fork())\n"
        "        if not children[-1]: child(Path(sys.argv[1], str(turn)), start)\n"
        "    ends = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)\n"
        "    assert ends == [0] * 5 + [7], ends"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_images_are_taken_for_different_things(whole: tuple[Any, float]) -> None:
    # Otherwise mosaics would be no test: their score would not depend on which images they hold.
    contrasts = {row.value for row in whole[0][0] if row.part == "C" and row.method == "gradcam"}
    assert len(contrasts) > 10


def dense() -> LoadedModel:
    """Wide layers, whose products are rounded otherwise in another batch."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(768, 700), nn.ReLU(), nn.Linear(700, 300), nn.ReLU(), nn.Linear(300, 4)]
    return LoadedModel(nn.Sequential(*layers).eval(), loaded().transform, None, "dense")


def test_stopped_after_any_piece(data: Path, tmp_path: Path) -> None:
    chance, turns = random.Random(1), 0
    config = configuration(data, methods="abslrp,saliency")
    run(config, tmp_path / "whole", loaded=dense()).close()
    while True:
        left = chance.randint(1, 4)

        def stop(step: Step) -> None:
            nonlocal left
            left -= step.stage == "scoring"
            if left < 0:
                raise InterruptedError

        try:
            run(config, tmp_path / "run", loaded=dense(), progress=stop).close()
            break
        except InterruptedError:
            turns += 1
    assert turns > 3
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_what_is_done_is_not_done_again(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    jobs: list[tuple[int, str, str]] = []
    prepared: list[tuple[int, str]] = []
    score, prepare = Worker.score, Worker._prepare

    def counted(self: Worker, job: Any) -> Any:
        jobs.append((job.chunk, job.metric, job.method))
        return score(self, job)

    def watched(self: Worker, job: Any, *rest: Any) -> Any:
        if self._prepared[0] != (job.chunk, job.metric):
            prepared.append((job.chunk, job.metric))
        return prepare(self, job, *rest)

    monkeypatch.setattr(Worker, "score", counted)
    monkeypatch.setattr(Worker, "_prepare", watched)

    def stop(step: Step) -> None:
        if step.done >= 100:
            raise InterruptedError

    config = configuration(
        data, methods="random,constant", metrics="gae:T=2,road-morf:percentages=50,lipschitz:samples=2"
    )
    with pytest.raises(InterruptedError):
        run(config, tmp_path, loaded=loaded(), progress=stop)
    run(config, tmp_path, loaded=loaded()).close()
    assert len(jobs) == len(set(jobs)) == 3 * 3 * 2
    # Only what the interruption cut in two is prepared again.
    assert len(prepared) <= 3 * 3 + 1
