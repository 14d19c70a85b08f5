"""Volcano's controller of Jobs (``batch.volcano.sh``), as it makes and kills pods: transcribed from volcano-sh/volcano
v1.15.1, each step with its file below pkg/controllers/job, and held against what that controller itself wrote on pods
before and after a restart (2026-12-01).

What counts here: what it writes on pods, and what it counts when it starts all or some of them again. Left out: queues,
partitions, dependencies, volumes, ``minSuccess``, timeouts of policies, the actions Complete and Terminate, Services,
and what is asked for while it restarts. The scheduler lets every PodGroup in. Pods run as soon as they are made, and
end as soon as they are deleted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from scheduler_hooks.kubernetes.neighbours import ENDED, Admission, Controllers, Objects
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by, template
from tidegauge_scheduler_hooks.kubernetes.owners import VOLCANO_JOBS, at
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, Object, Resource

POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
COMMANDS = Resource("bus.volcano.sh", "v1alpha1", "commands", "Command")
PREFIX = "volcano.sh/"
KILLING = ("Aborting", "Aborted", "Completed", "Failed")
"""Phases in which every look kills; the controller looks when something has changed."""
Status = dict[str, Any]
Update = Callable[[Status], None]


def volcano_job(name: str, *, workers: int = 2, **spec: Any) -> dict[str, Any]:
    """As submitted, with the defaults of its webhook (pkg/webhooks/admission/jobs/mutate/mutate_job.go): a master and
    workers, each of one rank, by the plugin ``pytorch``."""
    tasks = [
        {"name": task, "replicas": replicas, "template": template()}
        for task, replicas in (("master", 1), ("worker", workers))
    ]
    return {
        "apiVersion": VOLCANO_JOBS.api_version,
        "kind": VOLCANO_JOBS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "schedulerName": "volcano",
            "queue": "default",
            "minAvailable": 1 + workers,
            "maxRetry": 3,
            "plugins": {"env": [], "svc": [], "pytorch": []},
            "tasks": tasks,
            **spec,
        },
    }


class _Request(NamedTuple):
    """What a Job is looked at for."""

    action: str
    pods: Collection[str] = ()
    """Names of those that ``RestartTask`` and ``RestartPod`` mean."""


class VolcanoJobs(Controllers):
    """Each ``look`` is one of the controller at every command, at every pod that changed, and at every Job."""

    def __init__(self, kube: Objects, admitted: Admission) -> None:
        super().__init__(kube, admitted)
        self._seen: dict[str, Object] = {}
        """Pods as they were at the last look, by uid: policies are asked about changes."""
        self._settled: dict[str, str] = {}
        """The last of ``KILLING`` in which a Job was looked at, by its uid."""

    def look(self) -> None:
        for job in self._kube.list(VOLCANO_JOBS):
            for request in [*self._requests(job), _Request("SyncJob")]:
                self._execute(self._now(job), request)
            self._remember(job)
        for group in self._kube.list(POD_GROUPS):
            self._schedule(copy.deepcopy(dict(group)))

    # job_controller_handler.go; applyPolicies in job_controller_util.go

    def _requests(self, job: Object) -> Iterator[_Request]:
        for command in self._kube.list(COMMANDS):
            if command["target"]["name"] == job["metadata"]["name"]:  # processNextCommand: deleted, then executed
                self._kube.remove(COMMANDS, command["metadata"]["namespace"], command["metadata"]["name"])
                yield _Request(command["action"])
        now = {pod["metadata"]["uid"]: pod for pod in self._below(PODS, job)}
        for uid, before in list(self._seen.items()):
            if not any(one["uid"] == job["metadata"]["uid"] for one in before["metadata"]["ownerReferences"]):
                continue
            phase = at(now.get(uid), ("status", "phase"))
            if phase is None:  # deletePod
                yield self._asked_by_policy(job, before, "PodEvicted")
            elif phase == "Failed" and before["status"]["phase"] != "Failed":  # updatePod
                yield self._asked_by_policy(job, now[uid], "PodFailed")

    def _asked_by_policy(self, job: Object, pod: Object, event: str) -> _Request:
        said = pod["metadata"]["annotations"]
        if int(said[PREFIX + "job-version"]) < (at(job, ("status", "version")) or 0):
            return _Request("SyncJob")  # of pods that were killed
        task = said[PREFIX + "task-spec"]
        of_task = next(one.get("policies", ()) for one in job["spec"]["tasks"] if one["name"] == task)
        ended = [one["state"]["terminated"]["exitCode"] for one in at(pod, ("status", "containerStatuses")) or ()]
        for policy in (*of_task, *job["spec"].get("policies", ())):
            events = {*policy.get("events", ()), policy.get("event")}
            if {event, "*"} & events or (event == "PodFailed" and policy.get("exitCode") in ended[:1]):
                same_task = [name for name, each in self._pods(job).items() if _task_of(each) == task]
                alone = [pod["metadata"]["name"]]
                return _Request(policy["action"], same_task if policy["action"] == "RestartTask" else alone)
        return _Request("SyncJob")

    # state/*.go, Execute of the present phase

    def _execute(self, job: Any, request: _Request) -> None:
        phase, action = at(job, ("status", "state", "phase")) or "Pending", request.action
        if phase in ("Pending", "Running") and action in ("RestartJob", "RestartTask", "RestartPod"):
            target = None if action == "RestartJob" else request.pods
            self._kill(job, (), _restarting, target=target)  # killJob, killTarget
        elif phase in ("Pending", "Running") and action == "AbortJob":
            self._kill(job, ENDED, _to("Aborting"))
        elif phase in ("Pending", "Running"):
            self._sync(job, lambda status: _move_on(job, phase, status))
        elif phase == "Restarting":
            self._sync(job, lambda status: _end_restarting(job, status))
        elif phase in ("Aborting", "Aborted") and action == "ResumeJob":
            self._kill(job, ENDED, _restarting)
        elif self._settled.get(job["metadata"]["uid"]) != phase:
            self._settled[job["metadata"]["uid"]] = phase
            self._kill(job, ENDED, _end_aborting if phase == "Aborting" else _stay)

    # job_controller_actions.go

    def _sync(self, job: Any, update: Update) -> None:
        """``syncJob``: pods are made once the scheduler has let the PodGroup in."""
        status = job.setdefault("status", {})
        group = next(iter(self._below(POD_GROUPS, job)), None)
        if group is None:  # createOrUpdatePodGroup
            metadata = self._metadata(job, f"{job['metadata']['name']}-{job['metadata']['uid']}", {})
            spec = {"minMember": job["spec"]["minAvailable"], "queue": job["spec"]["queue"]}
            self._kube.put(POD_GROUPS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        elif group["status"]["phase"] != "Pending":
            there = self._pods(job)
            for task in job["spec"]["tasks"]:
                for index in range(task["replicas"]):
                    if f"{job['metadata']['name']}-{task['name']}-{index}" not in there:
                        self._create_pod(job, task, index)
            status.update(_counted(self._pods(job).values()), terminating=0)
        update(status)
        self._write(VOLCANO_JOBS, job)

    def _kill(self, job: Any, keep: Collection[str], update: Update, *, target: Collection[str] | None = None) -> None:
        """``killPods``: the version is that of the whole Job, the PodGroup goes in any case."""
        status, pods = job.setdefault("status", {}), self._pods(job)
        if target is None:
            status["version"] = status.get("version", 0) + 1
            if status.get("retryCount", 0) >= job["spec"]["maxRetry"] - 1:
                keep = ENDED
            killed = [pod for pod in pods.values() if pod["status"]["phase"] not in keep]
        else:
            killed = [pods[name] for name in target if name in pods]
        for pod in killed:  # marked as out of sync, so that policies are not asked
            self._seen.pop(pod["metadata"]["uid"], None)
        self._delete(killed)
        status.update(_counted(self._pods(job).values()), terminating=len(killed))
        update(status)
        self._write(VOLCANO_JOBS, job)
        for group in self._below(POD_GROUPS, job):
            self._kube.remove(POD_GROUPS, group["metadata"]["namespace"], group["metadata"]["name"])

    def _create_pod(self, job: Any, task: Mapping[str, Any], index: int) -> None:
        """job_controller_util.go, ``createJobPod``."""
        made, status = copy.deepcopy(task["template"]), job["status"]
        metadata = made.setdefault("metadata", {})
        metadata.update(
            name=f"{job['metadata']['name']}-{task['name']}-{index}",
            namespace=job["metadata"]["namespace"],
            ownerReferences=owned_by(job),
        )
        both = {
            PREFIX + "task-index": str(index),
            PREFIX + "task-spec": task["name"],
            PREFIX + "job-name": job["metadata"]["name"],
            PREFIX + "queue-name": job["spec"]["queue"],
        }
        metadata["labels"] = {
            **(metadata.get("labels") or {}), **both, PREFIX + "job-namespace": job["metadata"]["namespace"],
        }  # fmt: skip
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            **both,
            "scheduling.k8s.io/group-name": f"{job['metadata']['name']}-{job['metadata']['uid']}",
            PREFIX + "job-version": str(status.get("version", 0)),
            PREFIX + "job-retry-count": str(status.get("retryCount", 0)),
            PREFIX + "template-uid": f"{job['metadata']['name']}-{task['name']}",
        }
        made["spec"].setdefault("schedulerName", job["spec"]["schedulerName"])
        for plugin in job["spec"]["plugins"]:
            _PLUGINS[plugin](job, task["name"], index, made)
        self._run_pod(made)

    # volcano: pkg/scheduler/actions/enqueue/enqueue.go, pkg/scheduler/framework/session.go

    def _schedule(self, group: Any) -> None:
        """One phase a look."""
        after = {"Pending": "Inqueue", "Inqueue": "Running"}.get(group["status"]["phase"])
        if after is not None:
            self._kube.put(POD_GROUPS, {**group, "status": {"phase": after}})

    # Looking

    def _now(self, job: Object) -> Any:
        uid = job["metadata"]["uid"]
        return copy.deepcopy(dict(next(one for one in self._kube.list(VOLCANO_JOBS) if one["metadata"]["uid"] == uid)))

    def _pods(self, job: Object) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self._below(PODS, job)}

    def _remember(self, job: Object) -> None:
        owner = job["metadata"]["uid"]
        others = {
            uid: pod
            for uid, pod in self._seen.items()
            if owner not in [r["uid"] for r in pod["metadata"]["ownerReferences"]]
        }
        self._seen = {**others, **{pod["metadata"]["uid"]: pod for pod in self._below(PODS, job)}}


def _task_of(pod: Object) -> str:
    return str(pod["metadata"]["annotations"][PREFIX + "task-spec"])


def _counted(pods: Collection[Object]) -> Status:
    phases = [pod["status"]["phase"] for pod in pods]
    return {phase.lower(): phases.count(phase) for phase in ("Pending", "Running", "Succeeded", "Failed")}


def _to(phase: str) -> Update:
    return lambda status: status.update(state={"phase": phase})


def _restarting(status: Status) -> None:
    status.update(state={"phase": "Restarting"}, retryCount=status.get("retryCount", 0) + 1)


def _move_on(job: Object, phase: str, status: Status) -> None:
    """state/pending.go, state/running.go."""
    least, total = job["spec"]["minAvailable"], sum(task["replicas"] for task in job["spec"]["tasks"])
    ended = status.get("succeeded", 0) + status.get("failed", 0)
    if phase == "Pending" and status.get("running", 0) + ended >= least:
        _to("Running")(status)
    elif phase == "Running" and ended == total:
        _to("Completed" if status["succeeded"] >= least else "Failed")(status)
    else:
        status.setdefault("state", {"phase": phase})


def _end_restarting(job: Object, status: Status) -> None:
    """state/restarting.go."""
    total = sum(task["replicas"] for task in job["spec"]["tasks"])
    if status["retryCount"] >= job["spec"]["maxRetry"]:
        _to("Failed")(status)
    elif total - status.get("terminating", 0) >= job["spec"]["minAvailable"]:
        _to("Pending")(status)


def _stay(status: Status) -> None:
    """state/aborted.go, state/finished.go."""


def _end_aborting(status: Status) -> None:
    """state/aborting.go."""
    if not status["terminating"] + status["pending"] + status["running"]:
        _to("Aborted")(status)


# plugins: OnPodCreate

Plugin = Callable[[Object, str, int, Any], None]


def _env(job: Object, task: str, index: int, pod: Any) -> None:
    """plugins/env/env.go."""
    _add(pod, *({"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")))


def _svc(job: Object, task: str, index: int, pod: Any) -> None:
    """plugins/svc/svc.go, without its volume."""
    pod["spec"].setdefault("hostname", pod["metadata"]["name"])
    pod["spec"].setdefault("subdomain", job["metadata"]["name"])
    config_map = f"{job['metadata']['name']}-svc"
    names = [f"VC_{one['name'].upper()}_{what}" for one in job["spec"]["tasks"] for what in ("HOSTS", "NUM")]
    _add(
        pod,
        *({"name": name, "valueFrom": {"configMapKeyRef": {"name": config_map, "key": name}}} for name in names),
    )


def _pytorch(job: Object, task: str, index: int, pod: Any) -> None:
    """plugins/distributed-framework/pytorch/pytorch.go."""
    name = job["metadata"]["name"]
    values = {
        "MASTER_ADDR": f"{name}-master-0.{name}",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": str(sum(one["replicas"] for one in job["spec"]["tasks"])),
        "RANK": str(index + 1 if task == "worker" else 0),
    }
    _add(pod, *({"name": each, "value": value} for each, value in values.items()))


_PLUGINS: Mapping[str, Plugin] = {"env": _env, "svc": _svc, "pytorch": _pytorch}


def _add(pod: Any, *variables: Mapping[str, Any]) -> None:
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        container["env"] = [*container.get("env", ()), *copy.deepcopy(list(variables))]
