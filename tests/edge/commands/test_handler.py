"""A device does what an operator tells, once, even if it is killed between any two steps of it."""

import json
import mmap
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.series import Series
from fedkad.edge.alert import Alert, from_json
from fedkad.edge.commands.command import Command
from fedkad.edge.commands.inbox import Inbox
from fedkad.edge.device.pipeline import Device
from fedkad.edge.settings import Alarm, DeviceSettings, Learning, Sampling
from fedkad.edge.sources.payload import Sample
from fedkad.edge.store import Store, database
from fedkad.edge.store import commands as command_table
from fedkad.edge.store import rows as row_table
from fedkad.edge.subcommands.history import incident_table
from tests.fixtures.alerts import as_json
from tests.fixtures.broker import logged

CHANNELS = ("flow", "pressure", "current")
BEGIN = 1_700_000_000.0
Array = NDArray[np.float64]


def series(rows: int, seed: int = 1) -> Array:
    t = np.arange(rows)[:, None]
    noise = 0.05 * np.random.default_rng(seed).normal(size=(rows, len(CHANNELS)))
    values: Array = np.sin(t / np.array([5.0, 8.0, 11.0])) + noise
    return values


def settings(folder: Path, **alarm: Any) -> DeviceSettings:
    return DeviceSettings(
        Sampling(channels=CHANNELS, period=1.0, max_gap=3.0, stale_after=10.0, zone="UTC"),
        replace(Alarm(clear_after=5.0, cool_down=0.0, rate_limit=0.0), **alarm),
        Learning(model=str(folder / "model.fedkad"), folder=str(folder / "pump"), every=0, first=300),
    )


class Post:
    """A device with its store, inbox and outbox, as the agent has them."""

    def __init__(self, folder: Path, **alarm: Any) -> None:
        self.folder, self.store = folder, Store(folder / "agent.sqlite")
        self.device = Device("pump", settings(folder, **alarm), self.store)
        self.inbox = Inbox(self.store, {"pump": self.device})
        self.now = self.device._number
        self.alerts: list[dict[str, Any]] = []

    def feed(self, rows: Array) -> list[dict[str, Any]]:
        found: list[Alert] = []
        for row in rows:
            moment = BEGIN + self.now
            values = dict(zip(CHANNELS, map(float, row), strict=True))
            found += self.device.take(Sample("pump", moment, values), moment)
            self.now += 1
        self._put(found)
        self.commit()
        return as_json(found)

    def _put(self, alerts: list[Alert]) -> None:
        self.alerts += as_json(alerts)
        for alert in alerts:
            self.store.alerts.put(["log"], alert)

    def commit(self) -> None:
        self.device.save()
        self.store.commit()

    def send(self, verb: str, argument: str = "", identity: str = "1") -> None:
        command = Command(identity, "pump", verb, argument, "anna", BEGIN + self.now)
        self.store.commands.put(command, published=True)
        self.store.commit()
        self.inbox.look_again()

    def carry_out(self) -> None:
        """What the agent does with every command that waits."""
        for command in self.inbox.waiting():
            self.commit()
            self._put(self.inbox.carry_out(command, lambda: None))
            self.commit()

    def tell(self, verb: str, argument: str = "", identity: str = "") -> tuple[bool, str]:
        identity = identity or f"{verb}-{time.monotonic_ns()}"
        self.send(verb, argument, identity)
        self.carry_out()
        return self.reply(identity)

    def reply(self, identity: str) -> tuple[bool, str]:
        found = self.store.read("SELECT accepted, reply FROM command WHERE id = ?", identity)
        return bool(found[0][0]), found[0][1]

    def close(self) -> None:
        self.store.close()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.fedkad"
    train = Series(series(3000, 0), CHANNELS)
    KoopmanDetector(window=6, rank=5, observables=16, sample_period=1.0).fit(train).save(path)
    return path


@pytest.fixture
def post(tmp_path: Path, fitted: Path) -> Iterator[Post]:
    shutil.copy(fitted, tmp_path)
    with logged():
        made = Post(tmp_path)
        yield made
        made.close()


