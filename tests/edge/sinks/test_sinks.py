"""Ways out for alerts, against real parts: an HTTP server, a scrape, a broker."""

import io
import json
import math
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from fedkad import __version__
from fedkad.edge.commands.command import check, read_command
from fedkad.edge.device.status import DeviceStatus
from fedkad.edge.settings import Prometheus, SettingsError, WebhookSettings
from fedkad.edge.sinks import AlertSink, to_json
from fedkad.edge.sinks import webhook as module
from fedkad.edge.sinks.homeassistant import discovery, object_id
from fedkad.edge.sinks.prometheus import COUNTERS, GAUGES, OF_AGENT, AgentMetrics, MetricsServer, check_port
from fedkad.edge.sinks.publications import Publication, Publications, level
from fedkad.edge.sinks.stdout import StdoutSink
from fedkad.edge.sinks.webhook import MAX_QUEUED, WebhookSink, parse_retry_after
from measurements.loopback import free_port
from tests.checks.edge import LimitedStream
from tests.fixtures.alerts import a_fault, an_alert
from tests.fixtures.broker import Broker, logged, wait_for
from tests.fixtures.receiver import receiving

RECORDED = Path(__file__).parents[2] / "recorded"

ALERT: dict[str, Any] = {
    "id": "pump-1-20261115T000000Z-1",
    "device": "pump-1",
    "event": "start",
    "channels": [{"channel": "flow", "share": 0.6, "seen": 3.2, "expected": 5.1}],
    "text": "pump-1: flow",
}
FAULT = {
    "id": "pump-1-h1",
    "device": "pump-1",
    "kind": "health",
    "fault": "stuck",
    "channel": "pressure",
    "text": 999 * "x",
}

INCIDENT = an_alert(device="pump-1", text=ALERT["text"])
STUCK = a_fault(device="pump-1", channel="pressure", text=FAULT["text"])


# --- JSON lines


@pytest.mark.slow
def test_a_reader_that_has_gone_is_told_to_the_caller() -> None:
    code = (
        "import sys, time; from fedkad.edge.sinks.stdout import StdoutSink; lines = StdoutSink(sys.stdout)\n"
        "lines.offer([(1, {})]); sys.stdin.readline()\n"
        "try: lines.offer([(1, {}), (2, {})])\n"
        "except BrokenPipeError: print(lines.delivered(), file=sys.stderr)\n"
        "sys.stderr.flush(); import os; os._exit(0)"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline()) == {"type": "alert"}
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stderr.read().strip() == "[1]"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("size", [3, 20_000])
def test_a_line_that_could_not_be_written_is_written_once(size: int, buffered: bool) -> None:
    raw = LimitedStream()
    stream = io.TextIOWrapper(io.BufferedWriter(raw) if buffered else raw, write_through=not buffered)  # type: ignore[type-var]
    lines = StdoutSink(stream)
    alerts: list[tuple[int, dict[str, Any]]] = [(key, {"key": key, "text": "ä" * size}) for key in (1, 2, 3)]
    for room in (0, 0, 25, 0, 0, size, 0):
        raw.room = room
        with pytest.raises(OSError, match="No space"):
            lines.offer(alerts)
        with pytest.raises(OSError, match="No space"):
            lines.write_reading({"key": -1})
    assert (lines.delivered(), raw.content.count(b"\n")) == ([], 0)
    raw.room = 10**6
    lines.write_reading({"key": 0})
    assert lines.delivered() == [1]
    lines.offer(alerts[1:])
    lines.offer(alerts[1:])
    assert lines.delivered() == [2, 3]
    assert [json.loads(line)["key"] for line in raw.content.splitlines()] == [1, 0, 2, 3]


def test_json_is_strict() -> None:
    assert json.loads(to_json({"a": [math.inf, (1.0, -math.inf)], "b": {"c": math.nan}, "d": None, "e": "x"})) == {
        "a": [None, [1.0, None]],
        "b": {"c": None},
        "d": None,
        "e": "x",
    }


# --- webhook


