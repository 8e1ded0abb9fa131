"""Options that several commands share, each defined once.

The options of the detector have the names of its parameters. Only those that were used are passed on: the defaults are
those of `KoopmanDetector`, or of a preset of the federation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import typer

from fedkad import KoopmanDetector
from fedkad.detect.threshold import parse_budget
from fedkad.settingerror import SettingError
from fedkad.settingkinds import POSITIVE, SHARE, Rule

T = TypeVar("T")

TimeColumn = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="COLUMN",
        help="Column of the time stamps.",
        show_default="the first column, if its name or its cells say so",
    ),
]
DetectOnly = Annotated[
    bool,
    typer.Option("--detect-only", help="Keep no statistics and no held-out rows: a small file that cannot learn more."),
]

MaxFill = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Longest hole, in rows, over which a channel's last value is carried."),
]

PANEL = "Detector"


def wrong_option(error: SettingError) -> typer.BadParameter:
    """An error about a setting in the words of the command line."""
    option = f"'--{error.name.replace('_', '-')}'"
    return typer.BadParameter(f"{error.value} must be {error.allowed}.", param_hint=option)


def rule_of(rule: Rule) -> Callable[[Any], Any]:
    """Callback of an option that must satisfy a rule."""

    def check(value: Any) -> Any:
        if value is not None and not rule.holds(value):
            shown = f"{value:g}" if isinstance(value, float) else value
            raise typer.BadParameter(f"{shown} must be {rule.allowed}.")
        return value

    return check


above_zero, share = rule_of(POSITIVE), rule_of(SHARE)


def _threshold(text: str) -> str | float:
    """A number where it is one; other words are checked with the other options."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not POSITIVE.holds(number):
        raise typer.BadParameter(f"{text} must be {POSITIVE.allowed}.")
    return number


DETECTOR_OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "window": (int, {"help": "Samples in a window."}),
    "rank": (int, {"help": "Directions of the subspace."}),
    "observables": (int, {"help": "Number of random tanh observables."}),
    "horizon": (int, {"help": "Steps predicted ahead."}),
    "ridge": (float, {"help": "Regularisation of the operator."}),
    "spectral_cap": (float, {"help": "Largest spectral radius of the operator."}),
    "smoothing": (int, {"help": "Scores averaged into one, looking back."}),
    "scoring": (Literal["calibrated", "paper"], {"help": "How residuals become a score."}),
    "threshold": (
        Any,
        {
            "parser": _threshold,
            "metavar": "METHOD",
            "help": "pot, spot, dspot, quantile, a budget such as 1/week, or a number.",
        },
    ),
    "validation": (float, {"help": "Last share of the data, kept to set the threshold."}),
    "risk": (float, {"help": "Probability that a normal sample is flagged."}),
    "sample_period": (
        float,
        {"help": "Seconds between samples.", "show_default": "the median step of the time stamps"},
    ),
    "seed": (int, {"help": "Seed of everything random."}),
}


def with_detector_options(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the options of the detector; it gets those that were used as the mapping `detector`."""
    own = inspect.signature(command, eval_str=True).parameters
    added = [_option(name) for name in DETECTOR_OPTIONS]

    @wraps(command)
    def extended(**given: Any) -> T:
        detector = {name: given.pop(name) for name in DETECTOR_OPTIONS}
        used = {name: value for name, value in detector.items() if value is not None}
        _check_detector_options(used)
        return command(**given, detector=used)

    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "detector"]
    parameters = [*kept, *added]
    vars(extended)["__signature__"] = inspect.Signature(parameters)
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return extended


def complete_period(detector: dict[str, Any], period: float | None) -> None:
    """Take the sample period from the times of the data unless an option gave it; a budget of alarms needs one."""
    detector.setdefault("sample_period", period)
    threshold = detector.get("threshold")
    if detector["sample_period"] is None and isinstance(threshold, str) and parse_budget(threshold) is not None:
        raise typer.BadParameter(
            f"--threshold {threshold} needs --sample-period SECONDS, or --time COLUMN where the data has times."
        )


def _check_detector_options(used: dict[str, Any]) -> None:
    """Raise an error for a wrong value before any work is done."""
    try:
        # A budget needs a period, which may come from the data: whether it does is checked later.
        KoopmanDetector(**{"sample_period": 1.0, **used}).check_parameters()
    except SettingError as error:
        raise wrong_option(error) from None


def _option(name: str) -> inspect.Parameter:
    kind, settings = DETECTOR_OPTIONS[name]
    default = inspect.signature(KoopmanDetector).parameters[name].default
    settings = {"show_default": str(default), "rich_help_panel": PANEL, **settings}
    annotation: Any = Annotated[kind if kind is Any else kind | None, typer.Option(**settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
