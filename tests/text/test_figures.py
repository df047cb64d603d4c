"""The tables of docs/results.md are made of the scores, and the gallery's script says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import text as figures

ROOT = Path(__file__).resolve().parents[2]


def result(kind: str) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    parts = {
        label: {"score": (draw.normal(0, 0.1, 60) + mean).tolist(), "quarter": [mean] * 60}
        for label, mean in (("random", 0.0), ("lrp-text", 0.6), ("rollout", 0.58))
    }
    kept = {"text-abpc": parts, "text-aopc": {label: {"score": [0.25] * 60} for label in parts}}
    return {"kind": kind, "numbers": list(range(60)), "device": "here", "torch": "2.0+cpu", "scores": kept}


def test_methods_are_put_between_their_markers(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "text.json"
    page.write_text("before\n<!-- text -->\nold\n<!-- /text -->\nafter\n", encoding="utf-8")
    given = result("methods")
    file.write_text(json.dumps(given))
    figures.write(Namespace(page=page, files=[file]))
    lines = page.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("before", "<!-- text -->", "<!-- /text -->", "after")
    assert "old" not in lines and "60 sentences, of which 30 (odd numbers)" in lines[2]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| lrp", "| ro", "| ra"))]
    assert rows[-1][0] == "random" and {row[0] for row in rows} == {"lrp-text", "rollout", "random"}
    scores = np.array(given["scores"]["text-abpc"]["random"]["score"])
    assert (
        rows[-1][1] == f"{scores[1::2].mean():.3f}" and rows[-1][4] == f"{scores.mean():.3f}" and rows[-1][7] == "0.250"
    )
    assert float(rows[-1][3]) < 1e-4


def test_settings_are_put_best_first() -> None:
    table = figures.choice_table(result("choice")).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in table[4:]] == ["lrp-text", "rollout", "random"]


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "text.json"
    page.write_text("nothing here")
    file.write_text(json.dumps(result("methods")))
    with pytest.raises(SystemExit, match="has no place for text"):
        figures.write(Namespace(page=page, files=[file]))
    assert page.read_text() == "nothing here"


def test_settings_can_all_be_asked_for() -> None:
    """Each names a method and options that it has."""
    import abslrp

    for method, options in figures.variants().values():
        assert set(options) <= set(abslrp.methods()[method].options)
    assert set(figures.METHODS) <= set(abslrp.methods())


def test_the_gallery_script_says_what_is_missing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "gallery" / "sentences.py"), "--model", str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "holds no config.json" in done.stderr
