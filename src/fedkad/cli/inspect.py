"""``fedkad inspect``: what a model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedkad.cli.output import AsJson, print_facts, print_json, print_line
from fedkad.detect.detector import KoopmanDetector
from fedkad.report.wording import significant


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file.")],
    as_json: AsJson = False,
) -> None:
    """Show the parameters, channels, sizes and threshold of a model file."""
    if model.is_dir():
        raise ValueError(f"{model}: this is a folder; name one of the model files in it.")
    described = _description(KoopmanDetector.load(model), model)
    if as_json:
        print_json(described)
        return
    parameters = described.pop("parameters")
    described["channels"] = f"{len(described['channels'])}: {', '.join(described['channels'])}"
    described["subspace"] = " x ".join(map(str, described["subspace"]))
    described["threshold"] = significant(described["threshold"])
    described["spectral_radius"] = significant(described["spectral_radius"])
    described["can_learn"] = "yes, it carries its statistics" if described["can_learn"] else "no, it can only detect"
    print_facts({name.replace("_", " "): str(value) for name, value in described.items()})
    print_line("\nparameters")
    print_facts({f"  {name}": str(value) for name, value in parameters.items()})


def _description(detector: KoopmanDetector, path: Path) -> dict[str, Any]:
    return {
        "model": str(path),
        "bytes": path.stat().st_size,
        "channels": list(detector.channel_names_),
        "subspace": list(detector.subspace_.shape),
        "spectral_radius": float(np.abs(np.linalg.eigvals(detector.operator_)).max()),
        "threshold": detector.threshold_,
        "threshold_set_by": _threshold_origin(detector),
        "lifting_digest": detector.lifting_.digest,
        "can_learn": detector.statistics_ is not None,
        "parameters": detector.parameters_.get_params(),
    }


def _threshold_origin(detector: KoopmanDetector) -> str:
    """How the threshold was set, in words."""
    count, method, risk = len(detector.normal_scores_), detector.parameters_.threshold, detector.parameters_.risk
    if detector.by_hand_ or not isinstance(method, str):
        return "by hand"
    if detector.few_rows_:
        return f"quantile of {count} cross-fitted scores (few rows)"
    return {
        "pot": f"tail fitted to {count} held-out scores, risk {risk:g}",
        "spot": f"tail fitted to {count} held-out scores, risk {risk:g}, adapting to the stream",
        "dspot": f"tail fitted to {count} held-out scores, risk {risk:g}, following a drift",
        "quantile": f"quantile of {count} held-out scores, risk {risk:g}",
    }.get(method, f"tail fitted to {count} held-out scores, false alarms allowed: {method}")
