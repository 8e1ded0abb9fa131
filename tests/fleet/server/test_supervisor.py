"""What the server does with Flower, without Flower: its devices, its runs, its disk."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.atomicfile import set_aside
from fedkad.fleet.flower.control import Node, RefusedError
from fedkad.fleet.server import enrolment, noticeboard, registry, requests, settings
from fedkad.fleet.server.guards import is_damaged
from fedkad.fleet.server.operation import warn_of_certificates
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.server.supervisor import AppRuns, Supervisor
from fedkad.fleet.shared.notice import LIFE


def test_only_a_damaged_database_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    assert not is_damaged(path)
    with sqlite3.connect(path) as filled:
        filled.execute("CREATE TABLE node (name TEXT)")
        filled.executemany("INSERT INTO node VALUES (?)", [(f"pump {k}" * 50,) for k in range(500)])
    filled.close()
    assert not is_damaged(path)
    with sqlite3.connect(path) as busy:
        busy.execute("BEGIN EXCLUSIVE")
        assert not is_damaged(path)
    busy.close()
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"x" * 4096  # a page in the middle
    path.write_bytes(content)
    (tmp_path / "state.db-wal").write_bytes(b"")
    assert is_damaged(path)
    aside = set_aside(path)
    assert aside.read_bytes() == content
    assert {each.name for each in tmp_path.iterdir()} <= {aside.name, f"{aside.name}-wal", f"{aside.name}-shm"}
    path.write_bytes(b"damaged again" * 100)
    assert is_damaged(path)
    assert set_aside(path) != aside
    assert aside.read_bytes() == content


def test_a_server_says_that_its_certificate_is_for_another_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, model = settings.Place("old.example"), settings.ModelSettings(("a",))
    root = enrolment.make_fleet(tmp_path / "fleet", settings.FleetSettings(place, model)).root
    warn_of_certificates(ServerFolder(root))
    assert not caplog.messages
    text = (root / "fleet.toml").read_text()
    assert text.count("old.example") == 1
    (root / "fleet.toml").write_text(text.replace("old.example", "new.example"))
    warn_of_certificates(ServerFolder(root))
    assert "server.crt is not for new.example" in caplog.messages[0]
    enrolment.renew_server(ServerFolder(root))
    caplog.clear()
    warn_of_certificates(ServerFolder(root))
    assert not caplog.messages


class Book:
    """A fake control interface; like Flower, it refuses a key that was used before."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.used: list[str] = []
        self.stopped = 0

    def nodes(self) -> dict[str, Any]:
        return {key: Node(self.used.index(key), name, "online", None) for key, name in self.known.items()}

    def register(self, name: str, public_key: str) -> None:
        if public_key in self.used:
            raise RefusedError(409, "in use")
        self.known[public_key] = name
        self.used.append(public_key)

    def unregister(self, node: Any) -> None:
        del self.known[self.used[node.id]]

    def stop_all(self) -> None:
        self.stopped += 1


class CountingBook(Book):
    """Counts how often it is asked for all devices."""

    looks = 0

    def nodes(self) -> dict[str, Any]:
        self.looks += 1
        return super().nodes()


def test_flower_knows_exactly_the_devices_that_may_take_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path = tmp_path / "fleet"
    model = settings.ModelSettings(("a",), rank=2, window=4)
    book: Any = Book()
    supervisor = Supervisor(enrolment.make_fleet(tmp_path, settings.FleetSettings(model=model)), book, tmp_path)
    (tmp_path / "devices.json").unlink()
    assert not supervisor.attend()
    registry.write(tmp_path / "devices.json", {})
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.add(devices, "a", "key a")
        registry.add(devices, "b", "key b")
    assert supervisor.attend()
    assert book.known == {"key a": "a", "key b": "b"}
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.revoke(devices, "a")
        registry.renew(devices, "b", "new key b")
    assert supervisor.attend()
    assert book.known == {"new key b": "b"}
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.renew(devices, "b", "key b")  # a key of the past
        registry.add(devices, "c", "key c")
    assert supervisor.attend()
    assert supervisor.attend()
    assert book.known == {"key c": "c"}
    assert sum("b: Flower refuses its key" in line for line in caplog.messages) == 1
    (tmp_path / "devices.json").write_text("{")
    assert not supervisor.attend()
    assert "restore it from a backup" in caplog.messages[-1]


