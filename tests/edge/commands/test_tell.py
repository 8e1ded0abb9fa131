"""The agent as a process that is told and asked: from the command line, over a broker, and by a signal."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedkad.detect.detector import KoopmanDetector
from fedkad.edge.commands import client as commands_client
from fedkad.edge.connection import Connection
from fedkad.edge.main import COMMANDS, main
from fedkad.edge.subcommands.survey import Survey
from tests.fixtures.broker import (
    CHANNELS,
    EPOCH,
    PATIENCE,
    Array,
    Broker,
    Client,
    Process,
    broken,
    config,
    rows_committed,
    sample,
    saved_model,
    series,
    wait_for,
)
from tests.fixtures.forge import ForkedAgent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


class Said(NamedTuple):
    """What a command printed, and how it ended."""

    status: int
    out: str
    err: str


def ask(folder: Path, *arguments: str) -> Said:
    """Run `fedkad-agent` with a subcommand to its end."""
    out, err = folder / f"out-{time.monotonic_ns()}", folder / f"err-{time.monotonic_ns()}"
    with out.open("wb") as to, err.open("wb") as errors:
        process = ForkedAgent(arguments, os.environ, to, errors)
        process.stdin.close()
        status = process.wait(PATIENCE)
    said = Said(status, out.read_text(), err.read_text())
    out.unlink()
    err.unlink()
    return said


class Site:
    """An agent that follows a file, and the file."""

    def __init__(self, folder: Path, model: Path, **more: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file, self.sent = folder, folder / "samples.jsonl", 0
        self.file.touch()
        more = {"learning": {"model": str(model)}, **more}
        self.process = Process(folder, config({"kind": "file", "path": str(self.file)}, **more))

    def write(self, rows: Array) -> None:
        """Append rows, and wait until they are committed."""
        with self.file.open("a") as file:
            for row in range(len(rows)):
                values = dict(zip(CHANNELS, rows[row].tolist(), strict=True))
                file.write(json.dumps({"time": EPOCH + self.sent + row, **values}) + "\n")
        self.sent += len(rows)

    def wait(self) -> None:
        wait_for(lambda: rows_committed(self.folder / "state", "pump") == self.sent, self.process.log)

    def tell(self, *words: str, wait: float = PATIENCE) -> Said:
        return ask(self.folder, "tell", str(self.process.config), *words, "--wait", str(wait))

    def ask(self, question: str, *words: str) -> Said:
        return ask(self.folder, question, str(self.process.config), *words)

    @property
    def model(self) -> Path:
        return self.folder / "state" / "devices" / "pump" / "model.safetensors"


def confirmed(model: Path) -> int:
    """How many stretches a model has that somebody called normal."""
    places = KoopmanDetector.load(model).memory_.ranges
    assert places is not None
    return len(places.lengths)


TROUBLE = broken(series(200), 100, 130)


def test_an_operator_answers_an_alarm_from_the_command_line(tmp_path: Path, model: Path) -> None:
    site = Site(tmp_path, model)
    with site.process:
        site.write(TROUBLE[:120])
        site.wait()
        (start,) = wait_for(site.process.alerts, site.process.log)
        listed = site.ask("incidents")
        assert (listed.status, listed.err) == (0, "")
        assert start["id"] in listed.out
        assert " open " in listed.out
        lasted = EPOCH + 119 - datetime.fromisoformat(start["start"]).timestamp()
        assert f" {lasted:g} s " in listed.out, "how long it lasts by now, although nothing was told since it began"
        shown = site.ask("status")
        assert "The agent hall runs." in shown.out
        assert start["id"] in shown.out

        said = site.tell("pump", "acknowledge", "--from", "anna")
        assert said == (0, f"The incident {start['id']} is acknowledged.\n", "")
        said = site.tell("pump", "normal", start["id"])
        assert (said.status, said.err) == (0, "")
        assert "learned as normal" in said.out
        wait_for(lambda: len(site.process.alerts()) == 3)
        assert [alert["reason"] for alert in site.process.alerts()] == ["threshold", "acknowledged", "normal"]
        site.process.wait_for_log("pump: 'anna' told 'acknowledge'. The incident")
        assert confirmed(site.model) == 1
        assert " normal " in site.ask("incidents", "pump", "--last", "1").out
        assert site.tell("pump", "undo").status == 0
        assert confirmed(site.model) == 0
        assert site.process.stop() == 0
    assert "does not run" in site.ask("status").out
    assert " undone " in site.ask("incidents", "pump", "--last", "1").out
    assert " undone " in site.ask("incidents", "--last", str(10**20)).out


def test_devices_that_were_found_can_be_asked_and_told(tmp_path: Path, model: Path) -> None:
    rows = broken(series(40), 20, 30)
    lines = [sample(rows, row, device="hall/pump") for row in range(40)]
    site = Site(tmp_path / "site", model, devices=("*",))
    assert site.tell("hall/pump", "normal").status == 1  # nobody has heard of it
    with site.process as process:
        site.file.write_text("".join(f"{line}\n" for line in lines))
        process.wait_for_readings(40, "hall/pump")
        wait_for(lambda: "hall/pump-" in site.ask("incidents", "hall/pump").out, process.log)
        assert "hall/pump  ok" in site.ask("status").out
        identity = process.alerts("hall/pump")[0]["id"]
        said = site.tell("hall/pump", "normal", identity)
        assert (said.status, "learned as normal" in said.out) == (0, True), said
        assert process.stop() == 0
    recording = tmp_path / "recording.jsonl"
    recording.write_text("".join(f"{line}\n" for line in [*lines, sample(rows, 0, device="other")]))
    replayed = site.ask("replay", str(recording)).out
    assert replayed.splitlines()[-2].split()[:2] == ["hall/pump", "40"]
    assert replayed.splitlines()[-1].split()[:2] == ["other", "1"]


def test_a_device_that_is_gone_is_forgotten_and_may_come_back_as_a_new_one(tmp_path: Path, model: Path) -> None:
    rows, site = series(40), Site(tmp_path / "site", model, devices=("*",))
    lines = [sample(rows, row, device=device) for device in ("gone", "stays") for row in range(40)]
    folder = site.folder / "state" / "devices"
    with site.process:
        site.file.write_text("".join(f"{line}\n" for line in lines))
        wait_for(lambda: rows_committed(site.folder / "state", "stays") == 40, site.process.log)
        refused = site.ask("forget", "gone")
        assert (refused.status, "The agent runs, and knows the device; stop it first." in refused.err) == (1, True)
        assert site.process.stop() == 0
    assert (folder / "gone" / "model.safetensors").is_file()
    assert site.ask("forget", "gone") == (0, "gone is forgotten.\n", "")
    assert "There is no device 'gone'; the devices are stays." in site.ask("forget", "gone").err
    assert sorted(path.name for path in folder.iterdir()) == ["stays"]
    assert "gone" not in site.ask("status").out
    with site.process:
        with site.file.open("a") as file:
            file.writelines(f"{sample(rows, row, device='gone')}\n" for row in range(5))
        wait_for(lambda: rows_committed(site.folder / "state", "gone") == 5, site.process.log)


def test_what_publishes_is_discovered_and_can_be_watched(tmp_path: Path) -> None:
    rows, output = series(40), tmp_path / "found" / "agent.toml"
    output.parent.mkdir()
    user = {"username": "anna", "password": "right"}
    with Broker(tmp_path, users={"anna": "right"}) as broker, broker.client(**user) as client:
        (tmp_path / "secret").write_text("right\n")
        login = ("--username", "anna", "--password-file", str(tmp_path / "secret"))
        words = ("discover", f"127.0.0.1:{broker.port}", "-o", str(output), *login)
        for device in ("kitchen", "hall"):
            client.publish(f"home/{device}", sample(rows, 0, linkquality=80), retain=True)
        found = ask(tmp_path, *words, "--seconds", "1")
        assert (found.status, "home/kitchen  flow, pressure, heat, linkquality" in found.out) == (0, True), found
        assert f"{output} is written" in found.out
        checked = ask(tmp_path, str(output), "--check")
        assert (checked.status, "2 device(s) from mqtt://127.0.0.1" in checked.out) == (0, True), checked
        again = ask(tmp_path, *words)
        assert (again.status, "there is such a file already; name another one" in again.err) == (1, True), again
        nowhere = ask(tmp_path, *words, "-o", str(tmp_path / "nowhere" / "x.toml"))  # not after a minute of listening
        assert (nowhere.status, "create it, or name another --output" in nowhere.err) == (1, True), nowhere
        with Process(output.parent, output.read_text() + "[stdout]\nreadings = true") as process:
            process.wait_for_log("connected.")
            client.publish_all("home/hall", [sample(rows, row) for row in range(40)])
            process.wait_for_readings(40, "hall")
    away = ask(tmp_path, "discover", f"127.0.0.1:{broker.port}", "-o", str(tmp_path / "x"), "--seconds", "0.5")
    assert (away.status, "there is no connection after 0.5 s" in away.err) == (1, True), away


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--password-file", "secret"), "--password-file needs --username"),
        (("--topic", "home/#/hall"), "--topic 'home/#/hall' must be a filter such as zigbee2mqtt/#"),
        (("--topic", "home/hall+"), "with + or # for whole levels"),
        (("--topic", ""), "must be a filter"),
    ],
)
def test_what_nothing_can_be_discovered_with_is_refused_at_once(
    words: Sequence[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        COMMANDS["discover"](["127.0.0.1:1", *words])
    assert sentence in capsys.readouterr().err


def interrupting(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, after: Callable[[], bool]) -> None:
    """Let Ctrl-C come in the middle of a function, as soon as something is so."""
    work = getattr(where, name)

    def interrupted(*arguments: Any) -> Any:
        if after():
            raise KeyboardInterrupt
        return work(*arguments)

    monkeypatch.setattr(where, name, interrupted)


def said_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
    """Run `fedkad-agent` in this process."""
    monkeypatch.setattr(sys, "argv", ["fedkad-agent", *arguments])
    monkeypatch.setattr("fedkad.edge.main.limit_memory", lambda: None)  # this process does more than that
    monkeypatch.setattr("fedkad.edge.subcommands.discover.log_to_stderr", lambda: None)
    return Said(main(), *capsys.readouterr())


def test_who_has_heard_enough_gets_what_was_heard_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "agent.toml"
    with Broker(tmp_path) as broker, broker.client() as client:
        client.publish("home/hall", sample(series(1), 0), retain=True)
        heard: list[Survey] = []

        def note(survey: Survey, *message: Any) -> None:
            take(survey, *message)
            heard.append(survey)

        take = Survey.note
        monkeypatch.setattr(Survey, "note", note)
        interrupting(monkeypatch, Connection, "poll", lambda: bool(heard))
        said = said_here(monkeypatch, capsys, "discover", f"127.0.0.1:{broker.port}", "-o", str(output))
    assert said.status == 0, said
    assert re.match(r"Interrupted after \d+ of 60 s; this was published until then.", said.out)
    assert "home/hall  flow, pressure, heat" in said.out
    assert 'channels = ["flow", "pressure", "heat"]' in output.read_text()


def test_who_waits_no_longer_is_told_that_the_command_is_left(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path, model)
    with site.process:
        site.write(TROUBLE[:30])
        site.wait()
        site.process.kill()
    words = ("tell", str(site.process.config), "pump", "mute", "1h")
    interrupting(monkeypatch, time, "sleep", lambda: True)
    said = said_here(monkeypatch, capsys, *words)
    assert said == (130, "", "Accepted; the agent has not replied yet, and acts on it as soon as it can.\n")
    assert "1 command(s) wait for it" in site.ask("status").out
    interrupting(monkeypatch, commands_client, "with_known", lambda: True)
    assert said_here(monkeypatch, capsys, *words) == (130, "", "")


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert commands_client.user_name() == "uid 54321"


@pytest.mark.parametrize("question", ["incidents", "status", "replay"])
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, model: Path, question: str) -> None:
    site = Site(tmp_path, model)
    with site.process:
        site.write(TROUBLE[:30])
        site.wait()
        assert site.process.stop() == 0
    reader, writer = os.pipe()
    os.close(reader)
    words = [question, str(site.process.config), *[str(site.file)] * (question == "replay")]
    with os.fdopen(writer, "wb") as out, (tmp_path / "err").open("wb") as errors:
        process = ForkedAgent(words, os.environ, out, errors)
        process.stdin.close()
        assert process.wait(PATIENCE) == 141
    assert (tmp_path / "err").read_text() == ""


def test_what_is_told_while_the_agent_is_away_is_done_when_it_comes_back(tmp_path: Path, model: Path) -> None:
    site = Site(tmp_path, model)
    said = site.tell("pump", "mute", "1h")
    assert said.status == 1
    assert "there is no such file; start the agent with this configuration first." in said.err
    with site.process:
        site.write(TROUBLE[:90])
        site.wait()
        site.process.kill()
    said = site.tell("pump", "mute", "1h")
    assert said == (0, "Accepted; the agent does not run now, and acts on it at its next start.\n", "")
    assert "1 command(s) wait for it" in site.ask("status").out
    with site.process:
        site.process.wait_for_log("told 'mute 1h'. pump is mute until")
        site.write(TROUBLE[90:])
        site.wait()
        assert site.process.alerts() == []
        assert "mute until" in site.ask("status").out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pmup", "mute", "1h"), "There is no device 'pmup'; the devices are pump."),
        (("pump", "silence"), "There is no command 'silence'; tell one of normal, mute,"),
        (("pump", "mute"), "mute '' must be a time such as 90s, 30m, 2h or 1d"),
        (("pump", "normal", "pump-7"), "pump has no incident 'pump-7'; see fedkad-agent incidents."),
    ],
)
def test_what_is_refused_is_said_in_a_sentence(tmp_path: Path, model: Path, words: tuple[str], sentence: str) -> None:
    site = Site(tmp_path, model)
    with site.process:
        site.write(TROUBLE[:30])
        site.wait()
        said = site.tell(*words)
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith(f"error: {sentence}")
        assert site.process.is_running


@pytest.mark.parametrize("wait", ["-1", "nan"])
def test_nobody_waits_for_less_than_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wait: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedkad-agent", "tell", "agent.toml", "pump", "undo", "--wait", wait])
    with pytest.raises(SystemExit):
        main()
    assert f"--wait {wait} must be at least 0" in capsys.readouterr().err


def test_what_was_told_acts_once_however_often_the_agent_is_killed(tmp_path: Path, model: Path) -> None:
    site, chance = Site(tmp_path, model), random.Random(3)
    site.process.start()
    site.write(TROUBLE[:120])
    site.wait()
    (start,) = wait_for(site.process.alerts, site.process.log)
    for number in range(8):
        said = site.tell("pump", "normal", start["id"], "--from", f"anna-{number}", wait=0.0)
        assert said.status == 0, said.err
        time.sleep(chance.uniform(0.0, 0.4))
        site.process.kill()
        site.process.start()
    database = sqlite3.connect(tmp_path / "state" / "agent.sqlite")
    left = "SELECT count(*) FROM command WHERE reply IS NULL"
    wait_for(lambda: database.execute(left).fetchone()[0] == 0, site.process.log)
    assert {accepted for (accepted,) in database.execute("SELECT accepted FROM command")} == {1}
    database.close()
    # Each one is one more stretch in the model: none is lost, and none is there twice.
    assert confirmed(site.model) == 8
    site.write(TROUBLE[120:130])
    site.wait()  # an agent that is still starting knows no orderly end
    assert site.process.stop() == 0


# -- over a broker --------------------------------------------------------------------------------------------------


def told(client: Client, identity: str) -> list[dict[str, Any]]:
    return [heard.content for heard in client.on("fedkad/pump/told") if heard.content["id"] == identity]


def mqtt_text(broker: Broker, model: Path, *, shared: bool, file: Path) -> str:
    """An agent whose commands come over the connection of its samples, or over another."""
    learning = {"model": str(model)}
    if shared:
        return config(broker.source(), learning=learning, mqtt={})
    return config({"kind": "file", "path": str(file)}, learning=learning, mqtt={"broker": broker.url})


def publish_samples(client: Client, file: Path, *, shared: bool) -> None:
    lines = [sample(TROUBLE, row) for row in range(120)]
    if shared:
        client.publish_all("in/pump", lines)
    else:
        file.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("shared", [True, False])
def test_an_operator_answers_an_alarm_over_the_broker(tmp_path: Path, model: Path, shared: bool) -> None:
    file = tmp_path / "samples.jsonl"
    file.touch()
    with Broker(tmp_path) as broker, broker.client() as client:
        client.publish("fedkad/pump/tell", "mute 1h", retain=True)  # it may be of any age, and is not obeyed
        client.subscribe("fedkad/pump/told", "fedkad/pump/state", "fedkad/pump/alert")
        with Process(tmp_path, mqtt_text(broker, model, shared=shared, file=file)) as process:
            process.wait_for_log("connected.")
            publish_samples(client, file, shared=shared)
            wait_for(lambda: client.on("fedkad/pump/alert"), process.log)

            client.publish("fedkad/pump/tell", '{"id": "a", "verb": "acknowledge", "from": "anna"}')
            (reply,) = wait_for(lambda: told(client, "a"), process.log)
            assert reply["accepted"]
            assert (reply["verb"], reply["from"]) == ("acknowledge", "anna")
            assert "is acknowledged" in reply["reply"]
            for times in (1, 2):  # the second is answered again, and does nothing
                client.publish("fedkad/pump/tell", '{"id": "n", "verb": "normal", "from": "anna"}')
                wait_for(lambda times=times: len(told(client, "n")) == times, process.log)  # type: ignore[misc]
            assert told(client, "n")[0] == told(client, "n")[1]
            assert told(client, "n")[0]["accepted"], told(client, "n")
            state = tmp_path / "state" / "devices" / "pump" / "model.safetensors"
            assert confirmed(state) == 1

            client.publish("fedkad/pump/tell", "mute 2h")
            wait_for(lambda: json.loads(client.last("fedkad/pump/state") or "{}").get("muted"), process.log)
            client.publish("fedkad/pump/tell", "mute 0")
            wait_for(lambda: json.loads(client.last("fedkad/pump/state") or "{}").get("muted") is None, process.log)
            client.publish("fedkad/pump/tell", '{"id": "b", "verb": "budget", "argument": "0/week"}')
            (reply,) = wait_for(lambda: told(client, "b"), process.log)
            assert not reply["accepted"]
            assert reply["reply"].startswith("budget '0/week' must be a number of false alarms")
            client.publish("fedkad/pump/tell", "{")
            wait_for(lambda: "must be JSON" in str(client.last("fedkad/pump/told")), process.log)
            assert process.log.count("told 'normal'") == 1
            assert "mute 1h" not in process.log
            reasons = [heard.content["reason"] for heard in client.on("fedkad/pump/alert")]
            assert reasons == ["threshold", "acknowledged", "normal"]
            assert process.stop() == 0


@pytest.mark.parametrize("shared", [True, False])
def test_what_the_broker_keeps_for_an_agent_that_is_killed_acts_once(tmp_path: Path, model: Path, shared: bool) -> None:
    chance, count, file = random.Random(5), 12, tmp_path / "samples.jsonl"
    file.touch()
    with Broker(tmp_path) as broker, broker.client() as client:
        client.subscribe("fedkad/pump/told")
        process = Process(tmp_path, mqtt_text(broker, model, shared=shared, file=file)).start()
        process.wait_for_log("connected.")
        publish_samples(client, file, shared=shared)
        wait_for(process.alerts, process.log)
        # It is killed before it can commit what it has received, and told something while it is away.
        database = sqlite3.connect(tmp_path / "state" / "agent.sqlite", isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        client.publish("fedkad/pump/tell", '{"id": "taken", "verb": "normal"}')
        process.wait_for_log("no messages are accepted until the disk is writable again")
        process.kill()
        database.close()
        client.publish("fedkad/pump/tell", '{"id": "away", "verb": "normal"}')
        process.start()
        for identity in ("taken", "away"):
            wait_for(lambda identity=identity: told(client, identity), process.log)  # type: ignore[misc]
        for number in range(count):
            client.publish("fedkad/pump/tell", json.dumps({"id": str(number), "verb": "normal", "from": "anna"}))
            time.sleep(chance.uniform(0.0, 0.5))
            process.kill()
            process.start()
        for number in range(count):
            wait_for(lambda number=number: told(client, str(number)), process.log)  # type: ignore[misc]
            assert told(client, str(number))[0]["accepted"]
        assert confirmed(tmp_path / "state" / "devices" / "pump" / "model.safetensors") == count + 2
        assert process.stop() == 0


# -- replay ---------------------------------------------------------------------------------------------------------


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_recording_is_replayed_as_it_was_alarmed_and_nothing_is_touched(tmp_path: Path, model: Path) -> None:
    site = Site(tmp_path, model)
    with site.process:
        site.write(TROUBLE)
        site.wait()
        assert site.process.stop() == 0
    start, _ = site.process.alerts()
    before = digests(tmp_path / "state")
    said = site.ask("replay", str(site.file))
    assert (said.status, said.err) == (0, "")
    assert start["id"] in said.out
    assert "cleared" in said.out
    assert digests(tmp_path / "state") == before
    # The same as a table, and with settings under which it is no incident.
    table = tmp_path / "samples.csv"
    lines = [",".join(map(str, (EPOCH + k, *TROUBLE[k].tolist()))) for k in range(len(TROUBLE))]
    table.write_text("\n".join([f"time,{','.join(CHANNELS)}", *lines]) + "\n")
    assert start["id"] in site.ask("replay", str(table)).out
    site.process.config.write_text(site.process.config.read_text().replace("[alarm]", "[alarm]\nmin_duration = 500"))
    assert site.ask("replay", str(table)).out.startswith("No incidents.")
    assert site.ask("replay", str(tmp_path / "none.csv")).err.endswith("name a recording, JSON lines or CSV.\n")
    assert "this is a folder" in site.ask("replay", str(tmp_path)).err
    for wrong in ("", "time,other\n1,2\n"):
        table.write_text(wrong)
        said = site.ask("replay", str(table))
        assert said.status == 1, said.out
        assert f"samples.csv: there is no row of pump; a line needs {', '.join(CHANNELS)}" in said.err
    assert digests(tmp_path / "state") == before


def test_a_recording_has_the_times_of_arrival(tmp_path: Path, model: Path) -> None:
    text = config({"kind": "stdin"}, learning={"model": str(model)}, sampling={"clock": "arrival"})
    (tmp_path / "agent.toml").write_text(text)
    recording = tmp_path / "samples.jsonl"
    recording.write_text("\n".join(sample(TROUBLE, k) for k in range(len(TROUBLE))) + "\n")
    said = ask(tmp_path, "replay", str(tmp_path / "agent.toml"), str(recording))
    assert (said.status, f"pump    {len(TROUBLE)} " in said.out) == (0, True), said


def test_a_packed_recording_is_replayed_too(tmp_path: Path, model: Path) -> None:
    (tmp_path / "agent.toml").write_text(config({"kind": "stdin"}, learning={"model": str(model)}))
    lines = [",".join(map(str, (EPOCH + k, *TROUBLE[k].tolist()))) for k in range(len(TROUBLE))]
    packed = gzip.compress("\n".join([f"time,{','.join(CHANNELS)}", *lines]).encode())
    recording = tmp_path / "samples.csv.gz"
    recording.write_bytes(packed)
    said = ask(tmp_path, "replay", str(tmp_path / "agent.toml"), str(recording))
    assert (said.status, f"pump    {len(TROUBLE)} " in said.out) == (0, True), said
    for damaged in (packed[:-20], b"no gzip"):
        recording.write_bytes(damaged)
        said = ask(tmp_path, "replay", str(tmp_path / "agent.toml"), str(recording))
        assert (said.status, "samples.csv.gz: the gzip data is damaged" in said.err) == (1, True), said


def test_a_replay_that_is_interrupted_says_so(tmp_path: Path, model: Path) -> None:
    (tmp_path / "agent.toml").write_text(config({"kind": "stdin"}, learning={"model": str(model)}))
    file, rows = tmp_path / "samples.jsonl", series(200)
    with file.open("w") as written:
        for first in range(0, 100_000, 200):
            written.writelines(
                json.dumps({"time": EPOCH + first + k, **dict(zip(CHANNELS, row, strict=True))}) + "\n"
                for k, row in enumerate(rows.tolist())
            )
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as errors:
        process = ForkedAgent(
            ["replay", str(tmp_path / "agent.toml"), str(file)], {**os.environ, "TMPDIR": str(tmp_path)}, out, errors
        )
        process.stdin.close()
        wait_for(lambda: any(rows_committed(each, "pump") for each in tmp_path.glob("fedkad-replay-*/state")))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert (tmp_path / "out").read_text().startswith(f"Interrupted: only a part of {file} was read")
    assert (tmp_path / "err").read_text() == ""


def test_a_replay_without_a_model_learns_from_the_recording(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    rows = broken(series(900), 540, 570)  # just after the rows of the first model, which must not hold it
    file.write_text("\n".join(sample(rows, k) for k in range(len(rows))) + "\n")
    text = config({"kind": "stdin"}, learning={"first": 500}, detector={"window": 6, "rank": 5, "observables": 16})
    (tmp_path / "agent.toml").write_text(text)
    said = ask(tmp_path, "replay", str(tmp_path / "agent.toml"), str(file))
    assert said.status == 0, said.err
    assert "pump-20231114T22" in said.out
    assert not (tmp_path / "state").exists()


# -- settings that are read again -----------------------------------------------------------------------------------


def test_settings_are_read_again_while_it_runs(tmp_path: Path, model: Path) -> None:
    site = Site(tmp_path, model, alarm={"min_duration": 500, "clear_after": 3})
    path, text = site.process.config, site.process.config.read_text()
    with site.process:
        site.write(TROUBLE[:110])
        site.wait()
        assert site.process.alerts() == []
        assert site.process.process is not None
        hangup = partial(site.process.process.send_signal, signal.SIGHUP)

        path.write_text(text.replace("min_duration = 500", "min_duration = = 0"))
        hangup()
        site.process.wait_for_log("The settings cannot be read again, and stay as they were:")
        path.write_text(text.replace("min_duration = 500", "min_duration = -1"))
        hangup()
        site.process.wait_for_log("min_duration = -1 in [alarm] must be")
        site.write(TROUBLE[110:115])
        site.wait()
        assert site.process.alerts() == []

        changed = text.replace("min_duration = 500", "min_duration = 0").replace("period = 1\n", "period = 2\n")
        path.write_text(changed)
        hangup()
        site.process.wait_for_log(
            "The settings are read again; from now on these hold: min_duration in [alarm]; "
            "these stay as they were until a restart: period in [sampling]"
        )
        site.write(TROUBLE[115:])
        site.wait()
        wait_for(lambda: [alert["event"] for alert in site.process.alerts()] == ["start", "end"], site.process.log)
        # As if nothing had been read: the window was kept, and no row was scored twice.
        site.process.assert_scored_once(TROUBLE)
        path.write_text(f'{changed}\n[[maintenance]]\nfrom = "2020-01-01"\nuntil = "2120-01-01"\n')
        hangup()
        site.process.wait_for_log("these stay as they were until a restart: period", 2)
        assert " maintenance until 2120-01-01 " in site.ask("status").out
        assert site.process.stop() == 0
