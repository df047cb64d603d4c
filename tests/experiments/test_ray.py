"""Runs on a Ray cluster of two workers, one of which is killed: the scores of a run in one process."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.test_resume import ended, program
from tests.experiments.tiny import configuration, contents, loaded, pictures

from abslrp.experiments.engines import Failure, Local, Ray, Remote, make_engine
from abslrp.experiments.runner import run
from abslrp.experiments.worker import Probe
from abslrp.types import AbslrpError

HERE = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HERE, reason="Ray is not here: pip install 'abslrp[cluster]'")


@needs_ray
def test_two_workers_one_of_which_is_killed(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    ended(program("run", tmp_path / "local", data))
    said = ended(program("ray", tmp_path / "ray", data))
    assert len(json.loads(said.splitlines()[-1])) == 1
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AbslrpError, match=r"--engine ray needs the package ray: pip install 'abslrp\[cluster\]'"):
        make_engine("ray")


def test_settings_of_a_cluster_are_for_a_cluster() -> None:
    assert isinstance(make_engine("local"), Local)
    with pytest.raises(AbslrpError, match="--workers is for a cluster: add --engine ray"):
        make_engine("local", workers=2)
    with pytest.raises(AbslrpError, match="engine 'spark' is unknown"):
        make_engine("spark")


@dataclass(eq=False)
class Reference:
    call: Any
    name: str
    words: tuple[Any, ...]


class Fake:
    """As much of Ray as the driver uses, in this process; workers die when told to."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self, deaths: int, cpus: int = 2) -> None:
        self.deaths, self.cpus, self.born = deaths, cpus, 0

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def put(self, value: Any) -> Any:
        return value

    def kill(self, actor: Any) -> None:
        pass

    def remote(self, kind: Any) -> Any:
        fake = self

        class Bound:
            def __init__(self, setup: Any) -> None:
                fake.born += 1
                self._worker = kind(setup)

            def __getattr__(self, name: str) -> Any:
                class Call:
                    def remote(_, *words: Any) -> Any:
                        return Reference(getattr(self._worker, name), name, words)

                return Call()

        class Options:
            def options(self, **settings: Any) -> Any:
                return type("Made", (), {"remote": staticmethod(Bound)})

        return Options()

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def get(self, reference: Any) -> Any:
        if reference.name == "score" and self.deaths:
            self.deaths -= 1
            raise self.exceptions.RayError("the node went away.\n")
        return reference.call(*reference.words)


def engine(fake: Fake, **settings: Any) -> Ray:
    made = Ray.__new__(Ray)
    made.__dict__.update(
        _ray=fake,
        _address="auto",
        _asked=2,
        _gpus=None,
        _hands={},
        _count=0,
        _mine=False,
        _lost=0,
        _spare=None,
        **settings,
    )
    return made


def test_pieces_of_the_dead_are_done_by_others(tmp_path: Path) -> None:
    data, fake = pictures(tmp_path / "data", 12), Fake(deaths=2)
    config = configuration(data, methods="abslrp,random")
    run(config, tmp_path / "local", loaded=loaded()).close()
    run(config, tmp_path / "ray", loaded=loaded(), engine=engine(fake)).close()
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert fake.born >= 4


def test_death_without_end_is_a_sentence_and_the_rest_is_kept(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data", 12)
    config = configuration(data, methods="abslrp,random")
    with pytest.raises(AbslrpError, match=r"workers of the cluster died .* \(the node went away\): look at Ray's logs"):
        run(config, tmp_path / "ray", loaded=loaded(), engine=engine(Fake(deaths=1000)))
    run(config, tmp_path / "ray", loaded=loaded()).close()
    run(config, tmp_path / "local", loaded=loaded()).close()
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_a_cluster_without_room_is_a_sentence(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data", 4)
    with pytest.raises(AbslrpError, match="the cluster has 0 CPUs and 0 GPUs, too few for one worker"):
        run(configuration(data, metrics="gae:T=2"), tmp_path / "ray", loaded=loaded(), engine=engine(Fake(0, cpus=0)))


def test_errors_of_workers_come_back_as_what_they_are() -> None:
    remote = Remote(None)  # type: ignore[arg-type]
    found = remote.use(Probe({}, {}))
    assert isinstance(found, Failure) and not found.expected and "Traceback" in str(found.raised())
    assert isinstance(Failure("a sentence.", True).raised(), AbslrpError)
