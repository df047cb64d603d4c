"""``python -m benchmarks.soak``: thousands of explanations in one process, to see whether memory grows or calls get slower.

Every method in turn on a small convolutional network and a small transformer, in batches of one to four, in half and double
precision now and then; between them evaluations, and calls that raise before the model runs, while it runs and while relevance
travels. Memory is the process's own after a warm-up of one tenth and at the end, time the processor's in the first and the last
tenth, each of as many rounds over the same calls, over that of a plain gradient taken all along, because other processes on the
machine slow down both alike.

OMP_NUM_THREADS=1 python -m benchmarks.soak --count 20000 --out out/soak.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from tests.contract.test_methods import QUICK, model_of
from torch import Tensor, nn

import abslrp
from abslrp.types import AbslrpError
from benchmarks.measure import resident

SAMPLES = 20
EVERY = 25
_MIB = 2**20

Call = Callable[[], Any]


class Soaked(NamedTuple):
    """What was run, and the figures: bytes after the warm-up and at the end, seconds of processor time a call and a plain
    gradient in the first and the last tenth, live tensors."""

    explanations: int
    maps: int
    evaluations: int
    refused: int
    memory: tuple[int, int]
    seconds: tuple[float, float]
    gradients: tuple[float, float]
    tensors: tuple[int, int]
    course: tuple[int, ...]

    @property
    def grown(self) -> int:
        return self.memory[1] - self.memory[0]

    @property
    def slower(self) -> float:
        """Time of a call in gradients, in the last tenth over that in the first."""
        (first, last), (before, after) = self.seconds, self.gradients
        return last / first * before / after


class Failing(nn.Module):
    """A network with a step that fails: ``where`` the model runs, or where relevance comes back."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.where, self.last = nn.Conv2d(3, 4, 3), where, nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu().mean((2, 3))
        if self.where == "forward":
            raise RuntimeError("the model failed")
        if self.where == "backward":
            h.register_hook(_fail)
        return self.last(torch.special.bessel_j1(h) if self.where == "operation" else h)  # type: ignore[no-any-return]


def _fail(gradient: Tensor) -> None:
    raise RuntimeError("the hook failed")


class Counts:
    """How many calls of each kind were made."""

    def __init__(self) -> None:
        self.explanations = self.maps = self.evaluations = self.refused = 0

    def explain(self, model: nn.Module, x: Tensor, name: str, **options: Any) -> None:
        maps = abslrp.explain(model, x, None, name, **{**QUICK.get(name, {}), **options}).maps
        self.explanations += 1
        self.maps += len(maps)

    def evaluate(self, model: nn.Module, x: Tensor, name: str) -> None:
        abslrp.evaluate(model, x, [name], ["gae", "focus"], T=2, labels=[0, 0, 1, 1])
        self.evaluations += 1

    def refuse(self, model: nn.Module, x: Tensor, **options: Any) -> None:
        try:
            abslrp.explain(model, x, **options)
        except (AbslrpError, RuntimeError):
            self.refused += 1
            return
        raise AssertionError("a call that has to raise did not")


def calls(counts: Counts) -> Iterator[Call]:
    """Every call of one round, in an order that does not change."""
    torch.manual_seed(0)
    models = {kind: model_of(kind) for kind in ("convolutional", "transformer")}
    precise = {kind: model_of(kind).double() for kind in models}
    half = {kind: model_of(kind).bfloat16() for kind in models}
    failing = [Failing(where).eval() for where in ("forward", "backward", "operation")]
    x = torch.randn(4, 3, 16, 16)
    number = 0
    for name, method in abslrp.methods().items():
        for kind, model in models.items():
            if kind == "convolutional" and "attention" in method.needs:
                continue
            number += 1
            part = x[: 1 + number % 4]
            double, short = part.double(), part.bfloat16()
            yield lambda m=model, p=part, n=name: counts.explain(m, p, n)
            yield lambda m=model, p=part, n=name: counts.explain(m, p, n, batch_size=2)
            yield lambda m=precise[kind], p=double, n=name: counts.explain(m, p, n)
            yield lambda m=half[kind], p=short, n=name: counts.explain(m, p, n)
            if number % EVERY == 0:
                yield lambda m=model, n=name: counts.evaluate(m, x, n)
    for name in ("abslrp", "lrp-epsilon", "guided-backprop"):
        for model in failing:
            yield lambda m=model, n=name: counts.refuse(m, x, method=n, **_strict(n))
    yield lambda: counts.refuse(models["transformer"], x, targets=99)
    yield lambda: counts.refuse(models["transformer"], x * float("nan"))
    yield lambda: counts.refuse(models["convolutional"], x, method="rollout")
    yield lambda: counts.refuse(models["convolutional"], x, eps=-1)


