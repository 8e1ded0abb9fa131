"""The estimator as users of scikit-learn expect it, and what it says to bad input."""

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedkad import KoopmanDetector
from tests.fixtures import naive

SMALL: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4, "validation": 0.4, "private": 2}
TRAIN = naive.normal_series(280)


@pytest.fixture(scope="module")
def detector() -> KoopmanDetector:
    return KoopmanDetector(**SMALL).fit(TRAIN)


@pytest.fixture(scope="module")
def named() -> KoopmanDetector:
    return KoopmanDetector(**SMALL).fit(pd.DataFrame(TRAIN, columns=["temperature", "pressure"]))


# -- parameters ---------------------------------------------------------------------------------------------------


def test_the_signature_is_the_designs() -> None:
    expected = {
        "window": 20,
        "rank": 24,
        "observables": 128,
        "horizon": 1,
        "ridge": 1e-2,
        "spectral_cap": 0.995,
        "smoothing": 5,
        "scoring": "witnesses",
        "threshold": "pot",
        "validation": 0.15,
        "risk": 1e-4,
        "private": 8,
        "inputs": (),
        "sample_period": None,
        "seed": 0,
    }
    parameters = inspect.signature(KoopmanDetector).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == expected
    assert KoopmanDetector().get_params() == expected
    assert KoopmanDetector().get_params(deep=False) == expected


def test_the_constructor_only_stores() -> None:
    odd = object()
    detector = KoopmanDetector(window=odd, rank=-1, threshold=odd)  # type: ignore[arg-type]
    assert vars(detector) == detector.get_params()
    assert detector.get_params()["window"] is odd


def test_get_set_and_clone() -> None:
    detector = KoopmanDetector(**SMALL).fit(TRAIN)
    assert detector.set_params(rank=2, threshold="quantile") is detector
    assert detector.get_params()["rank"] == 2
    with pytest.raises(ValueError, match=r"no parameter 'colour'.*window"):
        detector.set_params(colour="blue")
    copy = clone(detector)
    assert type(copy) is KoopmanDetector
    assert copy.get_params() == detector.get_params()
    assert not hasattr(copy, "threshold_")
    assert copy.fit(TRAIN).subspace_.shape == (10, 2 + 2)
    assert clone(KoopmanDetector.paper(rank=3)).scoring == "paper"


def test_set_params_takes_effect_at_the_next_fit_only(detector: KoopmanDetector) -> None:
    other = KoopmanDetector(**SMALL).fit(TRAIN)
    other.set_params(window=7, rank=5, horizon=3, scoring="paper")
    np.testing.assert_array_equal(other.decision_function(TRAIN), detector.decision_function(TRAIN))


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(KoopmanDetector()) == "KoopmanDetector()"
    assert repr(KoopmanDetector(rank=3, threshold="1/week")) == "KoopmanDetector(rank=3, threshold='1/week')"


def test_the_papers_settings() -> None:
    paper = KoopmanDetector.paper()
    assert paper.get_params() == {**KoopmanDetector().get_params(), "scoring": "paper"}
    assert KoopmanDetector.paper(rank=32).rank == 32


def test_fit_returns_itself_ignores_y_and_sets_the_attributes(detector: KoopmanDetector) -> None:
    assert KoopmanDetector(**SMALL).fit(TRAIN, np.zeros(280)).threshold_ == detector.threshold_
    assert detector.subspace_.shape == (10, 3 + 2)
    assert detector.operator_.shape == (5, 5)
    assert isinstance(detector.threshold_, float)
    assert detector.n_features_in_ == 2
    np.testing.assert_allclose(detector.subspace_.T @ detector.subspace_, np.eye(5), atol=1e-10)
    scaled = detector.scaling_.transform(TRAIN)
    assert detector.lifting_.transform(scaled).shape == (278, 10)
    assert max(abs(np.linalg.eigvals(detector.operator_))) <= 0.995 + 1e-12


def test_fitting_again_forgets_the_first_fit() -> None:
    detector = KoopmanDetector(**SMALL).fit(pd.DataFrame(naive.normal_series(280, 3), columns=list("abc")))
    detector.fit(TRAIN)
    assert not hasattr(detector, "feature_names_in_")
    np.testing.assert_array_equal(detector.operator_, KoopmanDetector(**SMALL).fit(TRAIN).operator_)
    assert detector.model_.setup.channel_names == ("0", "1")


