"""Options that several commands share, each defined once.

Those of the detector have the names of its constructor's parameters. Only what was given is passed on, so that the
defaults live in `KoopmanDetector`, and a preset of the federation can have its own.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import typer

from fedkad import KoopmanDetector
from fedkad.detect.threshold import METHODS, SECONDS, parse_budget

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
    typer.Option("--detect-only", help="Keep no statistics and no held-out rows: a small file that cannot learn on."),
]

MaxFill = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Longest hole, in rows, over which a channel's last value is carried."),
]

PANEL = "Detector"


BETWEEN = "must lie between 0 and 1, both excluded"
BOUNDS = {"validation": BETWEEN, "risk": BETWEEN}
"""What an option must be, where the words of the detector can be made plainer."""


def _threshold(text: str) -> str | float:
    try:
        number = float(text)
    except ValueError:
        if text not in METHODS and parse_budget(text) is None:
            raise typer.BadParameter(
                f"{text} is none of {', '.join(METHODS)}, no number above 0, and no budget such as 1/week "
                f"(a number per {', '.join(SECONDS)})."
            ) from None
        return text
    if not 0.0 < number < math.inf:
        raise typer.BadParameter(f"{text} must be above 0 and finite.")
    return number


def above_zero(value: float | None) -> float | None:
    """Callback of an option that takes a finite number above 0."""
    if value is not None and not 0.0 < value < math.inf:
        raise typer.BadParameter(f"{value:g} must be above 0 and finite.")
    return value


def share(value: float | None) -> float | None:
    """Callback of an option that takes a share: above 0, at most 1."""
    if value is not None and not 0.0 < value <= 1.0:
        raise typer.BadParameter(f"{value:g} must be above 0 and at most 1.")
    return value


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
    """Give a command the options of the detector; it receives those that were used as the mapping `detector`."""
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
    """Let the times of the data give the sample period unless an option did; a budget of alarms needs one."""
    detector.setdefault("sample_period", period)
    threshold = detector.get("threshold")
    if detector["sample_period"] is None and isinstance(threshold, str) and parse_budget(threshold) is not None:
        raise typer.BadParameter(
            f"--threshold {threshold} needs --sample-period SECONDS, or --time COLUMN where the data has times."
        )


def _check_detector_options(used: dict[str, Any]) -> None:
    """Refuse values that make no sense, before any work and in the words of the command line."""
    try:
        # A budget needs a period, which may come from the data: whether it does is asked later.
        KoopmanDetector(**{"sample_period": 1.0, **used}).check_parameters()
    except ValueError as error:
        found = re.match(r"(\w+)=\S+ (must be .*)", str(error))
        if found is None or found[1] not in used:
            raise typer.BadParameter(str(error)) from None
        name, bounds = found[1], BOUNDS.get(found[1], found[2].rstrip("."))
        option = f"'--{name.replace('_', '-')}'"
        raise typer.BadParameter(f"{used[name]} {bounds}.", param_hint=option) from None


def _option(name: str) -> inspect.Parameter:
    kind, settings = DETECTOR_OPTIONS[name]
    default = inspect.signature(KoopmanDetector).parameters[name].default
    settings = {"show_default": str(default), "rich_help_panel": PANEL, **settings}
    annotation: Any = Annotated[kind if kind is Any else kind | None, typer.Option(**settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
