"""Environment and command line that start a Ray node for Tidegauge, as values. Imports no Ray.

Ray is tuned for a resident service with little overhead: each figure was measured on Ray 2.60 (docs/service.md).
"""

from __future__ import annotations

import ipaddress
import random
import re
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tidegauge.cluster.ray_service.engine_tls import tls_files
from tidegauge.cluster.service_record import NodeSpec

NODE_SPEC_VARIABLE = "_TIDEGAUGE_NODE_SPEC"
"""Names ``node.json`` to the actors of this node. Not ``TIDEGAUGE_…``: it is no setting."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_ray_events_report_interval_ms": "0",
    "RAY_enable_timeline": "0",
    "RAY_event_stats": "0",
    # Never -1 here, though Ray calls that "disabled": gcs_server then spins, and wrote 14 GB of log in 5 minutes.
    "RAY_event_stats_print_interval_ms": "3600000",
    "RAY_debug_dump_period_milliseconds": "0",
    "RAY_ROTATION_MAX_BYTES": "10000000",
    "RAY_ROTATION_BACKUP_COUNT": "2",
}
"""No telemetry, no metrics of Ray's own, small logs."""

SLOW_TIMERS = {
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_raylet_check_gc_period_milliseconds": "5000",
    "RAY_kill_idle_workers_interval_ms": "2000",
    "RAY_local_fs_monitor_interval_ms": "10000",
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_object_manager_rpc_threads_num": "1",
    # The head asks each raylet for its waiting tasks, for Ray's autoscaler.
    "RAY_gcs_pull_resource_loads_period_milliseconds": "60000",
    "RAY_core_worker_internal_heartbeat_ms": "10000",
    "RAY_report_worker_backlog_interval_ms": "10000",
    "RAY_io_context_monitor_probe_interval_ms": "10000",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_start_python_gc_manager_thread": "0",
}
"""A raylet at 0.2 % of a core instead of 0.7 %: nothing here is ever in a hurry."""

