"""``fedkad-agent``: the agent without a command-line framework, for small machines."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedkad import __version__

if TYPE_CHECKING:
    from fedkad.edge.settings import AgentSettings

MMAP_THRESHOLD, LARGE = -3, 1 << 17  # glibc: freed memory of that size is returned to the system at once
INTERRUPTED, UNREAD = 130, 141  # exit status after Ctrl-C, and after the reader of the output has gone

QUESTIONS = """
to an agent that runs, or will:
  fedkad-agent tell CONFIG.toml DEVICE VERB [ARGUMENT]   normal, mute, acknowledge, relearn, budget, undo
  fedkad-agent incidents CONFIG.toml [DEVICE]            what it has alarmed
  fedkad-agent status CONFIG.toml                        what it knows of its devices
  fedkad-agent replay CONFIG.toml FILE                   what it would have alarmed on a recording
  fedkad-agent forget CONFIG.toml DEVICE                 drop all about a device that is gone

to begin with:
  fedkad-agent discover mqtt://BROKER                    list what publishes, and write a first agent.toml
"""


def main() -> int:
    """Run ``fedkad-agent``; returns the exit status."""
    arguments = sys.argv[1:]
    limit_memory()
    try:
        if arguments and arguments[0] in COMMANDS:
            COMMANDS[arguments[0]](arguments[1:])
        else:
            _watch(arguments)
        sys.stdout.flush()  # while a reader that has gone can still be noticed
    except KeyboardInterrupt as error:
        if str(error):
            print(error, file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads our output has seen enough; the flush at exit must not fail because of it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except OSError as error:
        sentence = f"{error.filename}: {error.strerror}." if error.filename else f"{error}."
    except ValueError as error:
        sentence = str(error)
    else:
        return 0
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)
    return 1


def limit_memory() -> None:
    """Use little memory; to be called before numpy is loaded, since its library keeps a buffer per thread.

    glibc would raise its threshold with the first large array that is freed, and keep the memory that learning used.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with suppress(OSError, AttributeError):  # not on other systems
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)


def _load(config: Path) -> AgentSettings:
    from fedkad.edge.settings.file import load

    return load(config)


def run(config: Path, *, check: bool) -> None:
    """Run the agent with a configuration, or only check it."""
    settings = _load(config)
    if check:
        from fedkad.edge.settings.checking import check as checked

        print(f"{config}: {checked(settings)}")
        return
    from fedkad.edge.agent import watch
    from fedkad.edge.assembly import require_extra

    require_extra(settings)
    watch(settings, lambda: _load(config))


# -- the command line: each function parses its arguments and does what they say --------------------------------------


def _watch(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="fedkad-agent",
        description="Watch devices, live: score, explain, alert.",
        epilog=QUESTIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG.toml")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=f"fedkad {__version__}")
    given = parser.parse_args(arguments)
    run(given.config, check=given.check)


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"fedkad-agent {name}", description=description)
    parser.add_argument("config", type=Path, metavar="CONFIG.toml")
    return parser


def _tell(arguments: Sequence[str]) -> None:
    parser = _parser("tell", "Tell the agent something about a device; it is kept until the agent has acted on it.")
    parser.add_argument("device", metavar="DEVICE")
    parser.add_argument("verb", metavar="VERB", help="normal, mute, acknowledge, relearn, budget or undo")
    parser.add_argument("argument", nargs="?", default="", metavar="ARGUMENT", help="such as 2h, 2/week or an incident")
    parser.add_argument("--from", dest="sender", default="", metavar="NAME", help="who tells it; your user by default")
    parser.add_argument("--wait", type=float, default=10.0, metavar="SECONDS", help="for the reply; 10 by default")
    given = parser.parse_args(arguments)
    if not given.wait >= 0.0:
        parser.error(f"--wait {given.wait:g} must be at least 0")
    from fedkad.edge.commands.client import tell

    print(tell(_load(given.config), given.device, given.verb, given.argument, given.sender, given.wait))


def _list_incidents(arguments: Sequence[str]) -> None:
    parser = _parser("incidents", "List incidents, the newest at the end.")
    parser.add_argument("device", nargs="?", default="", metavar="DEVICE", help="all of them without it")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="how many; 20 by default")
    given = parser.parse_args(arguments)
    if given.last < 1:
        parser.error(f"--last {given.last} must be at least 1")
    from fedkad.edge.subcommands.history import incidents

    print(incidents(_load(given.config), given.device, min(given.last, sys.maxsize)))


def _show_status(arguments: Sequence[str]) -> None:
    given = _parser("status", "Show what the agent knows of its devices.").parse_args(arguments)
    from fedkad.edge.subcommands.history import status

    print(status(_load(given.config)))


def _replay(arguments: Sequence[str]) -> None:
    parser = _parser("replay", "Show what a recording would have alarmed; the state of the agent is not touched.")
    parser.add_argument("recording", type=Path, metavar="FILE", help="JSON lines, or CSV; .gz as well")
    given = parser.parse_args(arguments)
    from fedkad.edge.subcommands.replay import replay

    replayed = replay(_load(given.config), given.recording)
    print(replayed.text)
    if not replayed.is_whole:
        raise KeyboardInterrupt


def _forget(arguments: Sequence[str]) -> None:
    parser = _parser("forget", "Drop all that a stopped agent knows of a device: its model, its history, its counters.")
    parser.add_argument("device", metavar="DEVICE")
    given = parser.parse_args(arguments)
    from fedkad.edge.commands.client import forget

    print(forget(_load(given.config), given.device))


def _discover(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="fedkad-agent discover",
        description="List what publishes on a broker for some seconds, and write a first configuration.",
    )
    parser.add_argument("broker", metavar="BROKER", help="mqtt://host:port, mqtts:// for TLS, or the host")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="to listen for; 60 by default")
    parser.add_argument("--topic", default="#", metavar="FILTER", help="to listen to, such as zigbee2mqtt/#; all else")
    parser.add_argument("--output", "-o", type=Path, default=Path("agent.toml"), metavar="FILE", help="agent.toml else")
    parser.add_argument("--username", default="", metavar="NAME")
    parser.add_argument("--password-file", default="", metavar="FILE", help="a file that holds the password")
    parser.add_argument("--ca-file", default="", metavar="FILE", help="your own certificate authority, for TLS")
    given = parser.parse_args(arguments)
    if not 0.0 < given.seconds <= 86400.0:
        parser.error(f"--seconds {given.seconds:g} must be above 0 and at most a day")
    if given.password_file and not given.username:
        parser.error("--password-file needs --username")
    levels = given.topic.split("/")
    if not given.topic or "#" in levels[:-1] or any(len(level) > 1 and set(level) & {"+", "#"} for level in levels):
        parser.error(f"--topic {given.topic!r} must be a filter such as zigbee2mqtt/#, with + or # for whole levels")
    from fedkad.edge.settings import SourceSettings
    from fedkad.edge.settings.rules import split_broker
    from fedkad.edge.subcommands.discover import discover

    broker = given.broker if "://" in given.broker else f"mqtt://{given.broker}"
    split_broker(broker, "source")
    secret, authority = (name and str(Path(name).absolute()) for name in (given.password_file, given.ca_file))
    login = SourceSettings(broker, given.username, secret, authority, kind="mqtt")
    discover(login, given.topic, given.seconds, given.output, print)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "tell": _tell,
    "incidents": _list_incidents,
    "status": _show_status,
    "replay": _replay,
    "forget": _forget,
    "discover": _discover,
}


if __name__ == "__main__":
    sys.exit(main())
