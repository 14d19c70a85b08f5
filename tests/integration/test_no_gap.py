"""A node's ``/metrics`` has no gap while Ray or the head is away, on real Ray: an agent beside the engine stands in.

One node that has joined a head is scraped twice a second all the time, with a rank that leaks, while ten processes of
others take the processors; the tests of the module run in this order.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fake_node import MIB, FakeClock, FakeRank, identity
from integration.service import Service, eventually
from metrics_pages import read_page
from rank_windows import leave_window
from tidegauge.cluster.ray_service.agent_place import AgentKind, PlaceHolder, look_at_place
from tidegauge.cluster.service_record import read_address
from tidegauge.core.detector import RankDetector
from tidegauge.core.ids import GlobalRank, JobId, LocalRank
from tidegauge.osproc.processes import identity_of

pytestmark = pytest.mark.timeout(400)

HEAD_ADDRESS, NODE_ADDRESS, LATE_ADDRESS = "127.0.0.2", "127.0.0.3", "127.0.0.4"
HEAD_PORT = "6399"
SCRAPE_EVERY_S = 0.5
MAX_GAP_S = 10.0
"""Two scrapes of 5 s."""
BUSY = 10
"""Processes of others, each in a session of its own as jobs are, while agents, Ray and the head are killed."""
IMPORT = "import tidegauge.cluster.ray_service.stand_in, tidegauge_exporter.metrics.server"
NOTICED_S, STARTS = 4.0, 3.0
"""For `down` and `up`: so many times what it takes to import the agent (`gap_of_an_upgrade_s`)."""
LINKED_S, LINK_STARTS = 30.0, 20.0
"""Until a node is linked again; elsewhere so many times what it takes to import the agent: 60 s where that takes 3 s
(`assert_linked_in_time`)."""
LINKED_AT_ALL_WITHIN_S = 150.0
STEP_S = 0.1
"""The agent reads every one."""
SERIES = re.compile(r"^(tidegauge_\w+)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
COUNTERS = ("tidegauge_detector_points_total", "tidegauge_rank_steps_total", "tidegauge_records_lost_total")


class Scrape(NamedTuple):
    at_s: float
    values: dict[str, float]
    """Of the node's own counters and the rank's series; empty where nobody answered."""


class Scraper:
    """Asks for a node's page all the time."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/metrics"
        self.scrapes: list[Scrape] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SCRAPE_EVERY_S):
            page = read_page(self._url, timeout_s=2.0) or ""
            values = {name: float(value) for name, value in SERIES.findall(page)}
            self.scrapes.append(Scrape(time.monotonic(), values))

    def good_since(self, since_s: float) -> list[Scrape]:
        """Those with the rank in them, from the last before ``since_s`` on."""
        good = [one for one in self.scrapes if "tidegauge_rank_steps_total" in one.values]
        first = max((at for at, one in enumerate(good) if one.at_s <= since_s), default=0)
        return good[first:]

    def longest_gap_s(self, since_s: float) -> float:
        times = [one.at_s for one in self.good_since(since_s)] + [time.monotonic()]
        return max(after - before for before, after in zip(times, times[1:]))


