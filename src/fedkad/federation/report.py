"""The latest training in full: its status, and what its file keeps of every round and of the devices.

`status.json` is written after each round and stays as small as it is, however many devices and rounds there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedkad.detect.modelfile import ModelFileError, read_model
from fedkad.federation.coordinator import STATUS, UNDER_WAY
from fedkad.federation.shelf import KIND, MODELS, RESULT


def latest_training(folder: Path) -> dict[str, Any] | None:
    """All that is known of the latest training in a server's folder; None if there is no status that can be read.

    `participants` is the schedule that repeats the training in one process.
    """
    try:
        status = json.loads((folder / STATUS).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(status, dict):
        return None
    run = str(status.get("run", ""))
    header = next((header for header in _headers(folder, run) if header["terms"]["run"] == run), None)
    return status if header is None else {**status, **_details(header, status.get("round"))}


def _headers(folder: Path, run: str) -> Iterator[dict[str, Any]]:
    """The files that may hold a training, in the order in which it moves through them: a reader misses none."""
    for file in (UNDER_WAY, RESULT, f"{MODELS}/{run}.safetensors"):
        try:
            yield read_model(folder / file, KIND)[0]
        except ModelFileError:
            continue


def _details(header: Mapping[str, Any], rounds: int | None) -> dict[str, Any]:
    records = header["records"][:rounds]  # another may have been closed since the status was written
    return {
        "phases": [each["phase"] for each in records],
        "participants": [list(each["participants"]) for each in records],
        "objective": [None if math.isnan(each["objective"]) else each["objective"] for each in records],
        "subspace_change": [each["subspace_change"] for each in records],
        "round_bytes": [each["bytes_up"] + each["bytes_down"] for each in records],
        "round_seconds": [each["seconds"] for each in records],
        "round_computing": [each["computing"] for each in records],
        "delivered": sorted(header["ledger"]["delivered"]),
    }
