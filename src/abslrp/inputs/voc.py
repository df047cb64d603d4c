"""What files say of images: Pascal VOC in its own layout, and the lists and tables beside folders of images."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from abslrp.inputs.devkit import devkit_classes
from abslrp.inputs.images import Box, find_images, open_image
from abslrp.inputs.plain import read_bytes, read_text, shown
from abslrp.inputs.torchvision_ops import ensure_torchvision
from abslrp.types import AbslrpError

Boxes = dict[int, list[Box]]
"""Boxes by class."""

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The twenty classes in alphabetical order; masks count them from 1, with 0 for the background and 255 for the edges."""

_LARGEST_ANNOTATION = 1 << 20  # bytes; those of VOC 2012 stay below 20 thousand.
_MOST_CLASSES = 1_000_000
_LABEL = re.compile(r"[+-]?\d{1,9}|n\d{8}")
_OFFICIAL = "ILSVRC2012_validation_ground_truth.txt"
_COLUMNS = {
    **dict.fromkeys(("index", "class", "label", "classindex"), "index"),
    **dict.fromkeys(("wnid", "wordnetid", "wordnet", "synset", "folder"), "wnid"),
    **dict.fromkeys(("name", "classname"), "name"),
    **dict.fromkeys(("file", "filename", "image", "path"), "file"),
    **{edge: edge for edge in ("xmin", "ymin", "xmax", "ymax")},
}
"""What the columns of classes.csv and boxes.csv may be called, written small and without spaces."""


@dataclass(frozen=True)
class Annotation:
    """The objects on an image: ``boxes`` by class, and the ``size`` (width, height) of the image they were drawn on."""

    boxes: Boxes
    size: tuple[int, int] | None


def find_voc(folder: str | os.PathLike[str]) -> Path | None:
    """Find the folder with JPEGImages and Annotations: this one, VOC2012 in it, or VOCdevkit/VOC2012 in it.

    Of several years 2012 is taken, then the latest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(find_voc(folder))
    ...     for name in ("JPEGImages", "Annotations"):
    ...         Path(folder, "VOCdevkit", "VOC2012", name).mkdir(parents=True)
    ...     find_voc(folder).name
    None
    'VOC2012'
    """
    folder = Path(folder)
    years = [year for home in (folder, folder / "VOCdevkit") for year in sorted(home.glob("VOC20[0-9][0-9]"))[::-1]]
    years.sort(key=lambda year: year.name != "VOC2012")
    for home in (folder, *years):
        if (home / "JPEGImages").is_dir() and (home / "Annotations").is_dir():
            return home
    return None


def voc_images(root: Path, split: str) -> tuple[list[str], dict[str, Path], bool]:
    """The names of the images in a split, the files by name, and whether the split has a list of its own.

    Without a list of the split ``val`` it is all images.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "JPEGImages").mkdir()
    ...     Path(folder, "JPEGImages", "2007_000032.jpg").touch()
    ...     names, files, listed = voc_images(Path(folder), "val")
    >>> names, listed
    (['2007_000032'], False)
    """
    files = {path.stem: path for path in find_images([root / "JPEGImages"]) if not path.name.startswith(".")}
    lists = {path.stem: path for path in (root / "ImageSets" / "Main").glob("*.txt")}
    if split in lists:
        lines = _read_text(lists[split]).splitlines()
        return list(dict.fromkeys(line.split()[0] for line in lines if line.strip())), files, True
    if split != "val":
        known = ", ".join(name for name in sorted(lists) if "_" not in name) or "none"
        raise AbslrpError(f"{root} has no list of the split {split!r} in ImageSets/Main: choose one it has ({known}).")
    return sorted(files), files, False


def read_annotation(path: str | os.PathLike[str], *, difficult: bool = False) -> Annotation:
    """Read an annotation; objects marked as difficult are left out unless asked for.

    VOC counts pixels from 1 and includes the last; a box here goes from edge to edge.

    >>> import tempfile
    >>> cat = "<name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>30</xmax><ymax>20</ymax></bndbox>"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.xml").write_text(f"<annotation><object>{cat}</object></annotation>")
    ...     read_annotation(f"{folder}/a.xml").boxes
    {7: [(0.0, 0.0, 30.0, 20.0)]}
    """
    path = Path(path)
    root = _parse(path)
    boxes: Boxes = {}
    try:
        for found in root.findall("object"):
            index, box = VOC_CLASSES.index(_text(found, "name")), _box(found)
            if difficult or found.findtext("difficult", "0").strip() not in ("1", "true"):
                boxes.setdefault(index, []).append(box)
        return Annotation(dict(sorted(boxes.items())), _size(root))
    except ValueError as error:
        raise _broken(path, str(error)) from None


