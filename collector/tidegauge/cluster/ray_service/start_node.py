"""``python -m tidegauge.cluster.ray_service.start_node ARGUMENT …`` is ``ray start ARGUMENT …`` with four differences,
for which Ray has no switch.

- It refuses a Ray that is too old, before anything listens: one that knows no tokens would be open to everybody.
- A raylet that starts slowly is waited for as long as it lives. Ray gives up after 30 s, and starts again from nothing.
- Its agents' ports are in their files before it starts: a raylet dies if its agents, two Python processes that import
  Ray, have not written them within 15 s.
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
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
"""Parameters of ``services.start_raylet``, and names of port files."""


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
    """``start_raylet``, after the ports that it was given are in their files; 0 is for the agents to choose."""
    signature = inspect.signature(start_raylet)

    def start(*arguments: Any, **more: Any) -> Any:
        given = signature.bind(*arguments, **more).arguments
        for name in AGENT_PORTS:
            if port := given.get(name):
                write(given["session_dir"], given["node_id"], name, port)
        return start_raylet(*arguments, **more)

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
        (_raylet, "persist_port"),
        (scripts, "get_ray_client_dependency_error"),
    ):
        if not hasattr(module, name):
            print(f"this Ray ({installed_release()}) has no {module.__name__}.{name}: install a release that is tested "
                  "(README, What it runs on)", file=sys.stderr)  # fmt: skip
            return 2
    services.get_node = patient(services.get_node, has_raylet)
    services.start_raylet = with_port_files(services.start_raylet, vars(_raylet)["persist_port"])
    setattr(scripts, "get_ray_client_dependency_error", lambda: ImportError("Tidegauge has no use for it"))  # noqa: B010
    scripts.cli(args=["start", *arguments])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
