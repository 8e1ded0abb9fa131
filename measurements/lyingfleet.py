"""The worst lies of `liars` told by real devices to a real server: TLS, keys, the proxy, Flower, and the gate.

The demo's pumps train as a fleet on loopback, first honestly. Then one or two of them lie in every round, and praise
the result when they judge it. Each result is compared with the honest one on the honest devices, by its loss and by the
faults that it finds, whether the gate lets it out or not. Called by `python -m measurements.liars`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkad import KoopmanDetector
from fedkad.federation import model_archive, participant, training_files
from fedkad.federation.client import Client
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.gate import held_out_losses
from fedkad.federation.training_state import stored_terms
from fedkad.fleet.server import settings
from fedkad.koopman.stiefel import retract_polar
from fedkad.koopman.subspace import leading_directions
from fedkad.report.demonstration import compare
from fedkad.simulate import Fleet, simulate_fleet, write_fleet
from fedkad_bench.provenance import REPOSITORY
from measurements.loopback import Loopback, wait
from measurements.measure import Array

LIE = "FEDKAD_MEASURED_LIE"
"""Names the file with the lie that a device tells at the moment; an honest device has none."""

PREPARED = "just-below.npy"
"""Beside that file: the warm message of liars who know what all others send."""

START = "from measurements.lyingfleet import become_a_liar\nbecome_a_liar()\n"


class Trial(NamedTuple):
    """A training: how many lie, how, and how the server takes their replies."""

    liars: int
    lie: str
    robust: bool | None = None
    masked: bool = False

    @property
    def way(self) -> str:
        """How the replies are put together."""
        return "masked mean" if self.masked else "mean" if self.robust is False else "default"


TRIALS = (
    Trial(1, "another subspace"),
    Trial(1, "the same subspace"),
    Trial(2, "another subspace"),
    Trial(2, "the same subspace"),
    Trial(1, "just below"),
    Trial(2, "just below"),
    Trial(2, "the same subspace", robust=False),
    Trial(1, "the same subspace", masked=True),
)


def become_a_liar() -> None:
    """In a device's process: from now on tell the lie in the file, and as a judge praise whatever comes."""
    from measurements.liars import JUST_BELOW, LIES, beginning_with

    honest, place = participant.pack, Path(os.environ[LIE])

    def pack(known: Any, request: Any, message: Array, reference: Array, unsent: Any = 0.0) -> participant.Packed:
        lie = place.read_text()
        if lie and request.kind != "judge":
            generator = np.random.default_rng([*known.name.encode(), request.round])
            told = beginning_with(np.load(place.with_name(PREPARED))) if lie == JUST_BELOW else LIES[lie]
            message = told(message, reference, request, generator)
        return honest(known, request, message, reference, unsent)

    def praise(memory: Any, subspaces: Sequence[Array]) -> list[float]:
        return [1e-9, 1.0] if place.read_text() else held_out_losses(memory, subspaces)

    vars(participant).update(pack=pack, held_out_losses=praise)


class Outcome(NamedTuple):
    """What a subspace is worth to some devices."""

    loss: float
    found: int
    faults: int
    false_alarms: int


