"""Images with what is known of them, classes and boxes, from folders in the layouts people have."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from PIL import Image

from abslrp.inputs.images import Box, Transform, find_images, open_image, read_image
from abslrp.inputs.models import sample_images
from abslrp.inputs.plain import expanded, shown
from abslrp.inputs.rows import match_classes, open_rows, read_row
from abslrp.inputs.voc import (
    VOC_CLASSES,
    Boxes,
    boxes_table,
    classes_table,
    find_voc,
    imagenet_ids,
    listed_labels,
    read_annotation,
    voc_images,
)
from abslrp.types import AbslrpError

_WORDNET = re.compile(r"n\d{8}")
_ORIENTATION = 0x0112  # the EXIF tag


@dataclass(frozen=True)
class Item:
    """One image: its classes, its boxes by class in pixels of the upright image, and its size (width, height).

    ``id`` is the path within the dataset and the same on every machine. ``size`` is known where there are boxes.
    """

    id: str
    labels: tuple[int, ...] = ()
    boxes: Boxes = field(default_factory=dict)
    mask: Path | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Dataset:
    """Images in the order of their ids, read when asked for; ``skipped`` has (id, reason) of those left out.

    >>> dataset = open_dataset("samples")
    >>> len(dataset), dataset.sample(2, seed=0).items[0].id, dataset.read(dataset.items[0]).size
    (4, 'motorcycle_left', (451, 300))
    """

    name: str
    items: tuple[Item, ...]
    class_names: list[str] | None
    reader: Callable[[str], Image.Image] = field(repr=False)
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def read(self, item: Item) -> Image.Image:
        """The item's image, upright and in RGB."""
        return self.reader(item.id)

    def tensor(self, item: Item, transform: Callable[[Image.Image], torch.Tensor]) -> torch.Tensor:
        """The item as the network's input (3, height, width)."""
        return transform(self.read(item))

    def sample(self, n: int, seed: int) -> Dataset:
        """Draw n items by ids and seed alone, so that every machine draws the same; all if there are fewer."""
        if n < 1:
            raise AbslrpError(f"a sample of {n} images is none: give 1 or more.")
        drawn = sorted(self.items, key=lambda item: hashlib.sha256(f"{seed}:{item.id}".encode()).digest())[:n]
        return replace(self, items=tuple(sorted(drawn, key=lambda item: item.id)))


@dataclass
class Readable:
    """The items of a dataset with their tensors; what cannot be read is left out and listed in ``skipped``."""

    dataset: Dataset
    transform: Callable[[Image.Image], torch.Tensor]
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Item, torch.Tensor]]:
        self.skipped[:] = self.dataset.skipped
        for item in self.dataset.items:
            try:
                tensor = self.dataset.tensor(item, self.transform)
            except AbslrpError as error:
                self.skipped.append((item.id, str(error)))
            else:
                yield item, tensor


def readable(dataset: Dataset, transform: Callable[[Image.Image], torch.Tensor]) -> Readable:
    """Go through a dataset item by item, past what cannot be read.

    >>> images = readable(open_dataset("samples"), Transform(size=(8, 8)))
    >>> [(item.id, tuple(tensor.shape)) for item, tensor in images][:1], images.skipped
    ([('chelsea', (3, 8, 8))], [])
    """
    return Readable(dataset, transform)


def item_boxes(item: Item, transform: Transform, size: tuple[int, int] | None = None) -> Boxes:
    """The item's boxes on the network's input; ``size`` (width, height) of the image only where the item has none.

    >>> item = Item("cat.jpg", (281,), {281: [(0, 0, 50, 50)]}, size=(100, 100))
    >>> item_boxes(item, Transform(size=(10, 10)))
    {281: [(0.0, 0.0, 5.0, 5.0)]}
    """
    if not item.boxes:
        return {}
    size = size or item.size
    if size is None:
        raise AbslrpError(f"the size of {item.id} is not known: give size=(width, height) of the upright image.")
    moved = {label: transform.boxes(boxes, size) for label, boxes in item.boxes.items()}
    return {label: boxes for label, boxes in moved.items() if boxes}


