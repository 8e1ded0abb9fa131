"""Failures in one sentence on stderr, and notes about what is worth knowing but not a failure."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer

from fedkad import FewRowsWarning
from fedkad.cli import INTERRUPTED

FAILED = 1

P = ParamSpec("P")
T = TypeVar("T")


def one_sentence(command: Callable[P, T]) -> Callable[P, T]:
    """Turn errors in data and files into ``error: …`` and exit status 1; a bug keeps its traceback.

    An interruption from the keyboard is not a failure: it is reported in one word and has its own exit status.
    """

    @wraps(command)
    def reported(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # whatever reads the output has closed it, as `head` does
        except OSError as error:
            path = error.filename2 or error.filename
            sentence = f"{path}: {error.strerror}." if path else f"{error}."
        except ValueError as error:
            sentence = str(error)
        except MemoryError:
            sentence = "There is not enough memory; lower window, observables or rank, or pass less data."
        typer.echo(f"error: {' '.join(sentence.split())}", err=True)
        raise typer.Exit(FAILED)

    return reported


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file or folder in front of the message of a `ValueError`, unless it is there."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith(str(path)) else f"{path}: {message}") from error


def note(text: str) -> None:
    """Print one line on stderr about something that is not a failure."""
    typer.echo(f"note: {text}", err=True)


def warn(text: str) -> None:
    """Print one line on stderr about something that makes a result less trustworthy."""
    typer.echo(f"warning: {text}", err=True)


def skipped_documents(skipped: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the devices that were skipped, for a JSON document."""
    return [{"device": name, "reason": reason} for name, reason in skipped.items()]


def fail_if_skipped(skipped: Mapping[str, str]) -> None:
    """Name the devices that were skipped, each with its reason, and exit with status 1 if there are any."""
    for name, reason in skipped.items():
        typer.echo(f"skipped: {name}: {reason}", err=True)
    if skipped:
        raise typer.Exit(FAILED)


@contextmanager
def few_rows_noted(path: Path | None) -> Iterator[None]:
    """Turn the warning about short training data into a note about a file; drop it if a command has its own words."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if not issubclass(category, FewRowsWarning):
            usual(message, category, *rest)
        elif path is not None:
            note(f"{path}: {message}")

    # Replaces the function rather than adding a filter, because a filter that a library adds later would come first.
    with warnings.catch_warnings():
        warnings.simplefilter("always", FewRowsWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
