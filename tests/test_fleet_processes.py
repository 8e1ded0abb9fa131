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

from fedkad.fleet.processes import Backoff, Child, Kept, Log, kept_running, until_stopped

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


def test_a_process_comes_back_and_ends_with_the_rest(tmp_path: Path) -> None:
    said: list[str] = []
    kept = Kept("sleeper", python(SLEEPER), Log(tmp_path / "logs" / "sleeper.log"), os.environ, said.append)
    with kept_running([kept]):
        kept.tend()
        assert kept.child is not None
        first = kept.child
        assert eventually(lambda: "ready" in first.said)
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
    assert eventually(lambda: is_gone(int(child.said)))


def test_a_process_that_does_not_listen_is_ended_all_the_same(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    child = Child("deaf", python(deaf), Log(tmp_path / "log"), os.environ)
    assert eventually(lambda: "ready" in child.said)
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
    assert (log.size, log.since(0), log.since(150)) == (3, "new", "new")
    assert (tmp_path / "x.log.1").stat().st_size == 150
    assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600
