"""What an explanation is called on disk, and writing it there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from abslrp.reporting.heatmaps import heatmap, overlay, save_png, write_whole

_LONGEST_STEM = 100
_LONGEST_CLASS = 60


def unique_stems(paths: Sequence[Path]) -> list[str]:
    """A name for each file by which its results are told apart: its stem, with a number where stems are equal.

    >>> unique_stems([Path("a/cat.jpg"), Path("b/Cat.png"), Path("cat-2.png")])
    ['cat', 'Cat-3', 'cat-2']
    """
    stems = [_cut(path.stem, _LONGEST_STEM) or "image" for path in paths]
    # Compared without case, since some file systems do so.
    natural = {stem.casefold() for stem in stems}
    taken: set[str] = set()
    names = []
    for stem in stems:
        name, number = stem, 1
        while name.casefold() in taken or (number > 1 and name.casefold() in natural):
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.casefold())
        names.append(name)
    return names


def class_label(index: int, class_names: Sequence[str] | None) -> str:
    """What a class is called on screen.

    >>> class_label(1, ["tabby", "espresso"]), class_label(1, None)
    ('espresso', 'class 1')
    """
    return class_names[index] if class_names is not None and index < len(class_names) else f"class {index}"


def class_slug(index: int, class_names: Sequence[str] | None) -> str:
    """What a class is called in a file name; names that two classes share get their index.

    >>> class_slug(0, ["Egyptian cat", "crane", "crane"]), class_slug(2, ["Egyptian cat", "crane", "crane"])
    ('egyptian-cat', 'crane-2')
    """
    slug = _slug(class_label(index, class_names))
    if not slug:
        return f"class-{index}"
    shared = class_names is not None and sum(_slug(name) == slug for name in class_names) > 1
    return f"{slug}-{index}" if shared else slug


def write_explanation(
    folder: Path,
    name: str,
    relevance: np.ndarray,
    picture: np.ndarray,
    record: dict[str, Any],
    settings: dict[str, Any] | None = None,
) -> list[Path]:
    """Write one explanation as ``NAME.png`` over its picture, ``NAME-map.png`` alone and ``NAME.npz`` as numbers.

    ``relevance`` is (channel, height, width); it goes into the ``.npz`` as ``map`` beside what ``record`` holds.
    """
    stored = {"map": np.asarray(relevance, dtype=np.float32), **record}
    settings = settings or {}
    return [
        save_png(overlay(relevance, picture, **settings), folder / f"{name}.png"),
        save_png(heatmap(relevance, **settings), folder / f"{name}-map.png"),
        write_whole(folder / f"{name}.npz", lambda file: np.savez_compressed(file, **stored)),
    ]


def _cut(name: str, most: int) -> str:
    """A name of so many bytes, since these are what file systems count, and of letters that can be written."""
    known = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return known.encode()[:most].decode("utf-8", "ignore")


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    kept = "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold()
    return _cut(re.sub(r"\W+|_", "-", kept).strip("-"), _LONGEST_CLASS).strip("-")
