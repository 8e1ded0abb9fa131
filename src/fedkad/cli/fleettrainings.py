"""``fedkad fleet train``, ``history``, ``rollback`` and ``deliver``: trainings of a fleet, and the models they made."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkad import locks
from fedkad.cli.failures import note, one_sentence
from fedkad.cli.fleetstatus import PAUSE, UNKNOWN, Folder, not_running, quoted
from fedkad.cli.output import AsJson, print_json, print_line, print_table
from fedkad.federation import model_archive, training_files
from fedkad.fleet.server import registry, requests
from fedkad.fleet.server.requests import TrainingEnd, TrainingOutcome, outcome_of
from fedkad.fleet.server.settings import ServerFolder
from fedkad.wording import counted

LONGEST_END, SHORT_PAUSE = 120.0, 0.5  # seconds in which a run that is cancelled ends, and between two looks at it
AWAY = 60.0  # seconds after which a server that was stopped does not seem to come back
BUSY = (
    "{}: a training or a delivery is under way; try again when it is done, or end the training with "
    "`fedkad fleet train {} --cancel`."
)

DeviceName = Annotated[str, typer.Argument(metavar="DEVICE", help="The name of the device.")]


@one_sentence
def train(
    folder: Folder,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the outcome; exit status 1 unless a model was delivered.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the training that is requested or under way; the current model stays.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask the running server for a training; while one is requested or under way, this adds no other."""
    server = ServerFolder.existing(folder)
    if cancel:
        _cancel(server, folder)
        print_json({"wanted": False, "cancelled": True}) if as_json else print_line("The training is cancelled.")
        return
    if not locks.is_held(server.lock):
        raise ValueError(not_running(folder))
    is_new = requests.request_training(server.training)
    if wait:
        _print_outcome(_outcome(server, folder), as_json, is_new)
    elif as_json:
        print_json({"wanted": True, "already": not is_new})
    else:
        started = "The server begins a training."
        waiting = "A training is already requested or under way, and no other will follow it."
        print_line(f"{started if is_new else waiting} Follow it with fedkad fleet status --follow {quoted(folder)}.")


def _cancel(server: ServerFolder, folder: Path) -> None:
    """Cancel the training, and wait until a running server has ended it."""
    request, end = requests.cancel_training(server.training), time.monotonic() + LONGEST_END
    if request is None:
        raise ValueError(f"{folder}: there is no training to cancel; none is requested or under way.")
    while (outcome := outcome_of(server.training, request)) is None and locks.is_held(server.lock):
        if time.monotonic() > end:
            log = server.logs / "server.log"
            raise ValueError(f"{folder}: the training is cancelled, but its run has not ended yet; see {log}.")
        time.sleep(SHORT_PAUSE)
    if outcome is not None and outcome.state != TrainingEnd.CANCELLED:
        raise ValueError(f"It is too late to cancel. {outcome.sentence}")


def _outcome(server: ServerFolder, folder: Path) -> TrainingOutcome:
    """Wait until the training that is requested has ended, and tell its rounds meanwhile."""
    request, printed, seen = training_files.read_request(server.training), "", time.monotonic()
    if request is None:
        return TrainingOutcome(TrainingEnd.DONE, None, "The training under way was done just now.")
    while (outcome := outcome_of(server.training, request)) is None:
        if locks.is_held(server.lock):
            seen = time.monotonic()
        elif time.monotonic() - seen > AWAY:
            raise ValueError(f"{not_running(folder)} The training then goes on.")
        words = _progress(server.training, request)
        if words not in ("", printed):
            typer.echo(words, err=True)
            printed = words
        time.sleep(PAUSE)
    return outcome


def _progress(training: Path, request: training_files.TrainingRequest) -> str:
    """Return how far a training is, or what it waits for; empty if there is nothing to tell yet."""
    if (waits := training_files.read_waits(training)) is not None:
        return f"The training {waits}."
    try:
        status = training_files.read_status(training) or {}
    except training_files.TrainingFileError as error:  # the app writes another
        return str(error)
    is_told = status.get("run", request.after) != request.after
    return f"round {status.get('round')} of {status.get('rounds')}: {status.get('state')}" if is_told else ""


def _print_outcome(outcome: TrainingOutcome, as_json: bool, is_new: bool) -> None:
    if as_json:
        ended = {"outcome": outcome.state, "training": outcome.run, "sentence": outcome.sentence}
        print_json({"wanted": False, "already": not is_new, **ended})
    elif outcome.state == TrainingEnd.DONE:
        print_line(outcome.sentence)
    if outcome.state != TrainingEnd.DONE:
        raise ValueError(outcome.sentence)


@one_sentence
def history(folder: Folder, as_json: AsJson = False) -> None:
    """List the models that the server keeps: the current one, those before it, and those that were kept back."""
    training = ServerFolder.existing(folder).training
    models = model_archive.listed(training)
    for sentence in model_archive.unreadable(training):
        note(f"{sentence} It is left out.")
    if as_json:
        print_json([model._asdict() for model in models])
    elif models:
        rows = [(each.run, each.state, str(each.rounds), str(each.delivered), _gate(each.gate)) for each in models]
        print_table(("Training", "State", "Rounds", "Held by", "Loss against the model before"), rows, numbers=[2, 3])
    else:
        print_line("There has been no training yet.")


@one_sentence
def rollback(
    folder: Folder,
    training: Annotated[
        str | None,
        typer.Argument(metavar="[TRAINING]", help="The training to go back to.", show_default="the one before"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an earlier model the current one again; a running server then delivers it to all devices."""
    server = ServerFolder.existing(folder)
    with locks.holding(server.training / training_files.APP_LOCK, BUSY.format(server.training, quoted(folder))):
        run = model_archive.roll_back(server.training, training)
    if as_json:
        print_json({"current": run})
    else:
        print_line(f"The model of {run} is the current one again; devices get it as soon as they are online.")


@one_sentence
def deliver(folder: Folder, device: DeviceName, as_json: AsJson = False) -> None:
    """Deliver the current model to a device once more."""
    server = ServerFolder.existing(folder)
    devices = registry.active(registry.read(server.registry))
    if device not in devices:
        raise ValueError(f"There is no device {device}; `fedkad fleet list` lists them all.")
    if server.settings.notice.is_on_demand(len(devices)):
        raise ValueError(
            f"{device} fetches the current model by itself; for another time, remove delivered.json from its folder."
        )
    with locks.holding(server.training / training_files.APP_LOCK, BUSY.format(server.training, quoted(folder))):
        model_archive.forget_delivered(server.training, lambda name: name == device)
    if as_json:
        print_json({"device": device})
    else:
        print_line(f"{device} gets the current model as soon as it is online and a server is running.")


def _gate(gate: Mapping[str, Any]) -> str:
    """Return what devices said of a model before its delivery."""
    return f"{gate['ratio']:.3g} times, by {counted(gate['judges'], 'device')}" if gate.get("judges") else UNKNOWN
