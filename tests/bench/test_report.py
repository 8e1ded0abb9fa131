"""The page of a benchmark: its numbers by hand, its files, and nothing from outside."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad.report.document import DataTable, Paragraph
from fedkad.report.palette import LIGHT
from fedkad_bench.cells import Cell, CellTraining
from fedkad_bench.evaluation import METRICS, SMOOTHINGS
from fedkad_bench.methods.interface import Cost
from fedkad_bench.protocols import Choices
from fedkad_bench.report import paper_figures as paper
from fedkad_bench.report import write_report
from fedkad_bench.report.drawing import FILLS, GROUP_COLOURS, style_of
from fedkad_bench.report.efficiency import claim_sentences
from fedkad_bench.report.operation import SHOWN, operation
from fedkad_bench.report.overview import overview
from fedkad_bench.report.trust import standing
from fedkad_bench.results import CellRecord, Results, read_results, write_record
from fedkad_bench.studies import STUDIES, write_study

METHODS = {"fedkad": "FedKAD", "lstm-ae": "LSTM-AE", "pca": "PCA <of> windows & more", "random": "Random scores"}
LABELS = {"SMD": "SMD (3 of 28 <machines> & more)", "MSL": "MSL"}
CLIENTS = ("a", "b", "c")
SEEDS = (0, 1)
ABSENT = {("MSL", "lstm-ae", 1), ("MSL", "pca", 0), ("MSL", "pca", 1)}
MADE = {"command": "fedkad bench run paper", "commit": "abc", "machine": "a <test> machine", "date": "2026-01-01"}


def value(dataset: str, method: str, seed: int, smoothing: str, metric: str, client: str) -> float:
    """Any number between 0 and 1, the same for every seed of PCA, and none for the client without an anomaly."""
    if client == "c":
        return math.nan
    seed = 0 if method == "pca" else seed
    return crc32(f"{dataset}{method}{seed}{smoothing}{metric}{client}".encode()) % 997 / 997


def record(dataset: str, method: str, seed: int) -> CellRecord:
    metrics: dict[str, dict[str, NDArray[np.float64]]] = {
        s: {m: np.array([value(dataset, method, seed, s, m, c) for c in CLIENTS]) for m in METRICS} for s in SMOOTHINGS
    }
    made = {**MADE, "machine": "a graphics card"} if method == "lstm-ae" else MADE
    settings = {"device": "cuda"} if method == "lstm-ae" else {}
    training = CellTraining(METHODS[method], "sample", Cost(100, 8, 1000, 1000), 1.5, settings, made)
    marks = (False, True, True) if dataset == "SMD" else (True, True, True)
    return CellRecord(
        Cell(dataset, method, seed),
        LABELS[dataset],
        training,
        asdict(Choices()),
        CLIENTS,
        marks,
        (True, True, False),
        (100, 200, 300),
        metrics,
        MADE,
    )


def write_cells(folder: Path) -> None:
    for dataset in LABELS:
        for method in METHODS:
            for seed in SEEDS:
                if (dataset, method, seed) not in ABSENT:
                    write_record(folder, record(dataset, method, seed))


def macro(dataset: str, method: str, smoothing: str, metric: str, clients: str = "ab") -> tuple[float, float]:
    """Mean and standard deviation over seeds of the mean over clients, in points, by hand."""
    seeds = [seed for seed in SEEDS if (dataset, method, seed) not in ABSENT]
    means = [100 * fmean(value(dataset, method, s, smoothing, metric, c) for c in clients) for s in seeds]
    return fmean(means), stdev(means) if len(means) > 1 else math.nan


class Reader(HTMLParser):
    """Every table by the start of its caption, as rows of cells; and all tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._rows: list[list[str]] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        if tag in ("td", "th", "caption"):
            self._open = tag
        if tag == "caption":
            self._caption = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "caption"):
            self._open = ""
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open == "caption":
            self._caption += data
        elif self._open:
            self._rows[-1][-1] += data.replace("\N{NO-BREAK SPACE}", " ")

    def table(self, begin: str) -> dict[str, list[str]]:
        """The rows of a table by their titles."""
        [rows] = [rows for caption, rows in self.tables.items() if caption.startswith(begin)]
        return {row[0]: row[1:] for row in rows}


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    write_cells(folder)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Reader:
    reader = Reader()
    reader.feed((folder / "report.html").read_text())
    return reader


