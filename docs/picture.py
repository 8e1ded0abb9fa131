"""Draw the picture of the README: `python docs/picture.py` writes docs/pump-02.png."""

from __future__ import annotations

from pathlib import Path

from fedkad.report.demonstration import demonstrate
from fedkad.report.pictures import Span, device_figure
from fedkad.simulate import simulate_fleet


def main() -> None:
    """One device of the demonstration: score against threshold, and the causes."""
    shown = demonstrate(simulate_fleet(12))
    faults = [Span(fault.start, fault.end, fault.kind) for fault in shown.fleet.faults_of("pump-02")]
    figure = device_figure(shown.findings["pump-02"], shown.fleet.test_times("pump-02"), faults)
    figure.savefig(Path(__file__).with_name("pump-02.png"), dpi=130, facecolor="white")


if __name__ == "__main__":
    main()
