"""A release is what git has, builds without a network, and runs in an empty environment; the lists of versions agree."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = (
    "app/page.css", "reporting/report.css", "reporting/report.js", "reporting/report.html.j2", "propagation/native.c", "py.typed",
)  # fmt: skip


def run(*words: object, cwd: Path = ROOT, **more: str) -> str:
    # Away from the checkout nothing of it may help.
    environment = {key: value for key, value in os.environ.items() if cwd == ROOT or key != "PYTHONPATH"} | more
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, made from the source distribution as build does it, and the source distribution."""
    for package in ("build", "hatchling"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no release can be built here: pip install {package}")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out)
    [wheel], [source] = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def sources() -> set[str]:
    """What belongs into the package."""
    found = (
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "abslrp").rglob("*") if path.is_file()
    )
    return {name for name in found if "__pycache__" not in name}


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        assert {name for name in names if not name.split("/")[0].endswith(".dist-info")} == sources()
        assert {f"abslrp/{name}" for name in DATA} <= names
        [told] = [name for name in names if name.endswith("METADATA")]
        about = wheel.read(told).decode()
    assert "Name: abslrp" in about and "Requires-Python: >=3.10" in about
    assert built[0].name.endswith("py3-none-any.whl")


def test_the_source_distribution_can_be_tested_and_built_again(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    wanted = {
        "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "Makefile", "constraints.txt",
        "constraints-lowest.txt", "requirements-demo.lock", "tests/conftest.py", "docs/architecture.md",
    }  # fmt: skip
    assert wanted <= names and {f"src/{name}" for name in sources()} <= names
    assert not [name for name in names if ".venv" in name or "__pycache__" in name or name.startswith(".git/")]


@pytest.mark.slow
def test_the_wheel_runs_in_an_environment_of_its_own(built: tuple[Path, Path], tmp_path: Path) -> None:
    """abslrp itself is installed anew; what it stands on, torch above all, is lent by the environment of the tests."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", built[0], cwd=tmp_path)
    [own] = home.glob("lib/python*/site-packages")
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (own / "lent.pth").write_text("\n".join(lent))
    program = (
        "import abslrp, torch, sys; from importlib import resources\n"
        f"assert abslrp.__file__.startswith({str(own)!r}), abslrp.__file__\n"
        f"for name in {DATA!r}: assert resources.files('abslrp').joinpath(name).read_text() or name == 'py.typed'\n"
        "model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)).eval()\n"
        "found = abslrp.explain(model, torch.rand(2, 3, 8, 8)); print(tuple(found.maps.shape))"
    )
    assert run(python, "-c", program, cwd=tmp_path) == "(2, 3, 8, 8)\n"
    command = python.with_name("abslrp")
    said = run(command, "--help", cwd=tmp_path, COLUMNS="200")
    assert "evaluate" in said and "explain" in said
    assert run(command, "--version", cwd=tmp_path).startswith("abslrp ")
    assert "abslrp-agree" in run(command, "methods", cwd=tmp_path, COLUMNS="200")


def pins(name: str) -> dict[str, str]:
    """Versions by package in a file of pinned ones, without those for older Pythons."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.endswith('python_version < "3.11"')]
    found = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s#;]+)", "\n".join(lines), flags=re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in found}


def lowest_allowed() -> dict[str, str]:
    text = (ROOT / "pyproject.toml").read_text()
    return {name.lower(): version for name, version in re.findall(r'"([A-Za-z0-9_-]+)(?:\[\w+\])?>=([\d.]+)"', text)}


def test_what_is_locked_is_what_is_tested() -> None:
    locked, tested = pins("requirements-demo.lock"), pins("constraints.txt")
    assert {name: locked[name] for name in locked if name in tested} == {
        name: tested[name] for name in tested if name in locked
    }
    assert {"torch", "timm", "numpy", "jinja2", "markupsafe"} <= set(locked)
    lines = [line for line in (ROOT / "requirements-demo.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_the_lowest_versions_are_those_that_are_allowed() -> None:
    allowed, tried = lowest_allowed(), pins("constraints-lowest.txt")
    for name, version in tried.items():
        assert version == allowed[name] or version.startswith(f"{allowed[name]}."), name
    for name in ("numpy", "pillow", "scipy", "matplotlib", "rich", "typer", "jinja2"):
        assert name in tried


def test_every_bound_is_below_what_is_tested() -> None:
    tested = pins("constraints.txt")
    for name, version in lowest_allowed().items():
        if name in tested:
            assert tuple(map(int, version.split("."))) <= tuple(map(int, tested[name].split("."))), name
