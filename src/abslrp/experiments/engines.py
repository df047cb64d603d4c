"""Who does the work of a run: this process, or the workers of a Ray cluster. The scores are the same."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from abslrp.checks import number, whole
from abslrp.experiments.worker import Job, Probe, Scored, Setup, Worker
from abslrp.inputs.fetching import needs
from abslrp.types import AbslrpError

ENGINES = ("local", "ray")
_TRIES = 3
_PORT = 6379
# Read by Ray when it is imported: no report to its makers, no advice about accelerators.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


class Engine(Protocol):
    """What a run asks of those who do its work."""

    name: str

    def driver_device(self, device: str) -> str:
        """Where the run's own process is to have the model, when the work is done on ``device``."""

    def start(self, setup: Setup) -> None:
        """Get ready."""

    def probe(self, batch: int | None) -> Probe:
        """Try every method once, and find how many inputs fit the memory."""

    def scores(self, probe: Probe, chunks: Iterable[list[Job]]) -> Iterator[Scored]:
        """Do all jobs; those of a chunk belong together."""

    def close(self) -> None:
        """Let go of everything."""


def make_engine(name: str, address: str | None = None, workers: int | None = None, gpus: float | None = None) -> Engine:
    """The engine of this name; the other settings are Ray's.

    >>> make_engine("local").name
    'local'
    """
    if name == "ray":
        return Ray(address or "auto", workers, gpus)
    if name != "local":
        raise AbslrpError(f"engine {name!r} is unknown: choose one of {', '.join(ENGINES)}.")
    for flag, value in (("--address", address), ("--workers", workers), ("--gpus", gpus)):
        if value is not None:
            raise AbslrpError(f"{flag} is for a cluster: add --engine ray, or leave it out.")
    return Local()


class Local:
    """This process does everything."""

    name = "local"

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def driver_device(self, device: str) -> str:
        return device

    def start(self, setup: Setup) -> None:
        self._worker = Worker(setup)

    def probe(self, batch: int | None) -> Probe:
        assert self._worker is not None
        return self._worker.probe(batch)

    def scores(self, probe: Probe, chunks: Iterable[list[Job]]) -> Iterator[Scored]:
        assert self._worker is not None
        self._worker.use(probe)
        for jobs in chunks:
            for job in jobs:
                yield self._worker.score(job)

    def close(self) -> None:
        self._worker = None


@dataclass(frozen=True)
class Failure:
    """An error on its way from a worker: a sentence for the user, or a traceback for us."""

    text: str
    expected: bool
    trace: str = ""

    def raised(self) -> Exception:
        return AbslrpError(self.text) if self.expected else RuntimeError(f"{self.text}\n{self.trace}")


