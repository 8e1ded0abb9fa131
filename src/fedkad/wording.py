"""How counts, numbers and lengths of time are worded, in notes, on the terminal and on pages."""

import numpy as np


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number and its noun.

    >>> counted(1, "row"), counted(2, "row"), counted(3, "gap in time", "gaps in time")
    ('1 row', '2 rows', '3 gaps in time')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def between(first: str, last: str) -> str:
    """Return from one moment to another, without saying the same day twice.

    >>> between("2025-01-09 07:58", "2025-01-09 08:10"), between("7", "7")
    ('2025-01-09 07:58 to 08:10', '7')
    """
    day, space, rest = last.partition(" ")
    if first == last:
        return first
    return f"{first} to {rest if space and first.startswith(day + space) else last}"


def lasting(seconds: float) -> str:
    """Return a length of time in a unit that suits it.

    >>> lasting(0.0), lasting(90.0), lasting(5400.0), lasting(200_000.0)
    ('0 s', '90 s', '90 min', '56 h')
    """
    for size, name in ((7200.0, "h"), (120.0, "min")):
        if seconds >= size:
            return f"{seconds / (3600.0 if name == 'h' else 60.0):.0f} {name}"
    return f"{seconds:.0f} s"


def significant(value: float) -> str:
    """Return a number with three significant digits.

    >>> significant(8.46684), significant(1234.5), significant(0.00123)
    ('8.47', '1234', '0.00123')
    """
    if not np.isfinite(value):
        return str(float(value))
    return np.format_float_positional(float(f"{value:.3g}") if abs(value) < 1000.0 else round(value), trim="-")
