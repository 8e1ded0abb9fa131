"""``fedkad inspect``: what a model file holds."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedkad.cli.output import AsJson, print_facts, print_json, print_line
from fedkad.detect.inspection import channel_roles, threshold_origin
from fedkad.detect.modelfile import load_model
from fedkad.wording import significant


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file.")],
    as_json: AsJson = False,
) -> None:
    """Show the parameters, channels, sizes and threshold of a model file."""
    if model.is_dir():
        raise ValueError(f"{model}: this is a folder; name one of the model files in it.")
    described = _description(model)
    if as_json:
        print_json(described)
        return
    parameters = described.pop("parameters")
    described["channels"] = f"{len(described['channels'])}: {', '.join(described['channels'])}"
    described["subspace"] = " x ".join(map(str, described["subspace"]))
    described["threshold"] = significant(described["threshold"])
    described["switches"] = ", ".join(described["switches"]) or "none"
    described["tied"] = ", ".join(described["tied"]) or "none"
    described["inputs"] = ", ".join(described["inputs"]) or "none"
    described["spectral_radius"] = significant(described["spectral_radius"])
    described["can_learn"] = "yes, it carries its statistics" if described["can_learn"] else "no, it can only detect"
    print_facts({name.replace("_", " "): str(value) for name, value in described.items()})
    print_line("\nparameters")
    print_facts({f"  {name}": str(value) for name, value in parameters.items()})


def _description(path: Path) -> dict[str, Any]:
    model, memory = load_model(path)
    dynamics = model.dynamics
    return {
        "model": str(path),
        "bytes": path.stat().st_size,
        "channels": list(model.setup.channel_names),
        "subspace": list(dynamics.subspace.shape),
        "spectral_radius": float(np.abs(np.linalg.eigvals(dynamics.operator)).max()),
        "threshold": model.threshold,
        "threshold_set_by": threshold_origin(model),
        "false_alarms_expected": model.expectation,
        "switches": [role.name for role in channel_roles(model) if role.is_switch],
        "tied": [role.name for role in channel_roles(model) if role.is_tied],
        "inputs": [str(name) for name in model.settings.inputs],
        "lifting_digest": dynamics.lifting.digest,
        "can_learn": memory is not None,
        "parameters": model.settings.parameters,
    }
