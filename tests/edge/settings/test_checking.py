"""`fedkad-agent --check`: what stops an agent before it begins, what is only noted, and that nothing is written."""

import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad.detect import modelfile
from fedkad.detect.detector import FewRowsWarning, KoopmanDetector
from fedkad.detect.modelfile import load_model
from fedkad.detect.series import Series
from fedkad.edge import main
from fedkad.edge.settings import SettingsError, checking
from fedkad.edge.settings.checking import check
from fedkad.edge.settings.file import load
from fedkad.fleet.shared import devicefolder
from fedkad.locks import holding
from tests.fixtures.broker import CHANNELS, config, saved_model, series

STDIN = {"kind": "stdin"}
MQTT = {"kind": "mqtt", "broker": "mqtt://127.0.0.1", "topics": ["x/{device}"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows how far apart its samples were: 2 s."""
    path = tmp_path_factory.mktemp("timed") / "timed.fedkad"
    detector = KoopmanDetector(window=6, rank=5, observables=16, sample_period=2.0)
    detector.fit(Series(series(1500), CHANNELS)).save(path)
    return path


def checked(folder: Path, source: dict[str, Any] = STDIN, **more: Any) -> str:
    (folder / "agent.toml").write_text(config(source, **more))
    settings = load(folder / "agent.toml")
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    try:
        return check(settings)
    finally:
        assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before


def refused(folder: Path, sentence: str, source: dict[str, Any] = STDIN, **more: Any) -> None:
    with pytest.raises(SettingsError, match=re.escape(sentence)) as refusal:
        checked(folder, source, **more)
    assert str(refusal.value).endswith(".")


def own_model(folder: Path, content: bytes) -> Path:
    path = folder / "state" / "devices" / "pump" / "model.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def looped(path: Path) -> Path:
    """A name that nobody can open, not even root."""
    path.symlink_to(path)
    return path


# -- files and folders ----------------------------------------------------------------------------------------------


def test_the_file_to_follow_may_be_missing_but_not_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"kind": "file", "path": "later.csv"}
    told, note = checked(tmp_path, {**source, "format": "csv"}).split("\n")
    assert told.startswith(f"1 device(s) from {tmp_path / 'later.csv'}, 0 with a model;")
    assert note == f"{tmp_path / 'later.csv'}: does not exist yet; the agent will wait for it."
    refused(tmp_path, f"there is no folder {tmp_path / 'no'}; create it", {**source, "path": "no/later.csv"})
    refused(tmp_path, f"{tmp_path}: this is a folder; path in [source] must name a file.", {**source, "path": "."})
    looped(tmp_path / "loop.csv")
    refused(tmp_path, "path in [source] must name a file that can be read.", {**source, "path": "loop.csv"})
    os.mkfifo(tmp_path / "pipe")
    checked(tmp_path, {**source, "path": "pipe"})  # and does not wait for somebody to write
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)
    refused(tmp_path, f"the agent may not read {tmp_path}; allow it, or correct path in [source].", source)


def test_a_table_that_is_not_read_as_one_is_noted(tmp_path: Path) -> None:
    path, source = tmp_path / "pump.CSV", {"kind": "file", "path": "pump.CSV"}
    path.write_text("")
    sentence = (
        f'{path}: its name ends in .csv, but format in [source] is json; set format = "csv" if its lines are rows.'
    )
    assert checked(tmp_path, source).split("\n")[1:] == [sentence]
    assert "\n" not in checked(tmp_path, {**source, "format": "csv"})
    path.rename(tmp_path / "pump.log")
    assert "\n" not in checked(tmp_path, {**source, "path": "pump.log"})


def test_a_header_without_a_channel_is_noted(tmp_path: Path) -> None:
    path, source = tmp_path / "pump.csv", {"kind": "file", "path": "pump.csv", "format": "csv"}
    path.write_text("\n\ufefftime;flow;pressure;heat\n1;2;3;4\n")
    assert "\n" not in checked(tmp_path, source)
    override = {"override_b_sampling": {"channels": ["flow", "presure"]}}
    assert checked(tmp_path, source, devices=("a", "b"), **override).split("\n")[1:] == [
        f"{path}: The header has no column 'presure'; its columns are: time, flow, pressure, heat; "
        "check channels in [sampling]."
    ]


def test_a_port_in_use_is_noticed_unless_the_agent_itself_has_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused(tmp_path, f"[prometheus] port = {port} is not available on 127.0.0.1", prometheus={"port": port})
        (tmp_path / "state").mkdir()
        with holding(tmp_path / "state" / "agent.lock", "held"):
            said = checked(tmp_path, prometheus={"port": port})
            assert said.endswith("It may be the agent that is running with this state.")
    assert "It may be" not in checked(tmp_path, prometheus={"port": port})


def test_who_is_told_of_alerts_and_of_states(tmp_path: Path) -> None:
    def told(**sections: dict[str, Any]) -> str:
        return checked(tmp_path, MQTT, **sections).partition("; ")[2]

    silent: dict[str, Any] = {"stdout": {"readings": False}}
    assert told(**silent) == "alerts go to stdout; states go to nobody."
    assert told(stdout={"enabled": False}) == "alerts go to nobody; states go to nobody."
    everyone: dict[str, Any] = {"mqtt": {}, "webhook": {"url": "http://x/"}, "prometheus": {"port": 9108}}
    assert told(**silent, **everyone) == "alerts go to stdout, mqtt, webhook; states go to mqtt, prometheus."


@pytest.mark.parametrize("key", ["password_file", "ca_file", "certificate_file", "key_file"])
def test_every_file_of_a_login_can_be_read(tmp_path: Path, key: str) -> None:
    names = {"username": "u", "password_file": "pw", "certificate_file": "pw", "key_file": "pw", "ca_file": "pw"}
    (tmp_path / "pw").write_text("a secret\n")
    checked(tmp_path, {**MQTT, **names})
    looped(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    for wrong in ("none", "loop", "folder"):
        refused(tmp_path, str(tmp_path / wrong), {**MQTT, **names, key: wrong})
        refused(tmp_path, str(tmp_path / wrong), mqtt={"broker": "mqtt://127.0.0.1", **names, key: wrong})


def test_the_files_of_a_webhook_can_be_used(tmp_path: Path) -> None:
    def with_file(**names: str) -> dict[str, Any]:
        return {"webhook": {"url": "https://127.0.0.1/", **names}}

    (tmp_path / "token").write_text("word\n")
    assert checked(tmp_path, **with_file(token_file="token")).endswith(
        "; alerts go to stdout, webhook; states go to stdout."
    )
    looped(tmp_path / "loop")
    for key in ("token_file", "ca_file"):
        refused(tmp_path, f"no such file; {key} in [webhook] must name one.", **with_file(**{key: "none"}))
        refused(tmp_path, f"{key} in [webhook] must name a file that can be read.", **with_file(**{key: "loop"}))
        refused(tmp_path, f"this is a folder; {key} in [webhook] must name a file.", **with_file(**{key: "."}))
    refused(tmp_path, "ca_file in [webhook] must name a file of certificates.", **with_file(ca_file="token"))
    (tmp_path / "token").write_text("two words")
    refused(tmp_path, "token_file in [webhook] must hold one word", **with_file(token_file="token"))


def test_the_state_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked(tmp_path, top={"state": "new/state"})
    (tmp_path / "taken").write_text("")
    place = tmp_path / "taken"
    refused(tmp_path, f"{place}: {place} is not a folder; state must name one.", top={"state": "taken"})
    refused(tmp_path, f"{place / 'state'}: {place} is not a folder; state must", top={"state": "taken/state"})
    refused(tmp_path, f"{place} is not a folder; folder of pump must name one.", learning={"folder": str(place)})
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused(tmp_path, f"the agent may not write to {tmp_path}; allow it, or set another state.", top={"state": "new"})


# -- models ---------------------------------------------------------------------------------------------------------


def test_a_first_model_can_be_fitted_to_the_rows_that_it_waits_for(tmp_path: Path, model: Path) -> None:
    long = {"window": 250, "horizon": 2}
    wanted = "pump: first = 270 must be at least 271 rows, because window 250 and horizon 2 leave fewer than 20 windows"
    refused(tmp_path, wanted, detector=long, learning={"first": 270})
    checked(tmp_path, detector=long, learning={"first": 271})
    checked(tmp_path, detector=long, learning={"first": 270, "model": str(model)})  # none is fitted
    rows = np.sin(np.arange(271.0)[:, None] / [7.0, 5.0])
    with pytest.warns(FewRowsWarning):
        KoopmanDetector(window=250, horizon=2).fit(rows)
    with pytest.raises(ValueError, match="at least 20 are needed"):
        KoopmanDetector(window=250, horizon=2).fit(rows[1:])


def test_a_threshold_from_few_rows_is_noted(tmp_path: Path, model: Path) -> None:
    note = (
        "pump: first = 699, but a threshold from fewer than about 700 rows is a guess: "
        "expect false alarms, or set a larger first in [learning]."
    )
    assert checked(tmp_path, learning={"first": 699}).split("\n")[1:] == [note]
    assert "first = 200, but" in checked(tmp_path, learning={"first": 200})
    assert "\n" not in checked(tmp_path, learning={"first": 700})
    assert "\n" not in checked(tmp_path, learning={"first": 699}, alarm={"threshold": 3.0})
    assert "\n" not in checked(tmp_path, learning={"first": 699, "model": str(model)})


def test_a_named_model_must_be_sound(tmp_path: Path, model: Path) -> None:
    assert "1 with a model" in checked(tmp_path, learning={"model": str(model)})
    refused(tmp_path, "no such file; model of pump must name one.", learning={"model": "none"})
    refused(tmp_path, "this is a folder; model of pump must name a file.", learning={"model": "."})
    (tmp_path / "damaged").write_bytes(model.read_bytes()[:1000])
    refused(tmp_path, "damaged, or not a FedKAD model", learning={"model": "damaged"})
    order: dict[str, Any] = {"sampling": {"channels": CHANNELS[::-1]}, "learning": {"model": str(model)}}
    refused(tmp_path, "the model has the channels flow, pressure, heat", **order)


def test_a_damaged_model_of_the_device_itself_is_only_told(tmp_path: Path, model: Path) -> None:
    path = own_model(tmp_path, model.read_bytes()[:1000])
    told, note = checked(tmp_path).split("\n")
    assert "0 with a model" in told
    assert note.startswith(f"pump: {path}: damaged")
    assert note.endswith("The agent will rename it and continue without it.")
    told, _ = checked(tmp_path, learning={"model": str(model)}).split("\n")
    assert "1 with a model" in told
    refused(tmp_path, "model of pump must name one.", learning={"model": "none"})  # which is needed now


def test_a_sound_model_that_is_not_for_the_device_stops_it(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own_model(tmp_path, b"")
    header, arrays = modelfile.read_model(model)
    with monkeypatch.context() as patch:
        patch.setattr(modelfile, "VERSION", modelfile.VERSION + 1)
        modelfile.write_model(path, header, arrays)
    refused(tmp_path, f"pump: {path}: written in format version")
    modelfile.write_model(path, header, arrays, kind="fedkad-other")
    refused(tmp_path, f"pump: {path}: not a FedKAD model")


def test_a_device_with_a_model_of_its_own_no_longer_needs_the_named_one(tmp_path: Path, model: Path) -> None:
    own_model(tmp_path, model.read_bytes())
    told, note = checked(tmp_path, learning={"model": "none"}).split("\n")
    assert "1 with a model" in told
    assert note.startswith(f"pump: {tmp_path / 'none'}: no such file;")
    assert note.endswith("The device has its own model and continues with that.")
    refused(tmp_path, "the model has the channels", sampling={"channels": CHANNELS[::-1]})


def test_a_model_that_the_agent_made_for_other_channels_is_only_told(tmp_path: Path, model: Path) -> None:
    path = own_model(tmp_path, b"")
    known, memory = load_model(model)
    modelfile.save_model(path, replace(known, learnt_through="a/pump:7"), memory)
    told, note = checked(tmp_path, sampling={"channels": CHANNELS[::-1]}).split("\n")
    assert "0 with a model" in told
    assert f"are now {', '.join(CHANNELS[::-1])}. The agent will rename it and learn again." in note


def test_models_are_read_without_their_statistics(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_model(tmp_path, model.read_bytes())
    asked = []

    def load(path: Path, *, memory: bool = True) -> object:
        asked.append(memory)
        return load_model(path, memory=memory)

    monkeypatch.setattr(checking, "load_model", load)
    checked(tmp_path, learning={"model": str(model)})
    assert asked == [False, False]


@pytest.mark.parametrize(("period", "noted"), [(2.0, False), (2.019, False), (1.981, False), (2.03, True), (1, True)])
def test_a_model_of_another_period_is_told(tmp_path: Path, timed: Path, period: float, noted: bool) -> None:
    told = checked(tmp_path, sampling={"period": period}, learning={"model": str(timed)})
    sentence = f"\npump: the model was fitted to samples 2 s apart, but period in [sampling] is {period:g} s;"
    assert (sentence in told) == noted
    assert told.count("\n") == noted


# -- the commands ---------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["fedkad-agent", *map(str, arguments)])
    return main.main()


def test_a_note_is_no_failure_and_a_refusal_is(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_model(tmp_path, b"nothing")
    path = tmp_path / "agent.toml"
    path.write_text(config(STDIN))
    assert run(monkeypatch, "--check", path) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{path}: 1 device(s) from standard input, 0 with a model;")
    assert "The agent will rename it" in told.out
    assert told.err == ""
    path.write_text(config(STDIN, learning={"model": "none"}))
    for given, sentence in ((path, "must name one"), (tmp_path, "name a file")):
        assert run(monkeypatch, "--check", given) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert re.fullmatch(rf"error: .*{sentence}.*\.\n", told.err)


def test_the_large_command_holds_as_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkad.cli.services import watch

    done: list[Any] = []
    monkeypatch.setattr(main, "limit_memory", lambda: done.append("small"))
    monkeypatch.setattr(main, "run", lambda config, check: done.append((config, check)))
    watch(Path("agent.toml"), check=True)
    assert done == ["small", (Path("agent.toml"), True)]


def test_a_fleet_needs_the_folder_of_a_device_of_it(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")
    refused(tmp_path, "no device has the folder of a fleet; let folder in [learning] name", fleet={})
    folder = tmp_path / "state" / "devices" / "pump"
    devicefolder.write(folder, "pump-1", "fleet.example:8443", b"certificate", None)
    refused(tmp_path, f"pump: {folder}/device.key: there is no such file; copy the folder", fleet={})
    (folder / "device.key").write_text("key")
    assert "fleet" not in checked(tmp_path, fleet={})
    said = checked(tmp_path, fleet={}, devices=("pump", "lamp"))
    assert "not in a fleet: lamp, whose folders have no device.toml." in said
    (folder / "device.toml").write_text("server = 7")
    refused(tmp_path, "server = 7 must be", fleet={})
