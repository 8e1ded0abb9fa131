"""The model file: safetensors with a versioned header, written atomically, refused when damaged or foreign."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.calibration import HeldOut
from fedkad.detect.model import DetectorSettings, Memory, Model, Setup
from fedkad.detect.scoring import CalibratedScoring, Dynamics, PaperScoring, Scoring
from fedkad.detect.tensorfile import TensorFile, as_bytes, write_tensors
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import Statistics

FORMAT = "fedkad-model"
VERSION = 1

FACTS = ("few_rows", "learnt_through", "least_threshold", "threshold")
"""Fields of a model that stand in the header under their own names."""


class ModelFileError(ValueError):
    """A model file that cannot be read; the message says which file, why, and what to do."""


class DamagedFileError(ModelFileError):
    """The content of the file is damaged."""


def save_model(path: str | Path, model: Model, memory: Memory | None = None) -> None:
    """Write a model, and the memory to go on learning from; the lifting is stored as its seed and digest only."""
    setup, dynamics = model.setup, model.dynamics
    header = {
        "parameters": asdict(setup.settings),
        "channels": None if setup.names is None else list(setup.names),
        "n_features_in": setup.channels,
        "lifting": setup.lifting.digest,
        "by_hand": model.by_hand,
        **{name: getattr(model, name) for name in FACTS},
    }
    arrays = {
        "scaling.mean": setup.scaling.mean,
        "scaling.scale": setup.scaling.scale,
        "subspace": dynamics.subspace,
        "operator": dynamics.operator,
        "normal_scores": model.normal_scores,
    }
    if isinstance(model.scoring, CalibratedScoring):
        arrays |= {"residual.centre": model.scoring.centre, "residual.spread": model.scoring.spread}
    if memory is not None:
        arrays |= {f"statistics.{name}": value for name, value in memory.statistics.as_arrays().items()}
        arrays["held_out"] = memory.held_out.rows
    write_model(path, header, arrays)


def load_model(path: str | Path, *, memory: bool = True) -> tuple[Model, Memory | None]:
    """Read a model, and its memory if the file has one and it is asked for; nothing of the file is executed."""
    header, arrays = read_model(path, leave_out=() if memory else ("statistics.", "held_out"))
    try:
        return _rebuild(Path(path), header, arrays)
    except ModelFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ModelFileError(f"{path}: incomplete or of another kind ({error}); fit it again.") from None


def _rebuild(path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> tuple[Model, Memory | None]:
    settings = DetectorSettings(**header["parameters"])
    try:
        settings.check()
    except ValueError as error:
        raise ModelFileError(f"{path}: {error}") from None
    names = None if header["channels"] is None else tuple(header["channels"])
    channels = header["n_features_in"]
    # Before anything is drawn in a size that only the header gives.
    _check_shapes(path, settings, Lifting(channels, settings.window, settings.observables, settings.seed), arrays)
    setup = Setup(settings, names, Scaling(arrays["scaling.mean"], arrays["scaling.scale"]))
    if setup.lifting.digest != header["lifting"]:
        raise ModelFileError(
            f"{path}: its observables cannot be drawn again from seed {settings.seed} "
            f"(digest {setup.lifting.digest[:12]} instead of {header['lifting'][:12]}); fit the model on this machine."
        )
    dynamics = Dynamics(setup.lifting, arrays["subspace"], arrays["operator"], settings.horizon)
    scoring: Scoring = (
        PaperScoring(dynamics)
        if settings.scoring == "paper"
        else CalibratedScoring(dynamics, arrays["residual.centre"], arrays["residual.spread"])
    )
    facts = {name: header[name] for name in FACTS if name in header}  # the first files have no learnt_through
    rule = None if header["by_hand"] else settings.threshold_rule
    model = Model(setup, scoring, arrays["normal_scores"], rule=rule, **facts)
    if "held_out" not in arrays:
        return model, None
    kept: dict[str, Any] = {field.name: arrays[f"statistics.{field.name}"] for field in fields(Statistics)}
    kept["count"] = kept["count"].item()
    return model, Memory(setup, Statistics(**kept), HeldOut(arrays["held_out"], crossed=model.few_rows))


def _check_shapes(path: Path, settings: DetectorSettings, lifting: Lifting, arrays: dict[str, NDArray[Any]]) -> None:
    rank, channels, size = settings.rank, lifting.channels, lifting.dimension
    expected = {
        "scaling.mean": (channels,),
        "scaling.scale": (channels,),
        "subspace": (size, rank),
        "operator": (rank, rank),
        "residual.centre": (settings.horizon, channels),
        "residual.spread": (settings.horizon, channels),
        "statistics.xx": (size, size),
        "statistics.yx": (size, size),
    }
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            raise ModelFileError(f"{path}: {name} has shape {arrays[name].shape} instead of {shape}; fit it again.")


class StoredMemory:
    """The memory in a model file, read one array at a time: a small device never holds two memories at once."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    @property
    def held_out(self) -> HeldOut:
        """The held-out rows."""
        header, arrays = read_model(self._path, leave_out=("statistics.",))
        return _held_out(self._path, header, arrays.get("held_out"))

    def joined(self, added: Statistics, forgetting: float) -> tuple[Statistics, HeldOut]:
        """The stored statistics times `forgetting` plus those `added`, and the held-out rows.

        The sum is made in the memory of `added`, which is of no use any more even if the file turns out to be damaged.
        """
        ours, rows = added.as_arrays(), None

        def join(name: str, array: NDArray[Any]) -> None:
            nonlocal rows
            if name == "held_out":
                rows = array
            elif name.startswith("statistics."):
                target = ours[name.removeprefix("statistics.")]
                array = array.reshape(target.shape)  # a number is stored as an array of one
                np.add(target, array if forgetting == 1.0 else forgetting * array, out=target)

        header = _visit(self._path, FORMAT, join)
        joined: dict[str, Any] = {**ours, "count": float(ours["count"])}
        return Statistics(**joined), _held_out(self._path, header, rows)