@contextmanager
def posting(
    settings: WebhookSettings, first: float = 0.01, longest: float = 0.05
) -> Iterator[tuple[WebhookSink, list[str]]]:
    webhook = WebhookSink(settings, first_wait=first, longest_wait=longest)
    with logged() as said:
        try:
            yield webhook, said
        finally:
            webhook.close()


def collect(webhook: WebhookSink, count: int) -> list[int]:
    keys: list[int] = []

    def enough() -> bool:
        keys.extend(webhook.delivered())
        return len(keys) >= count

    wait_for(enough)
    return keys


def test_a_webhook_delivers_in_order_through_failures() -> None:
    entries = [(key, {**ALERT, "event": event}) for key, event in ((4, "start"), (5, "update"), (9, "end"))]
    with receiving(500, 0, 503, 200, 429, 408) as receiver, posting(WebhookSettings(receiver.url)) as (webhook, said):
        sink: AlertSink = webhook
        sink.offer(entries)
        sink.offer(entries)
        assert collect(webhook, 3) == [4, 5, 9]
        assert [json.loads(body)["event"] for *_, body in receiver.requests] == ["start"] * 4 + ["update"] * 3 + ["end"]
        headers, body = receiver.requests[0].headers, receiver.requests[0].body
        assert headers["Content-Type"] == "application/json"
        assert headers["Idempotency-Key"] == "pump-1-20261115T000000Z-1/start/4"
        assert "Authorization" not in headers
        assert json.loads(body) == entries[0][1]
        assert all("127.0.0.1" in text and "secret" not in text for text in said)
        assert webhook.delivered() == []


def test_a_refusal_is_said_once_and_nothing_is_lost() -> None:
    with receiving(403, 403, 403) as receiver, posting(WebhookSettings(receiver.url)) as (webhook, said):
        webhook.offer([(1, ALERT), (2, ALERT)])
        assert collect(webhook, 2) == [1, 2]
        assert said == ["The webhook at 127.0.0.1 refuses an alert with status 403; alerts are kept."]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_alert_that_is_refused_for_good_holds_up_no_other(status: int) -> None:
    with receiving(200, status) as receiver, posting(WebhookSettings(receiver.url), longest=300.0) as (webhook, said):
        webhook.offer([(key, {**ALERT, "id": f"pump-{key}"}) for key in (1, 2, 3)])
        assert collect(webhook, 3) == [1, 2, 3]
        assert [json.loads(body)["id"] for *_, body in receiver.requests] == ["pump-1", "pump-2", "pump-3"]
        assert said == [
            f"The webhook at 127.0.0.1 refuses an alert with status {status}: alert pump-2 (start) is skipped."
        ]


@pytest.mark.parametrize("status", [401, 403, 404, 408, 425, 429, 500])
def test_an_alert_is_kept_while_its_refusal_may_mend(status: int) -> None:
    with receiving(status, status) as receiver, posting(WebhookSettings(receiver.url)) as (webhook, _):
        webhook.offer([(1, ALERT), (2, ALERT)])
        assert collect(webhook, 2) == [1, 2]
        assert len(receiver.requests) == 4