_LARGEST_MASK = 2**25


def read_mask(path: str | os.PathLike[str]) -> np.ndarray:
    """Read a segmentation mask as uint8 (height, width): 0 background, 1..20 the classes, 255 the edges of objects.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (3, 2), 8).save(f"{folder}/cat.png")
    ...     read_mask(f"{folder}/cat.png").tolist()
    [[8, 8, 8], [8, 8, 8]]
    """
    none_such = AbslrpError(f"{path} is not a mask of Pascal VOC: use a palette PNG with the classes 0 to 20 and 255.")
    try:
        with open_image(path) as image:
            if image.width * image.height > _LARGEST_MASK:
                raise AbslrpError(f"{path} has too many pixels for a mask, above 2^25: scale it down first.")
            # Looked at before it becomes an array, which takes its memory once more.
            if image.mode not in ("P", "L"):
                raise none_such
            counts = image.histogram()
            if any(counts[len(VOC_CLASSES) + 1 : 255]):
                raise none_such
            return np.array(image, dtype=np.uint8)
    except AbslrpError:
        raise
    except Exception as error:  # Damaged files surface as anything from OSError to struct.error and SyntaxError.
        raise AbslrpError(
            f"{path} is not a mask that Pillow can read ({_reason(error)}): get the file again."
        ) from None


