"""Head, raylet or GCS are away for ten minutes: nodes go on, and what they see meanwhile is the head's afterwards."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.disks import inside
from chaos.ledger import Watch
from chaos.nodes import Node
from chaos.scenario import AWAY_S, BOUND_S, HEAD_BOUND_S, Scenario
from chaos.scenarios_freeze import stopped
from chaos.scenarios_network import link_is_up
from chaos.site import ChaosSite
from integration.security.users import ADA

ROOT = Path(__file__).parents[2]
JOB = "steady1"
WAITS_WITHIN_S = 120.0
KNOWN_WITHIN_S = 60.0
LEAVE_WINDOW = """
import sys
from pathlib import Path
from rank_windows import leave_window, window
from tidegauge.core.ids import ProcessId
rank = ProcessId(int(sys.argv[2]), int(sys.argv[3]))
leave_window(Path(sys.argv[1]), rank, window(rank, evidence_id=sys.argv[4]))
"""


def away(gone: Callable[[ChaosSite, Watch], Any]) -> Callable[[ChaosSite, Watch], None]:
    """``gone`` is a context. Meanwhile a rank beside the leak leaves the files of a window: its node's agent collects
    the evidence, which waits on disk."""

    def run(site: ChaosSite, watch: Watch) -> None:
        node = site.nodes[1]
        until_s = time.monotonic() + AWAY_S
        with gone(site, watch):
            before = _waiting(node)
            _leave_window(site, node)
            site.eventually(
                lambda: _waiting(node) - before, "evidence that was collected meanwhile waits",
                within_s=WAITS_WITHIN_S,
            )  # fmt: skip
            time.sleep(max(0.0, until_s - time.monotonic()))  # the trouble itself has a length
        assert time.monotonic() >= until_s

    return run


@contextmanager
def head_off(site: ChaosSite, watch: Watch) -> Iterator[None]:
    watch.away(site.head)
    site.head.power_off()
    try:
        yield
    finally:
        site.head.up()


@contextmanager
def no_engine(site: ChaosSite, _watch: Watch) -> Iterator[None]:
    """The node's raylet is dead, and no other can be started, as its head is out of reach."""
    node = site.nodes[1]
    node.cut()
    node.kill("raylet")
    yield
    node.heal()


def stops(number: int, role: str) -> Callable[[ChaosSite, Watch], Any]:
    return lambda site, _watch: stopped([site.nodes[number].the_pid(role)])


def told_of_meanwhile(site: ChaosSite, _watch: Watch) -> None:
    """The head has the evidence of that time."""

    def known() -> bool:
        (job,) = [one for one in site.api("/api/v1/jobs")["jobs"] if one["job_name"] == JOB]
        asked = f"job_id={job['job_id']}&attempt={job['attempt']}&uid={ADA}"
        return bool(site.api(f"/api/v1/evidence?{asked}")["evidence"])

    site.eventually(known, "the head has the evidence of that time", within_s=KNOWN_WITHIN_S)


def _leave_window(site: ChaosSite, node: Node) -> None:
    """Of the healthy job's rank 0, in its user's name, as the probe does."""
    folder, pid = node.run_dir / str(ADA), site.jobs[JOB].rank_pids()[0]
    (ring,) = folder.glob(f"{pid}-*.ring")
    user = ["setpriv", "--reuid=ada", "--regid=ada", "--clear-groups"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'collector'}:{ROOT / 'tests'}"}
    words = [str(folder), *ring.stem.split("-"), f"auto-{time.monotonic_ns()}"]
    done = node.run_in([*user, sys.executable, "-c", LEAVE_WINDOW, *words], env=environ)
    assert done.returncode == 0, done.stderr


def _waiting(node: Node) -> set[str]:
    return {path.name for path in inside(node, node.state_dir / "evidence").glob("*.evidence")}


def _away(name: str, what: str, gone: Callable[[ChaosSite, Watch], Any], bound_s: float) -> Scenario:
    return Scenario(f"{name}-away", f"{what} for {AWAY_S / 60:.0f} minutes", away(gone), bound_s,
                    after=told_of_meanwhile, cleanup=link_is_up, is_long=True)  # fmt: skip


SCENARIOS = (
    _away("head", "the head's host is off", head_off, HEAD_BOUND_S),
    _away("raylet", "a node has no raylet, and its head is out of reach", no_engine, BOUND_S),
    _away("raylet-stopped", "a raylet is stopped", stops(1, "raylet"), BOUND_S),
    _away("gcs-stopped", "gcs_server is stopped", stops(0, "gcs"), HEAD_BOUND_S),
)