class LivingRank:
    """A rank that trains and leaks: this process, with a ring that is written like a probe's."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        process = identity_of(os.getpid())
        assert process is not None
        now_s = time.monotonic()
        self._clock = FakeClock(now_s=now_s - 100, unix_offset_s=time.time() - now_s)
        who = identity(
            job_id=JobId("leaking"), rank=GlobalRank(0), local_rank=LocalRank(0), world_size=1, device_uuids=(),
        )  # fmt: skip
        self._uncut = RankDetector()
        self.onsets: set[int | None] = set()
        """All that a detector says that is never stopped."""
        self.process = process
        self._ring = FakeRank(run_dir, self._clock, process=process, capacity=4096, who=who)
        self._step = 0
        for _ in range(1000):
            self._record()
            self._clock.pass_s(0.0375)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path:
        return self._ring.path.parent

    def _record(self) -> None:
        self._step += 1
        allocated = 4096 * MIB + MIB * max(0, self._step - 200)
        sample = self._ring.record(step=self._step, allocated=allocated, reserved=60_000 * MIB)
        verdict = self._uncut.update(
            step=sample.step, time_s=sample.mono_ns / 1e9, allocated_bytes=sample.allocated_bytes,
            reserved_bytes=sample.reserved_bytes, allocated_peak_bytes=sample.allocated_peak_bytes,
            inactive_split_bytes=sample.inactive_split_bytes,
        )  # fmt: skip
        self.onsets.add(verdict.onset_step)

    def _run(self) -> None:
        while not self._stop.wait(STEP_S):
            self._clock.now_s = time.monotonic() - 0.0625  # which a record adds
            self._record()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def head() -> Iterator[Service]:
    service = Service()
    service.environ |= {"TIDEGAUGE_SLURM": "off", "TIDEGAUGE_ENGINE_PORT": HEAD_PORT}
    try:
        service.up("--node-address", HEAD_ADDRESS)
        yield service
    finally:
        service.close()


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingRank]:
    rank = LivingRank(tmp_path_factory.mktemp("run"))
    yield rank
    rank.close()


@pytest.fixture(scope="module")
def node(head: Service, rank: LivingRank) -> Iterator[Service]:
    service = Service()
    service.environ |= {"TIDEGAUGE_SLURM": "off", "TIDEGAUGE_RUN_DIR": str(rank.run_dir)}
    try:
        service.up("--join", f"{HEAD_ADDRESS}:{HEAD_PORT}", "--token-file", str(head.files.token),
                   "--node-address", NODE_ADDRESS)  # fmt: skip
        yield service
    finally:
        service.close()


class OtherWork:
    """Processes that take all that they get of the processors."""

    def __init__(self) -> None:
        spin = [sys.executable, "-c", "while True: pass"]
        self._processes = [subprocess.Popen(spin, start_new_session=True) for _ in range(BUSY)]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def one_waits(service: Service) -> bool:
    """Whether a process of the service is blocked in flock(2), by proc_locks(5)."""
    blocked = [line.split()[5] for line in Path("/proc/locks").read_text().splitlines() if "-> FLOCK" in line]
    return any(str(stat.process.pid) in blocked for stat in service.processes())


@pytest.fixture(scope="module")
def other_work(node: Service) -> Iterator[OtherWork]:
    """From when the node is up, and not for the first seconds only."""
    eventually(lambda: one_waits(node), "an agent waits beside the engine")
    other_work = OtherWork()
    yield other_work
    other_work.end()


@pytest.fixture(scope="module")
def scraper(node: Service, other_work: OtherWork) -> Iterator[Scraper]:
    address = read_address(node.files.agent)
    assert address is not None
    scraper = Scraper(address)
    eventually(
        lambda: scraper.scrapes and scraper.scrapes[-1].values.get("tidegauge_rank_leak_state") == 2, "the rank leaks"
    )
    yield scraper
    scraper.close()


def holder(service: Service) -> PlaceHolder | None:
    state = look_at_place(service.files.agent_place)
    return state.holder if state.is_held else None


def is_linked(head: Service, address: str) -> bool:
    nodes = head.get("/api/v1/nodes")["nodes"]
    return any(one["address"] == address and one["health"] == "ok" for one in nodes)


def assert_onset_known(head: Service, rank: LivingRank) -> None:
    """The head knows the leak, with an onset that a detector without any trouble tells, too."""
    state, onset = eventually(lambda: verdict(head), "the head knows the leak")
    assert (state, onset in rank.onsets) == ("leak", True), (onset, rank.onsets)


def verdict(head: Service) -> tuple[str, int] | None:
    """State and onset of the leaking rank, as the head knows them."""
    jobs: list[dict[str, Any]] = head.get("/api/v1/jobs")["jobs"]
    for job in jobs:
        for rank in job["ranks"]:
            if job["job_id"] == "leaking" and rank["verdict"]["state"] != "ok":
                return rank["verdict"]["state"], rank["verdict"]["onset_step"]
    return None


def linked_again(head: Service, node: Service, *, but: PlaceHolder | None) -> Callable[[], bool]:
    def is_so() -> bool:
        now = holder(node)
        return now is not None and now != but and now.kind is AgentKind.ENGINE and is_linked(head, NODE_ADDRESS)

    return is_so


def gap_of_an_upgrade_s() -> float:
    """Allowed now, on this machine: it starts three Pythons, one after the other."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORT], check=True)
    return max(MAX_GAP_S, NOTICED_S + STARTS * (time.monotonic() - began_s))


