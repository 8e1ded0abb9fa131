from __future__ import annotations

import logging
import time

import pytest

from fedkad.repeats import RepeatFilter

logger = logging.getLogger(__name__)


def test_a_few_messages_of_each_subject_per_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    limited = RepeatFilter(limit=2, period=3600.0)
    assert [limited.allows(subject) for subject in "aaab"] == [True, True, False, True]
    clock[0] = 1800.0
    assert [limited.allows(subject) for subject in "abb"] == [False, True, False]
    clock[0] = 3600.0  # what was logged an hour ago does not count any more
    assert [limited.allows(subject) for subject in "abb"] == [True, True, False]


def test_the_last_message_that_is_let_through_can_say_so() -> None:
    limited = RepeatFilter(limit=2)
    assert limited.allows("a")
    assert not limited.is_spent("a")
    assert limited.allows("a")
    assert limited.is_spent("a")


def test_a_text_is_logged_again_after_another_one(caplog: pytest.LogCaptureFixture) -> None:
    once = RepeatFilter()
    with caplog.at_level(logging.INFO):
        for text in ("lost", "lost", "connected", "lost"):
            once.log(logger, text, logging.INFO)
        once.log(logger, "lost", subject="another")
    assert caplog.messages == ["lost", "connected", "lost", "lost"]
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 3 + [logging.WARNING]


def test_a_trouble_that_was_over_is_logged_again() -> None:
    once = RepeatFilter()
    assert once.allows("a", "full")
    once.clear()
    assert once.allows("a", "full")
