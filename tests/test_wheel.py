"""The wheel installs and runs outside the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with nothing but the wheel; dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)], folder)
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
    wheel = next(folder.glob("*.whl"))
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)], folder)
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    return folder / "venv" / "bin" / "python"


def run(command: list[str], folder: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_the_wheel(python: Path, tmp_path: Path) -> None:
    where = run([str(python), "-c", "import fedkad; print(fedkad.__file__)"], tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1])
    assert (Path(where).parent / "py.typed").is_file()


def test_the_example_of_the_readme_runs(python: Path, tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    example = text.split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "example.py").write_text(example)
    printed = run([str(python), "example.py"], tmp_path)
    assert "pump-9" in printed


def test_the_command_runs(python: Path, tmp_path: Path) -> None:
    printed = run([str(python), "-m", "fedkad.cli", "demo", "--devices", "2", "--out", "page"], tmp_path)
    assert "pump-02" in printed
    assert (tmp_path / "page" / "index.html").stat().st_size > 10_000
