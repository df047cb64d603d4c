"""Inputs, targets and options of every kind, by the hundred: each call works or says one sentence, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.test_methods import model_of
from tests.trust.judge import FEW, FORMS, QUICK, VALUES, Odd, Small, images, judged

import abslrp

# Torch warns of tensors of rare kinds, which are the point here.
pytestmark = pytest.mark.filterwarnings("ignore")
METHODS = abslrp.methods()
WITHOUT_ATTENTION = [name for name, method in METHODS.items() if "attention" not in method.needs]


def some(examples: int) -> Callable[[Any], Any]:
    """So many examples, the same every time."""
    checks = (HealthCheck.too_slow, HealthCheck.filter_too_much)
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=checks)


def numbers(values: list[Any]) -> st.SearchStrategy[int]:
    """Places in a list: its values need no repr that works."""
    return st.integers(0, len(values) - 1)


TARGETS: list[Any] = [
    *VALUES, [0, 1], (0, 1), [0, 5], [0, -1], [[0], [1]], [[0, 1]], {0, 1}, {0: 1}, range(2), [2**70, 1], slice(2), [True, False],
    np.array([0, 1]), np.array([0, 1], dtype=np.uint64), np.array([0, 1], dtype=object), np.array([0.0, 1]), np.int8(1), np.datetime64("2020"),
    *(torch.tensor([0, 1]).to(t) for t in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint16, torch.uint64, torch.bool, torch.float32)),
    torch.tensor([0, 1], device="meta"), torch.tensor([[0], [1]]), torch.tensor([]), torch.tensor([], dtype=torch.long), torch.tensor([0, 9]),
    torch.tensor([0, 1]).to_sparse(), torch.quantize_per_tensor(torch.tensor([0.0, 1]), 0.1, 0, torch.quint8),
    torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([1])]),
]  # fmt: skip
OPTIONS = [(name, option) for name, method in METHODS.items() for option in (*method.options, "nonsense")]
KEYWORDS = ("batch_size", "max_memory", "at", "forward", "method")


def try_input(form: str, method: str, target: int | None) -> None:
    model, x = Small(), FORMS[form]()
    found = judged(lambda: abslrp.explain(model, x, target, method, **QUICK.get(method, {})), model, x)
    if isinstance(found, abslrp.AbslrpError):
        assert model.runs[0] <= FEW


def try_target(number: int, method: str) -> None:
    model, x = Small(), images()
    found = judged(lambda: abslrp.explain(model, x, TARGETS[number], method, **QUICK.get(method, {})), model, x)
    if isinstance(found, abslrp.AbslrpError):
        assert model.runs[0] <= FEW
    else:
        assert found.targets.dtype == torch.int64 and 0 <= int(found.targets.min()) <= int(found.targets.max()) < 5


def try_option(which: int, number: int) -> None:
    (name, option), value = OPTIONS[which], VALUES[number]
    model: Any = model_of("transformer") if "attention" in METHODS[name].needs else Small()
    x = torch.ones(2, 3, 16, 16) if "attention" in METHODS[name].needs else images()
    given = {**QUICK.get(name, {}), option: value}
    # A bar shows itself on the screen, and a number of steps that is allowed may take its time.
    if option == "progress" or (type(value) is int and value > 3 and option != "seed" and value <= 10**6):
        return
    found = judged(lambda: abslrp.explain(model, x, 1, name, **given), model, x)
    if isinstance(found, abslrp.AbslrpError) and isinstance(model, Small):
        assert model.runs[0] <= FEW
    assert option != "nonsense" or isinstance(found, abslrp.AbslrpError)


def try_keyword(keyword: str, number: int) -> None:
    model, x = Small(), images()
    judged(lambda: abslrp.explain(model, x, 1, **{keyword: VALUES[number]}), model, x)


def try_propagate(what: str, number: int) -> None:
    model, x, value = Small(), images(), TARGETS[number]

    def run() -> Any:
        given = {what: value} if what in ("measure", "eps", "conserve") else {}
        with abslrp.propagate(value if what == "ruleset" else "abslrp", **given) as p:
            y = model(x)
        outputs, inside = value if what == "outputs" else y, value if what == "x" else x
        targets, start = value if what == "targets" else None, value if what == "start" else "target"
        return p.relevance(outputs, inside, start, targets=targets)

    judged(run, model, x)


def try_registering(number: int, kind: bool) -> None:
    try:
        if kind:
            abslrp.register_operation(torch.special.i0, VALUES[number])
        else:
            abslrp.register_operation(VALUES[number], "nonsense")
    except abslrp.AbslrpError as error:
        assert "\n" not in str(error)
    else:
        assert callable(VALUES[number])
        from abslrp.propagation.operations import OPERATIONS

        OPERATIONS.pop(torch.special.i0, None)


INPUTS = st.tuples(st.sampled_from(sorted(FORMS)), st.sampled_from(WITHOUT_ATTENTION), st.sampled_from([None, 0, 4]))
AIMED = st.tuples(numbers(TARGETS), st.sampled_from(WITHOUT_ATTENTION))
OPTED = st.tuples(numbers(OPTIONS), numbers(VALUES))
WHATS = st.sampled_from(("ruleset", "measure", "eps", "conserve", "outputs", "x", "targets", "start"))


@some(150)
@given(INPUTS)
def test_inputs_in_any_form(case: tuple[str, str, int | None]) -> None:
    try_input(*case)


@some(150)
@given(AIMED)
def test_targets_of_any_kind(case: tuple[int, str]) -> None:
    try_target(*case)


@some(400)
@given(OPTED)
def test_options_of_any_kind(case: tuple[int, int]) -> None:
    try_option(*case)


@some(100)
@given(st.sampled_from(KEYWORDS), numbers(VALUES))
def test_keywords_of_any_kind(keyword: str, number: int) -> None:
    try_keyword(keyword, number)


@some(150)
@given(WHATS, numbers(TARGETS))
def test_the_engine_is_asked_with_anything(what: str, number: int) -> None:
    try_propagate(what, number)


@some(60)
@given(numbers(VALUES), st.booleans())
def test_operations_registered_with_anything(number: int, kind: bool) -> None:
    try_registering(number, kind)


@pytest.mark.slow
def test_every_input_target_option_and_keyword() -> None:
    for form in FORMS:
        for method in WITHOUT_ATTENTION:
            for target in (None, 4):
                try_input(form, method, target)
    for method in WITHOUT_ATTENTION:
        for number in range(len(TARGETS)):
            try_target(number, method)
    for which in range(len(OPTIONS)):
        for number in range(len(VALUES)):
            try_option(which, number)
    for number in range(len(VALUES)):
        for keyword in KEYWORDS:
            try_keyword(keyword, number)
    for number in range(len(TARGETS)):
        for what in ("ruleset", "measure", "eps", "conserve", "outputs", "x", "targets", "start"):
            try_propagate(what, number)


# ---------------------------------------------------------------- what was found by trying, one by one


def test_a_target_out_of_range_is_refused_before_the_first_batch() -> None:
    model, x = Small(), images(40)
    with pytest.raises(abslrp.AbslrpError, match="target 7 is out of range"):
        abslrp.explain(model, x, [0] * 39 + [7], batch_size=2)
    assert model.runs == [1]


def test_starts_and_baselines_of_each_input_are_split_with_the_batch() -> None:
    model, x = Small(), images(4)
    start, baseline = torch.eye(5)[[0, 1, 2, 3]], torch.linspace(0, 1, x.numel()).reshape(x.shape)
    for method, options in (("abslrp", {"start": start}), ("integrated-gradients", {"baseline": baseline, "steps": 3})):
        whole = abslrp.explain(model, x, 1, method, **options).maps
        parts = abslrp.explain(model, x, 1, method, batch_size=1, **options).maps
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))


@pytest.mark.parametrize("method", ["saliency", "gradcam", "abslrp", "occlusion", "deeplift"])
def test_predictions_made_in_inference_mode_are_targets(method: str) -> None:
    model, x = Small(), images()
    with torch.inference_mode():
        targets = model(x).argmax(1)
        inside = abslrp.explain(model, x, targets, method, **QUICK.get(method, {}))
    outside = abslrp.explain(model, x, targets, method, **QUICK.get(method, {}))
    assert torch.equal(inside.maps, outside.maps) and not inside.maps.is_inference()


def test_an_array_that_runs_backwards_is_a_target() -> None:
    order = np.array([3, 1])[::-1]
    assert abslrp.explain(Small(), images(), order).targets.tolist() == [1, 3]  # type: ignore[arg-type]


def test_an_outputs_nan_is_told_with_its_input_before_any_more_work() -> None:
    x = images(3)
    x[1] = 3e38
    model = Small()
    with pytest.raises(abslrp.AbslrpError, match="outputs are NaN for input 1 of 3, so no class is predicted"):
        abslrp.explain(model, x, method="smoothgrad")
    assert model.runs == [1]
    with pytest.warns(RuntimeWarning, match="the saliency map of input 1 of 3, or the output it explains, holds NaN"):
        abslrp.explain(model, x, 0, "saliency")


def test_what_the_model_raises_is_one_sentence_with_its_cause() -> None:
    model, x = Small(), torch.zeros(2, 4, 8, 8)
    with pytest.raises(
        abslrp.AbslrpError, match=r"^the model raised RuntimeError in conv on inputs of shape \(2, 4, 8, 8\)"
    ) as told:
        abslrp.explain(model, x)
    assert isinstance(told.value, RuntimeError) and isinstance(told.value.__cause__, RuntimeError)
    with pytest.raises(
        abslrp.AbslrpError, match=r"its weights are float32, so convert the inputs with \.to\(torch\.float32\)\.$"
    ):
        abslrp.explain(model, images().double())


def test_huge_numbers_of_steps_are_refused_and_many_take_no_memory() -> None:
    for name, options in (
        ("integrated-gradients", {"steps": 10**9}),
        ("integrated-gradients", {"steps": 10**5, "rule": "gauss-legendre"}),
        ("smoothgrad", {"samples": 10**9}),
        ("rise", {"masks": 10**12}),
        ("rise", {"cells": 10**5}),
    ):
        model = Small()
        with pytest.raises(abslrp.AbslrpError, match="is too large: choose a whole number from 1 to"):
            abslrp.explain(model, images(), 1, name, **options)
        assert model.runs == [0]


def test_truth_values_are_not_taken_from_texts() -> None:
    with pytest.raises(abslrp.AbslrpError, match="absolute='no' must be True or False"):
        abslrp.explain(Small(), images(), 1, "smoothgrad", absolute="no")


def test_a_value_is_quoted_on_one_line() -> None:
    from abslrp.types import brief

    assert (
        brief(Odd()) == "a Odd"
        and brief(np.zeros((3, 2))) == "an array of shape (3, 2)"
        and "\n" not in brief(torch.zeros(()))
    )
