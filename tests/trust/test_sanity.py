"""Maps change when weights are shuffled; the methods whose maps do not are marked, by the measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from tests.contract.test_methods import X, convolutional, model_of
from tests.networks import shared_images, shared_network
from tests.unit.test_engine import same, snapshot
from torch import Tensor, nn

import abslrp
from abslrp import cli
from abslrp.inputs.models import load_model, sample_images
from abslrp.sanity import THRESHOLD, Sanity, rank_correlation, sanity

# Fewer masks of RISE would not do: both maps see the same ones, and with 60 that alone makes a correlation of .8.
SHORT: dict[str, dict[str, Any]] = {
    "occlusion": {"window": 32, "stride": 32},
    "rise": {"masks": 200},
    "integrated-gradients": {"steps": 10},
    "smoothgrad": {"samples": 6},
}
ATTENTION = [n for n, m in abslrp.methods().items() if "attention" in m.needs]
OTHERS = [n for n in abslrp.methods() if n not in ATTENTION]
QUICK = (
    "abslrp",
    "lrp-epsilon",
    "lrp-alpha1beta0",
    "rap",
    "guided-backprop",
    "saliency",
    "gradcam",
    "constant",
    "random",
)


def photographs(names: tuple[str, ...]) -> tuple[nn.Module, Tensor]:
    loaded, images = load_model(), sample_images()
    return loaded.model, torch.stack([loaded.transform(images[name]) for name in names])


def marked(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if not abslrp.methods()[name].sensitive)


def test_marks_are_what_is_measured() -> None:
    model, x = photographs(("chelsea",))
    assert sanity(model, x, QUICK, depths=2).insensitive == marked(QUICK)


@pytest.mark.slow
def test_marks_of_all_methods_are_what_is_measured() -> None:
    """EfficientNet-Lite0 on four photographs; every method but those for attention."""
    model, x = photographs(("chelsea", "coffee", "rocket", "motorcycle_left"))
    found = sanity(model, x, {name: SHORT.get(name, {}) for name in OTHERS}, depths=6)
    assert found.insensitive == marked(OTHERS)
    for name in OTHERS:
        assert found.correlations[name][-1] < THRESHOLD or abslrp.methods()[name].family == "control"


@pytest.mark.slow
def test_marks_of_attention_are_what_is_measured_on_a_transformer(shared: Path) -> None:
    model, x = shared_network(shared, "vit-tiny"), shared_images(shared, "vit-tiny", 3, 3)
    assert sanity(model, x, ATTENTION, depths=4).insensitive == marked(ATTENTION)


@pytest.mark.slow
def test_one_layer_alone_changes_less_than_all_from_the_head_to_it() -> None:
    model, x = photographs(("chelsea", "coffee"))
    names = ["abslrp", "lrp-epsilon", "saliency", "gradcam"]
    all_of_them = sanity(model, x, names, depths=4)
    alone = sanity(model, x, names, depths=4, cascade=False)
    assert alone.depths == all_of_them.depths and alone.insensitive == ()
    for name in names:
        assert sum(alone.correlations[name]) > sum(all_of_them.correlations[name])


@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
def test_the_model_and_the_random_state_are_left_alone(kind: str) -> None:
    model, state = model_of(kind), torch.get_rng_state()
    before, x = snapshot(model), X.clone()
    found = sanity(model, x, ["abslrp", "saliency", "constant"], depths=3)
    assert same(before, snapshot(model)) and torch.equal(state, torch.get_rng_state()) and torch.equal(x, X)
    assert sanity(model, x, ["abslrp", "saliency", "constant"], depths=3) == found
    assert sanity(model, x, ["abslrp", "saliency", "constant"], depths=3, seed=1) != found
    assert found.correlations["constant"] == (1.0, 1.0, 1.0) and len(found.depths) == 3
    assert all(-1 <= c < 0.999 for name in ("abslrp", "saliency") for c in found.correlations[name])


def test_every_value_stays_and_vectors_keep_their_company() -> None:
    from abslrp.inputs.draws import generator
    from abslrp.sanity import _shuffle

    norm = nn.BatchNorm2d(50)
    for number, tensor in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
        tensor.data.copy_(torch.arange(50.0) + 100 * number)  # type: ignore[union-attr]
    layer = nn.Conv2d(4, 5, 3)
    values = layer.weight.detach().flatten().sort().values
    for module in (norm, layer):
        _shuffle(module, generator(0, "test"))
    assert not torch.equal(norm.weight, torch.arange(50.0))
    for number, tensor in enumerate((norm.bias, norm.running_mean, norm.running_var)):
        assert torch.equal(tensor - 100 * (number + 1), norm.weight)  # type: ignore[operator]
    assert torch.equal(layer.weight.detach().flatten().sort().values, values)


def test_rank_correlation_is_scipys_with_ties_too() -> None:
    generator = torch.Generator().manual_seed(0)
    for levels in (3, 10, 1000):
        a, b = (torch.randint(levels, (40,), generator=generator).double() for _ in range(2))
        assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    one, nan = torch.ones(4), torch.tensor([1.0, float("nan"), 2.0, 3.0])
    assert [rank_correlation(one, one), rank_correlation(one, nan), rank_correlation(nan, nan)] == [1.0, 0.0, 0.0]


def test_the_upper_half_decides() -> None:
    found = Sanity(("d", "c", "b", "a"), {"late": (0.9, 0.8, 0.1, 0.1), "early": (0.9, 0.6, 0.9, 0.9)})
    assert found.insensitive == ("late",) and found.upper_half == {"late": 0.8, "early": 0.6}


def test_what_cannot_be_measured_is_one_sentence() -> None:
    for model, options, says in (
        (lambda x: x.flatten(1), {}, "the weights of a plain function cannot be shuffled"),
        (nn.Flatten().eval(), {}, "no layers with weights"),
        (convolutional().train(), {}, "training mode"),
        (convolutional().eval(), {"depths": 0}, "depths=0"),
        (convolutional().eval(), {"methods": "nonsense"}, "'nonsense' is unknown"),
    ):
        with pytest.raises(abslrp.AbslrpError, match=says) as error:
            sanity(model, X, **options)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)


def test_the_list_of_methods_and_the_doctor_say_it(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    for columns in ("80", "160"):
        monkeypatch.setenv("COLUMNS", columns)
        assert cli.main(["methods"]) == 0
        listed = capsys.readouterr().out
        assert (
            listed.count("†") == len(marked(list(abslrp.methods()))) + 1
            and "†\u00a0insensitive to the weights" in listed
        )
    assert cli.main(["methods", "rap"]) == 0
    assert "insensitive to the weights" in capsys.readouterr().out
    from tests.cli.test_cli import tiny

    monkeypatch.setattr("abslrp.inputs.models.load_model", lambda *args, **kwargs: tiny())
    assert cli.main(["doctor", "--sanity", "--method", "lrp-epsilon"]) == 0
    said = capsys.readouterr().out
    assert "weights shuffled down to" in said and "With the upper half shuffled the rank correlation is" in said
