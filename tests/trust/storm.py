"""``abslrp evaluate`` in trouble, again and again, as a program: children are forked, so that nothing is imported twice.

python -m tests.trust.storm HOME DATA KIND=TIMES…

A run in HOME/KIND has trouble of this kind so many times, and then none; printed is how each process ended, what it said,
and which tables it left whole.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scipy.stats  # noqa: F401  every child would import it anew
import torch
from tests.experiments import tiny

from abslrp import cli
from abslrp.experiments import findings  # noqa: F401  the same
from abslrp.experiments import store as stores
from abslrp.experiments.worker import Worker
from abslrp.inputs import models

TABLES = ("table.md", "table.csv", "table.tex")
WORDS = ("--methods", "gradcam,constant", "--metrics", "gae:T=2,focus")
ERRORS = (
    lambda: MemoryError(),
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
)


def killed_at(statement: int) -> None:
    """By the system, when SQLite is about to do this statement, be it one in the middle of a piece or its COMMIT."""
    opened = stores.Store.open.__func__
    left = statement

    def watched(cls: Any, folder: Path, **how: Any) -> Any:
        def count(_: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        store = opened(cls, folder, **how)
        store._db.set_trace_callback(count)
        return store

    stores.Store.open = classmethod(watched)


def asked_to_end_after(pieces: int, delay: float) -> None:
    """By SIGTERM, three times over, a moment after so many pieces are written."""
    add, left = stores.Store.add, pieces

    def ask() -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)

    def watched(self: Any, *rows: Any) -> None:
        nonlocal left
        add(self, *rows)
        left -= 1
        if not left:
            threading.Timer(delay, ask).start()

    stores.Store.add = watched


def without_memory_after(pieces: int, error: Callable[[], Exception]) -> None:
    """While the piece after so many is scored, whatever its batch."""
    score, left = Worker.score, pieces

    def watched(self: Worker, job: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error()
        return score(self, job)

    Worker.score = watched


def with_little_memory_after(pieces: int) -> None:
    """After so many pieces the process may grow by 64 MB, and the next piece wants a gigabyte."""
    score, left = Worker.score, pieces

    def watched(self: Worker, job: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, -1))
            torch.zeros(2**28)
        return score(self, job)

    Worker.score = watched


def killed_while_writing(step: int) -> None:
    """By the system, at the n-th step of putting whole files in their places: filled, made readable, put there, and so on."""
    left = step

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return do(*given, **named)

        return counting

    os.fdopen, os.chmod, os.replace = counted(os.fdopen), counted(os.chmod), counted(os.replace)


def trouble(kind: str, turn: int) -> None:
    chance = random.Random(turn)
    if kind == "kill":
        killed_at(chance.randint(8, 90))
    elif kind == "end":
        asked_to_end_after(chance.randint(1, 2), chance.uniform(0, 0.02))
    elif kind == "memory":
        without_memory_after(chance.randint(1, 4), ERRORS[turn % len(ERRORS)])
    elif kind == "little-memory":
        with_little_memory_after(chance.randint(1, 4))
    elif kind == "writing":
        killed_while_writing(turn + 1)


def child(words: list[str], kind: str, turn: int, said: Path) -> tuple[int, str]:
    """How a process with this trouble ended (below 0: by a signal), and what it said on its second channel."""
    born = os.fork()
    if not born:
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        models.load_model = lambda *given, **named: tiny.loaded()
        trouble(kind, turn)
        code = cli.main(words)
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(born, 0)
    return os.waitstatus_to_exitcode(status), said.read_text()


def main(home: Path, data: Path, plan: dict[str, int]) -> None:
    found: dict[str, list[Any]] = {}
    for kind, times in plan.items():
        out = home / kind
        words = ["evaluate", "--data", str(data), *WORDS, "--out", str(out)]
        found[kind] = []
        for turn in range(times + 1):
            for table in TABLES:
                out.mkdir(parents=True, exist_ok=True)
                (out / table).write_bytes(b"old")
            code, said = child(words, kind if turn < times else "none", turn, home / f"{kind}.txt")
            new = [table for table in TABLES if (out / table).read_bytes() != b"old"]
            found[kind].append([code, said, new, {table: (out / table).read_text() for table in new}])
    print(json.dumps(found))


if __name__ == "__main__":
    pairs = (word.partition("=") for word in sys.argv[3:])
    main(Path(sys.argv[1]), Path(sys.argv[2]), {kind: int(times) for kind, _, times in pairs})
