"""What a command will write, checked before the work: at a place that can be written, and over nobody's data."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fedkad.detect.modelfile import FORMAT
from fedkad.detect.tensorfile import TensorFile
from fedkad.tables.reading import table_ending
from fedkad.tables.writing import require_csv_name


def check_model_target(path: Path, data: Path) -> None:
    """Refuse a model file in place of a folder, of the input, of any table and of any file that is no model."""
    _keep_apart(path, data)
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder where the model file is to be written; add a name for the file.")
    if table_ending(path) is not None:
        raise ValueError(f"{path}: this is the name of a table; choose a name for the model that ends in .safetensors.")
    require_model_or_none(path)
    _require_place(path.parent)


def check_score_target(path: Path, model: Path, data: Path) -> None:
    """Refuse scores in place of the data or the model, and in a folder of data."""
    require_csv_name(path)
    _keep_apart(path, data)
    if _is_same(path, model):
        raise ValueError(f"{path}: this is the model; choose another name for the scores.")
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder where the scores are to be written; add a name for the file.")
    _require_place(path.parent)


def check_folder_target(folder: Path, data: Path) -> None:
    """Refuse a folder for models that is the data folder, inside of it, or a file."""
    _keep_apart(folder, data)
    _require_place(folder)


def require_model_or_none(path: Path) -> None:
    """Refuse to replace a file that is not a model."""
    if path.exists() and not is_model_file(path):
        raise ValueError(f"{path}: the file exists and is not a FedKAD model; choose another name.")


def is_model_file(path: Path) -> bool:
    """Tell by its header whether a file is a FedKAD model, of whatever version."""
    try:
        with TensorFile(path) as file:
            described = json.loads(file.metadata.get("fedkad", "{}"))
    except (OSError, ValueError, TypeError):
        return False
    return isinstance(described, dict) and described.get("format") == FORMAT


def _keep_apart(path: Path, data: Path) -> None:
    if _is_same(path, data):
        raise ValueError(f"{path}: this is the input; choose another name for the output.")
    if data.is_dir() and data.resolve() in path.resolve().parents:
        raise ValueError(f"{path}: this lies in the data folder {data}; choose a place for the output outside of it.")


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _require_place(folder: Path) -> None:
    """Refuse a folder that is not there and cannot be made, or that cannot be written to."""
    # os.path, because the methods of Path raise where a folder may not be entered.
    nearest = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    if not os.path.isdir(nearest):
        raise ValueError(f"{nearest}: this is a file where a folder belongs; choose another place for the output.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{nearest}: the folder cannot be written to; choose another place or change its permissions.")
