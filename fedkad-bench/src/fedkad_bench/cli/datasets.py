"""``fedkad datasets``: list, check, describe and fetch the public datasets; check and describe other folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedkad.cli.failures import one_sentence, warn
from fedkad.cli.output import AsJson, print_facts, print_json, print_line, print_table, shown_progress
from fedkad.wording import counted, significant
from fedkad_bench.data.cache import CacheWarning
from fedkad_bench.data.dataset import Dataset, PartialDatasetWarning
from fedkad_bench.data.datasets import KNOWN, PAPER_TABLE, data_folder, known_name, load, load_folder
from fedkad_bench.data.entity import Entity
from fedkad_bench.data.heterogeneity import ClientSkew, client_skews, skew_table
from fedkad_bench.data.upstream import Fetched, get, verify

FAILED = 1
UNKNOWN = "-"

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The data folder.", show_default="FEDKAD_DATA, or ../shared/data"),
]
NameOrFolder = Annotated[
    str,
    typer.Argument(metavar="NAME|FOLDER", help="SMD, PSM, SMAP, MSL, or a folder with train, test and labels."),
]
Mirror = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URL",
        envvar="FEDKAD_MIRROR",
        help="A mirror with the same file names as upstream.",
        show_default="upstream",
    ),
]

app = typer.Typer(invoke_without_command=True)


@app.callback()
@one_sentence
def datasets(context: typer.Context, data: DataFolder = None, as_json: AsJson = False) -> None:
    """List the datasets with what is here and what the paper's table says; or check, describe or get one."""
    if context.invoked_subcommand is not None:
        return
    root = data or data_folder()
    listed = [_listing(name, root) for name in KNOWN]
    if as_json:
        print_json(listed)
    else:
        _print_listing(listed, root)
    broken = [entry["error"] for entry in listed if entry["error"]]
    for sentence in broken:
        typer.echo(f"error: {sentence}", err=True)
    if broken:
        raise typer.Exit(FAILED)


@app.command()
@one_sentence
def check(name: NameOrFolder, data: DataFolder = None, as_json: AsJson = False) -> None:
    """Read a whole dataset without the cache, and report what is missing."""
    dataset = _open(name, data, cache=False)
    place = _place(name, data)
    verified, wrong = verify(place) if dataset.name == "SMD" and name.upper() in KNOWN else (0, [])
    if wrong:
        named, remedy = ", ".join(map(str, wrong)), f"remove it and run `fedkad datasets get {dataset.name}`"
        raise ValueError(f"{named}: the SHA-256 digest is not the known one; {remedy}.")
    if as_json:
        print_json(_document(dataset) | {"folder": str(place), "verified_files": verified})
        return
    print_facts(_facts(dataset, place))
    if verified:
        print_line(f"{counted(verified, 'file has', 'files have')} the known SHA-256 digest.")
    _print_notes(dataset)


@app.command()
@one_sentence
def describe(name: NameOrFolder, data: DataFolder = None, as_json: AsJson = False) -> None:
    """Show every entity of a dataset, and how much they differ."""
    dataset = _open(name, data)
    skews = client_skews(dataset) if dataset.trainable else []
    rows = [_entity_document(entity, dataset) for entity in dataset.entities]
    for row, skew in zip(rows, skews, strict=False):
        row["feature_skew"] = skew.feature
    if as_json:
        table = [row._asdict() for row in skew_table(dataset, skews)] if skews else []
        print_json(_document(dataset) | {"entities": rows, "skews": table})
        return
    print_facts(_facts(dataset, _place(name, data)))
    print_line()
    _print_entities(rows)
    if skews:
        print_line()
        _print_skews(dataset, skews)
    _print_notes(dataset)


