"""What FedKAD assumes about the installed version of Flower, beyond its public API.

Each test states one assumption and fails with one sentence that names the module that relies on it. After an upgrade of
Flower, this is the first file to run: it needs neither processes nor a network.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from importlib import import_module
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

import httpx

from fedkad.fleet import flower
from fedkad.fleet.flower import proxy
from fedkad.fleet.flower.programs import OFFLINE
from fedkad.fleet.flower.supernodelog import STILL_COUNTED, SuperNodeEvent
from fedkad.fleet.server import settings
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared import certificates
from fedkad.fleet.shared.devicefolder import DeviceFolder

FLEET = Path(flower.__file__).parents[1]


def expect(holds: object, assumption: str, module: str, purpose: str) -> None:
    """Fail with one sentence if an assumption does not hold."""
    if not holds:
        sentence = f"flwr {version('flwr')} no longer {assumption}; fleet/flower/{module}.py relies on it to {purpose}."
        pytest.fail(sentence, pytrace=False)


def found(name: str) -> Any:
    """A module, or an object in one; None if there is no such thing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Flower's own imports
        module, _, attribute = name.rpartition(".")
        try:
            return getattr(import_module(module), attribute, None)
        except ModuleNotFoundError:
            owner = found(module)
            return getattr(owner, attribute, None)


