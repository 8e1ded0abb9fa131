"""A run of the benchmark: which cells there are, which of them are done already, and the rest in parallel processes.

Every cell leaves two files, its scores and its record, each written as a whole. That is all the state there is: a run
that was killed goes on with what is not there.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedkad.atomicfile import write_atomically
from fedkad_bench.cells import Cell, Scores, Training, cells_of, read_scores
from fedkad_bench.data.sources import Facts, Source, look
from fedkad_bench.methods.registry import METHODS, Options, decisive, require
from fedkad_bench.protocols import DEFAULT_CHOICES, Choices
from fedkad_bench.provenance import provenance
from fedkad_bench.results import Extent, Record, read_record, read_records, require_alike
from fedkad_bench.running.work import Task, do, expected_settings
from fedkad_bench.running.workers import perform

DATASETS = ("SMD", "PSM", "SMAP", "MSL")
"""Those of the paper."""

SEEDS = (0, 1, 2)

QUICK_CLIENTS = {"SMD": 3, "PSM": 3, "SMAP": 6, "MSL": 6}
QUICK_ROWS = 2000
"""What a quick run takes of each dataset: a few clients, and so many training rows of each."""


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes
    ----------
    datasets
        Public names, or paths of folders of one's own.
    methods, seeds
        Of each dataset.
    clients
        So many of each dataset, evenly spread; None for all, or what is usual for a quick run.
    options
        Of the methods; `options.quick` also means few clients and few training rows.
    choices
        What the paper leaves open about thresholds and adjustment.
    """

    datasets: tuple[str, ...] = DATASETS
    methods: tuple[str, ...] = tuple(METHODS)
    seeds: tuple[int, ...] = SEEDS
    clients: int | None = None
    options: Options = field(default_factory=Options)
    choices: Choices = DEFAULT_CHOICES

    def look(self, dataset: str, data: Path | None) -> Facts:
        """What there is of a dataset for this plan."""
        if not self.options.quick:
            return look(dataset, data, clients=self.clients)
        usual = QUICK_CLIENTS.get(dataset.upper(), 3)
        return look(dataset, data, clients=self.clients or usual, train_rows=QUICK_ROWS)


How = Literal["trained", "evaluated", "failed"]

EVALUATION = 2.0
"""Seconds that the evaluation of a cell takes for each million numbers to learn from, roughly."""


