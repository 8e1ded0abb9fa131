"""Training as pure functions of values: data to a `Memory`, a memory and a subspace to a `Model`, more data to both."""

import re
from dataclasses import replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from fedkad.blasthreads import single_threaded
from fedkad.detect.dynamics import Dynamics
from fedkad.detect.heldout import MOST_HELD_OUT, HeldOut, first_spared, split
from fedkad.detect.model import DetectorSettings, Memory, Model, Setup
from fedkad.detect.modelfile import StoredMemory
from fedkad.detect.ranges import FEW, KnownRanges
from fedkad.detect.scoring import scorable_rows, score_series
from fedkad.detect.series import Series, join_stretches, refuse_empty_channels
from fedkad.detect.threshold import SECONDS, USUAL_SHAPE
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced, cap_spectrum, fit_operator, relative_ridge
from fedkad.koopman.scaling import ChannelMoments, Scaling, clipped, incomplete
from fedkad.koopman.snapshots import Statistics, collect, stretches
from fedkad.koopman.subspace import leading_directions, own_subspace
from fedkad.progress import Report, unheard
from fedkad.settingerror import SettingError

Array = NDArray[np.float64]

QUIET = 0.9  # the highest score of a confirmed stretch, as a share of the threshold
FEWEST_PAIRS = 20  # nothing can be learned from fewer snapshot pairs
MOSTLY = 0.5  # share of the rows that training should be able to learn from; holes that leave less are warned of


@single_threaded()
def fit(settings: DetectorSettings, series: Series, report: Report = unheard) -> tuple[Model, Memory]:
    """Train one device alone, on the subspace that it would choose itself."""
    memory = prepare(settings, series, report=report)
    return adopt(memory, own_subspace(memory.statistics, settings.rank)), memory


@single_threaded()
def prepare(
    settings: DetectorSettings, series: Series, scaling: Scaling | None = None, report: Report = unheard
) -> Memory:
    """Everything in training that needs the data: scaling, statistics, held-out rows. `adopt` does the rest."""
    settings.check()
    refuse_empty_channels(series)
    lifting = Lifting(series.values.shape[1], settings.window, settings.observables, settings.seed)
    if settings.rank > lifting.dimension:
        raise ValueError(
            f"rank={settings.rank} is larger than the lifted dimension {lifting.dimension} "
            f"({lifting.channels} channels x window {settings.window} + {settings.observables} observables); lower it."
        )
    return _remember(*_scaled(settings, series, scaling), report)


def _scaled(settings: DetectorSettings, series: Series, scaling: Scaling | None) -> tuple[Setup, Array]:
    """The setup and the scaled values; a copy without absurd ones is gone before anything is learned."""
    series = _cleaned(settings, series)
    if scaling is None:
        scaling = Scaling.fit(_training_rows(settings, series.values))
    setup = Setup(settings, series.names, scaling)
    setup.inputs  # noqa: B018  # unknown names are refused here, before anything is computed
    return setup, scaling.standardise(series.values, out=series.values if series.overwrite_ok else None)


def training_moments(settings: DetectorSettings, series: Series) -> ChannelMoments:
    """Moments of the rows that a scaling is learned from; a fleet with one scaling merges them."""
    return ChannelMoments.of(_training_rows(settings, _cleaned(settings, series).values))


def _cleaned(settings: DetectorSettings, series: Series) -> Series:
    """The series with gaps where its scoring does not learn from a value."""
    values = settings.scoring.cleaned(series.values)
    return series if values is series.values else Series(values, series.names, overwrite_ok=True)


def _training_rows(settings: DetectorSettings, values: Array) -> Array:
    holds_out = settings.scoring.holds_out
    rows = split(values, settings.validation, settings.lead)[0] if holds_out else values
    lead = settings.window if holds_out else settings.lead
    missing = int(incomplete(rows).sum())
    _require_pairs(sum(run.stop - run.start - lead for run in stretches(rows, lead + 1)), lead, missing, len(rows))
    return rows