def assert_no_gap(scraper: Scraper, since_s: float, *, within_s: float = MAX_GAP_S) -> None:
    gap_s = scraper.longest_gap_s(since_s)
    print(f"longest gap: {gap_s:.1f} s, linked after {time.monotonic() - since_s:.0f} s, load {os.getloadavg()[0]:.0f}")
    assert gap_s <= within_s
    scrapes = scraper.good_since(since_s)
    assert {one.values["tidegauge_rank_leak_state"] for one in scrapes} == {2.0}
    for name in COUNTERS:
        values = [one.values[name] for one in scrapes]
        assert values == sorted(values), name


def assert_linked_in_time(seconds: float) -> None:
    """As `allowed_gap_s`: Ray's processes start one after the other, and each takes longer."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORT], check=True)
    allowed_s = max(LINKED_S, LINK_STARTS * (time.monotonic() - began_s))
    print(f"linked after {seconds:.1f} s of {allowed_s:.1f} s")
    assert seconds <= allowed_s


def test_agent_that_is_killed_leaves_no_gap(head: Service, node: Service, scraper: Scraper, rank: LivingRank) -> None:
    before = holder(node)
    assert before is not None
    since_s = time.monotonic()
    os.kill(before.process.pid, signal.SIGKILL)
    eventually(
        linked_again(head, node, but=before), "an agent of the engine's is linked", within_s=LINKED_AT_ALL_WITHIN_S
    )
    assert_no_gap(scraper, since_s)
    assert_onset_known(head, rank)


def test_agent_that_is_stopped_is_followed_without_a_gap(
    head: Service, node: Service, scraper: Scraper, rank: LivingRank
) -> None:
    before = holder(node)
    assert before is not None
    since_s = time.monotonic()
    os.kill(before.process.pid, signal.SIGSTOP)
    eventually(
        linked_again(head, node, but=before), "an agent of the engine's is linked", within_s=LINKED_AT_ALL_WITHIN_S
    )
    assert_no_gap(scraper, since_s)
    assert_onset_known(head, rank)


def test_raylet_that_is_killed_leaves_no_gap(head: Service, node: Service, scraper: Scraper, rank: LivingRank) -> None:
    before = holder(node)
    since_s = time.monotonic()
    os.kill(node.pid_of("raylet"), signal.SIGKILL)
    eventually(
        linked_again(head, node, but=before), "an agent of the engine's is linked", within_s=LINKED_AT_ALL_WITHIN_S
    )
    assert_no_gap(scraper, since_s)
    assert_onset_known(head, rank)


def test_raylet_that_is_stopped_leaves_no_gap(head: Service, node: Service, scraper: Scraper, rank: LivingRank) -> None:
    """For longer than the head waits for it."""
    since_s = time.monotonic()
    before, raylet = holder(node), node.pid_of("raylet")
    os.kill(raylet, signal.SIGSTOP)
    try:
        eventually(lambda: not is_linked(head, NODE_ADDRESS), "the head misses the node")
        assert holder(node) == before, "the agent goes on without its raylet"
    finally:
        os.kill(raylet, signal.SIGCONT)
    back_s = time.monotonic()
    eventually(linked_again(head, node, but=before), "the node is linked again", within_s=LINKED_AT_ALL_WITHIN_S)
    assert_linked_in_time(time.monotonic() - back_s)
    assert_no_gap(scraper, since_s)
    assert_onset_known(head, rank)


def test_gcs_that_is_killed_leaves_no_gap(head: Service, node: Service, scraper: Scraper, rank: LivingRank) -> None:
    """The head's engine starts anew; the node's agent is the same process."""
    since_s = time.monotonic()
    before, (coordinator,) = holder(node), head.coordinators()
    os.kill(head.pid_of("gcs_server"), signal.SIGKILL)

    def is_back() -> bool:
        now = head.coordinators()
        return len(now) == 1 and now != [coordinator] and is_linked(head, NODE_ADDRESS)

    eventually(is_back, "the node is linked to the next coordinator", within_s=LINKED_AT_ALL_WITHIN_S)
    assert_linked_in_time(time.monotonic() - since_s)
    assert holder(node) == before
    assert_no_gap(scraper, since_s)
    assert_onset_known(head, rank)


def test_node_without_engine_and_head_goes_on_until_both_are_back(
    head: Service, node: Service, scraper: Scraper, rank: LivingRank, other_work: OtherWork
) -> None:
    """Evidence that a rank leaves meanwhile is the head's afterwards."""
    since_s = time.monotonic()
    head.kill()
    os.kill(node.pid_of("raylet"), signal.SIGKILL)

    def stands_in() -> bool:
        now = holder(node)
        return now is not None and now.kind is AgentKind.STAND_IN

    eventually(stands_in, "an agent beside the engine is at work")
    now = holder(node)
    assert now is not None
    priorities = [os.getpriority(os.PRIO_PROCESS, one.pid) for one in (now.process, node.record.supervisor)]
    assert priorities[0] == priorities[1], "the engine's start would take the processors from it"
    steps = scraper.good_since(time.monotonic())[-1].values["tidegauge_rank_steps_total"]
    eventually(
        lambda: scraper.scrapes[-1].values.get("tidegauge_rank_steps_total", 0) > steps + 100, "it goes on reading"
    )
    leave_window(rank.folder, rank.process)
    eventually(lambda: list((node.files.root / "evidence").glob("*.evidence")), "evidence waits for the head")
    other_work.end()  # how long a head takes to start is nothing of the node's
    head.up("--node-address", HEAD_ADDRESS)
    back_s = time.monotonic()
    eventually(linked_again(head, node, but=None), "the node is linked again", within_s=LINKED_AT_ALL_WITHIN_S)
    assert_linked_in_time(time.monotonic() - back_s)
    assert_no_gap(scraper, since_s)
    assert_onset_known(head, rank)
    asked = f"/api/v1/evidence?job_id=leaking&attempt=0&uid={os.getuid()}"
    eventually(lambda: head.get(asked)["evidence"], "the head has the evidence of that time")
    assert len(node.agents()) == 1


