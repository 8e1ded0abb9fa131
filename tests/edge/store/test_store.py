"""The store: all of a batch or nothing, whatever happens to the process, the disk or the file."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad.edge.alert import Alert, AlertEvent
from fedkad.edge.commands.command import Command
from fedkad.edge.store import Store, database
from fedkad.edge.store import alerts as alert_table
from fedkad.edge.store.database import MIGRATIONS, StoreError
from tests.fixtures.alerts import a_fault, an_alert
from tests.fixtures.broker import logged


@pytest.fixture
def said() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


@pytest.fixture(autouse=True)
def nothing_is_logged_unasked(request: pytest.FixtureRequest) -> Iterator[None]:
    with logged() as lines:
        yield
    assert lines == [] or "said" in request.fixturenames


def alert(number: int, event: str = "start") -> Alert:
    return an_alert(f"p-{number}", device="p", event=AlertEvent(event))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sqlite"


def filled(path: Path) -> Store:
    store = Store(path)
    store.states.put("p", {"seq": 3})
    for seq in range(1, 4):
        store.rows.add("p", seq, 10.0 * seq, np.array([seq, -seq], dtype=float), trains=True)
    store.alerts.put(["mqtt", "stdout"], alert(1))
    store.states.put_position("file", {"offset": 7})
    return store


def test_nothing_is_there_before_the_commit_and_all_of_it_after(path: Path) -> None:
    store = filled(path)
    assert store.states.get("p") is None
    store.commit()
    store.close()
    again = Store(path)
    assert again.states.get("p") == {"seq": 3}
    assert [(n, list(row)) for n, row in again.rows.last("p", 2, 2)] == [(2, [2.0, -2.0]), (3, [3.0, -3.0])]
    assert again.states.position("file") == {"offset": 7}
    assert [entry[1]["id"] for entry in again.alerts.waiting("mqtt", 9)] == ["p-1"]
    assert again.identity == store.identity


def test_rows_that_were_revoked_or_spent_are_gaps_to_whoever_learns(path: Path) -> None:
    store = filled(path)
    store.rows.revoke("p", 3)
    store.rows.spend("p", 1)
    store.commit()
    through, rows = store.rows.to_learn("p", 2)
    assert through == 3
    np.testing.assert_array_equal(rows, [[np.nan, np.nan], [2.0, -2.0], [np.nan, np.nan]])
    store.rows.forget("p", 3)
    store.commit()
    assert len(store.rows.last("p", 9, 2)) == 1


def test_each_sink_takes_its_own_alerts(path: Path) -> None:
    store = filled(path)
    store.commit()
    ((key, _),) = store.alerts.waiting("mqtt", 9)
    store.alerts.remove([key])
    store.commit()
    assert store.alerts.waiting("mqtt", 9) == []
    assert len(store.alerts.waiting("stdout", 9)) == 1


INCIDENTS = "SELECT alert FROM incident WHERE device = ? ORDER BY number DESC"


def incidents(store: Store) -> list[dict[str, Any]]:
    return [json.loads(alert) for (alert,) in store.connection().execute(INCIDENTS, ("p",))]


def test_the_last_word_on_an_incident_is_kept_and_old_incidents_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_table, "MAX_INCIDENTS", 3)
    store = Store(path)
    for number in range(5):
        store.alerts.put([], alert(number))
        store.alerts.put([], alert(number, "end"))
    store.commit()
    assert [entry["id"] for entry in incidents(store)] == ["p-4", "p-3", "p-2"]
    assert {entry["event"] for entry in incidents(store)} == {"end"}


def test_a_sink_that_takes_nothing_does_not_fill_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(alert_table, "MAX_WAITING", 3)
    store = Store(path)
    for number in range(5):
        store.alerts.put(["webhook"], alert(number))
    store.commit()
    for _ in range(3):
        assert store.alerts.drop_surplus("webhook")
    store.commit()
    assert not store.alerts.drop_surplus("webhook")
    assert len(said) == 1
    assert [entry["id"] for _, entry in store.alerts.waiting("webhook", 9)] == ["p-2", "p-3", "p-4"]
    assert "oldest are dropped" in said[0]
    for number in range(5):
        store.alerts.put(["mqtt"], alert(number))
    store.commit()
    assert store.alerts.drop_surplus("mqtt")
    assert len(said) == 2
    assert said[1].startswith("mqtt: not delivering")


def test_a_file_of_an_older_version_is_brought_up_to_date(path: Path) -> None:
    old = sqlite3.connect(path)
    old.executescript(f"{MIGRATIONS[0]}; PRAGMA user_version = 1;")
    old.execute("INSERT INTO device VALUES ('p', '{\"seq\": 41}')")
    old.execute("INSERT INTO outbox (sink, alert) VALUES ('mqtt', '{\"id\": \"old\"}')")
    old.execute("INSERT INTO row VALUES ('p', 41, 1.0, ?, 1)", (np.array([1.0]).tobytes(),))
    old.commit()
    old.close()
    store = Store(path)
    assert store.states.get("p") == {"seq": 41}
    assert [entry["id"] for _, entry in store.alerts.waiting("mqtt", 9)] == ["old"]
    store.alerts.put(["mqtt"], alert(1))
    store.states.put_position("file", 1)
    store.commit()
    assert len(store.alerts.waiting("mqtt", 9)) == 2
    assert [list(row) for _, row in store.rows.last("p", 9, 1)] == [[1.0]]


def test_incidents_of_an_older_version_are_found_by_their_device(path: Path) -> None:
    old = sqlite3.connect(path)
    old.executescript(f"{';'.join(MIGRATIONS[:3])}; PRAGMA user_version = 3;")
    old.execute("INSERT INTO incident (id, device, alert) VALUES ('p-1', 'p', '{\"id\": \"p-1\"}')")
    old.commit()
    old.close()
    store = Store(path)
    assert [entry["id"] for entry in incidents(store)] == ["p-1"]
    ((*_, plan),) = store.connection().execute(f"EXPLAIN QUERY PLAN {INCIDENTS}", ("p",)).fetchall()
    assert "incident_of_device" in plan
    assert store.connection().execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_the_commands_of_an_older_version_are_kept(path: Path) -> None:
    old = sqlite3.connect(path)
    old.executescript(f"{';'.join(MIGRATIONS[:5])}; PRAGMA user_version = 5;")
    put = "INSERT INTO command VALUES (?, ?, 'p', 'mute', '1h', 'anna', 1.0, ?, 1, 0)"
    old.executemany(put, [(1, "answered", "p is mute."), (2, "waiting", None)])
    old.commit()
    old.close()
    store = Store(path)
    assert store.commands.unanswered() == [Command("waiting", "p", "mute", "1h", "anna", 1.0)]
    ((command, accepted, reply),) = store.commands.replies()
    assert (command.id, accepted, reply) == ("answered", True, "p is mute.")
    store.commands.put(command, published=False)  # it comes again
    store.commit()
    assert len(store.commands.replies()) == 1


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    store = filled(path)
    store.commit()
    store.close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        Store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["noise", "middle", "empty header"])
def test_a_damaged_file_is_set_aside_named_and_replaced(path: Path, damage: str, said: list[str]) -> None:
    store = filled(path)
    for seq in range(4, 400):
        store.rows.add("p", seq, 0.0, np.zeros(50), trains=True)
    store.commit()
    store.close()
    content = bytearray(path.read_bytes())
    if damage == "noise":
        content = bytearray(os.urandom(5000))
    elif damage == "middle":
        content[4096:-4096] = os.urandom(len(content) - 8192)
    else:
        content[:100] = bytes(100)
    path.write_bytes(content)
    again = Store(path)
    assert again.states.get("p") is None
    assert "agent.sqlite.damaged-1" in said[0]
    assert (path.parent / "agent.sqlite.damaged-1").read_bytes() == content
    assert again.identity != store.identity


def test_damage_found_while_it_runs_loses_no_later_batch(path: Path, said: list[str]) -> None:
    store = filled(path)
    for seq in range(4, 5000):
        store.rows.add("p", seq, 0.0, np.zeros(50), trains=True)
    store.commit()
    store.close()
    store = Store(path)
    with path.open("r+b") as file:  # behind its back
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    store.states.put("p", {"seq": 500})
    store.rows.revoke("p", 0)
    store.commit()
    assert said
    assert store.states.get("p") == {"seq": 500}


def spoil(store: Store) -> None:
    """Damage its file behind its back, so that whoever reads next finds out."""
    store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with store.path.open("r+b") as file:
        file.write(os.urandom(store.path.stat().st_size))
    store.connection().execute("PRAGMA shrink_memory")


READERS: dict[str, Callable[[Store], Any]] = {
    "device": lambda store: store.states.get("p"),
    "number": lambda store: store.rows.last_number("p"),
    "last rows": lambda store: store.rows.last("p", 9, 2),
    "rows to learn": lambda store: store.rows.to_learn("p", 2)[1].size,
    "waiting": lambda store: store.alerts.waiting("mqtt", 9),
    "position": lambda store: store.states.position("file"),
    "taken": lambda store: store.states.digest(7),
    "other sinks": lambda store: store.alerts.drop_other_sinks(["mqtt"]),
    "surplus": lambda store: store.alerts.drop_surplus("mqtt"),
}


@pytest.mark.parametrize("reader", READERS)
def test_damage_found_by_a_reader_is_said_and_an_empty_file_goes_on(path: Path, reader: str, said: list[str]) -> None:
    store = filled(path)
    store.commit()
    store.close()
    store = Store(path)
    before = store.identity
    store.states.put("p", {"seq": 500})
    spoil(store)
    assert not READERS[reader](store)
    assert len(said) == 1
    assert "renamed to agent.sqlite.damaged-1, and the agent continues" in said[0]
    assert store.identity != before
    store.commit()
    assert store.states.get("p") == {"seq": 500}
    store.close()
    assert Store(path).states.get("p") == {"seq": 500}


def test_a_reader_that_the_disk_fails_touches_nothing(path: Path) -> None:
    class Failing:
        def execute(self, *_: Any) -> Any:
            raise sqlite3.OperationalError("disk I/O error")

    store = filled(path)
    store.commit()
    connection, store._database = store._database, Failing()  # type: ignore[assignment]
    with pytest.raises(OSError, match=f"{path}: disk I/O error"):
        store.alerts.waiting("mqtt", 9)
    store._database = connection
    assert len(store.alerts.waiting("mqtt", 9)) == 1


@pytest.mark.parametrize("told", ["taken", "surplus"])
def test_an_alert_after_damage_is_not_taken_for_one_before(
    path: Path, told: str, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(alert_table, "MAX_WAITING", 2)
    store = Store(path)
    for number in range(5):
        store.alerts.put(["mqtt"], alert(number))
    store.commit()
    if told == "taken":
        store.alerts.remove([key for key, _ in store.alerts.waiting("mqtt", 9)])
    else:
        assert store.alerts.drop_surplus("mqtt")
    store.alerts.put(["mqtt"], alert(6))
    store.alerts.put(["mqtt"], alert(7))
    spoil(store)
    store.commit()
    assert "damaged" in said[-1]
    keys, alerts = zip(*store.alerts.waiting("mqtt", 9), strict=True)
    assert [entry["id"] for entry in alerts] == ["p-6", "p-7"]
    assert min(keys) > (5 if told == "taken" else 3)
    store.alerts.remove(range(1, min(keys)))  # what a sink still says of those before
    store.commit()
    assert len(store.alerts.waiting("mqtt", 9)) == 2


def test_a_disk_that_is_full_when_damage_is_found_delays_the_new_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    store = filled(path)
    store.commit()
    store.close()
    store = Store(path)
    store.states.put("p", {"seq": 500})
    spoil(store)

    def full(*_: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(database, "_open", full)
        for _ in range(3):
            with pytest.raises(OSError, match="is full"):
                store.commit()
    store.commit()
    assert len(said) == 1
    assert store.states.get("p") == {"seq": 500}


def test_a_full_disk_refuses_the_whole_batch_and_takes_it_later(tmp_path: Path) -> None:
    """On a real, small file system."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("A small file system cannot be mounted here: that needs root.")
    try:
        store = Store(disk / "agent.sqlite")
        store.states.put("p", {"seq": 1})
        store.commit()
        ballast = disk / "ballast"
        with pytest.raises(OSError, match="No space"):
            ballast.write_bytes(bytes(1 << 20))
        store.states.put("p", {"seq": 2})
        for seq in range(300):
            store.rows.add("p", seq, 0.0, np.ones(25), trains=True)
        for _ in range(3):
            with pytest.raises(OSError, match=r"full|I/O"):
                store.commit()
            assert store.states.get("p") == {"seq": 1}
        ballast.unlink()
        store.commit()
        assert store.states.get("p") == {"seq": 2}
        assert len(store.rows.last("p", 999, 25)) == 300
        store.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_whole_batches(path: Path) -> None:
    """A process commits batches that must be seen whole; it is killed in the middle of its work, again and again."""
    code = f"""
import sys
import numpy as np
from pathlib import Path
from fedkad.edge.store import Store
store = Store(Path({str(path)!r}))
seq = (store.states.get("p") or {{"seq": 0}})["seq"]
print("begun", flush=True)
while True:
    for _ in range(7):
        seq += 1
        store.rows.add("p", seq, float(seq), np.full(25, float(seq)), trains=True)
    store.states.put("p", {{"seq": seq}})
    store.commit()
    sys.stdout.write(f"{{seq}}\\n")
    sys.stdout.flush()
"""
    last = 0
    for kill in range(12):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(3 * kill):
            last = int(process.stdout.readline())
        process.kill()
        told = [int(line) for line in process.stdout.read().split("\n") if line.isdigit()]
        last = max([last, *told])
        process.wait()
        process.stdout.close()
        store = Store(path)
        seq = (store.states.get("p") or {"seq": 0})["seq"]
        assert seq % 7 == 0
        assert seq >= last  # what was said to be committed is there
        rows = store.rows.last("p", 10**6, 25)
        assert [row[0] for _, row in rows] == list(range(1, seq + 1))
        store.close()