def _remember(setup: Setup, scaled: Array, report: Report = unheard) -> Memory:
    """Statistics of the training rows, and the rows that set the threshold."""
    settings, method = setup.settings, setup.settings.scoring
    training, held_out = split(scaled, settings.validation, settings.lead)
    statistics = _collected(setup, training if method.holds_out else scaled, report)
    ranges = method.ranges(setup, scaled)
    if not method.holds_out:
        return Memory(setup, statistics, HeldOut.of(scaled, few=held_out is None).scorable(settings.lead), ranges)
    if held_out is not None:
        return Memory(setup, statistics, HeldOut.of(held_out, few=False), ranges)
    if statistics.count > MOST_HELD_OUT:
        raise ValueError(
            f"validation={settings.validation} of {len(scaled)} rows is too little to set a threshold; raise it."
        )
    return Memory(setup, statistics, HeldOut.of(scaled, few=True), ranges)


def _collected(setup: Setup, scaled: Array, report: Report = unheard) -> Statistics:
    statistics = collect(clipped(scaled), setup.lifting, setup.settings.horizon, report)
    _require_pairs(statistics.count, setup.settings.window)
    return statistics


def _require_pairs(count: float, window: int, missing: int = 0, rows: int = 0) -> None:
    if count < FEWEST_PAIRS:
        holes = (
            f"fill short holes first, because a value is missing in {missing} of {rows} rows, or " if missing else ""
        )
        raise ValueError(
            f"Too few rows: only {int(count)} windows of {window} consecutive complete samples have a "
            f"successor, and at least {FEWEST_PAIRS} are needed; {holes}pass more rows or a shorter window."
        )


def training_loss_note(series: Series, learned: float) -> str:
    """Warn that missing cells cost more than half of the training rows; empty if they did not.

    `learned` is the number of windows that were complete, with their successor.
    """
    missing = np.isnan(series.values)
    heard = ~missing.all(axis=1)
    rows, holes = int(heard.sum()), missing[heard].sum(axis=0)
    if learned >= MOSTLY * rows or not holes.any():
        return ""
    worst = int(np.argmax(holes))
    name = f"channel {series.names[worst]!r}" if series.names else f"channel {worst}"
    return (
        f"Only {int(learned)} of {rows} rows could be learned from, because a row needs a complete window before it "
        f"and {name} has no value in {holes[worst]} of them; fill short holes first, or leave the channel out."
    )


@single_threaded()
def adopt(
    memory: Memory,
    subspace: Array,
    *,
    least_threshold: float = 0.0,
    usual_shape: float = USUAL_SHAPE,
    previous: Model | None = None,
) -> Model:
    """Make a model of a memory and a subspace: fit the private operator, calibrate the scores, set the threshold.

    The threshold is not below `least_threshold` as long as it rests on fewer than a thousand scores, whose tail is
    expected to have the `usual_shape`: calibrated scores are alike on all devices, and a fleet has seen more. From the
    `previous` model it takes a threshold that was set by hand, and how far the device has learned in its feed.
    """
    expected = (memory.setup.lifting.dimension, memory.setup.settings.rank)
    if subspace.shape == (expected[0], expected[1] + memory.setup.private):
        subspace = subspace[:, : expected[1]]  # of a detector, with private directions
    if subspace.shape != expected:
        raise ValueError(
            f"The subspace has shape {subspace.shape} instead of {expected}; train it with these settings."
        )
    if not np.allclose(subspace.T @ subspace, np.eye(expected[1]), atol=1e-6):
        raise ValueError("The columns of the subspace are not orthonormal; pass its polar factor.")
    model = _like(_calibrated(memory, subspace, least_threshold, usual_shape), previous)
    return model if memory.ranges is None else _with_discounts(model, memory.ranges)


