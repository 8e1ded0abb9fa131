"""Arguments that the commands of the benchmark share: their types, and the checks of what they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkad.cli.targets import check_folder_target
from fedkad_bench.data.datasets import KNOWN, data_folder
from fedkad_bench.methods.registry import METHODS
from fedkad_bench.studies import STUDIES

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The folder of the public datasets.",
        show_default="FEDKAD_DATA, or ../shared/data",
    ),
]
Datasets = Annotated[
    str | None,
    typer.Option("--datasets", metavar="NAME,…", help="Datasets, by name or folder.", show_default="all that exist"),
]
Methods = Annotated[str | None, typer.Option("--methods", metavar="NAME,…", help="Methods.", show_default="all")]
OutFolder = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the results.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=0, metavar="N", help="Processes; 0 uses only this one.", show_default="one per processor"
    ),
]


def split(text: str | None) -> tuple[str, ...] | None:
    """The parts of a comma-separated list, each once.

    >>> split("SMD,MSL,SMD,"), split(None)
    (('SMD', 'MSL'), None)
    """
    return None if text is None else tuple(dict.fromkeys(part for part in text.split(",") if part))


def integers(text: str, least: int, option: str) -> tuple[int, ...]:
    """Comma-separated integers, none below `least`."""
    parts = split(text) or ()
    if not parts or not all(part.isdecimal() and int(part) >= least for part in parts):
        expected = f"{text!r} must be integers of at least {least}, separated by commas."
        raise typer.BadParameter(expected, param_hint=f"'{option}'")
    return tuple(map(int, parts))


def dataset_names(text: str | None) -> tuple[str, ...] | None:
    """Public datasets in their proper letter case, and existing folders."""
    names = split(text)
    if names == ():
        raise _bad_name(f"{text!r} names no dataset", [*KNOWN], "--datasets", "or name a folder")
    return names and tuple(map(dataset_name, names))


def dataset_name(name: str) -> str:
    """One public dataset in its proper letter case, or an existing folder."""
    if name.upper() in KNOWN:
        return name.upper()
    if not Path(name).is_dir():
        raise _bad_name(f"{name} is not a dataset", [*KNOWN], "--datasets", "or name a folder")
    return name


def method_names(text: str | None) -> tuple[str, ...] | None:
    """Names of known methods."""
    names = split(text)
    if names == ():
        raise _bad_name(f"{text!r} names no method", [*METHODS], "--methods")
    for name in names or ():
        if name not in METHODS:
            raise _bad_name(f"{name} is not a method", [*METHODS], "--methods")
    return names


def study_names(text: str | None) -> tuple[str, ...]:
    """Names of studies: all of them by default, an empty tuple for ``none``."""
    names = tuple(STUDIES) if text is None else () if text == "none" else split(text) or ()
    for name in names:
        if name not in STUDIES:
            raise _bad_name(f"{name} is not a study", [*STUDIES, "none"], "--studies")
    return names


def check_data_folder(data: Path | None) -> None:
    """Refuse a data folder that does not exist."""
    if data is not None and not data.is_dir():
        raise ValueError(
            f"{data}: there is no such data folder; name another with --data, or fetch a dataset into it with "
            f"`fedkad datasets get SMD --data {data}`."
        )


def check_out_folder(out: Path, data: Path | None, datasets: tuple[str, ...] | None) -> None:
    """Refuse to write results into the data folder or into a dataset given by its folder."""
    root = data or data_folder()
    check_folder_target(out, root if root is not None else out / "no data")
    for name in datasets or ():
        if name not in KNOWN:
            check_folder_target(out, Path(name))


def _bad_name(problem: str, choices: list[str], option: str, more: str = "") -> typer.BadParameter:
    listed = ", ".join([*choices, *([more] if more else [])])
    return typer.BadParameter(f"{problem}; choose from {listed}.", param_hint=f"'{option}'")
