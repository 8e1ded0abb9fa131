"""An HTTP server that takes alerts, for tests of webhooks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Script = list[tuple[int, dict[str, str]]]


class Request(NamedTuple):
    """A request as it came; `time` is monotonic."""

    time: float
    method: str
    headers: dict[str, str]
    body: bytes


class Receiver(ThreadingHTTPServer):
    """Answers with the statuses of a script, then with `status`, and keeps what it was sent.

    While `may_answer` is not set, it has the request and does not answer.
    """

    daemon_threads = True

    def __init__(self, script: Script, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.script, self.status = script, 200
        self.requests: list[Request] = []
        self.accepted: list[dict[str, Any]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.url = f"http://127.0.0.1:{self.server_port}/hook/secret"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver = self.server
        assert isinstance(receiver, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver.requests.append(Request(time.monotonic(), self.command, dict(self.headers.items()), body))
        receiver.may_answer.wait(60)
        code, headers = receiver.script.pop(0) if receiver.script else (receiver.status, {})
        if code == 0:  # hang up without an answer
            self.close_connection = True
            return
        if 200 <= code < 300:
            receiver.accepted.append(json.loads(body))
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiving(*script: int | tuple[int, dict[str, str]], port: int = 0) -> Iterator[Receiver]:
    answers = [(entry, {}) if isinstance(entry, int) else entry for entry in script]
    with Receiver(answers, port) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.may_answer.set()
            receiver.shutdown()
            thread.join()