# -- numbers --------------------------------------------------------------------------------------------------


def test_vus_pr_is_the_mean_over_clients_then_seeds(page: Reader) -> None:
    rows = page.table("VUS-PR on SMD")
    for method, title in METHODS.items():
        shown = rows[title]
        for k, (over, smoothing) in enumerate((c, s) for c in ("ab", "b") for s in SMOOTHINGS):
            mean, std = macro("SMD", method, smoothing, "vus_pr", over)
            assert shown[k] == f"{mean:.1f} ± {std:.1f}", (method, over, smoothing)
    assert all(text.endswith("± 0.0") for text in rows[METHODS["pca"]])


def test_a_missing_cell_is_told(page: Reader) -> None:
    rows = page.table("VUS-PR on MSL")
    mean, _ = macro("MSL", "lstm-ae", "off", "vus_pr")
    assert rows["LSTM-AE"][0] == f"{mean:.1f} (n=1)"
    assert METHODS["pca"] not in rows
    assert "Cells that are not there" in page.text
    assert "MSL LSTM-AE (seed 1)" in page.text


def test_the_headline_has_random_alarms_beside_and_dashes_for_nothing(page: Reader, folder: Path) -> None:
    rows = page.table("F1 under PA%K 0.01 in points, mean ±")
    mean, std = macro("SMD", "fedkad", "causal", "pa1_f1")
    chance, _ = macro("SMD", "fedkad", "causal", "pa1_random_f1")
    assert rows["FedKAD"][0] == f"{mean:.1f} ± {std:.1f} random {chance:.1f}"
    assert rows[METHODS["pca"]][1] == "–"
    assert rows["FedKAD, the paper's number"] == ["72.20 ± 1.28", "39.55 ± 0.02"]
    drawn = {(r["dataset"], r["method"]): r for r in read_csv(folder / "figures" / "3-f1-matrix.csv")}
    assert float(drawn["SMD", "fedkad"]["f1"]) == pytest.approx(mean)
    assert float(drawn["SMD", "fedkad"]["random_f1"]) == pytest.approx(chance)


def test_all_protocols_are_there(page: Reader) -> None:
    shown = page.table("All protocols on MSL")["FedKAD"]
    for k, key in enumerate(("pa1", "pot_any", "pot_pa10", "pot_point")):
        f1, precision, recall, chance = (
            macro("MSL", "fedkad", "causal", f"{key}_{part}")[0] for part in ("f1", "precision", "recall", "random_f1")
        )
        assert shown[3 * k : 3 * k + 3] == [f"{f1:.1f}", f"{precision:.1f} / {recall:.1f}", f"{chance:.1f}"]
    assert shown[-1] == f"{macro('MSL', 'fedkad', 'causal', 'auc_roc')[0]:.1f}"


def test_the_best_of_a_column_is_bold(folder: Path) -> None:
    best = max(METHODS, key=lambda m: macro("SMD", m, "causal", "vus_pr")[0])
    mean, std = macro("SMD", best, "causal", "vus_pr")
    text = (folder / "tables" / "2-vus-pr-SMD.md").read_text()
    assert f"**{mean:.1f} ± {std:.1f}**" in text


def test_fewer_false_alarms_are_better(folder: Path) -> None:
    best = min(METHODS, key=lambda m: macro("SMD", m, "causal", "false_alarms_per_day")[0])
    [line] = [
        line
        for line in (folder / "tables" / "5-metrics-SMD.md").read_text().splitlines()
        if line.endswith("** |")  # the last column
    ]
    assert f"{macro('SMD', best, 'causal', 'false_alarms_per_day')[0] / 100:.2f}" in line


