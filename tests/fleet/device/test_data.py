"""What a device trains on: its table, read once, or its agent's model."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the extra 'fleet' is not installed")

from fedkad import KoopmanDetector
from fedkad.detect.series import Series
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.protocol import ProtocolError, Terms
from fedkad.federation.settings import Consensus
from fedkad.fleet.device.data import DeviceData, read_settings
from fedkad.fleet.device.settings import DeviceFile
from fedkad.koopman.lifting import Lifting

CHANNELS = ("flow", "level")
TERMS = Terms.of(
    "run-1", Lifting(2, 4, 6, 0), CHANNELS, horizon=1, encoding="float32", consensus=Consensus(rank=3, seed=0)
)


def values(seed: int = 0) -> Any:
    t = np.arange(900.0)[:, None]
    return np.sin(t / np.array([[5.0, 11.0]])) + 0.1 * np.random.default_rng(seed).normal(size=(900, 2))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write(tmp_path / "pump.csv", values())
    return tmp_path / "pump.csv"


def write(path: Path, rows: Any) -> None:
    path.write_text("\n".join([",".join(CHANNELS), *(",".join(map(repr, map(float, row))) for row in rows)]) + "\n")


def data(folder: Path, table: Path | None, **settings: Any) -> DeviceData:
    return DeviceData("pump", DeviceState(folder / "device"), table, DeviceFile(**settings))


def test_a_table_is_read_once_until_it_changes(tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data(tmp_path, table).detector(TERMS)
    with monkeypatch.context() as blind:
        blind.setattr("fedkad.fleet.device.data.read_device", None)
        again = data(tmp_path, table).detector(TERMS)
    assert again.threshold_ == first.threshold_
    write(table, values(1))
    assert data(tmp_path, table).detector(TERMS).threshold_ != first.threshold_


def test_channels_are_selected_by_name_in_the_order_of_the_fleet(tmp_path: Path, table: Path) -> None:
    plain = data(tmp_path, table).detector(TERMS)
    turned = data(tmp_path, table).detector(replace(TERMS, channels=("level", "flow")))
    assert turned.model_.setup.channel_names == ("level", "flow")
    expected = KoopmanDetector(window=4, rank=3, observables=6, seed=0).fit(
        Series(values()[:, ::-1], ("level", "flow"))
    )
    assert turned.threshold_ == pytest.approx(expected.threshold_, rel=1e-12)
    again = data(tmp_path, table).detector(TERMS)
    assert (again.model_.setup.channel_names, again.threshold_) == (CHANNELS, plain.threshold_)


def test_a_missing_channel_is_named_even_if_the_table_was_read_before(tmp_path: Path, table: Path) -> None:
    other = replace(TERMS, channels=("flow", "speed"))
    for _ in range(2):
        with pytest.raises(
            ProtocolError, match=r"asks for the channels flow, speed, .* device 'pump' lacks speed; give"
        ):
            data(tmp_path, table).detector(other)
        data(tmp_path, table).detector(TERMS)


def test_without_a_table_the_agents_model_is_used(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="neither a table"):
        data(tmp_path, None).detector(TERMS)
    model = KoopmanDetector(window=4, rank=3, observables=6).fit(Series(values(), CHANNELS))
    state = DeviceState(tmp_path / "device")
    with state.locked():
        model.save(state.model)
    assert data(tmp_path, None).detector(TERMS).threshold_ == model.threshold_
    for changes in ({"channels": ("level", "flow")}, {"window": 5}):
        with pytest.raises(ProtocolError, match=r"differs?: the server has"):
            data(tmp_path, None).detector(replace(TERMS, **changes))
    with pytest.raises(ProtocolError, match=r"\[detector\] applies to a table"):
        data(tmp_path, None, detector={"threshold": 5.0}).detector(TERMS)


def test_the_server_is_told_what_is_wrong_in_the_settings_of_a_device(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    assert read_settings(tmp_path) == DeviceFile()
    path.write_text(
        'device = "pump"\nmade_by = "fedkad 0.1"\n[detector]\nthreshold = "1/week"\n[reading]\ntime = "t"\n'
    )
    found = read_settings(tmp_path)
    assert (found.detector, found.reading.time, found.privacy.most_releases) == ({"threshold": "1/week"}, "t", None)
    for text, sentence in {
        "[privacy]\nnoise = -1": "device.toml: noise = -1 in [privacy] must be at least 0.",
        "[privacy]\nmost_releases = 1.5": "device.toml: most_releases = 1.5 in [privacy] must be an integer.",
        "[reading]\ntimes = 3": "device.toml: [reading] has no key 'times'; did you mean 'time'? Valid keys:",
        "[detector]\nwindow = 3": "device.toml: [detector] has no key 'window'. Valid keys: inputs,",
        "[detector]\nrisk = 2": "device.toml: risk = 2 in [detector] must be",
        "reading = 3": "device.toml: reading = 3 must be a section",
    }.items():
        path.write_text(text)
        with pytest.raises(ProtocolError, match="^" + re.escape(sentence)):
            read_settings(tmp_path)
