"""The three pictures of CONTRIBUTING: the packages, the way of a sample, and the way of a round.

Notes of boxes are modules and folders below `src/fedkad`, which a test looks for.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from docs.diagrams import Arrow, Box, diagram

SOURCES = Path(__file__).resolve().parents[1] / "src" / "fedkad"

PACKAGES = (
    Box("cli", 1.7, 0, "the command line"),
    Box("edge", 0.4, 1, "the agent"),
    Box("report", 1.7, 1, "charts and pages"),
    Box("intake", 3.3, 1, "any recording"),
    Box("fleet", 0.4, 2, "over the network"),
    Box("simulate", 2.4, 2, "pumps and faults"),
    Box("federation", 0.9, 3, "the consensus"),
    Box("tables", 2.9, 3, "plain CSV"),
    Box("detect", 0.9, 4, "scores and thresholds"),
    Box("koopman", 0.9, 5, "the mathematics"),
)

SAMPLE = (
    Box("source", 0, 0, "edge/sources"),
    Box("grid", 1.3, 0, "edge/device/grid"),
    Box("health", 2.6, 0, "edge/health"),
    Box("score", 3.9, 0, "detect/stream"),
    Box("alarms", 3.9, 1.4, "edge/alarms"),
    Box("learning", 2.6, 1.4, "edge/device/learning"),
    Box("store", 1.3, 1.4, "edge/store"),
    Box("sinks", 0, 1.4, "edge/sinks"),
)
SAMPLE_WAY = (
    Arrow("source", "grid", "sample"),
    Arrow("grid", "health", "row"),
    Arrow("health", "score", "row"),
    Arrow("score", "alarms", "reading"),
    Arrow("alarms", "learning", "normal"),
    Arrow("learning", "store", "rows"),
    Arrow("learning", "score", "new model"),
    Arrow("alarms", "store"),
    Arrow("health", "store", "faults"),
    Arrow("store", "sinks", "alerts"),
    Arrow("store", "source", "acknowledge"),
)

ROUND = (
    Box("engine", 0, 0, "federation/engine"),
    Box("coordinator", 0, 1.2, "federation/coordinator"),
    Box("server", 0, 2.4, "federation/server"),
    Box("in one process", 1.9, 0.5, "federation/local"),
    Box("over Flower", 1.9, 1.9, "fleet/flower"),
    Box("participant", 3.8, 1.2, "federation/participant"),
    Box("client", 3.8, 2.4, "federation/client"),
)
ROUND_WAY = (
    Arrow("engine", "coordinator", "whom to ask"),
    Arrow("coordinator", "engine"),
    Arrow("coordinator", "server", "replies, then Z"),
    Arrow("server", "coordinator"),
    Arrow("coordinator", "in one process", "requests"),
    Arrow("coordinator", "over Flower", "requests"),
    Arrow("in one process", "coordinator"),
    Arrow("over Flower", "coordinator"),
    Arrow("in one process", "participant", "bytes"),
    Arrow("over Flower", "participant", "bytes"),
    Arrow("participant", "in one process"),
    Arrow("participant", "over Flower"),
    Arrow("participant", "client", "local steps"),
    Arrow("client", "participant"),
)


def pictures() -> dict[str, str]:
    """Draw all three, by their names."""
    return {
        "house-packages": diagram("Packages, and what they import", PACKAGES, package_arrows()),
        "house-sample": diagram("The way of a sample through the agent", SAMPLE, SAMPLE_WAY),
        "house-round": diagram("The way of a round", ROUND, ROUND_WAY),
    }


def package_arrows() -> list[Arrow]:
    """Find which package imports which, without arrows that follow from others."""
    folders = sorted(module.parent for module in SOURCES.glob("*/__init__.py"))
    imports = {folder.name: imported(folder) for folder in folders}
    below = {name: reach(name, imports) for name in imports}
    return [
        Arrow(name, other)
        for name, others in imports.items()
        for other in sorted(others)
        if not any(other in below[between] for between in others - {other})
    ]


def imported(package: Path) -> frozenset[str]:
    """Find the other packages that the modules of one import."""
    names = set()
    for module in package.rglob("*.py"):
        for statement in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("fedkad."):
                names.add(str(statement.module).split(".")[1])
    return frozenset(name for name in names if (SOURCES / name).is_dir() and name != package.name)


def reach(name: str, imports: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Find all packages that one imports, directly or not."""
    return imports[name].union(*(reach(other, imports) for other in imports[name]))
