"""A run on disk: one SQLite file with its configuration, every score, and the pictures that a report needs."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from abslrp.experiments.packed import pack, unpack
from abslrp.types import AbslrpError, said

FILE = "run.sqlite"
VERSION = 1
_WAIT = 60.0
_AT_ONCE = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scores (
    image TEXT NOT NULL, method TEXT NOT NULL, metric TEXT NOT NULL, part TEXT NOT NULL,
    value REAL NOT NULL, flag TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (image, method, metric, part)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS arrays (
    image TEXT NOT NULL, method TEXT NOT NULL, metric TEXT NOT NULL, part TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (image, method, metric, part)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS skipped (image TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unfit (method TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
"""
_TABLES = {"facts", "scores", "arrays", "skipped", "unfit"}
_MAKE = f"PRAGMA synchronous=NORMAL; BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={VERSION}; COMMIT;"


@dataclass(frozen=True)
class Row:
    """One number: a part of a metric's score of one image (or mosaic) under one method; flags joined by '; '."""

    image: str
    method: str
    metric: str
    part: str
    value: float
    flag: str = ""


class Store:
    """Reads and writes a run. Every write is one transaction: after a crash a piece of work is there whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "run"), create=True) as store:
    ...     store.add([Row("cat", "abslrp", "gae", "score", 0.25)])
    ...     store.scores()["gae"]["abslrp"]["score"]
    {'cat': 0.25}
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db, self.path = connection, path

    @classmethod
    def open(cls, folder: Path, *, create: bool = False) -> Store:
        """The run in a folder; ``create`` makes it where there is none."""
        path = folder / FILE
        if not create and not os.path.isfile(path):
            raise AbslrpError(
                f"{folder} holds no run ({FILE} is not there): make one with abslrp evaluate --out {folder}."
            )
        try:
            if create:
                folder.mkdir(parents=True, exist_ok=True)
            return cls(_opened(path, create), path)
        except (sqlite3.Error, OSError, ValueError) as error:
            raise AbslrpError(_unopened(path, error)) from None

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise AbslrpError(
                f"{self.path} cannot be written ({said(error)}): free the disk or the file, then run again."
            ) from None
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, UnicodeEncodeError):
                raise AbslrpError(f"{error.object!r} is a name that is not UTF-8: rename it, then run again.") from None
            raise

    def add(self, rows: Iterable[Row], arrays: Mapping[tuple[str, str, str, str], np.ndarray] | None = None) -> None:
        """Write rows, and arrays by (image, method, metric, part), all or none; what is there already is replaced."""
        packed = [(*key, pack(value)) for key, value in (arrays or {}).items()]
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?)",
                [(r.image, r.method, r.metric, r.part, r.value, r.flag) for r in rows],
            )
            self._db.executemany("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?, ?)", packed)

    def facts(self) -> dict[str, Any]:
        """What is known of the run: its configuration, hash, versions, seeds, device, image ids, class names."""
        try:
            return {name: json.loads(value) for name, value in self._read("SELECT name, value FROM facts")}
        except (ValueError, TypeError, RecursionError):
            raise self._damaged("a fact is not what was written") from None

    def note(self, **facts: Any) -> None:
        """Write facts, each replacing what was there under its name."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)",
                [(name, json.dumps(value, sort_keys=True)) for name, value in facts.items()],
            )

    def begin(self, facts: Mapping[str, Any], skipped: Mapping[str, str], unfit: Mapping[str, str]) -> bool:
        """Write all that is known before the first score, unless another process has; tells whether it was this one."""
        with self._transaction():
            if self._db.execute("SELECT 1 FROM facts WHERE name = 'hash'").fetchone():
                return False
            pairs = [(name, json.dumps(value, sort_keys=True)) for name, value in facts.items()]
            for table, rows in (("facts", pairs), ("skipped", skipped.items()), ("unfit", unfit.items())):
                self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", list(rows))
            return True

    def skip(self, skipped: Mapping[str, str]) -> None:
        """Write down images that could not be read, with the reason."""
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO skipped VALUES (?, ?)", list(skipped.items()))

    def skipped(self) -> dict[str, str]:
        return dict(self._read("SELECT image, reason FROM skipped ORDER BY image"))

    def set_unfit(self, methods: Mapping[str, str]) -> None:
        """Write down methods that do not run on this model, with the reason."""
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO unfit VALUES (?, ?)", list(methods.items()))

    def unfit(self) -> dict[str, str]:
        return dict(self._read("SELECT method, reason FROM unfit ORDER BY method"))

    def done(self) -> set[tuple[str, str, str]]:
        """The (image, method, metric) that have their score."""
        return set(self._read("SELECT image, method, metric FROM scores WHERE part = 'score'"))

    def done_of(self, metric: str, images: Iterable[str]) -> set[tuple[str, str]]:
        """The (image, method) among these images that have their score of a metric; quick in a run of any size."""
        names, found = list(images), set()
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            wanted = f"image IN ({', '.join('?' * len(part))}) AND metric = ? AND part = 'score'"
            found.update(self._read(f"SELECT image, method FROM scores WHERE {wanted}", (*part, metric)))
        return found

    def counts(self) -> dict[tuple[str, str], int]:
        """How many images have their score, by (metric, method)."""
        wanted = "SELECT metric, method, count(*) FROM scores WHERE part = 'score' GROUP BY metric, method"
        return {(metric, method): count for metric, method, count in self._read(wanted)}

    def rows(self) -> list[Row]:
        """All rows, sorted."""
        wanted = "SELECT image, method, metric, part, value, flag FROM scores ORDER BY image, method, metric, part"
        rows = [Row(*row) for row in self._read(wanted)]
        # SQLite lets any kind of value stand in any column.
        if not all(isinstance(row.value, float) and isinstance(row.image, str) for row in rows):
            raise self._damaged("a score is not a number")
        return rows

    def scores(self) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        """Values by metric, method, part and image."""
        found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
        for row in self.rows():
            found.setdefault(row.metric, {}).setdefault(row.method, {}).setdefault(row.part, {})[row.image] = row.value
        return found

    def flagged(self) -> dict[str, dict[str, int]]:
        """How many images have a flag, by metric and method."""
        wanted = (
            "SELECT metric, method, count(*) FROM scores WHERE part = 'score' AND flag != '' GROUP BY metric, method"
        )
        found: dict[str, dict[str, int]] = {}
        for metric, method, count in self._read(wanted):
            found.setdefault(metric, {})[method] = count
        return found

    def array(self, image: str, method: str, metric: str, part: str) -> np.ndarray | None:
        """An array that was kept, or None."""
        wanted = "SELECT data FROM arrays WHERE image = ? AND method = ? AND metric = ? AND part = ?"
        found = self._read(wanted, (image, method, metric, part))
        try:
            return unpack(found[0][0]) if found else None
        except ValueError as error:
            raise self._damaged(f"{part} of {method} on {image} {said(error)}") from None

    def kept(self) -> list[tuple[str, str, str, str]]:
        """The (image, method, metric, part) of all arrays."""
        return self._read("SELECT image, method, metric, part FROM arrays ORDER BY image, method, metric, part")

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> AbslrpError:
        return AbslrpError(
            f"{self.path} cannot be read ({why}): it is damaged, or no run of abslrp; go back to a copy of it, or run again "
            "with another --out."
        )