@app.command("get")
@one_sentence
def get_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="SMD, PSM, SMAP or MSL; the last two come together.")],
    data: DataFolder = None,
    mirror: Mirror = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the missing files of a dataset from upstream, and check the files that are here."""
    name, root = known_name(name), data or _named_folder()
    with shown_progress() as progress:
        done = get(name, root, base=mirror, progress=progress)
    if as_json:
        print_json([{**file._asdict(), "path": str(file.path)} for file in done])
    else:
        _print_fetched(name, done, root)


def _named_folder() -> Path:
    """The data folder, which may not exist yet if the environment names it."""
    root = data_folder() or os.environ.get("FEDKAD_DATA")
    if root is None:
        raise ValueError("There is no data folder; name one with --data, or in FEDKAD_DATA.")
    return Path(root)


def _open(name: str, data: Path | None, *, cache: bool = True) -> Dataset:
    """A dataset by name or folder; only the cache warns, since the notes list what is missing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = load(name, data, cache=cache) if name.upper() in KNOWN else load_folder(Path(name), cache=cache)
    for warning in caught:
        if issubclass(warning.category, CacheWarning):
            warn(str(warning.message))
        elif not issubclass(warning.category, PartialDatasetWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return dataset


def _place(name: str, data: Path | None) -> Path:
    if name.upper() not in KNOWN:
        return Path(name)
    return (data or data_folder() or Path()) / KNOWN[name.upper()].folder


def _listing(name: str, root: Path | None) -> dict[str, Any]:
    """One entry of the list: what is here of a dataset, or why it cannot be read."""
    place = None if root is None else root / KNOWN[name].folder
    entry: dict[str, Any] = {"dataset": name, "folder": None, "here": None, "error": None, "notes": []}
    entry |= {"label": name, "paper": PAPER_TABLE[name]._asdict()}
    if place is None or not place.is_dir():
        return entry
    entry["folder"] = str(place)
    try:
        dataset = _open(name, root)
    except ValueError as error:
        return entry | {"error": str(error)}
    return entry | {"label": dataset.label, "here": dataset.figures._asdict(), "notes": list(dataset.notes)}


def _print_listing(listed: Sequence[dict[str, Any]], root: Path | None) -> None:
    rows = []
    for entry in listed:
        here, paper = entry["here"] or {}, entry["paper"]
        counts = [f"{_count(here.get(key))} / {_count(paper[key])}" for key in ("clients", "train", "test", "channels")]
        ratio = f"{_percent(here.get('anomalous'))} / {_percent(paper['anomalous'])}"
        where = entry["folder"] or f"not here: fedkad datasets get {entry['dataset']}"
        rows.append((entry["dataset"], *counts, ratio, "unreadable" if entry["error"] else where))
    header = ("Dataset", "Clients", "Training rows", "Test rows", "Channels", "Anomalous %", "Where")
    print_table(header, rows, numbers=range(1, 6))
    print_line("\nEach number is what is here / what the paper's table says.")
    if root is None:
        print_line("There is no data folder; name one with --data, or in FEDKAD_DATA.")
    for entry in listed:
        for note in entry["notes"]:
            print_line(f"{entry['dataset']}: {note}")


def _facts(dataset: Dataset, place: Path) -> dict[str, str]:
    figures = dataset.figures
    period = "unknown" if dataset.sample_period is None else f"{dataset.sample_period:g} s"
    facts = {
        "dataset": dataset.label,
        "folder": str(place),
        "entities": str(len(dataset.entities)),
        "training rows": f"{figures.train:,}",
        "test rows": f"{figures.test:,}{', shared by all' if dataset.shared_test else ''}",
        "anomalous": f"{figures.anomalous:.2f} %",
        "channels": str(figures.channels),
        "sample period": period,
        "scaling": dataset.scaling,
    }
    if dataset.chosen_on:
        facts["chosen on"] = f"{', '.join(dataset.chosen_on)}; the other {len(dataset.untouched)} are untouched"
    return facts


def _document(dataset: Dataset) -> dict[str, Any]:
    paper = PAPER_TABLE.get(dataset.name)
    return {
        "dataset": dataset.name,
        "label": dataset.label,
        "here": dataset.figures._asdict(),
        "paper": paper._asdict() if paper and dataset.name in KNOWN else None,
        "sample_period": dataset.sample_period,
        "scaling": dataset.scaling,
        "trainable": dataset.trainable,
        "chosen_on": list(dataset.chosen_on),
        "untouched": list(dataset.untouched),
        "notes": list(dataset.notes),
    }


def _entity_document(entity: Entity, dataset: Dataset) -> dict[str, Any]:
    known = entity.train[~np.isnan(entity.train).any(axis=1)]
    return {
        "entity": entity.name,
        "train": len(entity.train),
        "test": len(entity.test),
        "anomalous": 100.0 * float(entity.labels.mean()),
        "constant_channels": np.flatnonzero(np.ptp(known, axis=0) == 0.0).tolist() if len(known) else None,
        "feature_skew": None,
        "untouched": entity.name in dataset.untouched,
    }


def _print_entities(rows: Sequence[dict[str, Any]]) -> None:
    header = ("Entity", "Training rows", "Test rows", "Anomalous %", "Constant channels", "Feature skew")
    cells = [
        (
            row["entity"],
            _count(row["train"]),
            _count(row["test"]),
            _percent(row["anomalous"]),
            UNKNOWN if row["constant_channels"] is None else str(len(row["constant_channels"])),
            UNKNOWN if row["feature_skew"] is None else significant(row["feature_skew"]),
        )
        for row in rows
    ]
    print_table(header, cells, numbers=range(1, 6))


def _print_skews(dataset: Dataset, clients: Sequence[ClientSkew]) -> None:
    units = {"feature": "", "label": " %", "quantity": "x"}
    rows = [
        (row.kind, _span(row.low, row.high, units[row.kind]), _span(row.paper_low, row.paper_high, units[row.kind]))
        for row in skew_table(dataset, clients)
    ]
    print_table(("Skew", "Here", "Paper"), rows, numbers=[1, 2])


def _print_notes(dataset: Dataset) -> None:
    if dataset.notes:
        print_line("\nnotes")
    for note in dataset.notes:
        print_line(f"  {note}")


def _print_fetched(name: str, done: Sequence[Fetched], root: Path) -> None:
    new = sum(file.state == "fetched" for file in done)
    verified = sum(file.verified for file in done)
    print_line(f"{name} in {root / KNOWN[name].folder}: {new} fetched, {len(done) - new} here already.")
    print_line(f"{counted(verified, 'file has', 'files have')} the known SHA-256 digest.")
    unknown = [file for file in done if not file.verified]
    if unknown:
        print_line("The digests of the other files are not known; compare them with those of another copy:\n")
        print_table(("File", "SHA-256"), [(str(file.path), file.sha256) for file in unknown])


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _percent(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:.2f}"


def _span(low: float | None, high: float | None, unit: str) -> str:
    if low is None or high is None:
        return UNKNOWN
    ends = (significant(low), significant(high))
    return f"{ends[0] if ends[0] == ends[1] else ' to '.join(ends)}{unit}"
