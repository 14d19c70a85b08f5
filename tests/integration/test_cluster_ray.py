"""The service on real Ray: one agent per alive node through joins, losses and restarts, and a clean end.

The tests of a module run in this order on one head, the way an admin's week would; each leaves the service healthy.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fake_node import MIB, FakeClock, FakeRank, identity
from integration.service import Service, eventually, told
from tidegauge.cluster.ray_service.node_command import engine_environ
from tidegauge.core.ids import GlobalRank, JobId, LocalRank
from tidegauge.osproc.processes import identity_of

pytestmark = pytest.mark.timeout(300)

HEAD_ADDRESS, NODE_ADDRESS = "127.0.0.2", "127.0.0.3"
"""Two addresses of one machine's loopback stand for two hosts."""
ASKED_WITHIN_S = 5.0
"""A command reaches Ray, and asks, within this time; on a machine where it takes longer, less is tested."""


def a_service() -> Service:
    """Without Slurm, whose commands would come and go among its processes."""
    service = Service()
    service.environ["TIDEGAUGE_SLURM"] = "off"
    return service


@pytest.fixture(scope="module")
def head() -> Iterator[Service]:
    service = a_service()
    try:
        service.up("--node-address", HEAD_ADDRESS)
        yield service
    finally:
        service.close()


@pytest.fixture
def node(head: Service) -> Iterator[Service]:
    """A second node that has joined."""
    service = a_service()
    try:
        service.up("--join", head.record.spec.head_address, "--token-file", str(head.files.token),
                   "--node-address", NODE_ADDRESS)  # fmt: skip
        yield service
    finally:
        service.close()


def nodes_by_health(head: Service) -> dict[str, list[str]]:
    """Addresses (hosts' names are alike here) of nodes by health."""
    found: dict[str, list[str]] = {}
    for node in head.get("/api/v1/nodes")["nodes"]:
        found.setdefault(node["health"], []).append(node["address"] or "?")
    return found


def node_id(head: Service, address: str) -> str:
    """The engine's name of the node that reports from ``address`` now."""
    (found,) = [
        n["node_id"] for n in head.get("/api/v1/nodes")["nodes"] if (n["address"], n["health"]) == (address, "ok")
    ]
    return str(found)


def health_of(head: Service, node_id: str) -> str | None:
    return next((str(n["health"]) for n in head.get("/api/v1/nodes")["nodes"] if n["node_id"] == node_id), None)


def write_job(run_dir: Path, rank: int, pid: int, *, leak_bytes_per_step: int, steps: int) -> None:
    """The ring of a rank that has just done ``steps`` steps of 10 ms, as its probe would have written it."""
    process = identity_of(pid)
    assert process is not None
    now_s = time.monotonic()
    clock = FakeClock(now_s=now_s - steps / 100, unix_offset_s=time.time() - now_s)
    who = identity(
        job_id=JobId("job-of-the-test"), rank=GlobalRank(rank), local_rank=LocalRank(rank), world_size=2,
        job_name="train", device_uuids=(),
    )  # fmt: skip
    writer = FakeRank(run_dir, clock, process=process, capacity=4096, who=who)
    for step in range(steps):
        writer.record(step=step, allocated=4096 * MIB + step * leak_bytes_per_step)
        clock.pass_s(0.01)


def test_up_returns_when_the_service_is_healthy(head: Service) -> None:
    (only,) = head.get("/api/v1/status")["nodes"]
    assert [only["agent_pid"]] == head.agents()  # it has reported; now it may stand still for a while

    def healthy() -> bool:
        status = head.call("status", "--json")
        return status.code == 0 and status.json["running"] and status.json["healthy"]

    eventually(healthy, "it says that it is healthy")


def test_up_again_says_that_it_is_up_and_starts_nothing(head: Service) -> None:
    before = {stat.process for stat in head.processes()}
    again = head.call("up", "--json")
    assert (again.code, again.json["already_up"]) == (0, True)
    # What it had started would stay; a worker that Ray itself begins and ends may come and go.
    eventually(lambda: not {stat.process for stat in head.processes()} - before, "nothing was started")


def test_an_agents_main_thread_is_put_to_sleep(head: Service) -> None:
    (agent,) = head.agents()
    eventually(lambda: "hold" in Path(f"/proc/{agent}/cmdline").read_text(), "the agent runs hold()")


