"""``fedkad server``: the server of a fleet, until it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkad.cli.logs import logged_to_stderr
from fedkad.fleet import extra
from fedkad.fleet.serverfolder import ServerFolder


def server(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that `fedkad fleet init` created.")],
    app: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Another Flower app.", hidden=True)] = None,
) -> None:
    """Serve a fleet: devices connect and trainings run, until SIGINT or SIGTERM."""
    extra.require()
    place = ServerFolder.existing(folder)
    from fedkad.fleet.operation import APP, serve

    with logged_to_stderr():
        serve(place, app or APP)
