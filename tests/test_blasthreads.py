"""One BLAS thread while FedKAD computes, and the user's own choice where there is one."""

import os
import subprocess
import sys

import pytest

from fedkad import blasthreads

PRELUDE = """
import numpy as np
from threadpoolctl import ThreadpoolController, threadpool_limits
from fedkad.blasthreads import single_threaded

pools = ThreadpoolController().select(user_api="blas")
def threads():
    return max(pool.num_threads for pool in pools.lib_controllers)
usual = threads()
"""


def outcome(code: str, **environment: str) -> str:
    """What a fresh interpreter prints that has no setting for threads but those given."""
    kept = {name: value for name, value in os.environ.items() if name not in blasthreads.VARIABLES}
    command = [sys.executable, "-c", PRELUDE + code]
    found = subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, check=True)
    return found.stdout.strip()


@pytest.mark.slow
def test_one_thread_inside_and_the_usual_number_afterwards() -> None:
    code = "with single_threaded():\n    inside = threads()\nprint(inside, threads() == usual)"
    assert outcome(code) == "1 True"


@pytest.mark.slow
def test_the_usual_number_is_back_after_an_error() -> None:
    code = """
@single_threaded()
def fail():
    raise ZeroDivisionError
try:
    fail()
except ZeroDivisionError:
    print(threads() == usual)
"""
    assert outcome(code) == "True"


@pytest.mark.slow
def test_callers_may_nest() -> None:
    code = """
with single_threaded():
    with single_threaded():
        pass
    print(threads())
"""
    assert outcome(code) == "1"


@pytest.mark.slow
@pytest.mark.parametrize("name", blasthreads.VARIABLES)
def test_an_environment_variable_is_left_alone(name: str) -> None:
    code = "with single_threaded():\n    print(threads() == usual)"
    assert outcome(code, **{name: "3"}) == "True"


@pytest.mark.slow
def test_an_enclosing_limit_is_left_alone() -> None:
    code = """
with threadpool_limits(limits=usual + 1):
    with single_threaded():
        inside = threads()
    print(inside == usual + 1, threads() == usual + 1)
"""
    assert outcome(code) == "True True"


@pytest.mark.slow
def test_threads_that_come_and_go_leave_the_usual_number() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
with single_threaded():
    pass
with ThreadPoolExecutor(4) as executor:
    inside = set(executor.map(single_threaded()(lambda _: threads()), range(200)))
print(1 in inside, threads() == usual)
"""
    assert outcome(code) == "True True"