def _parse(path: Path) -> ElementTree.Element:
    """The annotation element. Entities cannot be declared without a DOCTYPE, so no file with one is parsed."""
    try:
        text = read_bytes(path, _LARGEST_ANNOTATION).decode("utf-8-sig")
    except FileNotFoundError:
        raise AbslrpError(f"{path} does not exist: put the annotation there, or take the image off the list.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _broken(path, getattr(error, "strerror", None) or _reason(error)) from None
    if "<!" in text.replace("<!--", "").replace("<![CDATA[", ""):
        raise _broken(path, "it declares a DOCTYPE or entities")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise _broken(path, _reason(error)) from None
    if root.tag != "annotation":
        raise _broken(path, f"it begins with {root.tag[:40]!r}, not 'annotation'")
    return root


def _text(element: ElementTree.Element, name: str) -> str:
    text = (element.findtext(name) or "").strip()
    if not text:
        raise ValueError(f"an {element.tag} has no {name}")
    if name == "name" and text not in VOC_CLASSES:
        raise ValueError(f"{text[:40]!r} is none of the twenty classes")
    return text


def _box(found: ElementTree.Element) -> Box:
    frame = found.find("bndbox")
    if frame is None:
        raise ValueError("an object has no bndbox")
    x0, y0, x1, y1 = (float(_text(frame, edge)) for edge in ("xmin", "ymin", "xmax", "ymax"))
    if not (math.isfinite(x0 + y0 + x1 + y1) and x0 - 1 < x1 and y0 - 1 < y1):
        raise ValueError(f"the box {x0:g}, {y0:g}, {x1:g}, {y1:g} has no inside")
    return x0 - 1, y0 - 1, x1, y1


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    try:
        width, height = (int(root.findtext(f"size/{edge}", "0")) for edge in ("width", "height"))
    except ValueError:
        return None
    return (width, height) if width > 0 and height > 0 else None


def _broken(path: Path, reason: str) -> AbslrpError:
    return AbslrpError(f"{path} is not an annotation that can be used ({reason}): get the file again.")


def _reason(error: Exception) -> str:
    return shown(" ".join(str(error).split()) or type(error).__name__, 160)


def imagenet_ids(where: str | os.PathLike[str]) -> list[str]:
    """The WordNet ids of ImageNet's thousand classes in the order that models count them, for the files of ``where``.

    >>> imagenet_ids("photos")[281]
    'n02123045'
    """
    try:
        ensure_torchvision()
        from timm.data import ImageNetInfo
    except (ImportError, AbslrpError):
        raise AbslrpError(
            f"{where} has WordNet ids, whose classes the package timm knows: pip install 'abslrp[models]', or add a "
            "classes.csv with the columns index, wnid, name."
        ) from None
    return list(ImageNetInfo("imagenet-1k").label_names())


def classes_table(folders: Sequence[Path]) -> tuple[dict[str, int], list[str] | None]:
    """Read classes.csv in the first of the folders that has one: classes by WordNet id or folder, and their names.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "classes.csv").write_text("class,wnid,name\\n1,n01443537,goldfish\\n")
    ...     classes_table([Path(folder)])
    ({'n01443537': 1}, ['0', 'goldfish'])
    """
    path, rows = _table(folders, "classes.csv", ("index", "wnid"))
    try:
        classes = {row["wnid"]: int(row["index"]) for row in rows}
    except (KeyError, ValueError):
        raise AbslrpError(f"{path} has a row without a class: give each row an index and a WordNet id.") from None
    if not classes:
        return {}, None
    low, high = min(classes.values()), max(classes.values())
    if low < 0 or high > _MOST_CLASSES:
        raise AbslrpError(f"{path} has the index {low if low < 0 else high}: count the classes from 0.")
    written = {int(row["index"]): row.get("name") or row["wnid"] for row in rows}
    return classes, [written.get(index, str(index)) for index in range(high + 1)]


def boxes_table(
    folders: Sequence[Path], ids: Sequence[str], labels: dict[str, tuple[int, ...]], classes: dict[str, int]
) -> dict[str, Boxes]:
    """Read boxes.csv in the first of the folders that has one: boxes by image and class, from edge to edge.

    The class is that of the WordNet id, of the column with the index, or the image's own. Images that are not here
    are passed over, for the file is often that of all of ImageNet.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "boxes.csv").write_text("file,class,xmin,ymin,xmax,ymax\\na.jpg,7,0,0,9,5\\n")
    ...     boxes_table([Path(folder)], ["n1/a.jpg"], {}, {})
    {'n1/a.jpg': {7: [(0.0, 0.0, 9.0, 5.0)]}}
    """
    path, rows = _table(folders, "boxes.csv", ("file", "xmin", "ymin", "xmax", "ymax"))
    where = _places(ids)
    found: dict[str, Boxes] = {}
    for number, row in enumerate(rows, start=2):
        name = _place(where, f"{row.get('wnid')}/{row.get('file')}") or _place(where, row.get("file", ""))
        if name is None:
            continue
        try:
            box = _row_box(row)
            for label in _row_classes(row, classes, labels.get(name, ())):
                found.setdefault(name, {}).setdefault(label, []).append(box)
        except (KeyError, ValueError):
            raise AbslrpError(f"line {number} of {path} is not a box with a class: mend it.") from None
    return found


def listed_labels(
    path: str | os.PathLike[str], ids: Sequence[str], classes: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    """Read a file of labels, indices or WordNet ids: ``FILE LABEL`` a line, or one label a line in the files' order.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "val.txt").write_text("my cat.jpg, 281\\n")
    ...     listed_labels(f"{folder}/val.txt", ["my cat.jpg", "no label.jpg"], {})
    {'my cat.jpg': (281,)}
    """
    path = Path(path)
    lines = [(number, line.strip(" \t,;")) for number, line in enumerate(_read_text(path).splitlines(), start=1)]
    pairs = [(number, *_pair(line)) for number, line in lines if line]
    if pairs and not _LABEL.fullmatch(pairs[0][2]):
        pairs = pairs[1:]  # The first line is a heading.
    if not pairs:
        raise AbslrpError(f"{path} has no labels: write a line FILE LABEL for every image.")
    named = any(name for _, name, _ in pairs)
    bad = next((number for number, name, label in pairs if (named and not name) or not _LABEL.fullmatch(label)), None)
    if bad is not None:
        what = "FILE LABEL with an index or a WordNet id" if named else "an index or a WordNet id"
        raise AbslrpError(f"line {bad} of {path} is not {what}: mend it.")
    if not named:
        return _labels_in_order(path, [label for _, _, label in pairs], sorted(ids), classes)
    where = _places(ids)
    found = [(name, _place(where, name), label) for _, name, label in pairs]
    absent = [name for name, place, _ in found if place is None]
    if absent:
        raise AbslrpError(
            f"{path} names {len(absent)} files that are not in the folder or are there twice, the first {shown(absent[0])!r}: "
            "get the images, or take the lines out."
        )
    known = _label_classes(path, [label for *_, label in found], classes)
    labels: dict[str, tuple[int, ...]] = {}
    for (_, place, _), index in zip(found, known, strict=True):
        labels[str(place)] = tuple(sorted({*labels.get(str(place), ()), index}))
    return labels


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise AbslrpError(f"{path} does not exist: name a text file that does.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or _reason(error)
        raise AbslrpError(f"{path} cannot be read as text ({reason}): save it as UTF-8.") from None


def _table(folders: Sequence[Path], name: str, needed: tuple[str, ...]) -> tuple[Path, list[dict[str, str]]]:
    """The rows of a CSV file, its columns under our names; none where no folder has it."""
    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if path is None:
        return folders[0] / name, []
    try:
        first, *lines = [line for line in csv.reader(_read_text(path).splitlines()) if line] or [[]]
    except csv.Error as error:
        raise AbslrpError(f"{path} is not a table ({error}): save it as CSV with commas.") from None
    head = [_COLUMNS.get(re.sub(r"[\s_]", "", column).casefold(), "") for column in first]
    absent = [column for column in needed if column not in head]
    if absent:
        raise AbslrpError(f"{path} has no column {absent[0]!r}: give it the columns {', '.join(needed)}.")
    return path, [dict(zip(head, map(str.strip, line), strict=False)) for line in lines]


def _row_box(row: dict[str, str]) -> Box:
    x0, y0, x1, y1 = (float(row[edge]) for edge in ("xmin", "ymin", "xmax", "ymax"))
    if not (math.isfinite(x0 + y0 + x1 + y1) and x0 < x1 and y0 < y1):
        raise ValueError("a box without an inside")
    return x0, y0, x1, y1


def _row_classes(row: dict[str, str], classes: dict[str, int], labels: tuple[int, ...]) -> tuple[int, ...]:
    if row.get("wnid") in classes:
        return (classes[row["wnid"]],)
    if not row.get("index") and not labels:
        raise ValueError("a box of no class")
    return (int(row["index"]),) if row.get("index") else labels


def _places(ids: Sequence[str]) -> dict[str, str]:
    """Ids by themselves and by the bare names of files that are there once."""
    found: dict[str, str] = {}
    for one in ids:
        name = one.rpartition("/")[2]
        found[name] = "" if name in found else one
    return {name: one for name, one in found.items() if one} | {one: one for one in ids}


def _place(where: dict[str, str], name: str) -> str | None:
    """The id that a list means by a path; one of them may begin further up."""
    name = name.replace("\\", "/")
    parts = name.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    found = (where[end] for end in ends if end in where)
    return next((one for one in found if f"/{name}".endswith(f"/{one}") or f"/{one}".endswith(f"/{name}")), None)


def _pair(line: str) -> tuple[str, str]:
    label = re.split(r"[\s,;]+", line)[-1]
    return line[: len(line) - len(label)].strip(" \t,;\"'"), label.strip("\"'")


def _labels_in_order(
    path: Path, written: list[str], ids: Sequence[str], classes: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    if len(written) != len(ids):
        raise AbslrpError(f"{path} has {len(written)} labels for {len(ids)} images: give as many, in the files' order.")
    if path.with_name("meta.mat").is_file():
        numbered = devkit_classes(path.with_name("meta.mat"))
        unknown = [label for label in written if label not in numbered]
        if unknown:
            raise AbslrpError(f"{path} has the label {unknown[0]}, which meta.mat beside it does not: get both again.")
        return {name: (numbered[label],) for name, label in zip(ids, written, strict=True)}
    if path.name == _OFFICIAL:
        raise AbslrpError(f"{path} counts classes in an order of its own: put the devkit's meta.mat beside it.")
    known = _label_classes(path, written, classes)
    return {name: (index,) for name, index in zip(ids, known, strict=True)}


def _label_classes(path: Path, written: list[str], classes: dict[str, int]) -> list[int]:
    if not classes and any(label.startswith("n") for label in written):
        classes = {wnid: index for index, wnid in enumerate(imagenet_ids(path))}
    unknown = [label for label in written if label.startswith("n") and label not in classes]
    if unknown:
        raise AbslrpError(f"{path} has the WordNet id {unknown[0]}, which is no known class: add it to classes.csv.")
    return [classes[label] if label.startswith("n") else int(label) for label in written]
