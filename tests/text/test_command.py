"""abslrp explain-text, and abslrp evaluate on a file of sentences, from outside."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from abslrp import cli, evaluate_text, explain_text
from abslrp.inputs.sentences import load_text_classifier

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["a really good movie", "the plot was very, very bad!", "a bad movie", "a good plot", "the good movie was bad"]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    code = cli.main([str(one) for one in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_explain_text_prints_and_writes(capsys: Any, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = run(
        capsys, "explain-text", TEXTS[0], "<b>good", "--model", folder, "--target", "positive", "--out", out
    )
    assert (code, err) == (0, "")
    net = load_text_classifier(str(folder))
    a = explain_text(net.model, net.tokenizer, TEXTS[0], targets=1)
    chance = float(a.outputs.softmax(0)[1])
    values = (a.relevance / a.relevance.abs().max()).tolist()
    line = " ".join(f"{w}({round(v, 2) + 0.0:+.2f})" for w, v in zip(a.words, values, strict=True))
    assert f"positive {chance:.1%}" in said and line in said
    page = (out / "words.html").read_text(encoding="utf-8")
    assert "<b>" not in page and "really</span>" in page and "&lt;" in page
    assert Image.open(out / "words.png").size[0] == 1000
    assert sorted(file.name for file in out.iterdir()) == ["words.html", "words.png"]


def test_a_file_and_options_reach_the_method(capsys: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("label,text\n0,a bad movie\n1,a good plot\n")
    words = ("explain-text", "--file", file, "--model", folder, "--out", tmp_path / "out")
    _, plain, _ = run(capsys, *words)
    code, said, err = run(capsys, *words, "--method", "lrp-epsilon", "--option", "eps=0.5", "--batch", 1)
    assert (code, err) == (0, "") and said.count("movie(") == said.count("plot(") == 1 and said != plain


def test_long_texts_are_noted(capsys: Any, folder: Path, tmp_path: Path) -> None:
    code, _, err = run(capsys, "explain-text", "good " * 30, "--model", folder, "--out", tmp_path)
    assert code == 0 and err == "note: text 0 has 32 tokens and the model takes 16: the rest is left out.\n"


def test_in_a_terminal_words_are_coloured(folder: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "FORCE_COLOR": "1",
        "COLORTERM": "truecolor",
        "TERM": "xterm-256color",
    }
    environment.pop("NO_COLOR", None)
    words = ["explain-text", TEXTS[0], "--model", str(folder), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "abslrp.cli", *words], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"48;2;(112;4;28|10;34;102)m", done.stdout)
    assert TEXTS[0] in re.sub(r"\x1b\[[^m]*m", "", done.stdout)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["good"], "no model was named: add --model FOLDER"),
        ([], "no text was given"),
        (["  ", "--model", "FOLDER"], "a text is empty"),
        (["good", "--model", "./nowhere"], "is no folder"),
        (["good", "--model", "FOLDER", "--method", "gradcam"], "gradcam makes maps of images"),
        (["good", "--model", "FOLDER", "--method", "lrp-txt"], "did you mean lrp-text"),
        (["good", "--model", "FOLDER", "--option", "speed=1"], "option 'speed' is unknown for lrp-text"),
        (["good", "--model", "FOLDER", "--target", "great"], "target 'great' is no class of this model"),
        (["good", "--model", "FOLDER", "--target", "2"], "give an index from 0 to 1"),
        (["--file", "none.tsv", "--model", "FOLDER"], "none.tsv cannot be read"),
    ],
)
def test_bad_words_get_one_sentence(capsys: Any, folder: Path, tmp_path: Path, words: list[str], says: str) -> None:
    given = [str(folder) if word == "FOLDER" else word for word in words]
    code, _, err = run(capsys, "explain-text", *given, "--out", tmp_path / "out")
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and re.search(says, err), err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
@pytest.mark.parametrize("labelled", [True, False])
def test_evaluate_takes_a_table_of_sentences(
    capsys: Any, folder: Path, tmp_path: Path, suffix: str, labelled: bool
) -> None:
    file, out = tmp_path / f"dev.{suffix}", tmp_path / "run"
    with file.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, delimiter="\t" if suffix == "tsv" else ",")
        writer.writerow(["sentence", "label"] if labelled else ["text"])
        writer.writerows([text, "positive"] if labelled else [text] for text in TEXTS)
    methods = "lrp-text,eps=lrp-epsilon:eps=0.1,random"
    code, said, err = run(capsys, "evaluate", "--data", file, "--model", folder, "--methods", methods, "--out", out)
    assert (code, err) == (0, "")
    net = load_text_classifier(str(folder))
    metrics = ["text-abpc", "text-aopc", "text-consistency"]
    asked: Any = {"lrp-text": "lrp-text", "eps": ("lrp-epsilon", {"eps": 0.1}), "random": "random"}
    direct = evaluate_text(net.model, net.tokenizer, TEXTS, asked, metrics)
    with (out / "table.csv").open(encoding="utf-8") as handle:
        table = {(row["method"], row["metric"], row["part"]): float(row["mean"]) for row in csv.DictReader(handle)}
    with (out / "scores.csv").open(encoding="utf-8") as handle:
        scores = list(csv.DictReader(handle))
    for metric in metrics:
        for label in asked:
            one = direct[metric][label]
            assert table[label, metric, "score"] == pytest.approx(one.mean, abs=1e-5)
            kept = [r for r in scores if (r["method"], r["metric"], r["part"]) == (label, metric, "score")]
            assert [r["sentence"] for r in kept] == ["0", "1", "2", "3", "4"]
            assert np.allclose([float(r["value"]) for r in kept], one.scores, atol=1e-5)
            assert f"{round(one.mean, 3) + 0.0:.3f}" in said
    with torch.no_grad():
        outputs = [net.model(torch.tensor([net.tokenizer(t)["input_ids"]])).logits[0].argmax() for t in TEXTS]
    right = f"for {sum(map(int, outputs))} of 5 sentences"
    assert (right in said) is labelled and (right in (out / "table.md").read_text()) is labelled
    assert sorted(f.name for f in out.iterdir()) == ["scores.csv", "table.csv", "table.md", "table.tex"]


def test_evaluate_draws_sentences_from_the_seed(capsys: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "dev.txt"
    file.write_text("\n".join(TEXTS))
    drawn = []
    for seed in (0, 0, 1, 2, 3):
        words = ("--data", file, "--model", folder, "--methods", "random", "--metrics", "abpc:steps=2,how=mask")
        code, said, err = run(capsys, "evaluate", *words, "--images", 2, "--seed", seed, "--out", tmp_path / "run")
        assert (code, err) == (0, "") and "Means of 2 scores" in said
        rows = list(csv.DictReader((tmp_path / "run" / "scores.csv").open()))
        assert {row["metric"] for row in rows} == {"text-abpc"}
        drawn.append(tuple(sorted({row["sentence"] for row in rows})))
    assert drawn[0] == drawn[1] and len(set(drawn)) > 1 and all(len(one) == 2 for one in drawn)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--weights", "w.pt"], "--weights is for images"),
        (["--preset", "paper"], "--preset is for images"),
        (["--engine", "ray"], "--engine is for images"),
        (["--methods", "gradcam"], "gradcam makes maps of images"),
        (["--metrics", "gae"], "metric 'gae' is unknown for texts"),
        (["--metrics", "abpc:speed=2"], "option 'speed' is unknown"),
        (["--metrics", "abpc:how=burn"], "how='burn' is unknown"),
        (["--batch", "many"], "--batch many is not understood"),
        (["--model", "./nowhere"], "is no folder"),
    ],
)
def test_bad_evaluations_get_one_sentence(
    capsys: Any, folder: Path, tmp_path: Path, words: list[str], says: str
) -> None:
    file = tmp_path / "dev.tsv"
    file.write_text("a good movie\t1\n")
    model = [] if "--model" in words else ["--model", folder]
    code, _, err = run(capsys, "evaluate", "--data", file, *model, *words, "--out", tmp_path / "run")
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and re.search(says, err), err
    assert not (tmp_path / "run").exists()


def test_a_label_that_is_no_class_gets_one_sentence(capsys: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "dev.tsv"
    file.write_text("a good movie\t7\n")
    code, _, err = run(
        capsys, "evaluate", "--data", file, "--model", folder, "--methods", "random", "--out", tmp_path / "run"
    )
    assert code == 2 and "label '7' is no class of the model" in err


def test_runs_on_images_are_not_written_over(capsys: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "dev.tsv"
    file.write_text("a good movie\t1\n")
    (tmp_path / "run.sqlite").touch()
    code, _, err = run(capsys, "evaluate", "--data", file, "--model", folder, "--out", tmp_path)
    assert code == 2 and "holds a run on images already" in err


def test_metrics_of_texts_are_listed_with_the_others(capsys: Any) -> None:
    code, said, _ = run(capsys, "metrics")
    assert code == 0
    assert all(
        re.search(rf"^ +{name} .*\btexts\b", said, flags=re.MULTILINE)
        for name in ("text-abpc", "text-aopc", "text-consistency")
    )
    assert said.index("gae") < said.index("text-consistency") < said.index("road-morf") < said.index("text-abpc")
    code, said, _ = run(capsys, "metrics", "text-abpc")
    assert code == 0 and "steps" in said and "quarter" in said
