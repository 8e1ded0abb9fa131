"""Train neural cells on a machine that has PyTorch, numpy and a pack of datasets, and keep their scores.

    python -m fedkad_bench.methods.neural --pack data.pack --method tranad --device cuda --out scores

The seeds train side by side. The files in `--out` are what `fedkad bench run` would have written under its own `--out`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from fedkad_bench.cells import Cell, Training, score_all, timed_seconds, write_scores
from fedkad_bench.data.packing import read_pack
from fedkad_bench.methods.interface import Scale
from fedkad_bench.methods.neural.fedavg import Envelope
from fedkad_bench.methods.neural.method import NETWORKS, NeuralMethod
from fedkad_bench.provenance import describe_machine, provenance


def train_cells(pack: Path, dataset: str, method: NeuralMethod, seeds: Sequence[int], out: Path) -> None:
    """Train one method on one dataset for all seeds, and write the scores of each."""
    entities = read_pack(pack, dataset)
    fleet = {name: series.train for name, series in entities.items()}
    began = time.perf_counter()
    scaling: Scale = "global" if dataset == "PSM" else "device"
    fitted = method.fit_seeds(fleet, seeds=seeds, scaling=scaling, progress=_Progress(f"{dataset} {method.title}"))
    seconds = timed_seconds(began)
    for seed, one in zip(seeds, fitted, strict=True):
        settings = {**asdict(method.envelope), "device": method.device, "seeds_side_by_side": len(seeds)}
        made = provenance(shlex.join(["python", "-m", "fedkad_bench.methods.neural", *sys.argv[1:]]), _machine(method))
        training = Training(method.title, method.covers, one.cost, seconds, settings, made)
        scores = score_all(one, {name: series.test for name, series in entities.items()})
        write_scores(out, Cell(dataset, method.name, seed), scores, training)
    print(f"{dataset} {method.title}: trained in {seconds:.0f} s, done in {timed_seconds(began):.0f} s", flush=True)


class _Progress:
    def __init__(self, what: str) -> None:
        self.what, self.began = what, time.perf_counter()

    def __call__(self, done: int, of: int) -> None:
        if done in (1, 2, 5) or done % 10 == 0:
            print(f"{self.what}: round {done} of {of}, {timed_seconds(self.began):.1f} s", flush=True)


def _machine(method: NeuralMethod) -> str:
    where = describe_machine()
    if method.device.startswith("cuda"):
        where = f"{torch.cuda.get_device_name()}, {where}"
    return f"{where}, torch {torch.__version__}"


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=["SMAP", "MSL", "SMD"])
    parser.add_argument("--method", choices=list(NETWORKS), required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=Envelope.rounds)
    parser.add_argument("--proximal", type=float, default=Envelope.proximal)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    method = NeuralMethod(given.method, Envelope(rounds=given.rounds, proximal=given.proximal), given.device)
    for dataset in given.datasets:
        train_cells(given.pack, dataset, method, given.seeds, given.out)


if __name__ == "__main__":
    main()
