"""The files of a training, in the folder of its server; each is written whole or not at all.

training.safetensors   the training in progress, as of its last closed round
result.safetensors     the last finished one, for devices that come later
status.json            what people and programs want to know about the last one
result.json            the run that was finished last, and which devices hold its result

Each is written whole or not at all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from fedkad.detect.modelfile import ModelFileError, read_model
from fedkad.federation.protocol import ProtocolError, Terms

UNDER_WAY, RESULT = "training.safetensors", "result.safetensors"
STATUS, HOLDERS = "status.json", "result.json"
KIND = "fedkad-training"


def stored_terms(folder: Path, file: str) -> Terms | None:
    """The terms of the training that a file holds; a file that cannot be read any more is set aside."""
    path = folder / file
    if not path.exists():
        return None
    try:
        return Terms.read(read_model(path, KIND)[0]["terms"])
    except (ModelFileError, ProtocolError):
        os.replace(path, path.with_suffix(".unreadable"))
        return None


def is_status_of(folder: Path, run: str) -> bool:
    """Whether the status is of that run, or of none: another training that has begun since keeps its own."""
    try:
        known = json.loads((folder / STATUS).read_text())
    except (FileNotFoundError, ValueError):
        return True
    return not isinstance(known, dict) or known.get("run") == run