def test_a_failure_is_tried_again_soon_and_a_refusal_slowly() -> None:
    script = (500, 500, 0, 403, (429, {"Retry-After": "7"}), 200, 500)
    with receiving(*script) as receiver:
        webhook = WebhookSink(WebhookSettings(receiver.url))
        webhook._queue.append((1, ALERT))
        first, second, third, refused, asked, accepted, again = (webhook._deliver(1, ALERT) for _ in script)
    assert 1.0 <= first <= 1.5
    assert 2.0 <= second <= 3.0
    assert 4.0 <= third <= 6.0
    assert (refused, accepted) == (300.0, 0.0)
    assert 8.0 <= asked <= 12.0  # longer than the server asks for
    assert 1.0 <= again <= 1.5
    assert parse_retry_after("9" * 30) == 3600.0
    assert parse_retry_after("-5") == 0.0
    assert parse_retry_after("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0


@pytest.mark.parametrize(
    "asked",
    [
        "Thu, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Thu, 01 Jan 2026 00:00:00 +99999999999999999999",
        "Thu, 01 Jan 0001 00:00:00 +2359",
        *("²", "Mon", " ", "1e9", "nan"),
    ],
)
def test_no_answer_of_a_server_ends_the_thread(asked: str) -> None:
    assert parse_retry_after(asked) == 0.0
    with receiving((503, {"Retry-After": asked})) as receiver, posting(WebhookSettings(receiver.url)) as (webhook, _):
        webhook.offer([(1, ALERT)])
        assert collect(webhook, 1) == [1]


def test_a_mistake_in_reading_an_answer_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ArithmeticError

    with receiving(503) as receiver, posting(WebhookSettings(receiver.url)) as (webhook, said):
        monkeypatch.setattr(module, "parse_retry_after", fail)
        webhook.offer([(1, ALERT)])
        assert collect(webhook, 1) == [1]
        assert said == ["The webhook at 127.0.0.1 cannot be used (ArithmeticError); alerts are kept."]


def test_a_token_goes_to_one_host_only(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hush\n")
    with receiving() as other:
        moved = (302, {"Location": other.url})
        with (
            receiving(moved) as receiver,
            posting(WebhookSettings(receiver.url, token_file=str(token))) as (webhook, said),
        ):
            webhook.offer([(1, ALERT)])
            assert collect(webhook, 1) == [1]
            assert [request[1] for request in receiver.requests] == ["POST", "POST"]
            assert receiver.requests[1][2]["Authorization"] == "Bearer hush"
        assert other.requests == []
    assert said == [
        "The webhook at 127.0.0.1 refuses an alert with status 302; write the new address to [webhook] url; "
        "alerts are kept."
    ]


@pytest.mark.parametrize("content", [None, "two words", "two\nlines", ""])
def test_a_token_that_cannot_be_used_is_said_and_waited_for(tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    with receiving() as receiver, posting(WebhookSettings(receiver.url, token_file=str(token))) as (webhook, said):
        webhook.offer([(1, ALERT)])
        wait_for(lambda: said)
        assert "token_file in [webhook]" in said[0]
        assert "two" not in said[0]
        token.write_text("hush")
        assert collect(webhook, 1) == [1]


def test_a_device_with_any_name_can_be_posted() -> None:
    with receiving() as receiver, posting(WebhookSettings(receiver.url)) as (webhook, _):
        webhook.offer([(1, {**ALERT, "id": "Pumpe Süd\n-1"})])
        assert collect(webhook, 1) == [1]
        assert receiver.requests[0][2]["Idempotency-Key"] == "Pumpe S%C3%BCd%0A-1/start/1"


def test_a_server_that_comes_later_gets_all() -> None:
    port = free_port()
    with posting(WebhookSettings(f"http://127.0.0.1:{port}/")) as (webhook, said):
        webhook.offer([(key, ALERT) for key in range(MAX_QUEUED + 7)])
        wait_for(lambda: said)
        assert "cannot be reached" in said[0]
        with receiving(port=port) as receiver:
            assert collect(webhook, MAX_QUEUED) == list(range(MAX_QUEUED))
            webhook.offer([(key, ALERT) for key in range(MAX_QUEUED, MAX_QUEUED + 7)])
            assert collect(webhook, 7) == list(range(MAX_QUEUED, MAX_QUEUED + 7))
            assert len(receiver.requests) == MAX_QUEUED + 7


def test_what_the_server_accepts_after_the_sink_was_closed_is_not_forgotten() -> None:
    with receiving() as receiver, posting(WebhookSettings(receiver.url)) as (webhook, _):
        receiver.may_answer.clear()
        webhook.offer([(1, ALERT)])
        wait_for(lambda: receiver.requests)
        webhook.close(timeout=0.0)
        webhook.offer([(2, ALERT)])
        receiver.may_answer.set()
        assert collect(webhook, 1) == [1]
        assert len(receiver.requests) == 1


def certificate(folder: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed.")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@pytest.mark.slow
def test_an_authority_of_ones_own(tmp_path: Path) -> None:
    import ssl

    chain, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    with receiving() as receiver:
        receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
        url = receiver.url.replace("http:", "https:")
        with posting(WebhookSettings(url, ca_file=str(chain))) as (webhook, said):
            webhook.offer([(1, ALERT)])
            assert collect(webhook, 1) == [1]
            assert said == []
        with posting(WebhookSettings(url)) as (webhook, said):
            webhook.offer([(1, ALERT)])
            wait_for(lambda: said)
            assert "CERTIFICATE_VERIFY_FAILED" in said[0]
        with posting(WebhookSettings(url, ca_file=str(tmp_path / "none.pem"))) as (webhook, said):
            webhook.offer([(1, ALERT)])
            wait_for(lambda: said)
            assert "ca_file in [webhook] must name one" in said[0]


@pytest.mark.slow
def test_an_agent_without_a_webhook_does_not_carry_its_libraries() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import fedkad.edge.sinks.webhook, fedkad.edge.sinks.prometheus, fedkad.edge.sinks.stdout\n"
        "heavy = ('urllib.request', 'http.client', 'prometheus_client', 'wsgiref', 'email.utils')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- services that bring messages to people


class Services(BaseHTTPRequestHandler):
    """What ntfy, Slack's incoming webhooks and Telegram's Bot API say they take, and how they answer anything else."""

    taken: list[tuple[str, dict[str, Any], dict[str, str]]]
    full = False  # whether Telegram has had too many

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code, answer = self.answer(body)
        if code == 200:
            self.taken.append((self.path, json.loads(body), dict(self.headers.items())))
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def answer(self, body: bytes) -> tuple[int, bytes]:
        content = json.loads(body)
        if self.headers["Content-Type"] != "application/json":
            return 400, b"invalid_payload"
        if self.path == "/services/T0/B0/secret":
            return (200, b"ok") if set(content) == {"text"} and content["text"] else (400, b"no_text")
        if self.path in ("", "/"):
            is_fine = re.fullmatch(r"[-_A-Za-z0-9]{1,64}", content["topic"]) and content["priority"] in range(1, 6)
            is_fine = is_fine and all(isinstance(content[key], str) for key in ("message", "title"))
            is_fine = is_fine and len(content["message"].encode()) <= 4096 and isinstance(content["tags"], list)
            return (200, b"{}") if is_fine else (400, b'{"code":40024,"http":400}')
        if not re.fullmatch(r"/bot\d+:[-\w]{5,}/sendMessage", self.path):
            return 404, b'{"ok":false,"error_code":404,"description":"Not Found"}'
        if type(self).full:
            type(self).full = False
            return 429, b'{"ok":false,"error_code":429,"parameters":{"retry_after":1}}'
        chat, text = content.get("chat_id"), content.get("text")
        if not (isinstance(chat, int) or str(chat).startswith("@")) or not 1 <= len(text) <= 4096:
            return 400, b'{"ok":false,"error_code":400,"description":"Bad Request: chat not found"}'
        return 200, b'{"ok":true,"result":{"message_id":1}}'

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def services() -> Iterator[tuple[str, type[Services]]]:
    kind = type("TheseServices", (Services,), {"taken": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", kind
        finally:
            server.shutdown()
            thread.join()


TOLD = [
    {**ALERT, "severity": "warning", "text": "pump-1: a < b & c"},
    {**ALERT, "severity": "critical", "event": "update", "text": "ä" * 5000},
    {**ALERT, "severity": "critical", "event": "end"},
    {**FAULT, "event": "start", "severity": "warning"},
]


def test_what_is_posted_to_people_is_what_their_services_take(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("123:secret-token\n")
    token = str(tmp_path / "token")
    alerts = list(enumerate(TOLD, start=1))
    with services() as (url, kind):
        for settings in (
            WebhookSettings(f"{url}/hall", format="ntfy", headers={"X-Markdown": "no"}, token_file=token),
            WebhookSettings(f"{url}/services/T0/B0/secret", format="slack"),
            WebhookSettings(url, format="telegram", chat="-1001", token_file=token),
            WebhookSettings(f"{url}/", format="telegram", chat="@hall", headers={"X-Own": "1"}, token_file=token),
        ):
            kind.full = settings.chat == "-1001"
            with posting(settings) as (webhook, said):
                webhook.offer(alerts)
                assert collect(webhook, len(alerts)) == [key for key, _ in alerts]
            assert not any("secret" in line for line in said)
        ntfy, slack, telegram, channel = (kind.taken[4 * k : 4 * k + 4] for k in range(4))
    assert {content["topic"] for _, content, _ in ntfy} == {"hall"}
    assert [content["priority"] for _, content, _ in ntfy] == [4, 5, 2, 4]
    assert [content["title"] for _, content, _ in ntfy][1:3] == ["pump-1: critical", "pump-1: over"]
    assert {(sent["Authorization"], sent["X-Markdown"]) for _, _, sent in ntfy} == {("Bearer 123:secret-token", "no")}
    assert [content["text"] for _, content, _ in slack][::2] == ["pump-1: a &lt; b &amp; c", "pump-1: flow"]
    assert {path for path, _, _ in telegram + channel} == {"/bot123:secret-token/sendMessage"}
    assert [{content["chat_id"] for _, content, _ in each} for each in (telegram, channel)] == [{-1001}, {"@hall"}]
    assert telegram[0][1]["text"] == "pump-1: a < b & c"
    assert not any("Authorization" in sent for _, _, sent in slack + telegram)
    assert {sent["X-Own"] for _, _, sent in channel} == {"1"}


def test_an_alert_is_kept_while_a_service_refuses_it_and_the_reason_is_said(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("wrong")
    with services() as (url, _):
        settings = WebhookSettings(url, format="telegram", chat="1", token_file=str(tmp_path / "token"))
        with posting(settings) as (webhook, said):
            webhook.offer([(1, TOLD[0])])
            wait_for(lambda: said)
            assert said == ["The webhook at 127.0.0.1 refuses an alert with status 404, 'Not Found'; alerts are kept."]
            (tmp_path / "token").write_text("123:secret-token")
            assert collect(webhook, 1) == [1]
    with receiving(400, 400) as receiver:
        settings = WebhookSettings(receiver.url, format="telegram", chat="1", token_file=str(tmp_path / "token"))
        with posting(settings) as (webhook, said):
            webhook.offer([(1, TOLD[0])])
            assert collect(webhook, 1) == [1]
            assert len(receiver.requests) == 3
            assert said == ["The webhook at 127.0.0.1 refuses an alert with status 400; alerts are kept."]


# --- Prometheus


def scraped(port: int) -> dict[str, Any]:
    """What is served, by the name of its family, as two parsers read it: that of Prometheus's text and the strict one.

    The strict one refuses names that OpenMetrics does not allow, such as a counter without _total.
    """
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
    from prometheus_client.parser import text_string_to_metric_families as plain

    def text(accepted: str) -> str:
        asked = Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accepted})
        return str(urlopen(asked, timeout=10).read().decode())

    def samples(families: Iterable[Any]) -> set[tuple[str, str, str]]:
        return {(each.name, str(each.labels), str(each.value)) for family in families for each in family.samples}

    families = {family.name: family for family in strict(text("application/openmetrics-text; version=1.0.0"))}  # type: ignore[no-untyped-call]
    assert samples(families.values()) == samples(plain(text("text/plain")))
    return families


def test_prometheus_reads_what_the_snapshot_says() -> None:
    numbers: dict[str, dict[str, float]] = {
        "pump-1": {"score": 2.5, "threshold": 6.0, "abnormal": 0, "rows": 17, "time": 3.0},
        'hall "2"\\': {"score": math.nan, "warming": True, "incidents": 2},
    }

    def snapshot() -> AgentMetrics:
        return AgentMetrics(numbers, {"source": True, "mqtt": False}, {"webhook": 3}, is_disk_full=True)

    metrics = MetricsServer(Prometheus(port=0), snapshot)
    try:
        families = scraped(metrics.port)
        assert set(families) == {
            *("fedkad_score", "fedkad_threshold", "fedkad_abnormal", "fedkad_warming"),
            *("fedkad_rows", "fedkad_incidents", "fedkad_build", *(f"fedkad_{name}" for name in OF_AGENT)),
        }
        shown = {
            (each.name, *sorted(each.labels.values())): each.value
            for name in ("build", *OF_AGENT)
            for each in families[f"fedkad_{name}"].samples
        }
        assert shown == {
            ("fedkad_build_info", __version__, sys.version.split()[0]): 1.0,
            ("fedkad_broker_connected", "source"): 1.0,
            ("fedkad_broker_connected", "mqtt"): 0.0,
            ("fedkad_alerts_waiting", "webhook"): 3.0,
            ("fedkad_disk_full",): 1.0,
        }
        scores = {sample.labels["device"]: sample.value for sample in families["fedkad_score"].samples}
        assert scores["pump-1"] == 2.5
        assert math.isnan(scores['hall "2"\\'])
        assert families["fedkad_rows"].type == "counter"
        assert [(s.name, s.value) for s in families["fedkad_rows"].samples] == [("fedkad_rows_total", 17.0)]
        assert all(family.documentation for family in families.values())
        numbers["pump-1"]["rows"] = 18
        assert scraped(metrics.port)["fedkad_rows"].samples[0].value == 18.0
        for taken in (check_port, lambda settings: MetricsServer(settings, snapshot)):
            with pytest.raises(SettingsError, match=rf"\[prometheus\] port = {metrics.port} is not available on 127.0"):
                taken(Prometheus(port=metrics.port))
    finally:
        metrics.close()
    check_port(Prometheus(port=metrics.port))
    MetricsServer(Prometheus(port=metrics.port), snapshot).close()


def test_every_number_has_a_meaning_and_a_lawful_name() -> None:
    for name, meaning in {**GAUGES, **COUNTERS, **OF_AGENT}.items():
        assert re.fullmatch("[a-z_]+", name)
        assert meaning.endswith(".")
        assert "NaN" not in meaning  # what a device has no number of is left out


# --- MQTT and Home Assistant


def test_topics_and_messages() -> None:
    publications = Publications("plant/fedkad", "hall 2", ("a/b", "c"))
    assert publications.availability("a/b") == ["plant/fedkad/agent/hall 2/status", "plant/fedkad/a%2Fb/status"]
    assert Publications(devices=("c",)).availability("c") == ["fedkad/c/status"]
    assert publications.alert(ALERT) == Publication("plant/fedkad/pump-1/alert", to_json(ALERT), 1, False)
    assert publications.will() == Publication("plant/fedkad/agent/hall 2/status", "offline", 1, True)
    assert publications.all_status(online=False)[0] == publications.will()
    # Whoever listens to what makes a device available hears all of it when the agent comes.
    said = {message.topic: message.payload for message in publications.all_status(online=True)}
    assert said == {topic: "online" for device in ("a/b", "c") for topic in publications.availability(device)}
    assert len({level(name) for name in ("a/b", "a%2Fb", "a+b", "a#b", "ab")}) == 5


def test_the_state_of_a_device() -> None:
    status = DeviceStatus(state="stale", time=0.0, score=math.nan, threshold=6.0, incident=INCIDENT)
    message = Publications().state("pump-1", status)
    assert (message.topic, message.retain) == ("fedkad/pump-1/state", True)
    assert json.loads(message.payload) == {
        "state": "stale",
        "time": "1970-01-01T00:00:00.000Z",
        "score": None,
        "threshold": 6.0,
        "abnormal": False,
        "rate": None,
        "progress": None,
        "why": None,
        "budget": None,
        "cause": "flow",
        "incident": INCIDENT.to_json(),
        "faults": [],
        "muted": None,
    }
    assert DeviceStatus(state="ok", incident=replace(INCIDENT, channels=())).payload()["cause"] is None
    assert DeviceStatus(state="ok", faults=[STUCK]).payload()["cause"] == "pressure"


def test_the_discovery_message() -> None:
    topics = ["fedkad/agent/hall/status", "fedkad/pump-1/status"]
    publications = Publications(agent="hall", devices=("pump-1", "pump-2"))
    message = discovery(publications, "pump-1", ["flow", "pressure"])
    payload = json.loads(message.payload)
    assert message.topic == "homeassistant/device/fedkad_pump-1/config"
    # What the schema of a device's discovery allows at its root; anything else makes Home Assistant refuse the message.
    assert set(payload) == {"dev", "o", "cmps", "state_topic", "availability", "availability_mode"}
    assert set(payload["dev"]) <= {"ids", "name", "mf", "mdl", "sw"}
    assert payload["o"]["name"] == "fedkad"
    assert payload["availability"] == [{"topic": topic} for topic in topics]
    assert payload["availability_mode"] == "all"
    components = payload["cmps"]
    assert {name: entry["p"] for name, entry in components.items()} == {
        "problem": "binary_sensor",
        **dict.fromkeys(["score", "threshold", "anomaly_rate", "state", "cause", "fault"], "sensor"),
        **dict.fromkeys(["alert", "progress", "remaining", "alarms"], "sensor"),
        **dict.fromkeys(["normal", "acknowledge", "relearn"], "button"),
        "mute": "switch",
        "budget": "number",
    }
    assert len({entry["unique_id"] for entry in components.values()}) == len(components)
    assert components["state"]["availability"] == [{"topic": topics[0]}]
    for entry in components.values():
        # A sensor that is one of several words has no unit and no statistics.
        assert entry.get("device_class") != "enum" or not {"state_class", "unit_of_measurement"} & set(entry)


@pytest.mark.parametrize("recorded", json.loads((RECORDED / "discovery.json").read_text()), ids=itemgetter("device"))
def test_the_discovery_message_is_that_of_before(recorded: dict[str, Any]) -> None:
    """Home Assistant must not see a device change because of a new version of the agent."""
    topics = recorded["publications"]
    publications = Publications(**{**topics, "devices": tuple(topics["devices"])})
    message = discovery(publications, recorded["device"], recorded["channels"], recorded["prefix"])
    assert message.topic == recorded["topic"]
    assert message.payload.replace(__version__, "VERSION") == recorded["payload"]


@pytest.mark.parametrize("device", ["Pumpe Süd", "a/b", "a b", "", "ä" * 50])
def test_object_ids_are_lawful_and_different(device: str) -> None:
    assert re.fullmatch("[a-zA-Z0-9_-]+", object_id(device))
    assert object_id(device) != object_id(device.replace("/", "_").replace(" ", "_") + "_")
    message = discovery(Publications(), device, ["flow"], "ha")
    assert re.fullmatch(r"ha/device/[a-zA-Z0-9_-]+/config", message.topic)
    assert json.loads(message.payload)["dev"]["name"] == f"{device} (FedKAD)"


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (
            DeviceStatus(
                state="ok",
                score=2.5,
                threshold=6.0,
                rate=0.07,
                incident=INCIDENT,
                muted=1e9,
                budget={"allowed_per_week": 7.0000001, "measured_per_week": 1.2345},
            ),
            {
                "mute": "ON",
                "budget": "7.0",
                "problem": "ON",
                "score": "2.5",
                "threshold": "6.0",
                "anomaly_rate": "7.0",
                "state": "ok",
                "cause": "flow",
                "fault": "none",
                "alert": "pump-1: flow",
                "progress": "100",
                "remaining": "0",
                "alarms": "1.23",
            },
        ),
        (
            DeviceStatus(state="stale", progress={"have": 100, "need": 300, "seconds": 200.0}),
            {
                **{"problem": "OFF", "score": "None", "threshold": "None", "anomaly_rate": "None"},
                **{"state": "stale", "cause": "none", "fault": "none", "mute": "OFF", "budget": "None"},
                **{"alert": "none", "progress": "33.3", "remaining": "0.1", "alarms": "None"},
            },
        ),
        (
            DeviceStatus(
                state="warming",
                score=math.nan,
                progress={"have": 3, "need": 6},
                budget={"allowed_per_week": 1.0, "measured_per_week": None},
            ),
            {
                **{"alert": "none", "progress": "100", "remaining": "0", "alarms": "None"},
                **{"problem": "OFF", "score": "None", "threshold": "None", "anomaly_rate": "None"},
                **{"state": "warming", "cause": "none", "fault": "none", "mute": "OFF", "budget": "1.0"},
            },
        ),
        (
            DeviceStatus(state="ok", score=2.5, threshold=6.0, rate=0.0, faults=[STUCK]),
            {
                **{"problem": "ON", "score": "2.5", "threshold": "6.0", "anomaly_rate": "0.0"},
                **{"state": "ok", "cause": "pressure", "fault": "stuck", "mute": "OFF", "budget": "None"},
                **{"alert": 255 * "x", "progress": "100", "remaining": "0", "alarms": "None"},
            },
        ),
        (
            DeviceStatus(state="ok", faults=[replace(STUCK, acknowledged="anna")]),
            {
                **{"problem": "OFF", "score": "None", "threshold": "None", "anomaly_rate": "None"},
                **{"state": "ok", "cause": "pressure", "fault": "stuck", "mute": "OFF", "budget": "None"},
                **{"alert": 255 * "x", "progress": "100", "remaining": "0", "alarms": "None"},
            },
        ),
    ],
)
def test_the_templates_show_the_state(status: DeviceStatus, shown: dict[str, str]) -> None:
    jinja2 = pytest.importorskip("jinja2")
    payload = json.loads(discovery(Publications(), "pump-1", ["flow"]).payload)
    value = json.loads(to_json(status.payload()))
    shows = {k: entry["value_template"] for k, entry in payload["cmps"].items() if "value_template" in entry}
    render = {k: jinja2.Template(template).render(value_json=value) for k, template in shows.items()}
    assert render == shown
    assert payload["cmps"]["cause"]["options"] == ["none", "flow"]
    assert status.state in payload["cmps"]["state"]["options"]
    attributes = jinja2.Template(payload["cmps"]["cause"]["json_attributes_template"]).render(value_json=value)
    shown_of = [alert.to_json() for alert in (status.incident, *status.faults) if alert is not None]
    assert json.loads(attributes) == [*shown_of, {}][0]


def test_a_fault_that_somebody_knows_of_does_not_hide_the_next_one() -> None:
    known = replace(STUCK, channel="flow", acknowledged="anna")
    payload = DeviceStatus(state="ok", faults=[known, STUCK]).payload()
    assert (payload["faults"], payload["cause"]) == ([STUCK.to_json(), known.to_json()], "pressure")


def test_what_home_assistant_sends_are_commands() -> None:
    jinja2 = pytest.importorskip("jinja2")
    components = json.loads(discovery(Publications(), "pump-1", ["flow"]).payload)["cmps"]
    sent = [components[name]["payload_press"] for name in ("normal", "acknowledge", "relearn")]
    sent += [components["mute"][f"payload_{way}"] for way in ("on", "off")]
    sent += [jinja2.Template(components["budget"]["command_template"]).render(value=2.5)]
    told = [check(read_command(payload.encode(), "pump-1", 0.0), ["pump-1"]) for payload in sent]
    assert [str(each) for each in told] == ["normal", "acknowledge", "relearn", "mute 1d", "mute 0", "budget 2.5/week"]
    assert {each.sender for each in told} == {"Home Assistant"}
    topics = {entry["command_topic"] for entry in components.values() if "command_topic" in entry}
    assert topics == {Publications().topic("pump-1", "tell")}


def test_a_broker_takes_every_message_and_keeps_the_retained_ones(tmp_path: Path) -> None:
    device = "hall/2 #süd+"
    publications = Publications(agent="agent", devices=(device,))
    messages = [
        discovery(publications, device, ["flow"]),
        *publications.all_status(online=True),
        publications.state(device, DeviceStatus(state="warming", score=math.nan)),
        publications.alert({**ALERT, "device": device}),
    ]
    with Broker(tmp_path, lasting=False) as broker, broker.client() as sender:
        for message in messages:
            sender.publish(message.topic, message.payload, retain=message.retain)
        retained = {message.topic: message.payload for message in messages if message.retain}
        with broker.client() as late:
            late.subscribe("#")
            wait_for(lambda: len(late.heard) >= len(retained), "they are not retained")
            sender.publish("last", "")
            wait_for(lambda: late.on("last"))
            assert {heard.topic: heard.payload for heard in late.heard if heard.topic != "last"} == retained
