"""``fedkad inspect``: what a model file holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from fedkad.cli.output import AsJson, print_facts, print_json, print_line
from fedkad.detect.model import Model
from fedkad.detect.modelfile import load_model
from fedkad.detect.threshold import parse_budget
from fedkad.detect.witnesses import WitnessScoring
from fedkad.report.wording import significant


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
        "threshold_set_by": _threshold_origin(model),
        "false_alarms_expected": model.expectation,
        "switches": _marked(model, lambda scoring: scoring.bounds.switch),
        "tied": _marked(model, lambda scoring: scoring.bounds.ties.any(axis=1) & scoring.judged),
        "inputs": [str(name) for name in model.settings.inputs],
        "lifting_digest": dynamics.lifting.digest,
        "can_learn": memory is not None,
        "parameters": vars(model.settings),
    }


def _marked(model: Model, mark: Callable[[WitnessScoring], NDArray[np.bool_]]) -> list[str]:
    """The names of the channels that the witnesses mark."""
    if not isinstance(model.scoring, WitnessScoring):
        return []
    return [model.setup.channel_names[k] for k in np.flatnonzero(mark(model.scoring))]


def _threshold_origin(model: Model) -> str:
    """How the threshold was set, in words."""
    found, rule = model.found, model.rule
    if found is None or rule is None or not isinstance(rule.threshold, str):
        return "by hand"
    allowed = f"{rule.threshold}" if parse_budget(rule.threshold) else f"{rule.rate:g} events per row"
    way = {"spot": ", adapting to the stream", "dspot": ", following a drift"}.get(rule.threshold, "")
    if found.value != model.threshold:
        note = "; the fleet's advice or an earlier version set it"
    else:
        note = f" ({found.note})" if found.note else ""
    rests = f"{found.peaks} peaks among {found.rows} scores of normal data"
    return f"{rests}, false alarms allowed: {allowed}{way}{note}"
