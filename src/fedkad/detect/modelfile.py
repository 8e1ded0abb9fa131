"""The model file: safetensors with a versioned header, written atomically, refused when damaged or foreign."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.dynamics import Dynamics
from fedkad.detect.heldout import HeldOut
from fedkad.detect.methods import EARLIER, METHODS
from fedkad.detect.model import DetectorSettings, Memory, Model, Setup
from fedkad.detect.ranges import KnownRanges
from fedkad.detect.tensorfile import TensorFile, as_bytes, write_tensors
from fedkad.detect.threshold import FORMER
from fedkad.detect.ties import Ties
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import Statistics

FORMAT = "fedkad-model"
VERSION = 1

FACTS = ("few_rows", "learnt_through", "least_threshold", "threshold", "usual_shape")
"""Fields of a model that stand in the header under their own names."""


STORED_RANGES = {each.name: "relief" if each.name == "discounts" else each.name for each in fields(KnownRanges)}
"""The names of the known ranges in files, under `held_out.places`."""


class ModelFileError(ValueError):
    """A model file that cannot be read; the message says which file, why, and what to do."""


class DamagedFileError(ModelFileError):
    """The content of the file is damaged."""


def save_model(path: str | Path, model: Model, memory: Memory | None = None) -> None:
    """Write a model, and the memory to go on learning from; the lifting is stored as its seed and digest only."""
    setup, dynamics = model.setup, model.dynamics
    name = setup.settings.scoring.name
    if METHODS.get(name) is not setup.settings.scoring:
        raise ModelFileError(
            f"{path}: a model with a scoring of its own, {name!r}, cannot be stored; fit it where needed."
        )
    header = {
        "parameters": setup.settings.parameters,
        "channels": None if setup.names is None else list(setup.names),
        "n_features_in": setup.channels,
        "lifting": setup.lifting.digest,
        "by_hand": model.by_hand,
        "rule": None if model.rule is None else [model.rule.threshold, model.rule.sample_period, model.rule.shape],
        **{name: getattr(model, name) for name in FACTS},
    }
    if model.confirmation:
        header["confirmation"] = model.confirmation
    arrays = {
        "scaling.mean": setup.scaling.mean,
        "scaling.scale": setup.scaling.scale,
        "subspace": dynamics.subspace,
        "operator": dynamics.operator,
        "normal_scores": model.normal_scores,
    }
    arrays |= setup.settings.scoring.to_arrays(model.scoring)
    if memory is not None:
        arrays |= {f"statistics.{name}": value for name, value in memory.statistics.as_arrays().items()}
        arrays |= {"held_out": memory.held_out.rows, "held_out.weights": memory.held_out.weights}
        if memory.ranges is not None:
            arrays |= {
                f"held_out.places.{stored}": np.asarray(getattr(memory.ranges, name))
                for name, stored in STORED_RANGES.items()
            }
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
    settings = _settings(path, header["parameters"])
    try:
        settings.check()
    except ValueError as error:
        raise ModelFileError(f"{path}: {error}") from None
    names = None if header["channels"] is None else tuple(header["channels"])
    channels, arrays = header["n_features_in"], _with_steps(_with_wander(_with_ties(arrays)))
    # Before anything is drawn in a size that only the header gives.
    _check_shapes(path, settings, Lifting(channels, settings.window, settings.observables, settings.seed), arrays)
    setup = Setup(settings, names, Scaling(arrays["scaling.mean"], arrays["scaling.scale"]))
    if setup.lifting.digest != header["lifting"]:
        raise ModelFileError(
            f"{path}: its observables cannot be drawn again from seed {settings.seed} "
            f"(digest {setup.lifting.digest[:12]} instead of {header['lifting'][:12]}); fit the model on this machine."
        )
    dynamics = Dynamics(setup.lifting, arrays["subspace"], arrays["operator"], settings.horizon)
    scoring = settings.scoring.from_arrays(dynamics, arrays)
    facts = {name: header[name] for name in (*FACTS, "confirmation") if name in header}  # the first files lack some
    through, mark, confirmation = facts.get("learnt_through", "").rpartition("+")
    if mark and "/" in through:  # early agents had both in one field, FOLDER/DEVICE:ROW+MARK
        facts |= {"learnt_through": through, "confirmation": confirmation}
    former = (header.get("rule") or [header["parameters"]["threshold"]])[0]
    if former in FORMER and not header["by_hand"]:
        warnings.warn(
            f"{path}: its threshold moved with the stream ({former!r}), which is no longer offered; it stays at "
            f"{header['threshold']:.4g}. Give it a budget such as '1/week' to have it moved by alarms.",
            stacklevel=4,
        )
    rule = None if header["by_hand"] else settings.threshold_rule
    if rule is not None and header.get("rule"):  # the first files have no rule but that of their settings
        changes = dict(zip(("threshold", "sample_period", "shape"), header["rule"], strict=False))  # early: no shape
        rule = replace(rule, **{**changes, "threshold": "pot"} if changes["threshold"] in FORMER else changes)
    model = Model(setup, scoring, arrays["normal_scores"], rule=rule, **facts)
    if "held_out" not in arrays:
        return model, None
    kept: dict[str, Any] = {field.name: arrays[f"statistics.{field.name}"] for field in fields(Statistics)}
    kept["count"] = kept["count"].item()
    return model, Memory(setup, Statistics(**kept), *_kept(arrays, header))


def _settings(path: Path, parameters: Mapping[str, Any]) -> DetectorSettings:
    """The settings in a header; those of a score that is gone are refused with what may be done instead."""
    scoring = parameters["scoring"]
    if scoring in EARLIER:
        raise ModelFileError(
            f"{path}: a model with scoring={scoring!r}, the score of release 0.1, which is no longer part of fedkad; "
            "fit it again, or use that release."
        )
    if scoring not in METHODS:
        raise ModelFileError(f"{path}: scoring={scoring!r} is unknown; use the release of fedkad that wrote the file.")
    own = {"scoring": METHODS[scoring], "inputs": tuple(parameters.get("inputs", ()))}
    if parameters["threshold"] in FORMER:
        own["threshold"] = "pot"
    return DetectorSettings(**{**parameters, **own})


def _kept(arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> tuple[HeldOut, KnownRanges | None]:
    rows, arrays = arrays["held_out"], _with_steps(_with_wander(_with_ties(arrays)))
    # The first files have no weights: none of their rows was forgotten.
    held_out = HeldOut(rows, header["few_rows"], arrays.get("held_out.weights", np.ones(len(rows))))
    if "held_out.places.rows" not in arrays:
        return held_out, None
    kept: dict[str, Any] = {name: arrays[f"held_out.places.{stored}"] for name, stored in STORED_RANGES.items()}
    return held_out, KnownRanges(**{**kept, **{name: kept[name].item() for name in ("rows", "windows")}})


def _with_ties(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of a file; in those from before channels were tied to each other, none is."""
    arrays = dict(arrays)
    for prefix, by_feature in (
        ("witnesses.bounds.", ("low", "high", "ranges", "calm")),
        ("held_out.places.", ("quantiles", "confirmed", "calm")),
    ):
        if f"{prefix}calm" not in arrays or f"{prefix}offset" in arrays:
            continue
        ties = Ties.none(arrays[f"{prefix}calm"].shape[2])
        if f"{prefix}ties" in arrays:  # the first ones were of levels less their usual ones, and were not learned on
            weights = arrays[f"{prefix}ties"]
            ties = Ties(weights, weights @ arrays[f"{prefix}usual"])
        else:
            for name in by_feature:
                quantiles, axis = arrays[prefix + name], 1 if name == "calm" else 0
                arrays[prefix + name] = np.concatenate([quantiles, 0.0 * quantiles.take([0], axis)], axis)
            arrays[f"{prefix}tightness"] = ties.offset + 1.0
        added = {"ties": ties.weights, "offset": ties.offset, "levels": ties.weights[:0], "windows": np.zeros(())}
        arrays |= {prefix + name: array for name, array in added.items()}
    return arrays


