"""``fedkad client``: one device of a fleet, until it is stopped or has what it came for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkad.cli.options import above_zero
from fedkad.fleet import devicefolder, extra


def client(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder that `fedkad fleet add` made, copied to this device.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="TABLE", help="What the device has recorded.", show_default="data in device.toml"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Leave as soon as a new model was delivered.")] = False,
    idle: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES", callback=above_zero, help="Leave, with status 1, when nothing came for so long."
        ),
    ] = None,
) -> None:
    """Take part in a fleet: stay connected to its server, learn when it asks, keep what it delivers."""
    extra.require()
    device = devicefolder.load(folder)
    from fedkad.fleet.connection import Outcome, connect

    seconds = None if idle is None else 60.0 * idle
    outcome = connect(device, device.data_file(data), _say, once=once, idle=seconds)
    if outcome is Outcome.DELIVERED:
        _say(f"{device.model}: a new model was delivered")
    elif outcome is Outcome.IDLE:
        raise ValueError(f"Nothing came from {device.server} for {idle:g} minutes; see {device.log}.")


def _say(text: str) -> None:
    typer.echo(text, err=True)