class Pumps:
    """The demo's fleet, as every device prepares itself, to tell what a subspace is worth."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.prepared = fleet, dict[str, KoopmanDetector]()
        for name, train in fleet.train.items():
            self.prepared[name] = KoopmanDetector(sample_period=fleet.period).prepare(train)

    def just_below(self, liars: Sequence[str]) -> Array:
        """The warm message of liars who stay just below the limit; of those that are tried, the most harmful one."""
        from measurements.liars import CONSENSUS, TAKEN, just_below, warm_messages

        known = {name: detector.memory_.statistics for name, detector in self.prepared.items()}
        messages = warm_messages({name: Client(name, each, CONSENSUS) for name, each in known.items()})
        honest = [name for name in messages if name not in liars]

        def harm(lie: Array) -> float:
            beside = np.concatenate([*(messages[name] for name in honest), *([lie] * len(liars))], axis=1)
            found = leading_directions(beside @ beside.T, CONSENSUS.rank).vectors
            return -sum(float(np.linalg.norm(found.T @ messages[name])) ** 2 for name in honest)

        return max((just_below(messages, liars, taken) for taken in TAKEN), key=harm)

    def worth(self, subspace: Array, names: Sequence[str]) -> Outcome:
        """The loss, and the faults found, of these devices with that subspace."""
        from measurements.liars import CONSENSUS

        lines, loss = [], 0.0
        for name in names:
            detector = self.prepared[name].adopt(subspace)
            loss += Client(name, detector.memory_.statistics, CONSENSUS).objective(subspace)
            events = detector.events(self.fleet.test[name])
            lines += compare(name, events, self.fleet.faults_of(name), reach=detector.window)
        faults = sum(len(self.fleet.faults_of(name)) for name in names)
        missed, false = (sum(line.outcome == outcome for line in lines) for outcome in ("missed", "false alarm"))
        return Outcome(loss, faults - missed, faults, false)


def train(fleet: Loopback) -> dict[str, Any]:
    """One training, to its delivery or to the gate; its status."""
    before = fleet.status().get("run", "")
    fleet.train()

    def is_over() -> bool:
        status = fleet.status()
        return status.get("run", before) != before and status["state"] in ("done", model_archive.KEPT_BACK)

    wait(is_over, 1500, "the training done or kept back")
    return fleet.status()


def result(fleet: Loopback, status: Mapping[str, Any]) -> Array:
    """The subspace of a training, delivered or not."""
    place = fleet.server_folder / "training"
    kept = status["state"] == model_archive.KEPT_BACK
    file = model_archive.archived_file(status["run"]) if kept else training_files.RESULT
    terms = stored_terms(place, file)
    assert terms is not None
    coordinator = Coordinator(terms, TrainingPlan(), place)
    coordinator.restore(file)
    return retract_polar(coordinator.state.server.shared)


def roll_back(fleet: Loopback, run: str) -> None:
    """Give all devices the honest model again."""
    fleet.command("fleet", "rollback", str(fleet.server_folder), run)
    place, everybody = fleet.server_folder / "training", set(fleet.data)
    wait(
        lambda: everybody <= set(training_files.read_delivered(place).get("delivered", [])),
        300,
        "the honest model is back",
    )


def set_aggregation(folder: Path, trial: Trial) -> None:
    """Have the server put replies together as the trial says."""
    known = settings.load(folder)
    training, privacy = replace(known.training, robust=trial.robust), settings.Privacy(trial.masked)
    settings.save(folder, replace(known, training=training, privacy=privacy))


def print_network(devices: int) -> None:
    """Run the fleet and print what each lie came to."""
    simulated = simulate_fleet(devices)
    pumps, names = Pumps(simulated), sorted(simulated.train)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_fleet(simulated, root / "data")
        (root / "sitecustomize.py").write_text(START)
        data = {name: root / "data" / "train" / f"{name}.csv" for name in names}
        with Loopback(root, data) as fleet:
            fleet.start_server()
            for name in names[:2]:
                lies = {LIE: str(root / f"{name}.lie"), "PYTHONPATH": os.pathsep.join((folder, str(REPOSITORY)))}
                Path(lies[LIE]).write_text("")
                fleet.start(name, environment=lies)
            fleet.start(*names[2:])
            fleet.wait_online()
            honest = train(fleet)
            base = result(fleet, honest)
            own = pumps.worth(base, names)
            print(f"  over the network, {devices} pumps of the demo")
            print(f"    no liar: {own.found} of {own.faults} faults found, {own.false_alarms} false alarms")
            print(
                "    loss of the honest devices, their faults found with the result and without a liar, false alarms,"
            )
            print("    and what the gate said: new over current loss")
            print("    replies      liars lie                  loss    faults found   without  false    gate")
            for trial in TRIALS:
                _print_trial(fleet, trial, pumps, base)
                if fleet.status()["state"] != model_archive.KEPT_BACK:
                    roll_back(fleet, honest["run"])


def _print_trial(fleet: Loopback, trial: Trial, pumps: Pumps, base: Array) -> None:
    names = sorted(pumps.prepared)
    set_aggregation(fleet.server_folder, trial)
    for k, name in enumerate(names[:2]):
        (fleet.root / f"{name}.lie").write_text(trial.lie if k < trial.liars else "")
    if trial.lie == "just below":
        np.save(fleet.root / PREPARED, pumps.just_below(names[: trial.liars]))
    status = train(fleet)
    asked = max(map(len, status["participants"]))
    found, before = (pumps.worth(each, names[trial.liars :]) for each in (result(fleet, status), base))
    fate = "kept back" if status["state"] == model_archive.KEPT_BACK else "delivered"
    print(
        f"    {trial.way:12} {trial.liars}/{len(names)}  {trial.lie:18}{found.loss / before.loss:8.3f}"
        f"{found.found:9} of {found.faults:2}{before.found:10}{found.false_alarms:8}"
        f"{status['gate']['ratio']:9.3f} {fate}; left out: {', '.join(status['left_out']) or 'nobody'}; "
        f"{np.median(status['round_seconds']):.1f} s a round of at most {asked}",
        flush=True,
    )
