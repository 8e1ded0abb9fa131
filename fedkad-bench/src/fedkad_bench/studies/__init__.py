"""Studies: each answers one question with one tidy table; `STUDIES` has them by name."""

from __future__ import annotations

from fedkad_bench.studies import ablations, coldstart, convergence, efficiency, exchange, heterogeneity, ondevice
from fedkad_bench.studies.study import FinishedStudy, Request, Row, Study, perform, read_study, study_file, write_study

__all__ = ["STUDIES", "FinishedStudy", "Request", "Row", "Study", "perform", "read_study", "study_file", "write_study"]

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        heterogeneity.STUDY,
        exchange.STUDY,
        convergence.STUDY,
        ondevice.STUDY,
        efficiency.STUDY,
        coldstart.STUDY,
        ablations.STUDY,
    )
}
"""All studies by name, the short ones first."""
