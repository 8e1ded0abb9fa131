"""Failures in one sentence on stderr, and notes about what is worth knowing but no failure."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer

from fedkad import FewRowsWarning
from fedkad.cli import INTERRUPTED

P = ParamSpec("P")
T = TypeVar("T")


def one_sentence(command: Callable[P, T]) -> Callable[P, T]:
    """Turn what is wrong with data and files into ``error: …`` and exit status 1; a bug keeps its traceback.

    An interruption from the keyboard is no failure: it is told in a word and has an exit status of its own.
    """

    @wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # the reader of the output has left, as `head` does
        except OSError as error:
            sentence = _sentence_of(error)
        except ValueError as error:
            sentence = str(error)
        except MemoryError:
            sentence = "There is not enough memory for that; lower window, observables or rank, or pass less data."
        typer.echo(f"error: {' '.join(sentence.split())}", err=True)
        raise typer.Exit(1)

    return told


def _sentence_of(error: OSError) -> str:
    path = error.filename2 or error.filename
    return f"{path}: {error.strerror}." if path else f"{error}."


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say in a `ValueError` which file or folder it is about, unless it does already."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith(str(path)) else f"{path}: {message}") from error


def note(text: str) -> None:
    """One line on stderr about something that is no failure."""
    typer.echo(f"note: {text}", err=True)


def warn(text: str) -> None:
    """One line on stderr about something that makes a result less than it seems."""
    typer.echo(f"warning: {text}", err=True)


def noting_few_rows(path: Path) -> AbstractContextManager[None]:
    """Turn the warning that training data was short into a note about a file."""
    return _few_rows(lambda message: note(f"{path}: {message}"))


def silent_few_rows() -> AbstractContextManager[None]:
    """Drop that warning where a command tells it in its own words, about a fleet rather than a file."""
    return _few_rows(lambda message: None)


@contextmanager
def _few_rows(tell: Callable[[str], None]) -> Iterator[None]:
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, FewRowsWarning):
            tell(str(message))
        else:
            usual(message, category, *rest)

    # The function is replaced rather than a filter added: filters that a library adds later would come first.
    with warnings.catch_warnings():
        warnings.simplefilter("always", FewRowsWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