SHIFT = np.array([0.0, 3.0, 0.0])


def reason_of(post: Post, identity: str) -> str:
    kept = post.store.alerts.incident("pump", identity)
    return "" if kept is None else kept.reason


def trouble(post: Post) -> dict[str, Any]:
    """Let an incident begin that goes on."""
    live = series(400)
    post.feed(live[:100])
    post.feed(live[100:140] + SHIFT)
    incident = post.device.status().incident
    assert incident is not None
    return incident.to_json()


def same_again(post: Post) -> list[dict[str, Any]]:
    """An hour later, the same rows as those of the trouble, with those before it."""
    post.now += 3600
    live = series(400)
    return post.feed(np.concatenate([live[:100], live[100:140] + SHIFT]))


def memory(folder: Path) -> Any:
    return KoopmanDetector.load(folder / "pump" / "model.safetensors").memory_


# -- what each command does -----------------------------------------------------------------------------------------


def test_what_was_normal_is_learnt_as_confirmed_and_no_alarm_again(post: Post) -> None:
    incident = trouble(post)
    known = memory(post.folder)
    accepted, reply = post.tell("normal")
    assert accepted, reply
    assert "learned as normal" in reply
    end = post.alerts[-1]
    assert (end["event"], end["reason"], end["id"]) == ("end", "normal", incident["id"])
    assert "said to be normal" in end["text"]
    assert post.device.status().incident is None
    learnt = memory(post.folder)
    assert len(learnt.ranges.lengths) == len(known.ranges.lengths) + 1
    assert learnt.statistics.count > known.statistics.count
    assert same_again(post) == []
    # Something else is still told.
    assert [alert["event"] for alert in post.feed(series(400)[140:160] + 8.0)][:1] == ["start"]


