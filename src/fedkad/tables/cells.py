"""What the text of one cell means: missing, a number or a time."""

from datetime import datetime

MISSING = frozenset({"", "na", "nan", "null", "none"})


def is_missing(cell: str) -> bool:
    """Tell whether a cell is empty or says NA, NaN, null or None, in any letter case.

    >>> [is_missing(cell) for cell in ("", " NA ", "NaN", "null", "None", "0", "n/a")]
    [True, True, True, True, True, False, False]
    """
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Tell whether a cell is a number; Python's ``1_000`` is not one outside of Python.

    >>> [is_number(cell) for cell in ("1.5", " -2e3", "1_000", "1,5", "")]
    [True, True, False, False, False]
    """
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def is_iso_time(cell: str) -> bool:
    """Tell whether a cell is an ISO-8601 date or date and time; plain digits count as a number instead.

    >>> [is_iso_time(cell) for cell in ("2024-05-01", "2024-05-01T12:00:00Z", "12:00", "20240501")]
    [True, True, False, False]
    """
    if is_number(cell):
        return False
    try:
        datetime.fromisoformat(cell.strip())
    except ValueError:
        return False
    return True


def names_zone(cell: str) -> bool:
    """Tell whether a cell is an ISO-8601 time with a zone.

    >>> [names_zone(cell) for cell in ("2024-05-01T12:00:00Z", "2024-05-01T12:00+02:00", "2024-05-01T12:00", "7")]
    [True, True, False, False]
    """
    return is_iso_time(cell) and datetime.fromisoformat(cell.strip()).tzinfo is not None


def shown(cell: str) -> str:
    """Return a cell as an error quotes it: one line, at most 40 characters.

    >>> print(shown("a" * 50))
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'
    """
    return repr(cell if len(cell) <= 40 else cell[:40] + "...")
