"""Options that several commands share, each defined once.

Those of the detector have the names of its constructor's parameters. Only what was given is passed on, so that the
defaults live in `KoopmanDetector`, and a preset of the federation can have its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

import typer

from fedkad import KoopmanDetector

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


def _threshold(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


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
        return command(**given, detector={name: value for name, value in detector.items() if value is not None})

    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "detector"]
    parameters = [*kept, *added]
    vars(extended)["__signature__"] = inspect.Signature(parameters)
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return extended


def _option(name: str) -> inspect.Parameter:
    kind, settings = DETECTOR_OPTIONS[name]
    default = inspect.signature(KoopmanDetector).parameters[name].default
    settings = {"show_default": str(default), "rich_help_panel": PANEL, **settings}
    annotation: Any = Annotated[kind if kind is Any else kind | None, typer.Option(**settings)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