def test_an_unfitted_detector_says_so() -> None:
    for method in ("decision_function", "score_series", "predict", "explain", "learn"):
        with pytest.raises(ValueError, match="not fitted"):
            getattr(KoopmanDetector(), method)(TRAIN)
    with pytest.raises(ValueError, match="not fitted"):
        KoopmanDetector().stream()
    for name in ("memory_", "threshold_", "subspace_", "operator_", "scaling_", "n_features_in_", "feature_names_in_"):
        with pytest.raises(ValueError, match="not fitted"):
            getattr(KoopmanDetector(), name)
        assert not hasattr(KoopmanDetector(), name)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("window", [0, -1, 2.5, "3", None]),
        ("rank", [0, 2.5, None]),
        ("horizon", [0, -2, 1.5]),
        ("smoothing", [0, 2.5]),
        ("observables", [-1, 2.5]),
        ("seed", [-1, 0.5, None]),
        ("ridge", [-1e-9, "x", float("nan"), float("inf"), None]),
        ("spectral_cap", [0.0, -1.0, float("nan")]),
        ("validation", [0.0, 1.0, -0.1, None]),
        ("risk", [0.0, 1.0, 2.0, None]),
        ("scoring", ["other", None, 3]),
        ("private", [-1, 2.5, None]),
        ("inputs", ["1", None, 1, [2], [-1], [True], [1.0], ["flow"]]),
        ("sample_period", [0.0, -5.0, "x"]),
        ("threshold", ["other", "0/week", None, [1.0], float("nan")]),
    ],
)
def test_a_wrong_parameter_is_named(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=name):
            KoopmanDetector(**{**SMALL, name: value}).fit(TRAIN)


def test_a_budget_needs_a_sampling_rate() -> None:
    with pytest.raises(ValueError, match="sample_period"):
        KoopmanDetector(**SMALL, threshold="1/week").fit(TRAIN)


def test_a_rank_beyond_the_dimension_is_refused_with_its_sum() -> None:
    with pytest.raises(ValueError, match=r"rank=11.*10.*2 channels x window 3 \+ 4"):
        KoopmanDetector(**{**SMALL, "rank": 11}).fit(TRAIN)
    KoopmanDetector(**{**SMALL, "rank": 10}).fit(TRAIN)


@pytest.mark.parametrize(("scoring", "columns"), [("witnesses", 10), ("paper", 3)])
def test_private_directions_are_those_of_witnesses_and_as_many_as_there_is_room_for(scoring: str, columns: int) -> None:
    detector = KoopmanDetector(**{**SMALL, "private": 8, "scoring": scoring}).fit(TRAIN)
    assert detector.subspace_.shape == (10, columns)


# -- data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.int8, object, str])
def test_numbers_of_any_kind_are_numbers(kind: Any) -> None:
    values = np.round(TRAIN)
    expected = KoopmanDetector(**SMALL).fit(values)
    other = KoopmanDetector(**SMALL).fit(values.astype(kind))
    np.testing.assert_allclose(other.operator_, expected.operator_, atol=1e-12)
    assert other.threshold_ == pytest.approx(expected.threshold_)
    KoopmanDetector(**SMALL).fit(values > 5.0)
    KoopmanDetector(**SMALL).fit(values.tolist())


def test_the_input_is_not_changed(detector: KoopmanDetector) -> None:
    series = TRAIN.copy()
    series[5] = np.nan
    before = series.copy()
    KoopmanDetector(**SMALL).fit(series).predict(series)
    detector.explain(series)
    np.testing.assert_array_equal(series, before)


