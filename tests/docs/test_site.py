"""The documentation as a site, and the scripts it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**ENVIRONMENT, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="no site: pip install mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    done = run("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr and "ERROR" not in done.stderr
    return folder


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix().replace("README", "index")
        assert (site / name).is_file() and f'href="{name}"' in menu, name


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:)?//", text)
        fetched += re.findall(
            r"<link[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon)[^>]*href=[\"']?(https?:)?//", text
        )
        assert not fetched, page.name
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style.name


def test_examples_stand_in_the_page_as_they_are(site: Path) -> None:
    text = (site / "extend.html").read_text(encoding="utf-8")
    assert len(EXAMPLES) == 4 and "--8&lt;--" not in text
    for example in EXAMPLES:
        assert example.name in text
    plain = re.sub(r"<[^>]+>", "", text)
    assert "def linear_zplus(op, call, eps):" in plain and "def sparseness(bench" in plain


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = run(str(example), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["classes", pytest.param("layers", marks=pytest.mark.slow)])
def test_a_script_of_the_gallery_draws(name: str, tmp_path: Path) -> None:
    done = run(str(ROOT / "docs" / "gallery" / f"{name}.py"), "--out", "made.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    picture = np.asarray(Image.open(tmp_path / "made.png").convert("RGB"), dtype=float)
    assert picture.shape[1] > 800 and picture.std() > 20


@pytest.mark.slow
def test_the_script_that_scores_prints_a_table(tmp_path: Path) -> None:
    done = run(str(ROOT / "docs" / "gallery" / "believe.py"), "--steps", "3", cwd=tmp_path)
    assert done.returncode == 0 and "gae ↑" in done.stdout and "constant" in done.stdout, done.stderr
