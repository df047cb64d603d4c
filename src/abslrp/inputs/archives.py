"""Torch files looked at before torch opens them: what would run, unpack or reserve more than they hold is refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickletools
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from abslrp.inputs.plain import read_text, shown
from abslrp.types import AbslrpError

_ZIP = b"PK\x03\x04"
_PICKLES = 5  # of which the format before zip files has one after the other.
_MOST_PICKLED = 2**28
# Torch's reader makes this of a number: so many bytes, all written to, for a file of a hundred.
_RESERVES = "bytearray"
_LARGEST_CONFIG = 2**25
_COUNTED = {"layer": 10_000, "depth": 10_000, "block": 10_000, "stage": 10_000, "num_labels": 1_000_000}
"""What words in the names of settings tell of counts, and the most that is believed."""


def check_torch_file(path: Path) -> bool:
    """Refuse what is no plain torch file; tells whether it is one of those that can be mapped into memory.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"weight": torch.ones(2)}, f"{folder}/w.pth")
    ...     check_torch_file(Path(folder, "w.pth"))
    True
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(_ZIP)) == _ZIP:
                _check_zip(path)
                return True
            # Before torch 2.6 tar files were unpickled whatever was asked for (CVE-2025-32434).
            if tarfile.is_tarfile(path):
                raise AbslrpError(
                    f"{path} is a tar file, which is not opened: save model.state_dict() with torch.save."
                )
            file.seek(0)
            _check_pickles(path, file, _PICKLES)
            return False
    except (OSError, zipfile.BadZipFile, EOFError, MemoryError, NotImplementedError) as error:
        raise AbslrpError(
            f"{path} is not a whole torch file ({' '.join(str(error).split())[:160]}): get it again."
        ) from None


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Look at what a folder of transformers or timm holds, which these libraries open by themselves."""
    if not os.path.isdir(folder):
        return
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in (".bin", ".pt", ".pth") and path.is_file():
            check_torch_file(path)
    config = Path(folder, "config.json")
    try:
        told = json.loads(read_text(config, _LARGEST_CONFIG)) if config.is_file() else {}
    except (OSError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "its brackets are too deep"
        raise AbslrpError(f"{config} cannot be read ({reason}): get the folder again.") from None
    except ValueError:  # Whoever loads the model says what is wrong with it.
        return
    _check_counts(config, told)


def _check_counts(config: Path, told: Any) -> None:
    """Refuse numbers of layers or classes that would be built one by one for hours before any weight is missed."""
    waiting = [told]
    while waiting:
        one = waiting.pop()
        pairs = one.items() if isinstance(one, dict) else [("", value) for value in one]
        for key, value in pairs:
            if isinstance(value, dict | list):
                waiting.append(value)
            most = next((most for word, most in _COUNTED.items() if word in key), None)
            numbers = [value, *(value if isinstance(value, list) else [])]
            if most is not None and any(isinstance(number, int | float) and number > most for number in numbers):
                raise AbslrpError(f"{config} asks for {key} of {shown(value)}, more than {most}: get the folder again.")


@contextlib.contextmanager
def only_tensors() -> Iterator[None]:
    """Let nothing be unpickled by the libraries that open files by themselves; torchvision would, from its cache."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _check_zip(path: Path) -> None:
    whole = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        packed = [one for one in entries if one.compress_type != zipfile.ZIP_STORED or one.file_size > whole]
        if packed:
            largest = max(packed, key=lambda one: one.file_size)
            raise AbslrpError(
                f"{path} is packed, which torch.save never does, and {shown(largest.filename)!r} in it would unpack to "
                f"{largest.file_size / 2**20:.1f} MB: save the weights anew, or get the file again."
            )
        for one in entries:
            if one.filename.endswith(".pkl"):
                if one.file_size > _MOST_PICKLED:
                    raise AbslrpError(f"{path} holds more than tensors: save model.state_dict() into it.")
                _check_pickles(path, io.BytesIO(archive.read(one)), 1)


def _check_pickles(path: Path, file: BinaryIO, count: int) -> None:
    """Read the instructions of pickles without following any."""
    for _ in range(count):
        try:
            for code, argument, _ in pickletools.genops(file):
                if code.name in ("GLOBAL", "STACK_GLOBAL", "INST") and _RESERVES in str(argument):
                    raise AbslrpError(f"{path} reserves memory as weights never do: get it again from where it comes.")
        except AbslrpError:
            raise
        except Exception:  # Torch says what is wrong with it.
            return