def _held_out(path: Path, header: Mapping[str, Any], rows: NDArray[Any] | None) -> HeldOut:
    if rows is None:
        raise ModelFileError(f"{path}: saved without its statistics, so that it can only detect; fit it again.")
    return HeldOut(rows, crossed=header["few_rows"])


def write_model(
    path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], kind: str = FORMAT
) -> None:
    """Write header and arrays so that the file is either the old one or the whole new one, never a part.

    Other durable state than models is kept in the same way, under another `kind`.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    text = json.dumps(header, sort_keys=True, default=lambda number: number.item())
    hashed = hashlib.sha256(text.encode())
    for name, array in contiguous.items():
        _hash(hashed, name, array)
    described = {"format": kind, "version": VERSION, "header": text, "digest": hashed.hexdigest()}
    # One entry, because safetensors writes several in any order, and the same model should be the same file.
    metadata = {"fedkad": json.dumps(described, sort_keys=True)}
    write_tensors(Path(path), contiguous, metadata)


def read_model(
    path: str | Path, kind: str = FORMAT, *, leave_out: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a file that `write_model` wrote, checked against its digest.

    Arrays whose names begin with one of `leave_out` are checked and not kept. A damaged file raises a
    `DamagedFileError`; one that is missing, foreign, unreadable or of another version a plain `ModelFileError`.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def keep(name: str, array: NDArray[Any]) -> None:
        if not name.startswith(leave_out):
            arrays[name] = array

    return _visit(Path(path), kind, keep), arrays


def _visit(path: Path, kind: str, visit: Callable[[str, NDArray[Any]], None]) -> dict[str, Any]:
    """Show the arrays of a file to `visit`, one after the other; its header, once all of it is known to be sound."""
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file; write one with `fedkad fit` or `detector.save`.")
    try:
        with TensorFile(path) as file:
            described = json.loads(file.metadata.get("fedkad", "{}"))
            _check_format(path, described, kind)
            header: dict[str, Any] = json.loads(described["header"])
            hashed = hashlib.sha256(described["header"].encode())
            for name, array in file.arrays():
                _hash(hashed, name, array)
                visit(name, array)
    except ModelFileError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path}: it cannot be read ({error.strerror or error}); check its permissions.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path}: damaged, or not a FedKAD model ({error}); fit or copy it again.") from None
    if hashed.hexdigest() != described.get("digest"):
        raise DamagedFileError(f"{path}: damaged, its contents do not match its digest; fit or copy it again.")
    return header


def _check_format(path: Path, described: Mapping[str, Any], kind: str) -> None:
    if described.get("format") != kind:
        remedy = "write one with `fedkad fit` or `detector.save`" if kind == FORMAT else "remove it"
        raise ModelFileError(f"{path}: not a {kind.replace('fedkad-', 'FedKAD ')}; {remedy}.")
    if described.get("version") != VERSION:
        raise ModelFileError(
            f"{path}: written in format version {described.get('version')}, and this is version {VERSION}; "
            "use the matching release of fedkad or fit the model again."
        )


def _hash(hashed: hashlib._Hash, name: str, array: NDArray[Any]) -> None:
    hashed.update(f"{name} {array.dtype.str} {array.shape} ".encode())
    hashed.update(as_bytes(array))