class Remote:
    """A worker in another process. Errors come back as values, since Ray would wrap them in pages of its own."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._worker: Worker | None = None

    def probe(self, batch: int | None) -> Probe | Failure:
        return self._guarded(lambda: self._made().probe(batch))

    def use(self, probe: Probe) -> int | Failure:
        """The number of the process, once it is ready."""

        def ready() -> int:
            self._made().use(probe)
            return os.getpid()

        found: int | Failure = self._guarded(ready)
        return found

    def score(self, job: Job) -> Scored | Failure:
        return self._guarded(lambda: self._made().score(job))

    def _made(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._setup)
        return self._worker

    @staticmethod
    def _guarded(call: Any) -> Any:
        try:
            return call()
        except AbslrpError as error:
            return Failure(str(error), True)
        except Exception as error:
            return Failure(f"{type(error).__name__}: {error}", False, traceback.format_exc())


@dataclass
class Hand:
    """A worker of the cluster with the jobs of its chunk; the first of them is under way once it is ``ready``."""

    actor: Any
    jobs: deque[Job] = field(default_factory=deque)
    tries: int = 0
    ready: bool = False
    pid: int | None = None


class Ray:
    """The workers of a Ray cluster, one model each; what a worker that dies had begun is done again by another.

    ``address`` is ``auto`` for the cluster that this machine belongs to, ``local`` for one that is started here, or where
    the head is, HOST, HOST:PORT or ray://HOST:PORT. ``workers`` is by default as many as the cluster has room for, ``gpus``
    the share of a GPU that each gets. Images must have the same paths on all machines.
    """

    name = "ray"

    def __init__(self, address: str = "auto", workers: int | None = None, gpus: float | None = None) -> None:
        if workers is not None:
            whole("workers", workers)
        if gpus is not None:
            number("gpus", gpus)
        os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
        with needs("ray", "--engine ray", "cluster"):
            self._ray = importlib.import_module("ray")
        self._address, self._asked, self._gpus = address, workers, gpus
        self._hands: dict[Any, Hand] = {}
        self._count, self._mine, self._lost = 0, False, 0
        self._setup: Any = None
        self._spare: Any = None
        self._options: dict[str, Any] = {}

    def driver_device(self, device: str) -> str:
        return "cpu"

    def pids(self) -> list[int]:
        """The processes of the workers that are ready."""
        return [hand.pid for hand in self._hands.values() if hand.pid is not None]

    def start(self, setup: Setup) -> None:
        self._connect()
        share = self._gpus if self._gpus is not None else float(setup.device.startswith("cuda"))
        self._options = {"num_cpus": 1, "num_gpus": share, "max_restarts": 0}
        room = self._ray.cluster_resources()
        fits = int(room.get("CPU", 0))
        if share:
            fits = min(fits, int(room.get("GPU", 0) / share + 1e-9))
        if fits < 1:
            raise AbslrpError(
                f"the cluster has {room.get('CPU', 0):g} CPUs and {room.get('GPU', 0):g} GPUs, too few for one worker with "
                f"{share:g} GPUs: add machines, or lower --gpus."
            )
        self._count = min(fits, self._asked or fits)
        self._setup = self._ray.put(setup)

    def probe(self, batch: int | None) -> Probe:
        for _ in range(_TRIES):
            self._spare = self._actor()
            try:
                found = _unpacked(self._ray.get(self._spare.probe.remote(batch)))
            except self._ray.exceptions.RayError as error:
                reason = error
                continue
            share = self._options["num_gpus"]
            # Alone on its GPU while it probed; the memory will be shared.
            scale = share if batch is None and 0 < share < 1 else 1
            return Probe({name: max(1, int(size * scale)) for name, size in found.sizes.items()}, found.unfit)
        raise AbslrpError(f"no worker of the cluster could begin ({_last_line(reason)}): look at Ray's logs.")

    def scores(self, probe: Probe, chunks: Iterable[list[Job]]) -> Iterator[Scored]:
        waiting: deque[tuple[deque[Job], int]] = deque()
        source = iter(chunks)

        def next_chunk() -> tuple[deque[Job], int] | None:
            if waiting:
                return waiting.popleft()
            jobs = next(source, None)
            return None if jobs is None else (deque(jobs), 0)

        while True:
            while len(self._hands) < self._count and (chunk := next_chunk()):
                self._hire(probe, *chunk)
            if not self._hands:
                return
            (reference, *_), _ = self._ray.wait(list(self._hands), num_returns=1)
            hand = self._hands.pop(reference)
            try:
                answer = _unpacked(self._ray.get(reference))
            except self._ray.exceptions.RayTaskError:
                raise
            except self._ray.exceptions.RayError as error:
                waiting.append((hand.jobs, self._mourn(hand, error)))
                continue
            if hand.ready:
                hand.jobs.popleft()
            else:
                hand.ready, hand.pid = True, answer
            if not hand.jobs:
                hand.jobs, hand.tries = next_chunk() or (deque(), 0)
            if hand.jobs:
                # Handed over before the answer is written down, so that the worker does not wait for the disk.
                self._hands[hand.actor.score.remote(hand.jobs[0])] = hand
            else:
                self._ray.kill(hand.actor)
            if isinstance(answer, Scored):
                self._lost = 0
                yield answer

    def close(self) -> None:
        for actor in [hand.actor for hand in self._hands.values()] + [self._spare] * (self._spare is not None):
            self._ray.kill(actor)
        self._hands.clear()
        self._spare = None
        if self._mine:
            self._ray.shutdown()
            self._mine = False

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        before = signal.getsignal(signal.SIGTERM)
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        here = {"include_dashboard": False, "num_cpus": self._asked} if self._address == "local" else {}
        try:
            self._ray.init(**{"address": _full(self._address), **here, **quiet})
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise AbslrpError(
                f"no Ray cluster answers at {self._address!r} ({_last_line(error)}): start one with ray start --head, "
                "give its --address, or start one here with --address local."
            ) from None
        if threading.current_thread() is threading.main_thread():
            # Ray takes the signal for itself, and would end the program without a word.
            signal.signal(signal.SIGTERM, before)
        self._mine = True

    def _actor(self) -> Any:
        return self._ray.remote(Remote).options(**self._options).remote(self._setup)

    def _hire(self, probe: Probe, jobs: deque[Job], tries: int) -> None:
        # The one that probed has its model already.
        actor, self._spare = self._spare or self._actor(), None
        self._hands[actor.use.remote(probe)] = Hand(actor, jobs, tries)

    def _mourn(self, hand: Hand, error: Exception) -> int:
        """How often the chunk of a dead worker was tried; after too many times the run ends with a sentence."""
        self._ray.kill(hand.actor)
        self._lost += 1
        if hand.tries + 1 >= _TRIES or self._lost >= _TRIES * self._count:
            job = hand.jobs[0]
            raise AbslrpError(
                f"workers of the cluster died {max(hand.tries + 1, self._lost)} times, the last at {job.metric} of "
                f"{job.method} ({_last_line(error)}): look at Ray's logs, give each more memory, or use fewer --workers; "
                "what is done is kept."
            ) from None
        return hand.tries + 1


def _unpacked(answer: Any) -> Any:
    if isinstance(answer, Failure):
        raise answer.raised()
    return answer


def _full(address: str) -> str:
    return address if address in ("auto", "local") or ":" in address else f"{address}:{_PORT}"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")[:200]
