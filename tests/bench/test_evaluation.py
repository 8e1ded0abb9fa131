"""All metrics of a client together: complete, equal to their parts, the same smoothing for every method."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad_bench.evaluation import (
    METRICS,
    SMOOTHINGS,
    Covers,
    evaluate_client,
    evaluate_smoothings,
    macro,
    smoothed,
)
from fedkad_bench.metrics.affiliation import affiliation
from fedkad_bench.metrics.chance import random_adjusted
from fedkad_bench.metrics.events import composite, event_wise
from fedkad_bench.metrics.operation import detection_delay, false_alarms_per_day
from fedkad_bench.metrics.pointwise import pointwise
from fedkad_bench.metrics.ranges import range_based
from fedkad_bench.metrics.vus import vus_pr
from fedkad_bench.protocols import PROTOCOLS, Choices
from tests.fixtures import naive

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def client(seed: int = 0, rows: int = 4000) -> tuple[Array, Array, Flags]:
    """Validation scores, test scores that begin without one, and labels."""
    generator = np.random.default_rng(seed)
    labels = np.zeros(rows, dtype=bool)
    labels[1000:1200] = labels[2000:2010] = labels[-30:] = True
    test = generator.exponential(size=rows) * (1.0 + 4.0 * labels)
    test[:20] = np.nan
    return generator.exponential(size=2000), test, labels


def test_a_row_has_every_metric_once_in_order() -> None:
    assert list(evaluate_client(*client())) == list(METRICS)
    assert {metric.group for metric in METRICS.values()} == {"paper", "trusted", "operation"}
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)


def test_a_row_is_made_of_its_parts() -> None:
    validation, test, labels = client()
    row = evaluate_client(validation, test, labels, sample_period=60.0)
    pot, tuned = test > row["pot_threshold"], test > row["tuned_threshold"]
    assert row["vus_pr"] == vus_pr(labels, test)
    assert row["pot_point_f1"] == pytest.approx(pointwise(labels, pot).f1)
    assert row["range_f1"] == range_based(labels, pot).f1
    assert (row["event_f1"], row["composite_f1"]) == (event_wise(labels, pot).f1, composite(labels, pot).f1)
    assert row["affiliation_recall"] == affiliation(labels, pot).recall
    assert row["delay_samples"] == detection_delay(labels, pot)
    assert row["false_alarms_per_day"] == false_alarms_per_day(labels, pot, 60.0)
    assert (row["pot_alarm_rate"], row["tuned_alarm_rate"]) == (pot.mean(), tuned.mean())
    for protocol in PROTOCOLS:
        if protocol.recall_cap is None:
            rate = row[f"{protocol.threshold}_alarm_rate"]
            chance = random_adjusted(labels, rate, protocol.share)
            found = [row[f"{protocol.key}_random_{part}"] for part in ("precision", "recall", "f1")]
            assert found == pytest.approx(list(chance))


def test_adjustment_flatters_a_random_detector() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(20_000) // 2000 == 4
    row = evaluate_client(generator.random(5000), generator.random(20_000), labels, choices=Choices(tuned_quantile=0.9))
    assert row["pa1_f1"] > 0.6
    assert row["pa1_random_f1"] == pytest.approx(row["pa1_f1"], abs=0.02)
    assert row["vus_pr"] < 0.15


def test_a_client_without_anomalies_keeps_its_false_alarms() -> None:
    validation, test, labels = client()
    row = evaluate_client(validation, test, np.zeros_like(labels), sample_period=60.0)
    known = {name for name, value in row.items() if not math.isnan(value)}
    alarms = {"false_alarms_per_day", "pot_alarm_rate", "tuned_alarm_rate", "pot_threshold", "tuned_threshold"}
    assert known == alarms
    scored = Choices(without_anomalies="perfect_if_silent")
    silent = evaluate_client(validation, np.zeros(10), np.zeros(10, dtype=bool), choices=scored)
    assert (silent["pa1_f1"], silent["pa1_random_f1"]) == (1.0, 1.0)


def test_an_alarm_is_more_than_the_threshold_or_at_least_it() -> None:
    constant, labels = np.ones(100), np.arange(100) < 10
    assert evaluate_client(constant, constant, labels)["pot_alarm_rate"] == 0.0
    assert evaluate_client(constant, constant, labels, choices=Choices(score_at_least=True))["pot_alarm_rate"] == 1.0


@given(st.integers(0, 60), st.integers(1, 60), st.integers(0, 2**32), st.sampled_from([0, 1, 9]))
def test_no_input_of_the_right_shape_fails(few: int, rows: int, seed: int, decimals: int) -> None:
    generator = np.random.default_rng(seed)
    validation, test = (generator.normal(size=size).round(decimals) for size in (few, rows))
    test[generator.random(rows) < generator.choice([0.0, 0.2, 1.0])] = np.nan
    labels = generator.random(rows) < generator.choice([0.0, 0.3, 1.0])
    for row in evaluate_smoothings(validation, test, labels, covers="window", sample_period=60.0).values():
        assert list(row) == list(METRICS)
        shares = [value for name, value in row.items() if METRICS[name].unit == "share" and not math.isnan(value)]
        assert all(-1e-9 <= value <= 1.0 + 1e-9 for value in shares)


def test_wrong_shapes_and_infinite_scores_are_refused() -> None:
    labels = np.zeros(3, dtype=bool)
    for validation, test in (
        (np.ones(3), np.ones(4)),
        (np.ones((3, 1)), np.ones(3)),
        (np.ones(3), np.array([1.0, np.inf, 1.0])),
        (np.array([-np.inf]), np.ones(3)),
    ):
        with pytest.raises(ValueError):
            evaluate_client(validation, test, labels)


# --- smoothing


def gapped() -> Array:
    scores = np.random.default_rng(1).random(200)
    scores[:19] = scores[90:115] = np.nan
    return scores


def test_off_is_raw_and_causal_is_the_mean_of_five() -> None:
    scores = gapped()
    assert smoothed(scores, "off") is scores
    for covers in ("sample", "window"):
        np.testing.assert_allclose(smoothed(scores, "causal", covers), naive.smooth(scores, 4))


def test_offline_is_centred_on_the_sample() -> None:
    np.testing.assert_allclose(smoothed(gapped(), "offline", "sample"), naive.smooth(gapped(), 6, 6))
    np.testing.assert_allclose(smoothed(gapped(), "offline", "sample", 9), naive.smooth(gapped(), 3, 3))


def test_offline_moves_windows_to_their_centre() -> None:
    scores, moved = gapped(), np.full(200, np.nan)
    moved[9:80], moved[80:90] = scores[19:90], scores[89]
    moved[105:190], moved[190:] = scores[115:200], scores[199]
    np.testing.assert_allclose(smoothed(scores, "offline", "window"), naive.smooth(moved, 6, 6))


def test_smoothing_never_joins_scores_across_a_gap() -> None:
    scores = np.array([1.0, 2.0, 3.0, np.nan, 5.0, 6.0, 7.0, 8.0])
    # A window of 4 moves by 2: 3 3 3, and then 6 7 8 8 8 in the room that the gap leaves; the mean reaches 1 far.
    moved = (np.full(3, 3.0), np.array([6.0, 7.0, 8.0, 8.0, 8.0]))
    expected = np.concatenate([naive.smooth(part, 1, 1) for part in moved])
    np.testing.assert_allclose(smoothed(scores, "offline", "window", 4), expected)


def test_an_unknown_smoothing_is_refused() -> None:
    with pytest.raises(ValueError, match="off, causal, offline"):
        smoothed(np.ones(3), "strong")  # type: ignore[arg-type]


@pytest.mark.parametrize("covers", ["sample", "window"])
def test_validation_scores_are_smoothed_like_those_of_the_test(covers: Covers) -> None:
    validation, test, labels = client()
    rows = evaluate_smoothings(validation, test, labels, covers=covers, sample_period=60.0)
    assert tuple(rows) == SMOOTHINGS
    for kind, row in rows.items():
        expected = evaluate_client(
            smoothed(validation, kind, covers), smoothed(test, kind, covers), labels, sample_period=60.0
        )
        assert row == expected
    assert rows["offline"]["pot_threshold"] < rows["causal"]["pot_threshold"] < rows["off"]["pot_threshold"]


# --- means


def test_macro_counts_clients_alike_and_leaves_out_those_without_a_value() -> None:
    rows = [{"a": 1.0, "b": math.nan}, {"a": 0.0, "b": math.nan}, {"a": math.nan, "b": math.nan}]
    found = macro(rows)
    assert found["a"] == (0.5, 2, 1)
    assert math.isnan(found["b"].value)
    assert (found["b"].clients, found["b"].omitted) == (0, 3)
    assert macro([]) == {}
