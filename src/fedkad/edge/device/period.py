"""The period of a device: how it is found, and whether its samples keep it.

It is the configured one, or that of before a restart, or that of the model that the device begins with, or else that of
its first samples, which wait until it is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fedkad.detect.modelfile import ModelFileError, load_model
from fedkad.edge.settings import BY_PERIOD, INFERRED, SHORTEST_PERIOD, DeviceSettings

BLOCK = 20
"""Intervals that are looked at together."""

AGREEING = 0.8
"""They agree if so large a share of them"""

NEAR = 0.2
"""is so near to their median."""

CONVINCING = 10
"""Blocks that must agree after two in a row that did not: who sends when a value changes may be calm for days.

A single one in between that does not is forgiven: it has the intervals from before and after a change of the period.
"""

ROUND = {1: 0.03, 2: 0.005}
"""By how large a share an interval may differ from one of so many digits that it is taken for."""

MOST_WITHOUT = 1000
"""Samples in a row without the channel of a block, after which another one is taken: it may never come again."""

MOST_WAITING = 1000
"""Samples that wait for their period to be known; there are so many if their clock stands still."""

A_SECOND = 1.0
"""The shortest period that is inferred from arrivals, and that of a clock that stands still."""

A_MINUTE = 60.0
"""The longest period that is inferred from intervals that do not agree: what comes sooner would be dropped."""

UNKNOWN_SILENCE = 3600.0
"""Seconds that a device may be silent while its period is not known."""

OTHER = 1.5
"""Samples whose interval differs from the period by this factor come at another one."""

MANY_AT_ONCE = 20
"""Values that share a slot with others, and are dropped, before that is logged."""

NO_TIMES = (
    "%s: many samples without a known time come in one period, and only the first one counts; set time_key in "
    '[source], or clock = "count" in [sampling] if they are one period apart.'
)


def find_period(settings: DeviceSettings, before: float) -> float:
    """Return the configured period, or that of `before` a restart, or of the model; `INFERRED` if none is known.

    Samples that are only counted show none, and are a second apart.
    """
    configured, is_counted = settings.sampling.period, settings.sampling.clock == "count"
    return configured or before or _period_of_model(settings) or (1.0 if is_counted else INFERRED)


def _period_of_model(settings: DeviceSettings) -> float:
    for path in (Path(settings.learning.folder) / "model.safetensors", Path(settings.learning.model or ".")):
        with suppress(ModelFileError, OSError):
            return load_model(path, memory=False)[0].settings.sample_period or INFERRED
    return INFERRED


def with_period(settings: DeviceSettings, period: float) -> DeviceSettings:
    """Return the settings with the period in use; while none is known, the device may be silent for an hour."""
    sampling = settings.sampling
    if period != INFERRED:
        return replace(settings, sampling=replace(sampling, period=period))
    stale_after = UNKNOWN_SILENCE if sampling.stale_after == BY_PERIOD else sampling.stale_after
    return replace(settings, sampling=replace(sampling, period=1.0, stale_after=stale_after))


class Period:
    """The period of one device; as long as `seconds` is `INFERRED`, its samples wait in `first` until they show it.

    `first` and `pace` are what their `state()` returned, to continue from there.
    """

    def __init__(
        self, seconds: float, first: Mapping[str, Any] | None = None, pace: Mapping[str, Any] | None = None
    ) -> None:
        self.seconds = seconds
        self.first = FirstSamples(first) if seconds == INFERRED else None
        self.pace = Pace(pace)

    @property
    def exceeding_interval(self) -> float | None:
        """The interval at which the device agrees to send if it is clearly longer than the period."""
        agreed = self.pace.agreed
        return agreed if agreed is not None and agreed >= OTHER * self.seconds else None

    def surplus_note(self, dropped: int, *, is_timed: bool) -> str:
        """Return why samples come too fast for the period and were dropped, or "" if all is well.

        `dropped` values were dropped so far; the last sample `is_timed` if it had a time of its own.
        """
        pace, period = self.pace, self.seconds
        if is_timed and pace.agreed is not None and pace.agreed * OTHER <= period:
            return (
                f"samples come every {pace.agreed:g} s, but the period is {period:g} s: only the first one in each "
                "period counts."
            )
        if dropped < MANY_AT_ONCE:
            return ""
        if (pace.shortest or 0.0) >= period:  # no interval explains it
            return (
                f"{dropped} values were dropped, since their channel had another one at the same time, of which the "
                "first counts; let only one series be published under each name."
            )
        return (
            f"{dropped} values were dropped, since their period of {period:g} s had one already or was judged: "
            f"samples come every {pace.interval:g} s or so, and some {pace.shortest:.3g} s after the last; "
            "set a shorter period in [sampling] if all count."
        )


class Pace:
    """The intervals between samples of one channel, the first one that is in a block.

    `state` is what `state()` returned, to continue from there.

    >>> pace = Pace()
    >>> for k in range(21):
    ...     if pace.note(300.4 * k, ["power"]):
    ...         print(pace.interval, pace.agreed)
    300.0 300.0
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._channel: str = state.get("channel", "")
        self._without = int(state.get("without", 0))  # samples that came without that channel since it came
        self._last: float = nan if state.get("last") is None else state["last"]
        self._intervals: list[float] = list(state.get("intervals", []))
        self.interval: float | None = state.get("interval")  # of the last block: the mean if they agree, or the median
        self.agreed: float | None = state.get("agreed")  # the same, if the device sends at that interval
        self.shortest: float | None = state.get("shortest")  # of the last block
        self._is_odd = bool(state.get("odd", False))  # whether the intervals of that block do not agree
        self._doubts = int(state.get("doubts", 0))  # blocks that must agree before that is believed

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {
            "channel": self._channel,
            "without": self._without,
            "last": None if isnan(self._last) else self._last,
            "intervals": self._intervals,
            "interval": self.interval,
            "agreed": self.agreed,
            "shortest": self.shortest,
            "odd": self._is_odd,
            "doubts": self._doubts,
        }

    def note(self, time: float, channels: Collection[str]) -> bool:
        """Take the time of a sample with values of these channels; True if it fills a block."""
        if self._channel not in channels:
            self._without += 1
            if self._channel and self._without < MOST_WITHOUT:
                return False
            self._channel, self._intervals, self._last = next(iter(channels)), [], nan
        step, self._last, self._without = time - self._last, time, 0
        if not step > 0.0:  # the first one, or a clock that was set back
            return False
        self._intervals.append(step)
        if len(self._intervals) < BLOCK:
            return False
        self.interval, agreed = _interval(self._intervals)
        was_odd, self._is_odd = self._is_odd, agreed is None
        if agreed is not None:
            self._doubts = max(self._doubts - 1, 0)
        elif was_odd:
            self._doubts = CONVINCING
        self.agreed, self.shortest = None if self._doubts else agreed, min(self._intervals)
        self._intervals, self._channel, self._last = [], "", nan
        return True

    def guess(self) -> tuple[float | None, float | None]:
        """The interval of the samples so far, or of the last block, and the same if they agree; None without any."""
        return _interval(self._intervals) if self._intervals else (self.interval, self.agreed)


