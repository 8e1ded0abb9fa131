"""Processes that are kept running: they come back, they end together, and their files stay short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedkad.fleet.processes import Backoff, Child, Kept, Log, Tally, kept_running, until_stopped

SLEEPER = "import time; print('ready', flush=True); time.sleep(60)"
WITH_OFFSPRING = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.exit(3)"


def eventually(condition: Callable[[], bool], patience: float = 10.0) -> bool:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def is_gone(process: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def tended(kept: Kept) -> Kept:
    kept.tend()
    return kept


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def said_by(child: Child) -> str:
    return child.log.read(child.log_start).decode()


def test_a_process_comes_back_and_ends_with_the_rest(tmp_path: Path) -> None:
    said: list[str] = []
    kept = Kept("sleeper", python(SLEEPER), Log(tmp_path / "logs" / "sleeper.log"), os.environ, said.append)
    with kept_running([kept]):
        kept.tend()
        assert kept.child is not None
        first = kept.child
        assert eventually(lambda: "ready" in said_by(first))
        first.process.kill()
        assert eventually(lambda: tended(kept).child not in (None, first))
        second = kept.child
        assert second is not None
    assert second.process.returncode == -signal.SIGTERM
    assert [line.partition(" (")[0] for line in said[::2]] == ["sleeper: started", "sleeper: started"]
    assert "ended with status -9, starts again in 1 s" in said[1]


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    child = Child("parent", python(WITH_OFFSPRING), Log(tmp_path / "log"), os.environ)
    assert eventually(lambda: child.status is not None)
    assert child.status == 3
    assert eventually(lambda: is_gone(int(said_by(child))))


def test_a_process_that_does_not_listen_is_ended_all_the_same(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    child = Child("deaf", python(deaf), Log(tmp_path / "log"), os.environ)
    assert eventually(lambda: "ready" in said_by(child))
    child.end(grace=0.2)
    assert child.process.returncode == -signal.SIGKILL


def test_children_end_with_a_keeper_that_is_killed(tmp_path: Path) -> None:
    keeper = (
        "import os, sys, time; from pathlib import Path; from fedkad.fleet.processes import Child, Log;"
        f"c = Child('x', ['sleep', '60'], Log(Path({str(tmp_path / 'log')!r})), os.environ);"
        "print(c.process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(python(keeper), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert not is_gone(child)
        process.kill()
    assert eventually(lambda: is_gone(child))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_what_waits_and_leaves_the_rest(number: signal.Signals) -> None:
    before, steps = signal.getsignal(number), []
    with until_stopped():
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), number)  # one more, while tidying up
            steps.append("tidied")
        steps.append("never")
    assert steps == ["tidied"]
    assert signal.getsignal(number) == before


def test_waits_grow_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    wait = Backoff()
    assert wait.over
    assert [wait.lengthen() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert not wait.over
    now[0] = 61.0
    assert wait.over
    wait.clear()
    wait.pause(30.0)
    assert not wait.over
    assert wait.lengthen() == 1.0


def test_a_log_stays_short_while_it_is_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "x.log", largest=100)
    handle = log.open()
    os.write(handle, b"x" * 150)
    log.bound()
    os.write(handle, b"new")
    os.close(handle)
    assert (log.size, log.read(0)) == (3, b"new")
    assert (tmp_path / "x.log.1").stat().st_size == 150
    assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600


def test_a_log_is_cut_even_where_it_cannot_be_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", no_room)
    log = Log(tmp_path / "x.log", largest=100)
    log.append("x" * 150)
    log.bound()
    assert log.size == 0


def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    kept = Kept("nobody", [str(tmp_path / "none")], Log(tmp_path / "log"), os.environ, said.append)
    kept.tend()
    assert kept.child is None
    assert "nobody: cannot be started ([Errno 2]" in said[0]
    assert said[0].endswith("tried again in 1 s")


def test_words_are_counted_once_wherever_they_are_cut(tmp_path: Path) -> None:
    log = Log(tmp_path / "x.log")
    log.append("Sent before")
    tally = Tally(log, log.size, ("Sent", "Receiving:"))
    for character in "Receiving: Sent Receiving: Sen":
        log.append(character)
        tally.listen()
    tally.listen()
    assert tally.counts == {"Sent": 1, "Receiving:": 2}
    os.truncate(log.path, 0)
    log.append("t Sent")
    tally.listen()
    assert tally.counts == {"Sent": 2, "Receiving:": 2}
    assert tally.heard == {"Sent", "Receiving:"}


def test_what_was_heard_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, sizes = Log(tmp_path / "x.log"), []
    read = log.read

    def counted(start: int) -> bytes:
        found = read(start)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(log, "read", counted)
    log.append("x" * 1000)
    tally = Tally(log, 0, ("word",))
    for _ in range(3):
        tally.listen()
    assert sizes == [1000, 0, 0]


LEFT_ALONE = """
import os, sys, threading, types
class Refusal(Exception):
    response = types.SimpleNamespace(status_code=401)
def refused():
    raise Refusal
def flower_supernode():
    threading.Thread(target=threading.Event().wait).start()
    {ending}
cli = types.ModuleType("flwr.supernode.cli")
cli.flower_supernode = flower_supernode
sys.modules |= {{"flwr": types.ModuleType("flwr"), "flwr.supernode": types.ModuleType("x"), "flwr.supernode.cli": cli}}
from fedkad.fleet import supernode
supernode.main()
"""
"""Flower as it leaves its process: a thread that never ends, and a main function that does."""

DEAD_THREAD = "threading.Thread(target=lambda: 1 / 0).start(); threading.Event().wait()"


@pytest.mark.parametrize("ending", ["return", "raise RuntimeError('what happened')", DEAD_THREAD])
def test_a_supernode_ends_with_its_connection(ending: str) -> None:
    from fedkad.fleet.supernode import LOST

    done = subprocess.run(python(LEFT_ALONE.format(ending=ending)), capture_output=True, text=True, timeout=20)
    assert done.returncode == LOST == 70
    assert ("Error" in done.stderr) == (ending != "return")


def test_a_refused_signature_is_left_to_flower() -> None:
    """It ends the process itself, with another status, and its heartbeat dies on the way."""
    ending = "beat = threading.Thread(target=refused); beat.start(); beat.join(); os._exit(5)"
    done = subprocess.run(python(LEFT_ALONE.format(ending=ending)), capture_output=True, text=True, timeout=20)
    assert done.returncode == 5, done.stderr
    assert "Refusal" in done.stderr
