"""A run's file under what may befall it: damage, strangers, locks, a full disk, a place that cannot be written."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.experiments.tiny import configuration, contents, loaded, pictures
from tests.trust import seeds

from abslrp import cli
from abslrp.experiments import store as room
from abslrp.experiments.findings import read_findings
from abslrp.experiments.packed import pack, unpack
from abslrp.experiments.runner import finished, run
from abslrp.experiments.store import FILE, Row, Store
from abslrp.report_command import write_run_report
from abslrp.types import AbslrpError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pictures(tmp_path_factory.mktemp("data"), 6)


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("done")
    run(settings(data), out, loaded=loaded()).close()
    return out


@pytest.fixture
def home(tmp_path: Path) -> Path:
    seeds.run(tmp_path / "run")
    return tmp_path / "run"


def settings(data: Path) -> Any:
    return configuration(data, methods="abslrp,random", metrics="gae:T=4,road-morf:percentages=20,60")


def refused(says: str, call: Callable[..., object], *given: Any, **options: Any) -> str:
    with pytest.raises(AbslrpError, match=says) as caught:
        call(*given, **options)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and "delete" not in message
    return message


def use(folder: Path) -> None:
    """All that a report and a run going on read."""
    with Store.open(folder) as store:
        store.facts()
        finished(store)
        for key in store.kept():
            store.array(*key)
        read_findings(store)


def change(folder: Path, *orders: str, given: tuple[Any, ...] = ()) -> None:
    connection = sqlite3.connect(folder / FILE, isolation_level=None)
    for order in orders:
        connection.execute(order, given)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


# Damage.


@pytest.mark.parametrize("seed", range(12))
def test_damage_in_the_middle_is_found_at_once(home: Path, seed: int) -> None:
    file, chance = home / FILE, np.random.default_rng(seed)
    data = bytearray(file.read_bytes())
    for place in chance.integers(len(data) // 10, len(data), 60):
        data[place] = chance.integers(256)
    file.write_bytes(data)
    refused("cannot be opened as a run|cannot be read|says of itself", use, home)
    assert file.read_bytes() == data


@pytest.mark.parametrize("part", [0, 50, 4096, 0.5, 0.99])
def test_a_file_cut_short(home: Path, part: float) -> None:
    size = (home / FILE).stat().st_size
    os.truncate(home / FILE, int(part if part > 1 else part * size))
    refused("cannot be opened as a run", use, home)


@pytest.mark.parametrize(
    ("order", "given", "says"),
    [
        ("UPDATE facts SET value = ? WHERE name = 'config'", "{", "a fact is not what was written"),
        ("UPDATE facts SET value = ? WHERE name = 'config'", "[" * 10**5, "a fact is not what was written"),
        ("UPDATE facts SET value = ? WHERE name = 'config'", b"\xff\xfe", "a fact is not what was written"),
        ("UPDATE facts SET value = ? WHERE name = 'config'", "[1]", "says of itself what no run says"),
        ("UPDATE facts SET value = ? WHERE name = 'planned'", '{"gae": "x"}', "says of itself what no run says"),
        ("UPDATE scores SET value = ? WHERE image = 'i5'", "much", "a score is not a number"),
        ("UPDATE scores SET image = ? WHERE image = 'i5'", b"\xff", "a score is not a number"),
        ("UPDATE scores SET flag = CAST(? AS TEXT) WHERE image = 'i5'", b"\xff\x80", "Could not decode"),
        ("UPDATE arrays SET data = ? WHERE image = 'i5'", b"nothing", "cannot be unpacked"),
        ("UPDATE arrays SET data = ? WHERE image = 'i5'", pack(np.zeros(2**24)), "it is too large"),
    ],
)
def test_damage_to_what_it_holds(home: Path, order: str, given: Any, says: str) -> None:
    if "UPDATE OR" not in order and "image = ?" in order.partition("WHERE")[0]:
        order = order.replace("UPDATE", "UPDATE OR REPLACE")
    change(home, order, given=(given,))
    refused(says, use, home)


def test_what_the_database_says_becomes_one_line(home: Path) -> None:
    connection = sqlite3.connect(home / FILE, isolation_level=None)
    connection.execute("PRAGMA writable_schema = 1")
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'value', '`value\n\n\n') WHERE name = 'scores'")
    connection.close()
    refused("cannot be opened as a run", use, home)


def test_arrays_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import zipfile

    def member(content: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("value.npy", content)
        return file.getvalue()

    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    objects = io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    for content in (head.getvalue(), objects.getvalue(), b"\x93NUMPY\x09\x00"):
        with pytest.raises(ValueError, match="cannot be unpacked"):
            unpack(member(content))
    for value in (np.arange(6.0).reshape(2, 3), np.float32(2), np.asfortranarray(np.eye(3)), np.zeros((0, 4))):
        assert np.array_equal(unpack(pack(value)), value) and unpack(pack(value)).dtype == value.dtype


def test_a_damaged_journal_costs_what_it_held_and_no_more(data: Path, done: Path, tmp_path: Path) -> None:
    """A process that was killed leaves its last scores in the journal; where that is damaged they are made again."""
    whole = contents(done)
    for seed in range(3):
        out = tmp_path / f"{seed}"
        shutil.copytree(done, out)
        child = os.fork()
        if not child:  # It ends as if it were killed.
            store = Store.open(out)
            store._db.execute("PRAGMA wal_autocheckpoint=0")
            store._db.execute("DELETE FROM scores WHERE metric = 'gae'")
            os._exit(9)
        os.waitpid(child, 0)
        journal = out / f"{FILE}-wal"
        raw = bytearray(journal.read_bytes())
        assert len(raw) > 1000
        raw[40 + seed * 2000 :: 97] = bytes(len(raw[40 + seed * 2000 :: 97]))
        journal.write_bytes(raw)
        run(settings(data), out, loaded=loaded()).close()
        assert contents(out) == whole


# Strangers.


def test_a_stranger_is_left_as_it_is(tmp_path: Path, data: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("CREATE TABLE bookmarks (page TEXT)")
    connection.execute("INSERT INTO bookmarks VALUES ('mine')")
    connection.commit()
    connection.close()
    before = (tmp_path / FILE).read_bytes()
    refused("other tables than a run has", use, tmp_path)
    refused("other tables than a run has", run, settings(data), tmp_path, loaded=loaded())
    assert (tmp_path / FILE).read_bytes() == before and os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize(
    "orders",
    [
        ("CREATE TRIGGER t AFTER INSERT ON scores BEGIN DELETE FROM facts; END",),
        (
            "DROP TABLE skipped",
            "CREATE VIEW skipped AS WITH RECURSIVE t(image) AS (SELECT 'a' UNION ALL SELECT image || 'a' FROM t) SELECT image, 'r' AS reason FROM t",
        ),
    ],
    ids=["trigger", "view without end"],
)
def test_nothing_in_it_runs(home: Path, orders: tuple[str, ...]) -> None:
    change(home, *orders)
    refused("other tables than a run has", use, home)


def test_versions(home: Path, done: Path, data: Path) -> None:
    assert sqlite3.connect(done / FILE).execute("PRAGMA user_version").fetchone() == (room.VERSION,)
    change(home, "PRAGMA user_version = 0")  # as the first runs were written
    use(home)
    change(home, f"PRAGMA user_version = {room.VERSION + 1}")
    refused(f"it has version {room.VERSION + 1} of runs, and this abslrp knows version {room.VERSION}", use, home)
    refused("version", run, settings(data), home, loaded=loaded())


# Others at work, and places that cannot be written.


def test_a_file_that_another_process_holds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_WAIT", 0.2)
    other = sqlite3.connect(home / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    use(home)  # Reading goes on.
    refused("is held by another process .*: wait until it ends", Store.open, home, create=True)
    with Store.open(home) as store:
        refused("cannot be written .database is locked", store.note, a=1)
    other.execute("ROLLBACK")
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("UPDATE facts SET value = '1' WHERE name = 'seed'")
    refused("is held by another process", use, home)
    other.close()
    use(home)


@pytest.fixture
def sealed(home: Path, tmp_path: Path) -> Iterator[Path]:
    """The run's folder on a file system that cannot be written; even the superuser cannot."""
    place = tmp_path / "sealed"
    place.mkdir()
    steps = (["--bind", str(home), str(place)], ["-o", "remount,ro,bind", str(place)])
    done = [
        shutil.which("mount") and subprocess.run(["mount", *one], capture_output=True, check=False).returncode
        for one in steps
    ]
    if done != [0, 0]:
        subprocess.run(["umount", str(place)], capture_output=True, check=False) if shutil.which("umount") else None
        pytest.skip("nothing can be mounted here: run the tests as the superuser of a machine of your own")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_run_is_read_where_nothing_can_be_written(sealed: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    use(sealed)
    assert write_run_report(sealed, tmp_path / "report.html", pictures=False).stat().st_size > 1000
    refused("cannot be written to .Read-only file system", write_run_report, sealed, pictures=False)
    refused("cannot be opened as a run .*one that can be written", run, settings(data), sealed, loaded=loaded())
    for words in (["explain", str(data), "--out", str(sealed)], ["demo", "--out", str(sealed / "new")]):
        assert cli.main(words) == 2
        assert "cannot be written to (Read-only file system): name a folder with --out." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "file", "folder"])
