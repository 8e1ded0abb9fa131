"""Training as pure functions of values: data to a `Memory`, a memory and a subspace to a `Model`, more data to both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkad.blasthreads import single_threaded
from fedkad.detect.calibration import MOST_HELD_OUT, HeldOut, calibrate, first_spared, split
from fedkad.detect.model import DetectorSettings, Memory, Model, Setup
from fedkad.detect.modelfile import StoredMemory
from fedkad.detect.scoring import Dynamics
from fedkad.detect.series import Series, join_stretches, refuse_empty_channels
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced, cap_spectrum, fit_operator, relative_ridge
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad.koopman.snapshots import Statistics, collect, stretches
from fedkad.koopman.subspace import own_subspace

Array = NDArray[np.float64]

FEWEST_PAIRS = 20
"""Nothing can be learned from fewer snapshot pairs."""


@single_threaded()
def fit(settings: DetectorSettings, series: Series) -> tuple[Model, Memory]:
    """Train one device alone, on the subspace that it would choose itself."""
    memory = prepare(settings, series)
    return adopt(memory, own_subspace(memory.statistics, settings.rank)), memory


@single_threaded()
def prepare(settings: DetectorSettings, series: Series, scaling: Scaling | None = None) -> Memory:
    """Everything in training that needs the data: scaling, statistics, held-out rows. `adopt` does the rest."""
    settings.check()
    refuse_empty_channels(series)
    lifting = Lifting(series.values.shape[1], settings.window, settings.observables, settings.seed)
    if settings.rank > lifting.dimension:
        raise ValueError(
            f"rank={settings.rank} is larger than the lifted dimension {lifting.dimension} "
            f"({lifting.channels} channels x window {settings.window} + {settings.observables} observables); lower it."
        )
    if scaling is None:
        scaling = Scaling.fit(_training_rows(settings, series.values))
    return _remember(Setup(settings, series.names, scaling), scaling.transform(series.values))


def training_moments(settings: DetectorSettings, series: Series) -> ChannelMoments:
    """Moments of the rows that a scaling is learned from; a fleet with one scaling merges them."""
    return ChannelMoments.of(_training_rows(settings, series.values))


def _training_rows(settings: DetectorSettings, values: Array) -> Array:
    rows, _ = split(values, settings.validation, settings.lead)
    window = settings.window
    _require_pairs(sum(run.stop - run.start - window for run in stretches(rows, window + 1)), window)
    return rows


def _remember(setup: Setup, scaled: Array) -> Memory:
    """Statistics of the training rows, and the rows that set the threshold."""
    settings = setup.settings
    training, held_out = split(scaled, settings.validation, settings.lead)
    statistics = collect(training, setup.lifting, settings.horizon)
    _require_pairs(statistics.count, settings.window)
    if held_out is not None:
        return Memory(setup, statistics, HeldOut(held_out, crossed=False))
    if statistics.count > MOST_HELD_OUT:
        raise ValueError(
            f"validation={settings.validation} of {len(scaled)} rows is too little to set a threshold; raise it."
        )
    return Memory(setup, statistics, HeldOut(scaled, crossed=True))


def _require_pairs(count: float, window: int) -> None:
    if count < FEWEST_PAIRS:
        raise ValueError(
            f"Too few rows: only {int(count)} windows of {window} consecutive complete samples have a "
            f"successor, and at least {FEWEST_PAIRS} are needed; pass more rows or a shorter window."
        )


@single_threaded()
def adopt(memory: Memory, subspace: Array, *, least_threshold: float = 0.0, previous: Model | None = None) -> Model:
    """Make a model of a memory and a subspace: fit the private operator, calibrate the scores, set the threshold.

    The threshold is not below `least_threshold` as long as it rests on fewer than a thousand scores: calibrated
    scores are alike on all devices, and a fleet has seen more. From the `previous` model it takes a threshold that
    was set by hand, and how far the device has learned in its feed.
    """
    expected = (memory.setup.lifting.dimension, memory.setup.settings.rank)
    if subspace.shape != expected:
        raise ValueError(
            f"The subspace has shape {subspace.shape} instead of {expected}; train it with these settings."
        )
    if not np.allclose(subspace.T @ subspace, np.eye(expected[1]), atol=1e-6):
        raise ValueError("The columns of the subspace are not orthonormal; pass its polar factor.")
    model = _calibrated(memory, subspace, least_threshold)
    if previous is None:
        return model
    model = replace(model, learnt_through=previous.learnt_through)
    return model.with_threshold(previous.threshold) if previous.by_hand else model


@single_threaded()
def learn(model: Model, known: Memory | StoredMemory, scaled: Array, forgetting: float = 1.0) -> tuple[Model, Memory]:
    """Add scaled normal data to what is known and refit the operator; scaling and subspace stay.

    As in `prepare`, the last `validation` share of the rows sets the threshold. With `forgetting` below one, what was
    known before weighs that much less. A model of few rows still has all of them: it forgets none and takes the new
    ones as if it had been trained on all.
    """
    if not 0.0 < forgetting <= 1.0:
        raise ValueError(f"forgetting={forgetting} must lie in (0, 1]; 1 forgets nothing.")
    setup, settings = model.setup, model.settings
    if not any(stretches(scaled, shortest=settings.window + 1)):
        raise ValueError(
            f"Nothing to learn from: no {settings.window + 1} consecutive rows are complete; pass a longer piece."
        )
    if model.few_rows:
        memory = _remember(setup, join_stretches([known.held_out.rows, scaled]))
    else:
        first = first_spared(scaled, settings.validation)
        added = collect(scaled[:first], setup.lifting, settings.horizon)
        statistics, held_out = known.joined(added, forgetting)
        held_out = held_out.extended(scaled[max(first - settings.lead, 0) :], settings.lead)
        memory = Memory(setup, statistics, held_out)
    return adopt(memory, model.dynamics.subspace, least_threshold=model.least_threshold, previous=model), memory


def _calibrated(memory: Memory, subspace: Array, least_threshold: float) -> Model:
    setup, settings = memory.setup, memory.setup.settings
    is_paper = settings.scoring == "paper"

    def fit_dynamics(statistics: Statistics) -> Dynamics:
        reduced = Reduced.at(statistics, subspace)
        fitted = fit_operator(reduced, relative_ridge(reduced, settings.ridge), always=not is_paper)
        return Dynamics(setup.lifting, subspace, cap_spectrum(fitted, settings.spectral_cap), settings.horizon)

    dynamics = fit_dynamics(memory.statistics)
    scoring, normal_scores = calibrate(
        dynamics, memory.statistics, memory.held_out, fit_dynamics, paper=is_paper, smoothing=settings.smoothing
    )
    untold = Model(setup, scoring, normal_scores, memory.held_out.crossed, np.nan, None, least_threshold)
    return untold.judged_by(settings.threshold_rule)
