"""Alerts on their way out: many of them, once each, and past a sink that takes nothing."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fedkad.edge.agent import Agent
from fedkad.edge.alert import Alert
from fedkad.edge.settings.file import load
from fedkad.edge.sources.topics import Topics
from fedkad.edge.store import Store
from tests.fixtures.alerts import an_alert
from tests.fixtures.broker import Process, broken, config, sample, saved_model, series, wait_for
from tests.fixtures.receiver import receiving


def alert(number: int) -> Alert:
    return an_alert(f"pump-{number}")


def quick(tmp_path: Path, **more: Any) -> str:
    return config({"kind": "stdin"}, learning={"model": str(saved_model(tmp_path)), "every": 0}, **more)


def left(tmp_path: Path) -> int:
    store = Store(tmp_path / "state" / "agent.sqlite")
    try:
        return len(store.alerts.waiting("stdout", 999))
    finally:
        store.close()


@pytest.mark.parametrize("commit_every", [0.1, 600])
def test_many_that_have_waited_go_out_one_after_the_other(tmp_path: Path, commit_every: float) -> None:
    (tmp_path / "state").mkdir()
    store = Store(tmp_path / "state" / "agent.sqlite")
    for number in range(170):
        store.alerts.put(["stdout"], alert(number))
    store.commit()
    store.close()
    with Process(tmp_path, quick(tmp_path, top={"commit_every": commit_every}), piped=True) as agent:
        wait_for(lambda: len(agent.alerts()) >= 170, "they do not go on")
        wait_for(lambda: left(tmp_path) == 0, "they were taken and are kept")
        assert [each["id"] for each in agent.alerts()] == [f"pump-{number}" for number in range(170)]
        assert agent.end_of_input() == 0


def test_what_was_taken_does_not_come_again_after_a_kill(tmp_path: Path) -> None:
    rows = broken(series(100), 20, 26)
    with Process(tmp_path, quick(tmp_path, top={"commit_every": 600}), piped=True) as agent:
        agent.feed(*(sample(rows, k) for k in range(80)))
        wait_for(lambda: len(agent.alerts()) == 2, "no incident began and ended")
        wait_for(lambda: left(tmp_path) == 0, "that it was taken is not known")
        agent.kill()
        agent.start()
        agent.feed(*(sample(rows, k) for k in range(80, 100)))
        assert agent.end_of_input() == 0
        assert len(agent.alerts()) == 2


@pytest.mark.slow
@pytest.mark.slow
def test_an_output_that_is_full_stops_nothing_and_loses_no_alert(tmp_path: Path) -> None:
    rows = broken(series(60), 20, 26)
    (tmp_path / "agent.toml").write_text(quick(tmp_path))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [Path(sys.executable).parent / "fedkad-agent", tmp_path / "agent.toml"],
            input="".join(f"{sample(rows, k)}\n" for k in range(60)),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert "Standard output accepts nothing (No space left on device)" in done.stderr
    assert len(done.stderr.splitlines()) <= 8
    assert left(tmp_path) == 2


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_agent(tmp_path: Path) -> None:
    rows = series(60)
    (tmp_path / "agent.toml").write_text(quick(tmp_path))
    lines = "".join(f"{sample(rows, k)}\n" for k in range(60))
    command = f"{Path(sys.executable).parent / 'fedkad-agent'} {tmp_path / 'agent.toml'} | head -n 1"
    done = subprocess.run(command, shell=True, input=lines, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr


def test_shared_subscriptions_are_understood() -> None:
    topics = Topics(["$share/pair/plant/{device}"], ["p"])
    assert topics.filters == ["$share/pair/plant/p"]
    assert topics.place("plant/p") == ("p", None)


def test_what_is_taken_at_the_very_end_does_not_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.edge.agent.FINAL_DELIVERY", 0.0)
    (tmp_path / "state").mkdir()
    store = Store(tmp_path / "state" / "agent.sqlite")
    store.alerts.put(["webhook"], alert(1))
    store.commit()
    (tmp_path / "in.jsonl").touch()
    with receiving() as receiver:
        receiver.may_answer.clear()
        (tmp_path / "agent.toml").write_text(
            config(
                {"kind": "file", "path": "in.jsonl"},
                learning={"model": str(saved_model(tmp_path)), "every": 0},
                webhook={"url": receiver.url},
            )
        )
        agent = Agent(load(tmp_path / "agent.toml"))
        agent.step(0.0)
        wait_for(lambda: receiver.requests, "nothing was posted")
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        agent.run()
        assert len(store.alerts.waiting("webhook", 9)) == 1
        receiver.may_answer.set()
        agent.close()
    assert store.alerts.waiting("webhook", 9) == []
    store.close()
