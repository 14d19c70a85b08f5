"""A real process over a real SQLite audit, killed by SIGKILL before and after each call of audit and scheduler.

``python test_carry_out_sigkill.py DIRECTORY SCENARIO`` is the process that has it done: it forks one life after
another, because a fork costs milliseconds where a fresh interpreter costs a second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from itertools import count
from pathlib import Path

import pytest

from scheduler_hooks.carry_out_bench import (
    START_S,
    TIMES,
    TURN_S,
    Boundaries,
    Plan,
    at_once,
    in_turn,
    wanted,
)
from scheduler_hooks.fake_scheduler import FakeJob, FakeScheduler, FakeWorld
from tidegauge.cluster.store import open_store
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, Outcome
from tidegauge_scheduler_hooks.carry_out import CarryOut
from tidegauge_scheduler_hooks.carry_out_steps import Steps

CHECKPOINT, REQUEUE = wanted(ActionKind.CHECKPOINT), wanted(ActionKind.REQUEUE)
PLANS: dict[str, Plan] = {
    "checkpoint-requeue": in_turn(CHECKPOINT, REQUEUE),
    "cap": at_once(wanted(ActionKind.CAP)),
    "two-jobs": at_once(wanted(ActionKind.NOTIFY), wanted(ActionKind.HOLD), wanted(ActionKind.CANCEL, "4712")),
    "two-incidents": at_once(REQUEUE, wanted(ActionKind.REQUEUE, number=2)),
}
EFFECTS = {"checkpoint-requeue": 2, "cap": 1, "two-jobs": 3, "two-incidents": 1}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scenario", PLANS)
def test_killed_at_any_boundary_every_action_happens_once(scenario: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, __file__, str(tmp_path), scenario],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 15, "it was killed at too few boundaries to mean anything"


# The process that has it done


def kill_everywhere(directory: Path, scenario: str) -> int:
    """All deaths of a scenario, each followed by a life that ends well; returns how many there were."""
    template = directory / "template"
    template.mkdir()
    open_store(audit_url(template)).close()
    for boundary in count(1):
        here = directory / str(boundary)
        shutil.copytree(template, here)
        write_world(
            here, FakeWorld({"4711": FakeJob("4711", can_save=True), "4712": FakeJob("4712")}, looks_to_proof=1)
        )
        status = live_in_child(here, scenario, boundary)
        died = os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL if died else status == 0, f"boundary {boundary}: {status:#x}"
        check(here, scenario, over=not died)
        if not died:
            return boundary - 1
        assert live_in_child(here, scenario, None) == 0, f"after boundary {boundary}"
        check(here, scenario, over=True)
    raise AssertionError("unreachable")


def check(directory: Path, scenario: str, *, over: bool) -> None:
    """What holds after any death, and what must hold at the end."""
    world = read_world(directory)
    kept = {record.decision.decision_id: record for record in records(directory)}
    effects = Counter(decision_id for decision_id, _ in world.effects)
    assert set(effects.values()) <= {1}, f"something happened twice: {effects}"
    assert all(kept[decision_id].starts > 0 for decision_id in effects), "something happened that was not begun"
    done = {decision_id for decision_id, record in kept.items() if record.outcome is Outcome.DONE}
    assert done <= set(effects), "something is called done that did not happen"
    if over:
        assert done == set(effects)
        assert len(effects) == EFFECTS[scenario]
        assert {record.outcome for record in kept.values()} <= {Outcome.DONE, Outcome.SUPERSEDED}
        assert len(kept) == len(PLANS[scenario](list(kept.values())))


def records(directory: Path) -> list[DecisionRecord]:
    store = open_store(audit_url(directory))
    try:
        return list(store.audit.each(since_s=0.0))
    finally:
        store.close()


def live_in_child(directory: Path, scenario: str, kill_at: int | None) -> int:
    """One coordinator's life, in a process of its own; returns its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            live(directory, PLANS[scenario], kill_at)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def live(directory: Path, plan: Plan, kill_at: int | None) -> None:
    """Turns of the loop until everything that the plan wants has an outcome, or until the boundary."""
    boundaries = Boundaries(() if kill_at is None else (kill_at,), kill=lambda: os.kill(os.getpid(), signal.SIGKILL))
    world = read_world(directory)

    def changed() -> None:
        boundaries.cross()
        write_world(directory, world)
        boundaries.cross()

    store = open_store(audit_url(directory))
    now_s = max(START_S, store.newest_s() or START_S)
    audit = boundaries.around(store.audit)
    scheduler = boundaries.around(FakeScheduler(world, changed=changed))
    steps = Steps(
        audit, {"local": scheduler}, now_s=lambda: now_s, wall_s=lambda: now_s, held_back=lambda _: None, times=TIMES
    )
    carry_out = CarryOut(steps, submit=lambda call: call())
    for _ in range(100):
        new = audit.write_ahead(plan(list(audit.each(since_s=0.0))))
        if not new and not audit.unfinished():
            return
        carry_out.tick()
        now_s += TURN_S
    raise AssertionError(f"these have no outcome: {audit.unfinished()}")


def audit_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'tidegauge.db'}"


def read_world(directory: Path) -> FakeWorld:
    kept = json.loads((directory / "world.json").read_text())
    kept["jobs"] = {job_id: FakeJob(**job) for job_id, job in kept["jobs"].items()}
    kept["effects"] = [tuple(effect) for effect in kept["effects"]]
    return FakeWorld(**kept)


def write_world(directory: Path, world: FakeWorld) -> None:
    """All of it or nothing."""
    beside = directory / "world.json.new"
    beside.write_text(json.dumps(asdict(world)))
    beside.replace(directory / "world.json")


if __name__ == "__main__":
    print(kill_everywhere(Path(sys.argv[1]), sys.argv[2]))
