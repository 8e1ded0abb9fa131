"""All methods of the benchmark by name, in the order of the tables.

Reading this module imports neither PyTorch nor scikit-learn; only to make a method that needs one of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

from fedkad_bench.methods.classical import KINDS, ClassicalMethod
from fedkad_bench.methods.interface import Method
from fedkad_bench.methods.koopman import PAPER_SETTINGS, VARIANTS, KoopmanMethod

Group = Literal["fedkad", "neural", "classical", "naive"]

GROUPS: dict[Group, str] = {
    "fedkad": "FedKAD",
    "neural": "Neural, federated",
    "classical": "Classical, every device alone",
    "naive": "Naive",
}
"""Groups of methods with their headings, in the order of the tables."""

QUICK_ROUNDS, QUICK_EPOCHS = 1, 1
"""What networks are trained with where only the way through the benchmark is tried."""

INCIDENTAL = ("device", "seeds_side_by_side")
"""Settings that say how a training ran and not what it was."""


LIBRARIES = {"torch": "PyTorch", "sklearn": "scikit-learn"}
"""Libraries by the names they are imported by, where people call them something else."""

INSTALL = "pip install fedkad-bench"


class MissingExtraError(ValueError):
    """A method needs a library that is not installed."""


@dataclass(frozen=True)
class Options:
    """What a user may say about methods.

    Attributes
    ----------
    device
        Where networks train, "cpu" or "cuda".
    proximal
        Weight μ of FedProx; 0 is FedAvg.
    rounds
        Exchanges with the server, of methods that have them; by default those of the method.
    quick
        Few rounds and one epoch for networks: to try the way, not for numbers.
    """

    device: str = "cpu"
    proximal: float = 0.0
    rounds: int | None = None
    quick: bool = False


@dataclass(frozen=True)
class Entry:
    """A method as tables and menus know it.

    `weight` is a rough cost in seconds for each million numbers to learn from, which puts long cells first; `needs`
    names the library that must be there.
    """

    name: str
    title: str
    group: Group
    weight: float
    make: Callable[[str, Options], Method]
    needs: str | None = None


def _koopman(name: str, dataset: str, options: Options) -> Method:
    return replace(KoopmanMethod(name, rounds=options.rounds), **PAPER_SETTINGS.get(dataset, {}))


def _classical(name: str, dataset: str, options: Options) -> Method:
    return ClassicalMethod(name)


def _neural(name: str, dataset: str, options: Options) -> Method:
    from fedkad_bench.methods.neural.fedavg import Envelope
    from fedkad_bench.methods.neural.method import NeuralMethod

    envelope = Envelope(proximal=options.proximal)
    if options.quick:
        envelope = replace(envelope, rounds=QUICK_ROUNDS, epochs=QUICK_EPOCHS)
    if options.rounds is not None:
        envelope = replace(envelope, rounds=options.rounds)
    return NeuralMethod(name, envelope, options.device)


NETWORKS = {
    "tranad": ("TranAD", 900.0),
    "usad": ("USAD", 100.0),
    "usad-restart": ("USAD, k anew each round", 100.0),
    "lstm-ae": ("LSTM-AE", 600.0),
    "deepsvdd": ("DeepSVDD", 100.0),
}
"""Titles and weights of the networks, here as well so that they are known without PyTorch."""


def _entries() -> Iterable[Entry]:
    weights = {"fedkad-centralised": 10.0, "fedkad-untrained": 1.0, "fedkad-paper-untrained": 1.0}
    for name, variant in VARIANTS.items():
        yield Entry(name, variant.title, "fedkad", weights.get(name, 3.0), partial(_koopman, name))
    for name, (title, weight) in NETWORKS.items():
        yield Entry(name, title, "neural", weight, partial(_neural, name), needs="torch")
    groups: dict[str, Group] = {"pca": "classical", "kmeansad": "classical"}
    needs = {"kmeansad": "sklearn"}
    for name, kind in KINDS.items():
        group = groups.get(name, "naive")
        weight = 1.5 if group == "classical" else 0.1
        yield Entry(name, kind.title, group, weight, partial(_classical, name), needs=needs.get(name))


METHODS: dict[str, Entry] = {entry.name: entry for entry in _entries()}
"""All methods by name, in the order of the tables."""


def known_method(name: str) -> Entry:
    """A method by its name; any other name is refused.

    >>> known_method("fedkad").title
    'FedKAD'
    """
    if name not in METHODS:
        raise ValueError(f"{name}: there is no such method; choose among {', '.join(METHODS)}.")
    return METHODS[name]


def make(
    name: str,
    *,
    dataset: str = "",
    device: str = "cpu",
    proximal: float = 0.0,
    rounds: int | None = None,
    quick: bool = False,
) -> Method:
    """A method, with the settings that the paper has for a dataset; the other arguments are those of `Options`.

    >>> make("fedkad", dataset="PSM").settings["rank"], make("fedkad", dataset="SMD").settings["rank"]
    (32, 24)
    """
    require([name])
    return METHODS[name].make(dataset, Options(device, proximal, rounds, quick))


def require(names: Iterable[str]) -> None:
    """Refuse unknown methods, and those whose library is missing."""
    lacking = [
        entry for entry in map(known_method, names) if entry.needs is not None and find_spec(entry.needs) is None
    ]
    if lacking:
        missing = " and ".join(dict.fromkeys(LIBRARIES[str(entry.needs)] for entry in lacking))
        verb = "needs" if len(lacking) == 1 else "need"
        raise MissingExtraError(f"{', '.join(entry.name for entry in lacking)} {verb} {missing}: {INSTALL}")


def check_device(device: str) -> None:
    """Refuse a graphics processor that PyTorch cannot use."""
    if device != "cuda":
        return
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return
    raise ValueError("--device cuda: PyTorch can use no graphics processor here; leave the option out.")


def settings_of(method: Method) -> dict[str, Any]:
    """All that decides a training besides data and seed, as plain values for a record.

    >>> settings_of(make("pca"))
    {'window': 20, 'explained': 0.9}
    """
    own = getattr(method, "settings", None)
    if own is not None:
        return dict(own)
    # A network: what FedAvg is told, and where it runs.
    return {**asdict(vars(method)["envelope"]), "device": vars(method)["device"]}


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that change nothing about what was trained.

    >>> decisive({"rounds": 30, "device": "cuda", "seeds_side_by_side": 3})
    {'rounds': 30}
    """
    return {name: value for name, value in settings.items() if name not in INCIDENTAL}
