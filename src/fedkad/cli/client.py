"""``fedkad client``: one device of a fleet, until it is stopped or has received a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkad.cli.logs import logged_to_stderr
from fedkad.cli.options import above_zero
from fedkad.fleet import devicefolder, extra


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
    idle: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES", callback=above_zero, help="Leave, with status 1, if no request came for this long."
        ),
    ] = None,
) -> None:
    """Take part in a fleet: stay connected to its server, learn when it asks, keep what it delivers."""
    extra.require()
    device = devicefolder.load(folder)
    from fedkad.fleet.connection import ClientExit, connect

    seconds = None if idle is None else 60.0 * idle
    with logged_to_stderr():
        reason = connect(device, device.data_file(data), once=once, idle=seconds)
    if reason is ClientExit.DELIVERED:
        typer.echo(f"{device.model}: a new model was delivered", err=True)
    elif reason is ClientExit.IDLE:
        raise ValueError(f"No request came from {device.server} for {idle:g} minutes; see {device.log}.")
