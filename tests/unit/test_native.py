"""The C code for elementwise steps against the same steps in float64, and the ways around it where it cannot be had."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.unit.test_balance import LAYOUTS, draw
from torch import Tensor

import abslrp
from abslrp.propagation import native, rules
from abslrp.propagation.conservation import CONSERVATIONS
from abslrp.propagation.kinds import Linear, LinearMap, Norm, Smooth, Softmax, Sum
from abslrp.propagation.rules import Call, Transport

EPS = 1e-2  # so that poles do not make rounding large


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The C code for tensors of any size; what ran by it."""
    if native._library() is None:
        pytest.skip("no C compiler here: install one (cc) to test the code in C")
    found: list[str] = []
    real = native.run

    def spy(recipe: Any, *args: Any, **kwargs: Any) -> Any:
        results = real(recipe, *args, **kwargs)
        found.extend([recipe.kind] * (results is not None))
        return results

    monkeypatch.setattr(native, "SMALLEST", 0)
    monkeypatch.setattr(native, "run", spy)
    yield found


Make = Callable[[tuple[int, ...], torch.dtype, bool], Transport]


def call_of(kind: Any, inputs: list[Tensor], output: Tensor | None = None) -> Call:
    h = kind.value(inputs) if output is None else output
    return Call(inputs, [False] * len(inputs), output, None, 1, h.shape, kind)


def norm(weight: bool, bias: bool, centred: bool, over: str) -> Make:
    def make(shape: tuple[int, ...], dtype: torch.dtype, agreeing: bool) -> Transport:
        own = (1, shape[1], *[1] * (len(shape) - 2)) if over == "channels" else shape[-1:]
        gain, shift = (draw(*own, seed=s).to(dtype) if there else None for s, there in ((2, weight), (3, bias)))
        statistics = (draw(*own, seed=4).to(dtype), draw(*own, seed=5).abs().to(dtype))

        def moments(x: Tensor) -> tuple[Tensor | None, Tensor]:
            mean, variance = statistics if over == "channels" else (x.mean(-1, True), x.var(-1, keepdim=True))
            return mean if centred else None, variance

        op = Norm(moments, 1e-3, gain, shift)
        return (rules.norm_agreeing if agreeing else rules.norm_positive)(
            op, call_of(op, [draw(*shape, seed=1).to(dtype)]), EPS
        )[0]

    return make


def summed(second: float, broadcast: bool) -> Make:
    def make(shape: tuple[int, ...], dtype: torch.dtype, agreeing: bool) -> Transport:
        a, b = draw(*shape, seed=1).to(dtype), draw(*(shape[-1:] if broadcast else shape), seed=2).to(dtype)
        op = Sum((1.0, second), complete=True)
        return (rules.sum_agreeing if agreeing else rules.sum_positive)(op, call_of(op, [a, b]), EPS)[0]

    return make


def linear(nonnegative: bool, bias: bool) -> Make:
    """A product over the last dimension, so that the bias differs along columns."""

    def make(shape: tuple[int, ...], dtype: torch.dtype, agreeing: bool) -> Transport:
        w, x = draw(shape[-1], shape[-1], seed=1).to(dtype), draw(*shape, seed=2).to(dtype)
        x = x.abs() if nonnegative else x
        b = draw(shape[-1], seed=3).to(dtype) if bias else None
        op = Linear(lambda _: [LinearMap(F.linear, lambda g, x, w: g @ w, w, fresh=True)], b)
        call = Call([x], [nonnegative], F.linear(x, w, b), None, 1, shape, op)
        return (rules.linear_agreeing if agreeing else rules.linear_positive)(op, call, EPS)[0]

    return make


def channels(shape: tuple[int, ...], dtype: torch.dtype, agreeing: bool) -> Transport:
    """A product elementwise, whose bias is the same along rows."""
    w, x = draw(*shape, seed=1).to(dtype), draw(*shape, seed=2).to(dtype)
    bias = draw(shape[1], *[1] * (len(shape) - 2), seed=3).to(dtype)
    op = Linear(lambda _: [LinearMap(torch.mul, lambda g, x, w: g * w, w, fresh=True)], bias)
    call = Call([x], [False], x * w + bias, None, 1, shape, op)
    return (rules.linear_agreeing if agreeing else rules.linear_positive)(op, call, EPS)[0]


def smooth(shape: tuple[int, ...], dtype: torch.dtype, agreeing: bool) -> Transport:
    x = draw(*shape, seed=1).to(dtype)
    op = Smooth(F.gelu)
    return (rules.smooth_agreeing if agreeing else rules.smooth_positive)(op, call_of(op, [x], F.gelu(x)), EPS)[0]


def softmax(shape: tuple[int, ...], dtype: torch.dtype, agreeing: bool) -> Transport:
    x = draw(*shape, seed=1).to(dtype)
    op = Softmax(-1)
    return rules.softmax_listing(op, call_of(op, [x], x.softmax(-1)), EPS)[0]