def _like(model: Model, previous: Model | None) -> Model:
    """The model with the rule, or the hand-set threshold, of the previous one, and its place in the feed."""
    if previous is None:
        return model
    model = replace(model, learnt_through=previous.learnt_through, confirmation=previous.confirmation)
    if previous.rule is None:
        return model.with_threshold(previous.threshold)
    return model if previous.rule == model.rule else model.with_rule(previous.rule)


@single_threaded()
def learn(
    model: Model, known: Memory | StoredMemory, scaled: Array, forgetting: float | str = 1.0, *, confirmed: bool = False
) -> tuple[Model, Memory]:
    """Add scaled normal data to what is known and refit the operator; scaling and subspace stay.

    Where rows are held out, the last `validation` share of them sets the threshold, as in `prepare`. With `forgetting`,
    what was known before weighs less. A model of few rows still has all of them: it forgets none and takes the new ones
    as if it had been trained on all. What a person `confirmed` to be normal sets no threshold, and is no alarm again.
    """
    setup, settings = model.setup, model.settings
    share = share_left(forgetting, len(scaled), settings.sample_period)
    if confirmed and model.scoring.bounds is None:
        name = settings.scoring.name
        raise ValueError(f"scoring={name!r} cannot learn what was confirmed; fit with scoring='witnesses'.")
    if confirmed:  # short holes are filled, as they are when the stretch is scored again
        rows = scorable_rows(model.scoring, scaled)
        scaled = np.where(np.isnan(scaled) & ~rows.absent[:, None], rows.filled, scaled)
    else:
        scaled = _sane(model, scaled)
    if not any(stretches(scaled, shortest=settings.window + 1)):
        raise ValueError(
            f"Nothing to learn from: no {settings.window + 1} consecutive rows are complete; pass a longer piece."
        )
    if model.few_rows and not confirmed:
        memory = _with_confirmed(_remember(setup, join_stretches([known.held_out.rows, scaled])), known.ranges)
    else:
        memory = _extended(setup, known, scaled, share, confirmed)
    shared = model.dynamics.subspace[:, : settings.rank]
    advice = {"least_threshold": model.least_threshold, "usual_shape": model.usual_shape}
    learnt = adopt(memory, shared, **advice, previous=model)
    if memory.ranges is not None and learnt.scoring.bounds is not None:
        memory = replace(memory, ranges=replace(memory.ranges, discounts=learnt.scoring.bounds.discounts))
    return learnt, memory


def _with_confirmed(memory: Memory, before: KnownRanges | None) -> Memory:
    """A memory of all rows, with what was confirmed before: those rows are not among them."""
    if memory.ranges is None or before is None:
        return memory
    statistics = memory.statistics
    for rows in before.confirmed_stretches:
        statistics = statistics + collect(clipped(rows), memory.setup.lifting, memory.setup.settings.horizon)
    return replace(memory, statistics=statistics, ranges=memory.ranges.keeping(before, memory.setup.settings.window))


def share_left(forgetting: float | str, rows: int, sample_period: float | None) -> float:
    """What is left of the weight of older data once so many rows have come: a share, or by a half-life.

    >>> share_left("2 hours", 60, 60.0) == 0.5**0.5
    True
    """
    if isinstance(forgetting, str):
        half_life = _rows_of(forgetting, sample_period)
        if half_life is not None:
            return float(0.5 ** (rows / half_life))
    elif isinstance(forgetting, Real) and 0.0 < forgetting <= 1.0:
        return float(forgetting)
    allowed = "a share in (0, 1], where 1 forgets nothing, or a half-life such as '5000 rows' or '30 days'"
    raise SettingError("forgetting", forgetting, f"{allowed} (a time needs sample_period)")