def test_a_rank_that_was_there_before_is_found_and_the_leaking_one_is_named(head: Service) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        write_job(head.run_dir, 0, os.getpid(), leak_bytes_per_step=0, steps=3000)
        write_job(head.run_dir, 1, other.pid, leak_bytes_per_step=4 * MIB, steps=3000)

        def leaking_job() -> dict[str, Any] | None:
            jobs = head.call("jobs", "--json").json["jobs"]
            return next((job for job in jobs if job["state"] == "leak"), None)

        job = eventually(leaking_job, "the job is seen to leak")
        assert (job["job_id"], job["suspects"], job["signal"]) == ("job-of-the-test", [1], "allocated")
        assert [rank["process"]["pid"] for rank in job["ranks"]] == [os.getpid(), other.pid]
        slope = job["ranks"][1]["verdict"]["bytes_per_step"]
        assert slope["low"] <= 4 * MIB <= slope["high"]
        table = told(lambda: head.call("jobs", "--fail-on-leak"))
        assert table.code == 1
        assert "rank 1" in table.out
        verdicts = [event for event in head.get("/api/v1/events")["events"] if event["kind"] == "rank_verdict"]
        assert {(event["rank"], event["job_id"]) for event in verdicts} == {(1, "job-of-the-test")}
    finally:
        other.kill()
        other.wait()


def test_prometheus_finds_agent_and_coordinator_through_sd(head: Service) -> None:
    url = head.call("up", "--json").json["api_url"]
    with urllib.request.urlopen(f"{url}/sd", timeout=20) as answer:
        groups = json.load(answer)
    kinds = {group["labels"]["__meta_tidegauge_component"]: group["targets"][0] for group in groups}
    assert kinds.keys() == {"agent", "coordinator"}
    pages = {}
    for kind, target in kinds.items():
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=20) as answer:
            pages[kind] = answer.read().decode()
    assert "tidegauge_rank_allocated_bytes{" in pages["agent"]
    assert "tidegauge_job_info{" in pages["coordinator"]
    assert "tidegauge_job_info{" not in pages["agent"]


def test_an_agent_that_is_killed_is_back_and_there_is_one(head: Service) -> None:
    (killed,) = head.agents()
    os.kill(killed, signal.SIGKILL)

    def another() -> bool:
        reporting = [node["agent_pid"] for node in head.get("/api/v1/nodes")["nodes"] if node["health"] == "ok"]
        return head.agents() == reporting != [killed]

    eventually(another, "one new agent reports")


def test_a_coordinator_that_is_killed_knows_everything_again(head: Service) -> None:
    before = head.get("/api/v1/status")["coordinator"]
    agents = eventually(head.agents, "the agent has its title, which Ray rewrites after its start")
    (killed,) = head.coordinators()
    os.kill(killed, signal.SIGKILL)

    def another() -> bool:
        status = head.get("/api/v1/status")
        return bool(status["coordinator"] != before and status["healthy"] and head.get("/api/v1/jobs")["jobs"])

    eventually(another, "a new coordinator knows node and job")
    assert (head.agents(), len(head.coordinators())) == (agents, 1)