def open_dataset(
    spec: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    split: str = "val",
    difficult: bool = False,
) -> Dataset:
    """Open ``samples``, ``hf:FOLDER``, or a folder: ImageNet, Pascal VOC, images in class folders, or just images.

    ``class_names`` are the model's, to which folders are matched. ``labels`` is a file for a flat folder, ``FILE LABEL``
    a line or one label a line in the order of the files. ``difficult`` keeps VOC's difficult objects.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("dog", "cat"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (8, 8)).save(f"{folder}/{name}/1.png")
    ...     [(item.id, item.labels) for item in open_dataset(folder).items]
    [('cat/1.png', (0,)), ('dog/1.png', (1,))]
    """
    text, names = os.fspath(spec), list(class_names) if class_names is not None else None
    if text == "samples" or text.startswith("hf:"):
        if labels is not None:
            raise AbslrpError(f"{text} takes no labels file: name a folder of images for {os.fspath(labels)}.")
        return _samples(names) if text == "samples" else _hugging_face(text, names, split)
    root = _folder(text, text)
    try:
        voc = find_voc(root) if labels is None else None
        dataset = _open_voc(voc, split, difficult) if voc else _open_folder(root, names, labels, split)
    except OSError as error:
        where, reason = shown(error.filename or text, 300), error.strerror or str(error)
        raise AbslrpError(f"dataset {text!r} cannot be searched, for {where}: {reason}: mend or move it.") from None
    return _in_range(dataset)


def _folder(text: str, spec: str) -> Path:
    folder = expanded(text)
    if not text or not os.path.exists(folder):
        raise AbslrpError(
            f"dataset {shown(spec, 300)!r} does not exist: name a folder of images, hf:FOLDER, or samples."
        )
    if not folder.is_dir():
        raise AbslrpError(f"dataset {spec!r} is a file, not a folder: name the folder of the images.")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise AbslrpError(f"dataset {spec!r} may not be read: change the folder's permissions.")
    return folder


def _in_range(dataset: Dataset) -> Dataset:
    count = len(dataset.class_names) if dataset.class_names is not None else math.inf
    for item in dataset.items:
        for label in (*item.labels, *item.boxes):
            if not 0 <= label < count:
                known = f"{count} classes, 0 to {count - 1}" if dataset.class_names else "classes from 0 on"
                raise AbslrpError(
                    f"{item.id} in {dataset.name} has the label {label}, but there are {known}: mend its label."
                )
    return dataset


def _samples(class_names: list[str] | None) -> Dataset:
    return Dataset("samples", tuple(Item(name) for name in sorted(_photographs())), class_names, _read_sample)


@functools.cache
def _photographs() -> dict[str, Image.Image]:
    return sample_images()


def _read_sample(name: str) -> Image.Image:
    return _photographs()[name].copy()


def _read_file(root: Path, name: str) -> Image.Image:
    return read_image(root / name)


def _open_folder(
    root: Path, class_names: list[str] | None, labels: str | os.PathLike[str] | None, split: str
) -> Dataset:
    home = _enter(root, split)
    ids = _image_ids(home)
    ids, skipped = _nameable(ids)
    classes, names = classes_table((home, root))
    if labels is not None:
        by_id = listed_labels(expanded(labels), ids, classes)
        ids = sorted(by_id)
    else:
        classes, names = _folder_classes(home, ids, class_names) if not classes else (classes, names)
        by_id = _folder_labels(home, ids, classes)
    boxes = boxes_table((home, root), ids, by_id, classes)
    items = tuple(_item(home / name, name, by_id.get(name, ()), boxes.get(name, {})) for name in ids)
    title = home.resolve().name if home == root else f"{root.resolve().name}-{home.name}"
    return Dataset(title, items, class_names or names, functools.partial(_read_file, home), skipped)


def _nameable(ids: list[str]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """The ids that a run can write down, and those that are bytes in no encoding, with what to do."""
    odd = [name for name in ids if not _is_text(name)]
    if len(odd) == len(ids):
        raise AbslrpError(f"no image has a name that is UTF-8, the first is {shown(odd[0])}: rename them.")
    said = ((shown(name), f"{shown(name)} has a name that is not UTF-8: rename it.") for name in odd)
    return [name for name in ids if _is_text(name)], tuple(said)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _enter(root: Path, split: str) -> Path:
    """The folder of the split where the root is divided into splits, else the root."""
    inner, folders = root / split, _subfolders(root)
    if split in folders and (_subfolders(inner) or set(folders) <= {"train", "val", "test", split}):
        return inner
    if split != "val":
        raise AbslrpError(
            f"{root} has no split {split!r}: name one of its folders ({', '.join(folders[:9]) or 'none'})."
        )
    return root


def _subfolders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _image_ids(home: Path) -> list[str]:
    # A search does not go through linked folders by itself, and many keep a subset of ImageNet as links.
    links = [path for path in home.iterdir() if path.is_symlink() and path.is_dir()]
    # One that leads back to where it stands, or above, would bring in what is no part of the data.
    links = [path for path in links if not home.resolve().is_relative_to(path.resolve())]
    paths = (path.relative_to(home) for path in find_images([home, *links]))
    ids = sorted(path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))
    if not ids:
        raise AbslrpError(f"{home} has only hidden images: name a folder of others.")
    return ids


