"""What a person may say about a recording that its file does not."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Switches:
    """The switches of the command line that say how to read; the defaults leave everything to the file.

    >>> Switches(decimal=",", channels=("flow", "heat")).used()
    ['--decimal', '--channels']
    """

    time: str | None = None  # the time column, or a column of dates and one of times of day, separated by a comma
    time_format: str | None = None  # as of strptime
    decimal: str | None = None  # "." or ","
    encoding: str | None = None
    channels: tuple[str, ...] | None = None  # take these only, whatever they hold
    ignore: tuple[str, ...] = ()
    device: str | None = None  # the column that tells devices apart, or column=name for one of them
    missing: tuple[float, ...] = ()  # numbers that stand for missing values
    resample: float | None = None  # seconds
    sort: bool = False
    max_fill: int = 3
    keep_labels: bool = False  # a column of labels is a channel; no switch, but datasets need it

    def used(self, without: tuple[str, ...] = ()) -> list[str]:
        """Return the switches that differ from their defaults."""
        differing = (each.name for each in fields(self) if getattr(self, each.name) != each.default)
        return [f"--{name.replace('_', '-')}" for name in differing if name not in without]
