"""What kind of departure an alarm is about, in one sentence with the numbers that a person needs to act on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.model import Setup
from fedkad.detect.places import STILL, beyond, log_spread
from fedkad.detect.scoring import Moment, Scoring, Seen, look_at
from fedkad.detect.witnesses import WITNESSES, Sight, WitnessScoring

Array = NDArray[np.float64]
Looked = tuple[Seen, list[Seen]]


class Told(NamedTuple):
    """The witness that leads, the channel that it is about, and a sentence."""

    kind: str  # one of WITNESSES
    channel: str
    sentence: str


def tell(setup: Setup, scoring: Scoring, moments: Sequence[Moment], sample: Array) -> Told:
    """What the score of the last of these moments is about; a smoothed score is that of all of them.

    `sample` is the newest one, in its own units.
    """
    looked = [look_at(scoring, moment) for moment in moments]
    if not isinstance(scoring, WitnessScoring):
        channel = int(np.argmax(scoring.shares(*looked[-1])[0]))
        return _motion(setup, scoring, looked[-1][0], sample, channel)
    parts = np.array([scoring.score(earlier, since) for earlier, since in looked])
    for moment in reversed(looked):
        impossible = np.flatnonzero(scoring.absurd(Sight(*moment[1][-1]).values))
        if len(impossible):
            return _place(setup, scoring, moment, int(impossible[0]))
    lead = int(np.argmax(scoring.voices(list(parts.mean(axis=0)))))
    channel, moment = _loudest(scoring, looked, parts, [[0], [1], [2, 3]][lead])
    if WITNESSES[lead] == "motion":
        seen = setup.scaling.restore(moment[1][-1][0])
        return _motion(setup, scoring, moment[0], seen, channel)
    return (_misfit if WITNESSES[lead] == "fit" else _place)(setup, scoring, moment, channel)


def _loudest(scoring: Scoring, moments: Sequence[Looked], parts: Array, which: list[int]) -> tuple[int, Looked]:
    """The channel, and the moment, that adds most to these parts."""
    moment = moments[int(np.argmax(parts[:, which].sum(axis=1)))]
    return int(np.argmax(scoring.shares(*moment)[which].sum(axis=0))), moment


def _motion(setup: Setup, scoring: Scoring, earlier: Seen, sample: Array, channel: int) -> Told:
    name, expected = setup.channel_names[channel], setup.scaling.restore(scoring.expected(earlier))
    size = setup.scaling.scale[channel] + abs(setup.scaling.mean[channel])
    seen, known = compared(sample[channel], (expected[channel],), size)
    return Told("motion", name, f"{name} moved unlike predicted: {seen} where {known} was expected")


def _misfit(setup: Setup, scoring: WitnessScoring, moment: Looked, channel: int) -> Told:
    name, window = setup.channel_names[channel], setup.settings.window
    return Told("fit", name, f"the pattern of the last {window} samples of {name} does not fit the other channels")


def _place(setup: Setup, scoring: WitnessScoring, moment: Looked, channel: int) -> Told:
    """About the farthest of value, jump, level, spread and ties of the channel."""
    newest, bounds = Sight(*moment[1][-1]), scoring.bounds
    name, window = setup.channel_names[channel], setup.settings.window
    mean, scale = setup.scaling.mean[channel], setup.scaling.scale[channel]
    low, high = bounds.low[:, channel], bounds.high[:, channel]
    value, level = newest.values[channel], newest.level[channel]
    variance = max(newest.square[channel] - level**2, 0.0)
    outside, dwell, apart = (distances[channel] for distances in scoring.distances(*moment))

    def shown(value: float, *known: float) -> tuple[str, str]:
        return compared(value * scale + mean, [each * scale + mean for each in known], scale + abs(mean))

    if apart > max(outside, dwell):
        said = level - newest.level @ bounds.ties[channel] + bounds.offset[channel]
        seen, known = shown(level, said + low[3], said + high[3])
        numbers = f"{seen} over {window} samples, where they suggest {known}"
        numbers = f": {numbers}" if bounds.ties[channel].any() else ""  # others are tied to it, it is not to them
        return Told("place", name, f"{name} does not match the other channels{numbers}")
    if outside >= dwell:
        if bounds.switch[channel]:
            known_values = dict.fromkeys((low[0], high[0]))
            seen = " and ".join(f"{v * scale + mean:.4g}" for v in known_values)
            seen_verb = "was" if len(known_values) == 1 else "were"
            return Told(
                "place", name, f"{name} is {value * scale + mean:.4g}, a value never seen: only {seen} {seen_verb} seen"
            )
        expected = scoring.expected(moment[0])[channel]
        residual = newest.window[-setup.channels :][channel] - expected - scoring.centre[-1, channel]
        if beyond(value, low[0], high[0]) < abs(residual) - scoring.jump[channel]:
            seen, known = shown(value, expected)
            numbers = f"{seen} where {known} was expected"
            return Told("place", name, f"{name} jumped more than ever in training: {numbers}")
        least, most = bounds.ranges[0, channel]
        if least <= value <= most:
            span, word = (low[0], high[0]), "is usual"
        else:
            span, word = (least, most), "was ever seen"
        seen, known = shown(value, *span)
        return Told("place", name, f"{name} is outside: {seen} where {known} {word}")
    if beyond(level, low[1], high[1]) >= beyond(log_spread(variance), low[2], high[2]):
        seen, known = shown(level, low[1], high[1])
        numbers = f"{seen} over {window} samples, {known} in training"
        return Told("place", name, f"{name} stays where it has not been: {numbers}")
    spread, (least, most) = np.sqrt(variance), np.maximum(np.exp([low[2], high[2]]) - STILL, 0.0)
    word = "less" if spread < least else "more"
    seen, known = compared(spread * scale, (least * scale, most * scale), scale)
    return Told("place", name, f"{name} varies {word} than in training: by {seen}, {known} in training")


def compared(value: float, known: Sequence[float], size: float) -> tuple[str, str]:
    """A value, and the one or the bounds that it is compared with; four digits, or more if these hide how they differ.

    What is nothing but rounding, in numbers of that size, is 0.

    >>> compared(25.614, [23.168], 23.0), compared(1013.254, [1013.561], 1e3), compared(1015.1, [1009, 1014.8], 1e3)
    (('25.61', '23.17'), ('1013.25', '1013.56'), ('1015.1', '1009 … 1014.8'))
    """
    seen, *others = (0.0 if abs(each) < 1e-12 * size else each for each in (value, *known))
    apart = min(abs(seen - each) for each in others)
    digits = 4
    if 0.0 < apart < math.inf:
        largest = max(abs(seen), *map(abs, others))
        digits = min(max(math.floor(math.log10(largest)) - math.floor(math.log10(apart / 5.0)) + 1, 4), 9)
    shown = dict.fromkeys(f"{each:.{digits}g}" for each in others)
    return f"{seen:.{digits}g}", " … ".join(shown)
