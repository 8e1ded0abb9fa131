"""A page in a real browser: on a phone nothing is cut off, and a part of a chart can be enlarged."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.report.document import render_page
from fedkad.report.examination import examine_table
from fedkad.report.findings_page import findings_page
from fedkad.tables import SeriesTable

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

PROBE = """<script>
const chart = document.querySelector("svg.chart"), whole = chart.getBoundingClientRect(), seen = {};
function fire(type, share) {
  const at = {clientX: whole.left + share * whole.width, clientY: whole.top + 40, button: 0, bubbles: true};
  chart.dispatchEvent(new PointerEvent(type, at));
}
function note(name) {
  const labels = [...chart.querySelectorAll(".tick")];
  const ticks = labels.map((tick) => [tick.textContent, parseFloat(tick.getAttribute("x"))]);
  seen[name] = {view: chart.querySelector(".plot").getAttribute("viewBox").split(" ").map(Number), ticks};
}
chart.setPointerCapture = () => {};  // there is no real pointer
note("before");
for (const [type, share] of [["pointerdown", 0.25], ["pointermove", 0.4], ["pointerup", 0.5]]) fire(type, share);
note("enlarged");
for (const [type, share] of [["pointerdown", 0.5], ["pointermove", 0.6], ["pointerup", 0.9]]) fire(type, share);
note("more");
chart.dispatchEvent(new MouseEvent("dblclick", {bubbles: true}));
note("after");
seen.width = [document.documentElement.scrollWidth, window.innerWidth];
document.body.innerHTML = "<pre>" + JSON.stringify(seen) + "</pre>";
</script>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    values = np.sin(np.arange(2400)[:, None] / [[7.0, 11.0]]) + 0.05 * np.random.default_rng(0).normal(size=(2400, 2))
    names = ("a channel with a name that is far too long for a phone", "heat")
    model = KoopmanDetector(rank=8, observables=32).fit(values[:1500]).model_
    values[2000:2030, 1] += 3.0
    times = np.datetime64("2026-03-01T00:00", "s") + 60 * np.arange(900)
    entry = examine_table(model, "pump", SeriesTable("pump", names, values[1500:], times))
    path = tmp_path_factory.mktemp("browser") / "page.html"
    path.write_text(render_page(findings_page([entry], "What was found")).replace("</body>", f"{PROBE}</body>"))
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=390,800", "--dump-dom"]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<pre>(.*)</pre>", done.stdout)
    assert found, done.stdout[-500:]
    noted: dict[str, Any] = json.loads(found[1])
    return noted


def test_nothing_is_wider_than_a_phone(seen: dict[str, Any]) -> None:
    content, screen = seen["width"]
    assert content <= screen


def test_a_part_of_a_chart_is_enlarged_and_its_labels_stay_at_their_times(seen: dict[str, Any]) -> None:
    assert seen["before"]["view"] == seen["after"]["view"] == [0, 0, 10_000, 1000]
    assert seen["enlarged"]["view"] == pytest.approx([2500, 0, 2500, 1000])
    assert seen["more"]["view"] == pytest.approx([3750, 0, 1000, 1000])

    def moments(name: str) -> list[tuple[float, float]]:
        """Minutes of the day of each label, and where it stands on the whole axis."""
        left, _, width, _ = seen[name]["view"]
        clocks = [(text.split(":"), share) for text, share in seen[name]["ticks"]]
        return [(60 * int(clock[0]) + int(clock[1]), left + width * share / 100.0) for clock, share in clocks]

    minutes, places = np.array(moments("before")).T
    slope, offset = np.polyfit(minutes, places, 1)
    for name in ("enlarged", "more", "after"):
        assert len(moments(name)) >= 2
        for minute, place in moments(name):
            assert place == pytest.approx(slope * minute + offset, abs=2.0)
