"""Alerts by HTTP POST, one after the other, again and again until they are taken."""

from __future__ import annotations

import random
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from fedkad.edge.settings import WebhookSettings
from fedkad.edge.sinks import Entry, to_json

if TYPE_CHECKING:
    import ssl

HELD = 100
"""Alerts in memory; the outbox keeps the others, and offers them again."""

LONGEST_REQUEST = 3600.0
"""A server may ask for so many seconds of patience; a typo of its author silences nobody for a year."""

PASSING = (408, 425, 429)
"""Refusals that say: not now."""

FINAL = (400, 413, 422)
"""Refusals of what an alert says, and not of the agent or of the address: nobody can repair them for this alert."""


class Webhook:
    """Posts alerts in a thread of its own, in order, one at a time.

    Every alert has an `Idempotency-Key`, by which a server tells one that it has already seen. Without an answer, or
    with one that says "not now", it is posted again after 1 s, 2 s, 4 s … 5 min, each a little longer by chance so that
    a fleet does not knock all at once, or after what `Retry-After` asks for. An alert whose contents are refused, by
    status 400, 413 or 422, is said and passed over, for it would hold up all behind it. Any other refusal, redirections
    included, needs a person: it is said, and the alert is posted again every 5 min until somebody has repaired it. The
    files of token and authority are read for every alert, so that new ones need no restart.

    Parameters
    ----------
    settings : WebhookSettings
    say : callable
        Told in one sentence what is wrong, once until an alert is taken again. Called in the thread.
    first, longest : float
        Seconds to wait after a first failure, and at most.
    """

    name = "webhook"

    def __init__(
        self, settings: WebhookSettings, say: Callable[[str], None], *, first: float = 1.0, longest: float = 300.0
    ) -> None:
        self._settings, self._say, self._first, self._longest = settings, say, first, longest
        self._change = threading.Condition()
        self._queue: deque[Entry] = deque()
        self._known: set[int] = set()
        self._taken: list[int] = []
        self._said: set[str] = set()
        self._failures = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def offer(self, entries: Sequence[Entry]) -> None:
        """Queue what is not under way yet, as far as there is room."""
        with self._change:
            for key, alert in entries:
                if key in self._known:
                    continue
                if self._closed or len(self._queue) >= HELD:
                    break  # not even a later one: order is kept
                self._known.add(key)
                self._queue.append((key, alert))
            if self._queue and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="fedkad-webhook", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def taken(self) -> list[int]:
        """Keys that the server has accepted since the last call, or refused for good."""
        with self._change:
            keys, self._taken = self._taken, []
            self._known.difference_update(keys)
            return keys

    def close(self, timeout: float = 1.0) -> None:
        """Stop; a request that is under way gets so many seconds. What was not taken stays in the outbox."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closed or self._queue)
                if self._closed:
                    return
                key, alert = self._queue[0]
            if (wait := self._deliver(key, alert)) is None:
                continue
            with self._change:
                self._change.wait_for(lambda: self._closed, timeout=wait)

    def _deliver(self, key: int, alert: Mapping[str, Any]) -> float | None:
        """Post once; return None if it was taken or passed over, or the seconds to wait before the next try."""
        answer = self._post(key, alert)
        if answer.code in FINAL:
            named = f"alert {alert.get('id', key)} ({alert.get('event', 'of no event')})"
            self._say(f"The webhook at {self._host} {answer.trouble}: {named} is not sent again; the next ones are.")
        if 200 <= answer.code < 300 or answer.code in FINAL:
            with self._change:
                self._queue.popleft()
                self._taken.append(key)
            self._said.clear()
            self._failures = 0
            return None
        self._complain(answer.trouble)
        if answer.needs_person:
            return self._longest
        wait = min(self._first * 2.0 ** min(self._failures, 30) * random.uniform(1.0, 1.5), self._longest)
        self._failures += 1
        return max(wait, answer.patience)

    def _complain(self, trouble: str) -> None:
        if trouble in self._said:
            return
        self._said.add(trouble)
        self._say(f"The webhook at {self._host} {trouble}; alerts are kept.")

    @property
    def _host(self) -> str | None:
        """All that is said of an address: there may be a secret in its path."""
        return urlsplit(self._settings.url).hostname

    def _post(self, key: int, alert: Mapping[str, Any]) -> _Answer:
        try:
            return self._ask(key, alert)
        except Exception as error:  # a thread that dies would deliver nothing for months, and nobody would know
            return _Answer(0, trouble=f"cannot be used ({type(error).__name__})", needs_person=True)

    def _ask(self, key: int, alert: Mapping[str, Any]) -> _Answer:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError

        try:
            return _Answer(_send(self._settings, key, alert))
        except HTTPError as error:
            with error:
                return _refusal(error.code, error.headers.get("Retry-After"))
        except URLError as error:
            return _Answer(0, trouble=f"cannot be reached ({error.reason})")
        except (OSError, HTTPException) as error:
            return _Answer(0, trouble=f"cannot be reached ({error or type(error).__name__})")
        except _FileError as error:
            return _Answer(0, trouble=str(error), needs_person=True)


class _Answer(NamedTuple):
    """What came of one request: a status or 0, and what to say and do if that is no success."""

    code: int
    trouble: str = ""
    needs_person: bool = False
    patience: float = 0.0


class _FileError(Exception):
    """A file of the settings that cannot be used."""


def _refusal(code: int, retry_after: str | None) -> _Answer:
    if code >= 500 or code in PASSING:
        return _Answer(code, f"answers {code}", patience=patience(retry_after))
    remedy = "; write the new address to [webhook] url" if 300 <= code < 400 else ""
    return _Answer(code, f"refuses an alert with status {code}{remedy}", needs_person=True)


def patience(retry_after: str | None, now: Callable[[], float] = time) -> float:
    """Seconds that a server asks for by `Retry-After`, a number or a date; 0 if it asks for nothing that makes sense.

    >>> patience("120"), patience("Thu, 01 Jan 1970 00:01:00 GMT", now=lambda: 50.0), patience("soon"), patience(None)
    (120.0, 10.0, 0.0, 0.0)
    """
    from email.utils import parsedate_to_datetime

    if retry_after is None:
        return 0.0
    try:
        asked = (
            float(retry_after)
            if retry_after.strip().isdigit()
            else parsedate_to_datetime(retry_after).timestamp() - now()
        )
    except (ValueError, TypeError, OverflowError, OSError):  # a year or a zone that no clock can show
        return 0.0
    return min(max(asked, 0.0), LONGEST_REQUEST)


def _send(settings: WebhookSettings, key: int, alert: Mapping[str, Any]) -> int:
    """POST one alert; return the status.

    urllib is imported here: an agent without a webhook does not carry it in memory.
    """
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        """Follow nowhere: the token is for one host, and a redirected POST becomes a GET that loses the alert."""

        def redirect_request(self, *_: Any) -> None:
            return None

    headers = {"Content-Type": "application/json", "User-Agent": "fedkad", "Idempotency-Key": _name(key, alert)}
    if settings.token_file:
        headers["Authorization"] = f"Bearer {_token(settings.token_file)}"
    request = Request(settings.url, to_json(alert).encode(), headers, method="POST")
    handlers = [HTTPSHandler(context=_context(settings.ca_file))] if request.type == "https" else []
    with build_opener(Stay, *handlers).open(request, timeout=settings.timeout) as response:
        return int(response.status)


def _context(authority: str) -> ssl.SSLContext:
    """Trusts that authority, or those of the system."""
    import ssl

    try:
        return ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise _FileError(f"cannot be used: [webhook] ca_file {authority} is not readable ({error})") from None


def _name(key: int, alert: Mapping[str, Any]) -> str:
    """The same for every try, and plain ASCII, all that a header may hold."""
    return quote(f"{alert.get('id', '')}/{alert.get('event', '')}/{key}", safe="/:+ ")


def _token(path: str) -> str:
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _FileError(f"cannot be used: [webhook] token_file {path} is not readable ({error})") from None
    if not re.fullmatch("[!-~]+", token):  # else the complaint of http.client would quote it
        raise _FileError(f"cannot be used: [webhook] token_file {path} is not one word of plain characters")
    return token