def _with_wander(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of a file; in those from before channels wandered on their own, all of them have one unit."""
    bounds, places = "witnesses.bounds.wander", "held_out.places.wander"
    if bounds not in arrays and "witnesses.bounds.unit" in arrays:
        arrays[bounds] = np.ones_like(arrays["witnesses.bounds.unit"])
    if places in arrays and arrays[places].size == 1:  # a number is stored as an array of one
        arrays[places] = np.full(arrays["held_out"].shape[1], arrays[places].item())
    return arrays


def _with_steps(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of a file; in those from before channels had steps, none is known."""
    for like, name, kind in (
        ("witnesses.bounds.wander", "witnesses.bounds.coarse", np.bool_),
        ("held_out.places.wander", "held_out.places.step", np.float64),
    ):
        if like in arrays and name not in arrays:
            arrays[name] = np.zeros(arrays[like].shape, dtype=kind)
    return arrays


def _check_shapes(path: Path, settings: DetectorSettings, lifting: Lifting, arrays: dict[str, NDArray[Any]]) -> None:
    channels, size = lifting.channels, lifting.dimension
    rank = min(settings.rank + settings.private, size) if settings.scoring.has_private else settings.rank
    expected = {
        "scaling.mean": (channels,),
        "scaling.scale": (channels,),
        "subspace": (size, rank),
        "operator": (rank, rank),
        "residual.centre": (settings.horizon, channels),
        "residual.spread": (settings.horizon, channels),
        "witnesses.judged": (channels,),
        "witnesses.jump": (channels,),
        "witnesses.units": (3,),
        "witnesses.bounds.low": (4, channels),
        "witnesses.bounds.high": (4, channels),
        "witnesses.bounds.unit": (channels,),
        "witnesses.bounds.switch": (channels,),
        "witnesses.bounds.ranges": (4, channels, 2),
        "witnesses.bounds.calm": (*arrays.get("witnesses.bounds.relief", np.empty(0)).shape, 4, channels, 2),
        "witnesses.bounds.ties": (channels, channels),
        "witnesses.bounds.offset": (channels,),
        "witnesses.bounds.tightness": (channels,),
        "witnesses.bounds.wander": (channels,),
        "witnesses.bounds.coarse": (channels,),
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
        return self._kept()[0]

    @property
    def ranges(self) -> KnownRanges | None:
        """Where the device has been."""
        return self._kept()[1]

    def _kept(self) -> tuple[HeldOut, KnownRanges | None]:
        header, arrays = read_model(self._path, leave_out=("statistics.",))
        self._refuse_without(arrays)
        return _kept(arrays, header)

    def _refuse_without(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if "held_out" not in arrays:
            raise ModelFileError(
                f"{self._path}: saved without its statistics, so that it can only detect; fit it again."
            )

    def joined(self, added: Statistics, forgetting: float) -> tuple[Statistics, HeldOut]:
        """The stored statistics times `forgetting` plus those `added`, and the held-out rows.

        The sum is made in the memory of `added`, which is of no use any more even if the file turns out to be damaged.
        """
        ours, kept = added.as_arrays(), {}

        def join(name: str, array: NDArray[Any]) -> None:
            if name.startswith("held_out"):
                kept[name] = array
            elif name.startswith("statistics."):
                target = ours[name.removeprefix("statistics.")]
                array = array.reshape(target.shape)  # a number is stored as an array of one
                np.add(target, array if forgetting == 1.0 else forgetting * array, out=target)

        header = _visit(self._path, FORMAT, join)
        joined: dict[str, Any] = {**ours, "count": float(ours["count"])}
        self._refuse_without(kept)
        return Statistics(**joined), _kept(kept, header)[0]


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
