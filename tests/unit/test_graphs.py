"""The bookkeeping of recordings, on a CPU: a graph is played by the model as it was recorded, reading the same memory.

What CUDA itself does is tested in tests/contract/test_cuda.py.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abslrp
from abslrp import graphs
from abslrp.explain import answer
from abslrp.query import Query, make_query
from abslrp.registry import method as find_method

SALIENCY = find_method("saliency")


class Played:
    """Stands for a CUDA graph, an event and a stream."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.run: Any = None
        self.count = 0

    def replay(self) -> None:
        self.count += 1
        if self.run is not None:
            self.run()

    def wait(self, *args: Any) -> None: ...

    wait_event = wait_stream = record = synchronize = wait


class Values:
    def __init__(self, inputs: Tensor) -> None:
        self.finite = inputs.isfinite().all()

    def check(self) -> None:
        graphs.check_values(self.finite)


@pytest.fixture(autouse=True)
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDAGraph", "Event", "Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Played)
    for name in ("graph", "stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda *a, **k: nullcontext())
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**30))
    monkeypatch.setattr(graphs, "_Values", Values)
    record = graphs._record

    def recorded(run: Any, query: Query, name: str) -> graphs.Recording:
        found = record(run, query, name)
        tensors = [t for m in query.model.modules() for v in vars(m).values() for t in _flat(v)]  # type: ignore[attr-defined]
        same = {id(t): nn.Parameter(t.data, False) if isinstance(t, nn.Parameter) else t.data for t in tensors}
        frozen = copy.deepcopy(query.model, same)

        def play() -> None:
            still = replace(query, model=frozen, call=frozen, inputs=found.inputs, targets=found.targets)
            for place, value in zip(found.answer, answer(SALIENCY, still, {}), strict=True):
                place.copy_(value)

        found.graph.run = play
        return found

    monkeypatch.setattr(graphs, "_record", recorded)


def _flat(value: Any) -> Iterator[Tensor]:
    several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
    return (one for one in several if isinstance(one, Tensor))


def maps(model: nn.Module, x: Tensor, target: Any = 1) -> Tensor:
    return graphs.recorded(answer, False, SALIENCY, make_query(model, x, target, None, None, True), {}).maps


