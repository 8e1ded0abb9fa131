"""When devices that connect only when they are called were last seen."""

import time

from fedkad.fleet.server.lastseen import MISSED, as_of_now
from fedkad.fleet.shared.notice import REPORT_EVERY


def test_a_device_is_off_when_it_has_missed_so_many_reports_and_polls() -> None:
    now, period = time.time(), 600.0
    patience = MISSED * (REPORT_EVERY + period)
    seen = as_of_now({"on": now - patience + 60.0, "off": now - patience - 60.0}, period).seen
    assert [(state := seen(name)) and state[0] for name in ("on", "off", "unknown")] == [True, False, None]
