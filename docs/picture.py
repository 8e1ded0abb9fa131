"""Draw the picture of the README: `python docs/picture.py` writes docs/pump-02.svg."""

from __future__ import annotations

from pathlib import Path

from fedkad.report.chart import standalone
from fedkad.report.demonstration import demonstrate
from fedkad.report.findings_page import event_drawing, strength
from fedkad.simulate import simulate_fleet

WIDTH = 760


def main() -> None:
    """The clearest event of one device of the demonstration: signals seen and expected, and the score."""
    entry = demonstrate(simulate_fleet(12)).examined["pump-02"]
    event = max(entry.findings.events, key=strength)
    Path(__file__).with_name("pump-02.svg").write_text(standalone(event_drawing(entry, event, "event").svg, WIDTH))


if __name__ == "__main__":
    main()
