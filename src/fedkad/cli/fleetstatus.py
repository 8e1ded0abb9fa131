"""``fedkad fleet status``: counts and exceptions, and every device only on request."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedkad import locks
from fedkad.cli.failures import note, one_sentence
from fedkad.cli.output import AsJson, print_facts, print_json, print_line, print_table
from fedkad.federation import training_files
from fedkad.federation.training_files import TrainingFileError
from fedkad.federation.training_state import latest_training
from fedkad.fleet.server import registry
from fedkad.fleet.server.registry import Registry
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared import extra
from fedkad.fleet.shared.files import FleetFileError
from fedkad.wording import counted

if TYPE_CHECKING:
    from fedkad.fleet.flower.control import Node

UNKNOWN = "-"
PAUSE = 2.0  # seconds between two looks
MOST_NAMED, MOST_LISTED = 8, 20  # names in a line, lines of a table

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the server.")]


@one_sentence
def status(
    folder: Folder,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, and print again what has changed.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List every device.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show whether the server is running, how many devices are online, which are not, and how the last training went.

    Exit status 1 if the server is not running or does not answer.
    """
    extra.require()
    server, shown = ServerFolder.existing(folder), None
    while True:
        document, trouble = _look(server, folder)
        if document != shown:
            if shown is not None and sys.stdout.isatty():
                typer.clear()
            print_json(document) if as_json else _print(document, every=every)
            shown = document
        if trouble and not (follow and document["server"]["running"]):
            raise ValueError(trouble)
        if not follow:
            return
        time.sleep(PAUSE)


def not_running(folder: Path) -> str:
    """Return the sentence about a server that is down."""
    return f"{folder}: no server is running here; start it with fedkad server {quoted(folder)}."


def quoted(path: Path) -> str:
    """Return a path as a shell reads it."""
    return shlex.quote(str(path))


def _look(server: ServerFolder, folder: Path) -> tuple[dict[str, Any], str]:
    """Return all that is known of a fleet now, and what is wrong with its server, if anything."""
    from fedkad.fleet.server.lastseen import as_of_now
    from fedkad.fleet.server.lastseen import read as read_last_seen
    from fedkad.fleet.server.overview import certificate_ends, counts_of, privacy_of, seen_devices
    from fedkad.fleet.shared import keyfiles

    devices, settings = registry.read(server.registry), server.settings
    running = locks.is_held(server.lock)
    nodes, trouble = _nodes(server) if running else (None, not_running(folder))
    damage = next(keyfiles.damages(server), None) if running else None
    active = registry.active(devices)
    on_demand = settings.notice.is_on_demand(len(active))
    last_seen = as_of_now(read_last_seen(server), settings.notice.seconds) if on_demand and running else None
    seen = seen_devices(devices, nodes, last_seen)
    document = {
        "server": {"running": running, "answering": nodes is not None, "address": settings.place.reached_at},
        "on_demand": on_demand,
        "by_call": on_demand,  # its name until 0.2
        "counts": {"registered": len(active), **counts_of(seen)},
        "devices": [{"device": each.device, "state": each.state, "since": each.since} for each in seen],
        "training": _training(server),
        "wanted": training_files.is_requested(server.training),
        "waits": training_files.read_waits(server.training) if running else None,
        "notice": _notice(server, active),
        "privacy": privacy_of(settings),
        "certificates": {owner: end.isoformat() for owner, end in certificate_ends(server).items()},
    }
    return document, trouble if damage is None else str(damage)


def _training(server: ServerFolder) -> dict[str, Any] | None:
    """Return what is known of the latest training; None if there is none, or its report cannot be read."""
    try:
        training_files.read_status(server.training)
    except TrainingFileError as error:
        note(str(error))
        return None
    return latest_training(server.training)


def _nodes(server: ServerFolder) -> tuple[dict[str, Node] | None, str]:
    """Return what Flower knows about the devices, by their keys; or why it does not answer."""
    from fedkad.fleet.flower.control import ControlError, open_control

    try:
        with open_control(server.settings.place.control_port, server.ca_certificate) as control:
            return control.nodes(), ""
    except FleetFileError as error:
        return None, str(error)
    except ControlError as error:
        return None, f"{server.root}: the server is running, but Flower does not answer ({error}); see {server.logs}."


def _notice(server: ServerFolder, devices: Registry) -> dict[str, Any] | None:
    """Return what the notice says, in a fleet whose devices connect when they are called."""
    from fedkad.fleet.server.noticeboard import NoticeBoard

    shown = NoticeBoard(server).last()
    if shown is None or not server.settings.notice.is_on_demand(len(devices)):
        return None
    model, now = shown.body.model, time.time()
    called = [name for name in devices if shown.calls(name, now)]
    return {"number": shown.sequence, "called": called, "model": None if model is None else model.run}


