"""The types of alerts: their JSON, also that of earlier versions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.alert import IncidentAlert, format_time, from_json
from tests.fixtures.alerts import BEGUN, a_fault, an_alert

LATER = ("worst", "witness", "sentence", "acknowledged", "provisional")
"""What alerts of the first versions did not have."""


def test_json_and_back_is_the_same_alert() -> None:
    for alert in (an_alert(acknowledged="anna", channels=(), worst=None, score=None), a_fault(channel=None)):
        assert from_json(alert.to_json()) == alert
    assert list(from_json(BEGUN).to_json().items()) == list(BEGUN.items()), "also in this order"


def test_an_alert_of_the_first_version_opens() -> None:
    alert = from_json({key: value for key, value in BEGUN.items() if key not in LATER})
    assert isinstance(alert, IncidentAlert)
    assert (alert.worst, alert.sentence, alert.acknowledged, alert.provisional) == (None, "", None, False)


@pytest.mark.parametrize(
    "broken", [{}, {"kind": "health"}, {**BEGUN, "event": "begin"}, {**BEGUN, "start": "soon"}, []]
)
def test_what_is_no_alert_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        from_json(broken)


@given(st.floats(-7e10, 3e11))
def test_the_times_of_an_alert_are_those_that_it_shows(time: float) -> None:
    alert = replace(an_alert(), start=time, time=time, worst=time)
    assert format_time(alert.start) == format_time(time) == alert.to_json()["worst"]
    assert from_json(alert.to_json()) == alert
