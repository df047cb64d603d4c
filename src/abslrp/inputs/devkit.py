"""The classes of ImageNet's devkit from its meta.mat, read in Python: scipy's reader ends the process where a file is damaged."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from abslrp.inputs.plain import read_bytes, shown
from abslrp.types import AbslrpError

_MOST = 1 << 25  # bytes; the devkit's own unpacks to less than a million.
_MATRIX, _PACKED, _STRUCT = 14, 15, 2
_WANTED = ("ILSVRC2012_ID", "WNID", "num_children")
# MATLAB's numbers for kinds of data, as struct writes them, and as codecs.
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_LETTERS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_TEXT = 4

Order = Literal["little", "big"]


def devkit_classes(path: Path) -> dict[str, int]:
    """The classes by the numbers of the devkit, which are neither in the order of WordNet ids nor from 0."""
    try:
        rows = list(_rows(read_bytes(path, _MOST)))
        leaves = {str(int(number)): str(wnid) for number, wnid, children in rows if int(children) == 0}
        if not leaves:
            raise ValueError("it has no synsets")
    except Exception as error:  # Damaged files surface as anything.
        reason = shown(" ".join(str(error).split()) or type(error).__name__, 160)
        raise AbslrpError(f"{path} is not the devkit's meta.mat ({reason}): get it again.") from None
    order = {wnid: index for index, wnid in enumerate(sorted(leaves.values()))}
    return {number: order[wnid] for number, wnid in leaves.items()}


def _rows(content: bytes) -> Iterator[list[Any]]:
    """The wanted fields of every synset."""
    order: Order = "big" if content[126:128] == b"MI" else "little"
    for kind, data in _elements(content[128:], order):
        if kind == _PACKED:
            one = zlib.decompressobj()
            data = one.decompress(data, _MOST)
            if one.unconsumed_tail:
                raise ValueError(f"it unpacks to more than {_MOST} bytes")
            kind, data = next(_elements(data, order))
        if kind == _MATRIX:
            parts = _elements(data, order)
            flags, _, name = (one for _, one in islice(parts, 3))
            if name == b"synsets" and _class(flags, order) == _STRUCT:
                yield from _records(parts, order)


def _records(parts: Iterator[tuple[int, bytes]], order: Order) -> Iterator[list[Any]]:
    (_, length), (_, names) = islice(parts, 2)
    wide = int.from_bytes(length, order)
    if not 0 < wide <= len(names):
        raise ValueError("its fields have no names")
    fields = [names[at : at + wide].split(b"\0")[0].decode() for at in range(0, len(names), wide)]
    places = [fields.index(name) for name in _WANTED]
    while record := list(islice(parts, len(fields))):
        if len(record) < len(fields):
            raise ValueError("it is cut short")
        yield [_value(record[place][1], order) for place in places]


def _value(data: bytes, order: Order) -> Any:
    """The text of a matrix of letters, or the first number of another."""
    (_, flags), _, _, (kind, content) = islice(_elements(data, order), 4)
    if _class(flags, order) == _TEXT:
        codec = _LETTERS[kind]
        return content.decode(codec if codec in ("latin-1", "utf-8") else f"{codec}-{order[0]}e")
    form = ("<" if order == "little" else ">") + _NUMBERS[kind]
    return struct.unpack_from(form, content)[0]


def _class(flags: bytes, order: Order) -> int:
    return int.from_bytes(flags[:4], order) & 0xFF


def _elements(data: bytes, order: Order) -> Iterator[tuple[int, bytes]]:
    """Kind and content of one element after the other; those of four bytes or less have a head of half the length."""
    at = 0
    while at + 8 <= len(data):
        head, size = (int.from_bytes(data[at + k : at + k + 4], order) for k in (0, 4))
        small = head >> 16
        kind, size, start = (head & 0xFFFF, small, at + 4) if small else (head, size, at + 8)
        if start + size > len(data) or small > 4:
            raise ValueError("it is cut short")
        yield kind, data[start : start + size]
        # All but packed elements end at a multiple of eight.
        at = at + 8 if small else start + (size if kind == _PACKED else -(-size // 8) * 8)
