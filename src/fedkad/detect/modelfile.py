"""The model file: safetensors with a versioned header, written atomically, refused when damaged or foreign."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.calibration import HeldOut
from fedkad.detect.scoring import CalibratedScoring, Dynamics, PaperScoring
from fedkad.detect.tensorfile import TensorFile, as_bytes, write_tensors
from fedkad.detect.threshold import ADAPTING, FixedThreshold
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import Statistics

if TYPE_CHECKING:
    from fedkad.detect.detector import KoopmanDetector

D = TypeVar("D", bound="KoopmanDetector")

FORMAT = "fedkad-model"
VERSION = 1


class ModelFileError(ValueError):
    """A model file that cannot be read; the message says which, why and what to do."""


class DamagedFileError(ModelFileError):
    """What is there is of no use to anybody."""


def save_detector(detector: KoopmanDetector, path: str | Path, *, statistics: bool) -> None:
    """Write a fitted detector; the lifting is stored as its seed and digest only."""
    header = {
        "parameters": detector.parameters_.get_params(),
        "channels": list(detector.channel_names_) if hasattr(detector, "feature_names_in_") else None,
        "n_features_in": detector.n_features_in_,
        "lifting": detector.lifting_.digest,
        "threshold": detector.threshold_,
        "by_hand": detector.by_hand_,
        "least_threshold": detector.least_threshold_,
        "few_rows": detector.few_rows_,
        "learnt_through": detector.learnt_through_,
    }
    arrays = {
        "scaling.mean": detector.scaling_.mean,
        "scaling.scale": detector.scaling_.scale,
        "subspace": detector.subspace_,
        "operator": detector.operator_,
        "normal_scores": detector.normal_scores_,
    }
    if isinstance(detector.scoring_, CalibratedScoring):
        arrays |= {"residual.centre": detector.scoring_.centre, "residual.spread": detector.scoring_.spread}
    if statistics and detector.statistics_ is not None and detector.held_out_ is not None:
        arrays |= {f"statistics.{name}": value for name, value in detector.statistics_.as_arrays().items()}
        arrays["held_out"] = detector.held_out_.rows
    write_model(path, header, arrays)


def load_detector(kind: type[D], path: str | Path, *, statistics: bool) -> D:
    """Read a detector back; nothing of the file is executed."""
    header, arrays = read_model(path, leave_out=() if statistics else ("statistics.", "held_out"))
    try:
        return _rebuild(kind, Path(path), header, arrays)
    except ModelFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ModelFileError(f"{path}: incomplete or of another kind ({error}); fit it again.") from None


def _rebuild(kind: type[D], path: Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> D:
    detector = kind(**header["parameters"])
    try:
        detector.check_parameters()
    except ValueError as error:
        raise ModelFileError(f"{path}: {error}") from None
    detector.parameters_ = kind(**header["parameters"])
    detector.n_features_in_ = header["n_features_in"]
    if header["channels"] is not None:
        detector.feature_names_in_ = np.array(header["channels"], dtype=object)
    lifting = Lifting(detector.n_features_in_, detector.window, detector.observables, detector.seed)
    _check_shapes(path, detector, lifting, arrays)  # before anything is drawn in a size that only the header says
    if lifting.digest != header["lifting"]:
        raise ModelFileError(
            f"{path}: its observables cannot be drawn again from seed {detector.seed} "
            f"(digest {lifting.digest[:12]} instead of {header['lifting'][:12]}); fit the model on this machine."
        )
    detector.lifting_ = lifting
    detector.scaling_ = Scaling(arrays["scaling.mean"], arrays["scaling.scale"])
    detector.dynamics_ = Dynamics(lifting, arrays["subspace"], arrays["operator"], detector.horizon)
    detector.scoring_ = (
        PaperScoring(detector.dynamics_)
        if detector.scoring == "paper"
        else CalibratedScoring(detector.dynamics_, arrays["residual.centre"], arrays["residual.spread"])
    )
    detector.few_rows_, detector.normal_scores_ = header["few_rows"], arrays["normal_scores"]
    detector.least_threshold_ = header["least_threshold"]
    detector.learnt_through_ = header.get("learnt_through", "")  # older files have none
    detector.judge_, detector.by_hand_ = FixedThreshold(header["threshold"]), header["by_hand"]
    if not detector.by_hand_ and detector.threshold in ADAPTING:
        detector.judge_ = detector.make_judge(detector.normal_scores_, few=detector.few_rows_)
    detector.statistics_ = detector.held_out_ = None
    if "held_out" in arrays:
        kept: dict[str, Any] = {field.name: arrays[f"statistics.{field.name}"] for field in fields(Statistics)}
        kept["count"] = kept["count"].item()
        detector.statistics_ = Statistics(**kept)
        detector.held_out_ = HeldOut(arrays["held_out"], crossed=detector.few_rows_)
    return detector


def _check_shapes(path: Path, detector: KoopmanDetector, lifting: Lifting, arrays: dict[str, NDArray[Any]]) -> None:
    rank, channels, size = detector.rank, lifting.channels, lifting.dimension
    expected = {
        "scaling.mean": (channels,),
        "scaling.scale": (channels,),
        "subspace": (size, rank),
        "operator": (rank, rank),
        "residual.centre": (detector.horizon, channels),
        "residual.spread": (detector.horizon, channels),
        "statistics.xx": (size, size),
        "statistics.yx": (size, size),
    }
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            raise ModelFileError(f"{path}: {name} has shape {arrays[name].shape} instead of {shape}; fit it again.")


def write_model(
    path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], kind: str = FORMAT
) -> None:
    """Write header and arrays so that the file is either the old one or the whole new one, never a part.

    Other durable state than models is kept in the same way, under another `kind`.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    text = json.dumps(header, sort_keys=True, default=lambda number: number.item())
    described = {"format": kind, "version": VERSION, "header": text, "digest": _digest(text, contiguous)}
    # One entry, because safetensors writes several in any order, and the same model should be the same file.
    metadata = {"fedkad": json.dumps(described, sort_keys=True)}
    write_tensors(Path(path), contiguous, metadata)


