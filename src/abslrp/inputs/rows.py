"""Images that the datasets library of Hugging Face stored, row by row, and the classes that names stand for."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from abslrp.inputs.images import decode_image, read_image
from abslrp.inputs.plain import shown
from abslrp.types import AbslrpError


@dataclass(frozen=True)
class Rows:
    """What was stored: its ``column`` of images, the classes of every row with their names, and what split it is."""

    stored: Any
    column: str
    labels: list[tuple[int, ...]]
    names: list[str] | None
    title: str


def open_rows(folder: Path, spec: str, class_names: list[str] | None, split: str) -> Rows:
    """Open what ``save_to_disk`` wrote; ``spec`` is what the user called it."""
    library = _library(spec)
    try:
        stored = library.load_from_disk(str(folder))
    except Exception as error:  # Anything from a missing file to a broken table.
        raise AbslrpError(
            f"{spec} could not be loaded ({_reason(error)}): name a folder made by save_to_disk."
        ) from None
    rows, title = _split_of(stored, split, spec)
    rows = rows.with_format(None)
    image = next((name for name, kind in rows.features.items() if isinstance(kind, library.Image)), None)
    if image is None:
        raise AbslrpError(f"{spec} has no column of images, only {', '.join(rows.features)}: cast one to Image.")
    try:
        # Arrow believes what a file says of its own offsets, and reads beyond its memory where they are wrong.
        rows.data.validate(full=True)
        labels, names = _row_labels(rows, class_names, spec)
        # Decoded here, with our bounds; the library would also fetch an address that stands in place of a path.
        rows = rows.cast_column(image, library.Image(decode=False))
    except AbslrpError:
        raise
    except Exception as error:
        raise AbslrpError(f"the rows of {spec} are damaged ({_reason(error)}): get the data again.") from None
    return Rows(rows, image, labels, names, title)


def _library(spec: str) -> Any:
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        library = None
    # A folder called datasets beside the program imports as an empty package.
    if not hasattr(library, "load_from_disk"):
        raise AbslrpError(f"{spec} needs the package datasets: pip install datasets.")
    return library


def _split_of(stored: Any, split: str, spec: str) -> tuple[Any, str]:
    """One split of what was stored, and the end of the dataset's name."""
    if not isinstance(stored, dict):
        return stored, ""
    wanted = [name for name in (split, "validation" if split == "val" else split) if name in stored]
    if split == "val" and len(stored) == 1:
        wanted = wanted or list(stored)
    if not wanted:
        raise AbslrpError(f"{spec} has no split {split!r}: choose one of {', '.join(stored)}.")
    return stored[wanted[0]], f"-{wanted[0]}"


def _row_labels(rows: Any, class_names: list[str] | None, spec: str) -> tuple[list[tuple[int, ...]], list[str] | None]:
    """The classes of every row, and their names; nothing where no column has any."""
    column, names = _label_column(rows.features)
    if column is None:
        return [], None
    # A label of -1 is how Hugging Face says that there is none.
    written = ([value] if isinstance(value, int) else value or [] for value in rows[column])
    known = [{label for label in values if label >= 0} for values in written]
    if names is not None:
        classes = match_classes(names, names, class_names, spec)
        known = [{classes[names[label]] for label in values if names[label] in classes} for values in known]
    return [tuple(sorted(values)) for values in known], names


def _label_column(features: Any) -> tuple[str | None, list[str] | None]:
    """The first column of class labels, one or several each, with their names, or else of numbers called label."""
    for column, kind in features.items():
        names = getattr(kind, "names", None) or getattr(getattr(kind, "feature", None), "names", None)
        if names:
            return column, list(names)
    for column in ("label", "labels"):
        kind = features.get(column)
        if "int" in str(getattr(getattr(kind, "feature", kind), "dtype", "")):
            return column, None
    return None, None


def read_row(rows: Any, column: str, name: str) -> Image.Image:
    """The image of a row, upright and in RGB."""
    row = f"row {int(name)}"
    try:
        stored = rows[int(name)][column] or {}
        content, path = stored.get("bytes"), stored.get("path") or ""
        if content is None and not os.path.isfile(path):
            raise AbslrpError(f"{shown(path, 160)} is not on this machine" if path else "there is none")
        return decode_image(content, row) if content is not None else read_image(path)
    except Exception as error:  # A damaged table surfaces as anything.
        raise AbslrpError(f"{row} has no image that Pillow can read ({_reason(error)}): get the data again.") from None


def _reason(error: Exception) -> str:
    return shown(" ".join(str(error).split()).rstrip(".:") or type(error).__name__, 200)


def match_classes(names: list[str], used: list[str], class_names: list[str] | None, where: str) -> dict[str, int]:
    """The model's class of each name: by its name, or by order if it has as many; none if it is about other things."""
    in_order = {name: index for index, name in enumerate(names)}
    if class_names is None:
        return in_order
    plain = [_plain(name) for name in class_names]
    by_name = {name: plain.index(_plain(name)) for name in used if plain.count(_plain(name)) == 1}
    if len(by_name) == len(used):
        return by_name
    if len(names) == len(class_names) and all(in_order[name] == index for name, index in by_name.items()):
        return in_order
    if by_name:
        unknown = next(name for name in used if name not in by_name)
        raise AbslrpError(
            f"{unknown!r} in {where} is no class of the model, while {next(iter(by_name))!r} is: call it as the model "
            "does, or add a classes.csv with the columns index, folder, name."
        )
    return {}


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())
