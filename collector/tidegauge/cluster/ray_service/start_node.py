"""``python -m tidegauge.cluster.ray_service.start_node ARGUMENT …`` is ``ray start ARGUMENT …`` with five differences,
for which Ray has no switch.

- It refuses a Ray that is too old, before anything listens: one that knows no tokens would be open to everybody.
- A raylet that starts slowly is waited for as long as it lives. Ray gives up after 30 s, and starts again from nothing.
- Its agents' ports are in their files before it starts: a raylet dies if they have not been written within 15 s, and on
  a busy machine a Python process needs longer to import Ray.
- There is no dashboard agent, a process of 62 MiB on every node: without Ray's extra ``default`` it does nothing, and
  with it opens ports. A raylet insists on some process, so it gets one that waits for the raylet's end.
- A head has no Ray Client server (port 10001), which Ray starts wherever grpcio can be imported.

The places in Ray that this replaces are looked up by name: where one is missing, nothing starts.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidegauge.cluster.ray_service.ray_release import installed_release, why_too_old
from tidegauge.osproc.processes import descendants

MAX_START_S = 240.0
"""Of a raylet, on a node whose processors are taken by others."""
ASK_AGAIN_S = 0.5
DASHBOARD_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
AGENT_PORTS = (*DASHBOARD_PORTS, "runtime_env_agent_port")
"""Parameters of ``services.start_raylet``, and names of port files."""
NO_PORT = -1
"""Ray's own word for a port that nobody serves."""
DASHBOARD_AGENT = "--dashboard_agent_command="
"""Argument of a raylet."""
UNTIL_THE_RAYLET_ENDS = "/bin/sh -c 'exec cat >/dev/null' dashboard-agent"
"""Its standard input is a pipe from the raylet; what Ray appends are arguments that ``sh`` ignores."""


def patient(
    ask: Callable[..., Any],
    is_starting: Callable[[], bool],
    *,
    monotonic_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[..., Any]:
    """``ask``, asked again while it raises ``RuntimeError`` and the raylet lives, for ``MAX_START_S`` at most."""

    def asked(*arguments: Any, **more: Any) -> Any:
        until_s = monotonic_s() + MAX_START_S
        while True:
            try:
                return ask(*arguments, **more)
            except RuntimeError:
                if monotonic_s() >= until_s or not is_starting():
                    raise
            sleep(ASK_AGAIN_S)

    return asked


def with_port_files(
    start_raylet: Callable[..., Any], write: Callable[[str, str, str, int], None]
) -> Callable[..., Any]:
    """``start_raylet``, after the ports of its agents are in their files; 0 is for the agent to choose."""
    signature = inspect.signature(start_raylet)

    def start(*arguments: Any, **more: Any) -> Any:
        given = signature.bind(*arguments, **more).arguments
        for name in AGENT_PORTS:
            if port := NO_PORT if name in DASHBOARD_PORTS else given.get(name):
                write(given["session_dir"], given["node_id"], name, port)
        return start_raylet(*arguments, **more)

    return start


def without_dashboard_agent(start_process: Callable[..., Any]) -> Callable[..., Any]:
    """``start_process``, which gets a command first; a raylet's names a process that does nothing."""

    def start(command: Sequence[str], *arguments: Any, **more: Any) -> Any:
        ours = [DASHBOARD_AGENT + UNTIL_THE_RAYLET_ENDS if a.startswith(DASHBOARD_AGENT) else a for a in command]
        return start_process(ours, *arguments, **more)

    return start


def has_raylet() -> bool:
    """Whether a raylet that this process started lives."""
    return any(stat.name == "raylet" and not stat.ended for stat in descendants(os.getpid()))


def main(arguments: Sequence[str]) -> int:
    reason = why_too_old(installed_release())
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    from ray import _raylet
    from ray._private import services
    from ray.scripts import scripts

    for module, name in (
        (services, "get_node"),
        (services, "start_raylet"),
        (services, "start_ray_process"),
        (_raylet, "persist_port"),
        (scripts, "get_ray_client_dependency_error"),
    ):
        if not hasattr(module, name):
            print(f"this Ray ({installed_release()}) has no {module.__name__}.{name}: install a release that is tested "
                  "(README, What it runs on)", file=sys.stderr)  # fmt: skip
            return 2
    services.get_node = patient(services.get_node, has_raylet)
    services.start_raylet = with_port_files(services.start_raylet, vars(_raylet)["persist_port"])
    services.start_ray_process = without_dashboard_agent(services.start_ray_process)
    setattr(scripts, "get_ray_client_dependency_error", lambda: ImportError("Tidegauge has no use for it"))  # noqa: B010
    scripts.cli(args=["start", *arguments])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
