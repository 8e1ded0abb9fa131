"""``fedkad fleet``: how an operator creates a fleet, and adds, renews and revokes its devices."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from fedkad import locks
from fedkad.cli.failures import note, one_sentence
from fedkad.cli.fleetstatus import UNKNOWN, Folder, quoted, status
from fedkad.cli.fleettrainings import DeviceName, deliver, history, rollback, train
from fedkad.cli.options import RenamedSwitches, with_options, wrong_option
from fedkad.cli.output import AsJson, print_json, print_line, print_table
from fedkad.fleet.server import registry
from fedkad.fleet.server.settings import (
    FleetSettings,
    ModelSettings,
    NoticeSettings,
    Place,
    Privacy,
    ServerFolder,
    TrainingSettings,
)
from fedkad.fleet.shared import extra
from fedkad.intake import read_recording
from fedkad.settingerror import SettingError
from fedkad.settingkinds import parse_duration
from fedkad.wording import counted

SECTIONS: tuple[Callable[..., Any], ...] = (Place, ModelSettings, TrainingSettings, Privacy, NoticeSettings)
INIT_OPTIONS: dict[str, dict[str, Any]] = {
    "bind": {
        "metavar": "IP",
        "help": "The address of this machine to listen at, IPv4 or IPv6.",
        "show_default": "all addresses",
    },
    "port": {"help": "Port at which devices reach the server."},
    "control_port": {"help": "Port for this machine alone, over which trainings are started."},
    "window": {"help": "Samples per window."},
    "rank": {"help": "Dimension of the subspace."},
    "observables": {"help": "Number of random tanh observables."},
    "horizon": {"help": "Steps predicted ahead."},
    "seed": {"help": "Seed of all random numbers."},
    "rounds": {"help": "Rounds per training."},
    "participation": {"help": "Share of the fleet that takes part in each round."},
    "encoding": {"help": "Number format on the wire."},
    "quorum": {"help": "Share of the asked devices whose replies close a round early."},
    "deadline": {"help": "Seconds after which a round closes."},
    "every": {"metavar": "PERIOD", "help": "Train at this interval: 30m, 24h, 7d.", "show_default": "on demand"},
    "min_devices": {"help": "Devices that a round needs; with fewer online, a training waits."},
    "robust": {
        "help": "Take the median of the replies instead of their mean, and leave out devices that pull alone.",
        "show_default": "unless replies are masked, or --min-devices is below 3",
    },
    "secure_aggregation": {"help": "Mask replies so that the server learns only their sum."},
    "noise": {"help": "Noise on every reply, in units of --clip: differential privacy."},
    "clip": {"help": "Bound on the norm of a reply; used with --noise."},
    "period": {"help": "How often devices look whether a training calls them."},
    "devices_per_training": {"help": "Devices that a training calls, and more if they do not come."},
    "on_demand": {
        "help": "Have devices connect only when a training calls them.",
        "show_default": "if there are more than --devices-per-training",
    },
}
"""Settings of a fleet that may be chosen when it is created; their rules and defaults are in `fleet.settings`."""

PublicKey = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="The public part of an ECDSA P-384 key that stays on the device.",
        show_default="create a key",
    ),
]


class AuthorityStep(StrEnum):
    """The two steps to a new authority."""

    BEGIN = "begin"
    FINISH = "finish"


app = typer.Typer(no_args_is_help=True, help="Run a fleet over a network: create it, add devices, see its state.")


class InitCommand(RenamedSwitches):
    """`fedkad fleet init`, which had other switches in 0.1."""

    renamed: ClassVar[Mapping[str, str]] = {
        "--least": "--min-devices",
        "--invite": "--devices-per-training",
        "--by-call": "--on-demand",
    }


@app.command(cls=InitCommand)
@one_sentence
@with_options("chosen", INIT_OPTIONS, *SECTIONS)
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to create for the server.")],
    address: Annotated[
        str, typer.Option(metavar="HOST", help="The host name or IP address at which devices reach the server.")
    ],
    chosen: dict[str, Any],
    like: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="A table with the channels of every device.")
    ] = None,
    channels: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="The channels of every device, in this order.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the folder of a server: settings, its own certificate authority, a certificate, and no devices yet."""
    extra.require()
    from fedkad.fleet.server.enrolment import make_fleet

    if chosen.get("robust") and chosen.get("secure_aggregation"):
        raise typer.BadParameter(
            "mutually exclusive: a median needs every reply, and a server with masks sees only their sum; choose one.",
            param_hint="'--robust' / '--secure-aggregation'",
        )
    values = {**chosen, "address": address, "channels": _channels(like, channels)}
    sections = [kind(**{name: values[name] for name in vars(kind()) if name in values}) for kind in SECTIONS]
    try:
        server = make_fleet(folder, FleetSettings(*sections))
    except SettingError as error:
        raise wrong_option(error) from None
    reached_at, channel_names = server.settings.place.reached_at, values["channels"]
    if as_json:
        print_json({"folder": str(server.root), "server": reached_at, "channels": channel_names})
        return
    print_line(f"A fleet of devices with {counted(len(channel_names), 'channel')} is ready in {folder}.")
    print_line(f"  add a device    fedkad fleet add {quoted(folder)} DEVICE")
    print_line(f"  run the server  fedkad server {quoted(folder)}")
    print_line(f"Devices must reach {reached_at}. The folder holds private keys; keep it private.")


