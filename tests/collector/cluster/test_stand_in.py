"""The agent beside the engine, as a real process: it waits for the place, serves, and ends when it is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_node import FakeClock, FakeRank
from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace, look_at_place
from tidegauge.cluster.service_record import NodeSpec, StateFiles, prepare_state_dir, read_address, write_spec
from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import identity_of, is_alive, send_signal
from tidegauge.settings import Settings
from waiting import PATIENCE_S, eventually

STAND_IN = ("-m", "tidegauge.cluster.ray_service.stand_in")
PARENT = """
import sys
from subprocess import DEVNULL, Popen
print(Popen([sys.executable, *sys.argv[1:]], stdin=DEVNULL, stdout=DEVNULL).pid, flush=True)
sys.stdin.read()
"""
SAYS_WHAT_IT_IMPORTS_AFTER_WAITING = """
import sys
from tidegauge.cluster.ray_service import agent_place, stand_in
wait = agent_place.AgentPlace.wait
def wait_and_listen(place):
    wait(place)
    sys.addaudithook(lambda event, about: event == "import" and print(about[0], flush=True))
agent_place.AgentPlace.wait = wait_and_listen
sys.exit(stand_in.main(sys.argv))
"""


def waits_for_a_lock(pid: int) -> bool:
    """Whether it is blocked in flock(2), by proc_locks(5)."""
    return any(f" {pid} " in line and "->" in line for line in Path("/proc/locks").read_text().splitlines())


class Site:
    """A state directory, a rank (this process), and the agents that were started."""

    def __init__(self, root: Path) -> None:
        self.files: StateFiles = prepare_state_dir(root / "s")
        settings = Settings(
            run_dir=root / "run", state_dir=self.files.root, metrics_port=0, slurm="off", kubernetes="off",
            poll_period_s=0.1,
        )  # fmt: skip
        spec = NodeSpec(
            state_dir=str(self.files.root), engine_dir=str(root / "engine"), token_file=str(self.files.token),
            head_address="127.0.0.1:1", node_address="127.0.0.1", is_head=False,
            settings=settings.model_dump(mode="json"),
        )  # fmt: skip
        write_spec(self.files, spec)
        process = identity_of(os.getpid())
        assert process is not None
        now_s = time.monotonic()
        self.rank = FakeRank(root / "run", FakeClock(now_s - 1.0, time.time() - now_s), process=process)
        self.rank.record(step=0)
        self._started: list[subprocess.Popen[bytes]] = []
        self._below: list[ProcessId] = []

    def start(self, *program: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *(program or STAND_IN), str(self.files.node)]
        self._started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return self._started[-1]

    def start_below_another(self) -> tuple[ProcessId, subprocess.Popen[bytes]]:
        """A stand-in, and its parent, which ends with its standard input."""
        parent = self.start("-c", PARENT, *STAND_IN)
        assert parent.stdout is not None
        child = identity_of(int(parent.stdout.readline()))
        assert child is not None
        self._below.append(child)
        return child, parent

    def page(self) -> str:
        address = eventually(lambda: read_address(self.files.agent))
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def close(self) -> None:
        for below in self._below:
            send_signal(below, signal.SIGKILL)
        for one in self._started:
            one.kill()
            one.communicate()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_stand_in_serves_the_nodes_ranks_and_says_that_it_is_at_work(site: Site) -> None:
    stand_in = site.start()
    page = site.page()  # the first one: no scrape sees a node without its ranks
    assert "tidegauge_rank_allocated_bytes{" in page
    state = look_at_place(site.files.agent_place)
    assert state.is_held
    assert state.holder is not None
    assert (state.holder.process.pid, state.holder.kind) == (stand_in.pid, AgentKind.STAND_IN)


def test_one_that_waits_is_at_work_as_soon_as_the_place_is_free(site: Site) -> None:
    place = AgentPlace(site.files.agent_place, AgentKind.ENGINE)
    assert place.take()
    waiting = site.start()
    eventually(lambda: waits_for_a_lock(waiting.pid))
    assert read_address(site.files.agent) is None
    place.release()
    assert "tidegauge_rank_allocated_bytes{" in site.page()
    state = look_at_place(site.files.agent_place)
    assert state.holder is not None
    assert state.holder.process.pid == waiting.pid


def test_one_that_waits_has_imported_what_its_first_page_needs(site: Site) -> None:
    """Imports are most of a start, and on a busy machine they take ten times as long."""
    started = site.start("-c", SAYS_WHAT_IT_IMPORTS_AFTER_WAITING)
    site.page()
    started.terminate()
    out, _ = started.communicate(timeout=PATIENCE_S)
    assert out.decode().split() == []


def test_one_that_waits_ends_with_its_supervisor_and_one_at_work_does_not(site: Site) -> None:
    place = AgentPlace(site.files.agent_place, AgentKind.ENGINE)
    assert place.take()
    waiting, supervisor = site.start_below_another()
    eventually(lambda: waits_for_a_lock(waiting.pid))
    supervisor.communicate()
    eventually(lambda: not is_alive(waiting))
    place.release()
    at_work, supervisor = site.start_below_another()
    site.page()
    supervisor.communicate()
    assert "tidegauge_rank_allocated_bytes{" in site.page()
    assert is_alive(at_work)


def test_stand_in_that_is_asked_to_end_leaves_its_state_and_its_port_to_the_next(site: Site) -> None:
    first = site.start()
    site.page()
    address = read_address(site.files.agent)
    place = AgentPlace(site.files.agent_place, AgentKind.ENGINE)
    place.take_over()
    assert first.wait(PATIENCE_S) == 0
    assert f"127.0.0.1:{place.last_port}" == address
    (kept,) = (site.files.agent_state / "ranks").iterdir()
    assert kept.name.startswith(f"{os.getpid()}-")
    place.release()
    site.start()
    site.page()
    assert read_address(site.files.agent) == address


def test_next_stand_in_goes_on_with_the_counters_of_one_that_was_killed(site: Site) -> None:
    first = site.start()

    def points() -> float:
        (line,) = [line for line in site.page().splitlines() if line.startswith("tidegauge_detector_points_total")]
        return float(line.split()[-1])

    for step in range(1, 20):
        site.rank.record(step=step)
    eventually(lambda: points() == 20)
    eventually(lambda: b'"detector_points":20' in (site.files.agent_state / "node.json").read_bytes())
    first.kill()
    first.wait()
    site.start()
    assert points() >= 20