def source(module: str) -> str:
    """The source of a module of Flower, which is not imported; empty if there is no such module."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return ""
    return Path(spec.origin).read_text() if spec is not None and spec.origin else ""


# -- symbols ----------------------------------------------------------------------------------------------------

CALLS: list[tuple[str, int, tuple[str, ...], str, str]] = [
    ("flwr.supernode.cli.flower_supernode", 0, (), "supernode", "run a SuperNode in a process of its own"),
    (
        *("flwr.supernode.runtime.run_clientapp.run_clientapp", 0),
        *(("runtime_api_address", "token", "insecure", "parent_pid"), "launcher", "answer a message"),
    ),
    ("flwr.supercore.runtime.RuntimeHttpClient.AcquireTask", 2, (), "launcher", "look for a message"),
    (
        *("flwr.supercore.runtime.RuntimeHttpClient.from_server_address", 0),
        *(("server_address", "insecure", "root_certificates", "interceptors", "retry_invoker"), "launcher"),
        "reach the SuperNode",
    ),
    (
        *("flwr.supercore.interceptors.RuntimeVersionHttpInterceptor", 0, ("component_name",)),
        *("launcher", "reach the SuperNode"),
    ),
    ("flwr.supercore.retry.make_simple_http_retry_invoker", 0, (), "launcher", "wait for the SuperNode"),
    ("flwr.cli.build.build_fab_from_disk", 1, (), "control", "package the app"),
    ("flwr.common.serde.fab_to_proto", 1, (), "control", "submit the app"),
    ("flwr.common.serde.user_config_to_proto", 1, (), "control", "pass settings to the app"),
    ("flwr.supercore.fab.Fab", 3, (), "control", "submit the app"),
    ("flwr.supercore.control.ControlHttpClient", 1, ("verify", "timeout"), "control", "reach the server's SuperLink"),
    ("flwr.supercore.control.ControlHttpClient.close", 1, (), "control", "close its connection"),
    ("flwr.supercore.control.ControlHttpClient.ListNodes", 2, (), "control", "list the devices"),
    ("flwr.supercore.control.ControlHttpClient.RegisterNode", 2, (), "control", "admit a device"),
    ("flwr.supercore.control.ControlHttpClient.UnregisterNode", 2, (), "control", "exclude a device"),
    ("flwr.supercore.control.ControlHttpClient.StartRun", 2, (), "control", "start a training"),
    ("flwr.supercore.control.ControlHttpClient.StopRun", 2, (), "control", "stop a run"),
    ("flwr.supercore.control.ControlHttpClient.ListRuns", 2, (), "control", "notice the end of a run"),
    ("flwr.supercore.control.ControlHttpClient.StreamLogs", 2, (), "control", "keep the output of a run"),
    ("flwr.supercore.runtime.RuntimeHttpClient.PullMessages", 2, (), "mailbox", "look for replies"),
    ("flwr.supercore.runtime.RuntimeHttpClient.PullObject", 2, (), "mailbox", "fetch a part of a reply"),
    ("flwr.supercore.runtime.RuntimeHttpClient.ConfirmMessageReceived", 2, (), "mailbox", "free a reply it has"),
    ("flwr.supercore.inflatable.inflatable_object.iterate_object_tree", 1, (), "mailbox", "list the parts of a reply"),
    (
        *("flwr.supercore.inflatable.inflatable_protobuf_utils.make_pull_object_fn_protobuf", 3, ()),
        *("mailbox", "fetch a part of a reply"),
    ),
    (
        *("flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents", 2, ()),
        *("mailbox", "put a reply together"),
    ),
    ("flwr.supernode.nodestate.NodeState.get_messages_legacy", 1, ("is_reply",), "reception", "find old answers"),
    ("flwr.supernode.nodestate.NodeState.delete_messages", 1, ("message_ids",), "reception", "drop old answers"),
    ("flwr.supercore.object_store.ObjectStore.delete", 2, (), "reception", "drop the parts of old answers"),
    ("flwr.supernode.nodestate.NodeState.get_tasks", 1, ("statuses",), "reception", "know that an app is done"),
    ("flwr.supernode.nodestate.NodeState.store_message", 2, (), "reception", "have an answer sent"),
    ("flwr.supercore.object_store.ObjectStore.get_object_tree", 2, (), "reception", "know that an answer is complete"),
    ("flwr.supercore.object_store.ObjectStore.get", 2, (), "reception", "know that an answer is complete"),
    ("flwr.common.config.parse_config_args", 1, (), "programs", "pass a device's paths to the app"),
]


@pytest.mark.parametrize(("name", "arguments", "keywords", "module", "purpose"), CALLS)
def test_a_function_exists_and_can_be_called_this_way(
    name: str, arguments: int, keywords: tuple[str, ...], module: str, purpose: str
) -> None:
    function = found(name)
    expect(function, f"has {name}", module, purpose)
    refusal = ""
    try:
        inspect.signature(function).bind(*[None] * arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        refusal = str(error)
    expect(not refusal, f"lets {name} be called as before ({refusal})", module, purpose)


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("flwr.superlink.grid.http_grid.HttpGrid._runtime_client", "look for replies without waiting"),
        ("flwr.superlink.grid.http_grid.HttpGrid.run", "fetch a part of a reply"),
        ("flwr.supercore.inflatable.inflatable_utils.ObjectPullError", "notice an upload that was given up"),
        ("flwr.supercore.inflatable.inflatable_utils.ObjectUnavailableError", "notice a part that is still missing"),
    ],
)
def test_the_mailbox_finds_what_it_needs(name: str, purpose: str) -> None:
    expect(found(name), f"has {name}", "mailbox", purpose)


def test_a_grid_knows_its_node() -> None:
    grid = found("flwr.superlink.grid.http_grid.HttpGrid")(token="none")
    expect(hasattr(grid, "node"), "has HttpGrid.node", "mailbox", "fetch a part of a reply")


FIELDS = [
    ("control_pb2.ListNodesResponse", {"nodes_info"}, "control"),
    ("control_pb2.RegisterNodeRequest", {"public_key", "name"}, "control"),
    ("control_pb2.UnregisterNodeRequest", {"node_id"}, "control"),
    ("control_pb2.StartRunRequest", {"fab", "override_config"}, "control"),
    ("control_pb2.StartRunResponse", {"run_id"}, "control"),
    ("control_pb2.StopRunRequest", {"run_id"}, "control"),
    ("control_pb2.ListRunsRequest", {"run_id"}, "control"),
    ("control_pb2.ListRunsResponse", {"run_dict"}, "control"),
    ("control_pb2.StreamLogsRequest", {"run_id"}, "control"),
    ("control_pb2.StreamLogsResponse", {"log_output"}, "control"),
    (
        "node_pb2.NodeInfo",
        {"node_id", "name", "public_key", "status", "last_activated_at", "last_deactivated_at"},
        "control",
    ),
    ("runtime_pb2.AcquireTaskRequest", {"supported_task_types"}, "launcher"),
    ("runtime_pb2.AcquireTaskResponse", {"task", "token"}, "launcher"),
    ("runtime_pb2.PullAppMessagesRequest", {"message_ids"}, "mailbox"),
    ("runtime_pb2.PullAppMessagesResponse", {"messages_list", "message_object_trees"}, "mailbox"),
    ("message_pb2.ConfirmMessageReceivedRequest", {"node", "run_id", "message_object_id"}, "mailbox"),
    ("message_pb2.ObjectTree", {"object_id"}, "mailbox"),
]


@pytest.mark.parametrize(("name", "fields", "module"), FIELDS)
def test_a_message_of_flower_has_these_fields(name: str, fields: set[str], module: str) -> None:
    message = found(f"flwr.proto.{name}")
    known = set() if message is None else set(message.DESCRIPTOR.fields_by_name)
    missing = sorted(fields - known)
    expect(not missing, f"has {', '.join(missing)} in {name}", module, "talk to the SuperLink")


def test_a_message_for_a_device_is_a_task_of_this_type() -> None:
    kind = found("flwr.supercore.constant.TaskType.CLIENT_APP")
    expect(kind == "flwr-clientapp", "calls the task of a device 'flwr-clientapp'", "launcher", "ask for it")


def test_an_app_of_the_server_is_installed_and_loaded_only_by_these_functions() -> None:
    text, purpose = source("flwr.supernode.runtime.run_clientapp"), "run no code of the server"
    does = re.findall(r".*fab\.content.*", text) == ["        install_from_fab(fab.content, skip_prompt=True)"]
    expect(does, "reads the server's app only to install it", "launcher", purpose)
    loads = re.search(
        r"load_client_app_fn = get_load_client_app_fn\(.*?: ClientApp = load_client_app_fn\(", text, re.DOTALL
    )
    expect(loads, "loads the app with get_load_client_app_fn", "launcher", purpose)


def test_a_supernode_leaves_starting_apps_to_others() -> None:
    text = source("flwr.supernode.start_client_internal")
    does = re.search(r"if isolation == ISOLATION_MODE_SUBPROCESS:\s+runtime_address = ", text)
    expect(does, "starts apps itself only if asked to", "launcher", "start them instead")


def test_the_end_of_a_run_is_raised_as_this_exception() -> None:
    text = source("flwr.supercore.retry.http_retry")
    does = re.search(r"httpx\.codes\.FORBIDDEN:.*?raise RunNotRunningException", text, re.DOTALL)
    expect(does, "raises RunNotRunningException when a run has ended", "reception", "forget its message")


def test_a_supernode_receives_messages_with_this_function() -> None:
    text, purpose = source("flwr.supernode.start_client_internal"), "forget messages of runs that have ended"
    name, keywords = "_pull_and_store_message", ("state", "object_store", "pull_object", "confirm_message_received")
    call = re.search(rf"= {name}\((.*?)\n +\)", text, re.DOTALL)
    expect(call, f"receives messages with start_client_internal.{name}", "reception", purpose)
    assert call is not None
    for keyword in keywords:
        expect(f"{keyword}=" in call[1], f"passes `{keyword}` to {name} by name", "reception", purpose)


def test_a_supernode_sends_answers_with_this_function() -> None:
    text = source("flwr.supernode.start_client_internal")
    call = re.search(r" {12}_push_messages\((.*?)\n +\)", text, re.DOTALL)
    does = call is not None and all(f"{keyword}=" in call[1] for keyword in ("state", "object_store"))
    expect(does, "sends answers with _push_messages(state=, object_store=, …)", "reception", "know if there is none")


def test_an_app_answers_before_its_task_is_finished() -> None:
    text = source("flwr.supernode.runtime.run_clientapp")
    does = text.index("push_message(client, reply_message, context)") < text.rindex("    flwr_exit(\n")
    expect(does, "lets an app answer before it finishes its task", "reception", "know that no answer will come")


def test_a_supernode_forgets_a_message_that_it_fails_to_receive() -> None:
    text = source("flwr.supernode.start_client_internal")
    steps = ("confirm_message_received(run_id", "except Exception", "state.delete_messages(", "object_store.delete(")
    does = re.search(".*?".join(map(re.escape, (*steps, "state.finish_task(", "return None"))), text, re.DOTALL)
    purpose = "forget messages of runs that have ended"
    expect(does, "forgets a message, its objects and its task if it fails to receive it", "reception", purpose)


def test_a_supernode_answers_one_message_at_a_time() -> None:
    text = source("flwr.supernode.start_client_internal")
    does = re.search(r"while not \(reply_messages := state\.get_messages_legacy\(is_reply=True\)\):", text)
    purpose = "know that an answer is old if no message is being answered"
    expect(does, "waits for the answer to a message before it asks for the next", "reception", purpose)


def test_a_reply_of_ours_has_few_parts() -> None:
    from fedkad.fleet.flower.mailbox import MOST_PARTS
    from fedkad.fleet.shared.envelope import packed

    nested = found("flwr.supercore.inflatable.inflatable_object.get_all_nested_objects")
    parts = 1 + len(nested(packed({"device": "pump", "payload": b"bytes"})))  # with the message around it
    expect(parts <= MOST_PARTS // 2, "splits a reply into few objects", "mailbox", "bound the size of a reply")


# -- log lines --------------------------------------------------------------------------------------------------

LOGGED = [
    (SuperNodeEvent.CONNECTED, "flwr.supernode.start_client_internal", r'log\(INFO, "SuperNode ID: %s"'),
    (SuperNodeEvent.REQUEST_RECEIVED, "flwr.supernode.start_client_internal", r'INFO,\s+"Receiving: %s message'),
    (SuperNodeEvent.REPLY_SENT, "flwr.supernode.start_client_internal", r'log\(INFO, "Sent successfully"'),
    (SuperNodeEvent.CALL_FAILED, "flwr.supercore.retry.http_retry", r'"Connection attempt failed, retrying in'),
    (SuperNodeEvent.CALL_SUCCEEDED_AGAIN, "flwr.supercore.retry.http_retry", r'INFO,\s+"Connection successful after'),
    (
        SuperNodeEvent.RUN_ENDED,
        "flwr.supernode.start_client_internal",
        r'"Run ID %s is not in `RUNNING` status. Ignoring r',
    ),
    (
        SuperNodeEvent.RECEIVING_FAILED,
        "flwr.supernode.start_client_internal",
        r'ERROR,\s+"Failed to receive message %s',
    ),
    (SuperNodeEvent.SENDING_FAILED, "flwr.supernode.start_client_internal", r'ERROR,\s+"Failed to send message %s'),
    (SuperNodeEvent.KEY_UNREADABLE, "flwr.supercore.exit.exit", r'f"Exit Code: \{code\}'),
    (SuperNodeEvent.NOT_ADMITTED, "flwr.supernode.fleet_http_connection", r'f"\[code: \{flower_error\.code\}\]'),
]


@pytest.mark.parametrize(("event", "where", "line"), LOGGED, ids=[event.name for event, *_ in LOGGED])
def test_an_event_is_logged_in_these_words(event: SuperNodeEvent, where: str, line: str) -> None:
    what = event.name.replace("_", " ").lower()
    expect(re.search(line, source(where)), f"logs {event.value!r} in {where}", "supernodelog", f"notice {what!r}")


def test_every_event_of_flower_is_covered() -> None:
    ours = {SuperNodeEvent.UNANSWERED, SuperNodeEvent.OVERDUE}
    assert {event for event, *_ in LOGGED} == {*SuperNodeEvent} - ours


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("flwr.supercore.exit.ExitCode.SUPERNODE_NODE_AUTH_KEY_INVALID", SuperNodeEvent.KEY_UNREADABLE),
        ("flwr.supercore.error.ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED", SuperNodeEvent.NOT_ADMITTED),
    ],
)
def test_an_error_has_this_code(name: str, event: SuperNodeEvent) -> None:
    code = found(name)
    is_known = code is not None and str(int(code)) in event.value
    expect(is_known, f"reports {event.value!r} for {name}", "supernode", "explain why a device was refused")


def test_a_refused_signature_ends_the_supernode_with_sigint() -> None:
    text = source("flwr.supernode.fleet_http_connection")
    does = re.search(r"httpx\.codes\.UNAUTHORIZED:\s+os\.kill\(os\.getpid\(\), signal\.SIGINT\)", text)
    expect(does, "sends itself SIGINT when its heartbeat is refused with 401", "supernode", "leave that to Flower")


def test_a_vanished_device_is_forgotten_in_time() -> None:
    interval = found("flwr.common.constant.HEARTBEAT_DEFAULT_INTERVAL")
    patience = found("flwr.common.constant.HEARTBEAT_PATIENCE")
    is_forgotten = None not in (interval, patience) and interval * patience < STILL_COUNTED
    within, purpose = f"forgets a device within {STILL_COUNTED:g} s", "tell a refused key from an old connection"
    expect(is_forgotten, within, "supernode", purpose)


# -- programs, environment, URLs ----------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    settings.save(tmp_path, settings.FleetSettings(model=settings.ModelSettings(("a",))))
    for name in ("ca/ca.crt", "server/server.crt", "server/server.key", "flower/superexec.secret"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return ServerFolder(tmp_path)


PARSERS = {
    "superlink": "flwr.superlink.cli.flower_superlink._parse_args_run_superlink",
    "superexec": "flwr.supercore.cli.flower_superexec._parse_args",
    "supernode": "flwr.supernode.cli.flower_supernode._parse_args_run_supernode",
}


@pytest.mark.parametrize("program", PARSERS)
def test_a_program_accepts_our_options(
    program: str,
    server: ServerFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(proxy, "command", lambda root: ["nginx"])
    commands = {**flower.server_commands(server), "supernode": ["-Pm", "module", *device_options(tmp_path)]}
    module, _, function = PARSERS[program].rpartition(".")
    parser = getattr(import_module(module), function, None)
    expect(parser, f"builds the parser of its {program} in {PARSERS[program]}", "programs", "start it")
    assert parser is not None
    options = commands[program][next(k for k, word in enumerate(commands[program]) if word.startswith("--")) :]
    refusal = ""
    try:
        parser().parse_args(options)
    except SystemExit:
        refusal = capsys.readouterr().err.strip().splitlines()[-1]
    expect(not refusal, f"accepts our options ({refusal})", "programs", f"start its {program}")


def device_options(root: Path) -> list[str]:
    return flower.device_command(DeviceFolder(root, "pump", "localhost:1"), "table.csv")[3:]


@pytest.mark.parametrize("name", ["flower-superlink", "flower-superexec"])
def test_a_program_is_installed(name: str) -> None:
    expect(entry_points(group="console_scripts", name=name), f"installs {name}", "programs", "run a server")


@pytest.mark.parametrize(
    ("variable", "where", "use"),
    [
        ("FLWR_TELEMETRY_ENABLED", "flwr.supercore.telemetry", r'if FLWR_TELEMETRY_ENABLED == "1"'),
        ("FLWR_DISABLE_UPDATE_CHECK", "flwr.supercore.update_check", r'getenv\(FLWR_DISABLE_UPDATE_CHECK\) == "1"'),
        (
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
            "flwr.superlink.cli.flower_superlink",
            r'getenv\(FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION\) != "1"',
        ),
    ],
)
def test_a_variable_keeps_flower_offline(variable: str, where: str, use: str) -> None:
    assert variable in OFFLINE
    expect(re.search(use, source(where)), f"reads {variable} in {where}", "programs", "keep Flower offline")


def test_flower_keeps_its_files_in_the_folder_we_give_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    home = found("flwr.supercore.utils.get_flwr_home")
    expect(home is not None and home() == tmp_path, "reads FLWR_HOME", "programs", "keep the files of fleets apart")


def test_a_supernode_reads_its_settings_from_a_file(tmp_path: Path) -> None:
    options = device_options(tmp_path)
    read = found("flwr.common.config.parse_config_args")([options[options.index("--node-config") + 1]])
    is_read = read == {"folder": str(tmp_path), "device": "pump", "data": "table.csv"}
    expect(is_read, "reads --node-config from a .toml file", "programs", "pass a device's paths to the app")


def test_a_supernode_reads_a_key_in_openssh_format() -> None:
    is_read = "load_ssh_private_key" in source("flwr.supernode.cli.flower_supernode")
    expect(is_read, "reads keys in OpenSSH's format", "programs", "connect with a key of fleet/certificates.py")


def test_devices_need_nothing_but_the_endpoints_that_the_proxy_passes() -> None:
    paths = re.findall(r'path="([^"]+)"', source("flwr.supernode.fleet_http_client"))
    passed = {f"/v1/fleet/{name}" for name in (*proxy.SMALL, proxy.ANNOUNCEMENT, proxy.REPLY)}
    unregistered = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    what = f"has exactly these endpoints for a device: {', '.join(sorted(passed | unregistered))}"
    expect(set(paths) == passed | unregistered, what, "proxy", "let devices in, and nobody else")
    uses = source("flwr.supernode.fleet_http_connection")
    for name in ("RegisterNode", "UnregisterNode"):
        is_guarded = re.search(rf"if self_registered:\n\s+(?:retry|try:\n\s+client\.{name})", uses)
        expect(is_guarded, f"calls {name} only without a key", "proxy", "close that endpoint")


def test_a_device_shows_the_key_in_the_header_that_the_proxy_looks_at() -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    made, request = certificates.make_device_key(), httpx.Request("POST", "https://localhost/v1/fleet/pull-messages")
    key: Any = load_ssh_private_key(made.key, None)
    interceptor = found("flwr.supernode.node_auth_http_interceptor.NodeAuthHttpInterceptor")(key, key.public_key())
    context = found("flwr.supercore.protobuf.client.ProtobufRequestContext")("", None, request)
    interceptor.intercept(context, lambda context: context)
    (line,) = proxy.known_keys({"pump": made.public.decode()}).splitlines()
    is_same = line == f'"{request.headers.get("flwr-public-key")}" "pump";'
    expect(is_same, "sends its public key in the header flwr-public-key", "proxy", "turn strangers away")


def test_a_device_understands_what_the_proxy_answers_a_stranger() -> None:
    from fedkad.fleet.flower.proxy import NOT_ADMITTED

    told = found("flwr.supercore.error.FlowerError").from_json(NOT_ADMITTED.split("'")[1])
    is_known = told is not None and f"[code: {int(told.code)}]" == SuperNodeEvent.NOT_ADMITTED.value
    expect(is_known, "reads the error 2004 from JSON", "proxy", "tell a device that it is not admitted")


def test_the_control_interface_is_outside_the_path_that_the_proxy_passes() -> None:
    paths = re.findall(r'path="([^"]+)"', source("flwr.supercore.control.control_http_client"))
    inside = [path for path in paths if path.startswith("/v1/fleet")]
    what = f"keeps its control interface outside /v1/fleet ({', '.join(inside) or 'no path found'})"
    expect(paths and not inside, what, "proxy", "keep it off the network")


def test_the_states_of_devices_and_runs_have_these_names() -> None:
    from fedkad.fleet.flower.control import FINISHED, STATES, UNREGISTERED

    states = found("flwr.supercore.constant.NodeStatus")
    known = {value for name, value in vars(states).items() if name.isupper()} if states else set()
    ours = {*STATES, UNREGISTERED}
    expect(known == ours, f"has the device states {', '.join(sorted(ours))}", "control", "report which are online")
    finished = found("flwr.common.constant.Status.FINISHED")
    expect(finished == FINISHED, f"calls a run that is over {FINISHED!r}", "control", "notice the end of a run")


# -- the door ---------------------------------------------------------------------------------------------------

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.common.log"}


def test_only_this_package_goes_beyond_the_public_api() -> None:
    for path in FLEET.rglob("*.py"):
        if path.parent != FLEET / "flower":
            private = sorted(imported(path) - PUBLIC)
            assert not private, f"{path}: {', '.join(private)} is not public; use it in fleet/flower/ only."


def imported(path: Path) -> set[str]:
    """The modules of Flower that a file imports from, and `flwr.common` by name: only its logger is public."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_common = node.module == "flwr.common"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if is_common else {node.module}
    return {name for name in names if name.partition(".")[0] == "flwr"}


def test_only_this_package_names_flowers_programs_and_variables() -> None:
    words = re.compile(r"FLWR_|flower-super|flwr-(?:server|client)app|/v1/|SuperNode ID|Exit Code")
    for path in (*FLEET.rglob("*.py"), *(FLEET.parent / "cli").glob("*.py")):
        if path.parent != FLEET / "flower":
            assert not words.search(path.read_text()), f"{path}: only fleet/flower/ may know this."
