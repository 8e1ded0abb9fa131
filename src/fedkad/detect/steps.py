"""The parts of a score one sample at a time, as a stream needs them: each step goes on from the one before.

With one sample, most of the time of a scoring goes into calling numpy, not into arithmetic. So `WitnessSteps` writes
`see` and `score` of witnesses out as one function for the usual moment, at which every channel is there and nothing is
outside of what training showed. It leaves every other moment to the scoring.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from math import hypot, log
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.places import ABSURD, OUTSIDE, STILL
from fedkad.detect.scoring import LINEAR_BEYOND, Parts, Scoring, Seen
from fedkad.detect.witnesses import NEVER, ROUNDING, WitnessScoring

Array = NDArray[np.float64]

LINEAR = float(LINEAR_BEYOND)


class Steps(Protocol):
    """What is kept from one step of a stream to the next. Windows are views that never change."""

    def see(self, window: Array, values: Array) -> None:
        """Look at a window that is not scored; `values` is its newest sample, scaled and not clipped."""

    def score(self, window: Array, values: Array, *, is_plain: bool) -> Parts:
        """Look at the next window, and find the parts of its score.

        A sample `is_plain` if no value of it is missing, or so large that the window has it clipped.
        """


def steps(scoring: Scoring) -> Steps:
    """Steps of a scoring, before the first window."""
    if isinstance(scoring, WitnessScoring) and scoring.is_plain:
        return WitnessSteps(scoring)
    return PlainSteps(scoring)


class PlainSteps:
    """Steps of any scoring."""

    def __init__(self, scoring: Scoring) -> None:
        self._scoring = scoring
        self._seen: deque[Seen] = deque(maxlen=scoring.dynamics.horizon + 1)

    def see(self, window: Array, values: Array) -> None:
        """Look at a window that is not scored."""
        self._seen.append(self._scoring.see(window, values))

    def score(self, window: Array, values: Array, *, is_plain: bool) -> Parts:
        """The parts that the scoring finds."""
        self._seen.append(self._scoring.see(window, values))
        earlier, *since = self._seen
        return tuple(map(float, self._scoring.score(earlier, since)))


FEW = 8
"""Up to this many deviations outside of their widths are handled one by one; beyond it numpy is faster."""


class WitnessSteps:
    """Steps of witnesses whose scoring `is_plain`."""

    def __init__(self, scoring: WitnessScoring) -> None:
        self._scoring = scoring
        lifting, rank = scoring.dynamics.lifting, scoring.dynamics.subspace.shape[1]
        self._coordinates, self._window = np.zeros(rank), np.zeros(lifting.state_size)  # of the step before
        product = scoring.dynamics.coordinates
        calm, self._states = _squared_widths(scoring)
        # Squared deviations make motion of those that are departures.
        motion = np.zeros(len(calm))
        motion[scoring.of_departures] = scoring.share * scoring.frame.sharpness[scoring.of_departures] ** 2
        self._of_window = (product.weights, product.offset, product.right, scoring.mean)
        moment = (_predictions(scoring), scoring.energy, scoring.ties, scoring.frame.middle, calm, motion)
        self._of_moment = (rank, 2 * rank, *moment)
        # Memory that every step writes over; features are value, residual, level, variance and what ties make of it.
        products, cells = np.empty(len(product.weights)), np.empty((lifting.window, lifting.channels))
        self._window_memory = (products, products[: product.split], products[product.split :], cells)
        features, deviations, squares, beyond = (np.empty(len(calm)) for _ in range(4))
        parts = np.split(features, len(calm) // lifting.channels)
        self._memory = (features, *parts[:4], features[4 * lifting.channels :], deviations, squares, beyond)

    def see(self, window: Array, values: Array) -> None:
        """Look at a window that is not scored."""
        self._coordinates, self._window = self._scoring.dynamics.coordinates(window)[0], window

    def score(self, window: Array, values: Array, *, is_plain: bool) -> Parts:
        """What `WitnessScoring.score` finds, by its formulas."""
        if not is_plain:
            return self._score_anything(window, values)
        scoring, earlier = self._scoring, self._coordinates
        weights, offset, right, mean = self._of_window
        products, observed, own, cells = self._window_memory
        weights.dot(window, products)
        products += offset
        np.tanh(observed, observed)
        coordinates = right.dot(observed)
        coordinates += own
        self._coordinates, self._window = coordinates, window
        if scoring.unjudged is not None:
            own = scoring.of_judged(own, window)

        rank, both, predictions, shares, ties, middle, calm, of_motion = self._of_moment
        features, value, residual, level, variance, departure, deviations, squares, beyond = self._memory
        predicted = earlier.dot(predictions)
        samples = window.reshape(cells.shape)
        square = mean.dot(np.multiply(samples, samples, cells))
        value[:] = values
        np.subtract(samples[-1], predicted[both:], residual)
        mean.dot(samples, level)
        np.multiply(level, level, variance)
        np.subtract(square, variance, variance)
        if ties is not None:
            level.dot(ties, departure)

        np.subtract(features, middle, deviations)
        np.multiply(deviations, deviations, squares)
        np.subtract(squares, calm, beyond)
        farthest = beyond.item(beyond.argmax())
        misfit = abs(float(square.dot(shares) + predicted[rank:both].dot(earlier) - predicted[:rank].dot(own)))
        motion = float(squares.dot(of_motion))
        is_known = self._states is None or bool((squares[self._states[0]] >= self._states[1]).all())
        if farthest <= 0.0 and is_known:
            return motion, misfit, 0.0, 0.0
        outside = (beyond > 0.0).nonzero()[0].tolist()
        if is_known and len(outside) <= FEW and outside[-1] < 4 * len(value):
            motion, away, dwell = self._few_outside(outside, motion, features, deviations)
            return motion, misfit, away, dwell
        np.abs(deviations, deviations)
        deviations *= scoring.frame.sharpness
        motion, away, dwell = map(float, scoring.of_deviations(deviations, (values, window, own, own, level, square)))
        return motion, misfit, away, dwell

    def _score_anything(self, window: Array, values: Array) -> Parts:
        """The same for a sample that may miss values or have absurd ones, whose squares are not numbers any more."""
        earlier, newest = self._scoring.see(self._window, values), self._scoring.see(window, values)
        self._coordinates, self._window = newest[2], window
        return tuple(map(float, self._scoring.score(earlier, [newest])))

    def _few_outside(
        self, outside: list[int], motion: float, features: Array, deviations: Array
    ) -> tuple[float, float, float]:
        """What `WitnessScoring.of_deviations` finds, from the deviations that are outside alone; no tie is broken."""
        channels, sharpness, half, per_unit, per_jump, per_wander, low, high, share = self._plain
        away, dwell = dict[int, float](), dict[int, float]()
        for place in outside:
            feature, channel = divmod(place, channels)
            far = abs(deviations.item(place)) * sharpness[place]
            excess = far - half[place]
            if feature == 0:
                away[channel] = excess * per_unit[channel]
            elif feature == 1:
                if far > LINEAR:
                    motion += share * (LINEAR * (far + far - LINEAR) - far * far)
                away[channel] = max(away.get(channel, 0.0), excess * per_jump[channel])
            elif feature == 2:
                dwell[channel] = excess
            else:
                spread = log(max(features.item(place), 0.0) ** 0.5 + STILL)
                dwell[channel] = hypot(dwell.get(channel, 0.0), max(low[channel] - spread, spread - high[channel], 0.0))
        outsides = sum(min(far, OUTSIDE * ABSURD) * per_wander[channel] for channel, far in away.items())
        return motion, outsides, sum(far * per_wander[channel] for channel, far in dwell.items())

    @cached_property
    def _plain(self) -> tuple[Any, ...]:
        """Widths, units and bounds as lists, which are faster than arrays for a number at a time."""
        scoring, half = self._scoring, self._scoring.frame.half.copy()
        sharpness, bounds = scoring.frame.sharpness, scoring.bounds
        half[: len(bounds.switch)] += ROUNDING * bounds.switch
        per = (scoring.per_unit, scoring.per_jump, scoring.per_wander)
        arrays = (sharpness, half, *per, bounds.low[2], bounds.high[2])
        return len(bounds.unit), *(array.tolist() for array in arrays), scoring.share


def _squared_widths(scoring: WitnessScoring) -> tuple[Array, tuple[NDArray[np.intp], Array] | None]:
    """Squared widths within which only departures count, and the switches with two states and their least squares."""
    frame, switches = scoring.frame, np.flatnonzero(scoring.bounds.switch)
    calm, width = frame.half.copy(), np.full(len(frame.half), NEVER)
    calm[scoring.of_departures] = np.minimum(calm[scoring.of_departures], LINEAR_BEYOND)
    np.divide(calm, frame.sharpness, out=width, where=frame.sharpness > 0.0)
    least = width[switches] - ROUNDING
    width[switches] += ROUNDING
    squares = np.minimum(width, NEVER**0.5) ** 2
    has_two = least > 0.0  # one that has shown one value only is a narrow channel like any other
    return squares, (switches[has_two], least[has_two] ** 2) if has_two.any() else None


def _predictions(scoring: WitnessScoring) -> Array:
    """The predictions of the scoring, scaled so that a misfit needs no factor of its own."""
    rank = scoring.dynamics.subspace.shape[1]
    found = scoring.predictions.copy()
    found[:, : 2 * rank] *= np.repeat([2.0, 1.0], rank) * scoring.per_sample
    return found
