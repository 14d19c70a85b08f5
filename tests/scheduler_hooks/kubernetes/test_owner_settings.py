"""What a new pod is told comes from its topmost owner, as it is now; and what cannot be read is not guessed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from fakes.kube import Call, FakeKube
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, admitted, owned_by, template, workload
from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, INJECTED, PROFILE_LABEL, REQUEUE, UNREAD
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import ALL_WITHIN_S, OwnerReader, PodSettings
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import Injector
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, encode
from tidegauge_scheduler_hooks.kubernetes.owners import JOBSETS, KINDS, TRAINJOBS, watched_kinds
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, Object
from tidegauge_scheduler_hooks.ports import TemporaryError
from waiting import PATIENCE_S, eventually

SAID = {ATTEMPT: "2", CHANGES: encode(Changes({"TIDEGAUGE_A": "1"}))}


class Bench:
    """An API server, and a reader with the watches of one replica."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.now_s = 0.0
        kinds = watched_kinds(KINDS)
        self.stores = {kind.resource: self.kube.store(kind.resource) for kind in kinds.values()}
        self.reader = OwnerReader(self.kube, kinds, self.stores, monotonic_s=lambda: self.now_s)

    def job(self, **annotations: str) -> Object:
        body = workload("Job", "train")
        body["metadata"]["annotations"] = annotations
        return self.kube.put(JOBS, body)

    def read(self, owner: Object, namespace: str = NAMESPACE) -> PodSettings:
        return self.reader.settings_of({"ownerReferences": owned_by(owner)}, namespace)

    @property
    def gets(self) -> list[str]:
        return [f"{call.kind} {call.name}" for call in self.kube.called("get")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_of_an_owner_that_says_nothing_the_watch_is_enough(bench: Bench) -> None:
    assert bench.read(bench.job()) == PodSettings(0, None, True, job_name="train")
    assert bench.gets == []


@pytest.mark.parametrize("seen", [{REQUEUE: "an order"}, {ATTEMPT: "1"}])
def test_an_owner_with_an_order_or_an_attempt_is_asked_for_as_it_is_now(bench: Bench, seen: dict[str, str]) -> None:
    """The patch that resumed it was five milliseconds before its pods, and the watch has not shown it."""
    job = bench.job(**seen)
    bench.kube.lag()
    bench.kube.put(JOBS, {**job, "metadata": {**job["metadata"], "annotations": SAID}})
    assert bench.read(job) == PodSettings(2, SAID[CHANGES], True, job_name="train")
    assert bench.gets == ["Job train"]


def test_a_watch_that_is_not_open_is_not_believed(bench: Bench) -> None:
    job = bench.job()
    bench.kube.lag()
    bench.kube.put(JOBS, {**job, "metadata": {**job["metadata"], "annotations": SAID}})
    bench.stores[JOBS].problem = "cut"
    assert bench.read(job).attempt == 2


def test_an_owner_that_no_watch_has_shown_yet_is_asked_for_by_its_name(bench: Bench) -> None:
    bench.kube.lag()
    assert bench.read(bench.job(**SAID)) == PodSettings(2, SAID[CHANGES], True, job_name="train")


def test_the_topmost_of_a_chain_counts(bench: Bench) -> None:
    train = bench.kube.put(TRAINJOBS, {"metadata": {"name": "t", "namespace": NAMESPACE, "annotations": SAID}})
    jobset = {"name": "t", "namespace": NAMESPACE, "ownerReferences": owned_by(train), "annotations": {ATTEMPT: "9"}}
    below = {"namespace": NAMESPACE, "ownerReferences": owned_by(bench.kube.put(JOBSETS, {"metadata": jobset}))}
    job = bench.kube.put(JOBS, {"metadata": {"name": "t-node-0", **below}})
    assert bench.read(job).attempt == 2
    assert bench.gets == ["TrainJob t"]


def test_without_an_answer_nothing_is_guessed_but_what_was_in_force_stays(bench: Bench) -> None:
    job = bench.job(**SAID)
    bench.kube.fail_next(TemporaryError("no answer in time"), verb="get")
    assert bench.read(job) == PodSettings(None, SAID[CHANGES], True, "no answer in time")


def test_when_the_time_is_over_no_request_begins(bench: Bench) -> None:
    def slow(_: Call) -> None:
        bench.now_s += ALL_WITHIN_S

    bench.kube.lag()
    train = bench.kube.put(TRAINJOBS, {"metadata": {"name": "t", "namespace": NAMESPACE}})
    below = {"name": "t", "namespace": NAMESPACE, "ownerReferences": owned_by(train)}
    jobset = bench.kube.put(JOBSETS, {"metadata": below})
    bench.kube.before_call = slow
    assert bench.read(jobset).unread is not None
    assert bench.gets == ["JobSet t"]


@pytest.mark.parametrize("forged", [{"uid": "another"}, {"controller": False}, {"kind": "Deployment"}])
def test_a_reference_that_is_not_the_owners_tells_nothing(bench: Bench, forged: dict[str, Any]) -> None:
    reference = {**owned_by(bench.job(**SAID))[0], **forged}
    found = bench.reader.settings_of({"ownerReferences": [reference]}, NAMESPACE)
    assert found.attempt in (None, 0)
    assert found.changes is None


def test_a_workload_of_another_namespace_tells_nothing(bench: Bench) -> None:
    found = bench.read(bench.job(**SAID), namespace="team-b")
    assert (found.attempt, found.changes) == (None, None)
    assert found.unread is not None


def test_an_owner_whose_name_has_gone_to_another_object_tells_nothing(bench: Bench) -> None:
    old = bench.job(**SAID)
    bench.kube.lag()
    bench.kube.remove(JOBS, NAMESPACE, "train")
    bench.job(**{ATTEMPT: "7"})
    assert bench.read(old).attempt is None


def test_pods_of_one_workload_share_a_request_that_began_after_they_asked(bench: Bench) -> None:
    job = bench.job(**SAID)
    began, go_on = threading.Event(), threading.Event()

    def hold(_: Call) -> None:
        began.set()
        assert go_on.wait(PATIENCE_S)

    bench.kube.before_call = hold
    threads = [threading.Thread(target=bench.read, args=(job,)) for _ in range(9)]
    threads[0].start()
    assert began.wait(PATIENCE_S)
    for thread in threads[1:]:
        thread.start()
    key = (JOBS, NAMESPACE, "train")
    eventually(lambda: bench.reader._reads[key].waiting == len(threads))  # that all have asked shows nowhere else
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(bench.gets) == 2, "that of the first, and one for all who asked while it was under way"


# The pod


def made(bench: Bench, metadata: Mapping[str, Any]) -> tuple[Any, Injector]:
    injector = Injector(InjectionOptions("probe"), lambda _: None, settings_of=bench.reader.settings_of)
    pod = template()
    pod["metadata"].update(metadata)
    return admitted(injector.answer, pod, NAMESPACE), injector


def environ(pod: Any) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}


