"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real networks and images, $ABSLRP_SHARED or ../shared beside the checkout."""
    folder = Path(os.environ.get("ABSLRP_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no real networks here: put them into ../shared or name their folder in ABSLRP_SHARED")
    return folder
