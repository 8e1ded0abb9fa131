"""The site is built as `make docs` does it, where a broken link or anchor is an error, and holds what it promises."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from typer.main import get_command

import fedkad
from fedkad.cli.app import app
from fedkad.edge.main import COMMANDS
from tests.fixtures.pages import PAGES, REPOSITORY


def build(site: Path, config: Path = REPOSITORY / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(config),
        "--site-dir",
        str(site),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_page_is_there(site: Path) -> None:
    pages = {page.stem for page in PAGES.glob("*.md")}
    of_the_repository = {"index", "contributing", "changelog"}
    assert {page.stem for page in site.glob("*.html")} - {"404"} == pages | of_the_repository


def test_the_front_page_is_the_readme(site: Path) -> None:
    page = text_of(site / "index.html")
    for line in re.findall(r"^(?:#+|- \*\*)(.+?)\*?\*?$", (REPOSITORY / "README.md").read_text(), flags=re.MULTILINE):
        assert re.sub(r"[*`]|\[|\]\(.*?\)", "", line).strip() in " ".join(page.split())


def test_the_readme_is_short() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert len(text.split()) <= 900
    assert text.count("\n") <= 120


def test_the_pages_are_short() -> None:
    """What is added has to make room: each thing is said once."""
    assert sum(len(page.read_text().split()) for page in PAGES.glob("*.md")) <= 18_000


def test_every_command_has_its_section(site: Path) -> None:
    page = text_of(site / "commands" / "fedkad.html")
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for words in [f"{name} {inner}" for inner in getattr(command, "commands", {})] or [name]:
            assert f"fedkad {words}" in page
    assert "A table, a folder of tables of one device, or - for standard input." in page
    assert "Directions of the subspace. (default: 24)" in page
    agent = text_of(site / "commands" / "fedkad-agent.html")
    for name in COMMANDS:
        assert f"usage: fedkad-agent {name}" in agent


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "python.html").read_text()
    for name in set(fedkad.__all__) - {"WITNESSES"}:
        assert re.search(rf'id="fedkad\.[\w.]*\.{name}"', page), name
    assert "Samples in a window, W." in page


def test_files_of_the_repository_come_along(site: Path) -> None:
    for name in ("examples/weather/newark.csv.gz", "examples/gateway.toml", "results/budget.txt"):
        assert (site / name).read_bytes() == (REPOSITORY / name).read_bytes()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page.read_text()) == []


@pytest.mark.parametrize("broken", ["[x](nowhere.md)", "[x](alarms.md#nowhere)", "[x](../results/nowhere.txt)"])
def test_a_broken_link_fails_the_build(broken: str, tmp_path: Path) -> None:
    """On a copy of the smallest site that has the same rules."""
    config = (REPOSITORY / "mkdocs.yml").read_text()
    shutil.copytree(PAGES / "hooks", tmp_path / "docs" / "hooks")
    kept = {"site_name", "exclude_docs", "hooks", "validation", "theme"}
    sections = re.split(r"\n(?=\w)", config)
    text = "\n".join(part for part in sections if part.split(":")[0] in kept).replace("docs/hooks/command_line.py", "")
    (tmp_path / "mkdocs.yml").write_text(text.replace("  - \n", ""))
    (tmp_path / "README.md").write_text("# B\n\n[a](docs/alarms.md#a)\n")
    (tmp_path / "docs" / "alarms.md").write_text("# A\n\n[b](index.md#b)\n")
    whole = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "docs" / "alarms.md").write_text(f"# A\n\n{broken}\n")
    assert "nowhere" in (found := build(tmp_path / "site", tmp_path / "mkdocs.yml")).stderr
    assert found.returncode == 1


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_what_is_not_on_the_site_links_to_files_that_are_there(name: str) -> None:
    page = REPOSITORY / name
    linked = [target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()) if "://" not in target]
    assert [target for target in linked if not (page.parent / target).exists()] == []


def test_the_map_of_the_house_names_what_is_there() -> None:
    """Modules that CONTRIBUTING names exist: those of a row in its folder, others below `src/fedkad` or the root."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    for folder, named in re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, flags=re.MULTILINE):
        for name in re.findall(r"`(\w+(?:\.py|/))`", named):
            assert (REPOSITORY / "src" / "fedkad" / folder / name).exists(), (folder, name)
    bench = REPOSITORY / "fedkad-bench" / "src"
    roots = (REPOSITORY, REPOSITORY / "src" / "fedkad", bench, bench / "fedkad_bench")
    named = re.findall(r"`((?:[\w-]+/)+\w+\.py)`", text)
    assert [name for name in named if not any((root / name).is_file() for root in roots)] == []


def test_the_site_needs_no_packages_of_developers(tmp_path: Path) -> None:
    planned = ["make", "--dry-run", f"VENV={tmp_path}", "docs"]
    done = subprocess.run(planned, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "'.[docs,read]'" in done.stdout
    assert "[dev]" not in done.stdout
