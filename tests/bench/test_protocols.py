"""The paper's protocols as the paper states them, and each choice with its alternative."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad.detect.threshold import pot_threshold
from fedkad_bench.metrics.adjusted import point_adjusted
from fedkad_bench.metrics.segments import flagged_within, segments
from fedkad_bench.protocols import PROTOCOLS, Choices, Protocol, ProtocolOutcome, Thresholds, outcome, thresholds

Flags = NDArray[np.bool_]

SCORES = np.random.default_rng(0).exponential(size=3000)


def judged(protocol: Protocol, labels: Flags, alarms: Flags, choices: Choices | None = None) -> ProtocolOutcome:
    events = segments(labels)
    false = np.asarray(np.count_nonzero(alarms & ~labels))
    return outcome(protocol, choices or Choices(), flagged_within(events, alarms), events.lengths, false)


def test_the_four_protocols_are_the_papers() -> None:
    stated = [(p.title, p.threshold, p.share, p.recall_cap) for p in PROTOCOLS]
    assert stated == [
        ("PA%K 0.01", "tuned", 0.01, None),
        ("POT any-hit", "pot", 0.0, None),
        ("PA%K 0.10", "pot", 0.1, 0.995),
        ("point-wise", "pot", None, None),
    ]
    assert len({p.key for p in PROTOCOLS}) == 4


# --- thresholds


def test_thresholds_are_a_quantile_and_pot() -> None:
    assert thresholds(SCORES) == Thresholds(float(np.quantile(SCORES, 0.99)), pot_threshold(SCORES, 1e-4))
    assert thresholds(SCORES, Choices(tuned_quantile=0.9)).tuned == np.quantile(SCORES, 0.9)
    assert thresholds(SCORES, Choices(risk=1e-2)).pot == pot_threshold(SCORES, 1e-2)


def test_the_tuned_threshold_has_alternatives() -> None:
    assert thresholds(SCORES, Choices(tuned_threshold="maximum")).tuned == SCORES.max()
    assert thresholds(SCORES, Choices(tuned_threshold="pot")).tuned == thresholds(SCORES).pot


def test_missing_validation_scores_do_not_count() -> None:
    holed = np.insert(SCORES, [0, 700, 2000], np.nan)
    assert thresholds(holed) == thresholds(SCORES)


@pytest.mark.parametrize("scores", [SCORES[:1], SCORES[:29], np.full(500, 0.3), 0.3 + 1e-17 * SCORES, np.zeros(40)])
def test_few_or_equal_scores_give_their_maximum(scores: NDArray[np.float64]) -> None:
    assert thresholds(scores) == Thresholds(scores.max(), scores.max())


def test_without_validation_scores_there_are_no_alarms() -> None:
    assert thresholds(np.full(3, np.nan)) == Thresholds(np.inf, np.inf)
    assert thresholds(np.zeros(0)) == Thresholds(np.inf, np.inf)


@given(st.lists(st.floats(-1e9, 1e9) | st.just(math.nan), max_size=200), st.sampled_from([1.0, 1e-300, 1e200]))
def test_thresholds_never_fail(values: list[float], scale: float) -> None:
    found = thresholds(np.array(values, dtype=float) * scale)
    assert not math.isnan(found.tuned)
    assert not math.isnan(found.pot)


# --- outcomes


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_outcomes_are_adjusted_scores(pairs: list[tuple[bool, bool]]) -> None:
    labels, alarms = np.array(pairs).T
    for protocol in PROTOCOLS:
        found = judged(protocol, labels, alarms)
        expected = point_adjusted(labels, alarms, protocol.share)
        if protocol.recall_cap is None:
            assert (float(found.precision), float(found.recall), float(found.f1)) == pytest.approx(
                expected, nan_ok=True
            )
        elif labels.any():
            assert found.precision == pytest.approx(expected.precision)
            assert found.recall == pytest.approx(min(expected.recall, 0.995))
            assert found.f1 <= expected.f1


LABELS = np.arange(1000) // 100 == 4
ALARMS = LABELS & (np.arange(1000) % 10 == 0)  # exactly a tenth of the segment


def test_at_least_or_more_than_the_share() -> None:
    assert judged(PROTOCOLS[2], LABELS, ALARMS).recall == 0.995
    assert judged(PROTOCOLS[2], LABELS, ALARMS, Choices(share_at_least=False)).recall == 0.1


def test_the_recall_cap_limits_or_rejects() -> None:
    limited = judged(PROTOCOLS[2], LABELS, LABELS)
    assert (float(limited.precision), float(limited.recall)) == (1.0, 0.995)
    assert limited.f1 == pytest.approx(2 * 0.995 / 1.995)
    rejected = judged(PROTOCOLS[2], LABELS, LABELS, Choices(recall_cap="reject"))
    assert (float(rejected.recall), float(rejected.f1)) == (1.0, 0.0)
    below = judged(PROTOCOLS[2], LABELS, ALARMS & (np.arange(1000) > 400), Choices(recall_cap="reject"))
    assert below.f1 == pytest.approx(2 * 0.09 / 1.09)
    assert judged(PROTOCOLS[0], LABELS, LABELS, Choices(recall_cap="reject")).f1 == 1.0


def test_clients_without_anomalies_are_left_out_or_perfect_if_silent() -> None:
    quiet = np.zeros(50, dtype=bool)
    scored = Choices(without_anomalies="perfect_if_silent")
    for protocol in PROTOCOLS:
        assert np.isnan(judged(protocol, quiet, quiet).f1)
        assert judged(protocol, quiet, quiet, scored).f1 == 1.0
        assert judged(protocol, quiet, np.arange(50) == 3, scored).f1 == 0.0


def test_many_sets_of_counts_at_once_are_each_on_its_own() -> None:
    generator = np.random.default_rng(0)
    lengths = np.array([1, 10, 300])
    hits, false = generator.integers(0, lengths + 1, size=(40, 3)), generator.integers(0, 5, size=40)
    for protocol in PROTOCOLS:
        together = outcome(protocol, Choices(), hits, lengths, false)
        alone = [outcome(protocol, Choices(), h, lengths, np.asarray(f)) for h, f in zip(hits, false, strict=True)]
        for part in ("precision", "recall", "f1"):
            assert getattr(together, part).tolist() == [float(getattr(one, part)) for one in alone]


def test_choices_are_fixed_once_made() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Choices().risk = 0.1  # type: ignore[misc]
