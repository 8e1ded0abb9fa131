"""Answers the server's requests in forks of one process that has imported everything already.

Flower starts a new Python for each message, and on a small device its imports take far longer than the answer. The
SuperNode therefore runs with `--isolation process`, which leaves starting apps to this module.

Flower would also install and run the app that the server sends, whatever is in it. A device of ours answers with the
app of the release that is installed on it, and never runs code that came over the network.
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from fedkad.fleet.shared.processes import end_with_parent

POLL = 1.0  # seconds between two looks for a request


def launch_beside(address: str) -> int:
    """Fork the launcher for the SuperNode whose runtime API will listen at `address`; returns its process.

    Call this in the SuperNode's process before it starts any thread: a fork copies only the one that forks.
    """
    import fedkad.fleet.device.clientapp  # noqa: F401  the apps use it; imported once, before the fork

    prepare = end_with_parent(os.getpid(), signal.SIGKILL)
    gc.collect()
    gc.freeze()  # a later collection would write to every page that the processes share, and so copy it
    launcher = os.fork()
    if launcher == 0:
        prepare()
        _run_alone(partial(_serve, address))
    return launcher


def _serve(address: str) -> None:
    """Start an app for each message that the SuperNode has."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the SuperNode decides when to leave, and takes this process with it
    runtime = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # on this machine only
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system collects apps that end
    while True:
        reply = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if reply.HasField("task") and reply.token:
            parent = os.getpid()
            if os.fork() == 0:
                _run_alone(partial(_answer, address, reply.token, parent))
        time.sleep(POLL)


def _answer(address: str, token: str, parent: int) -> None:
    """Answer one message, as the program `flwr-clientapp` does, but with our own app instead of the server's."""
    from flwr.supernode.runtime import run_clientapp as flower

    from fedkad.fleet.device.clientapp import app

    vars(flower)["install_from_fab"] = lambda *_, **__: None
    vars(flower)["get_load_client_app_fn"] = lambda *_, **__: lambda *_: app
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    flower.run_clientapp(runtime_api_address=address, token=token, insecure=True, parent_pid=parent)


def _run_alone(task: Callable[[], None]) -> NoReturn:
    """Run a task in a process that was forked, and end that: what follows the fork is for its parent."""
    try:
        task()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 0)
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)


def leave(status: int) -> NoReturn:
    """End this process at once, without waiting for other threads; nothing else would flush the output."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
