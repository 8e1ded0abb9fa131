"""Messages to an operator by HTTP POST, sent by a thread of their own so that no slow receiver holds up the server."""

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

logger = logging.getLogger(__name__)

MOST_WAITING = 100
ATTEMPTS, FIRST_WAIT, LONGEST_WAIT = 24, 1.0, 600.0  # two and a half hours in all
TIMEOUT = 10.0


class Messenger:
    """Posts JSON, in order, each until it is accepted or was tried often; what is waiting is lost with the process."""

    def __init__(self, url: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.url, self.pause = url, pause
        self.host = urlsplit(url).hostname  # all that is logged: there may be a secret in the path
        self._waiting: queue.Queue[bytes] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def send(self, message: Mapping[str, object]) -> None:
        """Have a message posted."""
        try:
            self._waiting.put_nowait(json.dumps(message).encode())
        except queue.Full:
            logger.warning("the webhook at %s does not keep up; a message is dropped.", self.host)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fedkad-webhook", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._deliver(self._waiting.get())

    def _deliver(self, body: bytes) -> None:
        for attempt in range(ATTEMPTS):
            try:
                request = Request(self.url, body, {"Content-Type": "application/json"}, method="POST")
                urlopen(request, timeout=TIMEOUT).close()
                return
            except (OSError, HTTPException, ValueError) as error:  # a refusal with a status is an OSError too
                if attempt == 0:
                    reason = getattr(error, "reason", error)
                    logger.warning("the webhook at %s does not take a message (%s); trying again.", self.host, reason)
            self.pause(min(FIRST_WAIT * 2.0**attempt, LONGEST_WAIT))
        logger.warning("the webhook at %s has not taken a message; it is dropped.", self.host)
