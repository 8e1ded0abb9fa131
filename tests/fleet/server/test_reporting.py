"""What a server tells its operator: a file of metrics that Prometheus reads, and messages to a real HTTP server."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.federation import training_files
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.fleet.flower.control import Node
from fedkad.fleet.server import enrolment, registry, reporting, requests, settings
from fedkad.fleet.server.lastseen import LastSeen
from fedkad.fleet.server.overview import seen_devices
from fedkad.fleet.server.reporting import Reporter
from fedkad.fleet.server.settings import FleetSettings, ModelSettings, Privacy, ReportingSettings, ServerFolder
from fedkad.fleet.server.webhook import ATTEMPTS, Messenger
from fedkad.settingerror import SettingsError
from measurements.loopback import wait
from tests.fixtures.receiver import receiving
from tests.fixtures.trainings import make_terms

PATIENCE = 60.0


def make(folder: Path, **chosen: str) -> ServerFolder:
    model = ModelSettings(("a",), rank=2, window=4)
    known = FleetSettings(model=model, privacy=Privacy(noise=20.0), reporting=ReportingSettings(**chosen))
    return enrolment.make_fleet(folder, known)


def register(folder: ServerFolder, *names: str) -> None:
    with registry.changing(folder.registry) as devices:
        for name in names:
            registry.add(devices, name, f"key of {name}")


def node(name: str, state: str, days: float) -> dict[str, Node]:
    """A device that Flower has seen in this state for so many days."""
    since = datetime.now(UTC) - timedelta(days=days)
    return {f"key of {name}": Node(1, name, state, since.isoformat())}


def end_training(
    folder: ServerFolder, reporter: Reporter, run: str, *, worse: bool = False, fails: bool = False
) -> None:
    """Request a training, end it as its app and the server do, and have it reported."""
    requests.request_training(folder.training)
    request = training_files.read_request(folder.training)
    reporter.training_ended(request)  # which is still open
    if not fails:
        training = Coordinator(make_terms(run), TrainingPlan(), folder.training)
        training.state.gate = {"judges": 5, "ratio": 1.25, "worse": worse}
        training.delivery.keep_back() if worse else training.delivery.finish()
        reporter.training_ended(request)  # which the server has not closed yet
    (folder.training / training_files.WANTED).unlink()
    reporter.training_ended(request)
    reporter.training_ended(training_files.read_request(folder.training))


def test_only_trainings_that_need_a_person_are_posted_once(tmp_path: Path) -> None:
    with receiving() as receiver:
        folder = make(tmp_path / "fleet", webhook=receiver.url)
        reporter = Reporter(folder)
        end_training(folder, reporter, "run-1")
        end_training(folder, reporter, "run-2", worse=True)
        end_training(folder, reporter, "run-3", fails=True)
        wait(lambda: len(receiver.accepted) == 2, PATIENCE, "two messages")
        assert [each["event"] for each in receiver.accepted] == ["training kept back", "training failed"]
        assert "run-2 is not delivered: 5 devices lose 1.25 times" in receiver.accepted[0]["text"]
        assert str(folder.logs / "app.log") in receiver.accepted[1]["text"]
        assert reporter.outcomes == {"done": 1, "kept back": 1, "failed": 1}


def test_silent_devices_are_told_once_and_again_after_they_were_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "fleet")
    register(folder, "pump", "press", "lathe")
    devices, reporter = registry.read(folder.registry), Reporter(folder)
    away = node("pump", "offline", 8.0) | node("press", "offline", 6.0) | node("lathe", "online", 30.0)
    reporter.look(devices, away)
    assert not caplog.messages, "a server that was just started does not know who is away"
    monkeypatch.setattr(reporting, "SETTLING", 0.0)
    for nodes in (away, away, node("pump", "online", 0.0), away):
        reporter.look(devices, nodes)
    assert caplog.messages == ["device silent: No sign of life for 7d from pump."] * 2
    reporter = Reporter(folder)
    reporter.look(devices, away, LastSeen({}, time.time()))
    reporter.look(devices, None)
    assert len(caplog.messages) == 2, "a device that waits to be called is not silent, nor one that is not looked for"


def test_where_devices_are_called_who_no_longer_looks_at_the_notice_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "PAUSE", 0.0)
    folder = make(tmp_path / "fleet")
    register(folder, "pump", "press", "lathe")
    devices, reporter, now = registry.read(folder.registry), Reporter(folder), time.time()
    last = {"pump": now - 8 * 86_400, "press": now - 86_400}  # the lathe has an earlier release
    reporter.look(devices, None, LastSeen(last, now - 7200))
    assert not caplog.messages, "a server that was just started does not know who is away"
    reporter.look(devices, None, LastSeen(last, now + 60))
    assert caplog.messages == ["device silent: No sign of life for 7d from pump."]
    connected = node("pump", "online", 0.0)
    states = [each.state for each in seen_devices(devices, connected, LastSeen(last, now - 7200))]
    assert states == ["online", "offline", "never seen"]
    assert [each.state for each in seen_devices(devices, None, LastSeen(last, now - 2 * 86_400))] == [
        "offline",
        "waiting",
        None,
    ]


def test_a_device_that_never_came_is_silent_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "fleet")
    register(folder, "pump")
    seen = seen_devices(registry.read(folder.registry), {})
    now = datetime.now(UTC).timestamp()
    assert list(reporting.silent_devices(seen, now - 60.0)) == []
    assert list(reporting.silent_devices(seen, now + 60.0)) == ["pump"]


def test_prometheus_reads_the_metrics(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra `edge` is not installed")
    path = tmp_path / "metrics" / "fedkad.prom"
    folder = make(tmp_path / "fleet", metrics=str(path))
    register(folder, "pump", "press", "lathe")
    reporter = Reporter(folder)
    path.parent.mkdir()
    end_training(folder, reporter, "run-1")
    reporter.look(registry.read(folder.registry), node("pump", "online", 1.0))
    assert path.stat().st_mode & 0o777 == 0o644, "node_exporter is another user"
    found = {
        (sample.name.removeprefix("fedkad_fleet_"), *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }
    assert (found["devices", "online"], found["devices", "never seen"], found["devices_registered",]) == (1, 2, 3)
    assert (found["trainings_total", "done"], found["trainings_total", "failed"]) == (1, 0)
    assert (found["training_open",], found["training_round",]) == (0, 0)
    assert found["epsilon",] == pytest.approx(1.061, abs=1e-3)
    left = found["certificate_end_timestamp_seconds", "server"] - found["look_timestamp_seconds",]
    assert 820 < left / 86_400 < 825


def test_a_damaged_status_leaves_out_its_own_metrics_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "fedkad.prom"
    folder = make(tmp_path / "fleet", metrics=str(path))
    (folder.training / "status.json").write_text("garbage")
    Reporter(folder).look({}, {})
    assert "fedkad_fleet_look_timestamp_seconds" in path.read_text()
    assert "fedkad_fleet_training_round" not in path.read_text()
    assert not caplog.messages


def test_metrics_that_cannot_be_written_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "PAUSE", 0.0)
    reporter = Reporter(make(tmp_path / "fleet", metrics=str(tmp_path / "none" / "fedkad.prom")))
    for _ in range(3):
        reporter.look({}, {})
    assert len(caplog.messages) == 1
    assert "correct metrics in [reporting]" in caplog.messages[0]


def test_a_webhook_is_tried_again_and_its_secret_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with receiving((503, {}), (0, {}), (404, {})) as receiver:
        pauses: list[float] = []
        messenger = Messenger(receiver.url, pauses.append)
        messenger.send({"text": "one"})
        messenger.send({"text": "two"})
        wait(lambda: len(receiver.accepted) == 2, PATIENCE, "both messages")
        assert [each["text"] for each in receiver.accepted] == ["one", "two"]
        assert pauses == [1.0, 2.0, 4.0]
    assert len(caplog.messages) == 1
    assert "secret" not in caplog.text


def test_a_message_that_nobody_takes_is_dropped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    done, pauses = threading.Event(), 0

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        assert seconds <= 600.0
        if pauses == ATTEMPTS:
            done.set()

    Messenger("http://127.0.0.1:9/", pause).send({"text": "one"})
    assert done.wait(PATIENCE)
    wait(lambda: "it is dropped" in caplog.text, PATIENCE, "the last line")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("metrics", "fedkad.prom", "the whole path of a file that ends in .prom"),
        ("webhook", "hooks.example/secret", "begins with https://"),
        ("webhook", "http://", "begins with https://"),
        ("webhook", "http://[::1/secret", "begins with https://"),
        ("webhook", "https://hooks.example:99999/secret", "begins with https://"),
        ("webhook", "https://me:secret@hooks.example/", "begins with https://"),
        ("silent", "long", "a duration"),
    ],
)
def test_settings_that_make_no_sense_are_named(key: str, value: str, words: str) -> None:
    chosen = FleetSettings(model=ModelSettings(("a",)), reporting=ReportingSettings(**{key: value}))
    with pytest.raises(SettingsError, match=words) as told:
        settings.check(chosen)
    assert f"{key} = " in str(told.value)
    assert "secret" not in str(told.value)