def test_upgrade_of_a_node_keeps_verdict_and_counters(
    head: Service, node: Service, scraper: Scraper, rank: LivingRank
) -> None:
    since_s = time.monotonic()
    assert node.call("down").code == 0
    node.up("--join", f"{HEAD_ADDRESS}:{HEAD_PORT}", "--token-file", str(head.files.token),
            "--node-address", NODE_ADDRESS)  # fmt: skip
    eventually(linked_again(head, node, but=None), "the node is linked again", within_s=LINKED_AT_ALL_WITHIN_S)
    assert_no_gap(scraper, since_s, within_s=gap_of_an_upgrade_s())
    assert_onset_known(head, rank)


def test_node_whose_head_was_never_there_serves_metrics_and_joins_it_later(head: Service) -> None:
    assert head.call("down").code == 0
    late = Service()
    late.environ |= {"TIDEGAUGE_SLURM": "off"}
    command = [
        sys.executable, "-m", "tidegauge.cli.main", "up", "--foreground", "--join", f"{HEAD_ADDRESS}:{HEAD_PORT}",
        "--token-file", str(head.files.token), "--node-address", LATE_ADDRESS,
    ]  # fmt: skip
    process = subprocess.Popen(command, env=late.environ, cwd="/", start_new_session=True)
    try:

        def serves() -> bool:
            address = read_address(late.files.agent)
            page = address and read_page(f"http://{address}/metrics", timeout_s=5.0)
            return "tidegauge_collect_success" in (page or "")

        eventually(serves, "the node serves metrics")
        first = read_address(late.files.agent)
        assert late.record.phase != "failed"
        head.up("--node-address", HEAD_ADDRESS)
        eventually(lambda: is_linked(head, LATE_ADDRESS), "the node has joined", within_s=LINKED_AT_ALL_WITHIN_S)
        assert read_address(late.files.agent) == first
        process.terminate()
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()
        late.close()