def test_seeds_are_compared_as_in_the_paper(folder: Path) -> None:
    rows = {r["dataset"]: r for r in read_csv(folder / "figures" / "6-seeds.csv")}
    apart = [
        100 * fmean(value("SMD", m, s, "causal", "pa1_f1", c) for c in "ab") * sign
        for s in SEEDS
        for m, sign in (("fedkad", 1), ("lstm-ae", -1))
    ]
    differences = [apart[0] + apart[1], apart[2] + apart[3]]
    assert float(rows["SMD"]["margin"]) == pytest.approx(fmean(differences))
    assert float(rows["SMD"]["effect_size"]) == pytest.approx(fmean(differences) / stdev(differences))
    margin = fmean(differences)
    assert rows["SMD"]["verdict"] == ("WIN" if margin > 0.5 else "loss" if margin < -0.5 else "tie")
    assert rows["MSL"]["seeds"] == "1"
    assert rows["MSL"]["p_value"] == ""


def test_differences_over_clients(folder: Path) -> None:
    rows = read_csv(folder / "figures" / "6-differences.csv")
    [row] = [r for r in rows if (r["dataset"], r["method"], r["metric"]) == ("SMD", "pca", "vus_pr")]
    ours, theirs = (macro("SMD", m, "causal", "vus_pr", clients="b")[0] for m in ("fedkad", "pca"))  # a was chosen on
    assert float(row["difference"]) == pytest.approx(ours - theirs)
    assert row["clients"] == "1"
    [row] = [r for r in rows if (r["dataset"], r["method"], r["metric"]) == ("MSL", "lstm-ae", "vus_pr")]
    assert row["clients"] == "2"
    assert float(row["low"]) <= float(row["difference"]) <= float(row["high"])


def test_dots_are_the_means(folder: Path) -> None:
    rows = read_csv(folder / "figures" / "2-vus-pr.csv")
    assert {r["method"] for r in rows if r["dataset"] == "MSL"} == {"fedkad", "lstm-ae", "random"}
    for row in rows:
        mean, _ = macro(row["dataset"], row["method"], row["smoothing"], "vus_pr")
        assert float(row["mean"]) == pytest.approx(mean)


def test_the_sentence_follows_the_numbers(folder: Path) -> None:
    results = read_results(folder)
    for smoothing in ("causal", "offline"):
        said = standing(results, "SMD", smoothing, "all")
        means = {m: macro("SMD", m, smoothing, "vus_pr")[0] for m in ("fedkad", "lstm-ae", "pca")}
        ahead = [m for m in ("lstm-ae", "pca") if means[m] >= means["fedkad"]]
        assert f"FedKAD has {means['fedkad']:.1f} and" in said
        assert f"naive method, Random scores, has {macro('SMD', 'random', smoothing, 'vus_pr')[0]:.1f}." in said
        if ahead:
            first = max(ahead, key=lambda m: means[m])
            assert f"leads {2 - len(ahead)} of the 2 methods" in said
            assert f"{means[first] - means['fedkad']:.1f} points behind {METHODS[first]}" in said
        else:
            near = max(("lstm-ae", "pca"), key=lambda m: means[m])
            assert "leads all 2 methods" in said
            assert f"{METHODS[near]}, is {means['fedkad'] - means[near]:.1f} points behind" in said


def test_the_papers_margins_are_its_differences() -> None:
    for of in paper.PROTOCOLS.values():
        for stated in of.values():
            assert stated.margin == pytest.approx(stated.ours.value - stated.theirs.value, abs=0.0151)


# -- files ----------------------------------------------------------------------------------------------------


def test_nothing_comes_from_outside(page: Reader, folder: Path) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object")
        for name in ("src", "href", "xlink:href", "data"):
            reference = attributes.get(name)
            assert reference is None or reference.startswith("#"), (tag, reference)
    html = (folder / "report.html").read_text()
    assert "http" not in html
    assert "url(" not in re.sub(r"url\(#[^)]*\)", "", html)
    assert "@import" not in html


def test_labels_are_escaped(page: Reader, folder: Path) -> None:
    html = (folder / "report.html").read_text()
    assert "<machines>" not in html
    assert "<of>" not in html
    assert "a <test> machine" not in html
    assert "SMD (3 of 28 &lt;machines&gt; &amp; more)" in html
    assert LABELS["SMD"] in page.text
    markdown = (folder / "tables" / "2-vus-pr-SMD.md").read_text()
    assert "&lt;machines&gt; &amp; more" in markdown
    assert "<machines>" not in markdown


