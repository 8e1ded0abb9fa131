"""Thresholds against scipy's generalised Pareto law and known quantiles."""

import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedkad import KoopmanDetector
from fedkad.detect.threshold import (
    LEVEL,
    REMEMBERED_PEAKS,
    FixedThreshold,
    Peaks,
    StreamingPot,
    Tail,
    ThresholdRule,
    fit_tail,
    parse_budget,
    pot_threshold,
    quantile_threshold,
)
from tests.fixtures import naive

Array = NDArray[np.float64]


@pytest.mark.parametrize("shape", [-0.3, -0.1, 0.0, 0.2, 0.5])
@pytest.mark.parametrize("count", [40, 400])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_the_fit_is_as_likely_as_scipys(shape: float, count: int, scale: float) -> None:
    excesses = stats.genpareto.rvs(shape, scale=scale, size=count, random_state=count)
    tail = fit_tail(excesses)
    ours = float(stats.genpareto.logpdf(excesses, tail.shape, scale=tail.scale).sum())
    assert tail.log_likelihood(excesses) == pytest.approx(ours, rel=1e-9, abs=1e-6)
    fitted_shape, _, fitted_scale = stats.genpareto.fit(excesses, floc=0.0)
    theirs = float(stats.genpareto.logpdf(excesses, fitted_shape, scale=fitted_scale).sum())
    if fitted_shape >= -0.5:
        assert ours >= theirs - 0.01
    truth = float(stats.genpareto.logpdf(excesses, shape, scale=scale).sum())
    assert ours >= truth - 0.01


def test_the_fit_finds_the_law_it_was_drawn_from() -> None:
    for shape in (-0.3, 0.0, 0.4):
        tail = fit_tail(stats.genpareto.rvs(shape, scale=2.0, size=20_000, random_state=1))
        assert tail.shape == pytest.approx(shape, abs=0.04)
        assert tail.scale == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("shape", [-0.4, 0.0, 1e-14, 0.3])
def test_quantiles_of_a_tail_are_scipys(shape: float) -> None:
    for probability in (1.0, 0.5, 1e-3, 1e-9):
        expected = stats.genpareto.isf(probability, shape, scale=1.7)
        assert Tail(shape, 1.7).exceeded_with(probability) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    excesses = np.array([0.1, 1.0, 2.5])
    expected = stats.genpareto.logpdf(excesses, shape, scale=1.7).sum()
    assert Tail(shape, 1.7).log_likelihood(excesses) == pytest.approx(expected, rel=1e-6)


def test_an_impossible_tail_has_no_likelihood() -> None:
    assert Tail(-0.5, 1.0).log_likelihood(np.array([1.0, 3.0])) == -math.inf


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [1.0], [2.0, 2.0, 2.0], [1e-300], [0.0, 5.0]])
def test_the_fit_survives_degenerate_excesses(values: list[float]) -> None:
    tail = fit_tail(np.array(values))
    assert math.isfinite(tail.shape)
    assert math.isfinite(tail.scale)
    assert tail.scale > 0.0


def naive_pot(scores: Array, risk: float) -> float:
    """Siffer's formula with scipy's fit."""
    level = float(np.quantile(scores, LEVEL))
    peaks = scores[scores > level] - level
    shape, _, scale = stats.genpareto.fit(peaks, floc=0.0)
    ratio = risk * len(scores) / len(peaks)
    return float(level + scale / shape * (ratio ** (-shape) - 1.0))


LAWS = [stats.expon(), stats.norm(5.0, 2.0), stats.gamma(3.0), stats.t(5)]


@pytest.mark.parametrize("law", LAWS, ids=[law.dist.name for law in LAWS])
def test_pot_is_siffers_formula_and_near_the_true_quantile(law: Any) -> None:
    scores = law.rvs(size=20_000, random_state=2)
    for risk in (1e-3, 1e-4):
        found = pot_threshold(scores, risk)
        assert found == pytest.approx(naive_pot(scores, risk), rel=0.01)
        assert found == pytest.approx(law.isf(risk), rel=0.25 if law.dist.name == "t" else 0.1)
    assert pot_threshold(scores, 1e-5) > pot_threshold(scores, 1e-4) > pot_threshold(scores, 1e-3)


def test_pot_does_not_depend_on_the_unit_of_the_scores() -> None:
    scores = np.random.default_rng(0).gamma(2.0, size=3000)
    for unit in (1e-12, 1e12):
        assert pot_threshold(unit * scores, 1e-4) == pytest.approx(unit * pot_threshold(scores, 1e-4), rel=1e-6)


def test_pot_of_very_many_scores_is_that_of_all_their_peaks() -> None:
    scores = np.random.default_rng(0).exponential(size=300_000)
    assert (scores > np.quantile(scores, LEVEL)).sum() > REMEMBERED_PEAKS
    assert pot_threshold(scores, 1e-4) == pytest.approx(math.log(1e4), rel=0.05)


