"""Options that several commands share, and options that are parameters of something else: each is defined once.

Of the latter only those that were used are passed on. So their defaults are those of `KoopmanDetector`, of a preset of
the federation, or of the settings of a fleet.
"""

import csv
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import typer
from click import Context, UsageError
from typer.core import TyperCommand

from fedkad import KoopmanDetector
from fedkad.detect.threshold import parse_budget
from fedkad.intake.switches import Switches
from fedkad.settingerror import SettingError
from fedkad.settingkinds import POSITIVE, SHARE, Rule, parse_duration

T = TypeVar("T")

DetectOnly = Annotated[
    bool,
    typer.Option("--detect-only", help="Keep no statistics and no held-out rows: a small file that cannot learn more."),
]


def wrong_option(error: SettingError) -> typer.BadParameter:
    """Return an error about a setting in the words of the command line."""
    option = f"'--{error.name.replace('_', '-')}'"
    return typer.BadParameter(f"{error.value} must be {error.allowed}.", param_hint=option)


def rule_of(rule: Rule) -> Callable[[Any], Any]:
    """Return the callback of an option that must satisfy a rule."""

    def check(value: Any) -> Any:
        if value is not None and not rule.holds(value):
            shown = f"{value:g}" if isinstance(value, float) else value
            raise typer.BadParameter(f"{shown} must be {rule.allowed}.")
        return value

    return check


above_zero, share = rule_of(POSITIVE), rule_of(SHARE)


def budget_rate(text: str | None) -> str | None:
    """Check an option that is a rate of false alarms."""
    if text is not None and parse_budget(text) is None:
        raise typer.BadParameter(f"{text} must be a rate of false alarms such as 1/week or 2/day.")
    return text


def duration(text: str) -> float | int:
    """Return a number of rows as an int, or a time in seconds as a float."""
    if text.isdigit():
        return int(text)
    seconds = parse_duration(text)
    if seconds is None:
        raise typer.BadParameter(f"{text} must be a number of rows, or a time such as 90s, 10m, 1.5h or 2d.")
    return seconds


def _threshold(text: str) -> str | float:
    """Return a number where it is one; other words are checked with the other options."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not POSITIVE.holds(number):
        raise typer.BadParameter(f"{text} must be {POSITIVE.allowed}.")
    return number


def _channels(text: str) -> tuple[str, ...]:
    """Return names separated by commas; one that has a comma itself stands in quotes.

    >>> _channels('flow, "heat, inner"')
    ('flow', 'heat, inner')
    """
    names = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(name.strip() for name in names if name.strip())


def _numbers(text: str) -> tuple[float, ...]:
    """Return numbers separated by commas."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise typer.BadParameter(f"{text} must be numbers separated by commas, such as -999,-9999.") from None


def _seconds(text: str) -> float:
    """Return how far apart `--resample` puts rows."""
    seconds = parse_duration(text)
    if not seconds:
        raise typer.BadParameter(f"{text} must be a duration such as 10s, 1m, 15m or 1h.")
    return seconds


def _decimal_mark(text: str) -> str:
    if text not in (".", ","):
        raise typer.BadParameter(f"{text} must be . or ,")
    return text


READING_OPTIONS: dict[str, dict[str, Any]] = {
    "time": {
        "metavar": "COLUMN",
        "help": "Column of the times, or a column of dates and one of times of day, separated by a comma.",
        "show_default": "found by its name or its cells",
    },
    "time_format": {"metavar": "FORMAT", "help": 'As of strptime: "%d/%m/%Y %H:%M".', "show_default": "found"},
    "decimal": {"parser": _decimal_mark, "metavar": ".|,", "help": "Decimal mark.", "show_default": "found"},
    "encoding": {"metavar": "NAME", "help": "Encoding of text.", "show_default": "UTF-8, UTF-16 or Latin-1, found"},
    "channels": {
        "parser": _channels,
        "metavar": "NAMES",
        "help": "Read these columns only, separated by commas; quote a name that has one.",
        "show_default": "all columns of numbers",
    },
    "ignore": {"parser": _channels, "metavar": "NAMES", "help": "Leave these columns out.", "show_default": "none"},
    "missing": {
        "parser": _numbers,
        "metavar": "NUMBERS",
        "help": "Numbers that stand for missing values, such as -999.",
        "show_default": "none",
    },
    "device": {
        "metavar": "COLUMN",
        "help": "Column that tells several devices of a file apart; COLUMN=NAME reads one of them.",
        "show_default": "none",
    },
    "resample": {
        "parser": _seconds,
        "metavar": "PERIOD",
        "help": "One row for each period, such as 1m: the mean of its values, the last one of a switch.",
        "show_default": "no",
    },
    "sort": {"help": "Sort rows by time, and keep the last of those with the same time.", "show_default": False},
    "max_fill": {
        "min": 0,
        "metavar": "N",
        "help": "Longest hole, in rows, over which a channel's last value is carried, where others have a value.",
    },
}

