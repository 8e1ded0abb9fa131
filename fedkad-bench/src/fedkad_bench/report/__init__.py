"""The page of a benchmark: tables, figures and sentences, all from the files of a results folder.

`write.write_report` makes everything; each section of the page has a module of its own, `paper_figures` holds the
paper's numbers, and matplotlib is imported only where something is drawn.
"""

from fedkad_bench.report.write import write_report

__all__ = ["write_report"]
