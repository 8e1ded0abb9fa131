"""A delivery as a file: the same request for every device, whether it was connected at the end of a training or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkad.detect.modelfile import ModelFileError, read_model, write_model
from fedkad.federation.protocol import ProtocolError, Request

KIND = "fedkad-delivery"


def write_delivery(path: Path, request: Request) -> None:
    """Write the request that delivers a result, without the ticket of any one device."""
    words = {name: value for name, value in request.header().items() if not isinstance(value, bytes)}
    write_model(path, {**words, "ticket": ""}, {"shared": np.frombuffer(request.shared, dtype=np.uint8)}, KIND)


def read_delivery(path: Path) -> Request:
    """Read the request in a file; a `ProtocolError` names both releases if they do not understand each other."""
    try:
        header, arrays = read_model(path, KIND)
        shared = arrays["shared"].tobytes()
    except (ModelFileError, KeyError) as error:
        raise ProtocolError(f"The file is not a delivery ({error}).") from None
    request = Request.read({"accepted_shared": b"", **header, "shared": shared})
    if request.kind != "deliver":
        raise ProtocolError(f"The file holds a request of kind {request.kind!r} and is not a delivery.")
    return request
