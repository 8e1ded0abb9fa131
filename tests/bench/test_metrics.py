"""Metrics against aeon, scikit-learn, numeric integration and plain loops."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

from fedkad_bench.metrics.adjusted import credited_points, point_adjusted
from fedkad_bench.metrics.affiliation import affiliation
from fedkad_bench.metrics.chance import random_adjusted
from fedkad_bench.metrics.events import composite, event_wise
from fedkad_bench.metrics.missing import alarms_above, ranked
from fedkad_bench.metrics.operation import detection_delay, events_detected, false_alarms_per_day
from fedkad_bench.metrics.pointwise import PrecisionRecall, pointwise
from fedkad_bench.metrics.ranges import range_based
from fedkad_bench.metrics.ranking import average_precision, roc_auc
from fedkad_bench.metrics.segments import flagged_within, overlapping, segments
from fedkad_bench.metrics.vus import THRESHOLDS, vus_pr, vus_pr_steps
from tests.fixtures.draws import draws

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

BINARY: list[Callable[[Flags, Flags], PrecisionRecall]] = [
    pointwise,
    range_based,
    event_wise,
    composite,
    affiliation,
    lambda labels, alarms: point_adjusted(labels, alarms, 0.1),
]


def runs_of(lengths: list[int], first: bool) -> Flags:
    """Alternating runs of True and False."""
    return np.concatenate([np.full(length, (k % 2 == 0) == first) for k, length in enumerate(lengths)])


@st.composite
def flags(draw: st.DrawFn, size: int) -> Flags:
    """Runs of very different lengths, cut to size."""
    lengths = draw(st.lists(st.sampled_from([1, 1, 2, 3, 5, 9, 10, 11, 20, 60]), min_size=1, max_size=20))
    whole = runs_of([*lengths, size], draw(st.booleans()))
    return whole[:size] if draw(st.booleans()) else whole[:size][::-1]


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Flags, Flags]:
    size = draw(st.integers(2, 120))
    return draw(flags(size)), draw(flags(size))


@st.composite
def scored(draw: st.DrawFn) -> tuple[Flags, Array]:
    """Labels of both kinds with scores that often tie and sometimes know the labels."""
    size = draw(st.integers(2, 400))
    labels = draw(flags(size).filter(lambda y: bool(y.any()) and not bool(y.all())))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = generator.normal(size=size) + draw(st.sampled_from([0.0, 1.0, 5.0])) * labels
    rounded = np.asarray(np.round(scores, draw(st.sampled_from([0, 1, 12]))), dtype=np.float64)
    return labels, rounded


def realistic(seed: int, rows: int = 20_000) -> tuple[Flags, Array]:
    """Long and short anomalies, also at the borders and close together, and smooth scores that see some of them."""
    generator = np.random.default_rng(seed)
    labels = np.zeros(rows, dtype=bool)
    for start in generator.integers(0, rows, 12):
        labels[start : start + int(generator.choice([1, 4, 30, 800]))] = True
    labels[:3] = labels[-7:] = labels[500:505] = labels[508:509] = labels[512:530] = True
    noise = np.convolve(generator.exponential(size=rows), np.full(5, 0.2), mode="same")
    return labels, noise + labels * generator.exponential(size=rows)


# --- runs and missing scores


@given(labelled())
def test_segments_are_what_a_loop_finds(pair: tuple[Flags, Flags]) -> None:
    labels, alarms = pair
    found, others = segments(labels), segments(alarms)
    rebuilt = np.zeros_like(labels)
    for start, stop in zip(*found, strict=True):
        assert labels[start:stop].all()
        assert not labels[stop : stop + 1].any()
        rebuilt[start:stop] = True
    assert (rebuilt == labels).all()
    assert flagged_within(found, alarms).tolist() == [alarms[a:b].sum() for a, b in zip(*found, strict=True)]
    meets = [sum(p < b and a < q for p, q in zip(*others, strict=True)) for a, b in zip(*found, strict=True)]
    assert overlapping(found, others).tolist() == meets


def test_an_entry_without_a_score_is_no_alarm_and_ranks_last() -> None:
    scores = np.array([np.nan, -3.0, 2.0, np.nan])
    assert alarms_above(scores, -10.0).tolist() == [False, True, True, False]
    assert alarms_above(scores, -3.0, at_least=True).tolist() == [False, True, True, False]
    assert ranked(scores).tolist() == [-3.0, -3.0, 2.0, -3.0]
    assert ranked(np.full(3, np.nan)).tolist() == [0.0, 0.0, 0.0]
    labels = np.array([False, False, True, True])
    for metric in (roc_auc, average_precision, vus_pr):
        assert metric(labels, scores) == metric(labels, ranked(scores))


# --- ranking


@given(scored())
def test_areas_are_those_of_scikit_learn(case: tuple[Flags, Array]) -> None:
    labels, scores = case
    assert roc_auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(labels, scores) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def vus_of_aeon(labels: Flags, scores: Array, buffer: int) -> float:
    from aeon.benchmarking.metrics.anomaly_detection import range_pr_vus_score

    return float(range_pr_vus_score(labels.astype(int), scores, max_buffer_size=buffer))


@pytest.mark.slow
@draws(60)
@given(scored(), st.sampled_from([0, 1, 2, 7, 20]))
def test_vus_is_that_of_aeon(case: tuple[Flags, Array], buffer: int) -> None:
    labels, scores = case
    if np.ptp(scores) > 0.0:
        assert vus_pr(labels, scores, buffer=buffer) == pytest.approx(vus_of_aeon(labels, scores, buffer), abs=1e-9)


@pytest.mark.parametrize("decimals", [1, 15])
def test_vus_is_that_of_aeon_on_long_series(decimals: int) -> None:
    labels, scores = realistic(decimals)
    scores = scores.round(decimals)
    assert vus_pr(labels, scores) == pytest.approx(vus_of_aeon(labels, scores, 20), abs=1e-9)


def naive_vus_by_steps(labels: Flags, scores: Array, buffer: int) -> float:
    """The definition, entry by entry: widened labels, a curve for each width, precision times the recall gained."""
    ordered = sorted(scores, reverse=True)
    thresholds = [ordered[int(k)] for k in np.linspace(0, len(ordered) - 1, THRESHOLDS)]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], labels.astype(int), [0]])))
    areas = []
    for width in range(buffer + 1):
        wide = labels.astype(float)
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            before = [(start - j, j) for j in range(1, width // 2 + 1)]
            after = [(stop - 1 + j, j) for j in range(1, width // 2)]
            for entry, distance in (*before, *after):
                if 0 <= entry < len(wide):
                    wide[entry] = min(wide[entry] + math.sqrt(1.0 - distance / width), 1.0)
        runs = np.split(np.arange(len(wide)), np.flatnonzero(np.diff((wide > 0.0).astype(int))) + 1)
        runs = [run for run in runs if wide[run[0]] > 0.0]
        area = reached = 0.0
        for threshold in thresholds:
            alarms = scores >= threshold
            true = float(wide[alarms].sum())
            found = sum(bool(alarms[run].any()) for run in runs) / len(runs)
            recall = min(true / ((labels.sum() + wide.sum()) / 2.0), 1.0) * found
            area += (recall - reached) * true / alarms.sum()
            reached = recall
        areas.append(area)
    return float(np.mean(areas))


@pytest.mark.parametrize("decimals", [0, 6])
@pytest.mark.parametrize("seed", range(3))
def test_vus_by_steps_is_its_definition(seed: int, decimals: int) -> None:
    generator = np.random.default_rng(seed)
    labels = np.repeat(generator.random(25) < 0.3, 12) | (np.arange(300) == 3)
    scores = np.round(generator.exponential(size=300) + labels, decimals)
    assert vus_pr_steps(labels, scores, buffer=8) == pytest.approx(naive_vus_by_steps(labels, scores, 8), abs=1e-9)


def test_rounding_unties_nothing_by_steps() -> None:
    labels = np.arange(300) // 20 == 7
    flat = np.full(300, 0.3)
    flat[150] = 0.4
    noisy = flat * (1.0 + 1e-13 * np.random.default_rng(0).normal(size=300))
    assert vus_pr_steps(labels, noisy) == vus_pr_steps(labels, flat)


def test_labels_everywhere_are_all_found() -> None:
    assert vus_pr(np.ones(50, dtype=bool), np.arange(50, dtype=np.float64)) == pytest.approx(1.0)


def test_equal_scores_have_no_volume() -> None:
    assert vus_pr(np.array([True, False]), np.ones(2)) == 0.0


@given(scored())
def test_only_the_order_of_scores_matters(case: tuple[Flags, Array]) -> None:
    labels, scores = case
    stretched = np.exp(scores / 4.0) * 8.0 - 3.0
    for metric in (roc_auc, average_precision, vus_pr):
        assert metric(labels, stretched) == metric(labels, scores)


@given(scored())
def test_areas_do_not_know_time(case: tuple[Flags, Array]) -> None:
    labels, scores = case
    order = np.random.default_rng(len(labels)).permutation(len(labels))
    for metric in (roc_auc, average_precision):
        assert metric(labels[order], scores[order]) == pytest.approx(metric(labels, scores), abs=1e-12)


# --- points and segments


@given(labelled())
def test_pointwise_is_that_of_scikit_learn(pair: tuple[Flags, Flags]) -> None:
    labels, alarms = pair
    if labels.any():
        expected = precision_recall_fscore_support(labels, alarms, average="binary", zero_division=0.0)[:3]
        assert pointwise(labels, alarms) == pytest.approx(expected)


def adjusted_by_loops(labels: Flags, alarms: Flags, share: float, at_least: bool) -> Flags:
    """Alarms after adjustment, one segment after the other, in exact integers of a hundredth."""
    adjusted, percent = alarms.copy(), round(100 * share)
    for start, stop in zip(*segments(labels), strict=True):
        hit = 100 * int(alarms[start:stop].sum())
        needed = percent * int(stop - start)
        if (hit >= needed and hit > 0) if at_least else hit > needed:
            adjusted[start:stop] = True
    return adjusted


@given(labelled(), st.sampled_from([0.0, 0.01, 0.1, 0.2, 0.33, 0.5, 0.7, 1.0]), st.booleans())
def test_adjustment_is_pointwise_on_adjusted_alarms(pair: tuple[Flags, Flags], share: float, at_least: bool) -> None:
    labels, alarms = pair
    if not labels.any():
        return
    adjusted = point_adjusted(labels, alarms, share, at_least=at_least)
    assert adjusted == pytest.approx(pointwise(labels, adjusted_by_loops(labels, alarms, share, at_least)))
    plain = pointwise(labels, alarms)
    assert adjusted.recall >= plain.recall
    assert adjusted.precision >= plain.precision
    assert point_adjusted(labels, alarms, None) == plain


@given(st.integers(1, 60), st.integers(1, 100))
def test_a_share_met_exactly_is_met(tens: int, percent: int) -> None:
    length, hits = 100 * tens, percent * tens
    for at_least, expected in ((True, length), (False, hits)):
        credited = credited_points(np.array([hits]), np.array([length]), percent / 100, at_least=at_least)
        assert credited.tolist() == [expected]


def test_any_hit_needs_a_hit() -> None:
    labels, silent = np.array([True, True, False]), np.zeros(3, dtype=bool)
    assert point_adjusted(labels, silent, 0.0) == (0.0, 0.0, 0.0)
    assert point_adjusted(labels, np.array([True, False, False]), 0.0) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("share", [None, 0.0, 0.01, 0.1])
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_the_random_detector_is_that_of_a_simulation(share: float | None, rate: float) -> None:
    labels = np.zeros(2000, dtype=bool)
    labels[100:110] = labels[400:600] = labels[900:903] = True
    generator = np.random.default_rng(1)
    rows = [point_adjusted(labels, generator.random(2000) < rate, share) for _ in range(4000)]
    ours = random_adjusted(labels, rate, share, replicates=4000)
    spread = np.std(rows, axis=0) / math.sqrt(4000)
    assert np.abs(np.mean(rows, axis=0) - ours) == pytest.approx(np.zeros(3), abs=float(6.0 * spread.max()))
    assert (np.abs(np.mean(rows, axis=0) - ours) <= 6.0 * spread + 1e-12).all()


def test_the_random_detector_is_reproducible_and_knows_its_limits() -> None:
    labels = np.arange(500) // 50 == 3
    assert random_adjusted(labels, 0.05, 0.01) == random_adjusted(labels, 0.05, 0.01)
    assert random_adjusted(labels, 0.0, 0.0) == (0.0, 0.0, 0.0)
    assert random_adjusted(labels, 1.0, 0.5) == pytest.approx((0.1, 1.0, 2 / 11))


# --- ranges, events


TWO_RUNS = (runs_of([6, 2, 1, 3], True), runs_of([1, 2, 1, 1, 4, 3], True))
"""Two runs of alarms in one event, and a run that meets two events."""


@given(labelled(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["reciprocal", "one"]))
@example(TWO_RUNS, 0.0, "reciprocal")
@example(TWO_RUNS[::-1], 0.5, "reciprocal")
@example(TWO_RUNS, 0.0, "one")
def test_ranges_are_those_of_aeon(pair: tuple[Flags, Flags], existence: float, cardinality: str) -> None:
    from aeon.benchmarking.metrics.anomaly_detection import range_f_score, range_precision, range_recall

    labels, alarms = pair
    if not labels.any() or not alarms.any() or alarms.all():
        return
    y, z = labels.astype(int), alarms.astype(int)
    expected = (
        range_precision(y, z, cardinality=cardinality),
        range_recall(y, z, alpha=existence, cardinality=cardinality),
        range_f_score(y, z, r_alpha=existence, cardinality=cardinality),
    )
    ours = range_based(labels, alarms, existence=existence, cardinality=cardinality)  # type: ignore[arg-type]
    assert ours == pytest.approx(expected, abs=1e-12)


@given(labelled())
def test_events_by_loops(pair: tuple[Flags, Flags]) -> None:
    labels, alarms = pair
    if not labels.any():
        return
    events = [(int(a), int(b)) for a, b in zip(*segments(labels), strict=True)]
    runs = [(int(a), int(b)) for a, b in zip(*segments(alarms), strict=True)]
    found = [(a, b) for a, b in events if alarms[a:b].any()]
    true = [(p, q) for p, q in runs if labels[p:q].any()]
    assert event_wise(labels, alarms).recall == composite(labels, alarms).recall == len(found) / len(events)
    assert event_wise(labels, alarms).precision == (len(true) / len(runs) if runs else 0.0)
    assert composite(labels, alarms).precision == pointwise(labels, alarms).precision
    assert events_detected(labels, alarms) == len(found) / len(events)
    delays = [int(np.argmax(alarms[a:b])) for a, b in found]
    assert detection_delay(labels, alarms) == pytest.approx(np.mean(delays) if delays else np.nan, nan_ok=True)
    normal = int((~labels).sum())
    days = normal * 60.0 / 86400.0
    expected = (len(runs) - len(true)) / days if normal else np.nan
    assert false_alarms_per_day(labels, alarms, 60.0) == pytest.approx(expected, nan_ok=True)


def test_false_alarms_need_a_sampling_period() -> None:
    assert math.isnan(false_alarms_per_day(np.array([True, False]), np.array([True, False]), None))


# --- affiliation


def affiliation_by_integration(labels: Flags, alarms: Flags, steps: int = 8) -> tuple[float, float]:
    """Midpoints of small cells, and probabilities by counting the same cells: no closed forms."""
    grid = (np.arange(len(labels) * steps) + 0.5) / steps
    event_cells, alarm_cells = np.repeat(labels, steps), np.repeat(alarms, steps)
    found = segments(labels)
    borders = [0.0, *((found.stops[:-1] + found.starts[1:]) / 2.0), float(len(labels))]
    precisions, recalls = [], []
    for k, (a, b) in enumerate(zip(*found, strict=True)):
        zone = (grid >= borders[k]) & (grid < borders[k + 1])
        points, inside, flagged = grid[zone], event_cells[zone], grid[zone & alarm_cells]
        if not len(flagged):
            recalls.append(0.0)
            continue
        to_event = np.maximum(np.maximum(a - points, points - b), 0.0)
        chance = [np.mean(to_event >= np.maximum(max(a - x, x - b), 0.0)) for x in flagged]
        precisions.append(float(np.mean(chance)))
        terms = []
        for y in points[inside]:
            gaps = np.abs(flagged - y)
            nearest = gaps.min()
            # Cells are 1/steps wide: the distance to an alarm's edge is half a cell less than to its midpoint.
            distance = 0.0 if nearest == 0.0 else nearest - 0.5 / steps
            terms.append(1.0 if distance == 0.0 else np.mean(np.abs(points - y) >= distance))
        recalls.append(float(np.mean(terms)))
    return float(np.mean(precisions)) if precisions else 0.0, float(np.mean(recalls))


@draws(60)
@given(labelled())
def test_affiliation_is_a_numeric_integral(pair: tuple[Flags, Flags]) -> None:
    labels, alarms = pair
    if not labels.any():
        return
    steps = 16
    precision, recall = affiliation_by_integration(labels, alarms, steps)
    ours = affiliation(labels, alarms)
    half_a_cell = 0.5 / steps  # of a zone that is at least one entry long
    assert ours.precision == pytest.approx(precision, abs=half_a_cell)
    assert ours.recall == pytest.approx(recall, abs=half_a_cell)


def test_affiliation_by_hand() -> None:
    # The event [4, 6) in the zone [0, 10); alarms on [7, 8): distances 1 … 2, P(dist ≥ u) = (8 − 2u)/10.
    labels, alarms = np.zeros((2, 10), dtype=bool)
    labels[4:6] = alarms[7] = True
    assert affiliation(labels, alarms).precision == pytest.approx(0.5)
    # y in [4, 6), distance 7 − y: P(|X − y| ≥ 7 − y) = (max(2y − 7, 0) + 3)/10, whose mean over y is 0.6.
    assert affiliation(labels, alarms).recall == pytest.approx((((5**2 - 1**2) / 4) + 6) / 20)


def test_perfect_alarms_are_perfect_by_every_measure() -> None:
    labels, _ = realistic(0, 3000)
    for metric in BINARY:
        assert metric(labels, labels) == pytest.approx((1.0, 1.0, 1.0)), metric


# --- what holds for all


@given(labelled())
def test_measures_are_shares_and_silence_scores_nothing(pair: tuple[Flags, Flags]) -> None:
    labels, alarms = pair
    for metric in BINARY:
        value = metric(labels, alarms)
        if labels.any():
            assert all(-1e-12 <= part <= 1.0 + 1e-12 for part in value)
            assert metric(labels, np.zeros_like(labels)) == (0.0, 0.0, 0.0)
        else:
            assert all(math.isnan(part) for part in value)


def test_without_anomalies_nothing_is_defined() -> None:
    quiet, scores = np.zeros(5, dtype=bool), np.arange(5, dtype=np.float64)
    for metric in (roc_auc, average_precision, vus_pr):
        assert math.isnan(metric(quiet, scores))
    assert math.isnan(roc_auc(~quiet, scores))
    assert math.isnan(events_detected(quiet, ~quiet))
    assert math.isnan(detection_delay(quiet, ~quiet))
    assert all(math.isnan(part) for part in random_adjusted(quiet, 0.1, 0.0))
