"""Files that somebody else wrote: read whole up to a bound, and their words shown short."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from abslrp.types import AbslrpError

LARGEST_TEXT = 256 * 2**20
"""Bytes of a list, table or file of sentences; the largest of ImageNet's own has 30 million."""

_LONGEST_SHOWN = 80


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` resolved where there is such a home; of one that there is not, it stays a letter."""
    return Path(os.path.expanduser(path))


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """What a plain file holds; an OSError for anything else, and for more than ``most`` bytes, of which none are kept."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            # A pipe would be waited for, and a device read without end.
            what = "it is a folder" if os.path.isdir(path) else "it is no plain file"
            raise OSError(errno.EINVAL, what)
        with open(path, "rb") as file:
            found = file.read(most + 1)
    except ValueError as error:  # A name with a zero byte.
        raise OSError(errno.EINVAL, str(error)) from None
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return found


def read_text(path: str | os.PathLike[str], most: int = LARGEST_TEXT) -> str:
    """The text of a UTF-8 file; an OSError or a UnicodeDecodeError tells what is wrong.

    Zero bytes are refused: UTF-16 without a mark at its beginning is read without complaint as letters with zeros between.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.txt")
    ...     _ = file.write_bytes("no".encode("utf-16-le"))
    ...     read_text(file)
    Traceback (most recent call last):
    UnicodeDecodeError: 'utf-8' codec can't decode byte 0x00 in position 1: a zero byte, as in UTF-16
    """
    found = read_bytes(path, most)
    zero = found.find(b"\0")
    if zero >= 0:
        raise UnicodeDecodeError("utf-8", found[: zero + 1], zero, zero + 1, "a zero byte, as in UTF-16")
    return found.decode("utf-8-sig")


def shown(value: object, longest: int = _LONGEST_SHOWN) -> str:
    """A value as a sentence shows it: short, on one line, with nothing that moves a terminal's cursor.

    >>> shown("a" * 100, 8), shown("red\\x1b[31m")
    ('aaaaaaa…', 'red�[31m')
    """
    try:
        text = str(value)
    except ValueError:  # Python writes no number of more than 4300 digits.
        return "a number of thousands of digits"
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def check_writable(folder: str | os.PathLike[str], use: str = "written to") -> None:
    """Refuse a folder in which nothing can be written, before any work is done; it is not made yet.

    >>> check_writable(__file__)
    Traceback (most recent call last):
    abslrp.types.AbslrpError: ...plain.py cannot be written to (it is a file): name a folder with --out.
    """
    import tempfile

    place = expanded(folder)
    try:
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        if not os.path.isdir(place):
            what = "it is a file" if place == expanded(folder) else f"{place} is a file"
            raise OSError(errno.ENOTDIR, what)
        with tempfile.TemporaryFile(dir=place):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AbslrpError(f"{shown(folder, 300)} cannot be {use} ({reason}): name a folder with --out.") from None
