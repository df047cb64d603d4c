"""Pictures that people bring: bounded, checked, and named as they named them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from abslrp.inputs.images import read_image
from abslrp.inputs.models import sample_images
from abslrp.types import AbslrpError

MOST_BYTES = 20 * 2**20
MOST_PIXELS = 40_000_000
_LONGEST_NAME = 80
_LONGEST_BYTES = 120
_MOST_FILES = 2000


@dataclass(frozen=True)
class Picked:
    """An image that somebody chose; ``key`` is made of its pixels, ``sample`` tells where it comes from."""

    name: str
    image: Image.Image = field(repr=False, compare=False)
    key: str
    sample: bool = False


def pick_sample(name: str) -> Picked:
    """One of the photographs that come with scikit-image.

    >>> pick_sample("unicorn")
    Traceback (most recent call last):
    abslrp.types.AbslrpError: there is no sample 'unicorn': choose chelsea, coffee, rocket or motorcycle_left.
    """
    known = sample_images()
    if name not in known:
        *most, last = known
        raise AbslrpError(f"there is no sample {name!r}: choose {', '.join(most)} or {last}.")
    return Picked(name, known[name], _key(known[name]), True)


def pick_file(path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES, most_pixels: int = MOST_PIXELS) -> Picked:
    """Read a file that was brought; what is wrong with it is said in one sentence, without the path where it lies.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "cat.png")
    ...     _ = file.write_text("no picture")
    ...     pick_file(file)
    Traceback (most recent call last):
    abslrp.types.AbslrpError: cat.png is not an image that Pillow can read: convert it to PNG or JPEG.
    """
    path = Path(path)
    name = _shown(path.name)
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise AbslrpError(
                f"{name} has {size / 2**20:.0f} MB, and the page takes {most_bytes / 2**20:.0f}: scale it down first."
            )
        _check_pixels(path, name, most_pixels)
        image = read_image(path)
    except OSError as error:
        raise AbslrpError(f"{name} cannot be read ({error.strerror or 'no reason given'}): bring it again.") from None
    except AbslrpError as error:
        raise AbslrpError(str(error).replace(str(path), name)) from None
    return Picked(name, image, _key(image))


def make_room(folder: Path, most_bytes: int, most_files: int = _MOST_FILES) -> None:
    """Delete the oldest files below a folder until the others are few and small enough.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as kept:
    ...     for second, name in enumerate(("old", "new")):
    ...         _ = Path(kept, name).write_bytes(bytes(60))
    ...         os.utime(Path(kept, name), (second, second))
    ...     make_room(Path(kept), 100)
    ...     os.listdir(kept)
    ['new']
    """
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                found.append((path.stat().st_mtime, path.stat().st_size, path))
    size, count = sum(size for _, size, _ in found), len(found)
    for _, own, path in sorted(found):
        if size <= most_bytes and count <= most_files:
            return
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            size, count = size - own, count - 1
            if path.parent != folder:
                # Only where it is empty now.
                path.parent.rmdir()


def _check_pixels(path: Path, name: str, most: int) -> None:
    """Before anything is unpacked: a small file can hold a huge picture."""
    try:
        with Image.open(path) as image:
            width, height = image.size
    except Exception:
        # What else is wrong is told by whoever reads the pixels.
        return
    if width * height > most:
        raise AbslrpError(
            f"{name} has {width} by {height} pixels, and the page takes {most / 1e6:.0f} million: scale it down first."
        )


def _shown(name: str) -> str:
    """A name as it can be shown and given to a file, which a disk counts in bytes.

    >>> _shown("a\\tb.png"), len(_shown("字" * 80).encode())
    ('ab.png', 120)
    """
    plain = "".join(letter for letter in name if letter.isprintable()) or "the file"
    if len(plain) <= _LONGEST_NAME and len(plain.encode()) <= _LONGEST_BYTES:
        return plain
    cut = plain[: _LONGEST_NAME - 1].encode()[: _LONGEST_BYTES - len("…".encode())]
    return f"{cut.decode(errors='ignore')}…"


def _key(image: Image.Image) -> str:
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()