@pytest.mark.parametrize("risk", [0.02, 0.05, 0.2])
def test_pot_at_a_high_risk_is_the_quantile(risk: float) -> None:
    scores = np.random.default_rng(0).exponential(size=5000)
    assert pot_threshold(scores, risk) == pytest.approx(np.quantile(scores, 1.0 - risk), rel=0.02)


def test_pot_of_constant_or_few_scores() -> None:
    assert pot_threshold(np.full(200, 3.0), 1e-4) == pytest.approx(3.0)
    few = np.random.default_rng(0).exponential(size=100)
    assert pot_threshold(few, 1e-3) > np.quantile(few, 0.9)


def test_quantile_is_the_quantile() -> None:
    scores = np.random.default_rng(0).normal(size=500)
    assert quantile_threshold(scores, 0.1) == pytest.approx(float(stats.mstats.mquantiles(scores, 0.9, 1.0, 1.0)[0]))
    assert quantile_threshold(scores, 1e-9) == pytest.approx(scores.max())


# -- budgets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1/week", 1 / 604800),
        ("2 per day", 2 / 86400),
        ("0.5/hour", 0.5 / 3600),
        (" 3 / minutes ", 3 / 60),
        ("1/month", 12 / (365.25 * 86400)),
        ("1/year", 1 / (365.25 * 86400)),
    ],
)
def test_budgets_are_alarms_per_second(text: str, rate: float) -> None:
    assert parse_budget(text) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "week", "1/", "/week", "0/week", "-1/week", "1/fortnight", "pot", "1 week", "1e3/day"]
)
def test_other_texts_are_no_budgets(text: str) -> None:
    assert parse_budget(text) is None


def test_a_budget_is_the_risk_of_a_sample() -> None:
    train = naive.normal_series(420)
    small: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4, "validation": 0.4}
    by_budget = KoopmanDetector(threshold="1/week", sample_period=60.0, **small).fit(train)
    by_risk = KoopmanDetector(threshold="pot", risk=60.0 / 604800.0, **small).fit(train)
    assert by_budget.threshold_ == pytest.approx(by_risk.threshold_, rel=1e-12)
    faster = KoopmanDetector(threshold="1/week", sample_period=1.0, **small).fit(train)
    assert faster.threshold_ > by_budget.threshold_


def test_a_number_is_the_threshold() -> None:
    train = naive.normal_series(420)
    detector = KoopmanDetector(window=3, rank=3, observables=4, validation=0.4, threshold=2.5).fit(train)
    assert detector.threshold_ == 2.5
    scores = detector.decision_function(train)
    assert np.array_equal(detector.predict(train), np.nan_to_num(scores, nan=0.0) > 2.5)


@pytest.mark.parametrize("threshold", ["pot", "quantile"])
def test_the_threshold_can_be_set_by_hand_afterwards(threshold: str) -> None:
    train = naive.normal_series(420)
    detector = KoopmanDetector(window=3, rank=3, observables=4, validation=0.4, threshold=threshold).fit(train)
    detector.threshold_ = 1.25
    scores = detector.decision_function(train)
    assert np.array_equal(detector.predict(train), np.nan_to_num(scores, nan=0.0) > 1.25)
    stream = detector.stream()
    assert [stream.update(row).is_anomaly for row in train] == detector.predict(train).astype(bool).tolist()


def test_quantile_and_pot_of_a_detector_are_those_of_its_held_out_scores() -> None:
    train = naive.normal_series(420)
    for method, expected in (("quantile", quantile_threshold), ("pot", pot_threshold)):
        detector = KoopmanDetector(window=3, rank=3, observables=4, validation=0.4, threshold=method, risk=0.01)
        detector.fit(train)
        assert detector.threshold_ == pytest.approx(expected(detector.model_.normal_scores, 0.01), rel=1e-12)


def test_few_scores_get_the_quantile_whatever_the_method() -> None:
    scores = np.random.default_rng(0).exponential(size=60)
    for method in ("pot", "spot", "dspot", "quantile", "1/day"):
        judge = ThresholdRule(method, 0.1, 8640.0).judge(scores, few=True)
        assert isinstance(judge, FixedThreshold)
        assert judge.value == pytest.approx(float(np.quantile(scores, 0.9)))
    by_hand = ThresholdRule(7.0, 0.1, None).judge(scores, few=True)
    assert by_hand.value == 7.0
    assert by_hand.judge(7.0) is False
    assert by_hand.judge(7.1) is True


# -- streaming ----------------------------------------------------------------------------------------------------


def alarms(judge: StreamingPot, scores: Array) -> int:
    return sum(judge.judge(score) for score in scores.tolist())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_spot_flags_normal_scores_near_its_risk(seed: int) -> None:
    """Within a factor of three: SPOT, which never learns from what it flags, trims its own tail a little."""
    generator, risk, count = np.random.default_rng(seed), 1e-3, 15_000
    judge = StreamingPot(generator.exponential(size=3000), risk)
    found = alarms(judge, generator.exponential(size=count))
    spread = 3.0 * math.sqrt(count * risk)
    assert count * risk - spread < found < 3.0 * count * risk
    assert judge.value == pytest.approx(-math.log(risk), rel=0.2)


