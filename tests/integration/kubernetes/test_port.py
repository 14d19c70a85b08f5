"""The Kubernetes adapter keeps to the contract of schedulers on an API server, with the rights of the head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.kubernetes.port_world import ApiWorld
from integration.kubernetes.target import KubeTarget
from kube_standins.jobset import StandInJobSets
from sample_views import job_record
from scheduler_hooks.port_contract import PortContract
from tidegauge.core.job_records.record import JobEnd, RankPeak
from tidegauge.core.jobs.kubernetes import ENDED, RECOMMENDED

pytestmark = pytest.mark.usefixtures("job_controller")


@pytest.fixture(scope="module")
def jobsets(kube: KubeTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with StandInJobSets(kube.kubeconfig, tmp_path_factory.mktemp("jobsets")):
        yield


class TestKubernetesPortOnAServer(PortContract):
    @pytest.fixture(params=["Job", "JobSet"])
    def world(
        self, request: pytest.FixtureRequest, kube: KubeTarget, namespace: str, jobsets: None, tmp_path: Path
    ) -> Iterator[ApiWorld]:
        world = ApiWorld(kube, namespace, request.param, tmp_path)
        yield world
        world.close()

    def test_a_run_that_was_requeued_is_told_as_such(self, world: ApiWorld) -> None:
        job = world.start_job()
        self.requeue(world, job, self.target(world, job), "d-requeue")
        world.until(lambda: self.ends(world, job) == {job.key: JobEnd.REQUEUED})
        assert self.ends(world, world.view_now(job)) == {}

    def test_a_job_that_somebody_deletes_is_cancelled(self, world: ApiWorld) -> None:
        job = world.start_job()
        world.delete(job)
        world.until(lambda: self.ends(world, job) == {job.key: JobEnd.CANCELLED})

    def test_a_pod_that_somebody_deletes_ends_a_job_without_retries_as_cancelled(self, world: ApiWorld) -> None:
        job = world.start_job()
        world.delete_pods(job)
        world.until(lambda: self.ends(world, job) == {job.key: JobEnd.CANCELLED})

    def test_a_job_whose_program_fails_has_failed(self, world: ApiWorld) -> None:
        job = world.start_job()
        world.fail(job)
        world.until(lambda: self.ends(world, job) == {job.key: JobEnd.FAILED})

    def test_the_owner_of_a_job_that_ended_has_a_remark_once(self, world: ApiWorld) -> None:
        job = world.start_job()
        world.end_by_itself(job)
        world.until(lambda: self.ends(world, job) == {job.key: JobEnd.COMPLETED})
        peak = RankPeak(1, "node7", 20 << 30, 30 << 30, 80 << 30, nontorch_bytes=1 << 30, gpu_bytes=80 << 30)
        record = job_record(end=JobEnd.COMPLETED, gpus=8, fullest=peak)
        for _ in range(2):
            world.port.remark_end(job, record, "completed after 3 h")
        assert world.owner_sees(job).count("completed after 3 h") == 1
        annotations = world.object(job)["metadata"]["annotations"]
        assert annotations[ENDED] == "completed after 3 h"
        assert RECOMMENDED in annotations
        world.port.remark_end(job, job_record(end=JobEnd.OOM, ooms=1), "out of memory")
        assert RECOMMENDED not in world.object(job)["metadata"]["annotations"]