def test_a_list_of_stretches_is_their_concatenation_with_a_gap() -> None:
    parts = [TRAIN[:100], TRAIN[120:280], naive.normal_series(90, seed=4)]
    gap = np.full((1, 2), np.nan)
    joined = np.concatenate([parts[0], gap, parts[1], gap, parts[2]])
    one, two = KoopmanDetector(**SMALL).fit(parts), KoopmanDetector(**SMALL).fit(joined)
    np.testing.assert_array_equal(one.operator_, two.operator_)
    assert one.threshold_ == two.threshold_
    np.testing.assert_array_equal(one.decision_function(parts), one.decision_function(joined))
    frames = [pd.DataFrame(part, columns=["a", "b"]) for part in parts]
    assert list(KoopmanDetector(**SMALL).fit(tuple(frames)).feature_names_in_) == ["a", "b"]
    frames[2] = frames[2][["b", "a"]]
    with pytest.raises(ValueError, match=r"stretch 2.*b, a instead of a, b"):
        KoopmanDetector(**SMALL).fit(frames)
    with pytest.raises(ValueError, match=r"stretch 1.*3 channel"):
        KoopmanDetector(**SMALL).fit([TRAIN, np.ones((10, 3))])


def test_names_come_from_a_frame_and_rank_the_causes(named: KoopmanDetector) -> None:
    assert list(named.feature_names_in_) == ["temperature", "pressure"]
    stream = named.stream()
    readings = [stream.update(row) for row in TRAIN[:10]]
    assert {name for name, _ in readings[-1].channels} == {"temperature", "pressure"}
    frame = pd.DataFrame(TRAIN, columns=["temperature", "pressure"])
    np.testing.assert_array_equal(named.decision_function(frame), named.decision_function(TRAIN))


def test_missing_values_of_a_frame_are_gaps() -> None:
    frame = pd.DataFrame({"a": pd.array([1, 2, None, 4] * 70, dtype="Int64"), "b": TRAIN[:, 1]})
    tiny: dict[str, Any] = {"window": 1, "rank": 2, "observables": 2, "validation": 0.4}
    blind = np.isnan(KoopmanDetector(scoring="paper", **tiny).fit(TRAIN).decision_function(frame))
    np.testing.assert_array_equal(blind[:8], [True, False, True, True, False, False, True, True])
    # Witnesses judge such a row by its other channel.
    witnesses = KoopmanDetector(**tiny).fit(TRAIN)
    np.testing.assert_array_equal(np.isnan(witnesses.decision_function(frame))[:8], [True] + [False] * 7)
    stream = witnesses.stream()
    absent = [stream.update(row).absent for row in frame.to_numpy(dtype=float, na_value=np.nan)[:4]]
    assert absent == [[], [], ["0"], []]


def test_other_channels_are_refused(named: KoopmanDetector, detector: KoopmanDetector) -> None:
    swapped = pd.DataFrame(TRAIN, columns=["pressure", "temperature"])
    with pytest.raises(ValueError, match="pressure, temperature instead of temperature, pressure"):
        named.predict(swapped)
    with pytest.raises(ValueError, match=r"missing 'pressure'.*unknown 'flow'"):
        named.predict(pd.DataFrame(TRAIN, columns=["temperature", "flow"]))
    for one in (named, detector):
        with pytest.raises(ValueError, match=r"3 channel.*2"):
            one.predict(np.ones((30, 3)))
        with pytest.raises(ValueError, match=r"1 channel.*2"):
            one.explain(np.ones((30, 1)))


def test_text_is_refused_with_row_and_channel() -> None:
    frame = pd.DataFrame({"a": [1.0] * 50, "b": [2.0] * 49 + ["off"]})
    with pytest.raises(ValueError, match="Row 49 of channel 'b' is 'off'"):
        KoopmanDetector().fit(frame)
    with pytest.raises(ValueError, match="Row 1 of channel 1 is 'x'"):
        KoopmanDetector().fit(np.array([[None, 1.0], [2.0, "x"]], dtype=object))
    stamped = pd.DataFrame({"time": pd.date_range("2026-01-01", periods=50), "a": np.ones(50)})
    with pytest.raises(ValueError, match="channel 'time'"):
        KoopmanDetector().fit(stamped)
    with pytest.raises(ValueError, match="complex"):
        KoopmanDetector().fit(np.ones((50, 2), dtype=complex))
    with pytest.raises(ValueError, match=r"stretch 1.*Row 3 of channel 0"):
        KoopmanDetector().fit([np.ones((5, 1)), np.array([[1.0], [1.0], [1.0], ["?"]], dtype=object)])


