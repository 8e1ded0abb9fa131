"""The pictures of the site are those that the code of now draws."""

from __future__ import annotations

import doctest
import re
from collections.abc import Mapping

import numpy as np
import pytest

import docs.diagrams
from docs.house import PACKAGES, ROUND, SAMPLE, SOURCES
from docs.pictures import charts, diagrams
from tests.fixtures.pages import PAGES

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
NEAR = 0.5  # of a pixel: other machines round otherwise
BY_HAND = {"fleet-rounds.svg"}


def check(drawn: Mapping[str, str]) -> None:
    for name, svg in drawn.items():
        kept = (PAGES / name).read_text(encoding="utf-8")
        same = "run python -m docs.pictures, and look at what has changed"
        assert NUMBER.sub("#", svg) == NUMBER.sub("#", kept), f"{name}: {same}"
        now, then = (np.array(NUMBER.findall(text), dtype=float) for text in (svg, kept))
        np.testing.assert_allclose(now, then, rtol=0.0, atol=NEAR, err_msg=f"{name}: {same}")


@pytest.mark.slow
def test_charts_are_drawn_by_the_code_of_now() -> None:
    drawn = charts()
    assert drawn.keys() | diagrams().keys() | BY_HAND == {file.name for file in PAGES.glob("*.svg")}
    check(drawn)


def test_diagrams_are_drawn_by_the_code_of_now() -> None:
    check(diagrams())


def test_the_pictures_of_the_house_show_what_is_there() -> None:
    """Arrows between packages are drawn from the imports, boxes by hand."""
    packages = {module.parent.name for module in SOURCES.glob("*/__init__.py")}
    assert {box.name for box in PACKAGES} == packages
    places = [SOURCES / box.note for box in (*SAMPLE, *ROUND)]
    assert [place for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []


def test_the_examples_of_the_diagrams_run() -> None:
    examples = doctest.testmod(docs.diagrams)
    assert examples.attempted > 0
    assert examples.failed == 0
