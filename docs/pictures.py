"""Draw the pictures of the README and of the site: `python -m docs.pictures` writes them beside this file.

`fleet-rounds.svg` is drawn by hand.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from docs import house
from docs.diagrams import Arrow, Box, badge, diagram
from fedkad import WITNESSES, KoopmanDetector
from fedkad.detect.series import Series
from fedkad.edge.alarms.phases import MAY_BECOME, name_of
from fedkad.intake import Switches, read_recording
from fedkad.report.chart import Curve, Panel, line_chart, standalone
from fedkad.report.examination import Examination, examine_table
from fedkad.report.findings_page import event_drawing, strength

HERE = Path(__file__).parent
NEWARK = HERE.parent / "examples" / "weather" / "newark.csv.gz"
WIDTH = 760
DAY = 24

INCIDENT_PHASES = (
    Box("idle", 0, 2.1, "nothing is wrong"),
    Box("suspect", 1.7, 0, "abnormal, not told"),
    Box("open", 4.35, 1.25, "told, and goes on"),
    Box("quiet", 6.2, 0, "told, and quiet"),
    Box("waiting", 6.2, 4, "for its level"),
    Box("cooling", 2.6, 4.0, "over, and a pause"),
)

TRAINING_PHASES = (
    Box("idle", 0, 1.5, "no request"),
    Box("requested", 1.2, 0, "no round is closed yet"),
    Box("training", 3.6, 0.2, "a round was closed"),
    Box("delivering", 3.6, 2.8, "all rounds are closed"),
    Box("done", 0.9, 3, "or kept back"),
    Box("cancelled", 1.9, 1.5, "its run ends"),
)
TRAINING_ARROWS = (
    Arrow("idle", "requested", "asked or due"),
    Arrow("idle", "training", "an unfinished one goes on"),
    Arrow("idle", "delivering"),
    Arrow("requested", "training"),
    Arrow("requested", "delivering"),
    Arrow("requested", "cancelled"),
    Arrow("requested", "idle"),
    Arrow("training", "delivering"),
    Arrow("training", "cancelled"),
    Arrow("training", "idle"),
    Arrow("delivering", "training", "new settings"),
    Arrow("delivering", "done"),
    Arrow("delivering", "cancelled"),
    Arrow("delivering", "idle"),
    Arrow("done", "idle", "closed"),
    Arrow("done", "requested", "asked again"),
    Arrow("cancelled", "idle"),
    Arrow("cancelled", "done"),
)


def strongest_event(entry: Examination) -> str:
    """The clearest event: signals seen and expected, and the score."""
    return event_drawing(entry, max(entry.findings.events, key=strength), "event").svg


def prediction(entry: Examination, first: str, days: int) -> str:
    """Some channels as they were seen, and as they were expected an hour before."""
    start, stop = rows(entry, first, days)
    expected = entry.expected(start, stop)
    panels = []
    for name in ("temp", "humid", "pressure"):
        at = entry.table.channels.index(name)
        seen = Curve("seen", entry.table.values[start:stop, at], "score")
        panels.append(Panel(name, (Curve("expected", expected[:, at], "second", dashed=True), seen)))
    return line_chart(panels, entry.axis_times(start, stop))


def witnesses(entry: Examination, detector: KoopmanDetector, first: str, days: int) -> str:
    """The rain, the parts of the score by witness, and their sum against the threshold."""
    start, stop = rows(entry, first, days)
    series = Series(entry.table.values, entry.table.channels, entry.table.times)
    parts = detector.witnesses(series)[start:stop]
    rain = entry.table.values[start:stop, entry.table.channels.index("precip")]
    panels = [Panel("precip", (Curve("seen", rain, "score"),))]
    panels += [Panel(name, (Curve("part", part, "score"),)) for name, part in zip(WITNESSES, parts.T, strict=True)]
    thresholds = Curve("threshold", entry.findings.thresholds[start:stop], "alarm", dashed=True)
    score = Curve("score", entry.findings.scores[start:stop], "score")
    return line_chart([*panels, Panel("their sum", (thresholds, score))], entry.axis_times(start, stop))


def rows(entry: Examination, first: str, days: int) -> tuple[int, int]:
    """The rows of some days."""
    times = entry.table.times
    assert times is not None
    start = int(np.searchsorted(times, np.datetime64(first)))
    return start, start + days * DAY


def charts() -> dict[str, str]:
    """Pictures of data, by the names of their files."""
    table = read_recording(NEWARK, switches=Switches())
    detector = KoopmanDetector().fit(Series(table.values, table.channels, table.times))
    newark = examine_table(detector.model_, table.name, table)
    drawn = {
        "newark": strongest_event(newark),
        "prediction": prediction(newark, "2013-04-08", 10),
        "witnesses": witnesses(newark, detector, "2013-06-01", 12),
    }
    return {f"{name}.svg": standalone(svg, WIDTH) for name, svg in drawn.items()}


def diagrams() -> dict[str, str]:
    """Pictures of the house, by the names of their files."""
    phases = diagram("The phases of a training", TRAINING_PHASES, TRAINING_ARROWS)
    moves = [Arrow(name_of(a), name_of(b), why) for a, after in MAY_BECOME.items() for b, why in after.items()]
    incident = diagram("The phases of an incident", INCIDENT_PHASES, moves)
    drawn = {"incident-phases": incident, **badges(), **house.pictures(), "training-phases": phases}
    return {f"{name}.svg": svg for name, svg in drawn.items()}


def badges() -> dict[str, str]:
    """The row at the top of the README, from what `pyproject.toml` says."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    versions = [words[-1] for line in project["classifiers"] if (words := line.split(" :: "))[-2:-1] == ["Python"]]
    texts = {
        "python": ("python", f"{versions[0]} – {versions[-1]}"),
        "licence": ("licence", project["license"]),
        "typed": ("typed", "mypy, strict"),
        "tests": ("tests", "make test"),
        "docs": ("docs", "make docs"),
    }
    return {f"badge-{name}": badge(*words) for name, words in texts.items()}


if __name__ == "__main__":
    for name, svg in (charts() | diagrams()).items():
        (HERE / name).write_text(svg)