def test_infinite_values_are_refused_with_row_and_channel(detector: KoopmanDetector) -> None:
    series = TRAIN.copy()
    series[17, 1] = -np.inf
    for call in (KoopmanDetector().fit, detector.predict, detector.learn):
        with pytest.raises(ValueError, match="Row 17 of channel 1 is infinite"):
            call(series)
    frame = pd.DataFrame(series, columns=["a", "b"])
    with pytest.raises(ValueError, match="Row 17 of channel 'b' is infinite"):
        KoopmanDetector().fit(frame)


def test_a_channel_without_values_is_refused() -> None:
    series = TRAIN.copy()
    series[:, 1] = np.nan
    with pytest.raises(ValueError, match="Channel 1 has no value"):
        KoopmanDetector(**SMALL).fit(series)
    with pytest.raises(ValueError, match="Channel 'b' has no value"):
        KoopmanDetector(**SMALL).fit(pd.DataFrame(series, columns=["a", "b"]))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(time, channel\).*1 dimension.*reshape"):
        KoopmanDetector().fit(np.ones(100))
    with pytest.raises(ValueError, match="3 dimension"):
        KoopmanDetector().fit(np.ones((5, 5, 5)))
    with pytest.raises(ValueError, match="no channel"):
        KoopmanDetector().fit(np.ones((100, 0)))
    with pytest.raises(ValueError, match="dimension"):
        KoopmanDetector().fit([])
    with pytest.raises(ValueError, match=r"\(time, channel\)"):
        KoopmanDetector().fit([[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match=r"\(time, channel\)"):
        KoopmanDetector().fit(None)


@pytest.mark.parametrize("rows", [0, 1, 3, 22])
def test_too_few_rows_are_refused_with_the_number_needed(rows: int) -> None:
    with pytest.raises(ValueError, match=r"(Too few rows|no rows).*"):
        KoopmanDetector(**SMALL).fit(TRAIN[:rows])


def test_rows_that_never_make_a_window_are_too_few() -> None:
    series = TRAIN.copy()
    series[::3] = np.nan
    with pytest.raises(ValueError, match="Too few rows: only 0 windows of 3"):
        KoopmanDetector(**SMALL).fit(series)
    alternating = TRAIN.copy()
    alternating[::2, 0] = np.nan
    alternating[1::2, 1] = np.nan  # every channel has values and no row is complete
    with pytest.raises(ValueError, match="Too few rows"):
        KoopmanDetector(**SMALL).fit(alternating)


def test_huge_and_tiny_units_change_nothing() -> None:
    detector = KoopmanDetector(**SMALL).fit(TRAIN)
    for unit in (1e-100, 1e100):
        other = KoopmanDetector(**SMALL).fit(TRAIN * unit)
        np.testing.assert_allclose(other.operator_, detector.operator_, atol=1e-8)
        assert other.threshold_ == pytest.approx(detector.threshold_, rel=1e-6)


def test_parameters_are_read_at_fit_and_not_later() -> None:
    detector = KoopmanDetector(**SMALL).fit(TRAIN)
    scores, alarms = detector.decision_function(TRAIN), detector.predict(TRAIN)
    detector.set_params(smoothing=1, horizon=3, scoring="paper", threshold="quantile", rank=2, window=9)
    np.testing.assert_array_equal(detector.decision_function(TRAIN), scores)
    np.testing.assert_array_equal(detector.predict(TRAIN), alarms)
    stream = detector.stream()
    np.testing.assert_allclose([stream.update(row).score for row in TRAIN], scores, rtol=1e-9)
    assert len(detector.fit(TRAIN).operator_) == 2  # and now they count: the paper has no private directions


def test_a_refit_that_fails_leaves_the_detector_as_it_was() -> None:
    detector = KoopmanDetector(**SMALL).fit(TRAIN)
    scores = detector.decision_function(TRAIN)
    with pytest.raises(ValueError, match="Too few rows"):
        detector.fit(np.ones((15, 5)))
    np.testing.assert_array_equal(detector.decision_function(TRAIN), scores)


def test_a_prepared_detector_cannot_detect_yet() -> None:
    detector = KoopmanDetector(**SMALL).fit(TRAIN).prepare(2.0 * TRAIN)
    with pytest.raises(ValueError, match="not fitted"):
        detector.predict(TRAIN)


def test_masked_values_are_gaps() -> None:
    detector = KoopmanDetector(**SMALL).fit(TRAIN)
    masked = np.ma.masked_array(TRAIN, mask=np.zeros(TRAIN.shape, dtype=bool))
    masked[50, 0] = np.ma.masked
    broken = TRAIN.copy()
    broken[50, 0] = np.nan
    np.testing.assert_array_equal(detector.decision_function(masked), detector.decision_function(broken))


def test_names_of_arrow_tables_and_duplicate_names() -> None:
    table = pa.table({"a": TRAIN[:, 0], "b": TRAIN[:, 1]})
    assert KoopmanDetector(**SMALL).fit(table).model_.setup.channel_names == ("a", "b")
    with pytest.raises(ValueError, match="Two channels are called 'a'"):
        KoopmanDetector(**SMALL).fit(pd.DataFrame(TRAIN, columns=["a", "a"]))


def test_in_a_pipeline() -> None:
    pipeline = make_pipeline(StandardScaler(), KoopmanDetector(**SMALL)).fit(TRAIN)
    assert pipeline.predict(TRAIN).shape == (len(TRAIN),)


@pytest.mark.parametrize(("factor", "offset"), [(1e-3, 101_325.0), (100.0, 1.7e9)])
def test_units_and_offsets_do_not_matter(factor: float, offset: float) -> None:
    plain = KoopmanDetector(**SMALL).fit(TRAIN)
    other = KoopmanDetector(**SMALL).fit(factor * TRAIN + offset)
    np.testing.assert_allclose(
        other.decision_function(factor * TRAIN + offset), plain.decision_function(TRAIN), rtol=1e-3, equal_nan=True
    )


def test_values_too_large_to_square_are_refused() -> None:
    with pytest.raises(ValueError, match=r"channel 0.*too large"):
        KoopmanDetector(**SMALL).fit(1e200 * TRAIN)


def test_a_subspace_that_cannot_be_adopted() -> None:
    detector = KoopmanDetector(**SMALL).fit(TRAIN)
    with pytest.raises(ValueError, match="shape"):
        detector.adopt(np.eye(3))
    with pytest.raises(ValueError, match="orthonormal"):
        detector.adopt(np.ones((10, 3)))


def waves(rows: int) -> NDArray[np.float64]:
    series = np.sin(np.arange(rows)[:, None] / [[7.0, 11.0]])
    return series + 0.05 * np.random.default_rng(0).normal(size=series.shape)


def test_an_absurd_value_is_told_as_such_by_its_event() -> None:
    detector = KoopmanDetector(rank=8).fit(waves(1500))
    series = waves(400)
    series[300, 1] = 500.0
    (event,) = [event for event in detector.events(series) if event.start <= 300 <= event.end]
    assert event.kind == "place"
    assert event.sentence.startswith("1 is outside: 500 where ")
    assert event.channels[0][0] == "1"


def test_an_absurd_value_is_told_even_if_what_follows_scores_higher() -> None:
    detector = KoopmanDetector(rank=8).fit(waves(1500))
    series = waves(400)
    series[300, 1], series[312:330, 0] = 40.0, series[312:330, 0] + 4.0
    (event,) = detector.events(series)
    assert (event.start, event.causes[0].channel) == (300, "0")
    assert event.peak > 310
    assert event.sentence.startswith("1 is outside: 40 where ")
    assert [cause.channel for cause in event.main_causes] == ["1", "0"]  # that of the sentence first


def test_stretches_too_short_for_the_horizon_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="Too few rows"):
        KoopmanDetector(rank=8, horizon=5).fit([waves(23)] * 40)


def test_a_frame_with_times_gives_the_sampling_period() -> None:
    frame = pd.DataFrame(waves(1500), index=pd.date_range("2026-01-01", periods=1500, freq="30s"))
    detector = KoopmanDetector(rank=8, threshold="1/week").fit(frame)
    assert detector.model_.settings.sample_period == 30.0


def test_inputs_are_names_before_they_are_numbers() -> None:
    frame = pd.DataFrame(waves(1500), columns=[1, 0])
    for inputs in ([1], ["1"], np.array([1]), range(1, 2)):
        detector = KoopmanDetector(rank=8, inputs=inputs).fit(frame)  # type: ignore[arg-type]
        assert detector.model_.setup.inputs.tolist() == [True, False]
