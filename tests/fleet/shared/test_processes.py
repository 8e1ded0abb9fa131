"""Processes that are kept running: they are restarted, they end together, and their logs stay short."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from fedkad.edge.membership import FleetMember
from fedkad.fleet.flower.supernodelog import LOST, SuperNodeEvent, SuperNodeLog
from fedkad.fleet.shared.processes import Backoff, ChildProcess, LogFile, SupervisedProcess, ending_all, until_stopped

SLEEPER = "import time; print('ready', flush=True); time.sleep(60)"
WITH_OFFSPRING = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.exit(3)"


def eventually(condition: Callable[[], bool], patience: float = 120.0) -> bool:
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


def tended(supervised: SupervisedProcess) -> SupervisedProcess:
    supervised.tend()
    return supervised


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_process_is_restarted_and_ends_with_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedkad")
    log = LogFile(tmp_path / "logs" / "sleeper.log")
    supervised = SupervisedProcess("sleeper", python(SLEEPER), log, os.environ)
    with ending_all([supervised]):
        supervised.tend()
        first = supervised.child
        assert first is not None
        assert eventually(lambda: b"ready" in log.read(0))
        first.process.kill()
        assert eventually(lambda: tended(supervised).child not in (None, first))
        second = supervised.child
        assert second is not None
    assert second.process.returncode == -signal.SIGTERM
    assert [line.partition(" (")[0] for line in caplog.messages[::2]] == ["sleeper: started", "sleeper: started"]
    assert "ended with status -9, restarts in 1 s" in caplog.messages[1]


@pytest.mark.slow
def test_descendants_end_with_their_process(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    child = ChildProcess(python(WITH_OFFSPRING), log, os.environ)
    assert eventually(lambda: child.status is not None)
    assert child.status == 3
    assert eventually(lambda: is_gone(int(log.read(0).split()[-1])))


def test_descendants_have_time_to_report_before_they_end(tmp_path: Path) -> None:
    report = f"trap 'sleep 0.5; echo done > {tmp_path}/report; exit' TERM; echo ready; while :; do sleep 0.1; done"
    log = LogFile(tmp_path / "log")
    child = ChildProcess(["sh", "-c", f'sh -c "{report}" & wait'], log, os.environ)
    assert eventually(lambda: b"ready" in log.read(0))
    child.end()
    assert (tmp_path / "report").read_text() == "done\n"


@pytest.mark.slow
def test_a_process_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    log = LogFile(tmp_path / "log")
    child = ChildProcess(python(deaf), log, os.environ)
    assert eventually(lambda: b"ready" in log.read(0))
    child.end(grace=0.2)
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    keeper = (
        "import os, sys, time; from pathlib import Path; "
        "from fedkad.fleet.shared.processes import ChildProcess, LogFile;"
        f"c = ChildProcess(['sleep', '60'], LogFile(Path({str(tmp_path / 'log')!r})), os.environ);"
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
            time.sleep(60)
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
    log = LogFile(tmp_path / "x.log", largest=100)
    handle = log.open()
    os.write(handle, b"x" * 150)
    log.bound()
    os.write(handle, b"new")
    os.close(handle)
    assert (log.size, log.read(0)) == (3, b"new")
    assert (tmp_path / "x.log.1").stat().st_size == 150
    assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600


def printed(expression: str, log: LogFile) -> int | None:
    """The status of a process that has printed what this stands for."""
    child = ChildProcess([sys.executable, "-c", f"print({expression}, end='')"], log, os.environ)
    assert eventually(lambda: child.status is not None)
    return child.status


def test_a_line_that_a_process_prints_gets_a_time_unless_it_has_one(tmp_path: Path) -> None:
    log, timed = LogFile(tmp_path / "x.log", largest=100), "2026-01-01T00:00:00Z ours\n2026/01/01 00:00:00 nginx's\n"
    text = f"INFO :  Flower's\n\n{timed}"
    assert printed(f"{text!r} + 'y' * 200_000", log) == 0
    time_in_front = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (?!ours)", re.MULTILINE)
    found = time_in_front.sub("TIME ", log.read(0).decode())
    assert found.startswith(f"TIME {text}TIME yyy")
    assert found.endswith("y\n")
    assert found.count("y") == 200_000
    log.bound()
    assert log.size == 0
    assert (tmp_path / "x.log.1").exists()


def test_a_full_disk_holds_no_process_up() -> None:
    assert printed("'x' * 200_000", LogFile(Path("/dev/full"))) == 0


def test_the_log_of_a_client_that_an_agent_runs_for_months_stays_short(tmp_path: Path) -> None:
    member, running = FleetMember(tmp_path), Mock(status=None)
    member.client, member.log.largest = running, 100
    member.log.append("x" * 200)
    member.attend()
    assert (member.client, member.log.size) == (running, 0)


def test_a_log_is_cut_even_where_it_cannot_be_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", no_room)
    log = LogFile(tmp_path / "x.log", largest=100)
    log.append("x" * 150)
    log.bound()
    assert log.size == 0


def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervised = SupervisedProcess("absent", [str(tmp_path / "none")], LogFile(tmp_path / "log"), os.environ)
    supervised.tend()
    assert supervised.child is None
    assert "absent: cannot be started ([Errno 2]" in caplog.messages[0]
    assert caplog.messages[0].endswith("tries again in 1 s")


# -- the SuperNode of a device ----------------------------------------------------------------------------------


def test_events_are_counted_once_wherever_the_log_is_split(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log")
    request, reply = SuperNodeEvent.REQUEST_RECEIVED, SuperNodeEvent.REPLY_SENT
    log.append(f"{reply.value} before")
    followed = SuperNodeLog(log)
    for character in f"{request.value} {reply.value} {request.value} {reply.value[:-1]}":
        log.append(character)
        followed.read()
    followed.read()
    assert {event: count for event, count in followed.counts.items() if count} == {request: 2, reply: 1}
    os.truncate(log.path, 0)
    log.append(f"{reply.value[-1]} {reply.value}")
    followed.read()
    assert (followed.counts[request], followed.counts[reply]) == (2, 2)


def test_each_byte_of_a_log_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, sizes = LogFile(tmp_path / "x.log"), []
    read = log.read

    def counted(start: int) -> bytes:
        found = read(start)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(log, "read", counted)
    followed = SuperNodeLog(log)
    log.append("x" * 1000)
    for _ in range(3):
        followed.read()
    assert sizes == [1000, 0, 0]


LEFT_ALONE = """
import os, signal, sys, threading, types
class Refusal(Exception):
    response = types.SimpleNamespace(status_code=401)