DETECTOR_OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"help": "Samples in a window."},
    "rank": {"help": "Directions of the subspace."},
    "observables": {"help": "Number of random tanh observables."},
    "horizon": {"help": "Steps predicted ahead."},
    "ridge": {"help": "Regularisation of the operator."},
    "spectral_cap": {"help": "Largest spectral radius of the operator."},
    "smoothing": {"help": "Scores averaged into one, looking back."},
    "scoring": {"help": "How departures become a score."},
    "threshold": {
        "parser": _threshold,
        "metavar": "METHOD",
        "help": "pot, quantile, a budget such as 1/week, or a number.",
    },
    "validation": {"help": "Share of the data that is left out at a time to set the threshold."},
    "risk": {"help": "False alarm events per row."},
    "private": {"help": "Directions of the device's own beside the shared ones."},
    "inputs": {
        "parser": _channels,
        "metavar": "NAMES",
        "help": "Channels that are commands or set-points, separated by commas.",
        "show_default": "none",
    },
    "sample_period": {"help": "Seconds between samples.", "show_default": "the median step of the time stamps"},
    "seed": {"help": "Seed of everything random."},
}


def with_options(
    into: str, shown: Mapping[str, dict[str, Any]], *sources: Callable[..., Any], make: Callable[..., Any] = dict
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command options that are parameters of `sources`; it gets what `make` makes of those used as `into`.

    An option has the name of its `parameter` unless another option of the command has it.
    """
    parameters = {
        name: each for of in sources for name, each in inspect.signature(of, eval_str=True).parameters.items()
    }
    parameters_of = {name: settings.get("parameter", name) for name, settings in shown.items()}
    added = [_option(parameters[parameters_of[name]].replace(name=name), settings) for name, settings in shown.items()]

    def decorated(command: Callable[..., T]) -> Callable[..., T]:
        own = inspect.signature(command, eval_str=True).parameters

        @wraps(command)
        def extended(**given: Any) -> T:
            chosen = {name: given.pop(name) for name in shown}
            used = {parameters_of[name]: value for name, value in chosen.items() if value is not None}
            return command(**given, **{into: make(**used)})

        kept = {name: [p.replace(kind=inspect.Parameter.KEYWORD_ONLY)] for name, p in own.items()}
        shown_as = [parameter for several in (kept | {into: added}).values() for parameter in several]
        vars(extended)["__signature__"] = inspect.Signature(shown_as)
        extended.__annotations__ = {parameter.name: parameter.annotation for parameter in shown_as}
        return extended

    return decorated


def with_detector_options(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the options of the detector as the mapping `detector`; wrong ones are refused before any work."""

    def checked(**detector: Any) -> dict[str, Any]:
        try:
            # A budget needs a period, which may come from the data: whether it does is checked later.
            KoopmanDetector(**{"sample_period": 1.0, **detector}).settings.check()
        except SettingError as error:
            raise wrong_option(error) from None
        return detector

    shown = {name: {"rich_help_panel": "Detector", **settings} for name, settings in DETECTOR_OPTIONS.items()}
    return with_options("detector", shown, KoopmanDetector, make=checked)(command)


def with_reading_options(*without: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the options that say how to read data, as the value `reading`."""
    options = {name: each for name, each in READING_OPTIONS.items() if name not in without}
    shown = {name: {"rich_help_panel": "Reading", **settings} for name, settings in options.items()}
    return with_options("reading", shown, Switches, make=Switches)


class RenamedSwitches(TyperCommand):
    """A command whose former switches are answered with their present names."""

    renamed: ClassVar[Mapping[str, str]] = {}

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Refuse a former switch in a sentence that names the present one."""
        for word in args:
            if (former := word.partition("=")[0]) in self.renamed:
                raise UsageError(f"{former} is now {self.renamed[former]}; use that.", ctx)
        return super().parse_args(ctx, args)


def complete_period(detector: dict[str, Any], period: float | None) -> None:
    """Take the sample period from the times of the data unless an option gave it; a budget of alarms needs one."""
    detector.setdefault("sample_period", period)
    threshold = detector.get("threshold")
    if detector["sample_period"] is None and isinstance(threshold, str) and parse_budget(threshold) is not None:
        raise typer.BadParameter(
            f"--threshold {threshold} needs --sample-period SECONDS, or --time COLUMN where the data has times."
        )


def _option(parameter: inspect.Parameter, settings: dict[str, Any]) -> inspect.Parameter:
    """Return an option with the type, the rule and the default of a parameter, where `settings` has no others."""
    hint = parameter.annotation
    plain, *rules = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    # Of a name or an object of a program, a command line takes the name.
    plain = next((each for each in get_args(plain) if get_origin(each) is Literal), plain)
    usual: dict[str, Any] = {"show_default": plain is not bool and str(parameter.default)}
    if rules:
        usual["callback"] = rule_of(rules[0])
    given = {name: value for name, value in settings.items() if name != "parameter"}
    declared = typer.Option(f"--{parameter.name.replace('_', '-')}", **usual | given)
    kind: Any = Any if "parser" in settings else plain | None
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, declared])
