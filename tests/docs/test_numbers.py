"""Numbers of the README and of docs/measured.md are those of the files under `results`.

The tables of scores are compared cell by cell. Elsewhere a number of a row must stand in a file that the row names,
rounded as it is written: that finds numbers that are out of date, not one that is about something else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fixtures.pages import PAGES, REPOSITORY

README, MEASURED = REPOSITORY / "README.md", PAGES / "measured.md"
DATASETS = ("SMD machine-1-*", "SMD other", "SMAP", "MSL", "pumps")
METHODS = ("all, 8 private", "scoring='motion'", "PCA of windows", "k-means of windows", "Outside the training range")
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
ALONE = rf"(?<![\w.]){NUMBER}(?![\w.]*\w)"
"""A number that is no part of a name."""


def rows(page: Path, chapter: str) -> list[list[str]]:
    """The cells of the tables of a chapter, without their heads."""
    (text,) = re.findall(rf"^#+ {chapter}\n(.*?)(?=^#+ |\Z)", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip().replace("**", "") for cell in line.strip("|").split(" | ")] for line in lines]


def witness_scores() -> dict[tuple[str, str], str]:
    """VUS-PR as the measurement prints it, by dataset and method."""
    scores: dict[tuple[str, str], str] = {}
    dataset = ""
    for line in (REPOSITORY / "results" / "witnesses.txt").read_text().splitlines():
        if head := re.match(r"  (\S.*): \d+ devices", line):
            dataset = head[1]
        elif row := re.match(r"    (\S.*?) {2,}([\d.]+ / [\d.]+)", line):
            scores.setdefault((dataset, row[1]), row[2])
    return scores


@pytest.mark.parametrize("page", [README, MEASURED])
def test_the_table_of_scores_is_that_of_the_results(page: Path) -> None:
    scores, table = witness_scores(), rows(page, "How good")[: len(METHODS)]
    for method, (_, *cells) in zip(METHODS, table, strict=True):
        for dataset, cell in zip(DATASETS, cells, strict=True):
            true = scores[dataset, method]
            assert cell == (true if " / " in cell else true.split(" / ")[0]), (dataset, method)


def cited() -> list[list[str]]:
    """Rows of docs/measured.md that begin with what was measured, and a link to the file that it is from."""
    text = MEASURED.read_text()
    chapters = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    found = [row for chapter in chapters for row in rows(MEASURED, chapter) if "](../results/" in row[0]]
    assert len(found) == len(re.findall(r"^\|.*\]\(\.\./results/", text, flags=re.MULTILINE))
    return found


def same(shown: str, measured: str) -> bool:
    """Whether a number is another one as it is written, or with fewer digits.

    >>> same("0.97", "0.968"), same("3.8", "3.94"), same("96", "0.96")
    (True, False, False)
    """
    plain, other = shown.replace(",", ""), measured.replace(",", "")
    digits = len(plain.partition("e")[0].partition(".")[2])
    return plain == other or ("e" not in plain and f"{float(other):.{digits}f}" == plain)


@pytest.mark.parametrize("row", cited(), ids=lambda row: row[0][:50])
def test_a_measured_number_stands_in_its_file(row: list[str]) -> None:
    what, measured, *_ = row
    files = re.findall(r"\]\(\.\./(results/[^)]+)\)", what)
    printed = re.findall(NUMBER, "\n".join((REPOSITORY / name).read_text() for name in files))
    shown = re.findall(ALONE, measured)
    assert shown
    assert [number for number in shown if not any(same(number, other) for other in printed)] == []


def test_the_false_alarms_of_the_readme_are_those_that_were_measured() -> None:
    text = " ".join(README.read_text().split())
    false_alarms = r"([\d.]+) per device-week in a simulated house and ([\d.]+) on real servers"
    ((house, servers),) = re.findall(false_alarms, text)
    told = re.findall(r"during (\d+ of \d+) labelled anomalies", text)
    results = REPOSITORY / "results"
    (all_devices,) = re.findall(r"^ +all +([\d.]+)", (results / "house.txt").read_text(), flags=re.MULTILINE)
    mean = r"^ +mean +([\d.]+) .*; (\d+ of \d+) told"
    ((on_servers, anomalies),) = re.findall(mean, (results / "servers.txt").read_text(), flags=re.MULTILINE)
    assert (house, servers, told) == (all_devices, on_servers, [anomalies])
