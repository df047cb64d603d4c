"""The command line from outside: exit codes, sentences, files."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from abslrp import batches, cli, registry
from abslrp.inputs import models
from abslrp.inputs.images import Transform
from abslrp.inputs.models import LoadedModel

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["tabby", "Egyptian cat", "crane", "crane", "coffee mug"]


def tiny(names: list[str] | None = NAMES) -> LoadedModel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)).eval()
    return LoadedModel(model, Transform(size=(16, 16), resize=20), names, "tiny")


class Attentive(nn.Module):
    """Sixteen patches and a class token, one attention over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1)
        return self.head((tokens + self.attention(tokens, tokens, tokens)[0])[:, 0])  # type: ignore[no-any-return]


def attentive() -> LoadedModel:
    torch.manual_seed(0)
    return LoadedModel(Attentive().eval(), tiny().transform, NAMES, "attentive")


@pytest.fixture(autouse=True)
def _tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load_model", lambda *args, **kwargs: tiny())
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def photographs(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "in" / name for name in ("a/cat.png", "b/cat.jpg", "dog.png")]
    for seed, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return [str(path) for path in paths]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def assert_one_sentence(code: int, err: str, says: str) -> None:
    assert code == 2
    assert re.search(says, err), err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_explain_writes_overlay_map_and_numbers(capsys: Any, photographs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = run(capsys, "explain", photographs[2], "--target", "egyptian", "--out", out)
    assert (code, err) == (0, "")
    assert sorted(file.name for file in out.iterdir()) == [
        "dog-egyptian-cat-abslrp-map.png",
        "dog-egyptian-cat-abslrp.npz",
        "dog-egyptian-cat-abslrp.png",
    ]
    with np.load(out / "dog-egyptian-cat-abslrp.npz") as stored:
        assert (stored["map"].shape, stored["map"].dtype) == ((3, 16, 16), np.float32)
        assert np.abs(stored["map"]).sum() > 0
        assert (int(stored["target"]), str(stored["class_name"])) == (1, "Egyptian cat")
        assert (str(stored["method"]), str(stored["model"])) == ("abslrp", "tiny")
        image = tiny().transform(Image.open(photographs[2]))
        assert np.allclose(stored["outputs"], tiny().model(image[None])[0].detach(), atol=1e-5)
    assert Image.open(out / "dog-egyptian-cat-abslrp.png").size == (16, 16)
    assert "Egyptian cat" in said
    assert "%" in said


def test_explain_top_classes_of_many(capsys: Any, photographs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, _ = run(capsys, "explain", tmp_path / "in", "--top", 5, "--batch", 2, "--out", out)
    assert code == 0
    files = sorted(file.name for file in out.iterdir())
    assert len(files) == 3 * 3 * 5
    assert "45 files" in said
    for stem in ("cat", "cat-2", "dog"):
        for label in ("tabby", "egyptian-cat", "crane-2", "crane-3", "coffee-mug"):
            assert f"{stem}-{label}-abslrp.npz" in files
    first, second = (np.load(out / f"{stem}-tabby-abslrp.npz")["map"] for stem in ("cat", "cat-2"))
    assert not np.allclose(first, second)


def test_results_do_not_depend_on_the_batch(photographs: list[str], tmp_path: Path) -> None:
    for size in (1, 3):
        assert cli.main(["explain", *photographs, "--batch", str(size), "--out", str(tmp_path / str(size))]) == 0
    for file in (tmp_path / "1").glob("*.npz"):
        with np.load(file) as one, np.load(tmp_path / "3" / file.name) as other:
            assert np.allclose(one["map"], other["map"], atol=1e-6)


def test_classes_without_names(capsys: Any, photographs: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(models, "load_model", lambda *args, **kwargs: tiny(None))
    out = tmp_path / "out"
    assert run(capsys, "explain", photographs[2], "--target", "3", "--out", out)[0] == 0
    assert (out / "dog-class-3-abslrp.png").exists()
    code, _, err = run(capsys, "explain", photographs[2], "--target", "tabby", "--out", out)
    assert_one_sentence(code, err, "no class names: give an index from 0 to 4")


def test_unreadable_images_are_skipped_and_told(capsys: Any, photographs: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad [red].png"
    bad.write_text("no image")
    code, said, err = run(capsys, "explain", bad, photographs[2], tmp_path / "gone.png", "--out", tmp_path / "out")
    assert code == 2
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert "dog" in said
    lines = err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["skipped", "skipped", "error"]
    assert "bad [red].png is not an image" in lines[0]
    assert "gone.png does not exist" in lines[1]
    assert "2 of 3 images" in lines[2]


def test_option_reaches_the_method(capsys: Any, photographs: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[dict[str, Any]] = []
    original = batches.explain

    def spy(model: Any, x: Any, targets: Any, method: str, **options: Any) -> Any:
        seen.append(options)
        return original(model, x, targets, method, **options)

    monkeypatch.setattr(batches, "explain", spy)
    words = ["explain", photographs[2], "--option", "conserve=joint", "--option", "eps=1e-6", "--out", tmp_path / "out"]
    assert run(capsys, *words)[0] == 0
    assert seen == [{"conserve": "joint", "eps": 1e-6}]


@pytest.mark.parametrize("name", sorted(registry.methods()))
def test_every_method_explains(
    capsys: Any, photographs: list[str], tmp_path: Path, monkeypatch: Any, name: str
) -> None:
    method = registry.method(name)
    if "attention" in method.needs:
        monkeypatch.setattr(models, "load_model", lambda *args, **kwargs: attentive())
    short = {"masks": 4, "steps": 3, "samples": 2, "layer": "0", "progress": "true"}
    words = [word for key, value in short.items() if key in method.options for word in ("--option", f"{key}={value}")]
    out = tmp_path / "out"
    code, printed, err = run(capsys, "explain", *photographs, "--method", name, *words, "--out", out)
    assert code == 0 and "error" not in err
    assert ("100%" in err) == ("progress" in method.options) and "━" not in printed  # bars go to stderr
    files = sorted(out.glob("*.npz"))
    assert len(files) == 3
    for file in files:
        with np.load(file) as stored:
            assert np.isfinite(stored["map"]).all()
            assert str(stored["method"]) == name


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("steps=20", 20),
        ("baseline=0.5", 0.5),
        ("baseline=-1", -1),
        ("eps=1e-6", 1e-6),
        ("progress=true", True),
        ("absolute=False", False),
        ("window=28,14", (28, 14)),
        ("window=[28, 14]", [28, 14]),
        ("layer=layer4", "layer4"),
        ("layer=0", "0"),
        ("layer=1.0", "1.0"),
        ("layer=features.29", "features.29"),
        ("conserve=none", "none"),
        ("start=two-pass", "two-pass"),
        ("rule=", ""),
        ("rule='right'", "'right'"),
        ("a=b=c", "b=c"),
    ],
)
def test_options_are_read_as_what_they_are(pair: str, value: Any) -> None:
    (read,) = cli.read_settings([pair]).values()
    assert read == value
    assert type(read) is type(value)


def test_option_names_may_have_dashes() -> None:
    assert cli.read_settings(["inner-batch=4"]) == {"inner_batch": 4}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["explain"], "IMAGE"),
        (["nonsense"], "nonsense"),
        (["explain", "x.png", "--nonsense"], "nonsense"),
        (["explain", "x.png", "--top", "0"], "--top"),
        (["explain", "x.png", "--batch", "many"], "--batch"),
        (["explain", "PHOTO", "--top", "2", "--target", "1"], "both given"),
        (["explain", "PHOTO", "--target", "9"], "from 0 to 4"),
        (["explain", "PHOTO", "--target", "crane"], "crane = 2, crane = 3"),
        (["explain", "PHOTO", "--method", "abslpr"], "did you mean abslrp"),
        (["explain", "PHOTO", "--option", "conserve"], "KEY=VALUE"),
        (["explain", "PHOTO", "--option", "nonsense=1"], "'nonsense' is unknown"),
        (["explain", "PHOTO", "--option", "conserve=nonsense"], "'nonsense' is unknown"),
        (["explain", "PHOTO", "--method", "gradcam", "--option", "layer=nonsense"], "'nonsense' is not in the model"),
        (["explain", "PHOTO", "--method", "rise", "--option", "masks=many"], "masks='many' must be a whole number"),
        (["explain", "PHOTO", "--method", "saliency", "--option", "steps=1"], "'steps' is unknown for saliency"),
        (["explain", "PHOTO", "--method", "rollout"], "the model has no attention"),
        (["methods", "abslpr"], "did you mean abslrp"),
        (["explain", "no/such/*.png"], "no image found"),
        (["explain", "PHOTO", "--out", "PHOTO/below"], "cannot be written"),
        (["doctor", "--image", "gone.png"], "does not exist"),
        (["doctor", "--method", "nonsense"], "nonsense"),
        (["doctor", "--method", "gradcam"], "cannot do for gradcam: choose one of abslrp, "),
        (["doctor", "--method", "deeplift"], "cannot do for deeplift"),
        (["doctor", "--method", "clrp"], "cannot do for clrp"),
    ],
)
def test_errors_are_one_sentence(
    capsys: Any, photographs: list[str], tmp_path: Path, monkeypatch: Any, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *(word.replace("PHOTO", photographs[2]) for word in words))
    assert_one_sentence(code, err, says)


