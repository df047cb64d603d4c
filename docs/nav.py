"""Leaves out of the site's menu the pages that are not written yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Called by mkdocs before anything else."""
    config.nav = present(config.nav, Path(config.docs_dir))
    return config


def present(entries: list[Any], folder: Path) -> list[Any]:
    """The entries of a menu whose files are there.

    >>> present([{"Here": "nav.py"}, {"More": [{"Not yet": "none.md"}]}], Path(__file__).parent)
    [{'Here': 'nav.py'}]
    """
    kept = []
    for entry in entries:
        [(title, what)] = entry.items()
        what = present(what, folder) if isinstance(what, list) else what if (folder / what).is_file() else None
        if what:
            kept.append({title: what})
    return kept