class Step(NamedTuple):
    """A cell has ended: how many have, of how many, how, and how long the rest is likely to take.

    `sentence` says why a cell failed; the folder `failures` has the traceback.
    """

    cell: Cell
    how: How
    done: int
    of: int
    seconds: float
    left: float
    sentence: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a run did, by cell; `failed` has a sentence for each."""

    trained: tuple[Cell, ...]
    evaluated: tuple[Cell, ...]
    kept: tuple[Cell, ...]
    reused: tuple[Cell, ...]
    failed: Mapping[Cell, str]


Report = Callable[[Step], None]
State = Literal["absent", "scored", "done"]


def run(
    plan: Plan,
    data: Path | None,
    out: Path,
    *,
    workers: int | None = None,
    reuse: Path | None = None,
    redo: bool = False,
    report: Report | None = None,
    facts: Sequence[Facts] | None = None,
) -> Outcome:
    """Run what is not done yet.

    Parameters
    ----------
    plan : Plan
    data : path, optional
        The folder of the public datasets; by default that of `datasets.data_folder`.
    out : path
        The folder of the results. What it holds of this plan is kept, and refused if its settings are others.
    workers : int, optional
        Processes, by default one for each processor; 0 works in this process.
    reuse : path, optional
        A folder of results whose cells are taken over, with their own provenance, where settings and data agree.
    redo : bool
        Train all cells again, whatever is there.
    report : callable, optional
        Called with a `Step` whenever a cell has ended.
    facts : sequence of Facts, optional
        Of the plan's datasets, if the caller has looked already.
    """
    require(plan.methods)
    looked = [plan.look(name, data) for name in plan.datasets] if facts is None else facts
    by_name = {each.source.dataset: each for each in looked}
    if len(by_name) < len(looked):
        raise ValueError("two of the datasets have the same name; rename one of the folders.")
    cells = cells_of(by_name, plan.methods, plan.seeds)
    _require_alike(cells, by_name, out)
    states, reused = _states(plan, cells, by_name, out, reuse, redo=redo)
    made = provenance(command_line())

    def task(cell: Cell) -> Task:
        known = by_name[cell.dataset]
        train = states[cell] == "absent"
        return Task(cell, known.source, known.label, out, train, made, plan.options, plan.choices)

    order = sorted(cells, key=lambda cell: _precedence(cell, by_name))
    tasks = [task(cell) for cell in order if states[cell] != "done"]
    steps = _perform(tasks, {each.cell: _weight(each, by_name) for each in tasks}, out, workers, report)
    kept = tuple(cell for cell in cells if states[cell] == "done" and cell not in reused)
    return _outcome(steps, kept, reused)


def _states(
    plan: Plan, cells: Sequence[Cell], facts: Mapping[str, Facts], out: Path, reuse: Path | None, *, redo: bool
) -> tuple[dict[Cell, State], tuple[Cell, ...]]:
    """How far every cell is, once what can be reused is taken over, and which were."""
    wanted = {(d, m): _expected(plan, facts[d], m) for d in facts for m in plan.methods}
    states: dict[Cell, State] = {}
    for cell in cells:
        states[cell] = "absent" if redo else _state(cell, out, wanted[cell.dataset, cell.method], plan.choices)
    reused = []
    for cell in cells if reuse is not None else ():
        if states[cell] == "absent" and reuse is not None:
            states[cell] = _take(cell, reuse, out, wanted[cell.dataset, cell.method], plan.choices)
            reused += [cell] if states[cell] != "absent" else []
    return states, tuple(reused)


def evaluate_again(
    out: Path,
    data: Path | None,
    *,
    choices: Choices = DEFAULT_CHOICES,
    only: Callable[[Cell], bool] = lambda cell: True,
    folders: Mapping[str, Path] | None = None,
    to: Path | None = None,
    workers: int | None = None,
    report: Report | None = None,
) -> Outcome:
    """Repeat the evaluation of all kept scores, and write the records to the folder `to` or beside the scores.

    `folders` says where datasets of one's own lie.
    """
    cells = [cell for cell in scored_cells(out) if only(cell)]
    if not cells:
        raise ValueError(f"{out}: there are no kept scores to evaluate; give the folder of a run.")
    made = provenance(command_line())
    own = folders or {}
    tasks = []
    for cell in cells:
        kept = read_scores(out, cell, clear=False)
        if kept is None:
            raise ValueError(f"{cell.scores_file(out)}: the scores cannot be read; run the cell again.")
        names, known = tuple(kept[0]), read_record(cell.record_file(out))
        source = Source(cell.dataset, own.get(cell.dataset, data), names)
        label = known.label if known else cell.dataset
        tasks.append(Task(cell, source, label, out, False, made, choices=choices, records=to))
    return _outcome(_perform(tasks, dict.fromkeys(cells, 1.0), to or out, workers, report))


def scored_cells(out: Path) -> list[Cell]:
    """The cells of which a folder holds scores."""
    paths = sorted((out / "scores").glob("*/*/*.npz"))
    return [Cell(p.parts[-3], p.parts[-2], int(p.stem)) for p in paths if p.stem.isdecimal()]


def command_line() -> str:
    """The command as it was given, with the name of the program instead of its path."""
    return shlex.join(["fedkad", *sys.argv[1:]])


# -- what is there already ------------------------------------------------------------------------------------


class _Expected(NamedTuple):
    """What a cell of this plan must be."""

    settings: dict[str, Any]
    clients: dict[str, int]  # test rows by name


def _expected(plan: Plan, facts: Facts, method: str) -> _Expected:
    settings = expected_settings(facts.source.dataset, method, plan.options, facts.source.train_rows)
    return _Expected(decisive(settings), dict(zip(facts.source.names, facts.test_rows, strict=True)))


def _require_alike(cells: Sequence[Cell], facts: Mapping[str, Facts], out: Path) -> None:
    """Refuse to add cells to others of the same dataset that are of other clients or rows."""
    planned = {cell.dataset: cell for cell in reversed(cells)}
    own = set(cells)  # checked when their state is asked for, or made again
    others = [record for record in read_records(out) if record.cell not in own]
    require_alike(others, out)
    for record in others:
        kept = record.cell
        other = record.extent.difference(_extent(facts[kept.dataset])) if kept.dataset in facts else ""
        if other:
            raise ValueError(
                f"{out}: {kept} is there and {planned[kept.dataset]} would be of another part of {kept.dataset}, "
                f"{other}; choose another --out, or make all of {kept.dataset} again with --redo."
            )


def _extent(facts: Facts) -> Extent:
    return Extent(dict(zip(facts.source.names, facts.test_rows, strict=True)), facts.source.train_rows)


def _state(cell: Cell, out: Path, wanted: _Expected, choices: Choices) -> State:
    """How far a cell is; one of other settings or data is refused."""
    path = cell.record_file(out)
    record = read_record(path)
    if record is not None:
        _require_same(cell, path, record.training, _tested(record), wanted)
        if record.evaluated_with(choices):
            return "done"
        # Reused from a folder without scores, or the scores were removed: to be trained again.
        return "scored" if cell.scores_file(out).exists() else "absent"
    kept = read_scores(out, cell)
    if kept is None:
        return "absent"
    _require_same(cell, cell.scores_file(out), kept[1], _scored(kept[0]), wanted)
    return "scored"


def _require_same(cell: Cell, path: Path, training: Training, clients: Mapping[str, int], wanted: _Expected) -> None:
    other = _difference(training, clients, wanted)
    if other:
        raise ValueError(f"{path}: {cell} was made with {other}; choose another --out, or --redo to replace it.")


def _difference(training: Training, clients: Mapping[str, int], wanted: _Expected) -> str:
    """How a kept cell departs from what is wanted, in words; empty if it does not."""
    had = decisive(training.settings)
    for name in {**wanted.settings, **had}:
        if had.get(name) != wanted.settings.get(name):
            return f"{name}={had.get(name)} instead of {wanted.settings.get(name)}"
    if set(clients) != set(wanted.clients):
        return f"{len(clients)} clients instead of {len(wanted.clients)}, or others"
    if dict(clients) != wanted.clients:
        return "test series of other lengths"
    return ""


def _tested(record: Record) -> dict[str, int]:
    return dict(zip(record.clients, record.test_rows, strict=True))


def _scored(scores: Mapping[str, Scores]) -> dict[str, int]:
    return {name: len(of.test) for name, of in scores.items()}


def _take(cell: Cell, reuse: Path, out: Path, wanted: _Expected, choices: Choices) -> State:
    """Copy a cell from another folder of results if it is of the same settings and data.

    Scores are preferred, for they are evaluated anew; a record without them counts if it was made with the same
    choices.
    """
    kept = read_scores(reuse, cell, clear=False)
    if kept is not None:
        if _difference(kept[1], _scored(kept[0]), wanted):
            return "absent"
        _copy(cell.scores_file(reuse), cell.scores_file(out))
        return "scored"
    record = read_record(cell.record_file(reuse))
    if record is None or not record.evaluated_with(choices) or _difference(record.training, _tested(record), wanted):
        return "absent"
    _copy(cell.record_file(reuse), cell.record_file(out))
    return "done"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, source.read_bytes())


# -- the work -------------------------------------------------------------------------------------------------


def _precedence(cell: Cell, facts: Mapping[str, Facts]) -> tuple[int, int, float]:
    """Seed by seed, the largest dataset first so that it is loaded once, and its longest cells first."""
    return cell.seed, -facts[cell.dataset].size, -METHODS[cell.method].weight


def _weight(task: Task, facts: Mapping[str, Facts]) -> float:
    """About how long a task takes, in no unit: evaluation costs something, too."""
    millions = facts[task.cell.dataset].size / 1e6
    few = 0.02 if task.options.quick and METHODS[task.cell.method].group == "neural" else 1.0
    return millions * (EVALUATION + (few * METHODS[task.cell.method].weight if task.train else 0.0))


def _perform(
    tasks: Sequence[Task], weights: Mapping[Cell, float], out: Path, workers: int | None, report: Report | None
) -> list[Step]:
    """Do the tasks, report each, and keep the tracebacks of those that fail in the folder `failures`."""
    began, total, behind = time.perf_counter(), sum(weights.values()), 0.0
    steps: list[Step] = []
    with closing(perform(do, tasks, _processes(workers, len(tasks)))) as stream:
        for task, result, failure in stream:
            behind += weights[task.cell]
            left = (time.perf_counter() - began) * (total - behind) / behind
            how: How = "failed" if failure is not None else "trained" if task.train else "evaluated"
            sentence = failure.sentence if failure is not None else ""
            keep_traceback(out, task.cell, None if failure is None else failure.details)
            steps.append(Step(task.cell, how, len(steps) + 1, len(tasks), result or 0.0, left, sentence))
            if report is not None:
                report(steps[-1])
    return steps


def _processes(workers: int | None, tasks: int) -> int:
    return min(os.cpu_count() or 1 if workers is None else workers, tasks)


def keep_traceback(out: Path, what: object, details: str | None) -> None:
    """Keep why a cell or a study failed, or forget why it failed before."""
    path = out / "failures" / f"{str(what).replace('/', '-')}.txt"
    if details is None:
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, details.encode())


def _outcome(steps: Sequence[Step], kept: tuple[Cell, ...] = (), reused: tuple[Cell, ...] = ()) -> Outcome:
    return Outcome(
        trained=tuple(step.cell for step in steps if step.how == "trained"),
        evaluated=tuple(step.cell for step in steps if step.how == "evaluated"),
        kept=kept,
        reused=reused,
        failed={step.cell: step.sentence for step in steps if step.how == "failed"},
    )
