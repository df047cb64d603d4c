"""What the documentation says is run: its Python, its commands, its lists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from abslrp import registry

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PICTURE_BYTES = 1_500_000


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    # In a process of its own, since examples enter operations, rules and methods for good.
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(blocks(page, "python")), encoding="utf-8")
    environment = {
        **os.environ,
        **{"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"},
    }
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_pages_link_to_what_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_lists_every_method_and_metric_under_its_family() -> None:
    lines = re.findall(
        r"^\| ([a-z ]+) \| (`.*) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    listed = {family: set(re.findall(r"`([^`]+)`", names)) for family, names in lines}
    known: dict[str, set[str]] = {}
    for name, entry in {**registry.methods(), **registry.metrics()}.items():
        known.setdefault(entry.family, set()).add(name)
    assert listed == known


def test_rooms_of_the_architecture_are_there() -> None:
    rooms = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## ")[2]
    named = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", rooms, flags=re.MULTILINE)
        for name in re.findall(r"`(.+?)`", cell)
    ]
    assert len(named) > 10
    for name in named:
        assert any((ROOT / "src" / "abslrp" / room / name).exists() for room in ("", "propagation")), name


def test_pictures_of_the_docs_are_small() -> None:
    pictures = sorted((ROOT / "docs").rglob("*.png"))
    assert {"demo.png", "methods.png", "networks.png"} <= {picture.name for picture in pictures}
    for picture in pictures:
        assert picture.stat().st_size < PICTURE_BYTES, picture.name


def test_gallery_script_says_what_is_missing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "gallery" / "contact_sheet.py"), "--weights", str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: weights ")
    assert "Traceback" not in done.stderr