def test_an_incident_of_long_ago_can_still_be_called_normal(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.edge.device.learning.KEPT_ROWS", 150)
    monkeypatch.setattr("fedkad.edge.device.learning.FORGET_EVERY", 10)
    incident = trouble(post)
    post.feed(series(900)[140:])
    assert len(post.store.rows.last("pump", 9999, 3)) < 200
    accepted, reply = post.tell("normal", incident["id"])
    assert accepted, reply
    assert memory(post.folder).ranges.lengths.tolist()[-1] >= 40
    assert post.store.alerts.incident("pump", incident["id"]).reason == "normal"  # type: ignore[union-attr]
    assert same_again(post) == []


def test_a_time_can_be_called_normal(post: Post) -> None:
    trouble(post)
    start, end = (f"2023-11-14T22:{minute}" for minute in ("15:00", "15:40"))  # 100 to 140 s after BEGIN
    accepted, reply = post.tell("normal", f"{start}/{end}")
    assert accepted, reply
    assert post.device.status().incident is None
    assert post.tell("normal", "2020-01-01T00:00/2020-01-02T00:00") == (
        False,
        "No row of pump from 2020-01-01T00:00:00.000Z to 2020-01-02T00:00:00.000Z is kept; "
        "name a later time or incident.",
    )


def test_what_was_called_normal_can_be_taken_back_once(post: Post) -> None:
    trouble(post)
    before = (post.folder / "pump" / "model.safetensors").read_bytes()
    assert post.tell("undo")[0] is False
    assert post.tell("normal")[0]
    assert (post.folder / "pump" / "model.safetensors").read_bytes() != before
    assert post.tell("undo")[0]
    assert (post.folder / "pump" / "model.safetensors").read_bytes() == before
    accepted, reply = post.tell("undo")
    assert not accepted
    assert "only the last normal can be taken back" in reply
    assert [alert["reason"] for alert in same_again(post)][:1] == ["again"]


@pytest.mark.parametrize(("channels", "sentence"), [(("flow",), "has learned other channels"), ((), "damaged")])
def test_the_model_in_use_stays_where_the_earlier_one_cannot_be_used(
    post: Post, channels: tuple[str, ...], sentence: str
) -> None:
    trouble(post)
    assert post.tell("normal")[0]
    earlier = post.folder / "pump" / "previous.safetensors"
    earlier.write_bytes(b"no model")
    if channels:  # those of the device were changed since
        detector = KoopmanDetector(window=6, rank=5, observables=16)
        detector.fit(Series(series(700)[:, : len(channels)], channels)).save(earlier)
    before = (post.folder / "pump" / "model.safetensors").read_bytes()
    accepted, reply = post.tell("undo")
    assert (accepted, sentence in reply) == (False, True), reply
    assert (post.folder / "pump" / "model.safetensors").read_bytes() == before


def test_the_history_of_an_incident_is_as_before_once_its_normal_is_taken_back(post: Post) -> None:
    incident = trouble(post)
    post.feed(series(400)[140:200])
    assert post.tell("acknowledge")[0]
    before = post.store.alerts.incident("pump", incident["id"])
    assert before is not None
    assert post.tell("normal")[0]
    called = post.store.alerts.incident("pump", incident["id"])
    assert called is not None
    assert (called.reason, called.acknowledged) == ("normal", None)
    assert "said to be normal" in called.text
    post.close()
    again = Post(post.folder)
    assert again.tell("undo")[0]
    assert again.store.alerts.incident("pump", incident["id"]) == before
    # What was learned last is a time without an incident: nothing in the history is about it.
    assert again.tell("normal")[0]
    assert again.tell("normal", "2023-11-14T22:13:30/2023-11-14T22:14:00")[0]
    assert again.tell("undo")[0]
    assert again.store.alerts.incident("pump", incident["id"]) == called
    again.close()


@pytest.mark.parametrize("is_over", [False, True])
def test_what_came_after_an_incident_is_learned_although_its_normal_is_taken_back(post: Post, is_over: bool) -> None:
    trouble(post)
    post.feed(series(400)[140:300] if is_over else series(400)[140:300] + SHIFT)
    assert post.tell("normal")[0]
    later = post.now - 100
    assert post.store.rows.count_to_learn("pump", later, post.now) == (100 if is_over else 0)
    post.feed(series(400)[300:])
    before = post.store.rows.count_to_learn("pump", later, post.now)
    assert post.tell("undo")[0]
    assert post.store.rows.count_to_learn("pump", later, post.now) == (before if is_over else 0)


def test_an_open_incident_whose_normal_is_taken_back_has_ended_all_the_same(post: Post) -> None:
    incident = trouble(post)
    assert post.tell("normal")[0]
    assert post.tell("undo")[0]
    kept = post.store.alerts.incident("pump", incident["id"])
    assert kept is not None
    assert (kept.event, kept.reason) == ("end", "undone")
    assert "undone" in incident_table([kept])


def test_a_muted_device_begins_no_incident_and_learns_nothing(post: Post) -> None:
    incident = trouble(post)
    assert post.tell("mute", "100s")[0]
    end = post.alerts[-1]
    assert (end["event"], end["reason"], end["id"]) == ("end", "muted", incident["id"])
    live = series(400)
    assert post.feed(live[140:230] + SHIFT) == []
    assert post.device.status().state == "muted"
    _, rows = post.store.rows.to_learn("pump", 3, 140)
    assert np.isnan(rows).all()
    alerts = post.feed(live[230:260] + SHIFT)  # it is over after 100 s, and what is wrong then is news
    assert [alert["event"] for alert in alerts] == ["start"]
    assert alerts[0]["start"] == "2023-11-14T22:17:20.000Z"


def test_mute_ends_when_it_is_told_to(post: Post) -> None:
    trouble(post)
    assert post.tell("mute", "1h")[0]
    assert post.feed(series(400)[140:160] + SHIFT) == []
    assert post.tell("mute", "0")[0]
    assert [alert["event"] for alert in post.feed(series(400)[160:180] + SHIFT)] == ["start"]


def test_mute_survives_a_restart(post: Post) -> None:
    trouble(post)
    post.tell("mute", "1h")
    post.close()
    again = Post(post.folder)
    assert again.feed(series(400)[140:160] + SHIFT) == []
    again.close()


def test_an_acknowledged_incident_is_told_once_more_and_not_again(tmp_path: Path, fitted: Path) -> None:
    shutil.copy(fitted, tmp_path)
    post = Post(tmp_path, update_every=10.0)
    incident = trouble(post)
    assert post.tell("acknowledge", incident["id"]) == (True, f"The incident {incident['id']} is acknowledged.")
    told = post.alerts[-1]
    assert (told["event"], told["reason"], told["acknowledged"]) == ("update", "acknowledged", "anna")
    assert "acknowledged by anna" in told["text"]
    assert post.feed(series(400)[140:200] + SHIFT) == []
    post.close()
    post = Post(tmp_path, update_every=10.0)
    assert post.feed(series(400)[200:260] + SHIFT) == []
    (end,) = post.feed(series(600)[260:560])  # as long as it lasted, since it was far outside
    assert (end["event"], end["reason"], end["acknowledged"]) == ("end", "cleared", "anna")
    assert post.store.alerts.incident("pump").acknowledged == "anna"  # type: ignore[union-attr]
    post.close()


def test_an_incident_that_is_over_can_be_acknowledged(post: Post) -> None:
    incident = trouble(post)
    post.feed(series(400)[140:200])
    sent = len(post.alerts)
    assert post.tell("acknowledge")[0]
    assert len(post.alerts) == sent
    kept = post.store.alerts.incident("pump", incident["id"])
    assert kept is not None
    assert (kept.acknowledged, kept.event, kept.reason) == ("anna", "end", "cleared")
    assert post.tell("acknowledge", "pump-0") == (
        False,
        "pump has no incident 'pump-0'; see fedkad-agent incidents.",
    )


def test_a_device_learns_anew_from_new_rows(post: Post) -> None:
    trouble(post)
    before = (post.folder / "pump" / "model.safetensors").read_bytes()
    accepted, reply = post.tell("relearn")
    assert (accepted, reply) == (True, "pump learns anew, from the next 300 normal rows.")
    assert (post.alerts[-1]["event"], post.alerts[-1]["reason"]) == ("end", "relearn")
    assert (post.folder / "pump" / "model.safetensors.old-1").read_bytes() == before
    assert post.device.status().state == "learning"
    post.close()
    again = Post(post.folder)  # the configured model must not come back
    assert again.device.status().state == "learning"
    assert again.device.status().progress == {"have": 0, "need": 300, "seconds": 300.0}
    again.feed(series(700)[400:] + SHIFT)
    assert again.device.is_learning_due
    again.device.learn()
    again.commit()
    assert again.device.status().state != "learning"
    assert again.feed(series(800)[700:] + SHIFT) == []
    again.close()
    last = Post(post.folder)
    assert last.device.status().state == "waiting"
    last.close()


def test_what_is_normal_while_the_file_of_the_model_is_gone_is_learned_anew(post: Post) -> None:
    incident = trouble(post)
    (post.folder / "pump" / "model.safetensors").unlink()
    reply = "The file of its model is gone: pump learns anew, from the next 300 normal rows."
    assert post.tell("normal") == (True, reply)
    assert (post.alerts[-1]["event"], post.alerts[-1]["id"]) == ("end", incident["id"])
    assert post.device.status().state == "learning"
    post.feed(series(800)[400:] + SHIFT)
    post.device.learn()
    assert post.device.status().state != "learning"


def test_what_was_normal_before_the_file_of_the_model_was_gone_is_refused_with_what_to_do(post: Post) -> None:
    trouble(post)
    post.feed(series(400)[140:200])
    (post.folder / "pump" / "model.safetensors").unlink()
    refused = (False, "The file of the model of pump is gone; put it back, or tell relearn.")
    assert post.tell("normal") == refused
    assert post.device.status().state == "ok"  # it goes on to be judged by the model in memory


def test_without_the_file_of_the_model_only_what_is_open_is_learned_anew(post: Post) -> None:
    earlier = trouble(post)["id"]
    post.feed(series(400)[140:200])
    opened = trouble(post)["id"]
    (post.folder / "pump" / "model.safetensors").unlink()
    for other in (earlier, "2023-11-14T22:15:00/2023-11-14T22:15:40"):
        refused = (False, "The file of the model of pump is gone; put it back, or tell relearn.")
        assert post.tell("normal", other) == refused
        assert (post.device.status().state, post.device.status().incident.id) == ("ok", opened)  # type: ignore[union-attr]


def test_alarms_are_provisional_again_after_relearn_and_a_kill_right_after_the_fit(post: Post) -> None:
    assert trouble(post)["provisional"] is False  # the model was given
    assert post.tell("relearn")[0]
    post.feed(series(400)[100:])
    post.device.learn()  # and nothing is committed any more
    post.close()
    again = Post(post.folder)
    again.feed(series(60))
    (start, *_) = again.feed(series(80)[60:] + SHIFT)
    assert (start["event"], start["provisional"]) == ("start", True)
    assert start["text"].startswith("pump (provisional): ")
    again.close()


def test_a_budget_holds_until_it_is_told_otherwise(post: Post) -> None:
    post.feed(series(100))
    own = post.device.status().threshold
    assert post.device.status().budget is None
    assert post.tell("budget", "1/hour") == (True, "pump has a budget of 1/hour.")
    post.feed(series(120)[100:])
    told = post.device.status()
    assert told.budget is not None
    assert told.budget["allowed"] == "1/hour"
    assert told.threshold != own
    post.close()
    again = Post(post.folder)
    again.feed(series(140)[120:])
    assert again.device.status().threshold == pytest.approx(told.threshold, rel=0.01)  # it sinks while nothing happens
    assert again.tell("budget", "default")[0]
    again.feed(series(160)[140:])
    assert (again.device.status().budget, again.device.status().threshold) == (None, own)
    again.close()


def test_what_cannot_be_done_is_answered(tmp_path: Path) -> None:
    with logged() as lines:
        (tmp_path / "model.fedkad").write_bytes(b"")
        post = Post.__new__(Post)
        post.folder, post.store = tmp_path, Store(tmp_path / "agent.sqlite")
        given = settings(tmp_path)
        post.device = Device("pump", replace(given, learning=replace(given.learning, model="")), post.store)
        post.inbox, post.now, post.alerts = Inbox(post.store, {"pump": post.device}), 0, []
        assert post.tell("normal") == (False, "pump has no incident yet; see fedkad-agent incidents.")
        assert post.tell("normal", "2026-03-01T08:00/2026-03-01T09:00") == (
            False,
            "pump has no model yet, and takes all rows that come for normal.",
        )
        assert post.tell("dance")[0] is False
        assert any("'anna' told 'dance', which is refused" in line for line in lines)
        post.inbox.receive("pump", json.dumps({"verb": 300 * "x", "from": "root\nfedkad-agent: fake"}).encode())
        post.commit()
        post.inbox.committed()
        post.carry_out()
        assert lines[-1].startswith("pump: 'root\\nfedkad-agent: fake' told 'xxx")
        assert len(lines[-1]) < 300
        post.inbox.receive("pump", b"{mute")
        assert "pump: a message that is not a command was refused: A command must be JSON" in lines[-1]
        post.close()


def test_a_command_that_comes_twice_acts_once(post: Post) -> None:
    trouble(post)
    for _ in range(3):
        post.tell("normal", identity="same")
    assert len(memory(post.folder).ranges.lengths) == 1
    assert [alert["event"] for alert in post.alerts] == ["start", "end"]
    assert len(post.store.read("SELECT * FROM command")) == 1


def test_what_a_process_of_a_killed_agent_still_writes_is_not_learnt_again(post: Post) -> None:
    trouble(post)
    rows = np.array(post.store.rows.between("pump", BEGIN + 90, BEGIN + 139, 3))
    model = post.device.parts.model
    model.folder.confirm(rows, "mark")  # after this agent has read the model
    assert model.current is not None
    assert model.current.confirmation == ""
    post.device.parts.learner.confirm(rows, "mark")
    assert model.current.confirmation == "mark"
    assert len(memory(post.folder).ranges.lengths) == 1


def test_old_commands_are_forgotten_but_none_that_waits(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_table, "MAX_COMMANDS", 3)
    post.send("mute", "1h", "waits")
    for number in range(6):
        command = Command(str(number), "pump", "mute", "0", "", 0.0)
        post.store.commands.put(command, published=True)
        post.store.commands.answer(command, "done", accepted=True)
    post.store.commit()
    assert [name for (name,) in post.store.read("SELECT id FROM command ORDER BY number")] == ["waits", "3", "4", "5"]


def test_rows_of_few_incidents_are_kept_and_of_each_only_so_many(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_table, "MAX_EVIDENCE", 12)
    monkeypatch.setattr(row_table, "MAX_PROVEN", 2)
    live = series(1000)
    for start in range(100, 900, 100):
        post.feed(live[start : start + 60])
        post.feed(live[start + 60 : start + 100] + SHIFT)
    post.feed(live[900:])
    kept = dict(post.store.read("SELECT incident, count(*) FROM evidence GROUP BY incident"))
    last = [post.alerts[k]["id"] for k in range(len(post.alerts)) if post.alerts[k]["event"] == "start"][-2:]
    assert list(kept) == last
    assert max(kept.values()) == 12


# -- replies over a broker ------------------------------------------------------------------------------------------


class Told:
    """A broker that confirms what was published when the test says so."""

    def __init__(self, post: Post) -> None:
        self._post, self.replies, self._waiting = post, list[dict[str, Any]](), list[Callable[[], None]]()

    def hear(self, *payloads: str) -> None:
        """Let messages come together, and the agent commit, obey and reply."""
        for payload in payloads:
            self._post.inbox.receive("pump", payload.encode())
        self.commit()
        self._post.carry_out()
        self.commit()
        self.publish()

    def commit(self) -> None:
        self._post.commit()
        self._post.inbox.committed()

    def publish(self) -> None:
        self._post.inbox.publish_replies(self._take)

    def _take(self, device: str, told: Any, confirm: Callable[[], None]) -> bool:
        self.replies.append(told)
        self._waiting.append(confirm)
        return True

    def confirm(self) -> None:
        for confirm in self._waiting:
            confirm()
        self._waiting.clear()


def mute(argument: str, identity: str = "7") -> str:
    return json.dumps({"id": identity, "verb": "mute", "argument": argument, "from": "anna"})


@pytest.mark.parametrize("together", [True, False])
def test_another_command_with_an_id_that_was_used_is_refused(post: Post, together: bool) -> None:
    told = Told(post)
    for payloads in [[mute("0"), mute("5h")]] if together else [[mute("0")], [mute("5h")]]:
        told.hear(*payloads)
        told.confirm()
        told.publish()
    accepted, refused = told.replies
    assert (accepted["id"], accepted["argument"], accepted["accepted"]) == ("7", "0", True)
    assert refused == {
        "id": "7",
        "verb": "mute",
        "argument": "5h",
        "from": "anna",
        "accepted": False,
        "reply": "The id '7' was used for 'mute 0' before; use another id.",
    }
    assert post.device.status().muted is None
    told.commit()
    told.hear(mute("0"))  # a repetition is answered again, also when it was refused
    told.hear(mute("5h"))
    assert told.replies[2:] == [accepted, refused]
    told.hear(mute("5h", "8"))
    assert told.replies[-1]["accepted"]
    assert post.device.status().muted is not None


def test_a_command_that_comes_again_with_the_confirmation_of_its_reply_is_answered_again(post: Post) -> None:
    told = Told(post)
    told.hear(mute("0"))
    told.confirm()
    told.hear(mute("0"))
    assert [reply["id"] for reply in told.replies] == ["7", "7"]


def test_a_reply_that_was_confirmed_is_not_published_again_with_the_next(post: Post) -> None:
    told = Told(post)
    for number in range(20):
        told.confirm()  # those of before, while the next ones come
        told.hear("{", mute("soon", f"bad-{number}"))
        told.publish()
    assert len(told.replies) == 40
    assert len({reply["id"] for reply in told.replies}) == 40
    told.confirm()
    told.publish()
    told.commit()
    assert post.store.commands.replies() == []


# -- kills ----------------------------------------------------------------------------------------------------------


def tripped(left: mmap.mmap, agent: int) -> Callable[[], None]:
    """What is called at every step: at the n-th it kills the agent, also from the process that learns."""

    def step() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(agent, signal.SIGKILL)
            time.sleep(60)

    return step


def lay_wires(step: Callable[[], None]) -> None:
    """Before and after everything that reaches the disk."""

    def wired(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            step()
            result = original(*given, **named)
            step()
            return result

        setattr(owner, name, call)

    for owner, name in ((os, "replace"), (os, "unlink"), (Store, "commit")):
        wired(owner, name)

    def grouped(*given: Any, **named: Any) -> Iterator[Any]:
        yield from groupby(*given, **named)
        step()  # all statements are executed, and the transaction is not committed

    vars(database)["groupby"] = grouped


def killed_at(folder: Path, number: int) -> bool:
    """Carry out what waits in another process that is killed at its n-th step; False if it has not so many."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            left = mmap.mmap(-1, 1)
            left[0] = number
            post = Post(folder)
            lay_wires(tripped(left, os.getpid()))
            post.carry_out()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def outcome(folder: Path) -> dict[str, Any]:
    """All that a device has after a command: its state, model, files, history, and what it sent."""
    database = sqlite3.connect(folder / "agent.sqlite")
    tables = ("device", "incident", "evidence", "outbox", "command", "row")
    found: dict[str, Any] = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    database.close()
    found["device"] = [json.loads(state) for _, state in found["device"]]
    for path in sorted((folder / "pump").iterdir()):
        if path.suffix not in (".lock", ".part"):  # partial files of killed writers are removed after an hour
            found[path.name] = path.read_bytes()
    return found


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "argument"),
    [("normal", ""), ("undo", ""), ("mute", "1h"), ("acknowledge", ""), ("relearn", ""), ("budget", "1/hour")],
)
def test_a_command_that_is_killed_between_any_two_steps_acts_once(
    tmp_path: Path, fitted: Path, verb: str, argument: str
) -> None:
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    shutil.copy(fitted, prepared)
    with logged():
        post = Post(prepared)
        trouble(post)
        if verb == "undo":
            post.tell("normal", identity="before")
        post.send(verb, argument, "once")
        post.close()

        def trial(number: int) -> Path:
            """A copy at the same place, since the model that is configured is named by its path."""
            folder = tmp_path / "trial"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(prepared, folder)
            return folder

        folder = trial(0)
        calm = Post(folder)
        calm.carry_out()
        assert calm.reply("once")[0], calm.reply("once")
        calm.close()
        wanted = outcome(folder)
        for number in count(1):
            folder = trial(number)
            is_killed = killed_at(folder, number)
            again = Post(folder)
            again.carry_out()
            again.close()
            found = outcome(folder)
            assert found.keys() == wanted.keys(), number
            for key in wanted:
                assert found[key] == wanted[key], (number, key)
            if not is_killed:
                break
    assert number > 3


# -- faults of sensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [[1], [1, 2]])
def test_a_channel_may_stand_still_for_as_long_as_a_person_calls_normal(post: Post, channels: list[int]) -> None:
    live = series(1200)
    live[300:380, channels] = live[299, channels]
    live[700:780, channels] = live[699, channels]
    faults = [alert for alert in post.feed(live[:360]) if alert["kind"] == "health"]
    meant = faults[0]["id"] if len(channels) == 1 else ""
    sentences = [f"It is normal that {CHANNELS[k]} of pump stands still for so long." for k in channels]
    assert post.tell("normal", meant) == (True, " ".join(sentences))
    kept = [post.store.alerts.incident("pump", fault["id"]) for fault in faults]
    assert [(alert.event, alert.reason) for alert in kept if alert is not None] == [("end", "normal")] * len(channels)
    assert not [alert for alert in post.feed(live[360:]) if alert["kind"] == "health"], "it is over already"
    post.close()
    assert incident_table(map(from_json, faults)).splitlines()[1].split()[5] == "stuck"


def test_that_a_channel_may_stand_still_is_taken_back_before_an_older_normal(post: Post) -> None:
    incident = trouble(post)
    assert post.tell("normal")[0]
    live = series(1200)
    live[300:380, 1] = live[299, 1]
    live[700:780, 1] = live[699, 1]
    assert [alert["fault"] for alert in post.feed(live[140:360])] == ["stuck"]
    assert post.tell("normal")[0]
    assert post.feed(live[360:380]) == [], "it may stand still"
    post.close()
    again = Post(post.folder)
    assert again.tell("undo") == (True, "It is not normal any more that pressure of pump stands still for so long.")
    assert reason_of(again, incident["id"]) == "normal"
    assert [alert["fault"] for alert in again.feed(live[380:760]) if alert["event"] == "start"] == ["stuck"]
    assert again.tell("undo") == (True, "The model of before is in use again, without what was learned since.")
    assert reason_of(again, incident["id"]) == "undone"
    assert again.tell("undo")[0] is False
    again.close()


def test_an_impossible_value_is_normal_if_a_person_says_so(post: Post) -> None:
    live = series(400)
    live[100:140, 0] += 40.0
    fault = post.feed(live[:130])[0]
    assert (fault["kind"], fault["fault"]) == ("health", "impossible")
    accepted, reply = post.tell("normal", fault["id"])
    assert accepted, reply
    assert "are learned as normal" in reply
    assert reason_of(post, fault["id"]) == "normal"
    assert not [alert for alert in post.feed(live[130:]) if alert["kind"] == "health"]
    post.now += 3600
    assert not [alert for alert in post.feed(live) if alert["kind"] == "health"]


def test_an_answer_without_an_id_is_about_the_fault_that_is_open_and_not_an_older_incident(post: Post) -> None:
    incident = trouble(post)
    live = series(440)
    live[300:380, 1:] = live[299, 1:]
    faults = [alert for alert in post.feed(live[140:360]) if alert["kind"] == "health"]
    assert [(fault["fault"], fault["channel"]) for fault in faults] == [("stuck", "pressure"), ("stuck", "current")]
    named = ", ".join(fault["id"] for fault in faults)
    assert post.tell("acknowledge") == (True, f"The faults {named} are acknowledged.")
    assert [fault.acknowledged for fault in post.device.status().faults] == ["anna", "anna"]
    kept = post.store.alerts.incident("pump", incident["id"])
    assert kept is not None
    assert (kept.acknowledged, kept.reason) == (None, "cleared")
    told = [alert for alert in post.feed(live[360:]) if alert["kind"] == "health"]
    assert [(alert["event"], alert["acknowledged"]) for alert in told] == [("end", "anna"), ("end", "anna")]
    # Nothing is open any more, and the older incident is still not what somebody would mean.
    for verb in ("acknowledge", "normal"):
        assert post.tell(verb) == (
            False,
            f"Nothing is open on pump, and the last that was told is the fault {faults[-1]['id']}; "
            "name what you mean by its id.",
        )
    assert post.tell("acknowledge", incident["id"])[0]


def test_a_fault_beside_an_open_incident_can_be_acknowledged_without_its_id(post: Post) -> None:
    incident = trouble(post)
    post._put(post.device.tick(time.monotonic() + 11.0))
    fault = post.alerts[-1]
    assert post.tell("acknowledge")[1] == f"The incident {incident['id']} is acknowledged."
    assert post.tell("acknowledge")[1] == f"The fault {fault['id']} is acknowledged."
    assert post.tell("acknowledge")[1] == f"The incident {incident['id']} is acknowledged."


def test_silence_cannot_be_called_normal_but_acknowledged(post: Post) -> None:
    trouble(post)
    post.feed(series(400)[140:200])
    post._put(post.device.tick(time.monotonic() + 11.0))
    fault = post.alerts[-1]
    assert fault["fault"] == "silent"
    accepted, reply = post.tell("normal")
    assert (accepted, reply) == (False, f"{fault['id']} is silent; only what is stuck or impossible can be normal.")
    assert post.tell("acknowledge", fault["id"]) == (True, f"The fault {fault['id']} is acknowledged.")
    post.close()
    again = Post(post.folder)
    assert again.device.status().faults[0].acknowledged == "anna"
    again.close()