def test_model_errors_are_one_sentence(capsys: Any, photographs: list[str], monkeypatch: Any) -> None:
    monkeypatch.undo()
    code, _, err = run(capsys, "explain", photographs[2], "--model", "timm:resnet19")
    assert_one_sentence(code, err, "did you mean resnet18")


def test_unexpected_errors_are_one_sentence_and_debug_shows_them(
    capsys: Any, photographs: list[str], monkeypatch: Any
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("two\nlines")

    monkeypatch.setattr(models, "load_model", fail)
    code, _, err = run(capsys, "explain", photographs[2])
    assert_one_sentence(code, err, "KeyError: .*--debug")
    for words in (["--debug", "explain", photographs[2]], ["explain", photographs[2], "--debug"]):
        code, _, err = run(capsys, *words)
        assert code == 2
        assert "Traceback" in err


def test_interruption_is_quiet(capsys: Any, photographs: list[str], monkeypatch: Any) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "load_model", interrupt)
    assert run(capsys, "explain", photographs[2]) == (130, "", "")


def test_doctor_shows_coverage(capsys: Any, photographs: list[str]) -> None:
    code, said, err = run(capsys, "doctor", "--image", photographs[2])
    assert (code, err) == (0, "")
    assert "affine" in said
    assert "tiny works" in said


