"""What an alarm is about, in one sentence with the numbers that a person needs to act on it.

`ScoringMethod.explain` of each kind of score comes here, asked by `stream.Reading` and `events` about an alarm.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.features import LEVEL, SPREAD, STILL, TIE, VALUE, log_spread
from fedkad.detect.model import Setup
from fedkad.detect.ranges import beyond
from fedkad.detect.scoring import Explanation, ScoredWindow, Scoring, WindowFeatures, features_of
from fedkad.detect.witnesses import TERMS_OF, WITNESSES, WitnessFeatures, WitnessScoring

Array = NDArray[np.float64]


def explain_prediction(setup: Setup, scoring: Scoring, windows: Sequence[ScoredWindow], sample: Array) -> Explanation:
    """Explain a score of one term by the channel that was predicted worst in the last of these windows.

    `sample` is the newest one, in its own units.
    """
    earlier, since = features_of(scoring, windows[-1])
    return _motion(setup, scoring, earlier, sample, int(np.argmax(scoring.shares(earlier, since)[0])))


def explain_witnesses(setup: Setup, scoring: WitnessScoring, windows: Sequence[ScoredWindow]) -> Explanation:
    """Explain the score of the last of these windows, all of which are smoothed into it, by the witness that leads."""
    moments = [features_of(scoring, window) for window in windows]
    terms = np.array([scoring.score(*moment) for moment in moments])
    # An impossible value is an alarm whatever the witnesses say.
    for moment in reversed(moments):
        impossible = np.flatnonzero(scoring.place.impossible(moment[1][-1].values))
        if len(impossible):
            return OutOfPlace(setup, scoring, moment, int(impossible[0])).explain()
    witness = WITNESSES[int(np.argmax(scoring.contributions(list(terms.mean(axis=0)))))]
    # The moment, and then the channel, that adds most to that witness.
    its_terms = list(TERMS_OF[witness])
    moment = earlier, since = moments[int(np.argmax(terms[:, its_terms].sum(axis=1)))]
    channel = int(np.argmax(scoring.shares(earlier, since)[its_terms].sum(axis=0)))
    if witness == "motion":
        return _motion(setup, scoring, earlier, setup.scaling.restore(since[-1].values), channel)
    if witness == "place":
        return OutOfPlace(setup, scoring, moment, channel).explain()
    name, window = setup.channel_names[channel], setup.settings.window
    return Explanation(
        "fit", name, f"the pattern of the last {window} samples of {name} does not fit the other channels"
    )


def _motion(setup: Setup, scoring: Scoring, earlier: WindowFeatures, sample: Array, channel: int) -> Explanation:
    name, expected = setup.channel_names[channel], setup.scaling.restore(scoring.expected(earlier))
    size = setup.scaling.scale[channel] + abs(setup.scaling.mean[channel])
    value, forecast = compared(sample[channel], (expected[channel],), size)
    return Explanation("motion", name, f"{name} moved unlike predicted: {value} where {forecast} was expected")


class OutOfPlace:
    """A channel that is out of place at one moment, in scaled units, and the sentences about it."""

    def __init__(
        self, setup: Setup, scoring: WitnessScoring, moment: tuple[WitnessFeatures, list[WitnessFeatures]], channel: int
    ) -> None:
        self._setup, self._scoring, self._channel = setup, scoring, channel
        self._name, self._window = setup.channel_names[channel], setup.settings.window
        self._mean, self._scale = setup.scaling.mean[channel], setup.scaling.scale[channel]
        self._earlier, self._newest = moment[0], moment[1][-1]
        self._low, self._high = scoring.bounds.low[:, channel], scoring.bounds.high[:, channel]
        self._value, self._level = self._newest.values[channel], self._newest.level[channel]
        self._variance = max(self._newest.square[channel] - self._level**2, 0.0)
        self._distances = scoring.place.distances(scoring.measured(*moment)[1], self._newest.level, self._newest.square)

    def explain(self) -> Explanation:
        """The farthest of value, jump, level, spread and ties of the channel."""
        # A missing value is nowhere, and while a channel is missing no tie counts.
        present, channel = ~np.isnan(self._newest.values), self._channel
        outside, dwell, apart = (float(distance[channel]) if present[channel] else 0.0 for distance in self._distances)
        if apart > max(outside, dwell) and present.all():
            sentence = self._untied()
        elif outside >= dwell:
            sentence = self._outside()
        else:
            sentence = self._dwelling()
        return Explanation("place", self._name, f"{self._name} {sentence}")

    def _shown(self, value: float, *others: float) -> tuple[str, str]:
        """A value and what it is compared with, in the units of the channel."""
        mean, scale = self._mean, self._scale
        return compared(value * scale + mean, [each * scale + mean for each in others], scale + abs(mean))

    def _untied(self) -> str:
        bounds, channel, low, high = self._scoring.bounds, self._channel, self._low[TIE], self._high[TIE]
        if not bounds.ties[channel].any():  # others are tied to it, it is not to them
            return "does not match the other channels"
        suggested = self._level - self._newest.level @ bounds.ties[channel] + bounds.offset[channel]
        level, span = self._shown(self._level, suggested + low, suggested + high)
        numbers = f"{level} over {self._window} samples, where they suggest {span}"
        return f"does not match the other channels: {numbers}"

    def _outside(self) -> str:
        bounds, channel = self._scoring.bounds, self._channel
        low, high = self._low[VALUE], self._high[VALUE]
        if bounds.switch[channel]:
            states = [f"{state * self._scale + self._mean:.4g}" for state in dict.fromkeys((low, high))]
            verb = "was" if len(states) == 1 else "were"
            value = f"{self._value * self._scale + self._mean:.4g}"
            return f"is {value}, a value never seen: only {' and '.join(states)} {verb} seen"
        expected = self._scoring.expected(self._earlier)[channel]
        newest = self._newest.window[-self._setup.channels :][channel]
        residual = newest - expected - self._scoring.centre[-1, channel]
        if beyond(self._value, low, high) < abs(residual) - self._scoring.jump[channel]:
            value, forecast = self._shown(self._value, expected)
            return f"jumped more than ever in training: {value} where {forecast} was expected"
        least, most = bounds.ranges[VALUE, channel]
        is_usual = least <= self._value <= most
        value, span = self._shown(self._value, *((low, high) if is_usual else (least, most)))
        return f"is outside: {value} where {span} {'is usual' if is_usual else 'was ever seen'}"

    def _dwelling(self) -> str:
        """About the level or the spread of the window."""
        low, high, scale = self._low, self._high, self._scale
        spread_outside = beyond(log_spread(self._variance), low[SPREAD], high[SPREAD])
        if beyond(self._level, low[LEVEL], high[LEVEL]) >= spread_outside:
            level, span = self._shown(self._level, low[LEVEL], high[LEVEL])
            return f"stays where it has not been: {level} over {self._window} samples, {span} in training"
        spread = np.sqrt(self._variance)
        least, most = np.maximum(np.exp([low[SPREAD], high[SPREAD]]) - STILL, 0.0)
        word = "less" if spread < least else "more"
        shown, span = compared(spread * scale, (least * scale, most * scale), scale)
        return f"varies {word} than in training: by {shown}, {span} in training"


def compared(value: float, others: Sequence[float], size: float) -> tuple[str, str]:
    """Format a value, and the one or the bounds that it is compared with, with enough digits to tell them apart.

    There are four digits, or more if these hide how they differ. What is nothing but rounding, in numbers of that
    size, is 0.

    >>> compared(25.614, [23.168], 23.0), compared(1013.254, [1013.561], 1e3), compared(1015.1, [1009, 1014.8], 1e3)
    (('25.61', '23.17'), ('1013.25', '1013.56'), ('1015.1', '1009 … 1014.8'))
    """
    value, *others = (0.0 if abs(each) < 1e-12 * size else each for each in (value, *others))
    apart = min(abs(value - each) for each in others)
    digits = 4
    if 0.0 < apart < math.inf:
        largest = max(abs(value), *map(abs, others))
        digits = min(max(math.floor(math.log10(largest)) - math.floor(math.log10(apart / 5.0)) + 1, 4), 9)
    shown = dict.fromkeys(f"{each:.{digits}g}" for each in others)
    return f"{value:.{digits}g}", " … ".join(shown)
