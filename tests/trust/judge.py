"""What any call with any arguments has to keep: it works, or it says one sentence; model, inputs and chance stay as they were."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from tests.unit.test_engine import same, snapshot
from torch import Tensor, nn

import abslrp

QUICK: dict[str, dict[str, Any]] = {
    "rise": {"masks": 3},
    "integrated-gradients": {"steps": 2},
    "smoothgrad": {"samples": 2},
    "occlusion": {"window": 4},
}
METRIC_QUICK: dict[str, dict[str, Any]] = {
    "gae": {"T": 2},
    "lipschitz": {"samples": 2},
    "aopc": {"L": 2, "region": 3},
    "abpc": {"L": 2, "region": 3},
    "road-morf": {"percentages": (50,)},
    "road-lerf": {"percentages": (50,)},
}
FEW = 3
"""So often may a model run before a wrong argument is refused: a forward for the classes, and a walk in search of a layer."""


class Small(nn.Module):
    """A network of three layers that counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(16, 5)
        self.runs = [0]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.runs[0] += 1
        h = nn.functional.adaptive_avg_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(h.flatten(1))  # type: ignore[no-any-return]


class Wrapped(nn.Module):
    """The small network with something done to its input or output."""

    def __init__(self, what: Callable[[Small, Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.what = Small(), what
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.what(self.inner, x)


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Odd:
    """Not even its repr works."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def _values() -> list[Any]:
    nan, inf = math.nan, math.inf
    numbers = [
        -1,
        0,
        1,
        2,
        3,
        0.5,
        -0.5,
        1e-300,
        1e300,
        10**400,
        -(10**400),
        2**31,
        2**63,
        2**64,
        nan,
        inf,
        -inf,
        1j,
        True,
        False,
    ]
    texts = ["", "cat", "-1", "1", "conv", "head", "target", "sign", "\n\n", "é" * 500, "\ud800", "\x00", b"x"]
    several = [
        [],
        [1],
        [1, 2],
        (2, 2),
        (1, 2, 3),
        {},
        {"a": 1},
        set(),
        ["a\n"] * 1000,
        [[1], [2, 3]],
        range(3),
        [None, None],
    ]
    tensors = [
        torch.tensor(1.0), torch.tensor(3), torch.zeros(2, 5), torch.zeros(2, 3, 8, 8), torch.tensor([1, 2]),
        torch.full((2, 5), nan), torch.zeros(2, 5, dtype=torch.complex64), torch.zeros(2, 5, device="meta"),
        torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 5, requires_grad=True), torch.zeros(2, 5).to_sparse(),
    ]  # fmt: skip
    arrays = [np.int64(2), np.float32(0.5), np.zeros((2, 5)), np.array(["a"]), np.array([None]), np.array([1, 0])[::-1]]
    return [None, *numbers, *texts, *several, *tensors, *arrays, Odd(), object(), len, int, Decimal("0.5"), ...]


VALUES = _values()
"""Whatever might be passed by mistake."""


def forms() -> dict[str, Callable[[], Any]]:
    """Inputs in every form, right and wrong."""
    types = ("float16", "bfloat16", "float32", "float64", "int32", "uint8", "bool", "complex64", "float8_e5m2")
    made: dict[str, Callable[[], Any]] = {name: lambda n=name: images().to(getattr(torch, n)) for name in types}
    shapes = (
        (2, 4, 8, 8),
        (2, 1, 8, 8),
        (3, 8, 8),
        (8, 8),
        (),
        (1, 2, 3, 8, 8),
        (0, 3, 8, 8),
        (2, 3, 8, 0),
        (2, 3, 1, 1),
        (5, 3, 9, 7),
    )
    made |= {f"shape {shape}": lambda s=shape: torch.zeros(s) + 0.5 for shape in shapes}
    made |= {
        f"a pixel of {v}": lambda v=v: images().index_put((torch.tensor(1),), torch.tensor(v))
        for v in (math.nan, math.inf, -math.inf)
    }
    made |= {f"times {v:g}": lambda v=v: images() * v for v in (0.0, 1e-40, 1e-20, 1e20, 1e38)}
    return made | {
        "transposed": lambda: images().transpose(2, 3),
        "expanded": lambda: images(1).expand(4, -1, -1, -1),
        "one pixel expanded": lambda: torch.tensor(0.5).expand(2, 3, 8, 8),
        "with steps": lambda: torch.ones(4, 3, 16, 16)[::2, :, ::2, ::2],
        "channels last": lambda: images().to(memory_format=torch.channels_last),
        "overlapping": lambda: torch.arange(100.0).as_strided((2, 3, 8, 8), (1, 2, 3, 4)),
        "sparse": lambda: images().to_sparse(),
        "sparse rows": lambda: torch.ones(2, 8).to_sparse_csr(),
        "meta": lambda: images().to("meta"),
        "quantised": lambda: torch.quantize_per_tensor(images(), 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([images()[0], images()[1]]),
        "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], layout=torch.jagged),
        "mkldnn": lambda: images().to_mkldnn() if torch.backends.mkldnn.is_available() else None,
        "a leaf that wants a gradient": lambda: images().requires_grad_(),
        "a leaf that has a gradient": _with_gradient,
        "no leaf": lambda: images().requires_grad_() * 2,
        "a view of no leaf": lambda: (images().requires_grad_() * 2)[:, :],
        "of inference mode": _of_inference,
        "a parameter": lambda: nn.Parameter(images()),
        "conjugated": lambda: images().to(torch.complex64).conj(),
        "negated lazily": lambda: images().to(torch.complex64).conj().imag,
        "a subclass": lambda: images().as_subclass(type("Mine", (Tensor,), {})),
        "functional": lambda: torch._to_functional_tensor(images()),
        "fake": _fake,
        "unknown yet": nn.UninitializedParameter,
        "an array": lambda: images().numpy(),
        "a list": lambda: images().tolist(),
        "a list of tensors": lambda: list(images()),
    }  # fmt: skip


def _with_gradient() -> Tensor:
    x = images().requires_grad_()
    (x * x).sum().backward()
    return x


def _of_inference() -> Tensor:
    with torch.inference_mode():
        return images() + 0


def _fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(2, 3, 8, 8)


FORMS = forms()


def judged(call: Callable[[], Any], model: Any = None, x: Any = None) -> Any:
    """What a call returned, or the :class:`abslrp.AbslrpError` it raised; everything else is a failure.

    The error is one sentence. Whatever happened, the model, its gradients, the input and torch's random numbers are as before.
    """
    before = snapshot(model) if isinstance(model, nn.Module) else None
    pixels, state, grads = _bits(x), torch.get_rng_state(), torch.is_grad_enabled()
    wanted = (x.requires_grad, x.grad if x.is_leaf else None) if pixels is not None else None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = call()
        except abslrp.AbslrpError as error:
            found = error
    if isinstance(found, abslrp.AbslrpError):
        text = str(found)
        assert text and "\n" not in text and text[-1] in ".?" and len(text) < 1000, text
    if before is not None:
        assert same(before, snapshot(model))
    assert torch.equal(state, torch.get_rng_state()) and torch.is_grad_enabled() == grads
    if wanted is not None:
        assert torch.equal(pixels, _bits(x)) and wanted[0] == x.requires_grad
        assert wanted[1] is (x.grad if x.is_leaf else None)
    if isinstance(found, abslrp.Attribution):
        _check_maps(found, x, [str(warning.message) for warning in told])
    return found


def _check_maps(found: abslrp.Attribution, x: Tensor, told: list[str]) -> None:
    """Maps of the input's shape, in float32, finite or with a warning."""
    assert found.maps.dtype == found.outputs.dtype == torch.float32
    assert not found.maps.requires_grad and not found.outputs.requires_grad and not found.maps.is_inference()
    assert len(found.maps) == len(found.targets) == len(found.outputs)
    if found.inputs is not None:
        assert found.maps.shape == x.shape
    finite = bool(found.maps.isfinite().all()) and not bool(found.outputs.isnan().any())
    assert finite != any("holds NaN or infinite values" in text for text in told)


def _bits(x: Any) -> Tensor | None:
    """The bytes of a plain tensor."""
    plain = isinstance(x, Tensor) and not nn.parameter.is_lazy(x) and x.layout is torch.strided
    if (
        not plain
        or x.is_nested
        or x.is_meta
        or x.is_quantized
        or x.is_complex()
        or type(x) not in (Tensor, nn.Parameter)
    ):
        return None
    if torch._is_functional_tensor(x) or not x.numel():
        return None
    return x.detach().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
