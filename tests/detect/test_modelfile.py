"""The model file: everything back, nothing half-written, nothing damaged or foreign let in."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from fedkad import FewRowsWarning, KoopmanDetector
from fedkad.detect import modelfile
from fedkad.detect.modelfile import DamagedFileError, ModelFileError, read_model, save_model, write_model
from fedkad.detect.witnesses import WitnessScoring
from tests.fixtures import naive

SMALL: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4, "validation": 0.4}


@pytest.fixture(scope="module")
def detector() -> KoopmanDetector:
    return KoopmanDetector(**SMALL).fit(naive.normal_series(280))


@pytest.fixture
def path(detector: KoopmanDetector, tmp_path: Path) -> Path:
    detector.save(tmp_path / "pump.fedkad")
    return tmp_path / "pump.fedkad"


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        KoopmanDetector.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scoring": "paper", "horizon": 2},
        {"horizon": 3, "smoothing": 1},
        {"threshold": 3.0},
        {"threshold": "1/week", "sample_period": 5.0},
        {"observables": 0},
    ],
    ids=str,
)
def test_a_loaded_detector_gives_the_same_numbers(changes: dict[str, Any], tmp_path: Path) -> None:
    train, series = naive.normal_series(280), naive.normal_series(120, seed=1)
    series[40] = np.nan
    series[60:70] += 30.0
    detector = KoopmanDetector(**{**SMALL, **changes}).fit(train)
    for statistics in (True, False):
        detector.save(str(tmp_path / "m"), statistics=statistics)
        loaded = KoopmanDetector.load(str(tmp_path / "m"))
        assert loaded.get_params() == detector.get_params()
        for method in ("decision_function", "score_series", "predict", "explain"):
            np.testing.assert_array_equal(getattr(loaded, method)(series), getattr(detector, method)(series))
        assert loaded.threshold_ == detector.threshold_
        assert loaded.n_features_in_ == 2
        assert loaded.model_.setup.channel_names == ("0", "1")
        one, two = loaded.stream(), detector.stream()
        for sample in series:
            a, b = one.update(sample), two.update(sample)
            assert (a.is_anomaly, a.state, a.threshold) == (b.is_anomaly, b.state, b.threshold)
    loaded = KoopmanDetector.load(str(tmp_path / "m"))
    detector.save(tmp_path / "m")
    again = KoopmanDetector.load(tmp_path / "m").learn(naive.normal_series(100, seed=3))
    detector.learn(naive.normal_series(100, seed=3))
    np.testing.assert_array_equal(again.operator_, detector.operator_)
    assert again.threshold_ == detector.threshold_


def test_names_few_rows_and_hand_set_thresholds_survive(tmp_path: Path) -> None:
    frame = pd.DataFrame(naive.normal_series(90), columns=["Température", 'p "1"'])
    with pytest.warns(FewRowsWarning):
        detector = KoopmanDetector(**SMALL).fit(frame)
    detector.threshold_ = 12.5
    detector.save(tmp_path / "m")
    loaded = KoopmanDetector.load(tmp_path / "m")
    assert list(loaded.feature_names_in_) == ["Température", 'p "1"']
    assert loaded.model_.few_rows
    assert loaded.threshold_ == 12.5
    assert loaded.stream().threshold == 12.5
    assert loaded.memory_.held_out.few


def test_the_same_model_is_the_same_file(detector: KoopmanDetector, tmp_path: Path) -> None:
    for k in range(6):
        detector.save(tmp_path / str(k))
        detector = KoopmanDetector.load(tmp_path / str(k))
    assert len({(tmp_path / str(k)).read_bytes() for k in range(6)}) == 1


def test_numbers_from_numpy_are_fine_as_parameters(tmp_path: Path) -> None:
    detector = KoopmanDetector(
        window=np.int64(3),  # type: ignore[arg-type]
        rank=np.int32(3),  # type: ignore[arg-type]
        observables=4,
        validation=np.float64(0.4),
        threshold=np.float32(2.0),  # type: ignore[arg-type]
        seed=np.uint8(1),  # type: ignore[arg-type]
    ).fit(naive.normal_series(280))
    detector.save(tmp_path / "m")
    assert KoopmanDetector.load(tmp_path / "m").threshold_ == 2.0


def test_without_statistics_the_file_is_small_and_can_only_detect(detector: KoopmanDetector, tmp_path: Path) -> None:
    detector.save(tmp_path / "whole")
    detector.save(tmp_path / "small", statistics=False)
    assert (tmp_path / "small").stat().st_size < 0.6 * (tmp_path / "whole").stat().st_size
    names = set(load_file(tmp_path / "small"))
    assert not {name for name in names if "statistics" in name or "held_out" in name}
    loaded = KoopmanDetector.load(tmp_path / "small")
    with pytest.raises(ValueError, match="without its statistics"):
        loaded.learn(naive.normal_series(50))
    with pytest.raises(ValueError, match="without its statistics"):
        loaded.adopt(loaded.subspace_)
    loaded.save(tmp_path / "again")
    KoopmanDetector.load(tmp_path / "again").predict(naive.normal_series(30))


def test_the_file_is_safetensors_without_the_lifting_or_any_pickle(path: Path, detector: KoopmanDetector) -> None:
    content = path.read_bytes()
    assert b"\x80\x04" not in content[:8]
    assert b"pickle" not in content
    arrays = load_file(path)  # an independent reader understands it
    np.testing.assert_array_equal(arrays["subspace"], detector.subspace_)
    weights = detector.lifting_.weights
    assert all(array.shape != weights.shape for array in arrays.values())
    assert detector.lifting_.digest.encode() in content


# -- atomic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    before = path.read_bytes()
    other = KoopmanDetector(**SMALL).fit(naive.normal_series(280, seed=9))

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(OSError, match="no space left"):
            other.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    other.save(path)
    assert KoopmanDetector.load(path).threshold_ == other.threshold_


def test_a_file_keeps_to_the_umask(path: Path) -> None:
    mask = os.umask(0o027)
    try:
        KoopmanDetector(**SMALL).fit(naive.normal_series(280)).save(path)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640


# -- damaged and foreign ------------------------------------------------------------------------------------------


def test_a_truncated_file_is_refused(path: Path) -> None:
    content = path.read_bytes()
    for length in [*range(0, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:length])
        refusal(path)
    path.write_bytes(content + b"\0")
    refusal(path)


def test_a_flipped_byte_is_refused(path: Path) -> None:
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for at in [*range(0, header, 11), *range(header, len(content), 97)]:
        for mask in (0x01, 0x80):
            damaged = bytearray(content)
            damaged[at] ^= mask
            path.write_bytes(damaged)
            refusal(path)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": np.ones((2, 2))}, foreign)
    assert "not a FedKAD model" in refusal(foreign)
    save_file({"weight": np.ones((2, 2))}, foreign, metadata={"format": "pt"})
    assert "not a FedKAD model" in refusal(foreign)
    for content in (b"", b"time,temperature\n1,2\n", b"\x00" * 64, b"\xff" * 64, b"\x80\x04K\x01.", b"{}"):
        (tmp_path / "other").write_bytes(content)
        refusal(tmp_path / "other")
    assert "no such file" in refusal(tmp_path / "absent")
    (tmp_path / "folder").mkdir()
    refusal(tmp_path / "folder")


def test_another_version_is_refused_with_both_versions(
    detector: KoopmanDetector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(modelfile, "VERSION", 77)
        detector.save(tmp_path / "m")
    message = refusal(tmp_path / "m")
    assert "version 77" in message
    assert f"version {modelfile.VERSION}" in message


def rewrite(path: Path, change: Any) -> None:
    """Write the model again with another header but a digest that fits."""
    header, arrays = modelfile.read_model(path)
    change(header, arrays)
    modelfile.write_model(path, header, arrays)


def test_observables_that_cannot_be_drawn_again_are_refused(path: Path) -> None:
    rewrite(path, lambda header, _: header.update(lifting="0" * 64))
    assert "observables" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda header, arrays: arrays.pop("subspace"),
        lambda header, arrays: arrays.pop("residual.spread"),
        lambda header, arrays: arrays.pop("statistics.xx"),
        lambda header, arrays: header.pop("threshold"),
        lambda header, arrays: header["parameters"].update(colour="blue"),
        lambda header, arrays: header.update(parameters=3),
        lambda header, arrays: header.update(n_features_in="two"),
        lambda header, arrays: header.update(n_features_in=-1),
        lambda header, arrays: header.update(n_features_in=float("inf")),
    ],
)
def test_an_incomplete_model_is_refused(path: Path, change: Any) -> None:
    rewrite(path, change)
    refusal(path)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "metadata", [DEEP, json.dumps({"format": modelfile.FORMAT, "version": modelfile.VERSION, "header": DEEP})]
)
def test_a_header_without_a_bottom_is_damage(tmp_path: Path, metadata: str) -> None:
    save_file({"a": np.ones(2)}, tmp_path / "m", metadata={"fedkad": metadata})
    with pytest.raises(DamagedFileError, match="damaged"):
        read_model(tmp_path / "m")


def test_a_shape_without_an_end_is_damage(path: Path) -> None:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    layout = json.loads(content[8 : 8 + size])
    layout["operator"]["shape"] = [float("inf")]
    text = json.dumps(layout).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    with pytest.raises(DamagedFileError, match="not integers"):
        read_model(path)


def test_an_unfitted_detector_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not fitted"):
        KoopmanDetector().save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_where_learning_has_come_to_survives_and_older_files_have_nothing(path: Path, tmp_path: Path) -> None:
    header, arrays = read_model(path)
    loaded = KoopmanDetector.load(path)
    assert loaded.model_.learnt_through == ""
    save_model(tmp_path / "marked", replace(loaded.model_, learnt_through="feed:17"), loaded.memory_)
    assert KoopmanDetector.load(tmp_path / "marked").model_.learnt_through == "feed:17"
    write_model(tmp_path / "older", {k: v for k, v in header.items() if k != "learnt_through"}, arrays)
    assert KoopmanDetector.load(tmp_path / "older").model_.learnt_through == ""


def test_a_confirmation_survives_also_from_when_it_stood_behind_where_learning_had_come_to(
    path: Path, tmp_path: Path
) -> None:
    header, arrays = read_model(path)
    assert "confirmation" not in header  # of a model that none was told to
    loaded = KoopmanDetector.load(path)
    told = replace(loaded.model_, learnt_through="0f/pump:17", confirmation="c7")
    save_model(tmp_path / "told", told, loaded.memory_)
    write_model(tmp_path / "older", header | {"learnt_through": "0f/pump:17+c7"}, arrays)
    for name in ("told", "older"):
        model = KoopmanDetector.load(tmp_path / name).model_
        assert (model.learnt_through, model.confirmation) == ("0f/pump:17", "c7")
    write_model(tmp_path / "foreign", header | {"learnt_through": "2024-01-01T00:00:00+00:00"}, arrays)
    model = KoopmanDetector.load(tmp_path / "foreign").model_
    assert (model.learnt_through, model.confirmation) == ("2024-01-01T00:00:00+00:00", "")


def test_a_file_from_before_channels_wandered_on_their_own_scores_as_it_did(tmp_path: Path) -> None:
    values = np.sin(np.arange(900.0)[:, None] / [7.0, 11.0, 5.0])
    fitted = KoopmanDetector(rank=6).fit(values)
    fitted.save(tmp_path / "now")
    header, arrays = read_model(tmp_path / "now")
    del arrays["witnesses.bounds.wander"]
    arrays["witnesses.units"][2], arrays["held_out.places.wander"] = 2.0, np.array(2.0)
    write_model(tmp_path / "before", header, arrays)
    before = KoopmanDetector.load(tmp_path / "before")
    values[500:, 1] += 4.0
    now, then = (detector.witnesses(values)[-300:, 2] for detector in (fitted, before))
    scoring = fitted.model_.scoring
    assert isinstance(scoring, WitnessScoring)
    assert scoring.bounds.wander.tolist() == [0.5] * 3
    np.testing.assert_allclose(then, now / 2.0, rtol=1e-9)  # the root of 0.5 / 2
    assert before.memory_.ranges is not None
    assert before.memory_.ranges.wander.tolist() == [2.0] * 3
    before.learn(values[:400])
