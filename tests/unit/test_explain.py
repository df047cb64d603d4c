"""What a caller of explain may rely on."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import abslrp


def small(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(channels, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
    )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5)).eval()


X = torch.randn(4, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def test_shapes_types_and_outputs() -> None:
    model = small()
    a = abslrp.explain(model, X)
    assert a.maps.shape == X.shape and a.maps.dtype == torch.float32
    torch.testing.assert_close(a.outputs, model(X).detach(), rtol=0, atol=0)
    assert torch.equal(a.targets, a.outputs.argmax(1))
    assert not a.maps.requires_grad and not a.outputs.requires_grad
    assert len(a) == 4 and a[1].maps.shape == (1, 3, 10, 10) and a[-1:].targets.shape == (1,)


def test_targets_are_honoured_in_every_form() -> None:
    model = small()
    one = abslrp.explain(model, X, targets=[3, 3, 0, 0])
    for form in (torch.tensor([3, 3, 0, 0]), (3, 3, 0, 0), torch.tensor([3, 3, 0, 0], dtype=torch.int32)):
        assert torch.equal(abslrp.explain(model, X, targets=form).maps, one.maps)
    assert torch.equal(abslrp.explain(model, X, targets=3).maps[:2], one.maps[:2])
    assert not torch.allclose(abslrp.explain(model, X, targets=1).maps, one.maps)


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        ((3, 7), nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 2))),
        (
            (2, 2, 30),
            nn.Sequential(nn.Conv1d(2, 4, 5), nn.GELU(), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(8, 3)),
        ),
        ((2, 1, 6, 6, 6), nn.Sequential(nn.Conv3d(1, 4, 3), nn.ELU(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(32, 3))),
        (
            (2, 5, 8),
            nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(40, 3)),
        ),
    ],
)
def test_inputs_of_any_shape(shape: tuple[int, ...], model: nn.Module) -> None:
    a = abslrp.explain(model.eval(), torch.randn(shape))
    assert a.maps.shape == shape and a.maps.isfinite().all() and a.maps.any()


class Output(NamedTuple):
    hidden: Any
    logits: Tensor


class Record:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: {"logits": y},
        lambda y: {"out": y, "aux": y},
        lambda y: (y, y * 2),
        lambda y: [y],
        lambda y: Output(None, y),
        Record,
    ],
)
def test_outputs_in_any_wrapping(wrap: Any) -> None:
    model = small()

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Any:
            return wrap(self.inner(x))

    assert torch.equal(abslrp.explain(Wrapped().eval(), X).maps, abslrp.explain(model, X).maps)


def test_single_logit_models() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(300, 1)).eval()
    a = abslrp.explain(model, X)
    assert a.outputs.shape == (4, 1) and a.maps.any()
    assert torch.equal(abslrp.explain(lambda x: model(x).squeeze(1), X).maps, a.maps)


def test_several_inputs_through_forward() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 6)
            self.head = nn.Linear(6, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(torch.relu(self.a(x) + self.b(y)))

    model, x, y = Two().eval(), torch.randn(3, 4), torch.randn(3, 3)
    a = abslrp.explain(model, x, forward=lambda v: model(v, y))
    b = abslrp.explain(model, y, forward=lambda v: model(x, v))
    assert a.maps.shape == x.shape and b.maps.shape == y.shape
    torch.testing.assert_close(a.outputs, model(x, y).detach())


def test_at_gives_the_relevance_of_a_module() -> None:
    model = small()
    for name, channels in (("1", 6), ("3", 6), ("5", 8)):
        a = abslrp.explain(model, X, targets=2, at=name, start="target")
        assert a.maps.shape[1] == channels
        assert not model.get_submodule(name)._forward_hooks
    # what arrives at a ReLU's output goes on to its input where it is active
    bn, relu = (abslrp.explain(model, X, targets=2, at=n).maps for n in ("1", "2"))
    torch.testing.assert_close(bn, relu)
    with pytest.raises(abslrp.AbslrpError, match="module 'layer9' is not in the model"):
        abslrp.explain(model, X, at="layer9")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models(dtype: torch.dtype) -> None:
    model = small()
    full = abslrp.explain(model, X, targets=1)
    half = abslrp.explain(model.to(dtype), X, targets=1)
    assert half.maps.dtype == torch.float32 and half.maps.isfinite().all()
    for a, b in zip(half.maps.flatten(1), full.maps.flatten(1), strict=True):
        assert torch.corrcoef(torch.stack([a, b]))[0, 1] > 0.97


def test_half_precision_does_not_underflow() -> None:
    torch.manual_seed(1)  # a draw in which something speaks for the class
    model = (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
        .eval()
        .half()
    )
    a = abslrp.explain(model, torch.rand(1, 3, 160, 160), start="target", targets=3)
    assert a.maps.sum() == pytest.approx(1, abs=0.05)


def test_two_pass_is_the_difference_of_two_normalised_maps() -> None:
    model = small()
    ones = torch.eye(5)[[1] * 4]
    target, others = (abslrp.explain(model, X, targets=1, start=s).maps for s in (ones, (1 - ones) / 4))
    size = lambda m: m.abs().sum((1, 2, 3), keepdim=True)  # noqa: E731
    torch.testing.assert_close(
        abslrp.explain(model, X, targets=1, start="two-pass").maps, target / size(target) - others / size(others)
    )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"method": "abslpr"}, "did you mean abslrp"),
    ({"conserve": "all"}, "conserve='all' is unknown: choose one of sign, joint, each, none"),
    ({"start": "middle"}, "start='middle' is unknown"),
    ({"start": torch.zeros(4, 4)}, r"start has shape \(4, 4\), expected the outputs' shape \(4, 5\)"),
    ({"eps": 0}, "eps=0 must be a number above 0"),
    ({"colour": "red"}, "option 'colour' is unknown for abslrp: choose from attention, conserve"),
    ({"targets": 5}, "target 5 is out of range: the model has 5 classes, 0 to 4"),
    ({"targets": -1}, "target -1 is negative"),
    ({"targets": [1, 2]}, r"targets have shape \(2,\) for 4 inputs"),
    ({"targets": 1.0}, "targets are float32"),
    ({"targets": "cat"}, "targets='cat' cannot be read"),
    ({"images": X[:0]}, r"the inputs have shape \(0, 3, 10, 10\)"),
    ({"images": X.long()}, "the inputs are int64, expected floating point"),
    ({"images": X.numpy()}, "the inputs are a ndarray, expected a torch tensor"),
    ({"images": X * torch.nan}, "NaN or infinite"),
    ({"batch_size": 0}, "batch_size=0 must be a whole number"),
    ({"model": small().train()}, r"the model is in training mode.*call model.eval\(\)"),
    ({"model": "resnet50"}, "model is a str"),
    ({"model": nn.Conv2d(3, 2, 3).eval()}, r"the model returned shape \(4, 2, 8, 8\) for 4 inputs"),
    ({"model": lambda x: "cat"}, "the model returned a str without class scores"),
    ({"model": lambda x: torch.zeros(4, 5)}, "do not depend on x"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_input_gets_one_clear_sentence(changes: dict[str, Any], message: str) -> None:
    arguments = {"model": small(), "images": X, **changes}
    with pytest.raises(abslrp.AbslrpError, match=message) as error:
        abslrp.explain(**arguments)
    assert "\n" not in str(error.value) and str(error.value)[-1] in ".?"


def test_scripted_and_wrapped_models() -> None:
    model = small()
    with pytest.raises(abslrp.AbslrpError, match="scripted"):
        abslrp.explain(torch.jit.trace(model, X), X)
    plain = abslrp.explain(model, X).maps
    assert torch.equal(abslrp.explain(nn.DataParallel(model), X).maps, plain)
    assert torch.equal(abslrp.explain(torch.compile(model, backend="eager"), X).maps, plain)


def test_import_needs_little() -> None:
    import subprocess
    import sys

    code = (
        "import sys, abslrp; heavy = {'scipy', 'matplotlib', 'rich', 'typer', 'jinja2', 'timm', 'torchvision', 'transformers', 'skimage'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_imports_flow_one_way() -> None:
    """propagation knows nothing of methods, methods nothing of loaders, nobody of the command line."""
    import ast
    from pathlib import Path

    package = Path(abslrp.__file__).parent
    allowed = {
        "types": set(),
        "checks": {"types"},
        "memory": {"types"},
        "progress": set(),
        "precision": set(),
        "propagation": {"types", "propagation"},
        "registry": {"types", "query"},
        "query": {"types"},
        "methods": {"types", "checks", "progress", "propagation", "registry", "query", "methods"},
        "inputs": {"types", "inputs"},
        "metrics": {"types", "checks", "inputs", "registry", "query", "metrics"},
        "reporting": {"types", "reporting", "propagation"},
        "explain": {"types", "memory", "precision", "propagation", "registry", "query", "methods"},
        "evaluate": {"types", "explain", "inputs", "memory", "metrics", "precision", "progress", "query", "registry"},
    }
    for file in package.rglob("*.py"):
        room = file.relative_to(package).parts[0].removesuffix(".py")
        if room not in allowed:
            continue
        tree = ast.parse(file.read_text())
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("abslrp."):
                other = node.module.split(".")[1]
                assert other in allowed[room] | {room}, f"{file.name} imports abslrp.{other}"


# ---------------------------------------------------------------- memory and layouts


class Counting(torch.nn.Module):
    """Remembers how many inputs came at once, and has no memory for more than ``most``."""

    def __init__(self, most: int = 1000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 64, 4)
        )
        self.most, self.seen = most, []
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        self.seen.append(len(x))
        return self.layers(x)  # type: ignore[no-any-return]


SEVEN = torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def test_where_memory_runs_out_half_as_many_go_through() -> None:
    model = Counting(most=2)
    whole = abslrp.explain(Counting(), SEVEN, 1).maps
    torch.testing.assert_close(
        abslrp.explain(model, SEVEN, 1).maps, whole, rtol=0, atol=1e-6 * float(whole.abs().max())
    )
    assert model.seen == [1] * 7 or max(model.seen) <= 2
    with pytest.raises(torch.OutOfMemoryError):
        abslrp.explain(Counting(most=0), SEVEN, 1)


def test_max_memory_bounds_what_goes_through_at_once() -> None:
    model, free = Counting(), Counting()
    maps = abslrp.explain(model, SEVEN, 1, max_memory="50 KB").maps
    torch.testing.assert_close(maps, abslrp.explain(free, SEVEN, 1).maps, rtol=0, atol=1e-6)
    assert max(model.seen) < 7 and max(free.seen) == 7
    assert abslrp.explain(model, SEVEN, [1] * 7, max_memory=2**30).maps.shape == SEVEN.shape


@pytest.mark.parametrize("value", ["much", -1, 0, "4 XB", ".GB", float("nan"), True])
def test_a_wrong_max_memory_is_a_clear_error(value: object) -> None:
    with pytest.raises(abslrp.AbslrpError, match=r"max_memory=.* must be a number of bytes above 0"):
        abslrp.explain(Counting(), SEVEN, max_memory=value)


@pytest.mark.parametrize("method", ["abslrp", "abslrp-agree", "lrp-epsilon", "guided-backprop", "gradcam"])
def test_channels_last_changes_no_map(method: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    ).eval()
    x = torch.randn(3, 3, 16, 16)
    plain = abslrp.explain(model, x, 1, method).maps
    last = torch.channels_last
    maps = abslrp.explain(model.to(memory_format=last), x.to(memory_format=last), 1, method).maps
    torch.testing.assert_close(maps, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))


def test_graphs_are_for_cuda_and_say_so() -> None:
    model = small()
    with pytest.raises(
        abslrp.AbslrpError, match="needs inputs on a CUDA device, and these are on cpu: leave cuda_graph out"
    ):
        abslrp.explain(model, X, cuda_graph=True)
    for name in ("cuda_graph", "tf32"):
        with pytest.raises(abslrp.AbslrpError, match=f"{name}='yes' must be True or False"):
            abslrp.explain(model, X, **{name: "yes"})
    assert torch.equal(abslrp.explain(model, X, tf32=True).maps, abslrp.explain(model, X).maps)
