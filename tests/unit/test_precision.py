"""Evaluation takes products in full precision and puts the user's setting back."""

import subprocess
import sys
import threading

import pytest
import torch

import abslrp
from abslrp.precision import full_precision, precision


def test_full_precision_is_put_back() -> None:
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(ZeroDivisionError), full_precision():
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
        _ = 1 / 0
    assert torch.backends.cudnn.allow_tf32 == before


@pytest.mark.parametrize(
    "place", [("cudnn.conv", "tf32"), ("cudnn.conv", "ieee"), ("cuda.matmul", "tf32"), ("cudnn.rnn", "ieee")], ids=str
)
def test_settings_by_torchs_newer_names_are_put_back(place: tuple[str, str]) -> None:
    """In a process of its own: torch's older names raise where the newer ones were used."""
    if not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this torch has no newer names")
    name, value = place
    code = f"""
import torch
from abslrp.precision import full_precision, precision
places = [torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul]
torch.backends.{name}.fp32_precision = {value!r}
before = [p.fp32_precision for p in places]
with full_precision():
    with full_precision():
        assert not [p.fp32_precision for p in places if p.fp32_precision == "tf32"]
    assert not [p.fp32_precision for p in places if p.fp32_precision == "tf32"]
assert [p.fp32_precision for p in places] == before, before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_setting_above_all_others_is_met_and_kept() -> None:
    """Convolutions that follow torch's global setting are told, and follow it again afterwards."""
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has no such setting")
    code = """
import torch
from abslrp.precision import precision
B = torch.backends
places = [B, B.cudnn, B.cudnn.conv, B.cudnn.rnn, B.cuda.matmul, B.mkldnn, B.mkldnn.matmul, B.mkldnn.conv]
now = lambda: [p.fp32_precision for p in places]
for above, value in ((None, ""), (B, "tf32"), (B, "ieee"), (B.cudnn, "tf32"), (B.mkldnn, "bf16")):
    if above is not None:
        above.fp32_precision = value
    before = now()
    for tf32 in (False, True):
        with precision(tf32):
            assert [p.fp32_precision == "tf32" for p in (B.cudnn.conv, B.cudnn.rnn, B.cuda.matmul)] == [tf32] * 3
        assert now() == before, (above, value, tf32, before, now())
B.mkldnn.fp32_precision = "bf16"
assert B.mkldnn.matmul.fp32_precision == "bf16"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_share_one_setting() -> None:
    before = torch.backends.cudnn.allow_tf32
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with full_precision():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with full_precision():
        leave.set()
        thread.join()
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before


def test_methods_run_in_full_precision_inside_evaluate() -> None:
    seen = []
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()

    def method(model: object, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cudnn.allow_tf32)
        return x

    abslrp.evaluate(model, torch.randn(4, 1, 4, 4), {"mine": method}, "gae", T=2)
    assert seen and not any(seen)


def settings() -> tuple[bool, str]:
    return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()


def test_tf32_is_allowed_where_asked_and_put_back() -> None:
    before = settings()
    with precision(True):
        assert settings() == (True, "high")
        with precision(False):
            assert settings() == (False, "highest")
        assert settings() == (True, "high")
    assert settings() == before
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()
    seen = []

    def method(model: object, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(settings())
        return x

    abslrp.evaluate(model, torch.randn(4, 1, 4, 4), {"mine": method}, "gae", T=2, tf32=True)
    assert seen and set(seen) == {(False, "highest")}  # it is for CUDA
    with pytest.raises(abslrp.AbslrpError, match="tf32='yes' must be True or False"):
        abslrp.evaluate(model, torch.randn(4, 1, 4, 4), "constant", tf32="yes")  # type: ignore[arg-type]


def test_who_asks_for_full_precision_gets_it_in_any_order() -> None:
    before = settings()
    for order in ((True, False), (False, True)):
        for first_out in (0, 1):
            asked = [precision(tf32) for tf32 in order]
            for one in asked:
                one.__enter__()
            assert settings() == (False, "highest")
            asked[first_out].__exit__(None, None, None)
            assert settings() == ((False, "highest") if not order[1 - first_out] else (True, "high"))
            asked[1 - first_out].__exit__(None, None, None)
            assert settings() == before


def test_tf32_belongs_to_a_run() -> None:
    from abslrp.experiments.config import Config, make_config
    from abslrp.experiments.repeat import repeat_command

    plain, rounded = make_config({"methods": "abslrp"}), make_config({"methods": "abslrp", "tf32": True})
    assert "tf32" not in plain.to_dict() and plain.hash != rounded.hash
    for config in (plain, rounded):
        assert Config.from_dict(config.to_dict()) == config
    assert "--tf32" in str(repeat_command(rounded, "runs/run")) and "--tf32" not in str(
        repeat_command(plain, "runs/run")
    )
