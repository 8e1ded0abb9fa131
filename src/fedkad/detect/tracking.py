"""A threshold that follows its alarms, so that a budget is kept whatever the fitted threshold was worth.

Each incident whose peak was near the threshold raises it by a tenth, and time lowers it as slowly as the budget allows
incidents:

    log f ← log f + GAIN (incidents − allowed · seconds),        threshold = f · fitted.

In the long run such incidents then come at the allowed rate, whatever the law of the scores: this is the argument of
adaptive conformal inference (Gibbs and Candès, 2021). An incident far above the threshold does not count, because a
threshold that is a little higher would not have prevented it: it is a fault, or something that has to be learned.

Two bounds keep it sane. The threshold never falls below the lower end of what the fit leaves open, because quiet must
not manufacture alarms; and it rises to three times the fitted one at most, because a device that is broken for months
must not go deaf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedkad.detect.model import Model
from fedkad.detect.threshold import parse_budget
from fedkad.settingerror import SettingError

GAIN = 0.1
"""What one incident adds to the logarithm of the threshold.

The rate of events falls by a factor of about e over a tenth of a typical threshold (simulated pumps and houses: levels
near 2, thresholds near 3, scales of 0.2 to 0.4), so that one incident too many is answered, but hardly more than that.
"""

MARGINAL = 1.25
"""An incident counts if its peak was below so many thresholds.

In a simulated house, false alarms of devices with a good threshold stayed below 1.25, and most faults were above it.
"""

HIGHEST = 3.0  # times the fitted threshold at most


REST = 1.0 / 28.0
"""After an incident that counts the next ones do not, for this share of the time that the budget allows one in.

With a budget of one in a week that is six hours. A fault that comes and goes all afternoon says no more about the
threshold than one that lasts, and must not make the device deaf to the next fault.
"""

MOST_COUNTED = 20  # incidents that can be taken back


class ThresholdTracker:
    """Moves a threshold by the incidents that it lets through; `state` is what `state` returned before.

    >>> tracker = ThresholdTracker(allowed=1.0 / 604800.0)
    >>> tracker.threshold(fitted=2.0, lowest=1.8)
    2.0
    >>> for incident in ("pump-1", "pump-2", "pump-3", "pump-4"):
    ...     tracker.watch(21600.0)
    ...     tracker.count(incident, peak=2.1)
    >>> tracker.count("pump-5", peak=2.1)  # too soon after the last one
    >>> tracker.count("pump-6", peak=6.0)  # too high to tell anything about the threshold
    >>> round(tracker.threshold(fitted=2.0, lowest=1.8), 2)
    2.94
    >>> tracker.watch(100 * 86400.0)
    >>> tracker.threshold(fitted=2.0, lowest=1.8)
    1.8
    """

    def __init__(self, allowed: float, state: Mapping[str, Any] | float | None = None) -> None:
        self.allowed = allowed  # incidents per second
        # It was one number in early versions.
        saved: Mapping[str, Any] = state if isinstance(state, Mapping) else {"log": state or 0.0}
        self._log, self._used = float(saved["log"]), 0.0
        self._rested = float(saved.get("rested", REST / allowed))  # seconds since the last one that counted
        self._counted = list(saved.get("counted", []))

    @property
    def state(self) -> dict[str, Any]:
        """For JSON: the logarithm of the factor, and which incidents have counted."""
        return {"log": self._log, "rested": self._rested, "counted": self._counted}

    def watch(self, seconds: float) -> None:
        """Note that so many seconds of samples were judged."""
        self._log -= GAIN * self.allowed * seconds
        self._rested = min(self._rested + seconds, REST / self.allowed)

    def count(self, incident: str, peak: float) -> None:
        """Count an incident that is over and reached this score."""
        if peak < MARGINAL * self._used and self._rested >= REST / self.allowed:
            self._log += GAIN
            self._rested = 0.0
            self._counted = [*self._counted[1 - MOST_COUNTED :], incident]

    def forgive(self, incident: str) -> None:
        """Take an incident back if it has counted: a person called it a fault, so it was not a false alarm."""
        if incident in self._counted:
            self._log -= GAIN
            self._counted.remove(incident)

    def threshold(self, fitted: float, lowest: float) -> float:
        """The threshold to judge by; a bound that is reached is not exceeded in secret."""
        least = math.log(min(lowest / fitted, 1.0)) if fitted > 0.0 and lowest > 0.0 else 0.0
        self._log = min(max(self._log, least), math.log(HIGHEST))
        self._used = fitted * math.exp(self._log)
        return self._used

    @property
    def factor(self) -> float:
        """What the fitted threshold is multiplied by."""
        return math.exp(self._log)


class AlarmTracker:
    """Tracks the threshold of a stream by its own alarms: those at most a window apart are one incident.

    >>> tracker = AlarmTracker(ThresholdTracker(1.0 / 604800.0), fitted=2.0, lowest=1.8, seconds=60.0, window=20)
    >>> for score in (2.2, *[1.0] * 21):
    ...     tracker.note(score, is_anomaly=score > tracker.threshold)
    >>> round(tracker.threshold, 2)
    2.21
    """

    def __init__(self, tracker: ThresholdTracker, fitted: float, lowest: float, *, seconds: float, window: int) -> None:
        self.tracker, self._fitted, self._lowest = tracker, fitted, lowest
        self._seconds, self._window = seconds, window  # between two samples; samples
        self._peak, self._quiet, self._incidents = 0.0, 0, 0

    @classmethod
    def of(cls, model: Model) -> AlarmTracker:
        """The tracker that keeps the budget of a model; raises a `SettingError` if it has none."""
        rule, seconds = model.rule, model.sample_period
        allowed = parse_budget(rule.threshold) if rule is not None and isinstance(rule.threshold, str) else None
        if rule is None or allowed is None or seconds is None:
            rejected = model.threshold if rule is None else rule.threshold
            raise SettingError("threshold", rejected, "a budget such as '1/week' for a stream that follows its alarms")
        window = model.settings.window
        return cls(ThresholdTracker(allowed), model.threshold, model.lowest_threshold, seconds=seconds, window=window)

    @property
    def threshold(self) -> float:
        """The threshold for the next sample."""
        return self.tracker.threshold(self._fitted, self._lowest)

    def note(self, score: float, *, is_anomaly: bool) -> None:
        """Take the score of a sample into account."""
        self.tracker.watch(self._seconds)
        if is_anomaly:
            self._peak, self._quiet = max(self._peak, score), 0
            return
        self._quiet += 1
        if self._peak and self._quiet > self._window:
            self._incidents += 1
            self.tracker.count(str(self._incidents), self._peak)
            self._peak = 0.0
