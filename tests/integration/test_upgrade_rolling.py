"""Nodes of other releases on one head, on real Ray: one release back, one ahead, and one too far ahead.

The other release is this code with another version of the protocol, whose messages say less or more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_node import MIB, FakeClock, FakeRank, identity
from integration.service import Service, eventually
from integration.upgrade_releases import PACKAGES, service_environ
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.core.ids import GlobalRank, JobId, JobKey, LocalRank
from tidegauge.osproc.processes import identity_of
from tidegauge.protocol.messages import VERSION, ProtocolVersion

pytestmark = pytest.mark.timeout(420)

ROOT = Path(__file__).parents[2]
HEAD_ADDRESS, NODE_ADDRESS = "127.0.0.2", "127.0.0.3"
LESS = """
def _of_that_release(raw: Any) -> Any:
    raw.pop("ended_launches", None)
    for rank in raw.get("ranks", ()):
        rank.pop("allocated_highest_bytes", None)
        rank.pop("reserved_highest_bytes", None)
    return raw
"""
MORE = """
def _of_that_release(raw: Any) -> Any:
    for rank in raw.get("ranks", ()):
        rank["weather"] = {"sun": True}
    return {**raw, "weather": ["rain", 1, None]}
"""
LISTENER = """
import json, os, socket, sys
from tidegauge.core.run_dirs import socket_name
from tidegauge.osproc.processes import identity_of
with socket.socket(socket.AF_UNIX) as server:
    server.bind(os.path.join(sys.argv[1], socket_name(identity_of(os.getpid()))))
    server.listen()
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rw") as both:
            print(json.dumps({"ok": True, "heard": json.loads(both.readline())}), file=both, flush=True)
"""
"""A rank that answers its command socket."""


@contextmanager
def release(version: ProtocolVersion, what_it_says: str) -> Iterator[Path]:
    """A checkout whose messages are of that version."""
    with tempfile.TemporaryDirectory(prefix="tg-release-", dir="/tmp") as scratch:
        code = Path(scratch)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
        protocol = code / "collector" / "tidegauge" / "protocol"
        put(protocol / "messages.py", f"ProtocolVersion{tuple(VERSION)}", f"ProtocolVersion{tuple(version)}")
        put(protocol / "coding.py", "to_brief_wire(message)", "_of_that_release(to_brief_wire(message))")
        with (protocol / "coding.py").open("a") as file:
            file.write(what_it_says)
        yield code


def put(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name} no longer says {old!r} once"
    file.write_text(text.replace(old, new))


def a_service() -> Service:
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


@contextmanager
def node_of(code: Path, head: Service) -> Iterator[Service]:
    """A node that runs that code and has joined; its agent need not be understood."""
    service = a_service()
    service.environ = service_environ(code, service.environ)
    try:
        service.call(
            "up", "--join", head.record.spec.head_address, "--token-file", str(head.files.token),
            "--node-address", NODE_ADDRESS,
        )  # fmt: skip
        yield service
    finally:
        service.close()


@contextmanager
def a_rank(run_dir: Path, job_id: str) -> Iterator[int]:
    """A process with a ring of one step and a command socket; its pid."""
    folder = run_dir / str(os.getuid())
    folder.mkdir(mode=0o700, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, folder], env=service_environ(ROOT, os.environ), stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        who = identity_of(process.pid)
        assert who is not None
        clock = FakeClock(now_s=time.monotonic(), unix_offset_s=time.time() - time.monotonic())
        rank = FakeRank(
            run_dir, clock, process=who, capacity=4096,
            who=identity(job_id=JobId(job_id), rank=GlobalRank(0), local_rank=LocalRank(0), device_uuids=()),
        )  # fmt: skip
        rank.record(step=1, allocated=512 * MIB)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def node_at(head: Service, address: str) -> dict[str, Any] | None:
    """The living node there."""
    nodes = head.get("/api/v1/nodes")["nodes"]
    return next((node for node in nodes if node["address"] == address and node["health"] != "gone"), None)


def problem_at(head: Service, address: str) -> dict[str, Any] | None:
    """The node there, once the head says what is wrong with its reports."""
    node = node_at(head, address)
    return node if node is not None and node["problem"] else None


@pytest.mark.parametrize(("minor", "says"), [(VERSION.minor - 1, LESS), (VERSION.minor + 1, MORE)])
def test_a_node_one_release_apart_is_shown_and_takes_an_order(head: Service, minor: int, says: str) -> None:
    job_id = f"job-of-{minor}"
    with (
        release(VERSION._replace(minor=minor), says) as code,
        node_of(code, head) as node,
        a_rank(node.run_dir, job_id) as pid,
    ):
        (agent,) = eventually(node.agents, "its agent", within_s=120)
        assert str(code).encode() in Path(f"/proc/{agent}/environ").read_bytes(), "it runs the other release's code"
        shown = eventually(
            lambda: next((one for one in head.get("/api/v1/jobs")["jobs"] if one["job_id"] == job_id), None),
            "the rank is shown", within_s=120,
        )  # fmt: skip
        assert [rank["process"]["pid"] for rank in shown["ranks"]] == [pid]
        status = node_at(head, NODE_ADDRESS)
        assert status is not None
        assert (status["health"], status["problem"]) == ("ok", None)
        key = JobKey(job_id, shown["attempt"], shown["ranks"][0]["uid"])
        asks = EvidenceAsks(head.files.asks)
        wish = asks.put(key, 0, {"command": "ping"})
        answer = eventually(lambda: asks.fetch(wish), "the rank's answer", within_s=120)
        assert answer.reply == {"ok": True, "heard": {"command": "ping"}}, answer
    eventually(lambda: node_at(head, NODE_ADDRESS) is None, "the node is gone", within_s=120)


def test_a_node_two_releases_ahead_is_refused_in_words_on_both_sides(head: Service) -> None:
    with release(VERSION._replace(minor=VERSION.minor + 2), MORE) as code, node_of(code, head) as node:
        refused = eventually(lambda: problem_at(head, NODE_ADDRESS), "the head says why", within_s=120)
        ahead = VERSION._replace(minor=VERSION.minor + 2)
        words = f"speaks version {ahead} of the protocol between nodes"
        assert words in refused["problem"]
        assert refused["problem"].endswith("this one must be upgraded")
        assert refused["health"] == "waiting"
        assert words in head.call("status").out.replace("\n", " ")
        log = node.files.logs / "agent.log"
        eventually(lambda: words in log.read_text(), "the agent's log")
        assert log.read_text().count("cannot be sent") == 1, "once, however often it tries"
        assert "Traceback" not in log.read_text()
        assert [n["health"] for n in head.get("/api/v1/nodes")["nodes"] if n["address"] == HEAD_ADDRESS] == ["ok"]