def _gradient() -> Call:
    """A plain gradient of both networks."""
    models = [model_of(kind) for kind in ("convolutional", "transformer")]
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return lambda: [torch.autograd.grad(model(x).sum(), x) for model in models]


def _strict(name: str) -> dict[str, Any]:
    return {"unknown": "error"} if "unknown" in abslrp.methods()[name].options else {}


def soak(count: int, note: Callable[[str], None] = print) -> Soaked:
    """Whole rounds over all calls until at least ``count`` explanations were made."""
    counts = Counts()
    turn = list(calls(counts))
    for call in turn:  # what is loaded once, and the explanations that a round makes
        call()
    rounds = max(SAMPLES, -(-count // max(counts.explanations, 1)))
    counts.__init__()  # type: ignore[misc]
    times, plain, course, living = [], [], [], []
    gradient = _gradient()
    for done in range(rounds):
        spent = [0.0, 0.0]
        for call in turn:
            for kind, job in enumerate((call, gradient)):
                begun = time.process_time()
                job()
                spent[kind] += (time.process_time() - begun) / len(turn)
        times.append(spent[0])
        plain.append(spent[1])
        course.append(resident())
        if done % max(1, rounds // SAMPLES) == 0:
            note(f"{counts.explanations} explanations, {course[-1] / _MIB:.0f} MiB, {times[-1] * 1000:.1f} ms a call")
        if done in (rounds // 10, rounds - 1):
            gc.collect()
            living.append(sum(issubclass(type(o), Tensor) for o in gc.get_objects()))
    tenth = max(1, rounds // 10)
    return Soaked(
        counts.explanations,
        counts.maps,
        counts.evaluations,
        counts.refused,
        (int(median(course[tenth : 2 * tenth])), int(median(course[-tenth:]))),
        (sum(times[:tenth]) / tenth, sum(times[-tenth:]) / tenth),
        (sum(plain[:tenth]) / tenth, sum(plain[-tenth:]) / tenth),
        (living[0], living[-1]),
        tuple(course[:: max(1, rounds // SAMPLES)]),
    )


def sentence(found: Soaked) -> str:
    """The figures in words."""
    return (
        f"{found.explanations} explanations ({found.maps} maps), {found.evaluations} evaluations and {found.refused} calls that "
        f"raised: {found.memory[0] / _MIB:.1f} MiB after the warm-up, {found.memory[1] / _MIB:.1f} MiB at the end "
        f"({found.grown / _MIB:+.1f}); {found.seconds[0] * 1000:.2f} ms a call in the first tenth, "
        f"{found.seconds[1] * 1000:.2f} ms in the last, {found.slower:.3f} of that in plain gradients; "
        f"{found.tensors[0]} and {found.tensors[1]} tensors alive"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="explanations, at least")
    parser.add_argument("--out", type=Path, default=Path("out/soak.json"))
    options = parser.parse_args()
    found = soak(options.count, lambda text: print(text, flush=True))
    print(sentence(found))
    settings = {"threads": torch.get_num_threads(), "cores": os.cpu_count(), "torch": torch.__version__}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"settings": settings, "found": found._asdict()}, indent=1))


if __name__ == "__main__":
    main()
