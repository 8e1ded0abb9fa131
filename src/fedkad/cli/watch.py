"""``fedkad watch``: the agent, until it is stopped or its source ends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to watch and where to send alarms.")],
    check: Annotated[bool, typer.Option("--check", help="Check the configuration and exit.")] = False,
) -> None:
    """Watch devices live: score every sample, explain, raise alarms, keep learning."""
    from fedkad.edge.main import run, stay_small

    stay_small()
    run(config, check=check)
