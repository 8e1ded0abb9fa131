"""``fedkad bench list``: the methods, datasets, protocols and metrics."""

from __future__ import annotations

from dataclasses import fields

from fedkad.cli.output import AsJson, print_json, print_line, print_table
from fedkad_bench.data.datasets import KNOWN, PAPER_TABLE
from fedkad_bench.evaluation import METRICS
from fedkad_bench.methods.registry import GROUPS, METHODS
from fedkad_bench.protocols import PROTOCOLS


def list_all(as_json: AsJson = False) -> None:
    """List methods, datasets, protocols and metrics."""
    methods = [{"name": m.name, "title": m.title, "group": m.group, "needs": m.needs} for m in METHODS.values()]
    metrics = [{"name": name, **metric._asdict()} for name, metric in METRICS.items()]
    protocols = [{field.name: getattr(protocol, field.name) for field in fields(protocol)} for protocol in PROTOCOLS]
    if as_json:
        print_json({"methods": methods, "datasets": list(KNOWN), "protocols": protocols, "metrics": metrics})
        return
    print_table(("Method", "Title", "Group"), [(m.name, m.title, GROUPS[m.group]) for m in METHODS.values()])
    print_line()
    paper = [(name, str(figures.clients), str(figures.channels)) for name, figures in PAPER_TABLE.items()]
    print_table(("Dataset", "Clients in the paper", "Channels"), paper, numbers=[1, 2])
    print_line()
    shown = [(p.key, p.title, p.threshold, "-" if p.share is None else f"{p.share:g}") for p in PROTOCOLS]
    print_table(("Protocol", "Title", "Threshold", "Share k"), shown, numbers=[3])
    print_line()
    print_table(("Metric", "Title", "Unit", "Group"), [(n, m.title, m.unit, m.group) for n, m in METRICS.items()])
