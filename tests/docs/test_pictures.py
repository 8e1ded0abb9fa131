"""The pictures of the site are those that the code of now draws."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest

from tests.fixtures.pages import PAGES

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
NEAR = 0.5  # of a pixel: other machines round otherwise


@pytest.mark.slow
def test_pictures_are_drawn_by_the_code_of_now() -> None:
    drawn: dict[str, str] = runpy.run_path(str(PAGES / "pictures.py"))["drawings"]()
    by_hand = {"fleet-rounds.svg"}
    assert drawn.keys() | by_hand == {file.name for file in PAGES.glob("*.svg")}
    for name, svg in drawn.items():
        kept = (PAGES / name).read_text()
        same = "run python docs/pictures.py, and look at what has changed"
        assert NUMBER.sub("#", svg) == NUMBER.sub("#", kept), f"{name}: {same}"
        now, then = (np.array(NUMBER.findall(text), dtype=float) for text in (svg, kept))
        np.testing.assert_allclose(now, then, rtol=0.0, atol=NEAR, err_msg=f"{name}: {same}")
