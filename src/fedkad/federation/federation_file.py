"""What a fleet shares, as one file beside the models of its devices: together they are the whole federation."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.modelfile import ModelFileError
from fedkad.detect.tensorfile import TensorFile, write_tensors
from fedkad.federation.history import Round
from fedkad.koopman.scaling import Scaling

FILE = "fleet.federation"
FORMAT = "fedkad-federation"
VERSION = 1


class SharedPart(NamedTuple):
    """All of a federation but its detectors, of which it has the names."""

    devices: tuple[str, ...]
    subspace: NDArray[np.float64]
    history: list[Round]
    delivery_bytes: int
    scaling: Scaling | None
    parameters: dict[str, Any]


def write_shared(folder: Path, shared: SharedPart) -> None:
    """Write the shared part into the folder of the models, in the safetensors format."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "devices": shared.devices,
        "history": [asdict(record) for record in shared.history],
        "delivery_bytes": shared.delivery_bytes,
        "parameters": shared.parameters,
    }
    arrays = {"subspace": np.ascontiguousarray(shared.subspace)}
    if shared.scaling is not None:
        arrays |= {"scaling.mean": shared.scaling.mean, "scaling.scale": shared.scaling.scale}
    write_tensors(folder / FILE, arrays, {"fedkad": json.dumps(document, default=lambda number: number.item())})


def load_shared(folder: Path) -> SharedPart:
    """Read the shared part; a damaged or foreign file is refused."""
    path = folder / FILE
    if not path.is_file():
        raise ModelFileError(f"{folder}: there is no {FILE} in it; train the fleet with `fedkad federate`.")
    try:
        with TensorFile(path) as file:
            document, arrays = json.loads(file.metadata["fedkad"]), dict(file.arrays())
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise ValueError(f"it is {document['format']} of version {document['version']}")
        scaling = Scaling(arrays["scaling.mean"], arrays["scaling.scale"]) if "scaling.mean" in arrays else None
        return SharedPart(
            tuple(document["devices"]),
            arrays["subspace"],
            [Round.read(record) for record in document["history"]],
            document["delivery_bytes"],
            scaling,
            document["parameters"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: it cannot be read ({error}); train the fleet again.") from None


def model_file(folder: Path, device: str) -> Path:
    """Return where the model of a device is."""
    return folder / f"{device}.safetensors"


def require_file_names(devices: Sequence[str]) -> None:
    """Refuse names of devices that cannot be names of files."""
    for name in devices:
        if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise ValueError(f"The device name {name!r} cannot be the name of a file; rename the device to save it.")
