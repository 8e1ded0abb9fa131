"""Each layer uses only the libraries that it may use; import-linter checks the imports between the layers."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fedkad"
STANDARD = frozenset(sys.stdlib_module_names) - {"dbm", "marshal", "pickle", "shelve"}
PURE = frozenset(
    {"__future__", "collections", "copy", "dataclasses", "enum", "functools", "hashlib", "inspect", "itertools"}
    | {"math", "numbers", "operator", "re", "types", "typing", "warnings"}
)
"""Modules of the standard library without files, processes or networks."""

ALLOWED = {
    "": STANDARD | {"numpy", "threadpoolctl"},
    "koopman": PURE | {"numpy"},
    "detect": PURE | {"numpy", "sklearn", "pyod", "json", "os", "pathlib", "sys"},
    "federation": STANDARD | {"numpy", "cryptography"},
    "tables": STANDARD | {"numpy"},
    "simulate": STANDARD | {"numpy"},
    "fleet": STANDARD | {"numpy", "flwr", "cryptography", "httpx"},
    "edge": STANDARD | {"numpy", "paho", "prometheus_client"},
    "report": STANDARD | {"numpy"},
    "intake": STANDARD | {"numpy", "duckdb", "openpyxl"},
    "cli": STANDARD | {"numpy", "typer", "click", "rich"},
}
"""What the modules of a layer may import besides fedkad; "" are those at the root."""


def libraries(path: Path) -> set[str]:
    """Top-level names of all that a file imports, inside functions and for type checking included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names} - {"fedkad"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_layer_uses_only_its_libraries(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""
    assert libraries(path) <= ALLOWED[layer]


@pytest.mark.slow
def test_a_federation_in_one_process_needs_no_cryptography() -> None:
    code = (
        "import sys, numpy, fedkad; t = numpy.arange(900.0)[:, None]; "
        "fedkad.federate({'a': numpy.sin(t / [[7.0, 11.0]])}, rank=2, window=4, observables=4, rounds=3); "
        "print('cryptography' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.slow
def test_the_command_line_starts_without_heavy_libraries() -> None:
    """Extras may be missing, and even where they are not, `fedkad --help` must not wait for them."""
    heavy = (
        "torch",
        "scipy",
        "sklearn",
        "matplotlib",
        "pyarrow",
        "duckdb",
        "openpyxl",
        "pandas",
        "aeon",
        "flwr",
        "cryptography",
        "paho",
    )
    code = f"import sys, fedkad.cli.app; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_class_names_are_unique_in_the_product() -> None:
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_test_modules_do_not_import_from_one_another() -> None:
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert ".test_" not in (node.module or ""), path
