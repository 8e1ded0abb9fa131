"""Every source and every sink keeps the contract in `tests/checks/edge.py`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checks import edge as checks

SINKS = (checks.StdoutEnds, checks.WebhookEnds, checks.BrokerEnds)
SINK_CHECKS = (
    checks.check_delivers_in_order,
    checks.check_sends_once_what_is_offered_again,
    checks.check_delivers_after_a_failure_what_was_not_delivered,
    checks.check_reports_nothing_undelivered_when_closed,
    checks.check_reports_what_is_delivered_while_it_closes,
    checks.check_never_blocks,
)
SOURCES = (checks.StdinEnds, checks.FileEnds, checks.MqttEnds)
SOURCE_CHECKS = (
    checks.check_hands_out_in_order,
    checks.check_acknowledges_only_after_the_commit,
    checks.check_resumes_where_it_was,
    checks.check_hands_out_only_what_is_asked_for,
    checks.check_survives_garbage,
    checks.check_closes_twice,
)


@pytest.mark.parametrize("check", SINK_CHECKS)
@pytest.mark.parametrize("ends", SINKS)
def test_sink(
    ends: Callable[[Path], checks.SinkEnds], check: Callable[[checks.SinkEnds], None], tmp_path: Path
) -> None:
    made = ends(tmp_path)
    with made.closing:
        check(made)


@pytest.mark.parametrize("check", SOURCE_CHECKS)
@pytest.mark.parametrize("ends", SOURCES)
def test_source(
    ends: Callable[[Path], checks.SourceEnds], check: Callable[[checks.SourceEnds], None], tmp_path: Path
) -> None:
    made = ends(tmp_path)
    with made.closing:
        check(made)