def agree(model: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(maps(model, x), abslrp.explain(model, x, 1, "saliency").maps)


def recordings(model: nn.Module) -> list[graphs.Recording]:
    return list(graphs._recordings[model].values())


class Scaled(nn.Module):
    """Reads tensors from wherever a module may keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(2, 3, 3), nn.Linear(3, 4)
        self.listed = [torch.tensor([[1.0], [2.0]])]
        self.named = {"a": [torch.tensor([[3.0], [5.0]])]}
        self._private = [torch.tensor([[1.0], [-1.0]])]
        self.alone = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        self.rows: Any = [0, 1]

    def forward(self, x: Tensor) -> Tensor:
        scales = self.listed[0] * self.named["a"][0] * self._private[0]
        x = self.layer(torch.sin(x * scales.view(1, 2, 1, 1)) @ self.alone.repeat(3, 3))
        return self.head(x.flatten(2).mean(-1)) * self.alone[self.rows].sum()


@pytest.fixture
def model() -> Scaled:
    torch.manual_seed(0)
    return Scaled().eval().requires_grad_(False)


X = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def test_it_is_played_and_not_run(model: Scaled) -> None:
    agree(model, X)
    agree(model, X.flip(0))
    (one,) = recordings(model)
    assert one.graph.count == 3 and not one.open
    torch.testing.assert_close(maps(model, X, None), abslrp.explain(model, X, None, "saliency").maps)
    assert len(recordings(model)) == 2


CHANGES: dict[str, Any] = {
    "weights in place": lambda m: m.layer.weight.mul_(-2),
    "weights elsewhere": lambda m: setattr(m.layer.weight, "data", m.layer.weight.data * -2),
    "a setting": lambda m: setattr(m.layer, "stride", (2, 2)),
    "a module": lambda m: setattr(m, "layer", nn.Conv2d(2, 3, 3, bias=False).eval().requires_grad_(False)),
    "a tensor": lambda m: setattr(m, "alone", m.alone * 2),
    "the same memory in another order": lambda m: setattr(m, "alone", m.alone.T),
    "a tensor in a list": lambda m: m.listed.__setitem__(0, m.listed[0] * 3),
    "part of a tensor in a list": lambda m: m.listed.__setitem__(0, m.listed[0][:1]),
    "a tensor in a list in a dict": lambda m: m.named["a"].__setitem__(0, m.named["a"][0] * 3),
    "a tensor in a private list": lambda m: m._private.__setitem__(0, m._private[0] * 3),
    "a list that is a tuple": lambda m: setattr(m, "rows", (0, 1)),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_changes_are_seen(model: Scaled, change: str) -> None:
    agree(model, X)
    before = maps(model, X)
    agree(model, X[:1])
    with torch.no_grad():
        CHANGES[change](model)
    agree(model, X)
    assert not torch.equal(maps(model, X), before)
    # what was recorded of the model as it was goes, also for other shapes
    assert len(recordings(model)) == (2 if change == "weights in place" else 1)


def test_more_classes_than_were_recorded(model: Scaled) -> None:
    agree(model, X)
    with pytest.raises(abslrp.AbslrpError, match="target 4 is out of range: the model has 4 classes"):
        maps(model, X, 4)
    model.head = nn.Linear(3, 6).eval()
    assert maps(model, X, 4).shape == X.shape


def test_wrong_input_and_models_are_refused_as_ever(model: Scaled) -> None:
    agree(model, X)
    model.head.train()
    with pytest.raises(abslrp.AbslrpError, match="'head' is in training mode"):
        maps(model, X)
    model.eval()
    handle = model.layer.register_forward_hook(lambda *a: None)
    with pytest.raises(abslrp.AbslrpError, match="the hooks on layer"):
        maps(model, X)
    handle.remove()
    agree(model, X)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_reach_no_kernel(bad: float) -> None:
    class Table(nn.Module):
        """Takes its first column as a number of a row, which must not be NaN on a GPU."""

        def __init__(self) -> None:
            super().__init__()
            self.rows, self.head = nn.Embedding(3, 4), nn.Linear(7, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([self.rows(x[:, 0].long()), torch.sin(x)], 1))

    table, x = Table().eval().requires_grad_(False), torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.5]])
    agree(table, x)
    with pytest.raises(abslrp.AbslrpError, match="the inputs hold NaN or infinite values"):
        maps(table, torch.tensor([[bad, 1.0, 2.0], [0.0, 1.0, 0.5]]))
    agree(table, x.flip(0))


def test_half_precision_is_asked_for_what_was_given() -> None:
    small = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).half().eval()
    query = make_query(small, torch.full((1, 4), 1e6), 1, None, None, True)
    assert query.checked and query.inputs.isinf().all()
    with pytest.raises(abslrp.AbslrpError, match="the inputs hold NaN"):
        make_query(small, torch.full((1, 4), float("nan")), 1, None, None, True)


def test_what_may_hide_memory_is_looked_at_first(model: Scaled) -> None:
    class Box:
        scale = torch.ones(1)

    model.box = Box()
    agree(model, X)
    (one,) = recordings(model)
    count = one.graph.count
    assert one.open
    agree(model, X)
    assert one.graph.count == count + 1
    model.box = Box()
    agree(model, X)
    assert one.graph.count == count + 1


def test_recordings_end_with_their_model() -> None:
    def closed() -> nn.Module:
        class Own(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                return me[0].head(x.flatten(1))

        me = [Own().eval()]
        return me[0]

    model = closed()
    maps(model, torch.randn(2, 4))
    recordings(model)[0].graph.run = None  # which holds its class here
    gone, count = weakref.ref(model), len(graphs._recordings)
    del model
    gc.collect()
    assert gone() is None and len(graphs._recordings) == count - 1


def test_hooks_are_refused_before_memory_is_measured(model: Scaled) -> None:
    query = replace(make_query(model, X, 1, None, None), inputs=SimpleNamespace(is_cuda=True))  # type: ignore[arg-type]
    graphs.check(query, {})
    model.layer.register_forward_pre_hook(lambda *a: None)
    with pytest.raises(abslrp.AbslrpError, match="the hooks on layer"):
        graphs.check(query, {})
