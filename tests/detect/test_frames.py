"""Frames in, frames out: times of a DataFrame count, against the same data on a full grid of rows."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad import WITNESSES, KoopmanDetector, federate
from fedkad.detect.events import Event
from fedkad.timesteps import grid_positions, missing_before

ROWS = 700


def waves(rows: int, start: str = "2026-03-01", zone: str | None = "Europe/Berlin") -> pd.DataFrame:
    values = np.sin(np.arange(rows)[:, None] / [[7.0, 11.0, 17.0]])
    values += 0.05 * np.random.default_rng(rows).normal(size=values.shape)
    return pd.DataFrame(values, columns=list("abc"), index=pd.date_range(start, periods=rows, freq="1min", tz=zone))


@pytest.fixture(scope="module")
def detector() -> KoopmanDetector:
    return KoopmanDetector(rank=8, observables=32, threshold="1/week").fit(waves(1500))


@pytest.fixture(scope="module")
def faulty() -> pd.DataFrame:
    frame = waves(ROWS)
    frame.iloc[200:215, 1] += 3.0
    frame.iloc[400:410, 2] += 3.0
    frame.iloc[520:526, 0] += 3.0
    return frame


HOLES = [slice(50, 53), slice(205, 206), slice(300, 360), slice(420, 440)]


def with_holes(frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    kept = np.ones(len(frame), dtype=bool)
    for hole in HOLES:
        kept[hole] = False
    return frame[kept], kept


def test_rows_that_the_times_miss_are_gaps_as_if_they_were_there(
    detector: KoopmanDetector, faulty: pd.DataFrame
) -> None:
    cut, kept = with_holes(faulty)
    full = np.where(kept[:, None], faulty, np.nan)
    for method in ("decision_function", "score_series", "predict", "explain", "forecast", "witnesses", "score_samples"):
        found, expected = np.asarray(getattr(detector, method)(cut)), getattr(detector, method)(full)[kept]
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(detector.predict(cut, unscored=-1), detector.predict(full, unscored=-1)[kept])
    assert np.isnan(detector.decision_function(cut)).sum() > 20
    at = np.flatnonzero(kept)
    spans = [(at[e.start], at[e.end], at[e.peak]) for e in _events_of_rows(detector, cut)]
    assert spans == [(e.start, e.end, e.peak) for e in detector.events(full)]


def _events_of_rows(detector: KoopmanDetector, frame: pd.DataFrame) -> list[Event]:
    """The events of a frame with the numbers of its rows."""
    table = detector.events(frame)
    row = {label: k for k, label in enumerate(frame.index)}
    return [Event(row[e.start], row[e.end], row[e.peak], 0.0, 0.0, ()) for e in table.itertuples()]


def test_a_frame_without_gaps_is_its_array(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    for index in (faulty.index, pd.RangeIndex(ROWS), pd.Index([f"row {k}" for k in range(ROWS)])):
        np.testing.assert_array_equal(
            detector.decision_function(faulty.set_axis(index)), detector.decision_function(faulty.to_numpy())
        )


@pytest.mark.parametrize(("method", "columns"), [("explain", "abc"), ("forecast", "abc"), ("witnesses", WITNESSES)])
def test_frames_come_out_with_their_index(
    detector: KoopmanDetector, faulty: pd.DataFrame, method: str, columns: Any
) -> None:
    found = getattr(detector, method)(faulty)
    assert list(found.columns) == list(columns)
    pd.testing.assert_index_equal(found.index, faulty.index)
    np.testing.assert_array_equal(found.to_numpy(), getattr(detector, method)(faulty.to_numpy()))
    assert isinstance(getattr(detector, method)(faulty.to_numpy()), np.ndarray)
    assert isinstance(detector.decision_function(faulty), np.ndarray)
    assert isinstance(detector.predict(faulty), np.ndarray)


def test_events_of_a_frame_are_a_table(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    table, events = detector.events(faulty), detector.events(faulty.to_numpy())
    assert list(table.columns) == ["start", "end", "peak", "kind", "channels", "sentence"]
    assert len(table) == len(events) >= 2
    assert all(isinstance(event, Event) for event in events)
    for row, event in zip(table.itertuples(), events, strict=True):
        assert (row.start, row.end, row.peak) == tuple(faulty.index[[event.start, event.end, event.peak]])
        assert (row.kind, row.sentence) == (event.kind, event.sentence)
        assert row.channels.split(", ")[0] == event.channels[0][0]
    none = detector.events(faulty.iloc[:150])
    assert (len(none), list(none.columns)) == (0, list(table.columns))
    assert none.start.dtype == table.start.dtype


def test_events_are_merged_by_time_and_short_ones_left_out(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    apart = detector.events(faulty)
    assert len(apart) == 3
    assert len(detector.events(faulty, merge=110)) == len(detector.events(faulty, merge="110m")) == 2
    assert len(detector.events(faulty, merge="1d")) == 1
    length = (apart.end - apart.start) / pd.Timedelta("1min") + 1
    for rows in (int(length.min()), int(length.min()) + 1):
        assert len(detector.events(faulty, min_duration=rows)) == (length >= rows).sum()
    seconds = f"{60 * int(length.min())}s"
    assert len(detector.events(faulty, min_duration=seconds)) == 3
    # Rows that are missing count: about 180 minutes lie between the first two, and 100 rows.
    cut = faulty.iloc[np.r_[0:280, 360:ROWS]]
    assert len(detector.events(cut, merge=150)) == 2
    assert len(detector.events(cut.to_numpy(), merge=150)) == 1
    for wrong in ("soon", -1, 1.5):
        with pytest.raises(ValueError, match="merge"):
            detector.events(faulty, merge=wrong)  # type: ignore[arg-type]
    timeless = KoopmanDetector(rank=8, observables=32).fit(waves(1500).to_numpy())
    with pytest.raises(ValueError, match="sampling period is known"):
        timeless.events(faulty.to_numpy(), min_duration="1h")


def test_training_data_with_a_gap_is_that_with_a_missing_row(faulty: pd.DataFrame) -> None:
    small: dict[str, Any] = {"rank": 4, "observables": 8}
    train = waves(900)
    gapped = KoopmanDetector(**small).fit(train.drop(train.index[400:450]))
    values = np.insert(train.drop(train.index[400:450]).to_numpy(), 400, np.nan, axis=0)
    expected = KoopmanDetector(**small, sample_period=60.0).fit(values)
    np.testing.assert_array_equal(gapped.operator_, expected.operator_)
    assert gapped.threshold_ == expected.threshold_
    np.testing.assert_array_equal(gapped.learn(faulty).operator_, expected.learn(faulty.to_numpy()).operator_)


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
def test_a_budget_needs_nothing_but_times(detector: KoopmanDetector) -> None:
    assert detector.model_.sample_period == 60.0
    small: dict[str, Any] = {"rank": 4, "observables": 8, "threshold": "1/week"}
    elapsed = waves(600).set_axis(pd.timedelta_range(0, periods=600, freq="30s"))
    assert KoopmanDetector(**small).fit(elapsed).model_.sample_period == 30.0
    stretches = [waves(600), waves(500, "2026-05-01")]
    assert KoopmanDetector(**small).fit(stretches).model_.sample_period == 60.0
    fleet = federate({"one": waves(600), "two": waves(601)}, rounds=2, **small)
    assert {one.model_.sample_period for one in fleet.detectors.values()} == {60.0}
    assert fleet.admit("three", waves(400)).model_.sample_period == 60.0
    with pytest.raises(ValueError, match="sample_period"):
        KoopmanDetector(**small).fit(waves(600).reset_index(drop=True))


@pytest.mark.parametrize(
    "method",
    ["decision_function", "score_samples", "score_series", "predict", "explain", "witnesses", "forecast", "events"],
)
def test_another_sampling_rate_is_said(detector: KoopmanDetector, faulty: pd.DataFrame, method: str) -> None:
    said = "a row every 600 s, but the detector was fitted to one every 60 s"
    with pytest.warns(UserWarning, match=said) as warned:
        getattr(detector, method)(faulty.iloc[::10])
    assert [warning.filename for warning in warned] == [__file__]  # the line that called is to be mended
    getattr(detector, method)(faulty.to_numpy())  # rows without times have no rate


def test_stretches_keep_their_own_gaps(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    cut, kept = with_holes(faulty)
    hole = np.full((6, 3), np.nan)  # between two stretches; longer than what is bridged
    full = np.concatenate([np.where(kept[:, None], faulty, np.nan), hole, faulty.to_numpy()])
    shown = np.concatenate([kept, np.ones(6 + ROWS, dtype=bool)])
    np.testing.assert_array_equal(detector.decision_function([cut, faulty]), detector.decision_function(full)[shown])


def test_times_out_of_order_are_refused(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    swapped = faulty.iloc[[0, 1, 3, 2, *range(4, ROWS)]]
    twice = faulty.iloc[[0, 1, 1, *range(2, ROWS)]]
    unknown = faulty.set_axis(faulty.index.where(faulty.index != faulty.index[5]))
    for call in (KoopmanDetector().fit, detector.predict, detector.explain, detector.learn, detector.events):
        with pytest.raises(ValueError, match=r"row 3, 2026-03-01 00:02.*before that of row 2, .*sort"):
            call(swapped)
        with pytest.raises(ValueError, match=r"Rows 1 and 2 have the same time, 2026-03-01 00:01:00\+01:00; keep one"):
            call(twice)
        with pytest.raises(ValueError, match="time of row 5 is missing"):
            call(unknown)
    with pytest.raises(ValueError, match="stretch 1: Rows 1 and 2"):
        detector.predict([faulty, twice])
    with pytest.raises(ValueError, match="Device 'pump': Rows 1 and 2"):
        federate({"pump": twice})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 6))
def test_missing_rows_are_those_of_a_walk_along_the_clock(steps: list[int], most: int) -> None:
    times = np.cumsum([0, *steps]).astype(float)
    usual, expected, at = float(np.median(steps)), [], [0]
    for row, step in enumerate(steps, start=1):
        missing = max(round(step / usual) - 1, 1) if step > 1.5 * usual else 0
        expected += [row] * min(missing, most)
        at.append(at[-1] + 1 + missing)
    assert missing_before(times, most).tolist() == expected
    assert grid_positions(times).tolist() == at


@pytest.mark.slow
def test_pandas_is_never_imported_unless_a_frame_comes_in() -> None:
    code = (
        "import sys, numpy as np; from fedkad import KoopmanDetector; x = np.sin(np.arange(900)[:, None] / [[7, 9]]);"
        "d = KoopmanDetector(rank=4, observables=8).fit(x); d.events(x); d.explain(x); d.stream().update(x[0]);"
        "print({'pandas', 'sklearn', 'polars', 'xarray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_sample_by_names(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    by_name, in_order = detector.stream(), detector.stream()
    for sample in faulty.iloc[:40].to_dict("records"):
        backwards = dict(reversed(sample.items()))
        assert by_name.update(backwards) == in_order.update(list(sample.values()))
    assert by_name.update({"a": None, "b": 1.0, "c": 1.0}).absent == ["a"]
    with pytest.raises(ValueError, match="no channel 'c'; the channels are a, b, c"):
        by_name.update({"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="unknown channel 'd'"):
        by_name.update({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    with pytest.raises(ValueError, match="does not consist of numbers"):
        by_name.update({"a": "on", "b": 1.0, "c": 1.0})


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
def test_a_federation_fits_a_screen() -> None:
    many = federate({f"pump-{k:03d}": waves(300 + k) for k in range(9)}, rounds=2, rank=2, observables=0, window=4)
    assert repr(many) == "Federation(9 devices: pump-000, pump-001, pump-002, …, pump-008; 2 rounds; subspace 12 x 2)"


def test_what_works_with_polars(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    """Numbers and names, as with arrays; its frames have no index, so times do not count and arrays come out."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(faulty.to_dict("list"))
    np.testing.assert_array_equal(detector.decision_function(frame), detector.decision_function(faulty.to_numpy()))
    assert isinstance(detector.explain(frame), np.ndarray)
    assert isinstance(detector.events(frame), tuple)
    fitted = KoopmanDetector(rank=4, observables=8).fit(frame)
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="b, a, c instead of a, b, c"):
        detector.predict(frame.select("b", "a", "c"))
    with pytest.raises(ValueError, match=r"Channel 'time' holds times.*set_index\('time'\)"):
        fitted.fit(frame.with_columns(time=polars.Series(faulty.index.tz_localize(None).to_list())))


def test_what_works_with_xarray(detector: KoopmanDetector, faulty: pd.DataFrame) -> None:
    """A DataArray (time, channel) is its array; `to_pandas` brings names and times along."""
    xarray = pytest.importorskip("xarray")
    naive = faulty.tz_localize(None)
    array = xarray.DataArray(naive, dims=("time", "channel"))
    np.testing.assert_array_equal(detector.decision_function(array), detector.decision_function(faulty.to_numpy()))
    assert isinstance(detector.explain(array), np.ndarray)
    pd.testing.assert_frame_equal(detector.explain(array.to_pandas()), detector.explain(naive), check_names=False)
    with pytest.raises(ValueError, match=r"\(time, channel\)"):
        detector.predict(array.to_dataset("channel"))