def _rows_of(half_life: str, sample_period: float | None) -> float | None:
    """A number of rows in a string such as "5000 rows" or "30 days"; None if it is neither."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(\w+?)s?\s*", half_life)
    if not match or float(match[1]) == 0.0:
        return None
    if match[2] in ("row", "sample"):
        return float(match[1])
    return float(match[1]) * SECONDS[match[2]] / sample_period if match[2] in SECONDS and sample_period else None


def _sane(model: Model, scaled: Array) -> Array:
    """New rows with gaps where a value is impossible; a channel with more than a few of them has moved on."""
    if model.scoring.bounds is None:
        return scaled
    wrong = model.scoring.bounds.absurd(scaled)
    wrong &= wrong.sum(axis=0) <= FEW
    return np.where(wrong, np.nan, scaled)


def _with_discounts(model: Model, ranges: KnownRanges) -> Model:
    """The model with just enough discount inside each confirmed stretch that none of its rows is an alarm."""
    if not len(ranges.discounts):
        return model
    discounts = ranges.discounts.copy()
    for k, rows in enumerate(ranges.confirmed_stretches):
        if len(rows) <= model.settings.lead:
            continue
        strict = model.scoring.with_discounts(np.where(np.arange(len(discounts)) == k, 1.0, discounts))
        highest = float(np.nanmax(score_series(strict, rows).causal(model.settings.smoothing), initial=0.0))
        # The score is a sum of roots of its terms.
        discounts[k] = min((QUIET * model.threshold / highest) ** 2, 1.0) if highest > 0.0 else 1.0
    return replace(model, scoring=model.scoring.with_discounts(discounts))


def _extended(setup: Setup, known: Memory | StoredMemory, scaled: Array, forgetting: float, confirmed: bool) -> Memory:
    """What is known, and more data after it; where rows are held out, the last ones set the threshold."""
    settings, first, newer = setup.settings, len(scaled), scaled
    if settings.scoring.holds_out:
        first = first_spared(scaled, settings.validation)
        newer = scaled[max(first - settings.lead, 0) :]
    added = collect(clipped(scaled[:first]), setup.lifting, settings.horizon)
    ranges = known.ranges
    statistics, held_out = known.joined(added, forgetting)
    held_out = held_out.extended(scaled[:0] if confirmed else newer, settings.lead, forgetting)
    if ranges is not None and confirmed:
        ranges = ranges.widened(scaled, settings.window)
    elif ranges is not None:
        ranges = ranges.joined(scaled, settings.window, forgetting)
    return Memory(setup, statistics, held_out, ranges)


def _calibrated(memory: Memory, subspace: Array, least_threshold: float, usual_shape: float) -> Model:
    setup, settings = memory.setup, memory.setup.settings
    subspace = _with_private(memory.statistics, subspace, setup.private)

    def fit_reduced(reduced: Reduced) -> Dynamics:
        ridge = relative_ridge(reduced, settings.ridge)
        fitted = fit_operator(reduced, ridge, always=settings.scoring.always_regularised)
        return Dynamics(setup.lifting, subspace, cap_spectrum(fitted, settings.spectral_cap), settings.horizon)

    scoring, normal_scores = settings.scoring.calibrate(memory, subspace, fit_reduced)
    unset = Model(setup, scoring, normal_scores, memory.held_out.few, np.nan, None, least_threshold, usual_shape)
    return unset.with_rule(settings.threshold_rule)


def _with_private(statistics: Statistics, shared: Array, count: int) -> Array:
    """The shared directions, and `count` of the device's own: the leading ones of what the shared ones leave.

    With A = XXᵀ they are the leading eigenvectors of (I − ZZᵀ) A (I − ZZᵀ).
    """
    if not count:
        return shared
    half = statistics.xx - shared @ (shared.T @ statistics.xx)
    rest = half - (half @ shared) @ shared.T
    own = leading_directions((rest + rest.T) / 2.0, count).vectors
    own = own - shared @ (shared.T @ own)
    return np.concatenate([shared, np.linalg.qr(own)[0]], axis=1)
