"""Scorings one sample at a time, as a stream needs them: each step goes on from the one before.

With one sample, most of the time of a scoring goes into calling numpy, not into arithmetic: a step by the scoring
itself takes 1.4 to 1.7 times as long (docs/choices.md). So `WitnessSteps` has the formulas of `WitnessScoring.score` a
second time, for the usual moment: one step ahead, every channel there, and at most a few features outside of what
training showed. It leaves every other moment to the scoring.
"""

from collections import deque
from math import hypot, log

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.features import SPREAD, STILL
from fedkad.detect.place import NEVER, ROUNDING
from fedkad.detect.ranges import ABSURD, OUTSIDE
from fedkad.detect.scoring import Scoring, Steps, Terms, WindowFeatures
from fedkad.detect.witnesses import LINEAR_BEYOND, WitnessFeatures, WitnessScoring

Array = NDArray[np.float64]

LINEAR = float(LINEAR_BEYOND)

FEW = 8  # up to this many features outside of their widths are handled one by one; beyond it numpy is faster

VALUE, RESIDUAL, LEVEL, VARIANCE = range(4)
"""The features in the order in which they stand, one step ahead; after them comes the departure from the ties."""


def witness_steps(scoring: WitnessScoring) -> Steps:
    """The fast steps if the scoring is a plain one, and otherwise its own."""
    is_plain = scoring.dynamics.horizon == 1 and scoring.tolerance is None and not len(scoring.bounds.discounts)
    return WitnessSteps(scoring) if is_plain else PlainSteps(scoring)


class PlainSteps:
    """Steps by the scoring itself."""

    def __init__(self, scoring: Scoring) -> None:
        self._scoring = scoring
        self._features: deque[WindowFeatures] = deque(maxlen=scoring.dynamics.horizon + 1)

    def skip(self, window: Array, newest: Array) -> None:
        """Take a window that is not scored."""
        self._features.append(self._scoring.features(window, newest))

    def score(self, window: Array, newest: Array, *, is_plain: bool) -> Terms:
        """The terms by the scoring."""
        self._features.append(self._scoring.features(window, newest))
        earlier, *since = self._features
        return tuple(map(float, self._scoring.score(earlier, since)))