def test_places_that_hold_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("kept")
    Path("folder", FILE).mkdir(parents=True)
    refused("cannot be opened as a run", Store.open, Path(name), create=True)
    refused("holds no run", Store.open, Path(name))
    assert Path("file").read_text() == "kept"


def test_a_name_that_cannot_be_written_is_a_sentence(home: Path) -> None:
    with Store.open(home) as store:
        before = store.rows()
        refused(
            "is a name that is not UTF-8",
            store.add,
            [Row("new", "a", "gae", "score", 1.0), Row("\udcff", "a", "gae", "score", 1.0)],
        )
        assert store.rows() == before


# A full disk.


def _limited(call: Callable[[], object], size: int) -> str:
    """What a call says where no file may grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        call()
    except AbslrpError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return ""


@pytest.mark.parametrize("size", [100, 9_000, 40_000, 80_000])
def test_a_run_goes_on_when_there_is_room_again(data: Path, done: Path, tmp_path: Path, size: int) -> None:
    said = _limited(lambda: run(settings(data), tmp_path, loaded=loaded()).close(), size)
    assert "cannot be" in said and "\n" not in said
    if (tmp_path / FILE).stat().st_size:
        with Store.open(tmp_path, create=True) as store:
            pieces = {(row.method, row.metric) for row in store.rows()}
            counts = store.counts()
        assert all(counts[metric, method] in (6, 0) for method, metric in pieces)
    run(settings(data), tmp_path, loaded=loaded()).close()
    assert contents(tmp_path) == contents(done)


def test_a_disk_that_is_full(data: Path, done: Path, tmp_path: Path) -> None:
    """A file system of 200 kB: the run stops with one sentence, and goes on when a file on it is gone."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = (
        shutil.which("mount")
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("nothing can be mounted here: run the tests as the superuser of a machine of your own")
    try:
        (place / "ballast").write_bytes(bytes(120 * 1024))
        refused("cannot be (written|opened as a run) .*", run, settings(data), place / "run", loaded=loaded())
        (place / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
        run(settings(data), place / "run", loaded=loaded()).close()
        assert contents(place / "run") == contents(done)
        (place / "ballast").write_bytes(bytes(100))
        with pytest.raises(OSError) as caught:
            (place / "ballast").write_bytes(bytes(2**25))
        assert caught.value.errno == errno.ENOSPC
        assert cli.main(["report", str(place / "run"), "--no-pictures"]) == 2
        assert not [name for name in os.listdir(place / "run") if not name.startswith(FILE)]
    finally:
        subprocess.run(["umount", str(place)], check=True)
