"""The models that a server keeps: the current one, those before it, and those that were not delivered.

    result.safetensors     the current model, which every device gets
    result.json            the training that was done last, which model is current, and which devices hold it
    models/RUN.safetensors the models before it, and those that were kept back

Rolling back to one of them makes it the current model again, which no device holds then: the server delivers it to all.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedkad.atomicfile import set_aside, write_atomically
from fedkad.detect.modelfile import ModelFileError, read_model, write_model
from fedkad.federation.training_files import HOLDERS, RESULT, read_delivered

KIND = "fedkad-training"
MODELS = "models"
CURRENT, EARLIER, KEPT_BACK = "current", "earlier", "kept back"
UNREADABLE = "unreadable"
"""Why a file is set aside: it may also be of a later release."""

MOST_KEPT = 8
"""Models that are kept beside the current one; the oldest go first."""


class ArchiveError(ValueError):
    """A model that cannot be taken back or delivered again."""


class ArchivedModel(NamedTuple):
    """A model as `fedkad fleet history` shows it; `gate` is the verdict of the devices before its delivery."""

    run: str
    state: str
    rounds: int
    gate: dict[str, Any]
    delivered: int


def listed(folder: Path) -> list[ArchivedModel]:
    """List all models that are kept, newest first, without files that cannot be read: `unreadable` names these."""
    models = [each for each in map(_described, _files(folder)) if isinstance(each, ArchivedModel)]
    return sorted(models, key=lambda model: model.run, reverse=True)


def unreadable(folder: Path) -> list[str]:
    """Return a sentence about each file that should hold a model and cannot be read."""
    return [each for each in map(_described, _files(folder)) if isinstance(each, str)]


def earlier(folder: Path) -> list[str]:
    """List the runs of the models to go back to, newest first: those before the current one, even if that was lost."""
    models = listed(folder)
    current = next((model.run for model in models if model.state == CURRENT), read_delivered(folder).get("model"))
    return [model.run for model in models if model.state == EARLIER and (current is None or model.run < current)]


def archived_file(run: str) -> str:
    """Return where a model is beside the current one, in a server's folder."""
    return f"{MODELS}/{run}.safetensors"


def _files(folder: Path) -> list[Path]:
    return [*([folder / RESULT] if (folder / RESULT).exists() else ()), *_archived_files(folder)]


def _described(file: Path) -> ArchivedModel | str:
    """Describe the model in a file, or say why it cannot be read."""
    try:
        header, _ = read_model(file, KIND)
    except ModelFileError as error:
        return str(error)
    gate = header.get("gate", {})
    kept = KEPT_BACK if gate.get("worse") else EARLIER
    state = CURRENT if file.name == RESULT else kept
    held = len(header["ledger"]["delivered"])
    return ArchivedModel(header["terms"]["run"], state, len(header["records"]), gate, held)


def archive(folder: Path, file: Path) -> None:
    """Keep a copy of a model beside the current one."""
    run = read_model(file, KIND)[0]["terms"]["run"]
    (folder / MODELS).mkdir(mode=0o700, exist_ok=True)
    write_atomically(folder / archived_file(run), file.read_bytes())
    for old in _archived_files(folder)[:-MOST_KEPT]:
        old.unlink()


def roll_back(folder: Path, run: str | None = None) -> str:
    """Make an earlier model the current one, by default the one before; returns its run."""
    models = {model.run: model for model in reversed(listed(folder))}  # the current one last: a kill may leave two
    if run is None:
        run = next(iter(earlier(folder)), None)
        if run is None:
            raise ArchiveError("There is no earlier model to go back to; name another of `fedkad fleet history`.")
    if run not in models or models[run].state == CURRENT:
        what = "is the current model already" if run in models else "is not among the models that are kept"
        raise ArchiveError(f"{run} {what}; see `fedkad fleet history`.")
    chosen = folder / archived_file(run)
    header, arrays = read_model(chosen, KIND)
    if any(model.state == CURRENT for model in models.values()):
        archive(folder, folder / RESULT)
    elif (folder / RESULT).exists():
        set_aside(folder / RESULT, UNREADABLE)
    _write_current(folder, header, arrays, delivered=[])
    chosen.unlink(missing_ok=True)
    return run


def forget_delivered(folder: Path, is_meant: Callable[[str], bool]) -> list[str]:
    """Note that some devices do not hold the current model, so that it is delivered to them; returns their names."""
    if not (folder / RESULT).exists():
        raise ArchiveError("There is no model to deliver yet; train with `fedkad fleet train`.")
    header, arrays = read_model(folder / RESULT, KIND)
    held = header["ledger"]["delivered"]
    _write_current(folder, header, arrays, delivered=[name for name in held if not is_meant(name)])
    return [name for name in held if is_meant(name)]


def _write_current(folder: Path, header: dict[str, Any], arrays: Mapping[str, Any], *, delivered: list[str]) -> None:
    """Make a model the current one, which these devices hold.

    The list of holders is written first: after a kill, a model is delivered once too often rather than never.
    """
    ledger, gate = header["ledger"], header.get("gate", {})
    decided = {"ledger": {**ledger, "delivered": delivered}, "gate": {**gate, "worse": False}}  # by the operator
    write_delivered(folder, header["terms"]["run"], delivered)
    write_model(folder / RESULT, {**header, **decided}, arrays, KIND)


def write_delivered(folder: Path, model: str, delivered: list[str], *, done: str | None = None) -> None:
    """Write which model is current and who holds it; the training that was `done` last stays what it was."""
    last = read_delivered(folder).get("run") or model if done is None else done
    document = {"run": last, "model": model, "delivered": delivered}
    write_atomically(folder / HOLDERS, json.dumps(document).encode())


def mend_delivered(folder: Path) -> str | None:
    """Restore the list of holders from the current model if it is missing or unreadable; return a sentence if it was.

    Without it no device would get the model any more, and a training that is requested would seem to be done.
    """
    try:
        if read_delivered(folder) or not (folder / RESULT).exists():
            return None
        header, _ = read_model(folder / RESULT, KIND)
    except ModelFileError:  # the delivery says so
        return None
    what = "was missing"
    if (folder / HOLDERS).exists():
        what = f"could not be read and is now {set_aside(folder / HOLDERS, UNREADABLE).name}"
    write_delivered(folder, header["terms"]["run"], header["ledger"]["delivered"])
    return f"{folder / HOLDERS} {what}; it was restored from {RESULT}."


def _archived_files(folder: Path) -> list[Path]:
    """List the files of all models but the current one, oldest first: a run begins with the time of its training."""
    return sorted((folder / MODELS).glob("*.safetensors"))
