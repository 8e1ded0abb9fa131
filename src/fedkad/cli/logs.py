"""The log of a long-running command on stderr: one line per message."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import typer


class EchoHandler(logging.Handler):
    """Prints each message on stderr, with its level if it is a warning or worse."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        typer.echo(f"{level}{record.getMessage()}", err=True)


@contextmanager
def logged_to_stderr() -> Iterator[None]:
    """Print what `fedkad` logs inside the block."""
    logger, handler = logging.getLogger("fedkad"), EchoHandler()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