@app.command()
@one_sentence
def add(folder: Folder, device: DeviceName, public_key: PublicKey = None, as_json: AsJson = False) -> None:
    """Add a device, and create the folder to copy to it."""
    extra.require()
    from fedkad.fleet.server.enrolment import add_device

    copied = add_device(ServerFolder.existing(folder), device, public_key)
    copy, run = f"scp -r {quoted(copied)} USER@{device}:{device}", _client(device)
    if as_json:
        print_json({"device": device, "folder": str(copied), "copy": copy, "run": run, "key_made": public_key is None})
        return
    own_key = [] if public_key is None else [_put_key(device, public_key)]
    install = ("on the device", "pip install 'fedkad[fleet]'")
    _print_steps(f"{device} may take part.", ("copy the folder", copy), *own_key, install, ("on the device", run))
    if public_key is None:
        print_line(f"Then remove {quoted(copied)} here: anyone with its device.key can impersonate {device}.")


@app.command()
@one_sentence
def token(
    folder: Folder,
    devices: Annotated[list[str] | None, typer.Argument(metavar="[DEVICE]...", help="The names of devices.")] = None,
    names: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file with the name of a device on each line.")
    ] = None,
    valid: Annotated[str, typer.Option(metavar="PERIOD", help="For how long the tokens are valid.")] = "7d",
    as_json: AsJson = False,
) -> None:
    """Make one-time tokens by which devices join, each with a key of its own that never leaves it."""
    extra.require()
    from fedkad.fleet.server.enrolment import make_tokens

    wanted = list(dict.fromkeys(filter(None, (*(devices or ()), *_listed(names)))))
    if not wanted:
        raise typer.BadParameter("name a device, or a file with names.", param_hint="'DEVICE' / '--from'")
    life = parse_duration(valid)
    if not life:
        raise typer.BadParameter("must be a positive number with s, m, h or d, such as 7d.", param_hint="'--valid'")
    tokens = make_tokens(ServerFolder.existing(folder), wanted, life)
    if as_json:
        print_json([{"device": each.device, "token": str(each)} for each in tokens])
        return
    for each in tokens:
        print_line(str(each))
    note(f"on each device: fedkad fleet join TOKEN, within {valid} and while the server is running.")


def _listed(names: Path | None) -> list[str]:
    """Return the lines of a file, which may begin with the mark of an editor."""
    try:
        return [] if names is None else [line.strip() for line in names.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{names}: this file is not UTF-8 text; save it as UTF-8.") from None


@app.command()
@one_sentence
def join(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="What `fedkad fleet token` printed for this device.")],
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to put the folder of the device.", show_default="its name"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """On a device: make its key, have the server admit it by a one-time token, and create its folder."""
    extra.require()
    from fedkad.fleet.device.httpsclient import UnreachableError
    from fedkad.fleet.device.joining import join as join_by
    from fedkad.fleet.shared.tokens import OneTimeToken

    parsed = OneTimeToken.parse(token)
    place = Path(parsed.device) if folder is None else folder
    try:
        join_by(parsed, place)
    except UnreachableError as error:
        raise ValueError(str(error)) from None
    if as_json:
        print_json({"device": parsed.device, "folder": str(place.resolve()), "server": parsed.server})
    else:
        print_line(f"{parsed.device} may take part: fedkad client {quoted(place)} --data TABLE.csv")


@app.command()
@one_sentence
def renew(
    folder: Folder,
    device: Annotated[
        str | None, typer.Argument(metavar="[DEVICE]", help="The device.", show_default="the server")
    ] = None,
    public_key: PublicKey = None,
    authority: Annotated[
        AuthorityStep | None,
        typer.Option(
            help="Give the fleet a new authority: begin, and finish when all devices have looked.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a device a new key, even after it was revoked; or the server a new certificate, or a new authority."""
    extra.require()
    from fedkad.fleet.server.enrolment import begin_authority, finish_authority, renew_device, renew_server

    server = ServerFolder.existing(folder)
    if device is not None and authority is not None:
        raise typer.BadParameter("this option is for the server; name no device.", param_hint="'--authority'")
    if device is not None:
        _print_renewed(renew_device(server, device, public_key), device, public_key, as_json)
        return
    if public_key is not None:
        raise typer.BadParameter("this option is for a device; name one.", param_hint="'--public-key'")
    if authority is AuthorityStep.BEGIN:
        begin_authority(server)
        _print_begun(server, as_json)
        return
    if authority is AuthorityStep.FINISH:
        with locks.holding(server.lock, f"{folder}: the server is running; stop it first."):
            finish_authority(server)
    else:
        renew_server(server)
    if as_json:
        print_json({"server": server.settings.place.reached_at})
    else:
        used = "uses it within seconds" if locks.is_held(server.lock) else "will use it from its next start"
        print_line(f"The server has a new certificate and {used}. Nothing changes for the devices.")