def test_identifiers_are_unique(page: Reader) -> None:
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    # A shape that is drawn twice in one figure may be defined twice, always with the same content.
    assert [name for name in names if str(name).startswith("section-")] == [f"section-{k}" for k in range(1, 14)]


def test_it_can_be_read_aloud(page: Reader) -> None:
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert drawings
    assert all(of.get("role") == "img" and of.get("aria-label") for of in drawings)
    assert all(of.get("scope") for tag, of in page.tags if tag == "th")
    captions = sum(tag == "caption" for tag, _ in page.tags)
    assert captions == sum(tag == "table" for tag, _ in page.tags)


def test_every_figure_and_table_has_its_files(folder: Path) -> None:
    figures = sorted(path.stem for path in (folder / "figures").glob("*.svg"))
    assert {"2-vus-pr", "3-f1-matrix", "6-differences", "6-ranks-SMD", "6-ranks-MSL"} == set(figures)
    tables = [path.stem for path in (folder / "tables").glob("*.md")]
    for name in (*figures, *tables):
        assert read_csv(folder / "figures" / f"{name}.csv"), name
    for name in figures:
        root = ET.fromstring((folder / "figures" / f"{name}.svg").read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_letters_are_large_enough_in_print(folder: Path) -> None:
    for path in (folder / "figures").glob("*.svg"):
        text = path.read_text()
        sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)]
        sizes += [float(size) for size in re.findall(r"font: (?:\w+ )*([\d.]+)px", text)]
        [width] = re.findall(r'<svg [^>]*?width="([\d.]+)pt"', text)
        assert sizes
        # An SVG of matplotlib has 72 units an inch; the page prints it 182 mm wide.
        assert min(sizes) * min(182 / 25.4 * 72 / float(width), 1.0) >= 7.9, path.name


def test_colours_differ_in_lightness() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        return (0.299 * red + 0.587 * green + 0.114 * blue) / 255.0

    for colours in (GROUP_COLOURS.values(), [colour for colour, _ in FILLS[:4]]):
        shades = sorted(map(lightness, colours))
        assert all(b - a > 0.08 for a, b in pairwise(shades))
    assert len({hatch for _, hatch in FILLS}) == len(FILLS)
    assert len({style_of(m)[:2] for m in ("tranad", "usad", "lstm-ae", "deepsvdd", "fedkad", "pca")}) == 6
    assert lightness(LIGHT["paper"]) == 1.0


def test_groups_and_gpu_cells_stand_apart(page: Reader, folder: Path) -> None:
    graphics = read_csv(folder / "figures" / "1-origin-gpu.csv")
    assert {(r["dataset"], r["method"], r["seed"]) for r in graphics} == {
        ("SMD", "lstm-ae", "0"),
        ("SMD", "lstm-ae", "1"),
        ("MSL", "lstm-ae", "0"),
    }
    assert len(read_csv(folder / "figures" / "1-origin-cpu.csv")) == 10
    assert "Neural, federated" in page.table("VUS-PR on SMD")


def test_what_is_not_there_is_told(page: Reader, tmp_path: Path) -> None:
    assert page.text.count("This study was not done") == 7
    with pytest.raises(ValueError, match="no results to report"):
        write_report(tmp_path)


def test_one_client_and_one_method_are_enough(tmp_path: Path) -> None:
    whole = record("MSL", "random", 0)
    metrics = {s: {m: column[:1] for m, column in of.items()} for s, of in whole.metrics.items()}
    single = CellRecord(
        **{**vars(whole), "metrics": metrics, "clients": ("a",), "untouched": (True,), "anomalies": (True,)}
    )
    write_record(tmp_path, CellRecord(**{**vars(single), "test_rows": (100,)}))
    out = tmp_path / "elsewhere"
    written = write_report(tmp_path, out)
    assert written[0] == out / "report.html"
    assert all(path.exists() for path in written)
    text = written[0].read_text()
    assert "there is no result of FedKAD" in text
    assert "no ranks, because there are fewer than two methods" in text