def test_flower_knows_only_those_who_are_called_in_a_large_fleet(tmp_path: Path) -> None:
    model = settings.ModelSettings(("a",), rank=2, window=4)
    known = settings.FleetSettings(model=model, notice=settings.NoticeSettings(devices_per_training=3))
    folder = enrolment.make_fleet(tmp_path / "fleet", known)
    with registry.changing(folder.registry) as devices:
        for k in range(3):
            registry.add(devices, f"pump-{k}", f"key {k}")
    book: Any = CountingBook()
    book.submit, book.has_ended = lambda app, config: 1, lambda run: False
    supervisor = Supervisor(folder, book, tmp_path)
    assert supervisor.attend()
    assert set(book.known.values()) == {f"pump-{k}" for k in range(3)}, "a small fleet stays connected"
    notice = supervisor.board.last()
    assert notice is not None
    assert notice.calls("pump-0", time.time())
    with registry.changing(folder.registry) as devices:
        for k in range(3, 300):
            registry.add(devices, f"pump-{k}", f"key {k}")
    assert supervisor.attend()
    before = book.looks
    assert supervisor.attend()
    assert book.looks == before, "nobody is asked for when no training is open"
    assert len(book.known) == 3
    notice = supervisor.board.last()
    assert notice is not None
    assert notice.body.invitation is None
    requests.request_training(folder.training)
    assert supervisor.attend()
    assert supervisor.attend()
    notice = supervisor.board.last()
    assert notice is not None
    called = {name for name in registry.read(folder.registry) if notice.calls(name, time.time())}
    assert len(called) == 3
    assert called <= set(book.known.values())
    assert len(book.known) <= 6
    again = Supervisor(folder, book, tmp_path)
    assert again.attend()
    assert again.board.last() == notice, "a server that is started again calls those whom it called before"


def test_a_full_disk_does_not_end_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedkad")

    def no_room(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    tmp_path = tmp_path / "fleet"
    model = settings.ModelSettings(("a",), rank=2, window=4)
    told = settings.ReportingSettings(metrics=str(metrics := tmp_path.with_name("fedkad.prom")))
    known = settings.FleetSettings(model=model, training=settings.TrainingSettings(min_devices=1), reporting=told)
    folder = enrolment.make_fleet(tmp_path, known)
    with registry.changing(tmp_path / "devices.json") as devices:
        registry.add(devices, "a", "key a")
    book: Any = Book()
    book.submit, book.has_ended, book.log = lambda app, config: 1, lambda run: True, lambda run: "words"
    supervisor = Supervisor(folder, book, tmp_path)
    assert supervisor.attend()
    requests.request_training(tmp_path / "training")
    assert supervisor.attend()
    assert "train: run 1 started" in caplog.messages
    assert book.stopped == 2, "at the start, and before each run because an earlier one may have begun unnoticed"
    (tmp_path / "training" / "result.json").write_text('{"run": "r", "delivered": ["a"]}')
    with monkeypatch.context() as full:
        full.setattr(requests, "write_private", no_room)
        assert not supervisor.attend()
        assert not supervisor.attend()
    assert sum("No space left on device" in line for line in caplog.messages) == 1
    assert supervisor.attend()
    assert not (tmp_path / "training" / "wanted").exists()
    assert supervisor.reporter.outcomes == {"done": 1}
    assert 'fedkad_fleet_devices{state="never seen"} 1' in metrics.read_text(), "Flower did not know it yet"
    assert (tmp_path / "logs" / "app.log").read_text().endswith("Z words\n")


def test_a_server_that_cannot_renew_its_notice_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(path: Path, content: bytes, moment: int) -> None:
        raise OSError(28, "No space left on device", str(path))

    folder = enrolment.make_fleet(tmp_path / "fleet", settings.FleetSettings(model=settings.ModelSettings(("a",))))
    with registry.changing(folder.registry) as devices:
        registry.add(devices, "a", "key a")
    book: Any = Book()
    supervisor = Supervisor(folder, book, tmp_path)
    assert supervisor.attend()
    said = "is older than half its life of 24 hours and cannot be renewed"
    with monkeypatch.context() as full:
        full.setattr(noticeboard, "_write_public", no_room)
        full.setattr(supervisor.board, "clock", lambda: time.time() + 0.4 * LIFE)
        assert supervisor.attend()
        full.setattr(supervisor.board, "clock", lambda: time.time() + 0.6 * LIFE)
        assert not supervisor.attend()
        assert not supervisor.attend()
    assert caplog.text.count(said) == 1
    assert supervisor.attend()
    monkeypatch.setattr(supervisor.board, "clock", lambda: time.time() + 0.6 * LIFE)
    monkeypatch.setattr(book, "nodes", lambda: (_ for _ in ()).throw(OSError("no answer")))
    assert not supervisor.attend()
    assert caplog.text.count(said) == 2, "whatever keeps it from its work"


def test_the_end_of_a_run_counts_even_if_its_output_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings.save(tmp_path, settings.FleetSettings(model=settings.ModelSettings(("a",))))
    (tmp_path / "logs").write_text("no folder")
    book: Any = Book()
    book.has_ended, book.log = lambda run: True, lambda run: "words"
    assert AppRuns(ServerFolder(tmp_path), book, tmp_path).has_ended(3)
    assert "app.log: the output of run 3 cannot be kept" in caplog.messages[0]
