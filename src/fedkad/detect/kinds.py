"""What kind of departure an alarm is about, in one sentence with the numbers that a person needs to act on it."""

from __future__ import annotations

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
    seen = _number(sample[channel], setup.scaling.scale[channel] + abs(setup.scaling.mean[channel]))
    numbers = f"{seen} where {expected[channel]:.4g} was expected"
    return Told("motion", name, f"{name} moved unlike predicted: {numbers}")


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
    if apart > max(outside, dwell):
        said = level - newest.level @ bounds.ties[channel] + bounds.offset[channel]
        known = _span((said + low[3], said + high[3]), scale, mean)
        numbers = f"{level * scale + mean:.4g} over {window} samples, where they suggest {known}"
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
            numbers = f"{value * scale + mean:.4g} where {expected * scale + mean:.4g} was expected"
            return Told("place", name, f"{name} jumped more than ever in training: {numbers}")
        least, most = bounds.ranges[0, channel]
        if least <= value <= most:
            span, word = (low[0], high[0]), "is usual"
        else:
            span, word = (least, most), "was ever seen"
        return Told(
            "place", name, f"{name} is outside: {value * scale + mean:.4g} where {_span(span, scale, mean)} {word}"
        )
    if beyond(level, low[1], high[1]) >= beyond(log_spread(variance), low[2], high[2]):
        known = _span((low[1], high[1]), scale, mean)
        sentence = (
            f"{name} stays where it has not been: {level * scale + mean:.4g} over {window} samples, {known} in training"
        )
        return Told("place", name, sentence)
    spread, (least, most) = np.sqrt(variance), np.maximum(np.exp([low[2], high[2]]) - STILL, 0.0)
    word = "less" if spread < least else "more"
    known = _span((least, most), scale, 0.0)
    return Told("place", name, f"{name} varies {word} than in training: by {spread * scale:.4g}, {known} in training")


def _span(bounds: tuple[float, float], scale: float, mean: float) -> str:
    low, high = (_number(bound * scale + mean, scale + abs(mean)) for bound in bounds)
    return low if low == high else f"{low} … {high}"


def _number(value: float, size: float) -> str:
    """Four digits; what is nothing but rounding, in numbers of that size, is 0."""
    return f"{0.0 if abs(value) < 1e-12 * size else value:.4g}"
