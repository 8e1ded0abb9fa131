"""Alerts by HTTP POST, one after the other, repeated until they are accepted."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from fedkad.edge.settings import SettingsError, WebhookSettings
from fedkad.edge.settings.credentials import read_token, tls_context
from fedkad.edge.sinks import Entry
from fedkad.edge.sinks.services import posting, read_answer
from fedkad.edge.sources.payload import quoted
from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)

MAX_QUEUED = 100
"""Alerts in memory; the outbox keeps the others and offers them again."""

MAX_RETRY_AFTER = 3600.0
"""The longest wait that a server can ask for: its mistake must not silence the agent for a year."""

LONGEST_ANSWER = 4096
"""Bytes of a refusal that are read, for its reason."""

TEMPORARY = (408, 425, 429)
"""Statuses that ask to try again later."""

FINAL = (400, 413, 422)
"""Statuses that refuse the content of an alert, and not the agent or the address: trying again is useless."""


class WebhookSink:
    """Posts alerts in a separate thread, in order, one at a time.

    Every alert has an `Idempotency-Key`, by which a server recognises a repeated one. Without an answer, or with a
    temporary refusal, it is posted again after 1 s, 2 s, 4 s … 5 min, each with a random addition so that a fleet does
    not come all at once, or after what `Retry-After` asks for. An alert whose content is refused, with status 400, 413
    or 422, is logged and skipped, since it would hold up all others. Any other refusal, including redirections, needs a
    person: it is logged, and the alert is posted again every 5 min. The token and the certificate authority are read
    again for every alert, so new files need no restart.

    A service that brings messages to people gets a plain text, so that a refusal is not about that but about the chat,
    the topic or the like: a person has to correct it, and the alert is kept.
    """

    name = "webhook"

    def __init__(self, settings: WebhookSettings, *, first_wait: float = 1.0, longest_wait: float = 300.0) -> None:
        self._settings, self._first_wait, self._longest_wait = settings, first_wait, longest_wait
        self._host = urlsplit(settings.url).hostname  # all that is logged: there may be a secret in the path
        self._change = threading.Condition()
        self._queue: deque[Entry] = deque()
        self._offered: set[int] = set()
        self._delivered: list[int] = []
        self._repeats = RepeatFilter()
        self._failures = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def offer(self, entries: Sequence[Entry]) -> None:
        """Queue the alerts that are not queued yet, as far as there is room."""
        with self._change:
            for key, alert in entries:
                if key in self._offered:
                    continue
                if self._is_closed or len(self._queue) >= MAX_QUEUED:
                    break  # later ones too, to keep the order
                self._offered.add(key)
                self._queue.append((key, alert))
            if self._queue and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fedkad-webhook", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def delivered(self) -> list[int]:
        """The keys that the server has accepted since the last call, or refused for good."""
        with self._change:
            keys, self._delivered = self._delivered, []
            self._offered.difference_update(keys)
            return keys

    def close(self, timeout: float = 1.0) -> None:
        """Stop; a request in progress gets `timeout` seconds. Alerts that are not delivered stay in the outbox."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._is_closed or self._queue)
                if self._is_closed:
                    return
                key, alert = self._queue[0]
            wait = self._deliver(key, alert)
            with self._change:
                self._change.wait_for(lambda: self._is_closed, timeout=wait)

    def _deliver(self, key: int, alert: Mapping[str, Any]) -> float:
        """Post once; returns the seconds to wait before the next attempt, 0 if the alert was accepted or skipped."""
        answer = self._post(key, alert)
        is_final = answer.code in FINAL and self._settings.format == "json"
        if is_final:
            named = f"alert {alert.get('id', key)} ({alert.get('event', 'without an event')})"
            logger.warning("The webhook at %s %s: %s is skipped.", self._host, answer.problem, named)
        if 200 <= answer.code < 300 or is_final:
            with self._change:
                self._queue.popleft()
                self._delivered.append(key)
            self._repeats.clear()
            self._failures = 0
            return 0.0
        if self._repeats.allows(answer.problem):
            logger.warning("The webhook at %s %s; alerts are kept.", self._host, answer.problem)
        if answer.needs_person:
            return self._longest_wait
        wait = self._first_wait * 2.0 ** min(self._failures, 30) * random.uniform(1.0, 1.5)
        self._failures += 1
        return max(min(wait, self._longest_wait), answer.retry_after)

    def _post(self, key: int, alert: Mapping[str, Any]) -> _Answer:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError

        try:
            try:
                return _Answer(_send(self._settings, key, alert))
            except HTTPError as error:
                with error:
                    # What any other server says beside its status could be anything, and may never end.
                    answer = read_answer(b"" if self._settings.format == "json" else error.read(LONGEST_ANSWER))
                    return _refusal(error.code, error.headers.get("Retry-After") or answer.retry_after, answer.reason)
        except URLError as error:
            return _Answer(0, f"cannot be reached ({error.reason})")
        except (OSError, HTTPException) as error:
            return _Answer(0, f"cannot be reached ({error or type(error).__name__})")
        except SettingsError as error:
            return _Answer(0, f"cannot be used: {str(error).removesuffix('.')}", needs_person=True)
        except Exception as error:  # if the thread died, nothing would be delivered for months
            return _Answer(0, f"cannot be used ({type(error).__name__})", needs_person=True)