def test_a_dataset_without_any_anomaly_has_dashes(tmp_path: Path) -> None:
    for method in ("fedkad", "lstm-ae"):
        whole = record("MSL", method, 0)
        nothing = {s: {m: np.full(3, math.nan) for m in METRICS} for s in SMOOTHINGS}
        write_record(tmp_path, CellRecord(**{**vars(whole), "metrics": nothing, "anomalies": (False,) * 3}))
    other = record("MSL", "random", 0)
    write_record(
        tmp_path, CellRecord(**{**vars(other), "cell": Cell("my pumps & 2", "a method of later", 0), "label": "pumps"})
    )
    write_report(tmp_path)
    reader = Reader()
    reader.feed((tmp_path / "report.html").read_text())
    assert reader.table("VUS-PR on MSL")["FedKAD"] == ["–", "–", "–"]
    assert "nan" not in reader.text
    assert "Others" in reader.table("VUS-PR on pumps")
    assert (tmp_path / "tables" / "2-vus-pr-my-pumps-2.md").exists()


def test_the_same_results_make_the_same_page(folder: Path, tmp_path: Path) -> None:
    again = write_report(folder, tmp_path)
    assert again[0].read_bytes() == (folder / "report.html").read_bytes()


@pytest.mark.slow
def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, fedkad_bench.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- studies --------------------------------------------------------------------------------------------------


def skew_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for kind, paper_low, paper_high in (("feature", 0.14, 2.47), ("label", 0.4, 27.0), ("quantity", 1.2, 1.2)):
        about = {"dataset": LABELS["SMD"], "kind": kind}
        rows.append({**about, "low": 0.5, "high": 2.0, "paper_low": paper_low, "paper_high": paper_high})
        rows += [{**about, "client": client, "value": 0.5 * k} for k, client in enumerate("abcd", start=1)]
    return rows


def efficiency_rows() -> list[dict[str, Any]]:
    rows = []
    for method, title, times in (("fedkad", "FedKAD", 1.0), ("usad", "USAD", 40.0), ("tranad", "TranAD", 900.0)):
        rows.append(
            {
                "dataset": LABELS["SMD"],
                "label": "SMD",
                "method": method,
                "title": title,
                "clients": 3,
                "rounds": 30,
                "seconds_training": 2.0 * times,
                "measured": "whole run",
                "seconds_per_round": times / 15,
                "bytes_per_round": 1e6 * times,
                "bytes_total": 3e7 * times,
                "microseconds_per_step": 3.0 * times,
                "peak_megabytes": 50.0,
                "training_ratio": times,
                "bytes_ratio": times,
                "step_ratio": times,
            }
        )
    return rows


def ondevice_rows() -> list[dict[str, Any]]:
    here = {"dataset": "SMAP", "rows": 100, "peak_megabytes": 90.0, "limit_megabytes": 512, "repeats": 3}
    stated = {"paper_seconds_per_round": 0.23, "paper_microseconds_per_step": 0.79, "paper_kilobytes_up": 59.0}
    ours = {"method": "fedkad-paper", "title": "FedKAD as in the paper", "seconds_per_round": 0.1}
    sizes = {"microseconds_per_step": 0.9, "microseconds_per_streamed_step": 30.0, "kilobytes_up": 59.0}
    usad = {"method": "usad", "title": "USAD", "seconds_per_round": 0.9}
    return [{**here, **ours, **sizes, **stated}, {**here, **usad, **sizes, "kilobytes_up": 1900.0}]


def convergence_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"dataset": "SMD (28 machines, the paper's text)", "series": "paper", "round": 0}]
    for series, rate in (("paper preset, ρ = 1", 0.9), ("default", 0.5)):
        for k in range(4):
            columns = ("consensus_residual", "lagrangian_per_entry", "objective_per_entry")
            values = {column: size * rate**k for column, size in zip(columns, (6.0, 600.0, 15.0), strict=True)}
            rows.append({"dataset": LABELS["SMD"], "series": series, "penalty": 1.0, "round": k, **values})
    return rows


