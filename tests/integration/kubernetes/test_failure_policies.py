"""A Job that its own policy fails when its pods leak is started again by us all the same, not failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.kubernetes.controller_process import running_controller
from integration.kubernetes.port_world import ApiWorld, name_of
from integration.kubernetes.target import KubeTarget
from tidegauge.core.jobs.kubernetes import LEAK_CONDITION
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.kubernetes.owners import State, is_true, state
from tidegauge_scheduler_hooks.ports import RequeueChanges, TemporaryError

POLICY = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": LEAK_CONDITION, "status": "True"}]}]}

pytestmark = pytest.mark.usefixtures("job_controller")


@pytest.fixture
def world(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[ApiWorld]:
    world = ApiWorld(kube, namespace, "Job", tmp_path, has_controller=True)
    with running_controller(tmp_path, world.release.controller_arguments()):
        yield world
    world.close()


def test_a_requeue_makes_another_attempt_of_it(world: ApiWorld) -> None:
    job = world.start_job(podFailurePolicy=POLICY, backoffLimit=6)
    target = job_facts(job, surroundings([job], {}), world.port.describe([job])[job.key]).target
    world.port.notify(target, "rank 0 leaks", decision_id="d-1")
    world.until(lambda: all(is_true(pod, LEAK_CONDITION) for pod in world.pods(name_of(job))))

    def accepted() -> bool:
        try:
            world.port.requeue(target, RequeueChanges(), "leaks", decision_id="d-2")
        except TemporaryError:
            return False
        return True

    world.until(accepted)
    world.until(lambda: world.starts(job) == 2 or state(world.kind, world.object(job)) is State.FINISHED)
    assert not is_true(world.object(job), "Failed")
    assert world.view_now(job).attempt == 1
