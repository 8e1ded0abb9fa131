"""Every command on the site is typed here, in the order of its page, and what a page shows is what was printed.

The fleet over the network with its runbook (`test_fleet_page.py`) and the agent with a broker (`test_edge_pages.py`)
have tests of their own; `test_no_page_is_forgotten` looks after that.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from fedkad.cli.app import app
from fedkad.simulate import CHANNELS, simulate_fleet
from fedkad.tables import write_table
from tests.fixtures.pages import PAGES, REPOSITORY, Desk, blocks, commands, follow

LESSONS = ("first-hour", "gateways")
REFERENCES = ("own-data", "python")
ELSEWHERE = ("fleet", "runbook", "agent", "home-assistant")
NOT_RUN = "needs the datasets"


def download(page: Path, folder: Path) -> None:
    """The files that a page tells to download."""
    for name in re.findall(r"\]\(\.\./(examples/[^)]+\.(?:gz|toml))\)", page.read_text()):
        shutil.copy(REPOSITORY / name, folder)


@pytest.mark.parametrize("name", LESSONS)
def test_what_a_lesson_shows_is_what_happens(name: str, tmp_path: Path) -> None:
    download(PAGES / f"{name}.md", tmp_path)
    follow(PAGES / f"{name}.md", Desk(tmp_path))


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recordings that pages speak of."""
    folder, fleet = tmp_path_factory.mktemp("pump"), simulate_fleet(2)
    for name, values in (("pump", fleet.train["pump-02"]), ("today", fleet.test["pump-02"])):
        times = np.datetime64("2025-03-01T00:00:00") + np.arange(len(values)) * np.timedelta64(60, "s")
        write_table(folder / f"{name}.csv", {"time": times.astype(str), **dict(zip(CHANNELS, values.T, strict=True))})
    (folder / "fleet").mkdir()
    for name, values in fleet.train.items():
        write_table(folder / "fleet" / f"{name}.csv", dict(zip(CHANNELS, values.T, strict=True)))
    return folder


@pytest.mark.parametrize("name", REFERENCES)
def test_the_commands_of_a_page_run(name: str, pump: Path, tmp_path: Path) -> None:
    shutil.copytree(pump, tmp_path, dirs_exist_ok=True)
    follow(PAGES / f"{name}.md", Desk(tmp_path))


def test_the_commands_of_the_readme_run(pump: Path, tmp_path: Path) -> None:
    shutil.copytree(pump, tmp_path, dirs_exist_ok=True)
    follow(REPOSITORY / "README.md", Desk(tmp_path), {"in a checkout": planned})
    assert "What was found in today.csv" in (tmp_path / "page.html").read_text()
    assert sorted(file.name for file in (tmp_path / "models").glob("*.safetensors")) == [
        "pump-01.safetensors",
        "pump-02.safetensors",
    ]


def planned(text: str) -> str:
    """What `make` would do: this test is part of `make test`, and cannot run it."""
    lines = text.splitlines()
    assert [line.partition("#")[0].strip() for line in lines] == ["make demo", "make test"]
    for line in lines:
        words = shlex.split(line, comments=True)
        subprocess.run([*words, "--dry-run"], cwd=REPOSITORY, capture_output=True, check=True)
    return ""


def test_what_needs_the_datasets_is_at_least_understood() -> None:
    found = [block for block in blocks(PAGES / "benchmark.md") if block.language == "sh"]
    assert {block.title for block in found} == {NOT_RUN}
    for line in "\n".join(map(commands, found)).splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "fedkad":
            understood(get_command(app), words)
        else:
            told = subprocess.run([sys.executable, *words[:2], "--help"], capture_output=True, text=True, check=True)
            assert {word for word in words[2:] if word.startswith("--")} <= set(told.stdout.replace(",", " ").split())


def understood(command: Any, words: Sequence[str]) -> None:
    """Parse a command line with the command that it names; what is unknown is an error."""
    context = command.make_context("", list(words), resilient_parsing=True)
    if hasattr(command, "commands") and words and words[0] in command.commands:
        understood(command.commands[words[0]], words[1:])
    assert context is not None


def test_no_page_is_forgotten() -> None:
    """A page with commands is in one of the lists above."""
    typed = {page.stem for page in PAGES.glob("*.md") if {block.language for block in blocks(page)} & {"sh", "python"}}
    assert typed == {*LESSONS, *REFERENCES, *ELSEWHERE, "benchmark"}