def exchange_rows() -> list[dict[str, Any]]:
    ours = {"method": "fedkad-near", "title": "FedKAD, near the optimum, worst of 1 seeds", "bytes": 2_000_000}
    both = {"dataset": LABELS["SMD"], "rounds": 8, "numbers": 1000, "bytes_up": 1, "bytes_down": 1}
    rest = {"delivery_bytes": 100, "times_near": 1.0, "times_near_delivered": 1.0}
    usad = {"method": "usad", "title": "USAD", "bytes": 90_000_000, "times_near": 45.0}
    return [{**both, **rest, **ours, "to_optimum": 1.0123, "reached": 1}, {**both, **rest, **usad}]


def ablation_rows() -> list[dict[str, Any]]:
    return [
        {
            "dataset": LABELS["SMD"],
            "factor": "rank",
            "level": level,
            "default": int(level == 24),
            "seed": seed,
            "clients": clients,
            "smoothing": smoothing,
            "entities": 2,
            "vus_pr": 0.01 * level + 0.1 * seed,
            "auc_pr": 0.5,
            "relative_loss": 0.1,
            "bytes": 1_500_000,
        }
        for level in (8, 24)
        for seed in (0, 1)
        for clients in ("all", "untouched")
        for smoothing in ("causal", "offline")
    ]


def coldstart_rows() -> list[dict[str, Any]]:
    return [
        {
            "dataset": LABELS["SMD"],
            "device": "machine-2-1",
            "chosen_on": 0,
            "fleet": 3,
            "samples": samples,
            "all_rows": int(samples == 5000),
            "begin": 0,
            "way": way,
            "status": "refused" if (samples, way) == (50, "alone") else "fitted",
            "vus_pr": None if (samples, way) == (50, "alone") else 0.4,
            "normal_flagged": None if (samples, way) == (50, "alone") else 0.02,
            "events_found": None if (samples, way) == (50, "alone") else 0.5,
        }
        for samples in (50, 200, 5000)
        for way in ("alone", "federated", "admitted")
    ]


ROWS = {
    "heterogeneity": skew_rows,
    "efficiency": efficiency_rows,
    "ondevice": ondevice_rows,
    "convergence": convergence_rows,
    "exchange": exchange_rows,
    "ablations": ablation_rows,
    "coldstart": coldstart_rows,
}
FIGURES = {"heterogeneity": 7, "efficiency": 8, "ondevice": 9, "convergence": 10, "exchange": 11, "ablations": 12}


def write_rows(folder: Path, name: str) -> None:
    """By the study's own writer where there is one, otherwise as its file is described."""
    rows, notes = ROWS[name](), ["A note with <angles>."]
    if name in STUDIES:
        write_study(folder, STUDIES[name], rows, notes, MADE, {"datasets": {"SMD": {"clients": 14}}})
        return
    kept = {"format": 1, "name": name, "title": name, "columns": {}, "settings": {}, "provenance": MADE}
    path = folder / "studies" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**kept, "notes": notes, "rows": rows}))


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studied")
    for name in ROWS:
        write_rows(folder, name)
    write_report(folder)
    return folder


def test_studies_are_shown_without_any_cell(studied: Path) -> None:
    text = (studied / "report.html").read_text()
    assert "This study was not done" not in text
    assert text.count("There are no records of cells") == 6
    assert text.count("A note with &lt;angles&gt;.") == len(ROWS)
    assert "<angles>" not in text
    names = {path.stem for path in (studied / "figures").glob("*.svg")}
    assert names == {*(f"{number}-{name}" for name, number in FIGURES.items()), "13-coldstart"}


@pytest.mark.parametrize("name", FIGURES)
def test_the_csv_of_a_study_has_its_numbers(studied: Path, name: str) -> None:
    shown = read_csv(studied / "figures" / f"{FIGURES[name]}-{name}.csv")
    if name == "ablations":
        assert [r["method"] for r in shown] == ["rank: 8", "rank: 24"]
        assert [float(r["mean"]) for r in shown] == pytest.approx([13.0, 29.0])
        return
    for row, given in zip(shown, ROWS[name](), strict=True):
        for column, number in given.items():
            if isinstance(number, float):
                assert float(row[column]) == pytest.approx(number, rel=1e-5)


