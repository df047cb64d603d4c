"""Conservation taken fast is conservation: against its definition, in every layout of samples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from abslrp.propagation import balance
from abslrp.propagation.axes import Axis
from abslrp.propagation.conservation import CONSERVATIONS
from abslrp.propagation.rules import Transport, local_factors, shared_out

# Shape, axis, batch: images, tokens, folded windows, one sample, one sample folded, repeated batches, a vector.
LAYOUTS: dict[str, tuple[tuple[int, ...], Axis | None, int]] = {
    "images": ((3, 4, 5, 6), Axis(0, 1), 3),
    "tokens": ((3, 7, 40), Axis(0, 1), 3),
    "windows": ((6, 5, 8), Axis(0, 2), 3),
    "repeated": ((12, 5, 8), Axis(0, 2), 3),
    "one": ((1, 4, 5, 6), None, 1),
    "one, folded": ((4, 5, 6), None, 1),
    "classes": ((3, 10), Axis(0, 1), 3),
    "moved": ((7, 3, 8), Axis(1, 1), 3),
}


@pytest.fixture(params=[1 << 17, 16, 1])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Pieces larger than the tensors, smaller, and of one element."""
    monkeypatch.setattr(balance, "_PIECE", request.param)
    yield request.param


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sums_of(values: Tensor, axis: Axis | None, batch: int) -> list[float]:
    """One by one: the sample of a position is (i // inner) % batch."""
    found = [0.0] * batch
    for index in torch.cartesian_prod(*(torch.arange(n) for n in values.shape)).reshape(-1, values.ndim).tolist():
        sample = 0 if axis is None else (index[axis.dim] // axis.inner) % batch
        found[sample] += float(values[tuple(index)])
    return found


def slow(step: Transport, R: Tensor, axis: Axis | None, batch: int, joint: bool) -> tuple[Tensor, ...]:
    """The definition, with every sum a loop."""
    c = step.columns().expand(R.shape)
    k = torch.zeros_like(R)
    for sign in (1, -1):
        part = R.abs() if joint else (R * sign).clamp(min=0)
        got, handed = sums_of(part, axis, batch), sums_of(part * c, axis, batch)
        for index in torch.cartesian_prod(*(torch.arange(n) for n in R.shape)).reshape(-1, R.ndim).tolist():
            sample = 0 if axis is None else (index[axis.dim] // axis.inner) % batch
            if joint or float(R[tuple(index)]) * sign > 0:
                k[tuple(index)] = got[sample] / handed[sample] if handed[sample] else 0.0
    return step.pull(R * k)


def factors(shape: tuple[int, ...]) -> Transport:
    a, b = draw(*shape, seed=1).abs(), draw(*shape, seed=2)
    return local_factors(shape, (a, b), lambda a, b: (a, b.clamp(min=0)), (a, b))


def per_channel(shape: tuple[int, ...]) -> Transport:
    a = draw(*shape, seed=1)
    scale = draw(1, shape[1], *[1] * (len(shape) - 2), seed=3).abs()
    return local_factors(shape, (a, scale), lambda a, s: (a.abs() * s,), (a,))


def shares(shape: tuple[int, ...]) -> Transport:
    h, total = draw(*shape, seed=4), draw(*shape, seed=5).abs()
    return shared_out(h, 1e-9, lambda: (total,), lambda h, t: t, lambda s: (s[0] * 2,))


@pytest.mark.parametrize("make", [factors, per_channel, shares])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("conserve", ["sign", "joint"])
def test_fast_conservation_is_its_definition(make: object, name: str, conserve: str, piece: int) -> None:
    shape, axis, batch = LAYOUTS[name]
    step, R = make(shape), draw(*shape, seed=7)  # type: ignore[operator]
    fast = CONSERVATIONS[conserve](step, R, axis, [axis] * 2, batch)
    for one, other in zip(fast, slow(step, R, axis, batch, conserve == "joint"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_what_is_lost_is_lost() -> None:
    """No division by nothing: where a step hands out nothing of a sign, that sign gets nothing, and the other its own."""
    R = torch.tensor([[1.0, -2.0, 3.0, 0.0]])
    step = local_factors((1, 4), (torch.tensor([[0.0, 1.0, 0.0, 1.0]]),), lambda f: (f,), (R,))
    (r,) = CONSERVATIONS["sign"](step, R, None, [None], 1)
    assert r.tolist() == [[0.0, -2.0, 0.0, 0.0]]


def test_rounding_does_not_move_the_ratio_of_the_signs() -> None:
    """Through a hundred steps in float32 the two masses of a contrastive start keep their ratio."""
    generator = torch.Generator().manual_seed(0)
    R = torch.randn(1, 4096, generator=generator)
    up, down = float(R.clamp(min=0).double().sum()), float(R.clamp(max=0).double().sum())
    for _ in range(100):
        f = torch.rand(1, 4096, generator=generator) + 0.5
        (R,) = CONSERVATIONS["sign"](local_factors((1, 4096), (f,), lambda f: (f,), (R,)), R, None, [None], 1)
    ratio = (float(R.clamp(min=0).double().sum()) / up) / (float(R.clamp(max=0).double().sum()) / down)
    assert abs(ratio - 1) < 3e-7