STEPS: dict[str, tuple[str, Make]] = {
    "batch norm": ("norm", norm(True, True, True, "channels")),
    "batch norm, no affine": ("norm", norm(False, False, True, "channels")),
    "layer norm": ("norm", norm(True, True, True, "rows")),
    "layer norm, no bias": ("norm", norm(True, False, True, "rows")),
    "rms norm": ("norm", norm(True, False, False, "rows")),
    "sum": ("sum", summed(1.0, False)),
    "difference": ("sum", summed(-1.0, False)),
    "sum, broadcast": ("sum", summed(1.0, True)),
    "linear, signed": ("halves", linear(False, True)),
    "linear, no bias": ("halves", linear(False, False)),
    "linear, not negative": ("shares", linear(True, True)),
    "channels": ("halves", channels),
    "gelu": ("factor", smooth),
    "softmax": ("factor", softmax),
}


@pytest.mark.parametrize("conserve", ["sign", "joint"])
@pytest.mark.parametrize("agreeing", [False, True])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("moved", "classes")])
@pytest.mark.parametrize("name", STEPS)
def test_c_is_the_step_in_double(name: str, layout: str, agreeing: bool, conserve: str, calls: list[str]) -> None:
    kind, make = STEPS[name]
    shape, axis, batch = LAYOUTS[layout]
    R = draw(*shape, seed=7)
    axes = [axis] * 2
    exact = CONSERVATIONS[conserve](make(shape, torch.float64, agreeing), R, axis, axes, batch)
    assert not calls
    fast = CONSERVATIONS[conserve](make(shape, torch.float32, agreeing), R.float(), axis, axes, batch)
    if kind == "shares" and agreeing:
        kind = "halves"
    assert calls == [kind]
    for one, other in zip(fast, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-5 * float(other.abs().max()))


@pytest.mark.parametrize("name", STEPS)
def test_threads_change_nothing(name: str, calls: list[str]) -> None:
    """Bit for bit, on a tensor of many blocks."""
    shape, axis = (2, 48, 40, 40), LAYOUTS["images"][1]
    R, step = draw(*shape, seed=7).float(), STEPS[name][1](shape, torch.float32, False)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(CONSERVATIONS["sign"](step, R, axis, [axis] * 2, 2)[0])
    finally:
        torch.set_num_threads(before)
    assert len(calls) == 3 and float(found[0].abs().sum()) > 0
    if STEPS[name][0] not in ("shares", "halves", "factor"):  # there a product or a function of torch's is in it
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-4, atol=1e-5 * float(found[0].abs().max()))


def test_what_is_lost_is_lost_and_nan_is_not_hidden(calls: list[str]) -> None:
    op = Sum((1.0, 1.0), complete=True)
    a, b = torch.tensor([[0.0, 1.0, 0.0, 2.0]]), torch.zeros(1, 4)
    R = torch.tensor([[1.0, -2.0, 3.0, 0.0]])
    r, _ = CONSERVATIONS["sign"](rules.sum_positive(op, call_of(op, [a, b]), 1e-9)[0], R, None, [None] * 2, 1)
    assert r.tolist() == [[0.0, -2.0, 0.0, 0.0]] and calls == ["sum"]
    a[0, 1] = torch.nan
    r, _ = CONSERVATIONS["sign"](rules.sum_positive(op, call_of(op, [a, b]), 1e-9)[0], R, None, [None] * 2, 1)
    assert bool(r.isnan().any())


# ---------------------------------------------------------------- where there is no way to it


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ABSLRP_NATIVE", raising=False)
    return tmp_path / "cache" / "abslrp"


def pretend(library: Path) -> Callable[[str, Path], Path]:
    """A compiler that takes no time."""

    def made(compiler: str, where: Path) -> Path:
        where.write_bytes(library.read_bytes())
        return where

    return made


def test_without_a_compiler_maps_are_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 62 * 62, 3)
    ).eval()
    x = torch.randn(2, 3, 64, 64)
    by_c = abslrp.explain(model, x, 1).maps
    monkeypatch.setattr(native, "_library", lambda: None)
    torch.testing.assert_close(abslrp.explain(model, x, 1).maps, by_c, rtol=1e-4, atol=1e-5 * float(by_c.abs().max()))


@pytest.mark.parametrize(
    "why", ["switched off", "no compiler", "a compiler that fails", "no library made", "another system"]
)
def test_what_stands_in_its_way_is_no_error(why: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "switched off":
        monkeypatch.setenv("ABSLRP_NATIVE", "0")
    elif why == "no compiler":
        monkeypatch.setenv("CC", "no-such-compiler")
    elif why == "another system":
        monkeypatch.setattr(native.os, "name", "nt")
    else:
        program = shutil.which("false" if why == "a compiler that fails" else "true")
        assert program is not None
        monkeypatch.setenv("CC", program)
    assert native._library.__wrapped__() is None


def test_it_is_compiled_once_and_kept_where_only_the_user_writes(
    cache: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Path(native._library()._name)
    kept = loaded.read_bytes() if loaded.exists() else None
    if kept is not None:
        monkeypatch.setattr(native, "_made", pretend(loaded))
    assert native._library.__wrapped__() is not None
    (made,) = cache.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700 and made.suffix == ".so"
    monkeypatch.setattr(native, "_made", lambda *_: pytest.fail("compiled again"))
    assert native._library.__wrapped__() is not None


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_write_to_is_not_used(mode: int, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    assert native._own_folder() is None
    cache.chmod(0o700)
    assert native._own_folder() == cache
    cache.rmdir()
    cache.symlink_to(cache.parent)
    assert native._own_folder() is None