def test_the_pod_carries_what_its_owner_says_and_not_what_its_template_does(bench: Bench) -> None:
    stale = {ATTEMPT: "1", CHANGES: encode(Changes({"TIDEGAUGE_OLD": "1"})), "theirs": "kept"}
    pod, injector = made(bench, {"ownerReferences": owned_by(bench.job(**SAID)), "annotations": stale})
    assert pod["metadata"]["annotations"] == {ATTEMPT: "2", INJECTED: "1", "theirs": "kept"}
    assert environ(pod)[ATTEMPT_VARIABLE] == "2"
    assert environ(pod)["TIDEGAUGE_A"] == "1"
    assert "TIDEGAUGE_OLD" not in environ(pod)
    assert injector.counts()["injected", ""] == 1


def test_a_pod_whose_owner_cannot_be_read_is_made_without_an_attempt_and_says_so(bench: Bench) -> None:
    job = bench.job(**SAID)
    bench.kube.fail_next(TemporaryError("no answer in time"), verb="get")
    pod, injector = made(bench, {"ownerReferences": owned_by(job), "annotations": {ATTEMPT: "1"}})
    assert pod["metadata"]["annotations"] == {INJECTED: "1", UNREAD: "no answer in time"}
    assert ATTEMPT_VARIABLE not in environ(pod)
    assert injector.counts()["injected", "owner_unread"] == 1


@pytest.mark.parametrize("labels", [{}, {"jobset.sigs.k8s.io/jobset-name": "t"}, {"job-name": "t-node-0"}])
def test_job_of_a_pod_is_its_topmost_owner_whatever_labels_it_lacks(bench: Bench, labels: dict[str, str]) -> None:
    jobset = bench.kube.put(JOBSETS, {"metadata": {"name": "t", "namespace": NAMESPACE}})
    below = {"name": "t-node-0", "namespace": NAMESPACE, "ownerReferences": owned_by(jobset)}
    job = bench.kube.put(JOBS, {"metadata": below})
    pod, _ = made(bench, {"ownerReferences": owned_by(job), "labels": {PROFILE_LABEL: "auto", **labels}})
    assert environ(pod)["TIDEGAUGE_JOB_ID"] == f"{NAMESPACE}/t"
    assert environ(pod)["TIDEGAUGE_JOB_NAME"] == "t"


def test_a_pod_of_its_own_is_told_its_own_words(bench: Bench) -> None:
    pod, _ = made(bench, {"name": "alone", "annotations": {ATTEMPT: "3"}})
    assert environ(pod)[ATTEMPT_VARIABLE] == "3"
    assert bench.gets == []
