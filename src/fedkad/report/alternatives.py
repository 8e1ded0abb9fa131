"""What simpler ways would have found in a demonstration, with a threshold for as many false alarm events per row."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import broken
from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.events import Event, examine, find_events
from fedkad.detect.heldout import split
from fedkad.detect.model import DetectorSettings
from fedkad.detect.scoring import smooth_causally
from fedkad.detect.threshold import SMALLEST
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]


class Recordings(NamedTuple):
    """Of one device."""

    train: Array
    test: Array


def alone(recordings: Recordings, settings: DetectorSettings) -> tuple[Event, ...]:
    """Find the events with a model that the device learned by itself, with the same settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)
        return examine(KoopmanDetector(**vars(settings)).fit(recordings.train).model_, recordings.test).events


def by_principal_components(recordings: Recordings, settings: DetectorSettings) -> tuple[Event, ...]:
    """Find the events by PCA of windows: the squared residual of a window off the leading directions of normal ones.

    As many directions as the detector has, fitted to the first part of the training data; the rest sets the threshold.
    """
    training, held_out = split(recordings.train, settings.validation, settings.window - 1)
    scaling = Scaling.fit(training)
    windows = _windows(scaling.transform(training), settings.window)
    mean = windows.mean(axis=0)
    _, directions = np.linalg.eigh((windows - mean).T @ (windows - mean))
    leading = directions[:, -(settings.rank + settings.private) :]

    def scores_of(series: Array) -> Array:
        scaled, scores = scaling.transform(series), np.full(len(series), np.nan)
        for run in stretches(scaled, shortest=settings.window):
            off = _windows(scaled[run], settings.window) - mean
            scores[run.start + settings.window - 1 : run.stop] = (off**2).sum(axis=1) - ((off @ leading) ** 2).sum(
                axis=1
            )
        runs = broken(scaled, settings.window).entries(settings.window - 1)
        return smooth_causally(scores, runs, settings.smoothing)

    # No least threshold: residuals of windows are not in units of normal data.
    rule = replace(settings.threshold_rule, least=SMALLEST)
    threshold = rule.found(scores_of(recordings.train if held_out is None else held_out)).value
    scores = scores_of(recordings.test)
    thresholds, parts = np.full(len(scores), threshold), np.zeros((len(scores), 0))
    return find_events(scores, thresholds, scores > threshold, parts, (), join=settings.window)


def _windows(scaled: Array, window: int) -> Array:
    """Return all full windows of the stretches of a series, a row each."""
    pieces = [
        np.lib.stride_tricks.sliding_window_view(scaled[run], window, axis=0).reshape(-1, window * scaled.shape[1])
        for run in stretches(scaled, shortest=window)
    ]
    return np.concatenate(pieces)


ALTERNATIVES: Mapping[str, Callable[[Recordings, DetectorSettings], tuple[Event, ...]]] = {
    "each pump alone": alone,
    "PCA of windows": by_principal_components,
}
