"""An alert as the services expect it that bring messages to people: ntfy, Slack and Telegram.

==========  ============================  ============================================================================
json        url                           the alert as it is
ntfy        url without its last level    JSON with that level as the topic, a title, a message, a priority and tags
slack       url                           the text, as incoming webhooks take it
telegram    url/bot<token>/sendMessage    the chat and the text
==========  ============================  ============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedkad.edge.settings import WebhookSettings
from fedkad.edge.sinks import to_json

LONGEST = 1000
"""Characters of a text, which is for a phone. ntfy makes a file of more than 4096 bytes, and Telegram refuses them."""


class Posting(NamedTuple):
    """What is posted, and where; `headers` may hold a secret, and so may the address."""

    url: str
    body: str
    headers: dict[str, str]


def posting(settings: WebhookSettings, alert: Mapping[str, Any], token: str) -> Posting:
    """An alert in the format of the settings, with their own headers; no token for none.

    >>> alert = {"device": "pump-1", "event": "start", "severity": "critical", "text": "pump-1: 3 < 5"}
    >>> posting(WebhookSettings("https://ntfy.sh/hall", format="ntfy"), alert, "")[:2]
    ('https://ntfy.sh', '{"topic":"hall","title":"pump-1: critical","message":"pump-1: 3 < 5","priority":5,\
"tags":["rotating_light"]}')
    >>> posting(WebhookSettings("https://hooks.slack.com/services/T/B/x", format="slack"), alert, "").body
    '{"text":"pump-1: 3 &lt; 5"}'
    >>> posting(WebhookSettings("https://api.telegram.org", format="telegram", chat="-7"), alert, "1:x")[:2]
    ('https://api.telegram.org/bot1:x/sendMessage', '{"chat_id":-7,"text":"pump-1: 3 < 5"}')
    """
    url, content = _FORMATS[settings.format](settings, alert, token)
    headers = {"Content-Type": "application/json", "User-Agent": "fedkad"}
    if token and settings.format != "telegram":  # which has it in the address
        headers["Authorization"] = f"Bearer {token}"
    return Posting(url, to_json(content), {**headers, **settings.headers})


class ServiceAnswer(NamedTuple):
    """What a service says beside the status of a refusal: seconds to wait, and why."""

    retry_after: str | None = None
    reason: str = ""


def read_answer(body: bytes) -> ServiceAnswer:
    """The refusal of a service: Telegram has a description and ntfy an error in JSON, Slack a word.

    >>> read_answer(b'{"ok":false,"description":"Too Many Requests","parameters":{"retry_after":35}}')
    ServiceAnswer(retry_after='35', reason='Too Many Requests')
    >>> read_answer(b'{"code":40009,"error":"topic invalid"}').reason, read_answer(b"no_service").reason
    ('topic invalid', 'no_service')
    """
    text = body.decode(errors="replace").strip()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return ServiceAnswer(reason=text)
    if not isinstance(content, dict):
        return ServiceAnswer(reason=text)
    parameters = content.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    reason = content.get("description") or content.get("error") or ""
    return ServiceAnswer(str(seconds) if isinstance(seconds, int) else None, str(reason))


Formatted = tuple[str, Mapping[str, Any]]


def _json(settings: WebhookSettings, alert: Mapping[str, Any], token: str) -> Formatted:
    return settings.url, alert


def _ntfy(settings: WebhookSettings, alert: Mapping[str, Any], token: str) -> Formatted:
    url, _, topic = settings.url.rpartition("/")
    is_over, is_critical = alert["event"] == "end", alert["severity"] == "critical"
    priority = 2 if is_over else 5 if is_critical else 4 if alert["event"] == "start" else 3
    tag = "white_check_mark" if is_over else "rotating_light" if is_critical else "warning"
    title = f"{alert['device']}: {'over' if is_over else alert['severity']}"
    return url, {"topic": topic, "title": title, "message": _text(alert), "priority": priority, "tags": [tag]}


def _slack(settings: WebhookSettings, alert: Mapping[str, Any], token: str) -> Formatted:
    text = _text(alert)
    for character, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # all that Slack gives a meaning
        text = text.replace(character, instead)
    return settings.url, {"text": text}


def _telegram(settings: WebhookSettings, alert: Mapping[str, Any], token: str) -> Formatted:
    chat = settings.chat if settings.chat.startswith("@") else int(settings.chat)
    return f"{settings.url.rstrip('/')}/bot{token}/sendMessage", {"chat_id": chat, "text": _text(alert)}


def _text(alert: Mapping[str, Any]) -> str:
    text = str(alert["text"])
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


_FORMATS: dict[str, Callable[[WebhookSettings, Mapping[str, Any], str], Formatted]] = {
    "json": _json,
    "ntfy": _ntfy,
    "slack": _slack,
    "telegram": _telegram,
}