def _opened(path: Path, create: bool) -> sqlite3.Connection:
    """A connection to a file that was looked at before anything in it was changed."""
    # Transactions are begun by hand, so that a reader never sees half of a piece.
    connection = sqlite3.connect(path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
    try:
        try:
            _patiently(connection, lambda: _check(connection, create))
        except sqlite3.OperationalError as error:
            if create or "locked" in str(error) or _has_content(path.with_name(f"{FILE}-wal")):
                raise
            # Where nothing can be written SQLite cannot make the files by which readers and writers agree.
            connection.close()
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True, check_same_thread=False)
            _check(connection, create)
        if create:
            _patiently(connection, lambda: connection.execute("PRAGMA journal_mode=WAL"))
            _patiently(connection, lambda: connection.executescript(_MAKE))
        return connection
    except BaseException:
        connection.close()
        raise


def _check(connection: sqlite3.Connection, create: bool) -> None:
    """Refuse what is no run, what is damaged, and what a later version wrote: such a file is left as it is."""
    connection.execute("PRAGMA trusted_schema=OFF")
    found = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ).fetchall()
    if not {name for _, name in found} <= _TABLES or any(kind != "table" for kind, _ in found):
        raise ValueError("it holds other tables than a run has")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):  # Before versions were written there was but this one.
        raise ValueError(f"it has version {version} of runs, and this abslrp knows version {VERSION}")
    if not found and not create:
        raise ValueError("it is empty")
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(" ".join(verdict.split()))


def _unopened(path: Path, error: Exception) -> str:
    """Why a run could not be opened, and what to do: a file that is only held by others is not to be thrown away."""
    if "locked" in str(error):
        return f"{path} is held by another process ({said(error)}): wait until it ends, then run again."
    if isinstance(error, (OSError, sqlite3.OperationalError)):
        return f"{path} cannot be opened as a run ({said(error)}): name another folder, or one that can be written."
    return f"{path} cannot be opened as a run ({said(error)}): name another folder, or move it away to begin again."


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _patiently(connection: sqlite3.Connection, work: Callable[[], object]) -> None:
    """Do work; two processes that open a new file at once are in each other's way, and SQLite waits only later."""
    end = time.monotonic() + _WAIT
    while True:
        try:
            work()
            return
        except sqlite3.OperationalError as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.02)