def _interval(intervals: list[float]) -> tuple[float, float | None]:
    """The mean of those near to their median, and again as what was agreed; else, if these are few, median and None."""
    middle = median(intervals)
    near = [each for each in intervals if abs(each - middle) <= NEAR * middle]
    if len(near) < AGREEING * len(intervals):
        return _rounded(middle), None
    return (agreed := _rounded(fmean(near))), agreed


def _rounded(interval: float) -> float:
    """The interval that is meant: people set round ones, and samples come a little early or late.

    >>> [_rounded(each) for each in (9.8, 299.6, 3604.0, 0.1248, 11.3)]
    [10.0, 300.0, 3600.0, 0.125, 11.3]
    """
    for digits, tolerance in ROUND.items():
        short = float(f"{interval:.{digits}g}")
        if abs(short - interval) <= tolerance * interval:
            return short
    return float(f"{interval:.3g}")


class FirstSamples:
    """The first samples of a device whose period is not written, which wait until it is known.

    The period is the mean of the first intervals between samples of one channel if they agree, or else their median,
    but at most a minute: between the samples of an irregular reporter its last values are held.
    `state` is what `state()` returned.

    >>> first = FirstSamples()
    >>> [first.add(10.02 * k, {"flow": 1.0}, arrival=0.0) for k in range(21)][-2:]
    [None, 10.0]
    >>> len(first.samples)
    21
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.samples: list[tuple[float | None, dict[str, float], float]] = [
            (time, dict(values), arrival) for time, values, arrival in state.get("samples", [])
        ]
        self._pace, self._is_timed = Pace(state.get("pace")), bool(state.get("timed", True))

    def state(self) -> dict[str, Any]:
        """All that is known, for JSON."""
        return {"samples": self.samples, "pace": self._pace.state(), "timed": self._is_timed}

    def add(self, time: float | None, values: Mapping[str, float], arrival: float) -> float | None:
        """Keep a sample, whose time is that of its arrival if it has none; returns the period once it is known."""
        self.samples.append((time, dict(values), arrival))
        self._is_timed = self._is_timed and time is not None
        is_known = self._pace.note(arrival if time is None else time, values) or len(self.samples) >= MOST_WAITING
        return self.period if is_known else None

    @property
    def is_regular(self) -> bool:
        """Whether the intervals so far agree."""
        return self._pace.guess()[1] is not None

    @property
    def period(self) -> float:
        """The period by the samples so far."""
        interval, agreed = self._pace.guess()
        period = agreed or min(interval or A_SECOND, A_MINUTE)
        return max(period, SHORTEST_PERIOD if self._is_timed else A_SECOND)
