"""How the engine is started: releases of Ray that are refused, and a raylet that is slow."""

from __future__ import annotations

import inspect
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tidegauge.cluster.ray_service import start_node
from tidegauge.cluster.ray_service.ray_release import installed_release, why_too_old
from tidegauge.cluster.ray_service.start_node import (
    DASHBOARD_AGENT,
    MAX_START_S,
    UNTIL_THE_RAYLET_ENDS,
    patient,
    with_port_files,
    without_dashboard_agent,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def asked_until(clock: Clock, ready_s: float, is_starting: Callable[[], bool]) -> Any:
    def ask(address: str, *, node: str) -> str:
        if clock.now_s < ready_s:
            raise RuntimeError("no such node")
        return f"{node} of {address}"

    return patient(ask, is_starting, monotonic_s=clock, sleep=clock.sleep)("head:1", node="abc")


def test_a_raylet_that_registers_after_ray_would_have_given_up_is_waited_for() -> None:
    assert asked_until(Clock(), 150.0, lambda: True) == "abc of head:1"


def test_a_raylet_that_has_died_is_not_waited_for() -> None:
    clock = Clock()
    with pytest.raises(RuntimeError, match="no such node"):
        asked_until(clock, 150.0, lambda: clock.now_s < 3)
    assert clock.now_s < 4


def test_a_raylet_that_lives_and_never_registers_is_given_up_at_last() -> None:
    clock = Clock()
    with pytest.raises(RuntimeError, match="no such node"):
        asked_until(clock, 1e9, lambda: True)
    assert MAX_START_S <= clock.now_s < MAX_START_S + 1


def test_ports_of_agents_are_in_their_files_before_the_raylet_starts() -> None:
    done: list[object] = []

    def start_raylet(
        node_id: str, session_dir: str, metrics_agent_port: int = 0, runtime_env_agent_port: int | None = None
    ) -> str:
        done.append((node_id, session_dir, metrics_agent_port, runtime_env_agent_port))
        return "started"

    start = with_port_files(start_raylet, lambda *file: done.append(file))
    assert start("abc", session_dir="/s", runtime_env_agent_port=6402) == "started"
    nobody_serves = [("/s", "abc", name, -1) for name in start_node.DASHBOARD_PORTS]
    assert done == [*nobody_serves, ("/s", "abc", "runtime_env_agent_port", 6402), ("abc", "/s", 0, 6402)]


def test_a_raylet_is_started_with_a_process_instead_of_the_dashboard_agent_that_ends_with_it() -> None:
    asked: list[object] = []
    start = without_dashboard_agent(lambda *given, **more: asked.append((given, more)))
    start(["raylet", "--node_id=abc", f"{DASHBOARD_AGENT}python agent.py"], "raylet", fate_share=False)
    assert asked == [
        ((["raylet", "--node_id=abc", DASHBOARD_AGENT + UNTIL_THE_RAYLET_ENDS], "raylet"), {"fate_share": False})
    ]
    command = [*shlex.split(UNTIL_THE_RAYLET_ENDS), "--disable-metrics-collection"]  # which Ray appends
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("release", ["2.57.0", "2.60.0", "2.100.1", "3.0.0", "2.58.0rc1", "2.57"])
def test_a_release_that_knows_tokens_and_keeps_its_state_is_taken(release: str) -> None:
    assert why_too_old(release) is None


@pytest.mark.parametrize("release", ["2.49.2", "2.51.2", "2.56.0", "1.13.0", "0.8.7", "", "dev", "3", "02.5"])
def test_a_release_that_would_start_open_or_forget_is_refused_with_what_to_do(release: str) -> None:
    reason = why_too_old(release)
    assert reason is not None
    assert f"Ray {release} is too old for the service" in reason
    assert "pip install 'ray>=2.57'" in reason


def test_where_there_is_no_ray_the_reason_says_which_python_was_asked() -> None:
    assert "Ray is not installed" in (why_too_old(None) or "")


def test_an_engine_of_an_old_ray_is_never_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start_node, "installed_release", lambda: "2.51.2")
    assert start_node.main(["--head"]) == 2
    assert "Ray 2.51.2 is too old" in capsys.readouterr().err


def test_the_installed_ray_has_what_is_replaced_in_it() -> None:
    from ray import _raylet
    from ray._private import services
    from ray.scripts import scripts

    assert why_too_old(installed_release()) is None
    assert callable(services.get_node)
    raylet = inspect.getsource(services.start_raylet)
    assert f'"{DASHBOARD_AGENT}{{}}"' in raylet
    assert "process_info = start_ray_process(\n        command," in raylet
    named = {"session_dir", "node_id", *start_node.AGENT_PORTS}
    assert named <= set(inspect.signature(services.start_raylet).parameters)
    names = {value for name, value in vars(_raylet).items() if name.endswith("_PORT_NAME")}
    assert set(start_node.AGENT_PORTS) == names - {"gcs_server_port"}
    assert callable(getattr(scripts, "get_ray_client_dependency_error"))  # noqa: B009 - Ray does not export it
