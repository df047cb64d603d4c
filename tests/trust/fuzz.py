"""Damaged files by the thousand, given to every loader: it reads them, or refuses them with one sentence, in bounded memory.

python -m tests.trust.fuzz --count 10000 --seed 0

Each loader works in a process of its own whose address space is bounded, so that a crash of a library underneath is counted,
and so is memory. The same seed makes the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trust import seeds

from abslrp.experiments.config import make_config, read_file
from abslrp.experiments.findings import read_findings
from abslrp.experiments.runner import finished
from abslrp.experiments.store import FILE, Store
from abslrp.inputs.datasets import open_dataset
from abslrp.inputs.images import read_image
from abslrp.inputs.sentences import load_text_classifier, read_sentences, tiny_classifier
from abslrp.inputs.voc import listed_labels, read_annotation, read_mask
from abslrp.inputs.weights import load_weights, read_weights
from abslrp.types import AbslrpError

ROOM = 3 * 2**30
"""Bytes of address space that a loader has beyond those it begins with."""

PATIENCE = 60
"""Seconds after which one file counts as a hang."""

_LONGEST_SENTENCE = 1500
_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 10**9, 2**40, 2**63 - 1, 2**64 - 1)
_WORDS = (
    b"9" * 30,
    b"-1",
    b"1e999",
    b"nan",
    b"0",
    b"2147483648",
    b"../../etc/passwd",
    b"\xff\xfe",
    b"\0",
    b"[" * 400,
    b"<!",
)

Change = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Loader:
    """``read`` is handed a file of a ``suffix`` made from one of ``seeds``, after one of ``changes`` of its own, if any."""

    name: str
    read: Callable[[Path], object]
    seeds: Sequence[bytes]
    suffix: str = ""
    changes: Sequence[Change] = ()
    share: int = 10


@dataclass
class Outcome:
    """What became of a loader's files; ``faults`` are those that were neither read nor refused in a sentence."""

    read: int = 0
    refused: int = 0
    grown: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.read + self.refused + len(self.faults)


# Damage.


def damaged(chance: random.Random, loader: Loader) -> bytes:
    """A file as chance has it; one in fifty is noise."""
    data = chance.choice(list(loader.seeds))
    if chance.random() < 0.02:
        return chance.randbytes(chance.randrange(1, 2000))
    if loader.changes and chance.random() < 0.5:
        return chance.choice(list(loader.changes))(chance, data)
    return mutated(chance, data, loader.seeds)


