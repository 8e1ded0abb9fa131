"""The agent and a real broker: nothing lost, nothing twice, and everybody told at the right topic."""

from __future__ import annotations

import copy
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from fedkad.detect.detector import KoopmanDetector
from fedkad.federation.devicestate import DeviceState
from fedkad.fleet.shared.certificates import make_authority
from measurements.loopback import free_port
from tests.fixtures.broker import (
    CHANNELS,
    EPOCH,
    Array,
    Broker,
    Client,
    Process,
    broken,
    config,
    detector,
    expected_scores,
    sample,
    saved_model,
    series,
    wait_for,
    wired,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """For tests that neither stop it nor count in its log; each uses topics and agents of its own."""
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def learning(model: Path) -> dict[str, Any]:
    return {"model": str(model)}


def metrics(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def is_logged(broker: Broker, text: str) -> bool:
    return text in broker.log


# -- every device ---------------------------------------------------------------------------------------------------


def test_every_device_that_publishes_is_watched_up_to_a_limit_and_after_a_restart(
    tmp_path: Path, model: Path, broker: Broker
) -> None:
    rows, lamp = series(40), "hall/lamp"
    with broker.client() as client:
        text = config(
            broker.source(topics=["every/{device}"]),
            devices=("*",),
            top={"most_devices": 3, "name": "every"},
            learning=learning(model),
            mqtt={"prefix": "seen"},
            homeassistant={},
        )
        process = Process(tmp_path / "agent", text)
        client.subscribe("seen/#", "homeassistant/device/#")
        with process:
            process.wait_for_log("connected.")
            client.publish("every/bridge", '{"state": "online"}')  # no device, because it has no channel
            client.publish_all("every/*", [sample(rows, row) for row in range(5)])  # such names fill no log for others
            for device in (lamp, "a", "b", "c"):
                client.publish_all(f"every/{device}", [sample(rows, row) for row in range(20)])
            for device in (lamp, "a", "b"):
                process.assert_scored_once(rows[:20], device)
            process.wait_for_log("'c' publishes, but is not watched: 3 devices are watched, and most_devices allows")
            assert client.last("homeassistant/device/seen_a/config")
            client.publish("seen/a/tell", '{"id": "1", "verb": "mute", "argument": "1h"}')
            wait_for(lambda: client.last("seen/a/told"), process.log)
            client.publish("seen/hall%2Flamp/tell", '{"id": "2", "verb": "budget", "argument": "1/day"}')
            wait_for(lambda: client.last("seen/hall%2Flamp/told"), process.log)
            assert not process.readings("c")
            process.kill()
        wait_for(lambda: client.last("seen/agent/every/status") == "offline", "there is no will")
        client.heard.clear()
        with process:  # they are there before they publish
            wait_for(lambda: client.last("seen/b/status") == "online", process.log)
            wait_for(lambda: json.loads(client.last("seen/a/state") or "{}").get("muted"), process.log)
            for device in (lamp, "b"):
                client.publish_all(f"every/{device}", [sample(rows, row) for row in range(20, 40)])
                process.assert_scored_once(rows, device)
            client.publish("seen/b/tell", '{"id": "3", "verb": "acknowledge", "argument": "none/b-20260101T000000Z-1"}')
            wait_for(lambda: client.last("seen/b/told"), process.log)
        found = sorted(path.name for path in (tmp_path / "agent" / "state" / "devices").iterdir())
        assert found == ["a", "b", "hall%2Flamp"]


def test_a_name_of_several_levels_is_found_and_no_service_beside_it_is_taken_for_a_device(
    tmp_path: Path, model: Path, broker: Broker
) -> None:
    rows, lamp, own, port = series(20), "hall/lamp", "deep/hall%2Flamp", free_port()
    source = broker.source(topics=["deep/{device}", "deep/{device}/value/{channel}"])
    # The topics of the agent lie below those of the devices.
    common = {"learning": learning(model), "mqtt": {"prefix": "deep"}, "prometheus": {"port": port}}
    process = Process(tmp_path / "agent", config(source, devices=(lamp,), top={"name": "deep"}, **common))
    with broker.client() as client:
        with process:
            process.wait_for_log("connected.")
            client.publish_all(f"deep/{lamp}", [sample(rows, row) for row in range(10)])
            process.assert_scored_once(rows[:10], lamp)
            process.stop()
        process.config.write_text(config(source, devices=("*",), top={"name": "deep", "most_devices": 2}, **common))
        client.subscribe("deep/+/told")
        with process:  # its session at the broker has the filters of before
            process.wait_for_log("connected.", 2)
            for service in ("hall/set", f"{lamp}/get", f"{lamp}/set/heat", "bridge/info", "x/state", "x/availability"):
                client.publish(f"deep/{service}", sample(rows, 0))
            client.publish(f"deep/{lamp}/action", "single")
            client.publish("deep/fan/value/flow", "10.1")
            client.publish_all(f"deep/{lamp}", [sample(rows, row) for row in range(10, 20)])
            process.assert_scored_once(rows, lamp)
            client.publish("deep/hall/2/lamp", sample(rows, 0))
            process.wait_for_log("'hall/2/lamp' publishes, but is not watched: 2 devices are watched")
            for told in ("mute 1h", "mute 0"):  # without an id it is obeyed as often as it comes
                client.publish(f"{own}/tell", told)
            wait_for(lambda: '"0"' in (client.last(f"{own}/told") or ""), process.log)
            assert [each.content["argument"] for each in client.on(f"{own}/told")] == ["1h", "0"]
            assert metrics(port)['fedkad_duplicates_total{device="hall/lamp"}'] == 0.0
            for unsubscribed in (f"deep/{lamp}", f"{own}/tell"):  # other brokers would send twice what two filters have
                wait_for(partial(is_logged, broker, f"\t{unsubscribed}\n"), f"{unsubscribed} is still wanted")
    assert process.log.count("publishes and is watched") == process.log.count("fan publishes and is watched") == 1
    assert "not a finite number" not in process.log
    assert "source:" not in process.log


# -- getting in -----------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_said_once_and_a_corrected_file_is_enough(tmp_path: Path, model: Path) -> None:
    rows, secret = series(10), tmp_path / "agent" / "secret"
    with Broker(tmp_path, users={"pump": "right", "test": "test"}, tls=True) as broker:
        login = {"username": "pump", "password_file": "secret", "ca_file": str(broker.authority)}
        process = Process(tmp_path / "agent", config(broker.source(**login), learning=learning(model)))
        secret.write_text("wrong\n")
        with process, broker.client(username="test", password="test") as client:
            wait_for(lambda: broker.log.count("not authorised") >= 3, "the agent has given up")
            assert process.log.count("refuses") == 1
            assert f"[source] broker 127.0.0.1:{broker.port} refuses the agent" in process.log
            assert "check username and password_file" in process.log
            secret.write_text("right\n")
            process.wait_for_log("connected.")
            client.publish_all("in/pump", [sample(rows, row) for row in range(10)])
            process.assert_scored_once(rows)
            assert process.log.count("\n") == 2


def test_an_authority_that_did_not_sign_the_broker_is_said_once(tmp_path: Path, model: Path) -> None:
    (tmp_path / "other.pem").write_bytes(make_authority("somebody else").public)
    with Broker(tmp_path, tls=True) as broker:
        source = broker.source(ca_file=str(tmp_path / "other.pem"))
        with Process(tmp_path / "agent", config(source, learning=learning(model))) as process:
            wait_for(lambda: broker.log.count("unknown ca") >= 2, "the agent has given up")
            (line,) = process.log.splitlines()
            assert f"[source] broker 127.0.0.1:{broker.port}" in line
            assert "certificate verify failed" in line
            assert "ca_file" in line
            assert process.is_running


def test_a_topic_that_the_broker_does_not_grant_is_said(tmp_path: Path, model: Path) -> None:
    plugins = list(Path("/usr/lib").glob("**/mosquitto_dynamic_security.so"))
    if not plugins:
        pytest.skip("There is no plugin of Mosquitto on this machine that refuses a subscription.")
    rights = {"publishClientSend": True, "publishClientReceive": True, "subscribe": False, "unsubscribe": True}
    (tmp_path / "rights.json").write_text(json.dumps({"defaultACLAccess": rights}))
    lines = f"plugin {plugins[0]}\nplugin_opt_config_file {tmp_path / 'rights.json'}"
    with (
        Broker(tmp_path, lines=lines) as broker,
        Process(tmp_path / "agent", config(broker.source(), learning=learning(model))) as process,
    ):
        process.wait_for_log(f"broker 127.0.0.1:{broker.port} does not grant in/pump")


def test_a_broker_that_wants_tls_is_told_from_one_that_is_away(tmp_path: Path, model: Path) -> None:
    with Broker(tmp_path, tls=True) as broker:
        source = broker.source(broker=f"mqtt://127.0.0.1:{broker.port}")
        with Process(tmp_path / "agent", config(source, learning=learning(model))) as process:
            process.wait_for_log("does not answer like a broker; check the port, and mqtts://")
            wait_for(lambda: broker.log.count("wrong version number") >= 3, "the agent has given up")
            assert process.log.count("\n") == 1


def test_two_agents_of_one_name_are_told_why_they_lose_their_connection(
    tmp_path: Path, model: Path, broker: Broker
) -> None:
    text = config(broker.source(topics=["same/{device}"]), top={"name": "same"}, learning=learning(model))
    with Process(tmp_path / "one", text) as one, Process(tmp_path / "other", text) as other:
        asked = "is there another client called fedkad-same? Then set another name."
        wait_for(lambda: asked in one.log + other.log, "nobody asks")


# -- nothing lost, nothing twice ------------------------------------------------------------------------------------


def publish(client: Client, rows: Array, since: int, until: int, topic: str = "in/pump", pause: float = 0.0) -> None:
    """One by one, each until the broker has it."""
    for row in range(since, until):
        client.publish(topic, sample(rows, row))
        time.sleep(pause)


def test_a_broker_that_restarts_in_the_stream_loses_no_sample(tmp_path: Path, model: Path) -> None:
    rows = series(120)
    with (
        Broker(tmp_path) as broker,
        broker.client() as client,
        Process(tmp_path / "agent", config(broker.source(), learning=learning(model))) as process,
    ):
        process.wait_for_log("connected.")
        sender = threading.Thread(target=publish, args=(client, rows, 0, len(rows)), kwargs={"pause": 0.01})
        sender.start()
        for times, least in enumerate((20, 60), start=1):
            process.wait_for_readings(least)
            broker.stop()
            process.wait_for_log("connection lost", times)
            broker.start()
            process.wait_for_log("connected.", times + 1)
        sender.join()
        process.assert_scored_once(rows)


def test_a_broker_that_is_killed_before_it_hears_of_samples_makes_none_count_twice(tmp_path: Path, model: Path) -> None:
    """The agent has them, and has committed none of them; what the broker itself forgets, nobody can know."""
    rows = series(60)
    with Broker(tmp_path) as broker, broker.client() as client:
        text = config(broker.source(), learning=learning(model), top={"commit_every": 2})
        with Process(tmp_path / "agent", text) as process:
            process.wait_for_log("connected.")
            for times, (since, until) in enumerate(((0, 10), (10, 20), (20, 60)), start=1):
                publish(client, rows, since, until)
                process.wait_for_readings(until)
                broker.kill()
                process.wait_for_log("connection lost", times)
                broker.start()
                process.wait_for_log("connected.", times + 1)
            process.assert_scored_once(rows)


def test_messages_that_come_while_the_agent_is_down_wait_for_it(tmp_path: Path, model: Path, broker: Broker) -> None:
    rows = series(60)
    source = broker.source(topics=["down/{device}"], client_id="down")
    process = Process(tmp_path, config(source, learning=learning(model)))
    with broker.client() as client:
        with process:
            process.wait_for_log("connected.")
            client.publish_all("down/pump", [sample(rows, row) for row in range(10)])
            process.wait_for_readings(10)
            assert process.stop() == 0
        client.publish_all("down/pump", [sample(rows, row) for row in range(10, 60)])
        with process:
            process.assert_scored_once(rows)


@pytest.mark.parametrize("killed", [False, True])
def test_acknowledgements_that_were_lost_make_no_sample_count_twice(
    tmp_path: Path, model: Path, broker: Broker, killed: bool
) -> None:
    """With a clock that counts, a sample that is taken twice can be told by its number."""
    rows, name = series(70), f"lost-{killed}"
    with wired(broker) as wire, broker.client() as client:
        source = broker.source(broker=f"mqtt://127.0.0.1:{wire.port}", topics=[f"{name}/{{device}}"], client_id=name)
        text = config(source, learning=learning(model), sampling={"clock": "count"})
        process = Process(tmp_path, text)
        with process:
            process.wait_for_log("connected.")
            # Fewer than the 20 messages that a broker leaves unacknowledged: the first replies may get lost too.
            client.publish_all(f"{name}/pump", [sample(rows, row) for row in range(5)])
            wait_for(lambda: kept_rows(tmp_path) == 5, "the first rows were not committed")
            wire.deaf = True  # what is acknowledged from here on does not arrive, in several commits
            for row in range(5, 15):
                client.publish(f"{name}/pump", sample(rows, row))
                wait_for(lambda row=row: kept_rows(tmp_path) == row + 1)  # type: ignore[misc]
            if killed:
                process.kill()
                process.start()
            else:
                wire.cut()
            wire.deaf = False
            process.wait_for_log("connected.", 2)
            client.publish_all(f"{name}/pump", [sample(rows, row) for row in range(15, 70)])
            process.assert_scored_once(rows)


def test_an_agent_that_is_killed_again_and_again_takes_every_sample_once(
    tmp_path: Path, model: Path, broker: Broker
) -> None:
    """Between two commits the agent has messages in hand that it must not have acknowledged."""
    rows = series(400)
    source = broker.source(topics=["killed/{device}"], client_id="killed")
    process = Process(tmp_path, config(source, learning=learning(model), sampling={"clock": "count"}))
    with process, broker.client() as client:
        process.wait_for_log("connected.")
        sender = threading.Thread(target=publish, args=(client, rows, 0, len(rows), "killed/pump", 0.003))
        sender.start()
        for least in range(20, 360, 60):
            wait_for(lambda least=least: kept_rows(tmp_path) >= least, "nothing is taken")  # type: ignore[misc]
            process.kill()
            process.start()
        sender.join()
        wait_for(lambda: kept_rows(tmp_path) >= len(rows), "samples were lost")
        assert process.stop() == 0
    database = sqlite3.connect(tmp_path / "state" / "agent.sqlite")
    found = [np.frombuffer(values) for (values,) in database.execute("SELECT vals FROM row ORDER BY seq")]
    database.close()
    np.testing.assert_array_equal(found, rows)


def kept_rows(folder: Path, device: str = "pump") -> int:
    """Rows that an agent has committed."""
    path = folder / "state" / "agent.sqlite"
    if not path.exists():
        return 0
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        found = database.execute("SELECT max(seq) FROM row WHERE device = ?", (device,)).fetchone()
    finally:
        database.close()
    return found[0] or 0


def test_what_arrives_while_the_agent_ends_is_not_acknowledged(tmp_path: Path, model: Path, broker: Broker) -> None:
    rows = broken(series(40), 8, 12)
    source = broker.source(topics=["ending/{device}"], client_id="ending")
    webhook = {"url": f"http://127.0.0.1:{free_port()}/nobody"}  # alerts that nobody takes keep an agent for a moment
    process = Process(tmp_path, config(source, learning=learning(model), webhook=webhook))
    with broker.client() as client:
        with process:
            process.wait_for_log("connected.")
            client.publish_all("ending/pump", [sample(rows, row) for row in range(15)])
            process.wait_for_readings(15)
            wait_for(process.alerts, "no alert")
            ending = threading.Thread(target=process.stop)
            ending.start()
            for row in range(15, 40):
                client.publish("ending/pump", sample(rows, row))
                time.sleep(0.05)
            ending.join()
        assert len(process.readings()) < 40  # else nothing came while it ended
        with process:
            process.assert_scored_once(rows)


# -- messages -------------------------------------------------------------------------------------------------------


def shapes(rows: Array) -> dict[str, list[str]]:
    """The series as devices of several makes send it."""
    records = [dict(zip(CHANNELS, row, strict=True)) for row in rows.tolist()]
    moments = [EPOCH + k for k in range(len(rows))]
    texts = np.datetime_as_string(np.array(moments).astype("datetime64[s]")).tolist()
    things = [{"ts": int(1000 * moment), "values": record} for moment, record in zip(moments, records, strict=True)]
    metric = [
        {"name": "pump", "fields": record, "tags": {"host": "x"}, "timestamp": int(moment)}
        for moment, record in zip(moments, records, strict=True)
    ]
    split = [
        [{**each, "name": "a", "fields": {"flow": each["fields"]["flow"]}} for each in metric],  # type: ignore[index]
        [
            {**each, "name": "b", "fields": {key: each["fields"][key] for key in ("heat", "pressure")}}  # type: ignore[index]
            for each in metric
        ],
    ]
    return {
        "zigbee": [
            json.dumps({**record, "linkquality": 80, "last_seen": f"{text}Z"})
            for text, record in zip(texts, records, strict=True)
        ],
        "tasmota": [
            json.dumps({"Time": text, "AM": {"flow": r["flow"]}, "B": {"heat": r["heat"], "pressure": r["pressure"]}})
            for text, r in zip(texts, records, strict=True)
        ],
        "thing": [json.dumps(each) for each in things],
        "things": [json.dumps(things[k : k + 4]) for k in range(0, len(rows), 4)],
        "telegraf": [json.dumps(each) for each in metric],
        "metrics": [json.dumps({"metrics": [a, b]}) for a, b in zip(*split, strict=True)],
    }


def test_every_shape_of_message_reaches_the_right_channels(tmp_path: Path, model: Path, broker: Broker) -> None:
    rows = series(16)
    sent = shapes(rows)
    source = broker.source(topics=["shape/+/{device}", "bare/{device}/{channel}"], client_id="shapes")
    hour = {"clock": "arrival", "period": 3600}  # long enough that all values of the test belong to one row
    text = config(source, devices=(*sent, "single", "bare"), learning=learning(model), override_bare_sampling=hour)
    with Process(tmp_path, text) as process, broker.client() as client:
        process.wait_for_log("connected.")
        for device, payloads in sent.items():
            client.publish_all(f"shape/hall/{device}", payloads)
        for row, values in enumerate(rows.tolist()):
            for name, value in reversed(list(zip(CHANNELS, values, strict=True))):
                client.publish(f"bare/single/{name}", json.dumps({"value": value, "time": EPOCH + row}))
        for name, number in (("heat", "+30.5"), ("flow", " 10.25 "), ("pressure", "2e1")):
            client.publish(f"bare/bare/{name}", number)
        for device in (*sent, "single"):
            process.assert_scored_once(rows, device)
        process.wait_for_readings(1, "bare")
        assert process.stop() == 0
        assert "bare: " not in process.log
    database = sqlite3.connect(tmp_path / "state" / "agent.sqlite")
    (values,) = database.execute("SELECT vals FROM row WHERE device = 'bare'").fetchone()
    database.close()
    assert np.frombuffer(values).tolist() == [10.25, 20.0, 30.5]


GARBAGE: dict[str, str | bytes] = {
    "no JSON": "{flow: 1}",
    "cut": '{"flow": 1.0, "pres',
    "text": '{"flow": "much", "pressure": "on", "heat": {}}',
    "a list of numbers": "[1, 2, 3]",
    "a bare number": "21.5",
    "noise": np.random.default_rng(0).bytes(1 << 20),
    "NaN": '{"flow": NaN, "pressure": NaN, "heat": NaN}',
    "infinite": '{"flow": Infinity, "pressure": -Infinity, "heat": 1e999}',
    "empty": "",
    "no time": '{"flow": 1, "pressure": 1, "heat": 1, "time": "yesterday"}',
    "deep": '{"a":' * 50_000,
    "long": '{"flow": ' + "9" * 10_000 + "}",
}


def test_garbage_is_counted_acknowledged_and_stops_nothing(tmp_path: Path, model: Path) -> None:
    rows, port = series(2 * len(GARBAGE) + 10), free_port()
    with Broker(tmp_path) as broker, broker.client() as client:
        source = broker.source(topics=["in/{device}", "common"])
        text = config(source, learning=learning(model), prometheus={"port": port})
        process = Process(tmp_path / "agent", text)
        with process:
            process.wait_for_log("connected.")
            for row, garbage in enumerate(GARBAGE.values()):
                client.publish("in/pump", garbage)
                client.publish("in/pump", '{"unknown": 3, "time": 5}')
                client.publish("common", json.dumps({"device": "ghost", "flow": 1.0}))
                client.publish("in/pump", sample(rows, row, colour="red"))
            process.assert_scored_once(rows[: len(GARBAGE)])
            shown = metrics(port)
            assert shown['fedkad_refused_total{device="pump"}'] == len(GARBAGE)
            assert (shown['fedkad_broker_connected{section="source"}'], shown["fedkad_disk_full"]) == (1.0, 0.0)
            assert shown['fedkad_alerts_waiting{sink="stdout"}'] == 0.0
            assert abs(time.time() - shown['fedkad_last_sample_timestamp_seconds{device="pump"}']) < 3600.0
            said = process.log.splitlines()
            assert sum("fedkad-agent: pump: " in line for line in said) == 6
            assert sum("'ghost', which is not configured" in line for line in said) == 3
            assert all(len(line) < 300 for line in said)
            acknowledged = "Received PUBACK from fedkad-hall"
            wait_for(lambda: broker.log.count(acknowledged) == 4 * len(GARBAGE), "not all is acknowledged")
            process.kill()
        with process:
            client.publish_all("in/pump", [sample(rows, row) for row in range(len(GARBAGE), len(rows))])
            process.assert_scored_once(rows)
            assert metrics(port)['fedkad_refused_total{device="pump"}'] == len(GARBAGE)
        assert "PUBLISH to fedkad-hall (d1" not in broker.log


# -- who is told what -----------------------------------------------------------------------------------------------


def test_alerts_and_availability_go_to_the_topics_of_their_device(tmp_path: Path, model: Path, broker: Broker) -> None:
    first, second = broken(series(120), 20, 26, channel=0), broken(series(120), 20, 26, channel=2)

    def agent(name: str, prefix: str, *devices: str) -> Process:
        source = broker.source(topics=["two/{device}"])
        more = {"learning": learning(model), "mqtt": {"prefix": prefix}}
        return Process(tmp_path / name, config(source, devices=devices, top={"name": name}, **more))

    one, other = agent("one", "solo", "pump-1"), agent("other", "solo", "pump-2")
    both = agent("both", "both", "pump-1", "pump-2")
    with broker.client() as client, one, other, both:
        client.subscribe("solo/+/alert", "both/+/alert", "solo/+/status", "both/#")
        for process in (one, other, both):
            process.wait_for_log("connected.")
        for name, rows in (("pump-1", first), ("pump-2", second)):
            client.publish_all(f"two/{name}", [sample(rows, row) for row in range(120)])
        for prefix in ("solo", "both"):
            for device, channel in (("pump-1", "flow"), ("pump-2", "heat")):
                topic = f"{prefix}/{device}/alert"
                wait_for(lambda topic=topic: len(client.on(topic)) >= 2, topic)  # type: ignore[misc]
                alerts = [heard.content for heard in client.on(topic)]
                assert [alert["event"] for alert in alerts] == ["start", "end"]
                assert {alert["device"] for alert in alerts} == {device}
                assert alerts[0]["channels"][0]["channel"] == channel
                assert not any(heard.retained for heard in client.on(topic))
        one.kill()
        wait_for(lambda: client.last("solo/pump-1/status") == "offline", "the will was not read")
        assert client.last("solo/pump-2/status") == "online"
        one.start()
        wait_for(lambda: client.last("solo/pump-1/status") == "online", "it does not come back")
        assert one.stop() == 0
        wait_for(lambda: client.last("solo/pump-1/status") == "offline", "it does not say goodbye")
        both.kill()
        wait_for(lambda: client.last("both/agent/both/status") == "offline", "the will was not read")
        both.start()
        wait_for(lambda: client.last("both/agent/both/status") == "online", "it does not come back")
        assert both.stop() == 0
        for leaf in ("agent/both", "pump-1", "pump-2"):
            wait_for(lambda leaf=leaf: client.last(f"both/{leaf}/status") == "offline", leaf)  # type: ignore[misc]
    with broker.client() as late:
        late.subscribe("solo/pump-1/status")
        wait_for(lambda: late.last("solo/pump-1/status") == "offline", "the last word is not retained")


def test_home_assistant_is_introduced_to_a_device_once_and_again_when_it_comes_back(
    tmp_path: Path, model: Path, broker: Broker
) -> None:
    topic = "home/device/fedkad_pump/config"
    source = broker.source(topics=["ha/{device}"], client_id="ha")
    text = config(source, learning=learning(model), mqtt={}, homeassistant={"prefix": "home"})
    with broker.client() as client, Process(tmp_path, text) as process:
        client.subscribe(topic, "fedkad/pump/status")
        wait_for(lambda: client.last("fedkad/pump/status") == "online" and client.on(topic), "no introduction")
        assert len(client.on(topic)) == 1
        client.publish("home/status", "offline")
        client.publish("home/status", "online")
        wait_for(lambda: len(client.on(topic)) >= 2, "no second introduction")
        client.publish("ha/pump", sample(series(1), 0))
        process.wait_for_readings(1)
        assert len(client.on(topic)) == 2
        with broker.client() as late:
            late.subscribe(topic)
            found = wait_for(lambda: late.on(topic), "it is not retained")
        assert found[0].retained
        assert found[0].content["state_topic"] == "fedkad/pump/state"
        assert found[0].content["availability"] == [{"topic": "fedkad/pump/status"}]


def test_alerts_wait_for_a_broker_that_is_away_and_arrive_in_order(tmp_path: Path, model: Path, broker: Broker) -> None:
    rows = series(200)
    for start in range(20, 200, 30):
        rows = broken(rows, start, start + 6)
    with Broker(tmp_path) as away, away.client(name="reader") as reader:
        reader.subscribe("fedkad/pump/alert")
        away.stop()
        source = broker.source(topics=["away/{device}"], client_id="away")
        text = config(source, learning=learning(model), mqtt={"broker": away.url})
        with Process(tmp_path / "agent", text) as process, broker.client() as client:
            process.wait_for_log("[source] broker")
            client.publish_all("away/pump", [sample(rows, row) for row in range(len(rows))])
            process.assert_scored_once(rows)
            expected = wait_for(lambda: alerts if len(alerts := process.alerts()) == 12 else None, "no alerts")
            process.wait_for_log("Connection refused; trying again")
            process.kill()
            process.start()
            process.wait_for_log("Connection refused; trying again", 2)
            away.start()
            wait_for(lambda: len(reader.heard) >= 12, "alerts were lost")
            wait_for(lambda: waiting(tmp_path / "agent") == 0, "alerts were taken and are kept nevertheless")
            heard = [(each.content["id"], each.content["event"]) for each in reader.heard]
            assert heard == [(alert["id"], alert["event"]) for alert in expected]


def test_alerts_that_were_under_way_when_the_line_broke_are_sent_again(
    tmp_path: Path, model: Path, broker: Broker
) -> None:
    rows = broken(series(60), 20, 26)
    with wired(broker) as wire, broker.client() as client:
        client.subscribe("broken/pump/alert", "broken/pump/status")
        sink = {"broker": f"mqtt://127.0.0.1:{wire.port}", "prefix": "broken"}
        text = config({"kind": "stdin"}, top={"name": "broken"}, learning=learning(model), mqtt=sink)
        with Process(tmp_path, text, piped=True) as process:
            wait_for(lambda: client.last("broken/pump/status") == "online", "no connection")
            wire.deaf = True
            process.feed(*(sample(rows, row) for row in range(60)))
            expected = wait_for(lambda: alerts if len(alerts := process.alerts()) == 2 else None, "no alerts")
            wire.cut()
            wire.deaf = False
            wait_for(lambda: len(client.on("broken/pump/alert")) >= 2, "alerts were lost")
            wait_for(lambda: waiting(tmp_path) == 0, "alerts were taken and are kept nevertheless")
        heard = [each.content["id"] + each.content["event"] for each in client.on("broken/pump/alert")]
        assert heard == [alert["id"] + alert["event"] for alert in expected]


def waiting(folder: Path, sink: str = "mqtt") -> int:
    """Alerts that a sink has not taken."""
    database = sqlite3.connect(f"file:{folder / 'state' / 'agent.sqlite'}?mode=ro", uri=True)
    try:
        return int(database.execute("SELECT count(*) FROM outbox WHERE sink = ?", (sink,)).fetchone()[0])
    finally:
        database.close()


# -- states ---------------------------------------------------------------------------------------------------------

NOW = time.time()


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory, model: Path, broker: Broker) -> Iterator[tuple[Client, Process]]:
    """An agent with a device in each state, and a client that has heard what it says of them."""
    devices = ("young", "warm", "silent", "serviced", "thrifty")
    source = broker.source(topics=["states/{device}"], client_id="states")
    hour_ago, in_an_hour = (
        np.datetime_as_string(np.datetime64(int(NOW + shift), "s")) + "Z" for shift in (-3600, 3600)
    )
    text = config(
        source,
        devices=devices,
        top={"name": "states"},
        mqtt={"prefix": "states-out", "state_every": 0.2},
        learning=learning(model),
        sampling={"stale_after": 3600},
        override_young_learning={"model": "", "first": 300},
        override_silent_sampling={"stale_after": 1},
        override_thrifty_alarm={"budget": "2/day"},
    )
    text += f'\n[[maintenance]]\ndevice = "serviced"\nfrom = {hour_ago}\nuntil = "{in_an_hour}"\n'
    rows, faulty = series(40), broken(series(120), 20, 26)  # with quiet for the incident to end
    with Process(tmp_path_factory.mktemp("states"), text) as process, broker.client() as client:
        client.subscribe("states-out/+/state", "states-out/+/alert")
        process.wait_for_log("connected.")
        # The last one's alerts are the last of all: who has none by then has none.
        client.publish_all("states/serviced", [sample(faulty, row, time=NOW + row) for row in range(40)])
        for device, sent, count in (
            ("young", rows, 40),
            ("warm", rows, 4),
            ("silent", rows, 15),
            ("thrifty", faulty, 120),
        ):
            client.publish_all(f"states/{device}", [sample(sent, row) for row in range(count)])
        for device, count in (("young", 40), ("warm", 4), ("silent", 15), ("thrifty", 120), ("serviced", 40)):
            process.wait_for_readings(count, device)
        wait_for(lambda: len(client.on("states-out/thrifty/alert")) >= 2, "no incident began and ended")
        wait_for(lambda: state(client, "silent").get("state") == "stale", "silence is not noticed")
        yield client, process


def state(client: Client, device: str) -> dict[str, Any]:
    """The last state that was published of a device."""
    found = client.on(f"states-out/{device}/state")
    return dict(found[-1].content) if found else {}


def test_a_device_without_a_model_says_how_far_it_has_come(states: tuple[Client, Process]) -> None:
    progress = {"have": 40, "need": 300, "seconds": 260.0}
    wait_for(lambda: state(states[0], "young").get("progress") == progress, "no progress")
    assert state(states[0], "young")["state"] == "learning"
    assert state(states[0], "young")["score"] is None


def test_a_window_that_fills_up_says_how_far_it_has_come(states: tuple[Client, Process]) -> None:
    need = detector().stream().length
    wait_for(lambda: state(states[0], "warm").get("progress") == {"have": 4, "need": need}, "no progress")
    assert state(states[0], "warm")["state"] == "warming"


def test_a_silent_device_is_stale_and_no_anomaly(states: tuple[Client, Process]) -> None:
    client, process = states
    found = state(client, "silent")
    assert (found["state"], found["abnormal"], found["incident"], found["score"]) == ("stale", False, None, None)
    (fault,) = found["faults"]

    def told() -> list[dict[str, Any]]:
        return [dict(message.content) for message in client.on("states-out/silent/alert")]

    # On a busy machine an earlier silence may have begun and ended between two of its rows.
    wait_for(lambda: told() and told()[-1]["id"] == fault["id"], "its fault is not told")
    assert {(alert["kind"], alert["fault"]) for alert in told()} == {("health", "silent")}
    assert told()[-1]["event"] == "start"
    assert [alert["id"] for alert in process.alerts("silent")] == [alert["id"] for alert in told()]


def test_planned_maintenance_silences(states: tuple[Client, Process]) -> None:
    client, process = states
    wait_for(lambda: state(client, "serviced").get("state") == "maintenance", "it is not noticed")
    assert any(reading["abnormal"] for reading in process.readings("serviced") if "score" in reading)
    assert process.alerts("thrifty")  # who had the same fault
    assert not process.alerts("serviced")
    assert not client.on("states-out/serviced/alert")
    assert state(client, "serviced")["incident"] is None


def test_a_budget_says_what_is_allowed_and_what_was_measured(states: tuple[Client, Process]) -> None:
    client, process = states
    scored = sum("score" in reading for reading in process.readings("thrifty"))
    starts = sum(alert["event"] == "start" for alert in process.alerts("thrifty"))
    assert starts >= 1

    def budget() -> dict[str, Any]:
        return state(client, "thrifty").get("budget") or {}

    wait_for(lambda: budget().get("watched_hours") == pytest.approx(scored / 3600), "the time is not counted")
    assert budget()["allowed"] == "2/day"
    assert budget()["allowed_per_week"] == pytest.approx(14.0)
    assert budget()["measured_per_week"] == pytest.approx(starts * 604800 / scored)
    thresholds = [reading["threshold"] for reading in process.readings("thrifty") if "score" in reading]
    used = copy.deepcopy(detector()).rejudge("2/day", 1.0)
    assert thresholds[0] == pytest.approx(used.threshold_)
    assert used.threshold_ != detector().threshold_
    # What is far above the threshold does not raise it; time has lowered it a little.
    assert 0.999 * thresholds[0] < thresholds[-1] < thresholds[0]
    assert budget()["threshold_factor"] == pytest.approx(thresholds[-1] / used.threshold_, rel=1e-3)


# -- another model --------------------------------------------------------------------------------------------------


def test_a_model_of_the_fleet_is_taken_over_without_losing_the_window(
    tmp_path: Path, model: Path, broker: Broker
) -> None:
    rows = series(40)
    renewed = KoopmanDetector.load(model).learn(series(600, seed=5))
    source = broker.source(topics=["new/{device}"], client_id="new")
    with Process(tmp_path, config(source, learning=learning(model))) as process, broker.client() as client:
        process.wait_for_log("connected.")
        client.publish_all("new/pump", [sample(rows, row) for row in range(20)])
        process.wait_for_readings(20)
        folder = DeviceState(tmp_path / "state" / "devices" / "pump")
        with folder.locked():
            folder.deliver(renewed, "a training")
        process.wait_for_log("pump: a new model is in use.")
        client.publish_all("new/pump", [sample(rows, row) for row in range(20, 40)])
        found = process.wait_for_readings(40)
        assert len(found) == 40
    expected = expected_scores(rows, renewed)[20:]
    assert [reading["state"] for reading in found[20:]] == ["ok"] * 20
    assert [reading["score"] for reading in found[20:]] == pytest.approx(expected, rel=1e-9)
    assert expected != pytest.approx(expected_scores(rows)[20:], rel=1e-3)  # the other model would say something else
