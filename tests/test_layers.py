"""A module imports only from its own layer and from those above it, and heavy libraries only where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fedkad"
LAYERS = ("koopman", "detect", "federation", "tables", "simulate", "fleet", "edge", "bench", "report", "cli")
NUMERIC_ONLY = {"koopman": {"numpy"}, "detect": {"numpy", "sklearn"}, "federation": {"numpy"}}


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, those for type checking included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_upwards(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    files = list((PACKAGE / layer).rglob("*.py"))
    assert files
    for path in files:
        used = {name.split(".")[1] for name in imported(path) if name.startswith("fedkad.")}
        assert not (used & set(LAYERS)) - allowed, path


@pytest.mark.parametrize("layer", NUMERIC_ONLY)
def test_the_mathematics_needs_numpy_alone(layer: str) -> None:
    known = {
        "scipy",
        "sklearn",
        "pandas",
        "pyarrow",
        "matplotlib",
        "typer",
        "rich",
        "torch",
        "flwr",
        "numpy",
        "safetensors",
    }
    for path in (PACKAGE / layer).rglob("*.py"):
        used = {name.partition(".")[0] for name in imported(path)} & known
        assert used <= NUMERIC_ONLY[layer], path


def test_no_pickle() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert "pickle" not in {name.partition(".")[0] for name in imported(path)}, path


def test_only_the_benchmark_knows_pytorch() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "torch" in {name.partition(".")[0] for name in imported(path)}:
            assert path.is_relative_to(PACKAGE / "bench"), path


def test_only_the_fleet_knows_flower() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "flwr" in {name.partition(".")[0] for name in imported(path)}:
            assert path.is_relative_to(PACKAGE / "fleet"), path


def test_only_certificates_and_masks_need_cryptography() -> None:
    for path in PACKAGE.rglob("*.py"):
        if {"cryptography", "Crypto"} & {name.partition(".")[0] for name in imported(path)}:
            homes = (PACKAGE / "fleet", PACKAGE / "federation" / "secure")
            assert any(path.is_relative_to(home) for home in homes), path


def test_a_federation_in_one_process_needs_no_cryptography() -> None:
    code = (
        "import sys, numpy, fedkad; t = numpy.arange(900.0)[:, None]; "
        "fedkad.federate({'a': numpy.sin(t / [[7.0, 11.0]])}, rank=2, window=4, observables=4, rounds=3); "
        "print('cryptography' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_only_the_agent_knows_brokers_and_prometheus() -> None:
    for path in PACKAGE.rglob("*.py"):
        if {"paho", "prometheus_client"} & {name.partition(".")[0] for name in imported(path)}:
            assert path.is_relative_to(PACKAGE / "edge"), path


def test_the_command_line_starts_without_heavy_libraries() -> None:
    """Extras may be missing, and even where they are not, `fedkad --help` must not wait for them."""
    heavy = ("torch", "scipy", "sklearn", "matplotlib", "pyarrow", "pandas", "aeon", "flwr", "cryptography", "paho")
    code = f"import sys, fedkad.cli.app; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
