"""The closed loop on Kubernetes: a label, a leak, a checkpoint, a restart by the owner's own means, and to the end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.closed_loop_site import LADDER, check_went_on, done, to_the_requeue
from integration.kubernetes.site import CAP, JOBS, JOBSETS, KubeSite, open_site
from integration.kubernetes.target import KubeTarget
from integration.service import eventually
from matrix import turn
from tidegauge.core.jobs.kubernetes import ACTIONS, ATTEMPT, FRACTION, LEAK_CONDITION, REQUEUE

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

STEPS = 500
"""Half a minute: what is not to be done to a job would have been by then."""
MAY_REQUEUE = {ACTIONS: "requeue", FRACTION: CAP}


@pytest.fixture(scope="module")
def site(kube: KubeTarget, rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)
    if not kube.has_job_controller:
        pytest.skip("this API server runs without kube-controller-manager: nobody makes the pods of Jobs")
    with (
        kube.temporary_namespace("system") as system,
        kube.temporary_namespace("alice") as alice,
        kube.temporary_namespace("bob") as bob,
        open_site(kube, rig, folder, namespaces=[system, alice, bob]) as one,
    ):
        yield one


@turn(0)
def test_leaking_job_is_saved_restarted_and_completes_and_nobody_gets_into_it(site: KubeSite, kube: KubeTarget) -> None:
    alice = site.bench.namespace
    job = f"{alice}/leaky"
    all_pods = f"/api/v1/namespaces/{alice}/pods"
    begins = site.admin.do("GET", all_pods)["metadata"]["resourceVersion"]
    site.set_mode("observe")  # so that the first attempt lasts until it was seen
    site.submit_job("leaky", "--leak-rank", "1", first_gpu=0, steps=STEPS, annotations=MAY_REQUEUE)
    ranks = eventually(lambda: _all(site.ranks(job), 2), "two ranks", within_s=200)
    assert [(one["identity"]["rank"], one["identity"]["scheduler"]) for one in ranks] == [
        (0, "kubernetes"),
        (1, "kubernetes"),
    ]
    pods = site.pods("leaky")
    assert [(one["pod"]["pod_uid"], one["pod"]["pod"], one["pod"]["container"]) for one in ranks] == [
        (pod["metadata"]["uid"], pod["metadata"]["name"], "trainer") for pod in pods
    ]
    assert {one["user_name"] for one in ranks} == {alice}
    metrics = site.service.get_text("/metrics")
    assert f'job_id="{job}"' in metrics

    site.set_mode("act")
    eventually(lambda: site.told("leaky", "saved"), "a checkpoint", within_s=250)

    def was_marked() -> bool:
        """By what is kept of their past: the mark is there for some seconds only, until they are ended for the restart.
        A controller that stands still for those seconds marks the pods of the next attempt."""
        with site.admin.watch(all_pods, resourceVersion=begins, timeoutSeconds=5) as events:
            return any(_condition(event["object"], LEAK_CONDITION) == "True" for event in events)

    eventually(was_marked, "a pod is marked", within_s=250)
    ranks = _restarted(site, job)
    assert {one["pod"]["pod_uid"] for one in ranks}.isdisjoint(pod["metadata"]["uid"] for pod in pods)
    _written_down(site, job)
    site.let_end("leaky")
    eventually(lambda: _condition(site.owner(JOBS, "jobs", "leaky"), "Complete") == "True", "it ends", within_s=400)

    first, second, *_ = site.told("leaky", "began")
    assert (first["step"], second["step"]) == (0, site.told("leaky", "saved")[0]["step"])
    assert site.told("leaky", "finished")[0]["step"] >= STEPS
    owner = site.owner(JOBS, "jobs", "leaky")
    assert int(owner["metadata"]["annotations"][ATTEMPT]) == len(site.told("leaky", "began")) - 1
    assert REQUEUE not in owner["metadata"]["annotations"]
    assert owner["status"].get("failed") in (None, 0), "a restart by suspending does not count as a failure"
    assert to_the_requeue(done(site.decisions(job)))[-4:] == LADDER
    reasons = [event["reason"] for event in site.events("leaky")]
    assert {"GpuMemoryIncident"} <= {*reasons}, reasons
    first_number = min(one["number"] for one in site.incidents(job))
    page = eventually(lambda: site.service.call("incidents", "show", str(first_number)).out, "the incident's page")
    for part in ("rank 1", alice, "checkpoint", "requeue", "rule leak"):
        assert part in page


@turn(1)
def test_leaking_jobset_is_restarted_as_a_whole(site: KubeSite) -> None:
    job = f"{site.bench.namespace}/set"
    site.set_mode("observe")  # as above
    site.submit_jobset("set", "--leak-rank", "0", first_gpu=0, steps=STEPS, annotations=MAY_REQUEUE)
    eventually(lambda: _all(site.ranks(job), 2), "two ranks", within_s=200)
    site.set_mode("act")
    eventually(lambda: site.told("set", "saved"), "a checkpoint", within_s=250)
    _restarted(site, job)
    _written_down(site, job)
    site.let_end("set")
    eventually(
        lambda: _condition(site.owner(JOBSETS, "jobsets", "set"), "Completed") == "True", "it ends", within_s=400
    )
    first, second, *_ = site.told("set", "began")
    assert (first["step"], second["step"]) == (0, site.told("set", "saved")[0]["step"])
    assert to_the_requeue(done(site.decisions(job)))[-4:] == LADDER
    assert "GpuMemoryIncident" in [event["reason"] for event in site.events("set")]


@turn(2)
def test_of_two_containers_of_a_pod_both_are_saved_and_both_go_on(site: KubeSite) -> None:
    job = f"{site.bench.namespace}/pair"
    site.set_mode("observe")  # as above
    trainings = {"trainer": ("--leak-rank", "0"), "evaluator": ()}
    site.submit_two_containers("pair", trainings, steps=STEPS, annotations=MAY_REQUEUE)
    names = [f"pair-{container}" for container in trainings]
    eventually(lambda: all(site.told(name, "began") for name in names), "both train", within_s=200)
    eventually(lambda: _groups(site, job) == {"container trainer", "container evaluator"}, "two groups", within_s=100)
    site.set_mode("act")
    try:
        eventually(lambda: all(site.told(name, "began")[1:] for name in names), "both train again", within_s=300)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{site.pages(job)}") from error
    _written_down(site, job)
    for name in names:
        site.let_end(name)
    eventually(lambda: _condition(site.owner(JOBS, "jobs", "pair"), "Complete") == "True", "it ends", within_s=400)

    for name in names:
        check_went_on(partial(site.told, name), steps=STEPS)
    assert {one["group_name"] for one in site.incidents(job)} == {"container trainer"}
    assert to_the_requeue(done(site.decisions(job)))[-4:] == LADDER


@turn(3)
def test_with_a_container_that_cannot_be_asked_nothing_is_ended_and_the_owner_is_told(site: KubeSite) -> None:
    job = f"{site.bench.namespace}/unasked"
    site.set_mode("act")
    trainings = {"trainer": ("--leak-rank", "0"), "evaluator": ("--no-callback",)}
    site.submit_two_containers("unasked", trainings, steps=1, annotations=MAY_REQUEUE)
    names = [f"unasked-{container}" for container in trainings]
    why = "cannot checkpoint on request: give it tidegauge.on_checkpoint_request(fn), or TIDEGAUGE_CHECKPOINT=none"
    eventually(lambda: why in _messages(site, "unasked"), "the owner is told why", within_s=300)
    eventually(lambda: done(site.decisions(job)), "the outcome is written down")
    for name in names:
        site.let_end(name)
    eventually(lambda: _condition(site.owner(JOBS, "jobs", "unasked"), "Complete") == "True", "it ends", within_s=400)
    assert {*done(site.decisions(job))} == {"notify"}
    for name in names:
        assert (len(site.told(name, "began")), site.told(name, "saved")) == (1, [])


def test_owner_who_says_keep_is_told_and_left_alone_and_cannot_pass_for_another(site: KubeSite) -> None:
    """Bob's job leaks, asks to be left alone, and says in its environment that it is Alice's healthy one."""
    alice, bob = site.bench.namespace, site.others[0]
    site.set_mode("act")
    site.submit_job("healthy", first_gpu=0, ranks=1, steps=STEPS, annotations={ACTIONS: "requeue"})
    site.submit_job(
        "kept", "--leak-rank", "0", namespace=bob, first_gpu=1, ranks=1, steps=STEPS,
        annotations={ACTIONS: "keep", FRACTION: CAP}, environ={"TIDEGAUGE_JOB_ID": f"{alice}/healthy"},
    )  # fmt: skip
    kept, healthy = f"{bob}/kept", f"{alice}/healthy"
    eventually(lambda: done(site.decisions(kept)), "Bob is told", within_s=250)
    for namespace, name in ((bob, "kept"), (alice, "healthy")):
        site.let_end(name)
        path = f"/{JOBS}/namespaces/{namespace}/jobs/{name}"
        eventually(partial(_holds, site, path, "Complete"), f"{name} ends", within_s=400)
    assert {*done(site.decisions(kept))} == {"notify"}
    assert len(site.told("kept", "began")) == len(site.told("healthy", "began")) == 1
    assert site.incidents(healthy) == []


def _restarted(site: KubeSite, job: str) -> list[dict[str, Any]]:
    """Both ranks of an attempt after the first. If it never comes, the error says what was decided, what held it."""
    try:
        return eventually(lambda: _all(site.ranks(job, again=True), 2), "the second attempt", within_s=200)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{site.pages(job)}") from error


def _written_down(site: KubeSite, job: str) -> None:
    """Of a job that has ended a coordinator that looks late cannot tell whether it was started again."""
    eventually(lambda: "requeue" in done(site.decisions(job)), "the requeue is written down")


def _groups(site: KubeSite, job: str) -> set[str]:
    """What the job's groups of ranks are called."""
    return {one["group_name"] for one in site.service.answer("/api/v1/jobs")["jobs"] if one["job_id"] == job}


def _messages(site: KubeSite, name: str) -> str:
    """What Events say at the job."""
    return "\n".join(event.get("note", "") for event in site.events(name))


def _holds(site: KubeSite, path: str, kind: str) -> bool:
    return _condition(site.admin.do("GET", path), kind) == "True"


def _all(ranks: list[dict[str, Any]], count: int) -> list[dict[str, Any]] | None:
    return ranks if len(ranks) == count else None


def _condition(found: dict[str, Any], kind: str) -> str | None:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((one["status"] for one in conditions if one["type"] == kind), None)