SURVIVE = {
    # Ray marks its workers as the kernel's first victims, and kills them itself at 95 % of the host's memory: a rank
    # that leaks host memory must not take the watcher with it.
    "RAY_worker_oom_score_adjustment": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # A raylet waits this long for its tasks before it ends; ours never end by themselves.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # A raylet ends if its agent, a Python process that imports Ray, has not said a word by then (Ray's own: 30 s).
    # Where the processors are taken by others that is too short.
    "RAY_agent_register_timeout_ms": "240000",
    # How long nodes wait for a head that is away before they give up.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    # A raylet whose link was cut has to notice that its connection is dead, or it hears up to half a minute late that
    # it has been called dead: the kernel's tries come ever more rarely, and an answer that was lost is waited for. Ray
    # asks only every 5 min whether the other side is there, and waits 2 min for a sign (also TCP_USER_TIMEOUT).
    "RAY_grpc_client_keepalive_time_ms": "10000",
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
    # How often a raylet asks the head whether it is known. A head that has lost gcs/ knows nobody, and it is by this
    # question alone that raylets hear of it: once a minute with Ray's default, so up to a minute late.
    "RAY_raylet_liveness_self_check_interval_ms": "10000",
    # What is larger than this goes through the object store, a sparse file in /dev/shm (Ray's own limit: 100 KB). On a
    # full /dev/shm that is a SIGBUS of the raylet, and a report with evidence has some 400 KB.
    "RAY_max_direct_call_object_size": "8388608",
    # Ray's own is 15. With ten busy processes on two cores that is 1 % of a core: imports take minutes, and an agent
    # that is killed holds its place for seconds more, until each of its threads has had a turn to end. Coordinator and
    # notifier let training go first once they are at work; the agent takes too little to be in the way.
    "RAY_worker_niceness": "0",
    # Ray hides GPUs from actors that ask for none; the agent needs none of them, but NVML's view must be whole.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

FEW_HEAPS = {"MALLOC_ARENA_MAX": "2"}
"""glibc gives threads up to eight heaps per core, and no heap uses memory that is free in another: with a thread for
each request the coordinator grew by 1 to 3 MiB a minute (tests/soak). With two heaps it does not."""

DEATH_AFTER_ABOUT_9_S = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Head only. A lost raylet is dead after 2-3 s, a cut link after 9 s (Ray's defaults: 15 s and 65 s)."""

KNOWN_FAILURES = {
    "InvalidAuthToken": "the head at {head} refuses the token in {token}: copy the head's token file again",
    "Version mismatch": "this node and the head at {head} have different versions of Python or Ray: every node of a "
    "cluster needs the same environment (see the versions in the log)",
    "No space left on device": "no space left on the device (/tmp, /dev/shm or the state directory)",
    "AF_UNIX path": "the path of the state directory is too long for a Unix socket: choose a shorter one",
}
"""What Ray says when it does not start, and what that means here."""

EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""The last line of a traceback."""

STATE_ERROR = re.compile(r"Failed to \w+ RocksDB .*(Corruption: |No such file or directory|Not a directory).*")
"""A full disk, a lock that an earlier process still holds, and slowness are no such errors."""

MAX_ERROR_CHARS = 400

JOIN_TRIES = {"RAY_NUM_REDIS_GET_RETRIES": "5"}
"""Nodes only, about a second each: a head that answers but does not let us in is said after 5 s instead of 20 s."""

PORT_OPTIONS = (
    "--node-manager-port",
    "--object-manager-port",
    "--runtime-env-agent-port",
)
"""Of ``ray start``, each with one port; the rest of the range is for actors, and for commands that connect."""

FREE_PORTS = range(20_000, 32_000)
"""Above Ray's own for workers, and below those of outgoing connections (``ip_local_port_range``, ip(7))."""

OBJECT_STORE_BYTES = 80_000_000
"""About the least that Ray takes. Sparse: nothing of ours goes through it."""


def engine_environ(
    spec: NodeSpec, environ: Mapping[str, str], *, node_file: Path, gcs_dir: Path | None
) -> dict[str, str]:
    """The environment of this node's Ray processes, and so of the agent: ours plus Ray's settings.

    The rest passes through on purpose (``LD_LIBRARY_PATH`` finds NVML where it is not in the usual place), except
    what would make Ray join or become something else. ``gcs_dir``: where the head keeps its state; ``None``: in memory.
    """
    ours = {**FEW_HEAPS, **{name: value for name, value in environ.items() if not name.startswith("RAY_")}}
    ours.update(QUIET | SLOW_TIMERS | SURVIVE)
    ours["RAY_AUTH_MODE"] = "token"
    ours["RAY_AUTH_TOKEN_PATH"] = spec.token_file
    if (tls := tls_files(spec.settings, spec.state_dir)) is not None:
        ours |= tls.environ()
    ours[NODE_SPEC_VARIABLE] = str(node_file)
    if spec.is_head:
        ours.update(DEATH_AFTER_ABOUT_9_S)
        if gcs_dir is not None:
            ours.update({"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(gcs_dir)})
        if is_loopback_only(spec):
            # Despite its name: "no cluster over the network"; Ray then binds 127.0.0.1 instead of every interface.
            ours["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    else:
        ours.update(JOIN_TRIES)
    return ours


def start_command(spec: NodeSpec, *, python: str = sys.executable) -> list[str]:
    """``ray start`` for this node, by way of ``start_node``. Without ``--block``: it returns when the node runs."""
    command = [
        python, "-m", "tidegauge.cluster.ray_service.start_node",
        f"--node-ip-address={spec.node_address}",
        "--num-cpus=0", "--num-gpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-log-monitor=false", "--disable-usage-stats", f"--temp-dir={spec.engine_dir}",
    ]  # fmt: skip
    # Each by number, also where any free one will do: a raylet that has to hear its agent's port dies if it has not
    # said it within 15 s, and on a busy machine a Python process needs longer to import Ray.
    ports = node_ports(spec.settings)
    command += [f"{option}={port}" for option, port in zip(PORT_OPTIONS, ports or free_ports(len(PORT_OPTIONS)))]
    if ports is not None:
        command += [f"--min-worker-port={ports[len(PORT_OPTIONS)]}", f"--max-worker-port={ports[-1]}"]
    if spec.is_head:
        port = spec.head_address.rpartition(":")[2]
        return [*command, "--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"]
    return [*command, f"--address={spec.head_address}"]


def node_ports(settings: Mapping[str, object]) -> range | None:
    """Ports on which Ray listens on this node, beside the head's own; ``None``: free ones, as the system chooses."""
    if settings.get("engine_port") == 0 or (text := str(settings.get("engine_node_ports", "0"))) == "0":
        return None
    from tidegauge.settings import port_range  # here: commands of a base install import this module, without pydantic

    return port_range(text)


def broken_state(said: str) -> str | None:
    """What gcs_server's output says of its saved state, if that is why it ended. Ray 2.60 (RocksDB) prints, for each of
    its files that is broken, ``Failed to open RocksDB at …/gcs/tables: Corruption: CURRENT file corrupted``."""
    found = next(filter(None, map(STATE_ERROR.search, said.splitlines())), None)
    return None if found is None else found[0][:MAX_ERROR_CHARS]


def is_loopback_only(spec: NodeSpec) -> bool:
    """Whether this head serves this machine only. For any other address Ray listens on all interfaces."""
    return spec.is_head and spec.node_address == "127.0.0.1"


def address_towards(head_address: str) -> str:
    """The address of this machine on the route to the head. Raises ``OSError`` if there is no route."""
    host, _, port = head_address.rpartition(":")
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # a datagram socket: finds the route, sends nothing
        return str(probe.getsockname()[0])


def explain(words: str, spec: NodeSpec) -> str:
    """The meaning of Ray's output after a failed start, where it is known; else its last exception or last line."""
    for sign, meaning in KNOWN_FAILURES.items():
        if sign in words:
            return meaning.format(head=spec.head_address, token=spec.token_file)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    exceptions = [line for line in lines if EXCEPTION.match(line)]
    return next(reversed(exceptions or lines), "no output")[:MAX_ERROR_CHARS]


def answers(address: str, *, timeout_s: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens now, of those that the system gives to nobody by itself."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(FREE_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("", port))
                found += [port] if port not in found else []
    return found


def is_address(text: str) -> bool:
    """Whether ``text`` is an IP address (Ray names nodes by address, not by host name)."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