def _print(document: Mapping[str, Any], *, every: bool) -> None:
    server, training = document["server"], document["training"]
    facts = {
        "server": f"running, at {server['address']}" if server["running"] else "not running",
        "devices": _device_counts(document),
        "privacy": _privacy(document["privacy"]),
        "certificates": ", ".join(f"{owner} until {end[:10]}" for owner, end in document["certificates"].items()),
    }
    if (notice := document["notice"]) is not None:
        model = "no model" if notice["model"] is None else f"names the model of {notice['model']}"
        facts["notice"] = f"{notice['number']}, calls {counted(len(notice['called']), 'device')}, {model}"
    print_facts(facts)
    _print_devices(document, every=every)
    print_line()
    if document["waits"]:
        print_line(f"A training {document['waits']}.")
    elif document["wanted"]:
        print_line("A training is requested or under way.")
    if training is None:
        print_line("No round has been closed yet." if document["wanted"] else "There has been no training yet.")
        return
    print_facts(_training_facts(training, document["counts"]["registered"], is_another_requested=document["wanted"]))
    _print_refusals(training)


def _device_counts(document: Mapping[str, Any]) -> str:
    counts = document["counts"]
    if not document["server"]["answering"]:
        return f"{counts['registered']} registered; who is online is known while the server answers"
    away = ("online", "offline", "never seen")
    if document["on_demand"]:  # whoever is not called is not connected, and healthy
        silent = f", {counts['offline']} silent for hours" if counts["offline"] else ""
        seen = f"{counts['online']} connected, {counts['waiting']} waiting{silent}"
        return f"{counts['registered']} registered: {seen}; devices connect when they are called"
    named = [f"{counts[state]} {state}" for state in away if counts[state] or state == "online"]
    return f"{counts['registered']} registered: {', '.join(named)}"


def _print_devices(document: Mapping[str, Any], *, every: bool) -> None:
    """All devices, or those that an operator should look at: in a fleet that stays connected, who is not."""
    is_awaited = document["server"]["answering"] and not document["on_demand"]
    wanted = [
        each for each in document["devices"] if every or (is_awaited and each["state"] in ("offline", "never seen"))
    ]
    if not wanted:
        return
    shown = wanted if every else wanted[:MOST_LISTED]
    print_line()
    print_table(
        ("Device", "State", "Since"),
        [(each["device"], each["state"] or "unknown", _moment(each["since"])) for each in shown],
    )
    if len(shown) < len(wanted):
        print_line(f"and {len(wanted) - len(shown)} more; --all lists every device.")


def _privacy(privacy: Mapping[str, Any]) -> str:
    masks = "masked replies" if privacy["secure_aggregation"] else ""
    noise = ""
    if privacy["epsilon"] is not None:
        each = "of the sum" if masks else "of a device"
        noise = f"noise {privacy['noise']:g}: ε = {privacy['epsilon']:.3g} {each} with {privacy['replies']} replies"
        noise += f" in a training (δ = {privacy['delta']:g})"
    return (
        ", ".join(filter(None, (masks, noise))) or "samples stay on their devices; replies are neither masked nor noisy"
    )


def _training_facts(training: Mapping[str, Any], registered: int, *, is_another_requested: bool) -> dict[str, str]:
    """Return the last training in words; what the app has not reported is left out."""
    state = str(training.get("state", "unknown"))
    facts = {"last training" if is_another_requested and state == "done" else "training": state}
    if "run" in training:
        facts["run"] = str(training["run"])
    if "round" in training:
        facts["round"] = f"{training['round']} of {training.get('rounds', '?')}"
    if training.get("participants"):
        latest = training["participants"][-1]
        facts["participants"] = f"{len(latest)} in the last round: {_named(latest)}"
    if training.get("left_out"):
        facts["left out"] = f"{_named(training['left_out'])}: the others would lose by their directions"
    if training.get("loss") is not None:
        facts["loss"] = f"{training['loss']:.4g} in the last round that told it"
    if (gate := training.get("gate") or {}).get("judges"):
        facts["gate"] = (
            f"{gate['ratio']:.3g} times the loss of the model before, by {counted(gate['judges'], 'device')}"
        )
    if "bytes_up" in training:
        up, down = training["bytes_up"] / 1000, training.get("bytes_down", 0) / 1000
        facts["traffic"] = f"{up:.1f} KB up, {down:.1f} KB down"
    if "seconds" in training:
        facts["time"] = f"{training['seconds']:.1f} s"
    if "delivered" in training:
        facts["delivered to"] = f"{len(training['delivered'])} of {counted(registered, 'device')}"
    return facts


def _named(names: Sequence[object]) -> str:
    """Return some of the names, and how many there are beside them."""
    shown = ", ".join(map(str, names[:MOST_NAMED]))
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED} more"


def _print_refusals(training: Mapping[str, Any]) -> None:
    entries = [entry for entry in training.get("refused", ()) if isinstance(entry, dict)]
    refused = Counter((str(entry.get("device")), str(entry.get("reason"))) for entry in entries)
    if not refused:
        return
    print_line()
    rows = [(device, str(times), reason) for (device, reason), times in refused.most_common(MOST_LISTED)]
    print_table(("Refused", "Times", "Reason"), rows, numbers=[1])
    if len(refused) > MOST_LISTED:
        print_line(f"and {len(refused) - MOST_LISTED} more; --json has all of them.")


def _moment(text: str | None) -> str:
    """Return a time stamp without the fraction of a second."""
    return UNKNOWN if text is None else f"{text[:10]} {text[11:19]}"
