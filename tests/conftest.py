"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
# Files that share what takes long to make, such as a server, and the group that runs in one process.
TOGETHER = {
    "tests/app/test_page.py": "page",
    "tests/trust/test_page_attacks.py": "page",
    "tests/trust/test_long_runs.py": "long-runs",
    "tests/trust/test_release.py": "release",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep groups together by their files: xdist 3.8 does not hear its own marks under pytest 9.2 (its issue 1386)."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            group = TOGETHER.get(nodeid.partition("::")[0])
            return group or str(super()._split_scope(nodeid))

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_chance() -> Iterator[None]:
    """Weights drawn without a seed are those of any other day and order; also after a fixture that several tests share."""
    torch.manual_seed(0)
    yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real networks and images, $ABSLRP_SHARED or ../shared beside the checkout."""
    folder = Path(os.environ.get("ABSLRP_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no real networks here: put them into ../shared or name their folder in ABSLRP_SHARED")
    return folder
