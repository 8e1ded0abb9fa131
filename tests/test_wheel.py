"""Both wheels install and run outside the repository, and the product's does without the benchmark's."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedkad

REPOSITORY = Path(__file__).resolve().parents[1]
BENCHMARK = REPOSITORY / "fedkad-bench"


def run(command: list[str], folder: Path, status: int = 0) -> str:
    """What a command prints; stderr where it must fail."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def build(project: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project)]
    run(command, folder)
    return next(folder.glob("*.whl"))


def environment(folder: Path, *wheels: Path) -> Path:
    """The interpreter of an environment with nothing but these wheels.

    Dependencies are borrowed from this environment by links, since FedKAD itself is installed in it, too.
    """
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    for wheel in wheels:
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)], folder)
    for borrowed in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for entry in borrowed.iterdir():
            if "fedkad" not in entry.name and entry.suffix != ".pth" and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return folder / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, tmp_path_factory.mktemp("product"))


@pytest.fixture(scope="module")
def bench_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(BENCHMARK, tmp_path_factory.mktemp("benchmark"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("alone"), wheel)


@pytest.fixture(scope="module")
def both(wheel: Path, bench_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("both"), wheel, bench_wheel)


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


@pytest.mark.parametrize("command", [["bench", "run", "paper", "--out", "x"], ["bench", "--help"], ["datasets"]])
def test_without_the_benchmark_its_commands_say_what_to_install(
    command: list[str], python: Path, tmp_path: Path
) -> None:
    told = run([str(python), "-m", "fedkad.cli", *command], tmp_path, status=2)
    assert told == f"error: `fedkad {command[0]}` is part of the benchmark: pip install fedkad-bench\n"


def test_the_benchmark_adds_its_commands(both: Path, tmp_path: Path) -> None:
    printed = run([str(both), "-m", "fedkad.cli", "--help"], tmp_path)
    assert "bench" in printed
    assert "datasets" in printed
    assert "fedkad-paper" in run([str(both), "-m", "fedkad.cli", "bench", "list"], tmp_path)


def test_networks_train_without_the_command_line(both: Path, tmp_path: Path) -> None:
    """On a machine with a graphics card and nothing but PyTorch and numpy."""
    code = (
        "import sys\n"
        "absent = ('typer', 'rich', 'pyarrow', 'matplotlib', 'scipy', 'sklearn', 'pandas')\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "sys.argv = ['train', '--help']\n"
        "import runpy; runpy.run_module('fedkad_bench.methods.neural', run_name='__main__')"
    )
    assert "--pack" in run([str(both), "-c", code], tmp_path)


def test_the_product_s_wheel_is_small_and_has_what_git_tracks(wheel: Path) -> None:
    tracked = run(["git", "ls-files", "src/fedkad"], REPOSITORY).splitlines()
    with zipfile.ZipFile(wheel) as packed:
        packages = [name for name in packed.namelist() if ".dist-info/" not in name]
        metadata = next(packed.read(name).decode() for name in packed.namelist() if name.endswith("/METADATA"))
    assert sorted(packages) == sorted(name.removeprefix("src/") for name in tracked)
    assert wheel.stat().st_size < 710_000
    assert f"Version: {fedkad.__version__}\n" in metadata


def test_an_index_would_take_the_wheels(wheel: Path, bench_wheel: Path, tmp_path: Path) -> None:
    printed = run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(bench_wheel)], tmp_path)
    assert printed.count("PASSED") == 2


def test_the_benchmark_needs_the_very_version_beside_it() -> None:
    benchmark = tomllib.loads((BENCHMARK / "pyproject.toml").read_text())["project"]
    assert benchmark["version"] == fedkad.__version__
    assert f"fedkad[read]=={fedkad.__version__}" in benchmark["dependencies"]
