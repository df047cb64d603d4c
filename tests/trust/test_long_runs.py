"""A long run that is killed, asked to end, or left without memory, again and again, ends with nothing lost and nothing doubled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.experiments.tiny import contents, pictures

from abslrp.experiments.store import Store

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
# Images, and how many processes in trouble of each kind there are before one without.
QUICK = 12, {"none": 0, "kill": 5, "end": 2, "memory": 3, "little-memory": 1, "writing": 9}
MANY = 200, {"none": 0, "kill": 80, "end": 50, "memory": 40, "little-memory": 20}

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here"),
    # What is made once is used by all of them.
    pytest.mark.xdist_group("long-runs"),
]


class End(NamedTuple):
    """How one process ended, what it said, and the tables that it made anew."""

    code: int
    said: str
    new: list[str]
    tables: dict[str, str]


class Storm:
    """Runs that were in trouble of several kinds, each to its end at last."""

    def __init__(self, home: Path, data: Path, images: int, plan: dict[str, int]) -> None:
        self.home, self.images = home, images
        words = [str(home), str(data), *(f"{kind}={times}" for kind, times in plan.items())]
        done = subprocess.run(
            [sys.executable, "-m", "tests.trust.storm", *words],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.ends = {kind: [End(*one) for one in ends] for kind, ends in json.loads(done.stdout).items()}

    def check(self, kind: str) -> list[End]:
        """The troubled processes of a kind; the last of its run, which had none, ended with what an undisturbed one has."""
        *troubled, last = self.ends[kind]
        assert (last.code, last.said) == (0, ""), last
        assert contents(self.home / kind) == contents(self.home / "none")
        assert last.tables == self.ends["none"][-1].tables and len(last.tables) == 3
        return troubled


@pytest.fixture(
    scope="module", params=[pytest.param(QUICK, id="quick"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
def storm(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Storm:
    images, plan = request.param
    return Storm(tmp_path_factory.mktemp("storm"), pictures(tmp_path_factory.mktemp("pictures"), images), images, plan)


def test_the_undisturbed_run_is_whole(storm: Storm) -> None:
    storm.check("none")
    with Store.open(storm.home / "none") as store:
        assert sum(store.counts().values()) == storm.images * 2 * 2


def test_killed_in_the_middle_of_a_transaction(storm: Storm) -> None:
    troubled = storm.check("kill")
    assert sum(one.code == -9 for one in troubled) >= 5 and {one.code for one in troubled} <= {-9, 0}


def test_asked_to_end_several_times_over(storm: Storm) -> None:
    troubled = storm.check("end")
    kept = f"what was scored is kept in {storm.home / 'end'}, and the same command goes on from there"
    assert {one.said for one in troubled if one.code == 143} == {f"stopped: {kept}.\n"}
    assert sum(one.code == 143 for one in troubled) >= 2 and {one.code for one in troubled} <= {143, 0}, troubled


@pytest.mark.parametrize("kind", ["memory", "little-memory"])
def test_left_without_memory(storm: Storm, kind: str) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("how much memory a process has cannot be read here")
    troubled = storm.check(kind)
    kept = f"what was scored is kept in {storm.home / kind}, and the same command goes on from there"
    says = f"error: memory ran out: {kept}; free some first, or give a smaller --batch.\n"
    assert {one.said for one in troubled if one.code == 2} == {says}
    assert {one.code for one in troubled} <= {2, 0} and troubled[0].code == 2, troubled


def test_a_table_is_old_or_new_but_never_half(storm: Storm) -> None:
    """Each of the three tables is filled, made readable and put in its place: nine moments to die."""
    if "writing" not in storm.ends:
        pytest.skip("there are nine moments only, and the quick tests have them all")
    troubled = storm.check("writing")
    assert [one.code for one in troubled] == [-9] * 9
    assert [len(one.new) for one in troubled] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    final = storm.ends["none"][-1].tables
    assert all(text == final[table] for one in troubled for table, text in one.tables.items())
