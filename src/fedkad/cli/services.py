"""``fedkad server``, ``client`` and ``watch``: commands that run, and log on stderr, until they are stopped."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedkad.cli.options import above_zero
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared import extra
from fedkad.fleet.shared.logs import LogLine


def server(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that `fedkad fleet init` created.")],
    app: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Another Flower app.", hidden=True)] = None,
) -> None:
    """Serve a fleet: devices connect and trainings run, until SIGINT or SIGTERM."""
    extra.require()
    place = ServerFolder.existing(folder)
    from fedkad.fleet.server.operation import APP, serve

    with logged_to_stderr():
        serve(place, app or APP)


def client(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="The folder that `fedkad fleet add` created, copied to this device."),
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="TABLE", help="The device's recorded data.", show_default="data in device.toml"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Leave as soon as a new model was delivered.")] = False,
    while_called: Annotated[
        bool, typer.Option("--while-called", help="Leave when the server no longer calls, instead of waiting.")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES", callback=above_zero, help="Leave, with status 1, if no request came for this long."
        ),
    ] = None,
) -> None:
    """Take part in a fleet: connect when its server calls, learn when it asks, keep what it delivers."""
    extra.require()
    from fedkad.fleet.device.settings import load_device

    device = load_device(folder)
    from fedkad.fleet.device.connection import ClientExit, connect
    from fedkad.fleet.device.idleclient import IdleArguments

    seconds, table = None if idle is None else 60.0 * idle, device.data_file(data)
    with logged_to_stderr():
        reason = connect(device, table, once=once, idle=seconds)
    if reason is ClientExit.NOT_CALLED and not while_called:
        IdleArguments(str(device.root), device.device, device.server, table, once, seconds).begin()
    if reason is ClientExit.DELIVERED:
        typer.echo(f"{device.model}: a new model was delivered", err=True)
    elif reason is ClientExit.IDLE:
        raise ValueError(f"No request came from {device.server} for {idle:g} minutes; see {device.log}.")


def watch(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to watch and where to send alarms.")],
    check: Annotated[bool, typer.Option("--check", help="Check the configuration and exit.")] = False,
) -> None:
    """Watch devices, live: score each sample, explain, raise alarms, keep learning."""
    from fedkad.edge.main import limit_memory, run

    limit_memory()
    run(config, check=check)


class EchoHandler(logging.Handler):
    """Prints each message on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        typer.echo(self.format(record), err=True)


@contextmanager
def logged_to_stderr() -> Iterator[None]:
    """Print what `fedkad` logs inside the block."""
    logger, handler = logging.getLogger("fedkad"), EchoHandler()
    handler.setFormatter(LogLine.on_stderr())
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