DAMAGES = {
    "device": "UPDATE device SET state = '{' || state",
    "text that is none": "UPDATE device SET state = CAST(x'ff00fe' AS TEXT)",
    "row": "UPDATE row SET vals = x'00'",
    "outbox": "UPDATE outbox SET alert = 'x'",
    "source": "UPDATE source SET position = 'x'",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_within_is_told_where_it_is_read(path: Path, what: str, said: list[str]) -> None:
    store = filled(path)
    store.commit()
    store.close()
    database = sqlite3.connect(path)
    database.execute(DAMAGES[what])
    database.commit()
    database.close()
    again = Store(path)
    if what in ("device", "text that is none"):
        with pytest.raises(ValueError, match=r"."):
            again.states.get("p")
        assert again.rows.last_number("p") == 3
    assert all(np.isnan(row).all() for _, row in again.rows.last("p", 9, 2)) == (what == "row")
    assert bool(again.alerts.waiting("mqtt", 9)) == (what != "outbox")
    assert (again.states.position("file") is None) == (what == "source")
    again.commit()


def test_a_table_that_is_missing_and_an_empty_file_are_damage(path: Path, said: list[str]) -> None:
    store = filled(path)
    store.commit()
    store.close()
    database = sqlite3.connect(path)
    database.execute("DROP TABLE meta")
    database.close()
    Store(path).close()
    assert "damaged-1" in said[0]
    path.write_bytes(b"")
    Store(path).close()
    assert "damaged-2" in said[1]


def test_alerts_for_a_sink_that_is_gone_are_dropped_and_said(path: Path, said: list[str]) -> None:
    store = Store(path)
    store.alerts.put(["mqtt", "webhook"], alert(1))
    store.commit()
    store.alerts.drop_other_sinks(["mqtt"])
    store.commit()
    assert len(store.alerts.waiting("mqtt", 9)) == 1
    assert store.alerts.waiting("webhook", 9) == []
    assert "1 alert(s) for webhook, which is no longer" in said[0]
    store.alerts.drop_other_sinks([])
    store.commit()
    assert store.alerts.waiting("mqtt", 9) == []


def test_the_kinds_of_alerts_of_an_older_version_are_filled_in(path: Path) -> None:
    old = sqlite3.connect(path)
    for script in MIGRATIONS[:6]:
        old.executescript(script)
    old.execute("PRAGMA user_version = 6")
    texts = ['{"kind": "health"}', '{"kind":"rate"}', '{"id": "x"}', '{"kind": "hea']
    old.executemany("INSERT INTO incident (id, device, alert) VALUES (?, 'p', ?)", enumerate(texts))
    old.commit()
    old.close()
    store = Store(path)
    assert store.read("SELECT kind FROM incident ORDER BY number") == [("health",), ("rate",), ("",), ("",)]
    store.alerts.put([], a_fault("p-h1", device="p"))
    store.alerts.put([], alert(1))
    store.commit()
    assert store.read("SELECT kind FROM incident WHERE number > 4 ORDER BY number") == [("health",), ("score",)]
    store.close()
