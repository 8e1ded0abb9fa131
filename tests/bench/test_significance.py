"""Significance against scipy, published critical values and the paper's own table."""

import math

import numpy as np
import pytest
from scipy import stats

from fedkad_bench.significance import (
    bootstrap_interval,
    compare_ranks,
    compare_seeds,
    compare_with_best,
    critical_difference,
    signed_rank_test,
)


def test_seeds_are_compared_as_by_scipy() -> None:
    generator = np.random.default_rng(0)
    for count in (2, 3, 10):
        ours, theirs = generator.normal(70.0, 1.0, count), generator.normal(69.0, 2.0, count)
        found, expected = compare_seeds(ours, theirs), stats.ttest_rel(ours, theirs)
        assert found.p_value == pytest.approx(expected.pvalue)
        assert found.effect_size * math.sqrt(count) == pytest.approx(expected.statistic)
        assert found.margin == pytest.approx(ours.mean() - theirs.mean())
        assert (found.seeds, found.reason) == (count, "")


@pytest.mark.parametrize(
    ("effect", "p_value"),
    [(2.86, 0.0384), (5.97, 0.0092), (0.93, 0.25), (-0.17, 0.80)],
)
def test_effect_and_p_belong_together_as_in_the_papers_table(effect: float, p_value: float) -> None:
    pattern = np.array([-1.0, 0.0, 1.0])  # three seeds with mean 0 and a standard deviation of 1
    found = compare_seeds(effect + pattern, np.zeros(3))
    assert found.effect_size == pytest.approx(effect)
    assert found.p_value == pytest.approx(p_value, rel=0.02)


@pytest.mark.parametrize(
    ("margin", "verdict"), [(7.69, "WIN"), (1.29, "WIN"), (0.5, "tie"), (0.0, "tie"), (-0.5, "tie"), (-0.95, "loss")]
)
def test_the_gate_looks_at_the_margin_alone(margin: float, verdict: str) -> None:
    noise = np.array([-5.0, 0.0, 5.0])
    assert compare_seeds(margin + noise, np.zeros(3)).verdict == verdict


def test_the_best_baseline_is_that_with_the_largest_mean() -> None:
    name, found = compare_with_best([3.0, 5.0, 4.0], {"a": [9.0, 0.0, 0.0], "b": [4.0, 4.0, 4.5]})
    assert name == "b"
    assert found.verdict == "tie"


@pytest.mark.parametrize(("ours", "theirs"), [([3.0], [1.0]), ([0.1 + 0.2] * 3, [0.3] * 3), ([0.0, 0.0], [0.0, 0.0])])
def test_seeds_without_a_spread_say_so(ours: list[float], theirs: list[float]) -> None:
    found = compare_seeds(ours, theirs)
    assert math.isnan(found.p_value)
    assert math.isnan(found.effect_size)
    assert found.reason


def test_what_cannot_be_paired_is_refused() -> None:
    for ours, theirs in (([1.0, 2.0], [1.0]), ([], []), ([1.0, math.nan], [1.0, 2.0])):
        with pytest.raises(ValueError):
            compare_seeds(ours, theirs)
    with pytest.raises(ValueError):
        bootstrap_interval([1.0], [1.0, 2.0])


