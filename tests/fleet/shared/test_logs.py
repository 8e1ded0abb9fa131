"""Lines of a fleet's log: with times, and in files of bounded size."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedkad.fleet.shared.logs import LogLine, kept_in


def record(level: int, message: str) -> logging.LogRecord:
    made = logging.LogRecord("fedkad.x", level, "", 0, message, (), None)
    made.created = 0.0
    return made


def test_a_line_has_its_time_unless_the_journal_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    assert LogLine.on_stderr().format(record(logging.INFO, "started")) == "1970-01-01T00:00:00Z started"
    assert LogLine.on_stderr().format(record(logging.WARNING, "ended")) == "1970-01-01T00:00:00Z warning: ended"
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")
    assert LogLine.on_stderr().format(record(logging.INFO, "started")) == "started"
    assert LogLine().format(record(logging.INFO, "started")) == "1970-01-01T00:00:00Z started"


def test_a_kept_log_is_bounded_and_a_full_disk_does_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("fedkad.fleet.server.operation")
    with kept_in(tmp_path / "server.log", 1000):
        for k in range(500):
            logger.warning("line %d", k)
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["server.log", "server.log.1"]
    assert all(path.stat().st_size <= 1000 for path in kept)
    assert (tmp_path / "server.log").read_text().endswith("line 499\n")
    with kept_in(tmp_path / "no folder" / "server.log", 1000):
        logger.warning("unkept")
    assert "Traceback" not in capsys.readouterr().err
