"""Thresholds against scipy's generalised Pareto law, naive clusters, and the rates of simulated scores."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.signal import lfilter

from fedkad import KoopmanDetector
from fedkad.detect.clusters import clusters_over, declustered
from fedkad.detect.events import find_events
from fedkad.detect.expectation import expectation_sentence, expected_events
from fedkad.detect.tail import Tail, fit_scales, fit_tail, shrunk
from fedkad.detect.threshold import (
    FEWEST_PEAKS,
    SMALLEST,
    USUAL_SHAPE,
    ThresholdRule,
    choose_level,
    event_threshold,
    furthest,
    parse_budget,
    pot_threshold,
    quantile_threshold,
)
from tests.fixtures import naive
from tests.fixtures.draws import draws

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]

# -- the law of excesses ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("shape", [-0.4, -0.1, 1e-6, 0.1, 0.6])
def test_the_scale_at_a_given_shape_is_the_likeliest(shape: float) -> None:
    excesses = stats.genpareto.rvs(0.1, scale=3.0, size=80, random_state=3)
    weights = np.stack([np.ones(80), np.arange(80) % 3])
    for weight, scale in zip(weights, fit_scales(excesses, np.full(2, shape), weights), strict=True):
        lowest = max(-shape, 0.0) * excesses.max() + 1e-9
        logpdf = lambda scale, w=weight: -(w * stats.genpareto.logpdf(excesses, shape, scale=scale)).sum()  # noqa: E731
        found = optimize.minimize_scalar(logpdf, bounds=(lowest, 30.0), method="bounded", options={"xatol": 1e-10})
        assert scale == pytest.approx(found.x, rel=1e-5)


@pytest.mark.parametrize("prior", [0.0, 0.3])
def test_the_shape_is_drawn_towards_what_is_expected(prior: float) -> None:
    excesses = stats.genpareto.rvs(-0.3, scale=2.0, size=100, random_state=1)
    free = fit_tail(excesses)
    tail = shrunk(free, excesses, prior)
    assert tail.shape == pytest.approx(100 / 150 * free.shape + 50 / 150 * prior, rel=1e-12)
    assert tail.log_likelihood(excesses) <= free.log_likelihood(excesses)
    for other in (0.98, 1.02):
        assert tail.log_likelihood(excesses) > Tail(tail.shape, other * tail.scale).log_likelihood(excesses)


# -- Siffer's formula, about samples -----------------------------------------------------------------------------------


def naive_pot(scores: Array, risk: float) -> float:
    """Siffer's formula with scipy's fit."""
    level = float(np.quantile(scores, 0.98))
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


@pytest.mark.parametrize("risk", [0.02, 0.05, 0.2])
def test_pot_at_a_high_risk_is_the_quantile(risk: float) -> None:
    scores = np.random.default_rng(0).exponential(size=5000)
    assert pot_threshold(scores, risk) == pytest.approx(np.quantile(scores, 1.0 - risk), rel=0.02)


def test_pot_of_constant_or_few_scores() -> None:
    assert pot_threshold(np.full(200, 3.0), 1e-4) == pytest.approx(3.0)
    few = np.random.default_rng(0).exponential(size=100)
    assert pot_threshold(few, 1e-3) > np.quantile(few, 0.9)


# -- clusters -----------------------------------------------------------------------------------------------------


def naive_clusters(scores: Array, level: float, apart: int) -> list[set[int]]:
    """Join any two scores over the level that are near enough, until nothing changes."""
    clusters = [{i} for i in range(len(scores)) if scores[i] > level]
    joined = True
    while joined:
        joined = False
        for a in clusters:
            for b in clusters:
                near = any(0 < j - i <= apart for i in a for j in b)
                if a is not b and near:
                    clusters.remove(b)
                    a |= b
                    joined = True
                    break
            if joined:
                break
    return clusters


HOLED = arrays(float, st.integers(0, 30), elements=st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, math.nan]))


@draws(150)
@given(scores=HOLED, level=st.sampled_from([0.5, 1.0, 2.5]), apart=st.integers(1, 6))
def test_clusters_are_naive_ones_and_those_of_events(scores: Array, level: float, apart: int) -> None:
    found, expected = clusters_over(scores, level, apart), naive_clusters(scores, level, apart)
    assert found.starts.tolist() == sorted(min(cluster) for cluster in expected)
    assert sorted(found.peaks) == sorted(max(scores[i] for i in cluster) for cluster in expected)
    thresholds, alarms = np.full(len(scores), level), scores > level
    events = find_events(scores, thresholds, alarms, scores[:, None], ["flow"], join=apart)
    assert [(event.start, event.peak_score) for event in events] == list(zip(found.starts, found.peaks, strict=True))
    assert np.array_equal(declustered(scores, level, apart), found.peaks)


# -- thresholds about events --------------------------------------------------------------------------------------


def smoothed(values: Array, count: int = 5) -> Array:
    """Means of so many neighbours, as detectors smooth their scores."""
    return np.convolve(values, np.full(count, 1.0 / count), mode="valid")


def autoregressive(generator: np.random.Generator, rows: int) -> Array:
    drive = generator.normal(size=rows + 200)
    return np.asarray(lfilter([math.sqrt(1.0 - 0.81)], [1.0, -0.9], drive)[200:])


PROCESSES: dict[str, Draw] = {
    "exponential": lambda generator, rows: generator.exponential(size=rows),
    "gamma": lambda generator, rows: generator.gamma(3.0, size=rows),
    "exponential, smoothed": lambda generator, rows: smoothed(generator.exponential(size=rows + 4)),
    "gamma, smoothed": lambda generator, rows: smoothed(generator.gamma(3.0, size=rows + 4)),
    "squared AR(1)": lambda generator, rows: autoregressive(generator, rows) ** 2,
}
HEAVY: dict[str, Draw] = {
    "squared Student t": lambda generator, rows: generator.standard_t(5, size=rows) ** 2,
    "squared Student t, smoothed": lambda generator, rows: smoothed(generator.standard_t(5, size=rows + 4) ** 2),
}


def shares_of_budget(draw: Draw, rows: int, shape: float = USUAL_SHAPE, seeds: int = 40) -> Array:
    """Events in a long stretch over those allowed, one in 10,000 rows, for thresholds from `rows` scores."""
    found = [event_threshold(draw(np.random.default_rng(seed), rows), 1e-4, 20, shape).value for seed in range(seeds)]
    test = draw(np.random.default_rng(99), 1_000_000)
    high = np.flatnonzero(test > min(found))
    alarms = [high[test[high] > value] for value in found]
    return np.array([1 + (np.diff(entries) > 20).sum() if len(entries) else 0 for entries in alarms]) / 100.0


@pytest.mark.parametrize("name", PROCESSES)
def test_the_rate_of_events_is_kept(name: str) -> None:
    many = shares_of_budget(PROCESSES[name], 10_000)
    assert 0.4 < many.mean() < 1.5
    assert many.max() < 6.0
    few = shares_of_budget(PROCESSES[name], 2000)
    assert 0.3 < few.mean() < 3.0
    assert few.max() < 7.0


@pytest.mark.parametrize("name", HEAVY)
def test_the_rate_of_heavy_tails_is_kept_once_the_fleet_knows_their_shape(name: str) -> None:
    alone, told = shares_of_budget(HEAVY[name], 2000), shares_of_budget(HEAVY[name], 2000, shape=0.4)
    assert 0.3 < told.mean() < min(1.5, alone.mean())
    assert alone.mean() < 4.0
    assert shares_of_budget(HEAVY[name], 10_000).mean() < 2.5


def test_the_threshold_is_the_formula() -> None:
    scores = smoothed(np.random.default_rng(7).exponential(size=5004))
    scores[1000:1100] = np.nan
    found = event_threshold(scores, 1e-4, 20, shape=0.1)
    level, peaks = choose_level(scores, 20)
    assert (found.level, found.peaks, found.rows) == (level, len(peaks), 4900)
    shape, _, _ = stats.genpareto.fit(peaks - level, floc=0.0)
    k = len(peaks)
    shrunk = k / (k + 50) * shape + 50 / (k + 50) * 0.1
    scale = optimize.minimize_scalar(
        lambda scale: -stats.genpareto.logpdf(peaks - level, shrunk, scale=scale).sum(), bounds=(0.01, 5.0)
    ).x
    expected = level + stats.genpareto.isf(1e-4 * 4900 / k, shrunk + 1 / k, scale=scale)
    assert found.value == pytest.approx(expected, rel=1e-3)
    assert (found.bounded, found.note) == (False, "")
    assert found.own_shape == pytest.approx(shape, abs=0.01)


def test_neighbours_that_are_alike_count_once() -> None:
    """Each score repeated five times is a fifth of the clusters per row, so the threshold of a fifth of the rows."""
    scores = np.random.default_rng(7).exponential(size=4000)
    once, repeated = event_threshold(scores, 5e-4, 4), event_threshold(np.repeat(scores, 5), 1e-4, 24)
    assert repeated.value == pytest.approx(once.value, rel=0.01)
    assert pot_threshold(np.repeat(scores, 5), 1e-4) > 1.1 * once.value


def test_the_level_falls_until_there_are_enough_clusters() -> None:
    generator = np.random.default_rng(0)
    many, some = generator.exponential(size=20_000), smoothed(generator.exponential(size=1504))
    assert choose_level(many, 20)[0] == pytest.approx(np.quantile(many, 0.99))
    level, peaks = choose_level(some, 20)
    assert level == pytest.approx(np.quantile(some, 0.95))
    assert len(peaks) >= FEWEST_PEAKS
    assert len(choose_level(many, 20, least=300.0)[1]) >= 300
    with pytest.raises(ValueError, match="at least one score"):
        choose_level(np.full(5, np.nan), 20)


def test_a_threshold_does_not_depend_on_the_unit_of_the_scores() -> None:
    scores = np.random.default_rng(0).gamma(2.0, size=3000)
    value = event_threshold(scores, 1e-4, 20).value
    for unit in (1e-9, 1e12):
        assert event_threshold(unit * scores, 1e-4, 20).value == pytest.approx(unit * value, rel=1e-6)


def test_a_threshold_falls_with_the_risk_and_never_below_its_level() -> None:
    scores = np.random.default_rng(0).exponential(size=5000)
    found = [event_threshold(scores, risk, 20) for risk in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.5)]
    values = [threshold.value for threshold in found]
    assert values == sorted(values, reverse=True)
    assert all(threshold.value >= threshold.level for threshold in found)
    assert "at most" in found[-1].note


def test_a_failed_fit_is_bounded_and_said() -> None:
    scores = np.random.default_rng(1).exponential(size=1000)
    bound = furthest(float(np.median(scores)), float(scores.max()))
    found = event_threshold(scores, 1e-5, 20, shape=3.0)
    assert found.bounded
    assert found.value == pytest.approx(bound)
    assert f"{scores.max():.3g}" in found.note
    assert not event_threshold(scores, 1e-4, 20).bounded


@pytest.mark.parametrize("draw", PROCESSES.values(), ids=PROCESSES)
def test_a_sound_fit_is_not_bounded(draw: Draw) -> None:
    for seed in range(10):
        assert not event_threshold(draw(np.random.default_rng(seed), 4000), 1e-5, 20).bounded


@pytest.mark.parametrize("count", [1, 2, 7, 60, 99, 250])
def test_few_scores_get_a_bounded_threshold_and_a_note(count: int) -> None:
    scores = np.random.default_rng(count).exponential(size=count)
    for method in ("pot", "1/day"):
        rule = ThresholdRule(method, 1e-4, 8.64, apart=20)
        found = rule.found(scores)
        assert scores.max() <= found.value <= furthest(float(np.median(scores)), float(scores.max()))
        assert f"Only {count} scores" in found.note


def test_constant_scores_are_their_own_threshold() -> None:
    for method in ("pot", "quantile"):
        assert ThresholdRule(method, 1e-4, None, apart=20).found(np.full(2000, 3.0)).value == pytest.approx(3.0)
        still = ThresholdRule(method, 1e-4, None, apart=20).found(np.zeros(2000))
        assert still.value == pytest.approx(SMALLEST)


def test_quantile_is_the_peak_that_so_many_clusters_exceed() -> None:
    scores = smoothed(np.random.default_rng(0).exponential(size=5004))
    assert quantile_threshold(scores, 1e-9, 20).value == scores.max()
    assert quantile_threshold(scores, 0.99 / len(scores), 20).value == scores.max()
    for allowed in (1, 3, 10):
        value = quantile_threshold(scores, (allowed + 0.5) / len(scores), 20).value
        assert allowed - 1 <= len(declustered(scores, value, 20)) <= allowed
        assert value in scores
    assert "Only 50 scores" in quantile_threshold(scores[:50], 1e-4, 20).note


def test_the_rate_of_a_rule_is_in_events_per_row() -> None:
    assert ThresholdRule("pot", 1e-3, 60.0, apart=20).rate == 1e-3
    assert ThresholdRule("1/week", 1e-3, 60.0, apart=20).rate == pytest.approx(60.0 / 604800.0)
    assert ThresholdRule("3/minute", 1e-3, 60.0, apart=20).rate == 1.0
    by_hand = ThresholdRule(7.0, 0.1, None, apart=20)
    assert by_hand.found(np.array([1.0, np.nan])).value == 7.0


# -- what to expect -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exponential", "gamma, smoothed", "squared AR(1)"])
def test_the_interval_holds_what_happens(name: str) -> None:
    held = []
    for seed in range(15):
        scores = PROCESSES[name](np.random.default_rng(seed), 4000)
        value = event_threshold(scores, 1e-4, 20).value
        low, high = expected_events(scores, value, 20_000, 20)
        for again in range(4):
            later = PROCESSES[name](np.random.default_rng((seed, again)), 20_000)
            held.append(low <= len(declustered(later, value, 20)) <= high)
        assert high < 15
    assert np.mean(held) > 0.75


def test_the_interval_is_the_same_every_time_and_falls_with_the_threshold() -> None:
    scores = smoothed(np.random.default_rng(0).exponential(size=3004))
    assert expected_events(scores, 2.5, 10_000, 20) == expected_events(scores, 2.5, 10_000, 20)
    highs = [expected_events(scores, value, 10_000, 20)[1] for value in (1.5, 2.0, 2.5, 3.0, 5.0, 50.0)]
    assert highs == sorted(highs, reverse=True)
    assert highs[-1] == 0


def test_below_the_level_clusters_are_counted() -> None:
    scores = np.random.default_rng(0).exponential(size=5000)
    value = float(np.quantile(scores, 0.9))
    low, high = expected_events(scores, value, 5000, 20)
    assert low < len(declustered(scores, value, 20)) < high


def test_few_scores_promise_little() -> None:
    scores = np.random.default_rng(0).exponential(size=60)
    low, high = expected_events(scores, 20.0, 10_000, 20)
    assert low == 0
    assert high > 100


def test_gaps_and_one_sided_data_are_taken() -> None:
    """All clusters in one block: a drawn recording may have none of them."""
    scores = np.full(8000, 0.1)
    scores[4000:4190:4] = 1.0 + np.random.default_rng(0).exponential(size=48)
    scores[::50] = np.nan
    low, high = expected_events(scores, 3.0, 10_000, 2)
    assert low == 0
    assert high > 0


def test_the_sentence_says_how_much_data_there_was() -> None:
    scores = np.random.default_rng(0).exponential(size=3000)
    value = math.log(1e5)
    assert expectation_sentence(scores, value, 20).endswith(" in 10,000 rows; 3,000 rows of held-out data")
    assert expectation_sentence(scores, 7.0, 20, 60.0).endswith(" a week; 2 days of held-out data")
    assert expectation_sentence(scores, 9.0, 20, 3600.0).endswith(" a month; 125 days of held-out data")
    assert expectation_sentence(scores, value, 20, 3600.0).endswith(" a year; 125 days of held-out data")
    assert expectation_sentence(scores, 60.0, 20, 60.0).startswith("0 a year")
    assert expectation_sentence(scores, value, 20, 1.0).endswith("; 50 min of held-out data, less than a day's cycle")
    assert expectation_sentence(scores, 60.0, 20).startswith("0 in")


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


def test_a_budget_is_a_rate_of_events_per_row() -> None:
    train = naive.normal_series(3000)
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


@pytest.mark.parametrize("method", ["quantile", "pot"])
def test_the_threshold_of_a_detector_is_that_of_its_normal_scores(method: str) -> None:
    train = naive.normal_series(420)
    detector = KoopmanDetector(window=3, rank=3, observables=4, validation=0.4, threshold=method, risk=0.01)
    detector.fit(train)
    expected = ThresholdRule(method, 0.01, None, apart=3).found(detector.model_.normal_scores).value
    assert detector.threshold_ == pytest.approx(expected, rel=1e-12)


# -- another rule ---------------------------------------------------------------------------------------------------


def test_another_rule_takes_the_scores_that_were_kept() -> None:
    train = naive.normal_series(3000, 2)
    by_budget = KoopmanDetector(window=3, rank=3, observables=4, threshold="1/hour", sample_period=2.0).fit(train)
    detector = KoopmanDetector(window=3, rank=3, observables=4, sample_period=7.0).fit(train)
    assert detector.threshold_ != by_budget.threshold_
    assert detector.rejudge("1/hour", 2.0).threshold_ == by_budget.threshold_
    with pytest.raises(ValueError, match="sample_period"):
        detector.rejudge("1/hour")


@pytest.mark.parametrize("former", ["spot", "dspot"])
def test_a_threshold_that_is_gone_names_what_takes_its_place(former: str) -> None:
    with pytest.raises(ValueError, match=rf"'pot', or a budget such as 1/week .* '{former}' is no longer offered"):
        KoopmanDetector(threshold=former).fit(naive.normal_series(420))