def test_the_bootstrap_is_that_of_scipy() -> None:
    generator = np.random.default_rng(3)
    ours, theirs = generator.random(60), generator.random(60)
    found = bootstrap_interval(ours, theirs)
    expected = stats.bootstrap(
        (ours - theirs,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(7)
    ).confidence_interval
    assert found.low == pytest.approx(expected.low, abs=0.006)
    assert found.high == pytest.approx(expected.high, abs=0.006)
    assert found == bootstrap_interval(ours, theirs)
    narrow = bootstrap_interval(ours, theirs, level=0.5)
    assert found.low < narrow.low < found.mean < narrow.high < found.high


def test_clients_without_a_value_are_left_out() -> None:
    ours, theirs = np.array([1.0, 2.0, np.nan, 4.0]), np.array([0.5, np.nan, 1.0, 1.0])
    found = bootstrap_interval(ours, theirs)
    assert (found.clients, found.mean) == (2, 1.75)
    assert signed_rank_test(ours, theirs).clients == 2


def test_too_few_clients_say_so() -> None:
    assert bootstrap_interval([math.nan], [1.0]).reason
    single = bootstrap_interval([2.0], [1.0])
    assert (single.mean, single.clients) == (1.0, 1)
    assert math.isnan(single.low)
    assert signed_rank_test([1.0, 2.0], [1.0, 2.0]).reason


@pytest.mark.parametrize("decimals", [1, 9])
@pytest.mark.parametrize("count", [1, 4, 12, 80])
def test_signed_ranks_are_those_of_scipy(count: int, decimals: int) -> None:
    generator = np.random.default_rng(count)
    ours, theirs = generator.random(count).round(decimals), generator.random(count).round(decimals)
    differences = (ours - theirs)[ours != theirs]
    expected = stats.wilcoxon(differences)
    found = signed_rank_test(ours, theirs)
    assert (found.statistic, found.p_value) == pytest.approx((expected.statistic, expected.pvalue))


@pytest.mark.parametrize("decimals", [1, 9])
def test_friedman_is_that_of_scipy(decimals: int) -> None:
    table = np.random.default_rng(0).random((4, 25)).round(decimals)
    table[2] += 0.9
    found = compare_ranks({name: row.tolist() for name, row in zip("abcd", table, strict=True)})
    expected = stats.friedmanchisquare(*table)
    assert (found.statistic, found.p_value) == pytest.approx((expected.statistic, expected.pvalue))
    assert found.methods[0] == "c"
    assert sum(found.mean_ranks) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("methods", "quantile"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (8, 3.031), (10, 3.164)]
)
def test_nemenyi_has_the_published_critical_values(methods: int, quantile: float) -> None:
    scale = math.sqrt(methods * (methods + 1) / (6.0 * 30))
    assert critical_difference(methods, 30) / scale == pytest.approx(quantile, abs=1e-3)
    if methods == 5:
        assert critical_difference(methods, 30, alpha=0.10) / scale == pytest.approx(2.459, abs=1e-3)


def test_cliques_are_the_largest_groups_within_the_critical_difference() -> None:
    generator = np.random.default_rng(0)
    levels = {"a": 0.9, "b": 0.88, "c": 0.5, "d": 0.49, "e": 0.1}
    found = compare_ranks({name: (level + 0.05 * generator.normal(size=40)).tolist() for name, level in levels.items()})
    means, gap = found.mean_ranks, found.critical_difference
    together = {
        found.methods[i:j] for i in range(5) for j in range(i + 2, 6) if all(means[j - 1] - m < gap for m in means[i:j])
    }
    largest = {group for group in together if not any(set(group) < set(other) for other in together)}
    assert set(found.cliques) == largest
    assert found.methods[-1] == "e"
    assert not any("e" in clique for clique in found.cliques)


def test_lower_is_better_turns_the_order_round() -> None:
    values = {"slow": [5.0, 6.0, 7.0], "fast": [1.0, 2.0, 1.0]}
    assert compare_ranks(values, higher_is_better=False).methods == ("fast", "slow")
    assert compare_ranks(values).methods == ("slow", "fast")


def test_ranks_that_say_nothing_say_why() -> None:
    tied = compare_ranks({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0]})
    assert math.isnan(tied.p_value)
    assert "tie" in tied.reason
    assert tied.cliques == (("a", "b", "c"),)
    assert compare_ranks({"a": [1.0]}).reason
    assert compare_ranks({"a": [math.nan], "b": [1.0]}).reason
    assert compare_ranks({"a": [], "b": []}).reason
    partly = compare_ranks({"a": [1.0, math.nan, 3.0], "b": [0.0, 1.0, 2.0]})
    assert partly.clients == 2