def refused():
    raise Refusal
def flower_supernode():
    threading.Thread(target=threading.Event().wait).start()
    {ending}
cli = types.ModuleType("flwr.supernode.cli")
cli.flower_supernode = flower_supernode
reception = types.ModuleType("fedkad.fleet.flower.reception")
reception.stay_in_step = lambda mark: None
sys.modules |= {{"flwr": types.ModuleType("flwr"), "flwr.supernode": types.ModuleType("x"), "flwr.supernode.cli": cli}}
sys.modules["fedkad.fleet.flower.reception"] = reception
from fedkad.fleet.flower import supernode
from fedkad.fleet.shared.processes import end_with_parent
def launch_beside(address):
    prepare, launcher = end_with_parent(os.getpid(), signal.SIGKILL), os.fork()
    if not launcher:
        prepare()
        signal.pause()
    return launcher
supernode.launch_beside = launch_beside
sys.argv += ["--host", "127.0.0.1", "--port", "1", "--node-config", "node.toml"]
supernode.main()
"""
"""A fake Flower that leaves its process as the real one does: a thread never ends, the main function does."""

DEAD_THREAD = "threading.Thread(target=lambda: 1 / 0).start(); threading.Event().wait()"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["return", "raise RuntimeError('what happened')", DEAD_THREAD])
def test_a_supernode_ends_with_its_connection(ending: str) -> None:
    done = subprocess.run(python(LEFT_ALONE.format(ending=ending)), capture_output=True, text=True, timeout=300)
    assert done.returncode == LOST == 70
    assert ("Error" in done.stderr) == (ending != "return")


@pytest.mark.slow
def test_a_refused_signature_is_left_to_flower() -> None:
    """It ends the process itself, with another status, and its heartbeat dies on the way."""
    ending = "beat = threading.Thread(target=refused); beat.start(); beat.join(); os._exit(5)"
    done = subprocess.run(python(LEFT_ALONE.format(ending=ending)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 5, done.stderr
    assert "Refusal" in done.stderr


@pytest.mark.slow
def test_a_second_refusal_while_flower_ends_does_not_keep_it_alive() -> None:
    """Heartbeat and request are refused, each sends SIGINT, and the second interrupts how Flower handles the first."""
    heeding = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's background job ignores it
    ending = f"{heeding}; os.kill(os.getpid(), signal.SIGINT); threading.Event().wait()"
    done = subprocess.run(python(LEFT_ALONE.format(ending=ending)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
