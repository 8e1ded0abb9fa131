"""Work in a process of its own: done or told why not, with nothing inherited that others wait for."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedkad.edge.process import ForkedWorkError, run_forked
from tests.fixtures.broker import wait_for


def nothing() -> None:
    pass


def test_what_is_run_forked_is_done_and_leaves_nothing_here(tmp_path: Path) -> None:
    here: list[int] = []

    def work() -> None:
        here.append(1)
        (tmp_path / "done").write_text(str(os.getpid()))

    run_forked(work, nothing)
    assert here == []
    assert int((tmp_path / "done").read_text()) != os.getpid()


def test_a_failure_is_told_in_its_own_words() -> None:
    def fail() -> None:
        raise ValueError("too few rows")

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ForkedWorkError, match="too few rows"):
        run_forked(fail, nothing)
    with pytest.raises(ForkedWorkError, match="status 9"):
        run_forked(die, nothing)


def test_the_others_are_looked_after_meanwhile(tmp_path: Path) -> None:
    """Work that takes long must cost neither the connection to a broker nor the patience of a watchdog."""
    run_forked(lambda: wait_for((tmp_path / "go on").exists), (tmp_path / "go on").touch)


def test_work_that_never_ends_is_ended() -> None:
    begun = set(os.listdir("/proc"))
    with pytest.raises(ForkedWorkError, match="too long"):
        run_forked(lambda: time.sleep(600), nothing, timeout=0.1)
    left = [Path(f"/proc/{name}/stat") for name in set(os.listdir("/proc")) - begun if name.isdigit()]
    assert not [stat for stat in left if stat.exists() and stat.read_text().split()[3] == str(os.getpid())]


def test_a_connection_is_not_inherited(tmp_path: Path) -> None:
    """Else a broker would not notice that an agent was killed while it learnt."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        number = near.fileno()

        def look() -> None:
            try:
                os.fstat(number)
            except OSError:
                (tmp_path / "closed").touch()

        run_forked(look, nothing)
        near.close()
    assert (tmp_path / "closed").exists()


@pytest.mark.slow
def test_it_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    code = f"""
import os, time
from fedkad.edge.process import run_forked
def work():
    open({str(tmp_path / "begun")!r}, "w").write(str(os.getpid()))
    time.sleep(60)
run_forked(work, lambda: None)
"""
    agent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() or not (tmp_path / "begun").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = int((tmp_path / "begun").read_text())
    agent.kill()
    agent.wait()
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