def mutated(chance: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to four kinds of damage, one after the other."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        data = chance.choice(_DAMAGE)(chance, data or b"\0", chance.choice(list(others) or [data]))
    return data


def _flip(chance: random.Random, data: bytes, _: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 2, 8, 40))):
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def _cut(chance: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _splice(chance: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _repeat(chance: random.Random, data: bytes, _: bytes) -> bytes:
    start = chance.randrange(len(data))
    part = data[start : start + chance.choice((1, 8, 64, 400))]
    return data[:start] + part * chance.choice((2, 30)) + data[start:]


def _remove(chance: random.Random, data: bytes, _: bytes) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.choice((1, 4, 30)) :]


def _length(chance: random.Random, data: bytes, _: bytes) -> bytes:
    """A number as formats write lengths, where one may be."""
    form = chance.choice(("<H", ">H", "<I", ">I", "<Q", ">Q", "B"))
    number = chance.choice(_NUMBERS) % 256 ** struct.calcsize(form)
    place = chance.randrange(min(len(data), chance.choice((64, 4096, 10**9))))
    return data[:place] + struct.pack(form, number) + data[place + struct.calcsize(form) :]


def _digits(chance: random.Random, data: bytes, _: bytes) -> bytes:
    """Another word in place of a number that is written out."""
    found = list(re.finditer(rb"-?\d+", data))
    if not found:
        return data
    one = chance.choice(found)
    return data[: one.start()] + chance.choice(_WORDS) + data[one.end() :]


def _word(chance: random.Random, data: bytes, _: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(_WORDS) + data[place:]


_DAMAGE = (_flip, _cut, _splice, _repeat, _remove, _length, _digits, _word)


def _png(chance: random.Random, data: bytes) -> bytes:
    """Damage inside of a PNG whose checksums are right again."""
    if not data.startswith(b"\x89PNG"):
        return mutated(chance, data)
    parts, at = [data[:8]], 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if chance.random() < 0.4:
            body = mutated(chance, body)
        parts.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
        at += 12 + size
    return b"".join(parts)


def _zip(chance: random.Random, data: bytes) -> bytes:
    """Damage inside of a zip file that is whole, at times packed."""
    if not data.startswith(b"PK"):
        return mutated(chance, data)
    made, method = io.BytesIO(), chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", method) as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, mutated(chance, content) if name.endswith(".pkl") or chance.random() < 0.1 else content)
    return made.getvalue()


def _mat(chance: random.Random, data: bytes) -> bytes:
    """Damage inside of what MATLAB packs, at times grown to a bomb."""
    kind, size = (int.from_bytes(data[at : at + 4], "little") for at in (128, 132))
    if kind != 15:
        return mutated(chance, data)
    body = mutated(chance, zlib.decompress(data[136 : 136 + size]))
    if chance.random() < 0.02:
        body += bytes(2**26)
    packed = zlib.compress(body, 1)
    return data[:128] + struct.pack("<II", 15, len(packed)) + packed


def _database(chance: random.Random, data: bytes) -> bytes:
    """Damage to what a database holds, while the database itself is whole."""
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, FILE)
        file.write_bytes(data)
        connection = sqlite3.connect(file, isolation_level=None)
        table, column = chance.choice(
            (("facts", "value"), ("arrays", "data"), ("scores", "value"), ("scores", "image"), ("skipped", "reason"))
        )
        rows = connection.execute(
            f"SELECT rowid_, {column} FROM (SELECT row_number() OVER () AS rowid_, {column} FROM {table})"
        ).fetchall()
        value = chance.choice(rows)[1]
        raw = value if isinstance(value, bytes) else str(value).encode()
        other = mutated(chance, raw)
        given: Any = other if isinstance(value, bytes) or chance.random() < 0.3 else other.decode("utf-8", "replace")
        with contextlib.suppress(sqlite3.Error):
            connection.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {column} = ?", (given, value))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return file.read_bytes()


# Loaders.


def loaders(folder: Path) -> list[Loader]:
    """Every loader with its seeds; ``folder`` is for what is not one file."""
    pictures = folder / "pictures"
    for name in ("cat/1.png", "dog/2.png"):
        (pictures / name).parent.mkdir(parents=True, exist_ok=True)
        (pictures / name).write_bytes(seeds.masks()[0])
    tables = [
        (b"file,class,xmin,ymin,xmax,ymax\n1.png,7,0,0,9,5\n2.png,3,1,1,4,4\n", "boxes"),
        (b"index,folder,name\n1,cat,a cat\n0,dog,a dog\n", "classes"),
    ]
    return [
        Loader("images", read_image, seeds.images(), ".png", (_png,), 30),
        Loader("masks", read_mask, seeds.masks(), ".png", (_png,)),
        Loader("torch weights", _weights, seeds.weights(), ".pth", (_zip,), 15),
        Loader("safetensors", _weights, seeds.safetensors(), ".safetensors"),
        Loader("VOC annotations", read_annotation, [seeds.ANNOTATION.encode()], ".xml"),
        *(Loader(f"{name}.csv", _beside(pictures, f"{name}.csv"), [text], ".csv", share=5) for text, name in tables),
        Loader("labels", _labels, [b"1.png 3\n2.png n02119789\n", b"3\n7\n", b"file,label\n1.png,3\n"], ".txt"),
        Loader("the devkit's meta.mat", _devkit, seeds.mats(), ".mat", (_mat,)),
        Loader("sentences in TSV", read_sentences, [b'sentence\tlabel\na "fine" film\t1\nbad\t0\n'], ".tsv", share=5),
        Loader("sentences in CSV", read_sentences, [b'text,label\n"a, b",1\n', b"good,1\nbad,0\n"], ".csv", share=5),
        Loader("sentences in text", read_sentences, ["one\nzwei Häuser\n".encode()], ".txt", share=5),
        Loader("TOML", _toml, [seeds.TOML.encode()], ".toml"),
        Loader("runs", _run, [seeds.run(folder / "seed")], "", (_database,), 15),
        *_stored(folder),
        *_classifier(folder),
    ]


def _weights(path: Path) -> None:
    from torch import nn

    found = read_weights(path)
    with contextlib.suppress(AbslrpError):
        load_weights(lambda count: nn.Sequential(nn.Linear(10, count or 4)), found, "a model")


def _beside(pictures: Path, name: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        shutil.copyfile(path, pictures / name)
        try:
            return open_dataset(pictures)
        finally:
            (pictures / name).unlink()

    return read


def _labels(path: Path) -> object:
    return listed_labels(path, ["1.png", "2.png"], {"n02119789": 5})


def _devkit(path: Path) -> object:
    path.replace(path.with_name("meta.mat"))
    official = path.with_name("labels.txt")
    official.write_text("1\n2\n")
    return listed_labels(official, ["1.png", "2.png"], {})


def _toml(path: Path) -> object:
    known = read_file(path)
    return make_config({key: value for key, value in known.items() if key not in ("batch", "out", "device")})


def _run(path: Path) -> None:
    home = path.with_name("run")
    home.mkdir(exist_ok=True)
    for old in home.iterdir():
        old.unlink()
    path.replace(home / FILE)
    with Store.open(home) as store:
        store.facts()
        finished(store)
        for key in store.kept():
            store.array(*key)
        read_findings(store)
        store.done()


def _stored(folder: Path) -> list[Loader]:
    """What the datasets library wrote, where it is installed: its table, and what it says of it."""
    try:
        import datasets
    except ImportError:
        return []
    datasets.disable_progress_bars()
    pictures = [{"bytes": one, "path": None} for one in seeds.images()[:2]]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    home = folder / "stored"
    datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=kinds).save_to_disk(home)

    def read(name: str) -> Callable[[Path], object]:
        def one(path: Path) -> object:
            copy = path.with_name("stored")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(home, copy)
            path.replace(copy / name)
            dataset = open_dataset(f"hf:{copy}")
            return [dataset.read(item) for item in dataset.items[:4]]

        return one

    files = ("dataset_info.json", "state.json", "data-00000-of-00001.arrow")
    return [Loader(f"datasets: {name}", read(name), [(home / name).read_bytes()], share=2) for name in files]


def _classifier(folder: Path) -> list[Loader]:
    """A text classifier of transformers, where it is installed: its configuration, its tokenizer, its weights."""
    try:
        model, tokenizer = tiny_classifier()
    except AbslrpError:
        return []
    home = folder / "classifier"
    for one in (model, tokenizer):
        one.save_pretrained(home)

    def read(name: str) -> Callable[[Path], object]:
        def one(path: Path) -> object:
            copy = path.with_name("classifier")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(home, copy)
            path.replace(copy / name)
            return load_text_classifier(str(copy))

        return one

    files = ("config.json", "tokenizer.json", "model.safetensors")
    return [Loader(f"transformers: {name}", read(name), [(home / name).read_bytes()], share=2) for name in files]


# The run.


def judge(loader: Loader, path: Path) -> str:
    """``read``, ``refused``, or what else happened."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.read(path)
    except AbslrpError as error:
        said = str(error)
        clear = "\n" not in said and said.endswith((".", "?")) and len(said) < _LONGEST_SENTENCE
        return "refused" if clear else f"no clear sentence: {said[:200]!r}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}, line {last.lineno})"
    return "read"


def fuzz(
    count: int, seed: int, only: str = "", report: Callable[[str], None] = lambda line: None
) -> dict[str, Outcome]:
    """Give ``count`` files to the loaders, each its share; the outcomes by loader."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = [one for one in loaders(folder) if only in one.name]
        shares = sum(one.share for one in chosen)
        found = {}
        for one in chosen:
            found[one.name] = _apart(one, -(-count * one.share // shares), seed, folder)
            report(_line(one.name, found[one.name]))
        return found


def _apart(loader: Loader, count: int, seed: int, folder: Path) -> Outcome:
    """Work in a child, and in another from the next file on where one died."""
    outcome, start, began = Outcome(), 0, time.monotonic()
    while start < count:
        hear, speak = os.pipe()
        child = os.fork()
        if not child:
            os.close(hear)
            _work(loader, range(start, count), seed, folder, speak)
        os.close(speak)
        with os.fdopen(hear) as lines:
            for line in lines:
                said = json.loads(line)
                start += 1
                outcome.grown = max(outcome.grown, said["grown"])
                if said["what"] in ("read", "refused"):
                    setattr(outcome, said["what"], getattr(outcome, said["what"]) + 1)
                else:
                    outcome.faults.append(f"file {start - 1}: {said['what']}")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if start < count:
            why = "hang" if status == -signal.SIGALRM else f"death of the process ({status})"
            outcome.faults.append(f"file {start}: {why}")
            start += 1
    outcome.seconds = time.monotonic() - began
    return outcome


def _work(loader: Loader, numbers: range, seed: int, folder: Path, speak: int) -> None:
    """In the child: bounded in memory, and in time for each file. It never returns."""
    place = folder / "work"
    place.mkdir(exist_ok=True)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        room = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    faulthandler.disable()  # A death is counted by who waits for it.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in numbers:
        path = place / f"{number}{loader.suffix}"
        path.write_bytes(damaged(random.Random(f"{seed} {loader.name} {number}"), loader))
        signal.alarm(PATIENCE)
        what = judge(loader, path)
        signal.alarm(0)
        path.unlink(missing_ok=True)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(speak, (json.dumps({"what": what, "grown": grown}) + "\n").encode())
    os._exit(0)


def _line(name: str, one: Outcome) -> str:
    counts = f"{one.tried:>7}{one.read:>7}{one.refused:>9}{len(one.faults):>7}"
    return f"{name:<36}{counts}{one.grown / 1024:>9.0f} MB{one.seconds:>8.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description="Give damaged files to every loader.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the loader's name")
    given = parser.parse_args()
    print(f"{'loader':<36}{'tried':>7}{'read':>7}{'refused':>9}{'other':>7}{'memory':>12}{'time':>10}")
    found = fuzz(given.count, given.seed, given.only, lambda line: print(line, flush=True))
    whole = Outcome(
        sum(one.read for one in found.values()),
        sum(one.refused for one in found.values()),
        max(one.grown for one in found.values()),
        sum(one.seconds for one in found.values()),
        [f"{name}, {fault}" for name, one in found.items() for fault in one.faults],
    )
    print(_line("all", whole))
    for fault, times in Counter(whole.faults).most_common(40):
        print(f"{times} × {fault}")
    return 1 if whole.faults else 0


if __name__ == "__main__":
    sys.exit(main())
