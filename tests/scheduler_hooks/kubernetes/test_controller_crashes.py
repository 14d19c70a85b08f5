"""The process is killed before any one of its requests, or an answer is lost, or somebody else writes at that moment;
another replica goes on. Whatever happens, the workload is started again exactly once."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest

from scheduler_hooks.kubernetes.controller_world import (
    ControllerWorld,
    Killed,
    Process,
    change_before,
    kill_before,
)
from tidegauge.core.jobs.kubernetes import REMARK, REQUEUE
from tidegauge.core.jobs.variables import FRACTION_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.ports import TemporaryError


class Case(NamedTuple):
    kind: str
    queued: bool = False

    def __str__(self) -> str:
        return self.kind + "-queued" * self.queued


CASES = [
    *(Case(kind) for kind in KINDS),
    *(Case(kind, queued=True) for kind in ("Job", "JobSet", "TrainJob", "RayJob")),
]
MAX_REQUESTS = 20
"""More than any road has; the test says so."""


def suspended(case: Case) -> ControllerWorld:
    """With an order, and without pods."""
    world = ControllerWorld(case.kind, queued=case.queued)
    world.requeue(environ={FRACTION_VARIABLE: "0.8"})
    world.advance()
    return world


def work_until_quiet(world: ControllerWorld, case: Case) -> None:
    """A replica that starts afresh, and the rest of the cluster."""
    process = Process(world)
    for _ in range(4):
        with suppress(TemporaryError):
            process.work()
        world.advance()


def check_started_once(world: ControllerWorld) -> None:
    assert world.starts == 2, "the first one, and one more"
    assert REQUEUE not in world.annotations
    assert len(world.pods) == 1


def number_of_requests(case: Case) -> int:
    world = suspended(case)
    Process(world).work()
    return len(world.kube.calls)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_before_any_request_the_next_one_finishes_it(case: Case) -> None:
    requests = number_of_requests(case)
    assert 4 <= requests < MAX_REQUESTS
    for number in range(requests):
        world = suspended(case)
        kill_before(world.kube, number)
        with pytest.raises(Killed):
            Process(world).work()
        work_until_quiet(world, case)
        check_started_once(world)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_twice_the_third_one_finishes_it(case: Case) -> None:
    requests = number_of_requests(case)
    for first in range(requests):
        for second in range(requests):
            world = suspended(case)
            for number in (first, second):
                kill_before(world.kube, number)
                with suppress(Killed):
                    Process(world).work()
            world.kube.before_call = None
            work_until_quiet(world, case)
            check_started_once(world)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("verb", ["get", "list", "create", "patch"])
@pytest.mark.parametrize("done", [True, False], ids=["done", "not-done"])
def test_a_request_that_failed_or_whose_answer_was_lost_is_no_harm(case: Case, verb: str, done: bool) -> None:
    world = suspended(case)
    world.kube.fail_next(TemporaryError("no answer in time"), verb=verb, answer_lost=done)
    work_until_quiet(world, case)
    check_started_once(world)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_controller_preserves_annotations_written_between_its_requests(case: Case) -> None:
    for number in range(number_of_requests(case)):
        world = suspended(case)

        def remark(world: ControllerWorld = world) -> None:
            obj = world.obj
            obj["metadata"]["annotations"][REMARK] = "written in between"
            world.kube.put(world.kind.resource, obj)

        change_before(world.kube, number, remark)
        work_until_quiet(world, case)
        check_started_once(world)
        assert world.annotations[REMARK] == "written in between"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_that_both_take_themselves_for_the_leader_start_it_once(case: Case) -> None:
    """The Lease makes that rare; a process that was stopped for a while may still do it."""
    for number in range(number_of_requests(case)):
        world = suspended(case)
        other = Process(world)
        change_before(world.kube, number, other.work)
        work_until_quiet(world, case)
        check_started_once(world)