@pytest.mark.parametrize("name", ["abslrp-agree", "lrp-epsilon", "lrp-alpha2beta1", "rap"])
def test_doctor_takes_other_rules_and_tells_no_loss_that_is_none(
    capsys: Any, photographs: list[str], name: str
) -> None:
    code, said, err = run(capsys, "doctor", "--image", photographs[2], "--method", name)
    assert (code, err) == (0, "")
    assert "arrived at the input" in said
    assert "-" not in said.splitlines()[-1]


def test_doctor_names_the_unknown_operation(capsys: Any, photographs: list[str], monkeypatch: Any) -> None:
    class Strange(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x[:, 0]).flatten(1)[:, :5]

    loaded = tiny()
    strange = LoadedModel(nn.Sequential(Strange()).eval(), loaded.transform, NAMES, "strange")
    monkeypatch.setattr(models, "load_model", lambda *args, **kwargs: strange)
    code, _, err = run(capsys, "doctor", "--image", photographs[2])
    assert_one_sentence(code, err, "matrix_exp")


@pytest.mark.parametrize("columns", [80, 160])
def test_methods_lists_the_registry(capsys: Any, monkeypatch: Any, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, said, _ = run(capsys, "methods")
    assert code == 0
    lines = [line.rstrip() for line in said.splitlines()]
    assert max(map(len, lines)) <= columns
    starts = [lines.index(method.family) for method in registry.methods().values()]
    assert len(set(starts)) == len({method.family for method in registry.methods().values()})
    for name, method in registry.methods().items():
        at = next(number for number, line in enumerate(lines) if line.split()[:1] == [name])
        assert max(start for start in starts if start < at) == lines.index(method.family)
        # Its lines go on until the next name, which stands further left than what is told of a method.
        rest = [number for number in range(at + 1, len(lines)) if not lines[number].startswith("   ")]
        told = " ".join(lines[at : rest[0]])
        assert all(need in told for need in method.needs)
        assert (("same for every class" if columns == 80 else " no ") in told) is not method.class_specific
        assert set(method.description.split() + method.citation.strip("—").split()) <= set(told.split())


def test_methods_shows_options_of_some(capsys: Any) -> None:
    code, said, _ = run(capsys, "methods", "abslrp", "occlusion", "saliency")
    assert code == 0
    for name in ("abslrp", "occlusion", "saliency"):
        assert f"{name}: " in said
    for name in (*registry.method("abslrp").options, *registry.method("occlusion").options):
        assert re.search(rf"^{name} ", said, flags=re.MULTILINE)
    assert re.search(r"^conserve +sign +sign, joint, each, none", said, flags=re.MULTILINE)
    assert re.search(r"^window +found by itself", said, flags=re.MULTILINE)
    assert re.search(r"^progress +false +true, false", said, flags=re.MULTILINE)


def test_version_and_help(capsys: Any) -> None:
    code, said, _ = run(capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"abslrp \d+\.\d+\.\d+\n", said)
    for words in ([], ["--help"], ["explain", "--help"]):
        code, said, _ = run(capsys, *words)
        assert code == 0
        assert "abslrp" in said


def test_demo_prints_the_paths_of_its_sheets_and_report(capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    import abslrp.inputs.datasets  # which keeps the photographs themselves, to be scored  # noqa: F401

    sample = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    monkeypatch.setattr(models, "sample_images", lambda: {"one": sample, "two": sample})
    monkeypatch.setitem(batches.SHORT, "rise", {"masks": 3})
    monkeypatch.setattr(cli, "_SCORED", ("gradcam", "constant"))
    code, said, _ = run(capsys, "demo", "--out", tmp_path)
    assert code == 0 and "gradcam" in said
    *sheets, report = [Path(line) for line in said.splitlines()[-3:]]
    assert sheets == [(tmp_path / name).resolve() for name in ("demo.png", "methods.png")]
    for path in sheets:
        assert min(Image.open(path).size) > 100
    assert "gradcam" in report.read_text(encoding="utf-8")


def test_settings_of_the_demo_are_options_of_their_methods() -> None:
    for name, settings in batches.SHORT.items():
        assert set(settings) <= set(registry.method(name).options)


def _readme_commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("abslrp ")]


def test_commands_of_the_readme_are_understood(capsys: Any) -> None:
    commands = _readme_commands()
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        assert run(capsys, *words, "--help")[0] == 0, command


def test_a_real_interruption_ends_with_130(tmp_path: Path) -> None:
    program = (
        "import sys, time; from abslrp import cli; from abslrp.inputs import models\n"
        "models.load_model = lambda *a, **k: (print('ready', flush=True), time.sleep(60))\n"
        f"sys.exit(cli.main(['explain', {str(tmp_path / 'a.png')!r}]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
