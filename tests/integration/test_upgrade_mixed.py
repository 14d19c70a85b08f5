"""Parts of different versions meet on one node: ranks live longer than services, and services longer than releases.

The older part is the real code of an earlier commit in a process of its own; ranks train on the rig.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import eventually
from integration.upgrade_releases import old_code, probe_environ, service_environ, why_not
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.cluster.incident_loops.escalation_loop import NO_SUCH_COMMAND
from tidegauge.core.orders import Order, OrderResult, OrderTo
from tidegauge.core.ring_layout import LAYOUT_VERSION
from tidegauge.core.views import RankView
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.settings import Settings
from upgrade_fixtures import ring

pytestmark = [pytest.mark.rig, pytest.mark.timeout(360)]

TRAINING = Path(__file__).parents[1] / "soak" / "training.py"
CONSOLE = Path(__file__).with_name("agent_console.py")
GIB = 1 << 30
OLD_PROBES = ("1-probe", "2-closed-loop", "6-allocator")
NEWER_COMMANDS = {
    "1-probe": ("checkpoint", "evidence", "snapshot"),
    "2-closed-loop": ("evidence", "snapshot"),
    "6-allocator": ("evidence", "snapshot"),
}
"""Commands of today's agent that the probe of a release does not know."""


def needed(release: str) -> str:
    reason = why_not(release)
    if reason is not None:
        pytest.skip(reason)
    return release


@contextmanager
def training(rig: Rig, run_dir: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A rank of one fake GPU; ended afterwards."""
    environ |= {"TIDEGAUGE_RUN_DIR": str(run_dir), "TIDEGAUGE_JOB_ID": "llm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([str(rig.python), str(TRAINING), "--pause-s", "0.02"], env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def gpus(rig: Rig, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that sees one fake GPU."""
    return rig.environ(devices=1, total_bytes=8 * GIB, state=tmp_path / "gpus")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[NodeAgent]:
    agent = open_node_agent(Settings(run_dir=tmp_path / "run", kubernetes="off", slurm="off"))
    yield agent
    agent.close()


class TestOldProbe:
    """A rank that was started before the upgrade, and the agent of after it."""

    @pytest.fixture(params=OLD_PROBES)
    def release(self, request: pytest.FixtureRequest) -> str:
        return needed(str(request.param))

    @pytest.fixture
    def rank(
        self, release: str, rig: Rig, gpus: dict[str, str], agent: NodeAgent, tmp_path: Path
    ) -> Iterator[RankView]:
        with old_code(release) as code, training(rig, tmp_path / "run", probe_environ(code, gpus, level="auto")):
            yield eventually(lambda: seen(agent), "a rank that makes steps", within_s=120)

    def test_upgrade_agent_watches_an_old_rank(self, rank: RankView, agent: NodeAgent) -> None:
        assert rank.identity.job_id == "llm"
        assert rank.allocated_bytes > 0
        later = eventually(lambda: seen(agent, after_step=rank.steps + 10), "further steps")
        assert later.alive
        view = agent.view()
        assert (view.records_lost, view.records_refused, sum(view.rings_skipped.values())) == (0, 0, 0)

    def test_commands_that_it_knows_are_carried_out(self, rank: RankView, agent: NodeAgent) -> None:
        reply = ask(agent, rank, {"command": "ping"}).reply
        assert reply is not None
        assert reply["ok"] is True
        reply = ask(agent, rank, {"command": "fraction", "value": 0.5}).reply
        assert reply == {"ok": True, "limit_fraction": 0.5}
        # The steps that are seen first may be from before the command.
        eventually(lambda: _is_capped(seen(agent, after_step=rank.steps + 10), 0.5), "the cap is seen")

    def test_upgrade_old_rank_refuses_unknown_commands_intelligibly(
        self, release: str, rank: RankView, agent: NodeAgent
    ) -> None:
        for command in NEWER_COMMANDS[release]:
            reply = ask(agent, rank, {"command": command, "id": "r1", "reason": "suspected"}).reply
            assert reply is not None
            unknown = NO_SUCH_COMMAND in reply["error"]
            # The first probes had names for commands that they could not carry out yet. The service asks for evidence
            # by itself, and must see that it need not ask again.
            assert unknown or (command != "evidence" and "not supported by this version" in reply["error"])
        assert seen(agent) is not None, "and trains on"


class TestNewProbe:
    """A rank of a newer environment, and an agent that was not upgraded yet."""

    @pytest.fixture(params=("1-probe", "6-allocator"))
    def code(self, request: pytest.FixtureRequest) -> Iterator[Path]:
        with old_code(needed(str(request.param))) as code:
            yield code

    def test_upgrade_old_agent_watches_a_new_rank(
        self, code: Path, rig: Rig, gpus: dict[str, str], tmp_path: Path
    ) -> None:
        new = {**gpus, **activation_environ("auto", gpus, pythonpath=True)}
        with training(rig, tmp_path / "run", new), old_agent(code, gpus, tmp_path / "run") as look:
            rank = eventually(
                lambda: next((r for r in look()["ranks"] if r["steps"] > 5), None), "a rank", within_s=120
            )
            assert rank["identity"]["job_id"] == "llm"
            later = eventually(lambda: next(r for r in look()["ranks"]), "it again")
            assert later["steps"] >= rank["steps"]
            assert look()["rings_skipped"] == {}

    def test_a_layout_of_tomorrow_is_refused_by_its_version(
        self, code: Path, gpus: dict[str, str], tmp_path: Path
    ) -> None:
        folder = tmp_path / "run" / str(os.getuid())
        folder.mkdir(parents=True, mode=0o700)
        content = bytearray(ring("1-probe"))
        content[8:12] = (LAYOUT_VERSION + 1).to_bytes(4, "little")
        (folder / "4194301-7.ring").write_bytes(content)
        with old_agent(code, gpus, tmp_path / "run") as look:
            assert look()["rings_skipped"] == {"version": 1}
            assert look()["rings_skipped"] == {"version": 1}, "counted once"
            assert look()["ranks"] == []


def seen(agent: NodeAgent, *, after_step: int = 5) -> RankView | None:
    """The rank, once it has made so many steps."""
    agent.poll()
    return next((rank for rank in agent.view().ranks if rank.steps > after_step), None)


def _is_capped(rank: RankView | None, fraction: float) -> bool:
    return rank is not None and fraction in (rank.identity.limit_fraction, rank.cap_fraction)


def ask(agent: NodeAgent, rank: RankView, request: dict[str, Any]) -> OrderResult:
    return agent.carry_out(Order("o1", OrderTo.RANK, rank.process, rank.uid, request, timeout_s=60.0))


@contextmanager
def old_agent(code: Path, gpus: dict[str, str], run_dir: Path) -> Iterator[Any]:
    """The agent of that code at work; gives a function that polls once and returns its view."""
    environ = {**service_environ(code, gpus), "TIDEGAUGE_RUN_DIR": str(run_dir)}
    process = subprocess.Popen(
        [sys.executable, str(CONSOLE)], env=environ, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def look() -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        view: dict[str, Any] = json.loads(process.stdout.readline())
        return view

    try:
        yield look
    finally:
        process.kill()
        process.communicate()