def test_spot_begins_at_pot_and_anomalies_leave_it_alone() -> None:
    scores = np.random.default_rng(1).exponential(size=1000)
    judge = StreamingPot(scores, 1e-3)
    assert judge.value == pot_threshold(scores, 1e-3)
    before = judge.value
    assert judge.judge(before + 1.0) is True
    assert judge.judge(1e9) is True
    assert judge.value == before
    assert judge.judge(before - 1e-9) is False  # a peak that is no anomaly
    assert judge.value > before


def test_spot_adapts_when_the_scale_of_the_scores_grows() -> None:
    generator = np.random.default_rng(2)
    judge = StreamingPot(generator.exponential(size=2000), 1e-4)
    before = judge.value
    alarms(judge, generator.exponential(size=3000) * np.linspace(1.0, 3.0, 3000))
    late = generator.exponential(size=1000) * 3.0
    assert judge.value > 1.1 * before
    assert alarms(judge, late) < 0.7 * (late > before).sum()


def test_dspot_follows_a_drift_that_floods_spot() -> None:
    generator = np.random.default_rng(3)
    normal = 5.0 + generator.exponential(size=1000)
    spot, dspot = StreamingPot(normal, 1e-3), StreamingPot(normal, 1e-3, depth=100)
    drifting = 5.0 + generator.exponential(size=1500) + np.linspace(0.0, 15.0, 1500)
    flooded, followed = alarms(spot, drifting), alarms(dspot, drifting)
    assert flooded > 5 * followed + 20
    assert followed < 20
    assert dspot.value > 15.0
    assert dspot.judge(5.0 + 15.0 + 40.0) is True


def test_dspot_takes_scores_relative_to_the_mean_of_those_before() -> None:
    scores = np.random.default_rng(4).exponential(size=300)
    judge = StreamingPot(scores, 1e-2, depth=50)
    relative = np.array([scores[k] - scores[k - 50 : k].mean() for k in range(50, 300)])
    assert judge.height == pytest.approx(pot_threshold(relative, 1e-2), rel=1e-9)
    assert judge.value == pytest.approx(scores[-50:].mean() + judge.height, rel=1e-12)
    judge.judge(0.25)
    assert judge.base == pytest.approx(np.append(scores, 0.25)[-50:].mean(), rel=1e-12)
    judge.judge(1e6)  # an anomaly is no part of the local mean
    assert judge.base == pytest.approx(np.append(scores, 0.25)[-50:].mean(), rel=1e-12)


def test_the_memory_of_the_peaks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad.detect.threshold.REMEMBERED_PEAKS", 50)
    generator = np.random.default_rng(5)
    peaks = Peaks.over(generator.exponential(size=1000), risk=1e-4)
    for score in generator.exponential(size=20_000).tolist():
        peaks.add(score)
    assert len(peaks.excesses) == 50
    # The rate of peaks is still that seen, so that the threshold stays right.
    assert len(peaks.excesses) / peaks.count == pytest.approx(math.exp(-peaks.level), rel=0.35)
    assert peaks.threshold(1e-3) == pytest.approx(math.log(1e3), rel=0.25)


def test_peaks_count_every_score() -> None:
    scores = np.random.default_rng(6).normal(size=500)
    peaks = Peaks.over(scores, risk=1e-4)
    assert peaks.level == pytest.approx(float(np.quantile(scores, LEVEL)))
    assert sorted(peaks.excesses) == pytest.approx(sorted(s - peaks.level for s in scores if s > peaks.level))
    assert peaks.add(peaks.level) is False
    assert peaks.count == 501
    assert peaks.add(peaks.level + 0.5) is True
    assert peaks.count == 502
    assert peaks.excesses[-1] == pytest.approx(0.5)


@pytest.mark.parametrize("depth", [0, 30])
def test_an_adapting_threshold_goes_on_exactly_from_its_state(depth: int) -> None:
    scores = np.random.default_rng(3).exponential(size=3000)
    judge, restored = (StreamingPot(scores[:500], 0.01, depth) for _ in range(2))
    for score in scores[500:1500]:
        judge.judge(score)
    restored.restore(json.loads(json.dumps(judge.state())))
    for score in scores[1500:]:
        assert restored.value == judge.value
        assert restored.judge(score) == judge.judge(score)


def test_another_rule_takes_the_scores_that_were_kept() -> None:
    train = naive.normal_series(3000, 2)
    by_budget = KoopmanDetector(window=3, rank=3, observables=4, threshold="1/hour", sample_period=2.0).fit(train)
    detector = KoopmanDetector(window=3, rank=3, observables=4, sample_period=7.0).fit(train)
    assert detector.threshold_ != by_budget.threshold_
    assert detector.rejudge("1/hour", 2.0).threshold_ == by_budget.threshold_
    with pytest.raises(ValueError, match="sample_period"):
        detector.rejudge("1/hour")
