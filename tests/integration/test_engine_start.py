"""How a head's engine starts on real Ray: a slow raylet, broken and whole cluster state, no Ray Client server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from integration.service import Service, eventually
from matrix import turn
from tidegauge.cluster.ray_service.engine_tls import why_no_handshake
from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import all_processes, send_signal

pytestmark = pytest.mark.timeout(300)

RAYS_LIMIT_S = 60.0
"""After which one question of ``ray start`` to GCS fails, and ``ray start`` with it (Ray 2.60: it gives up 30 s after
the start, once a question has failed)."""
PORT_FILES_S = 15.0
"""For which a raylet waits for its agents' files (Ray 2.60)."""
RAY_CLIENT_PORT = 10001
HEAD_ADDRESS, NODE_ADDRESS = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    service.environ["TIDEGAUGE_SLURM"] = "off"
    try:
        yield service
    finally:
        service.close()


def starting(service: Service, name: str) -> ProcessId | None:
    """A process of this service, as soon as it is one."""
    for stat in all_processes():
        if stat.name == name and str(service.root) in Path(f"/proc/{stat.process.pid}/cmdline").read_text():
            return stat.process
    return None


@contextmanager
def stopped_raylet(service: Service) -> Iterator[tuple[ProcessId, subprocess.Popen[bytes]]]:
    """``up`` under way, and its raylet, which stands still since before GCS knew it: one that GCS knows would be
    called dead."""
    command = [sys.executable, "-m", "tidegauge.cli.main", "up"]
    for _ in range(5):
        with subprocess.Popen(command, env=service.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as up:
            raylet = eventually(lambda: starting(service, "raylet"), "a raylet")
            send_signal(raylet, signal.SIGSTOP)
            logs = (service.files.root / "engine").glob("session_*/logs/raylet.out")
            if not any("NodeManager server started" in log.read_text() for log in logs):
                yield raylet, up
                return
            send_signal(raylet, signal.SIGCONT)
            up.communicate(timeout=150)
        service.call("down")
    raise AssertionError("the raylet was always quicker")


@turn(3)
def test_a_raylet_that_stands_still_for_longer_than_rays_limit_starts_all_the_same(service: Service) -> None:
    with stopped_raylet(service) as (raylet, up):
        stopped_s = time.monotonic()
        eventually(lambda: time.monotonic() - stopped_s > RAYS_LIMIT_S + 10, "Ray's limit", within_s=120)
        send_signal(raylet, signal.SIGCONT)
        _, errors = up.communicate(timeout=150)
    assert up.returncode == 0, f"{errors.decode()}\n{service.logs()}"
    assert service.pid_of("raylet") == raylet.pid, "it is the first one"


@turn(3)
def test_agent_of_ray_that_starts_slowly_costs_no_raylet(service: Service) -> None:
    """It says its port in a file; a raylet that has to wait for that dies after 15 s."""
    command = [sys.executable, "-m", "tidegauge.cli.main", "up"]
    with subprocess.Popen(command, env=service.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as up:
        raylet = eventually(lambda: starting(service, "raylet"), "a raylet")

        def agents() -> list[ProcessId]:
            children = [
                one for one in all_processes() if one.parent_pid == raylet.pid and one.name.startswith("python")
            ]
            return [one.process for one in children]

        for agent in eventually(agents, "Ray's agent"):
            send_signal(agent, signal.SIGSTOP)
        stopped_s = time.monotonic()
        eventually(lambda: time.monotonic() - stopped_s > PORT_FILES_S + 5, "Ray's limit", within_s=60)
        stopped = agents()
        for agent in stopped:
            send_signal(agent, signal.SIGCONT)
        _, errors = up.communicate(timeout=150)
    assert up.returncode == 0, f"{errors.decode()}\n{service.logs()}"
    assert service.pid_of("raylet") == raylet.pid, "it is the first one"


def test_a_head_has_no_ray_client_server_though_grpcio_is_here_and_no_dashboard_agent(service: Service) -> None:
    import grpc

    assert grpc.__version__
    service.up()
    commands = [Path(f"/proc/{one.process.pid}/cmdline").read_text() for one in service.processes()]
    assert [command for command in commands if "RuntimeEnvAgent" in command]
    assert not [command for command in commands if "ray.util.client" in command or "DashboardAgent" in command]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", RAY_CLIENT_PORT)) != 0


@turn(5)
def test_broken_cluster_state_is_put_aside_and_whole_one_kept_after_a_crash(service: Service) -> None:
    service.up()
    service.kill()
    service.up()
    assert list(service.files.root.glob("gcs.broken-*")) == [], "whole state is used"
    service.kill()
    currents = list(service.files.gcs.glob("*/CURRENT"))
    assert currents
    for path in currents:
        path.write_text("garbage\n")
    service.up()
    (aside,) = service.files.root.glob("gcs.broken-*")
    assert (aside / "kv" / "CURRENT").read_text() == "garbage\n"
    assert "Corruption" in (service.files.logs / "supervisor.log").read_text()


def listening_ports(service: Service) -> set[int]:
    """TCP ports on which the service's processes listen, by the inodes of their sockets (proc(5))."""
    inodes = set()
    for stat in service.processes():
        for link in Path(f"/proc/{stat.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                inodes.add(os.readlink(link))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def test_every_port_that_the_engine_listens_on_is_a_documented_one(service: Service) -> None:
    """In namespaces of their own, where the default ports are free."""
    for name in ("ENGINE_PORT", "API_PORT", "METRICS_PORT"):
        del service.environ[f"TIDEGAUGE_{name}"]
    service.up()
    ports = listening_ports(service)
    assert {6399, 9494, 9495} < ports
    assert ports - {6399, 9494, 9495} <= set(range(6400, 6432))
    service.kill()
    service.up()
    assert listening_ports(service) <= {6399, 9494, 9495, *range(6400, 6432)}, "the same after a crash"


def test_nodes_with_tls_join_by_the_token_alone_and_others_are_told_why(service: Service) -> None:
    service.environ["TIDEGAUGE_ENGINE_TLS"] = "true"
    service.up("--node-address", HEAD_ADDRESS)
    head = service.record.spec.head_address
    assert (
        why_no_handshake(head, None, timeout_s=60) == f"the head at {head} asks for TLS: set engine_tls=true here, too"
    )
    join = ("--join", head, "--token-file", str(service.files.token), "--node-address", NODE_ADDRESS)
    node = Service()
    try:
        node.environ["TIDEGAUGE_SLURM"] = "off"
        refused = node.call("up", *join)
        assert refused.code == 3
        assert "asks for TLS: set engine_tls=true here, too" in refused.err
        node.environ["TIDEGAUGE_ENGINE_TLS"] = "true"
        node.up(*join)

        def healthy() -> set[str] | None:
            found = {one["address"] for one in service.get("/api/v1/nodes")["nodes"] if one["health"] == "ok"}
            return found if len(found) == 2 else None

        assert eventually(healthy, "both nodes", within_s=60) == {HEAD_ADDRESS, NODE_ADDRESS}
    finally:
        node.close()