class WitnessSteps:
    """Steps of witnesses one step ahead, without a tolerance and without stretches that a person confirmed."""

    def __init__(self, scoring: WitnessScoring) -> None:
        lifting, place, product = scoring.dynamics.lifting, scoring.place, scoring.dynamics.coordinates
        self._scoring, self._product, self._rank = scoring, product, scoring.dynamics.subspace.shape[1]
        self._coordinates, self._window = np.zeros(self._rank), np.zeros(lifting.state_size)  # of the step before
        self._calm, self._two_states = _squared_widths(scoring)
        # Squared deviations make motion of those that are departures, in units of their spread.
        self._motion_of = np.zeros(len(self._calm))
        self._motion_of[place.residuals] = scoring.fit.per_departure * place.sharpness[place.residuals] ** 2
        # The predictions, scaled so that a misfit needs no factor of its own.
        self._predictions = scoring.fit.predictions.copy()
        self._predictions[:, : 2 * self._rank] *= np.repeat([2.0, 1.0], self._rank) * scoring.fit.per_sample
        # Memory that every step writes over.
        self._products, self._cells = np.empty(len(product.weights)), np.empty((lifting.window, lifting.channels))
        self._observed, self._linear = self._products[: product.split], self._products[product.split :]
        self._features, self._deviations, self._squares, self._beyond = (np.empty(len(self._calm)) for _ in range(4))
        self._value, self._residual = self._features[place.value], self._features[place.residuals]
        self._level, self._variance = self._features[place.level], self._features[place.variance]
        self._departure = self._features[place.departure]
        self._numbers: _Numbers | None = None  # made when something is outside for the first time

    def skip(self, window: Array, newest: Array) -> None:
        """Take a window that is not scored."""
        self._coordinates, self._window = self._scoring.dynamics.coordinates(window)[0], window

    def score(self, window: Array, newest: Array, *, is_plain: bool) -> Terms:
        """What `WitnessScoring.score` finds, by its formulas."""
        if not is_plain:  # a square of an absurd value may be no number any more
            before, after = (self._scoring.features(each, newest) for each in (self._window, window))
            self._coordinates, self._window = after.coordinates, window
            return tuple(map(float, self._scoring.score(before, [after])))
        earlier, rank, squares, beyond = self._coordinates, self._rank, self._squares, self._beyond
        own, predicted = self._own(window), earlier.dot(self._predictions)
        square = self._measure(window, newest, predicted)
        np.multiply(self._deviations, self._deviations, squares)
        energy, cross = predicted[rank : 2 * rank].dot(earlier), predicted[:rank].dot(own)
        misfit = abs(float(square.dot(self._scoring.fit.energy) + energy - cross))
        motion = float(squares.dot(self._motion_of))
        np.subtract(squares, self._calm, beyond)
        is_known = self._two_states is None or bool((squares[self._two_states[0]] >= self._two_states[1]).all())
        if is_known and beyond.item(beyond.argmax()) <= 0.0:
            return motion, misfit, 0.0, 0.0
        positions = (beyond > 0.0).nonzero()[0].tolist()
        if is_known and len(positions) <= FEW and positions[-1] < 4 * len(self._value):  # and no tie is broken
            motion, outside, dwell = self._few_outside(positions, motion)
            return motion, misfit, outside, dwell
        deviations = np.abs(self._deviations) * self._scoring.place.sharpness
        features = WitnessFeatures(newest, window, own, own, self._level, square)
        motion, outside, dwell = map(float, self._scoring.of_deviations(deviations, features))
        return motion, misfit, outside, dwell

    def _own(self, window: Array) -> Array:
        """Z_jᵀz; the coordinates of the window are kept for the next step."""
        product = self._product
        product.weights.dot(window, self._products)
        self._products += product.offset
        np.tanh(self._observed, self._observed)
        coordinates = product.right.dot(self._observed)
        coordinates += self._linear
        self._coordinates, self._window = coordinates, window
        return self._scoring.fit.of_judged(self._linear, window)

    def _measure(self, window: Array, newest: Array, predicted: Array) -> Array:
        """Fill in the deviations of all features, with their signs; returns the mean squares of the window."""
        scoring, level, variance = self._scoring, self._level, self._variance
        samples = window.reshape(self._cells.shape)
        square: Array = scoring.fit.mean.dot(np.multiply(samples, samples, self._cells))
        self._value[:] = newest
        np.subtract(samples[-1], predicted[2 * self._rank :], self._residual)
        scoring.fit.mean.dot(samples, level)
        np.multiply(level, level, variance)
        np.subtract(square, variance, variance)
        if scoring.place.ties is not None:
            level.dot(scoring.place.ties, self._departure)
        np.subtract(self._features, scoring.place.middle, self._deviations)
        return square

    def _few_outside(self, positions: list[int], motion: float) -> tuple[float, float, float]:
        """What `WitnessScoring.of_deviations` finds, from the few deviations that are outside alone."""
        numbers = self._numbers = self._numbers or _Numbers(self._scoring)
        outside, dwell = dict[int, float](), dict[int, float]()
        for position in positions:
            feature, channel = divmod(position, numbers.channels)
            far = abs(self._deviations.item(position)) * numbers.sharpness[position]
            excess = far - numbers.half[position]
            if feature == VALUE:
                outside[channel] = excess * numbers.per_unit[channel]
            elif feature == RESIDUAL:
                if far > LINEAR:
                    motion += numbers.share * (LINEAR * (far + far - LINEAR) - far * far)
                outside[channel] = max(outside.get(channel, 0.0), excess * numbers.per_jump[channel])
            elif feature == LEVEL:
                dwell[channel] = excess
            else:
                spread = log(max(self._features.item(position), 0.0) ** 0.5 + STILL)
                beyond = max(numbers.low[channel] - spread, spread - numbers.high[channel], 0.0)
                dwell[channel] = hypot(dwell.get(channel, 0.0), beyond)
        outsides = sum(min(far, OUTSIDE * ABSURD) * numbers.per_wander[channel] for channel, far in outside.items())
        return motion, outsides, sum(far * numbers.per_wander[channel] for channel, far in dwell.items())


class _Numbers:
    """Widths, units and bounds of spreads as lists, which are faster than arrays for a number at a time."""

    def __init__(self, scoring: WitnessScoring) -> None:
        place, bounds, half = scoring.place, scoring.bounds, scoring.place.half.copy()
        half[place.value] += ROUNDING * bounds.switch
        self.channels, self.share = len(bounds.unit), scoring.fit.per_departure
        self.sharpness, self.half = place.sharpness.tolist(), half.tolist()
        self.per_unit, self.per_jump = place.per_unit.tolist(), place.per_jump.tolist()
        self.per_wander = place.per_wander.tolist()
        self.low, self.high = bounds.low[SPREAD].tolist(), bounds.high[SPREAD].tolist()


def _squared_widths(scoring: WitnessScoring) -> tuple[Array, tuple[NDArray[np.intp], Array] | None]:
    """Squared widths within which only departures count, and the switches with two states and their least squares."""
    place, switches = scoring.place, np.flatnonzero(scoring.bounds.switch)
    calm, width = place.half.copy(), np.full(len(place.half), NEVER)
    calm[place.residuals] = np.minimum(calm[place.residuals], LINEAR_BEYOND)
    np.divide(calm, place.sharpness, out=width, where=place.sharpness > 0.0)
    least = width[switches] - ROUNDING
    width[switches] += ROUNDING
    squares = np.minimum(width, NEVER**0.5) ** 2
    has_two = least > 0.0  # one that has shown one value only is a narrow channel like any other
    return squares, (switches[has_two], least[has_two] ** 2) if has_two.any() else None