class _Answer(NamedTuple):
    """The result of one request: the status or 0, and what is wrong if it failed."""

    code: int
    problem: str = ""
    needs_person: bool = False
    retry_after: float = 0.0


def _refusal(code: int, retry_after: str | None, reason: str) -> _Answer:
    if code >= 500 or code in TEMPORARY:
        return _Answer(code, f"answers {code}", retry_after=parse_retry_after(retry_after))
    remedy = "; write the new address to [webhook] url" if 300 <= code < 400 else ""
    because = f", {quoted(reason)}" if reason else ""
    return _Answer(code, f"refuses an alert with status {code}{because}{remedy}", needs_person=True)


def parse_retry_after(value: str | None, now: Callable[[], float] = time) -> float:
    """The seconds that `Retry-After` asks for, as a number or a date; 0 if it makes no sense.

    >>> later = "Thu, 01 Jan 1970 00:01:00 GMT"
    >>> [parse_retry_after(value, now=lambda: 50.0) for value in ("120", later, "soon", None)]
    [120.0, 10.0, 0.0, 0.0]
    """
    from email.utils import parsedate_to_datetime

    if value is None:
        return 0.0
    try:
        is_number = value.strip().isdigit()
        seconds = float(value) if is_number else parsedate_to_datetime(value).timestamp() - now()
    except (ValueError, TypeError, OverflowError, OSError):  # a year or a zone that is out of range
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _send(settings: WebhookSettings, key: int, alert: Mapping[str, Any]) -> int:
    """POST one alert; returns the status.

    urllib is imported here so that an agent without a webhook does not carry it in memory.
    """
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class NoRedirect(HTTPRedirectHandler):
        """The token is for one host, and a redirected POST becomes a GET that loses the alert."""

        def redirect_request(self, *_: Any) -> None:
            return None

    # The key is the same for every attempt, and ASCII, as headers must be.
    identity = quote(f"{alert.get('id', '')}/{alert.get('event', '')}/{key}", safe="/:+ ")
    posted = posting(settings, alert, read_token(settings.token_file, "webhook"))
    headers = {**posted.headers, "Idempotency-Key": identity}
    request = Request(posted.url, posted.body.encode(), headers, method="POST")
    handlers = [HTTPSHandler(context=tls_context("webhook", settings.ca_file))] if request.type == "https" else []
    with build_opener(NoRedirect, *handlers).open(request, timeout=settings.timeout) as response:
        return int(response.status)
