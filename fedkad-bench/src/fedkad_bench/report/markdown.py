"""Tables of the report in Markdown."""

from __future__ import annotations

from html import escape

from fedkad.report.document import DataTable, TableCell
from fedkad_bench.results import markdown


def as_markdown(table: DataTable) -> str:
    """A table with its caption, the best of each column in bold."""
    header = [_safe(table.first), *(_safe(", ".join(filter(None, (c.over, c.title)))) for c in table.columns)]
    rows = [
        [_safe(row.title), *map(_marked, row.cells)]
        if row.cells
        else [f"*{_safe(row.title)}*", *[""] * len(table.columns)]
        for row in table.rows
    ]
    return f"{_safe(table.caption)}\n\n{markdown(header, rows)}"


def _marked(cell: TableCell) -> str:
    text = f"**{_safe(cell.text)}**" if cell.best else _safe(cell.text)
    return f"{text} ({_safe(cell.small)})" if cell.small else text


def _safe(text: str) -> str:
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")
