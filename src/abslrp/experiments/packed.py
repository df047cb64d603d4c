"""Arrays as bytes in a run, unpacked with bounds: what a damaged file says of itself is not believed."""

from __future__ import annotations

import io
import math
import zipfile
from typing import Any

import numpy as np

_MOST = 2**26


def pack(value: np.ndarray) -> bytes:
    """An array as NumPy's compressed file.

    >>> unpack(pack(np.arange(3.0))).tolist()
    [0.0, 1.0, 2.0]
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, value=value)
    return buffer.getvalue()


def unpack(data: Any) -> np.ndarray:
    """The array; a ValueError for bytes that are none, or that would become more than 64 MB."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("value.npy") as member:
            content = member.read(_MOST + 1)
        if len(content) > _MOST:
            raise ValueError("it is too large")
        return _read(io.BytesIO(content), len(content))
    except Exception as error:  # Damaged bytes surface as anything, from zlib's errors to NotImplementedError.
        raise ValueError(f"cannot be unpacked: {' '.join(str(error).split())[:100] or type(error).__name__}") from None


def _read(file: io.BytesIO, size: int) -> np.ndarray:
    version = np.lib.format.read_magic(file)
    read_head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, kind = read_head(file)
    # The head is checked against what is there before anything is made of it; objects would be unpickled.
    if kind.hasobject or any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize != size - file.tell():
        raise ValueError("its head does not fit its content")
    values = np.frombuffer(file.read(), dtype=kind)
    return values.reshape(shape, order="F" if by_columns else "C").copy()