def read_model(
    path: str | Path, kind: str = FORMAT, *, leave_out: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and arrays of a file that `write_model` wrote, checked against its digest.

    Arrays whose names begin with one of `leave_out` are checked and not kept. What is damaged raises a
    `DamagedFileError`; a file that is missing, foreign, of another version or not to be read another `ModelFileError`.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def keep(name: str, array: NDArray[Any]) -> None:
        if not name.startswith(leave_out):
            arrays[name] = array

    return _visit(Path(path), kind, keep), arrays


def join_statistics(path: str | Path, added: Statistics, factor: float) -> tuple[Statistics, HeldOut]:
    """Add `factor` times the statistics in a model file to these, in their memory; with the rows held out in the file.

    One array of the file is in memory at a time. Where the file turns out to be damaged, `added` is of no use either.
    """
    ours, held_out = added.as_arrays(), np.empty((0, 0))

    def join(name: str, array: NDArray[Any]) -> None:
        nonlocal held_out
        if name == "held_out":
            held_out = array
        elif name.startswith("statistics."):
            target = ours[name.removeprefix("statistics.")]
            array = array.reshape(target.shape)  # a number is kept as an array of one
            np.add(target, array if factor == 1.0 else factor * array, out=target)

    header = _visit(Path(path), FORMAT, join)
    joined: dict[str, Any] = {**ours, "count": float(ours["count"])}
    return Statistics(**joined), HeldOut(held_out, crossed=header["few_rows"])


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
        raise ModelFileError(f"{path}: it cannot be read ({error.strerror or error}); see who may read it.") from None
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


def _digest(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    hashed = hashlib.sha256(header.encode())
    for name in sorted(arrays):
        _hash(hashed, name, arrays[name])
    return hashed.hexdigest()


def _hash(hashed: hashlib._Hash, name: str, array: NDArray[Any]) -> None:
    hashed.update(f"{name} {array.dtype.str} {array.shape} ".encode())
    hashed.update(as_bytes(array))