def test_a_coordinator_that_is_just_starting_again_is_waited_for(head: Service) -> None:
    """A head that starts over the cluster state of before asks for the coordinator of before, which Ray starts again
    meanwhile: no reason to end the engine and to begin anew."""
    (killed,) = head.coordinators()
    os.kill(killed, signal.SIGSTOP)
    environ = engine_environ(head.record.spec, head.environ, node_file=head.files.node, gcs_dir=None)
    deploying = subprocess.Popen(
        [sys.executable, "-m", "tidegauge.cluster.ray_service.deploy", str(head.files.node)], env=environ, cwd="/",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with suppress(subprocess.TimeoutExpired):  # it asks, and is not answered
        deploying.wait(timeout=ASKED_WITHIN_S)
    os.kill(killed, signal.SIGKILL)
    said, problem = deploying.communicate(timeout=180)
    assert deploying.returncode == 0, problem
    assert said.startswith("http://")
    eventually(lambda: head.get("/api/v1/status")["healthy"], "the coordinator is back")


def test_a_node_that_joins_gets_one_agent_and_loses_it_with_its_end(head: Service, node: Service) -> None:
    eventually(lambda: sorted(nodes_by_health(head).get("ok", [])) == [HEAD_ADDRESS, NODE_ADDRESS], "both report")
    assert (len(head.agents()), len(node.agents())) == (1, 1)
    assert node.call("status").code == 0
    record = node.record
    assert node.call("down").code == 0
    assert node.traces(record) == []
    eventually(lambda: nodes_by_health(head).get("ok") == [HEAD_ADDRESS], "the head alone is left")
    assert len(head.agents()) == 1


def test_a_node_whose_engine_dies_comes_back_by_itself_with_one_agent(head: Service, node: Service) -> None:
    (agent,) = node.agents()
    dead = node_id(head, NODE_ADDRESS)
    os.kill(node.pid_of("raylet"), signal.SIGKILL)

    def back() -> bool:
        ok = sorted(nodes_by_health(head).get("ok", []))
        agents = node.agents()
        old_is_known_to_be_dead = health_of(head, dead) == "gone"
        return old_is_known_to_be_dead and ok == [HEAD_ADDRESS, NODE_ADDRESS] and len(agents) == 1 and agents != [agent]

    eventually(back, "the node is back, one agent on each", within_s=150)
    assert node_id(head, NODE_ADDRESS) != dead
    assert len(head.agents()) == 1


def test_a_node_that_is_lost_altogether_is_gone_and_down_cleans_up_behind_it(head: Service, node: Service) -> None:
    record = node.record
    lost = node_id(head, NODE_ADDRESS)
    os.kill(record.supervisor.pid, signal.SIGKILL)
    for process, name in record.processes:
        if name == "raylet":
            os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: health_of(head, lost) == "gone", "the node is listed as gone", within_s=120)
    eventually(
        lambda: nodes_by_health(head).get("ok") == [HEAD_ADDRESS] and len(head.agents()) == 1, "one agent is left"
    )
    eventually(lambda: head.call("status").code == 0, "the head says that it is well")
    assert node.call("status").code == 3
    assert node.call("down").code == 0
    assert node.traces(record) == []


def test_a_head_whose_gcs_dies_is_back_and_the_other_nodes_agent_lived_on(head: Service, node: Service) -> None:
    (agent,) = node.agents()
    before = head.get("/api/v1/status")["coordinator"]
    os.kill(head.pid_of("gcs_server"), signal.SIGKILL)

    def back() -> bool:
        now = head.get("/api/v1/status")
        ok = [other for other in now["nodes"] if other["health"] == "ok"]
        return now["coordinator"] != before and len(ok) == 2 and head.record.phase == "running"

    eventually(back, "both nodes report to the head's new engine", within_s=150)
    assert (node.agents(), len(head.agents())) == ([agent], 1)


def test_a_wrong_token_joins_nothing(head: Service, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o600)
    stranger = Service()
    try:
        done = stranger.call("up", "--join", head.record.spec.head_address, "--token-file", str(token),
                             "--node-address", NODE_ADDRESS)  # fmt: skip
        assert done.code == 3
        assert "token" in done.err
        assert stranger.call("status").code == 3
    finally:
        stranger.close()


@pytest.mark.parametrize("leads_its_session", [True, False], ids=["as systemd starts it", "from a shell"])
def test_in_the_foreground_it_runs_until_a_signal_and_leaves_nothing(leads_its_session: bool) -> None:
    service = Service()
    command = [sys.executable, "-m", "tidegauge.cli.main", "up", "--foreground"]
    process = subprocess.Popen(command, env=service.environ, cwd="/", start_new_session=leads_its_session)
    try:
        eventually(lambda: service.get("/api/v1/status")["healthy"], "the service is healthy", within_s=120)
        record = service.record
        assert (record.supervisor.pid == process.pid) is leads_its_session
        eventually(lambda: service.call("status").code == 0, "it says that it is well")
        process.terminate()
        assert process.wait(90) == 0
        assert service.traces(record) == []
        assert not service.files.record.exists()
    finally:
        process.kill()
        process.wait()
        service.close()


def test_down_leaves_no_process_and_no_file_but_token_logs_and_incidents(head: Service) -> None:
    record = head.record
    begin_s = time.monotonic()
    down = head.call("down")
    assert (down.code, down.out) == (0, "down\n"), time.monotonic() - begin_s
    assert head.traces(record) == []
    left = {path.name for path in head.files.root.iterdir()}
    # A coordinator that was ended while it wrote down the time leaves a draft.
    left = {name for name in left if not re.fullmatch(r"\.clock\.json-\w+", name)}
    # SQLite's own two are there if the coordinator was ended with the database open.
    assert sorted(left - {"tidegauge.db-wal", "tidegauge.db-shm"}) == [
        "agent", "agent.lock", "agent.next", "clock.json", "evidence", "lock", "logs", "node.json", "tidegauge.db",
        "token",
    ]  # fmt: skip
    assert head.call("down").code == 0
    assert head.call("status").code == 3