def _folder_labels(home: Path, ids: list[str], classes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    if not classes:
        return {}
    inside = [name for name in ids if "/" in name]
    unknown = sorted({name.partition("/")[0] for name in inside} - classes.keys())
    if unknown:
        raise AbslrpError(
            f"the folder {unknown[0]!r} in {home} is not in classes.csv: add it there, or take the folder out."
        )
    return {name: (classes[name.partition("/")[0]],) for name in inside}


def _folder_classes(
    home: Path, ids: list[str], class_names: list[str] | None
) -> tuple[dict[str, int], list[str] | None]:
    """Classes by folder, and their names; none where the folders are not classes."""
    used = sorted({name.partition("/")[0] for name in ids if "/" in name})
    folders = _subfolders(home)
    if used and all(map(_WORDNET.fullmatch, used)):
        wordnet = [name for name in folders if _WORDNET.fullmatch(name)]
        # A model with as many classes as there are folders was made on these folders.
        known = wordnet if len(wordnet) in (1000, len(class_names or ())) else imagenet_ids(home)
        if set(used) <= set(known):
            return {name: index for index, name in enumerate(known)}, known
    if not used or any("/" not in name for name in ids):
        return {}, None
    return match_classes(folders, used, class_names, str(home)), folders


def _item(
    path: Path,
    name: str,
    labels: tuple[int, ...],
    boxes: Boxes,
    drawn: tuple[int, int] | None = None,
    mask: Path | None = None,
) -> Item:
    upright, size = _upright(path, boxes, drawn) if boxes else (boxes, drawn)
    return Item(name, labels, upright, mask, size)


def _upright(path: Path, boxes: Boxes, drawn: tuple[int, int] | None) -> tuple[Boxes, tuple[int, int] | None]:
    """Boxes turned as EXIF turns the image, with its size then.

    Annotators saw the pixels as stored, unless the size that they wrote down is that of the upright image.
    """
    try:
        with open_image(path) as image:
            size, turn, done = image.size, _orientation(image), image.format == "TIFF"
    except Exception:  # What is wrong with the file is said when it is read.
        return boxes, drawn
    if turn >= 5 and not done:  # Pillow opens a TIFF with its upright size.
        size = size[::-1]
    if turn == 1 or (turn >= 5 and drawn == size != size[::-1]):
        return boxes, size
    return {label: [_turned(box, size, turn) for box in found] for label, found in boxes.items()}, size


def _orientation(image: Image.Image) -> int:
    try:
        turn = int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # As read_image has it: a broken EXIF block turns nothing.
        return 1
    return turn if 1 <= turn <= 8 else 1


def _turned(box: Box, size: tuple[int, int], turn: int) -> Box:
    """A box on the stored pixels as a box on the upright image of this size; from 5 on EXIF swaps the axes first."""
    x0, y0, x1, y1 = box if turn < 5 else (box[1], box[0], box[3], box[2])
    if turn in (2, 3, 6, 7):
        x0, x1 = size[0] - x1, size[0] - x0
    if turn in (3, 4, 7, 8):
        y0, y1 = size[1] - y1, size[1] - y0
    return x0, y0, x1, y1


def _open_voc(root: Path, split: str, difficult: bool) -> Dataset:
    names, files, listed = voc_images(root, split)
    items, skipped = [], []
    for name in sorted(names):
        place = files[name].relative_to(root).as_posix() if name in files else name
        mask = root / "SegmentationClass" / f"{name}.png"
        try:
            if name not in files:
                raise AbslrpError(f"{name} of the split {split!r} is not in JPEGImages: get the image.")
            known = read_annotation(root / "Annotations" / f"{name}.xml", difficult=difficult)
        except AbslrpError as error:
            skipped.append((place, str(error)))
        else:
            drawn, found = known.size, mask if mask.is_file() else None
            items.append(_item(files[name], place, tuple(known.boxes), known.boxes, drawn, found))
    if not items:
        first = skipped[0][1] if skipped else f"the list of the split {split!r} is empty: name another."
        raise AbslrpError(f"{root} has no image to use; of the first, {first}")
    title = root.resolve().name + (f"-{split}" if listed else "")
    reader = functools.partial(_read_file, root)
    return Dataset(title, tuple(items), list(VOC_CLASSES), reader, tuple(skipped))


def _hugging_face(spec: str, class_names: list[str] | None, split: str) -> Dataset:
    folder = _folder(spec.removeprefix("hf:"), spec)
    rows = open_rows(folder, spec, class_names, split)
    items = tuple(
        Item(f"{number:08d}", rows.labels[number] if rows.labels else ()) for number in range(len(rows.stored))
    )
    title = f"hf:{folder.resolve().name}{rows.title}"
    reader = functools.partial(read_row, rows.stored, rows.column)
    return _in_range(Dataset(title, items, class_names or rows.names, reader))
