"""What is claimed of numbers holds with the BLAS of other processors, which add in another order.

OpenBLAS has kernels for many processors and uses those that `OPENBLAS_CORETYPE` names, as far as this one has their
instructions. The tests of the mathematics run once more with each; to run others by hand:
`OPENBLAS_CORETYPE=Prescott make fast`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MATHEMATICS = ("koopman", "detect", "federation")
"""The tests that compare numbers with recorded ones, with formulas, or to the bit."""

KERNELS = "import numpy, threadpoolctl; print(*(each['architecture'] for each in threadpoolctl.threadpool_info()))"


def run(command: list[str], processor: str | None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **({"OPENBLAS_CORETYPE": processor} if processor else {})}
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["Haswell", "SkylakeX", "Prescott"])
def test_the_mathematics_holds_on_another_processor(processor: str) -> None:
    usual, named = (run(["-c", KERNELS], each).stdout.split() for each in (None, processor))
    if usual == named:
        return  # either this run uses these kernels anyway, or this BLAS has no others
    folders = [f"tests/{name}" for name in MATHEMATICS]
    options = ["-m", "not slow", "--hypothesis-profile", "fast", "-p", "no:cacheprovider"]
    found = run(["-m", "pytest", *folders, *options], processor)
    assert found.returncode == 0, found.stdout