def test_the_papers_claims_stand_beside_ours() -> None:
    rows = [{**row, "label": "SMD", "round_bytes_ratio": row["bytes_ratio"]} for row in efficiency_rows()]
    training, exchanged, step = claim_sentences(rows)
    assert "up to 2,100×" in training
    assert "200×–2,000×" in training
    assert "from 40× for USAD on SMD to 900× for TranAD on SMD" in training
    assert "80×" in exchanged
    assert "3×–40×" in exchanged
    assert "79×" in step
    [first, *_] = claim_sentences([])
    assert "no network was measured here" in first


def test_the_papers_sums_are_scaled_to_the_machines(studied: Path) -> None:
    reader = Reader()
    reader.feed((studied / "report.html").read_text())
    rows = reader.table("From before the first round")
    assert rows["the paper's text, ρ = 1"] == ["6.5 → 2.1", "335 → 45 to 80", "7.85 → 3.1"]
    assert rows["default"][0] == "6 → 0.75"


def test_a_newcomer_that_was_refused_is_counted(studied: Path) -> None:
    reader = Reader()
    reader.feed((studied / "report.html").read_text())
    [rows] = [rows for caption, rows in reader.tables.items() if caption.startswith("A newcomer among")]
    begin = rows.index(["50 samples"])
    assert rows[begin + 1] == ["alone", "–", "–", "–", "0 of 1"]
    assert rows[begin + 2] == ["federated", "40.0", "2.0", "50.0", "1 of 1"]


def test_a_study_of_another_shape_is_told_and_not_shown(tmp_path: Path) -> None:
    write_rows(tmp_path, "exchange")
    path = tmp_path / "studies" / "exchange.json"
    path.write_text(path.read_text().replace('"numbers"', '"figures"'))
    write_report(tmp_path)
    assert "exchange.json has no column" in (tmp_path / "report.html").read_text()


# -- how cells were trained -----------------------------------------------------------------------------------


def trained(method: str, seed: int, **settings: Any) -> CellRecord:
    whole = record("MSL", method, seed)
    return replace(whole, training=replace(whole.training, settings={**whole.training.settings, **settings}))


def first_paragraphs(*records: CellRecord) -> list[str]:
    return [block.text for block in overview(Results(records)).blocks if isinstance(block, Paragraph)]


def test_a_quick_run_says_so_first() -> None:
    full = trained("lstm-ae", 0, rounds=30, epochs=5)
    assert not any("A quick run" in text for text in first_paragraphs(full, trained("fedkad", 0, rounds=8)))
    short: tuple[dict[str, int], ...] = ({"rounds": 1}, {"epochs": 1}, {"train_rows": 2000})
    for settings in short:
        told = first_paragraphs(trained("lstm-ae", 1, **settings), full)[0]
        assert told.startswith("A quick run: 1 of its 2 cells")
        assert told.endswith("its numbers say nothing about the methods.")


def test_fedprox_is_told_with_its_cells() -> None:
    told = first_paragraphs(trained("lstm-ae", 0, proximal=0.01), trained("lstm-ae", 1, proximal=0.0))
    assert "Trained with FedProx (μ = 0.01) instead of FedAvg: MSL, seed 0: all methods." in told


def test_seconds_of_seeds_side_by_side_are_shared() -> None:
    records = [trained("lstm-ae", seed, seeds_side_by_side=2) for seed in SEEDS]
    [table] = [b for b in overview(Results(records)).blocks if isinstance(b, DataTable) and b.name == "1-origin-gpu"]
    assert table.data["seconds"] == [0.75, 0.75]
    assert table.rows[0].cells[1].text == "2"  # 1.5, rounded
    assert "do not compare" in table.caption


def test_no_delay_is_best_and_its_clients_are_counted() -> None:
    [table] = [
        block for block in operation(Results([record("MSL", "fedkad", 0)])).blocks if isinstance(block, DataTable)
    ]
    at = list(SHOWN).index("delay_samples")
    [row] = [row for row in table.rows if row.cells]
    assert [cell.best for cell in row.cells] == [k != at for k in range(len(SHOWN))]
    assert [cell.small for cell in row.cells] == ["2 clients" if k == at else "" for k in range(len(SHOWN))]
