"""How tables and sentences show numbers; a missing number is a dash."""

from __future__ import annotations

import math
from typing import Any

from fedkad.wording import significant
from fedkad_bench.evaluation import METRICS
from fedkad_bench.results import Summary

DASH = "–"


def missing(value: float | None) -> bool:
    """Whether there is no number."""
    return value is None or math.isnan(value)


def factor(metric: str) -> float:
    """The factor by which a metric is shown: shares become points."""
    return 100.0 if METRICS[metric].unit == "share" else 1.0


def digits_of(metric: str) -> int:
    """Decimals that a metric is shown with."""
    return 1 if METRICS[metric].unit in ("share", "samples") else 2


def plain(value: float | None, digits: int = 1) -> str:
    """A number with a fixed number of decimals.

    >>> plain(45.25, 1), plain(None), plain(float("nan"))
    ('45.2', '–', '–')
    """
    return DASH if value is None or missing(value) else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 1) -> str:
    """A difference with its sign.

    >>> signed(1.26), signed(-0.5), signed(-0.01)
    ('+1.3', '−0.5', '0.0')
    """
    if value is None or missing(value):
        return DASH
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0.0 else text.replace("-", "−")


def spread(mean: float | None, std: float | None, digits: int = 1) -> str:
    """A mean with its standard deviation, where it has one.

    >>> spread(45.25, 0.31), spread(45.25, float("nan"))
    ('45.2 ± 0.3', '45.2')
    """
    return plain(mean, digits) if missing(mean) or missing(std) else f"{plain(mean, digits)} ± {plain(std, digits)}"


def summed_up(metric: str, found: Summary | None, seeds: int = 0) -> str:
    """A metric in its unit, with the number of seeds if it is smaller than that of the other methods.

    >>> summed_up("vus_pr", Summary(0.4525, 0.0031, 2, 24, 0), seeds=3)
    '45.2 ± 0.3 (n=2)'
    """
    if found is None or missing(found.mean):
        return DASH
    times, digits = factor(metric), digits_of(metric)
    text = spread(times * found.mean, times * found.std, digits)
    return f"{text} (n={found.seeds})" if found.seeds < seeds else text


def interval(low: float, high: float, digits: int = 1) -> str:
    """The ends of an interval, in their own unit.

    >>> interval(-1.0, 2.5)
    '−1.0 to +2.5'
    """
    return DASH if missing(low) else f"{signed(low, digits)} to {signed(high, digits)}"


def probability(value: float) -> str:
    """A p-value.

    >>> probability(0.0384), probability(0.00001), probability(float("nan"))
    ('0.038', '< 0.0001', '–')
    """
    if missing(value):
        return DASH
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def ratio(value: float | None) -> str:
    """How many times as much.

    >>> ratio(2133.3), ratio(0.5), ratio(None)
    ('2133×', '0.5×', '–')
    """
    return DASH if value is None or missing(value) else f"{significant(value)}×"


def anything(value: Any) -> str:
    """A value of a study, of any type.

    >>> anything(3), anything(0.123456), anything("text"), anything(None), anything([1, 2])
    ('3', '0.123', 'text', '–', '1, 2')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(anything, value))
    return significant(value) if isinstance(value, float) else str(value)


def number(row: dict[str, Any], column: str) -> float:
    """A number of a study's row; NaN where there is none."""
    value = row.get(column)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
