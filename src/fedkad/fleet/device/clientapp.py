"""The device's side as a Flower app: a message in, the participant's answer out."""

from contextlib import suppress
from logging import ERROR
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common import log

from fedkad.federation.durable import DurableParticipant
from fedkad.federation.protocol import ProtocolError, Request, refusal
from fedkad.fleet.device.data import participant_in
from fedkad.fleet.shared.devicefolder import REFUSAL
from fedkad.fleet.shared.envelope import packed, unpacked
from fedkad.fleet.shared.files import write_private
from fedkad.tables.fleet import device_paths

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a request, or say why not.

    Only what is wrong with the request is sent back. An error in reading the device's own data may quote them, and
    stays in the device's log.
    """
    try:
        request = Request.read(unpacked(message))
        header = participant(context).answer(request).header(request)
    except ProtocolError as error:
        _note_refusal(context, str(error))
        header = refusal(str(error))
    except Exception as error:
        log(ERROR, "%s: %s", type(error).__name__, error)
        _note_refusal(context, f"{type(error).__name__}: {error}")
        header = refusal("The device cannot answer; the reason is in its log.")
    return Message(packed(header), reply_to=message)


def _note_refusal(context: Context, why: str) -> None:
    """Leave the reason in the device's folder, from where its client reports it."""
    with suppress(OSError):
        if "folder" in context.node_config:
            write_private(Path(str(context.node_config["folder"])) / REFUSAL, why.encode())


def participant(context: Context) -> DurableParticipant:
    """Return the participant of a node: named in the node's own configuration or, in a simulation, by its number."""
    node, data = context.node_config, None
    if "partition-id" in node:
        paths = device_paths(Path(str(context.run_config["data"])))
        device, data = list(paths.items())[int(node["partition-id"])]
        folder = Path(str(context.run_config["folder"])) / "simulated" / device
    else:
        device, folder = str(node["device"]), Path(str(node["folder"]))
        if node.get("data"):
            data = Path(str(node["data"]))
    return participant_in(folder, device, data)
