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

GAIN = 0.1
"""What one incident adds to the logarithm of the threshold.

The rate of events falls by a factor of about e over a tenth of a typical threshold (simulated pumps and houses: levels
near 2, thresholds near 3, scales of 0.2 to 0.4), so that one incident too many is answered, but hardly more than that.
"""

MARGINAL = 1.25
"""An incident counts if its peak was below so many thresholds.

In a simulated house, false alarms of devices with a good threshold stayed below 1.25, and most faults were above it.
"""

HIGHEST = 3.0
"""Times the fitted threshold at most."""


class BudgetLoop:
    """Follows the incidents of one device; `state` is what `state` returned before.

    >>> loop = BudgetLoop(allowed=1.0 / 604800.0)
    >>> loop.threshold(fitted=2.0, lowest=1.8)
    2.0
    >>> loop.watch(86400.0)
    >>> for _ in range(4):
    ...     loop.count(peak=2.1)
    >>> loop.count(peak=6.0)  # too high to tell anything about the threshold
    >>> round(loop.threshold(fitted=2.0, lowest=1.8), 2)
    2.94
    >>> loop.watch(100 * 86400.0)
    >>> loop.threshold(fitted=2.0, lowest=1.8)
    1.8
    """

    def __init__(self, allowed: float, state: float = 0.0) -> None:
        self.allowed = allowed  # incidents per second
        self._log, self._used = state, 0.0

    @property
    def state(self) -> float:
        """The logarithm of the factor."""
        return self._log

    def watch(self, seconds: float) -> None:
        """Note that so many seconds of samples were judged."""
        self._log -= GAIN * self.allowed * seconds

    def count(self, peak: float) -> None:
        """Count an incident that is over and reached this score."""
        if peak < MARGINAL * self._used:
            self._log += GAIN

    def forgive(self, peak: float) -> None:
        """Take an incident back: a person called it a fault, so it was not a false alarm."""
        if peak < MARGINAL * self._used:
            self._log -= GAIN

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