def _print_begun(server: ServerFolder, as_json: bool) -> None:
    finish = f"fedkad fleet renew {quoted(server.root)} --authority finish"
    if as_json:
        print_json({"authority": str(server.next_certificate), "finish": finish})
        return
    print_line(
        "There is a next authority. Devices learn to trust it when they look at the notice of the running server."
    )
    print_line(f"  when all have looked, stop the server and  {finish}")
    print_line(f"A device that is off until then needs a copy of {quoted(server.ca_certificate)} afterwards.")


def _print_renewed(key: Path | None, device: str, public_key: Path | None, as_json: bool) -> None:
    """Print how to copy the new key into the device's folder, where everything else stays as it is."""
    copy, run = None if key is None else f"scp {quoted(key)} USER@{device}:{device}/{key.name}", _client(device)
    if as_json:
        file = None if key is None else str(key)
        print_json({"device": device, "key": file, "copy": copy, "run": run, "key_made": key is not None})
        return
    first = ("copy the key", str(copy)) if public_key is None else _put_key(device, public_key)
    _print_steps(f"{device} has a new key; the old one is refused.", first, ("on the device", run))
    print_line("A client that is already running there uses the new key within a minute.")
    if key is not None:
        print_line(f"Then remove {quoted(key)} here: anyone with it can impersonate {device}.")


@app.command()
@one_sentence
def revoke(folder: Folder, device: DeviceName, as_json: AsJson = False) -> None:
    """Exclude a device from the fleet."""
    extra.require()
    from fedkad.fleet.server.enrolment import revoke_device

    server = ServerFolder.existing(folder)
    revoke_device(server, device)
    running = locks.is_held(server.lock)
    if as_json:
        print_json({"device": device, "refused": "now" if running else "from the next start of the server"})
    else:
        when = "within seconds" if running else "from the next start of the server"
        print_line(f"{device} is revoked; it is refused {when}.")


@app.command("list")
@one_sentence
def list_devices(folder: Folder, as_json: AsJson = False) -> None:
    """List all devices that were ever added."""
    devices = registry.read(ServerFolder.existing(folder).registry)
    if as_json:
        print_json([{"device": d.name, "added": d.added, "revoked": d.revoked} for d in devices.values()])
    elif devices:
        print_table(("Device", "Added", "Revoked"), [(d.name, d.added, d.revoked or UNKNOWN) for d in devices.values()])
    else:
        print_line(f"There are no devices yet; add one with fedkad fleet add {quoted(folder)} DEVICE.")


for command in (status, train, history, rollback, deliver):
    app.command()(command)


def _channels(like: Path | None, channels: str | None) -> tuple[str, ...]:
    if (like is None) == (channels is None):
        raise typer.BadParameter("give either --like TABLE or --channels A,B,C.", param_hint="'--like' / '--channels'")
    if like is not None:
        return read_recording(like, allow_silent=True).channels
    names = tuple(name.strip() for name in (channels or "").split(","))
    if not all(names) or len(set(names)) < len(names):
        raise typer.BadParameter("the names must be unique, and none of them empty.", param_hint="'--channels'")
    return names


def _print_steps(headline: str, *steps: tuple[str, str]) -> None:
    print_line(headline)
    for where, what in steps:
        print_line(f"  {where:<20}{what}")


def _put_key(device: str, public_key: Path) -> tuple[str, str]:
    return "on the device", f"put the private key of {public_key} there as {device}/device.key"


def _client(device: str) -> str:
    return f"fedkad client {device} --data TABLE.csv"
