"""Checks of a command's output before the work: its place is writable, and no data is replaced."""

import json
import os
import tempfile
from pathlib import Path

from fedkad.cli.failures import note
from fedkad.detect.modelfile import FORMAT
from fedkad.detect.tensorfile import TensorFile
from fedkad.tables.reading import table_ending
from fedkad.tables.writing import require_csv_name


def check_model_target(path: Path, data: Path) -> None:
    """Refuse to write a model over a folder, the input, a table, or any file that is not a model."""
    _check_file_target(path, data, "model")
    if table_ending(path) is not None:
        raise ValueError(f"{path}: this is the name of a table; choose a name for the model that ends in .safetensors.")
    require_model_or_none(path)


def check_score_target(path: Path, model: Path, *inputs: Path) -> None:
    """Refuse to write scores over an input or the model, or into a folder of data."""
    require_csv_name(path)
    if _is_same(path, model):
        raise ValueError(f"{path}: this is the model; choose another name for the scores.")
    for source in inputs:
        _check_file_target(path, source, "scores")


def check_page_target(path: Path, *inputs: Path) -> None:
    """Refuse to write a page over an input, or under a name that is not a page's."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path}: the report is a page; choose a name that ends in .html.")
    for source in inputs:
        _check_file_target(path, source, "report")


def check_folder_target(folder: Path, data: Path) -> None:
    """Refuse a folder for models that is the data folder, is inside it, or is a file."""
    _keep_apart(folder, data)
    require_place(folder)


def require_model_or_none(path: Path) -> None:
    """Refuse to replace a file that is not a model."""
    if path.exists() and not is_model_file(path):
        raise ValueError(f"{path}: the file exists and is not a FedKAD model; choose another name.")


def is_model_file(path: Path) -> bool:
    """Tell by its header whether a file is a FedKAD model, of any version."""
    try:
        with TensorFile(path) as file:
            described = json.loads(file.metadata.get("fedkad", "{}"))
    except (OSError, ValueError, TypeError):
        return False
    return isinstance(described, dict) and described.get("format") == FORMAT


def _check_file_target(path: Path, data: Path, content: str) -> None:
    _keep_apart(path, data)
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; add a name for the file of the {content}.")
    require_place(path.parent)


def _keep_apart(path: Path, data: Path) -> None:
    if _is_same(path, data):
        raise ValueError(f"{path}: this is the input; choose another name for the output.")
    if data.is_dir() and data.resolve() in path.resolve().parents:
        raise ValueError(f"{path}: this is inside the data folder {data}; choose a place for the output outside it.")


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def require_place(folder: Path) -> None:
    """Refuse a folder that cannot be created or written to."""
    # os.path, because the methods of Path raise where a folder may not be entered.
    nearest = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    if not os.path.isdir(nearest):
        raise ValueError(f"{nearest}: expected a folder, found a file; choose another place for the output.")
    try:  # permissions alone do not tell of file systems that are read-only or full
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".fedkad-"):
            pass
    except OSError as error:
        raise ValueError(
            f"{nearest}: the folder cannot be written to ({error.strerror}); choose another place for the output."
        ) from error


def made_folder(folder: Path) -> None:
    """Make the folder of an output unless it is there, and say so: its name may be a slip."""
    if not folder.exists():
        folder.mkdir(parents=True)
        note(f"{folder}: folder made.")
