"""Environment and command line of a Ray node, as values."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from tidegauge.cluster.ray_service import node_command
from tidegauge.cluster.ray_service.node_command import (
    FREE_PORTS,
    NODE_SPEC_VARIABLE,
    PORT_OPTIONS,
    address_towards,
    engine_environ,
    explain,
    free_ports,
    start_command,
)
from tidegauge.cluster.service_record import NodeSpec

HEAD = NodeSpec(
    state_dir="/s", engine_dir="/s/engine", token_file="/s/token", head_address="10.0.0.1:6399",
    node_address="10.0.0.1", is_head=True, settings={},
)  # fmt: skip
NODE = dataclasses.replace(HEAD, is_head=False, node_address="10.0.0.2")
NODE_FILE = Path("/s/node.json")


def environ(spec: NodeSpec, given: dict[str, str] | None = None, gcs_dir: Path | None = None) -> dict[str, str]:
    return engine_environ(spec, given or {}, node_file=NODE_FILE, gcs_dir=gcs_dir)


def test_engine_environ_passes_the_callers_variables_but_none_of_ray() -> None:
    given = {"LD_LIBRARY_PATH": "/nvml", "PATH": "/bin", "RAY_ADDRESS": "elsewhere:1", "RAY_TMPDIR": "/x"}
    result = environ(HEAD, given)
    assert (result["LD_LIBRARY_PATH"], result["PATH"]) == ("/nvml", "/bin")
    assert not {"RAY_ADDRESS", "RAY_TMPDIR"} & result.keys()


def test_the_token_is_named_by_its_file_and_never_in_the_environment() -> None:
    result = environ(NODE)
    assert (result["RAY_AUTH_MODE"], result["RAY_AUTH_TOKEN_PATH"]) == ("token", "/s/token")
    assert "RAY_AUTH_TOKEN" not in result


def test_the_interval_that_makes_gcs_server_spin_is_never_set() -> None:
    assert int(environ(HEAD)["RAY_event_stats_print_interval_ms"]) > 0


def test_raylets_hear_within_seconds_of_a_head_that_does_not_know_them() -> None:
    assert int(environ(NODE)["RAY_raylet_liveness_self_check_interval_ms"]) <= 10_000


def test_the_agent_is_not_the_first_victim_when_memory_runs_out() -> None:
    result = environ(NODE)
    assert (result["RAY_worker_oom_score_adjustment"], result["RAY_memory_monitor_refresh_ms"]) == ("0", "0")


def test_free_memory_does_not_lie_about_in_heaps_of_other_threads() -> None:
    assert environ(NODE)["MALLOC_ARENA_MAX"] == "2"
    assert environ(NODE, {"MALLOC_ARENA_MAX": "8"})["MALLOC_ARENA_MAX"] == "8", "an admin knows better"


def test_actors_find_the_spec_of_their_own_node() -> None:
    assert environ(NODE)[NODE_SPEC_VARIABLE] == "/s/node.json"


def test_engine_environ_sets_gcs_storage_on_the_head_only() -> None:
    assert environ(HEAD, gcs_dir=Path("/s/gcs"))["RAY_gcs_storage_path"] == "/s/gcs"
    assert "RAY_gcs_storage" not in environ(HEAD)
    assert "RAY_gcs_storage" not in environ(NODE, gcs_dir=Path("/s/gcs"))


def test_a_head_on_loopback_listens_on_loopback_alone() -> None:
    loopback = dataclasses.replace(HEAD, node_address="127.0.0.1", head_address="127.0.0.1:6399")
    assert environ(loopback)["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in environ(HEAD)


def test_the_head_is_started_small() -> None:
    command = start_command(HEAD, python="/venv/bin/python")
    assert command[:3] == ["/venv/bin/python", "-m", "tidegauge.cluster.ray_service.start_node"]
    assert {"--head", "--port=6399", "--num-cpus=0", "--include-dashboard=false", "--no-monitor"} <= set(command)
    assert "--block" not in command


def test_every_port_of_the_engine_is_in_the_range_that_is_documented() -> None:
    spec = dataclasses.replace(NODE, settings={"engine_port": 6399, "engine_node_ports": "7000-7015"})
    options = dict(part.split("=", 1) for part in start_command(spec) if part.startswith("--") and "port" in part)
    assert sorted(map(int, options.values())) == [*range(7000, 7004), 7015]
    assert (options["--min-worker-port"], options["--max-worker-port"]) == ("7003", "7015")


@pytest.mark.parametrize("settings", [{}, {"engine_port": 0, "engine_node_ports": "7000-7015"},
                                      {"engine_port": 6399, "engine_node_ports": "0"}])  # fmt: skip
def test_free_ports_are_chosen_and_named(settings: dict[str, object]) -> None:
    """A raylet that has to wait for its agents' word on theirs dies after 15 s."""
    options = [part for part in start_command(dataclasses.replace(NODE, settings=settings)) if "-port" in part]
    assert [option.partition("=")[0] for option in options] == list(PORT_OPTIONS)
    ports = {int(option.partition("=")[2]) for option in options}
    assert len(ports) == len(PORT_OPTIONS)
    assert ports <= set(FREE_PORTS)


def test_a_port_that_somebody_listens_on_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [one.getsockname()[1] for one in (taken, other)]
        other.close()
        monkeypatch.setattr(node_command, "FREE_PORTS", ports)
        assert free_ports(1) == [ports[1]]


def test_a_node_is_started_towards_its_head() -> None:
    command = start_command(NODE)
    assert {"--address=10.0.0.1:6399", "--node-ip-address=10.0.0.2", "--temp-dir=/s/engine"} <= set(command)
    assert "--head" not in command


def test_the_way_to_the_head_gives_the_own_address() -> None:
    assert address_towards("127.0.0.1:6399") == "127.0.0.1"


def test_a_failed_start_is_explained_by_its_exception_not_by_the_advice_below_it() -> None:
    said = (
        "Traceback (most recent call last):\n"
        '  File "node.py", line 1, in check_ports\n'
        "ValueError: Ray component worker_ports is trying to use a port number 16399 that is used by gcs_server.\n"
        "Port information: {}\n"
        "If you allocate ports, please make sure the same port is not used by multiple components.\n"
    )
    assert explain(said, HEAD).startswith("ValueError: Ray component worker_ports is trying to use a port number 16399")
    assert explain("ray.exceptions.RpcError: no reply\nbye\n", HEAD) == "ray.exceptions.RpcError: no reply"


def test_a_failed_start_without_an_exception_is_explained_by_its_last_line() -> None:
    assert explain("starting\nit is over\n\n", HEAD) == "it is over"
    assert explain("", HEAD) == "no output"
