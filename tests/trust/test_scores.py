"""evaluate, explain_text, evaluate_text and the command line asked with anything: they work, or say one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trust.judge import FORMS, METRIC_QUICK, QUICK, VALUES, Small, Wrapped, images, judged
from tests.trust.test_inputs import METHODS, numbers, some
from tests.trust.test_models import RETURNED
from torch import Tensor, nn

import abslrp
from abslrp import cli
from abslrp.inputs import models
from abslrp.inputs.models import resolve_target

pytestmark = pytest.mark.filterwarnings("ignore")
METRICS = abslrp.metrics()
METRIC_OPTIONS = [(name, option) for name, metric in METRICS.items() for option in (*metric.options, "nonsense")]
BOX = (1, 1, 5, 5)
GIVEN: list[Any] = [
    *VALUES, ["a"] * 5, list("abcde"), [0, 1, 2, 3, 4], [[0], [1], [2], [3], [0, 1]], [[]] * 5, [0, 0, 1, 1, 99], [-1] * 5, [0.5] * 5, [True] * 5,
    np.array([0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 2]), torch.zeros(5, 3), torch.zeros(5, 3, dtype=torch.long), [{}] * 5, [{0: []}] * 5,
    [{0: [(1, 2, 3)]}] * 5, [{0: [(torch.nan,) * 4]}] * 5, [{99: [BOX]}] * 5, [{-1: [BOX]}] * 5, [{"a": [BOX]}] * 5, [{0: BOX}] * 5,
    [{0: [("a", 1, 2, 3)]}] * 5, [{0: [(3, 3, 1, 1)]}] * 5, [{0: [(-5, -5, 100, 100)]}] * 5, [{0: None}] * 5, [None] * 5,
    {"x": lambda m, x, t: x}, {"x": lambda m, x, t: x[:1]}, {"x": lambda m, x, t: None}, {"x": lambda m, x, t: x * torch.nan},
    {"x": ("abslrp", {"eps": -1})}, {"x": ("abslrp",)}, {"x": ("abslrp", 1)}, {"x": ("abslrp", {}, 2)}, {1: "saliency"}, {"x": 3},
    {"gae": None}, {"gae": 3}, {"gae": {"T": 2}}, ["gae", 3], ("abslrp", {"eps": 1}), METHODS["saliency"], {"x": METHODS["saliency"]},
]  # fmt: skip
KEYWORDS = ("methods", "metrics", "labels", "boxes", "ids", "seed", "batch_size", "images")
TEXTS = ["a good plot", "a bad movie", "a really good movie"]
TEXTUAL: list[Any] = [
    *VALUES, ["a good plot"], ["a good plot", 3], ["a", None], [""], " ", "zzz qqq", ["a " * 100], "a\u0301 \u200b", set(TEXTS), {"a good plot": 1},
    [["a good plot"]], np.array(TEXTS), torch.tensor([0, 1, 1]), [0, 1, 1], [0, 1, 2], [-1, 0, 0], ["x"] * 3, [True] * 3, "abslrp", "text-abpc",
]  # fmt: skip
EXPLAINED = ("texts", "targets", "method", "batch_size", "tokenizer", "model")
SCORED = ("texts", "methods", "metrics", "ids", "batch_size", "steps", "how", "T", "tokenizer", "model", "nonsense")


def five() -> Tensor:
    return images(5)


def evaluated(model: nn.Module, x: Any, metric: str, **changes: Any) -> Any:
    """Scores of one metric under one method, every one of them a number."""
    arguments: dict[str, Any] = {"methods": "input-x-gradient", "metrics": {metric: METRIC_QUICK.get(metric, {})}}
    arguments |= {"labels": [0, 0, 1, 1, 2], "boxes": [{0: [BOX]}] * 5, **changes}
    found = judged(lambda: abslrp.evaluate(model, x, **arguments), model, x)
    for rows in found.values() if isinstance(found, abslrp.Scores) else ():
        for score in rows.values():
            assert score.scores.dtype == torch.float64 and score.scores.isfinite().all()
            assert all(part.isfinite().all() for part in score.parts.values() if part.ndim <= 2)
    return found


def try_metric_option(which: int, number: int) -> None:
    (name, option), value = METRIC_OPTIONS[which], VALUES[number]
    if type(value) is int and 3 < value <= 10**6:
        return
    model = Small()
    found = evaluated(model, five(), name, metrics={name: {**METRIC_QUICK.get(name, {}), option: value}})
    assert option != "nonsense" or isinstance(found, abslrp.AbslrpError)
    assert not isinstance(found, abslrp.AbslrpError) or model.runs[0] <= 4


def try_argument(keyword: str, metric: str, number: int) -> None:
    model, value = Small(), GIVEN[number]
    if keyword == "images":
        evaluated(model, value, metric)
    else:
        evaluated(model, five(), metric, **{keyword: value})


def try_image(form: str, metric: str) -> None:
    evaluated(Small(), FORMS[form](), metric, labels=None, boxes=None)


def try_outputs(kind: str, metric: str) -> None:
    evaluated(Wrapped(RETURNED[kind]), five(), metric)


METRIC = st.sampled_from(sorted(METRICS))


@some(150)
@given(numbers(METRIC_OPTIONS), numbers(VALUES))
def test_options_of_metrics_of_any_kind(which: int, number: int) -> None:
    try_metric_option(which, number)


@some(150)
@given(st.sampled_from(KEYWORDS), METRIC, numbers(GIVEN))
def test_arguments_of_evaluate_of_any_kind(keyword: str, metric: str, number: int) -> None:
    try_argument(keyword, metric, number)


@some(60)
@given(st.sampled_from(sorted(FORMS)), METRIC)
def test_images_in_any_form(form: str, metric: str) -> None:
    try_image(form, metric)


@some(60)
@given(st.sampled_from(sorted(RETURNED)), METRIC)
def test_models_that_return_anything(kind: str, metric: str) -> None:
    try_outputs(kind, metric)


@pytest.fixture(scope="module")
def classifier() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from abslrp.inputs.sentences import tiny_classifier

    return tiny_classifier()


def try_text(classifier: Any, keyword: str, number: int, score: bool) -> None:
    model, tokenizer = classifier
    call = abslrp.evaluate_text if score else abslrp.explain_text
    arguments: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "texts": TEXTS, keyword: TEXTUAL[number]}
    if keyword == "T":
        arguments["metrics"] = "text-consistency"
    value = TEXTUAL[number]
    if keyword in ("steps", "T") and type(value) is int and 3 < value <= 10**6:
        return
    found = judged(lambda: call(**arguments), model)
    assert keyword != "nonsense" or isinstance(found, abslrp.AbslrpError)


@some(100)
@given(st.sampled_from(EXPLAINED), numbers(TEXTUAL))
def test_texts_explained_with_anything(classifier: Any, keyword: str, number: int) -> None:
    try_text(classifier, keyword, number, False)


@some(100)
@given(st.sampled_from(SCORED), numbers(TEXTUAL))
def test_texts_scored_with_anything(classifier: Any, keyword: str, number: int) -> None:
    try_text(classifier, keyword, number, True)


@pytest.mark.slow
def test_every_argument_of_every_score(classifier: Any) -> None:
    for which in range(len(METRIC_OPTIONS)):
        for number in range(len(VALUES)):
            try_metric_option(which, number)
    for number in range(len(GIVEN)):
        for keyword in KEYWORDS:
            for metric in METRICS:
                try_argument(keyword, metric, number)
    for metric in METRICS:
        for form in FORMS:
            try_image(form, metric)
        for kind in RETURNED:
            try_outputs(kind, metric)
    for number in range(len(TEXTUAL)):
        for keyword in EXPLAINED:
            try_text(classifier, keyword, number, False)
        for keyword in SCORED:
            try_text(classifier, keyword, number, True)


@some(150)
@given(st.text(max_size=30), st.sampled_from([None, [], ["cat", "dog", "dog", "Katze"]]))
def test_targets_as_typed(text: str, names: list[str] | None) -> None:
    found = judged(lambda: resolve_target(text, names, 5))
    assert isinstance(found, abslrp.AbslrpError) or 0 <= found < 5


@pytest.mark.parametrize("text", ["\u00b2", "+-1", "--1", "9" * 5000, "1e3", "0x1", "\u0663"])
def test_numbers_as_only_python_reads_them(text: str) -> None:
    found = judged(lambda: resolve_target(text, None, 5))
    assert isinstance(found, abslrp.AbslrpError) or found == 3


@some(150)
@given(st.sampled_from(sorted(METHODS)), st.text(max_size=30))
def test_options_as_typed(method: str, text: str) -> None:
    """Every option of the method with any text for its value."""
    for option in METHODS[method].options:
        judged(lambda o=option: METHODS[method].settle(cli.read_settings([f"{o}={text}"])))
    judged(lambda: cli.read_settings([text]))


@pytest.mark.parametrize("text", ["(" * 500, "-" * 100_000, "[" * 100_000, "9" * 5000, "1e999"])
def test_options_that_python_cannot_read_are_texts(text: str) -> None:
    settings = cli.read_settings([f"layer2={text}"])
    assert settings["layer2"] in (text, float("inf")) or isinstance(settings["layer2"], int)


def test_wrong_options_end_the_command_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(models, "load_model", load)
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"")
    for words in (
        ["explain", str(photo), "--option", "eps=-1"],
        ["explain", str(photo), "--option", "eps=cat"],
        ["explain", str(photo), "--method", "rise", "--option", "masks=1e9"],
        ["explain", str(photo), "--target", "1", "--top", "2"],
        ["explain", str(photo), "--top", "0"],
        ["explain", str(photo), "--top", "cat"],
        ["doctor", "--option", "start=nowhere"],
    ):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1 and "a model was loaded" not in said


# ---------------------------------------------------------------- what was found by trying, one by one


def _standardised(m: Small, x: Tensor) -> Tensor:
    return m((x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True))


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_numbers_where_the_model_gives_nan(metric: str) -> None:
    """A model that standardises its input gives NaN for the image that masking leaves, and another for some images alone."""
    for what in (_standardised, lambda m, x: torch.where(x.mean((1, 2, 3))[:, None] > 0, m(x), torch.nan)):
        found = evaluated(Wrapped(what), five(), metric, methods={"x": ("occlusion", QUICK["occlusion"])})
        assert isinstance(found, abslrp.Scores)
    assert found[metric]["x"].flagged


def test_wrong_options_of_the_last_method_are_refused_before_the_first_runs() -> None:
    model = Small()
    with pytest.raises(abslrp.AbslrpError, match="samples=0 must be a whole number of at least 1"):
        abslrp.evaluate(model, five(), {"a": "abslrp", "b": ("smoothgrad", {"samples": 0})}, T=2)
    assert model.runs == [0]


def test_half_precision_makes_mosaics_on_the_cpu() -> None:
    found = abslrp.evaluate(Small().bfloat16(), five(), "input-x-gradient", "gae", T=2)
    assert found["gae"]["input-x-gradient"].scores.isfinite().all()


def test_a_single_text_is_one_text_not_its_letters(classifier: Any) -> None:
    assert len(abslrp.evaluate_text(*classifier, "a good plot", "random")["text-abpc"]["random"]) == 1


@pytest.mark.parametrize("method", ["lrp-text", "input-x-gradient", "smoothgrad", "rollout", "occlusion"])
def test_texts_in_inference_mode(classifier: Any, method: str) -> None:
    plain = abslrp.explain_text(*classifier, TEXTS, [0, 1, 1], method)
    with torch.inference_mode():
        inside = abslrp.explain_text(*classifier, TEXTS, torch.tensor([0, 1, 1]), method)
        scores = abslrp.evaluate_text(*classifier, TEXTS, method, ["text-abpc", "text-consistency"], T=2)
    assert all(torch.equal(a.relevance, b.relevance) for a, b in zip(plain, inside, strict=True))
    assert scores["text-consistency"][method].scores.isfinite().all()
