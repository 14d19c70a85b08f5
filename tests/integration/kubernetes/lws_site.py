"""A LeaderWorkerSet on an API server where its controllers are at work as their project ships them, Kueue too where it
is queued."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from integration.kubernetes.adopted_namespace import NOBODY, AdoptedNamespace, OurProcesses, adopted_namespace
from integration.kubernetes.kueue_site import open_queue
from integration.kubernetes.target import KubeTarget
from scheduler_hooks.kubernetes.lws_neighbour import LEADER_WORKER_SETS, STATEFUL_SETS, leader_worker_set
from scheduler_hooks.kubernetes.notified_contract import QUEUED_SETS, Head, NotifiedSite
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.ports import FIELD_MANAGER, PODS, Object
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL


class LwsSite(NotifiedSite):
    """``open_lws_site`` makes one."""

    def __init__(self, kind: str, adopted: AdoptedNamespace, head: Head) -> None:
        self.kind = kind
        self.head = head
        self._adopted = adopted

    @property
    def pods(self) -> Sequence[Any]:
        return sorted(self._adopted.pods, key=lambda pod: str(pod["metadata"]["name"]))

    @property
    def traces(self) -> Mapping[str, Any]:
        """Whether we wrote to it, by object: others write there all the time."""
        queue = [QUEUE_WORKLOADS] if self.kind == QUEUED_SETS else []
        managers = self._adopted.managers(LEADER_WORKER_SETS, STATEFUL_SETS, PODS, *queue)
        return {uid: FIELD_MANAGER in found for uid, found in managers.items()}

    @property
    def events(self) -> Sequence[Object]:
        return self._adopted.events

    def until(self, true: Callable[[], bool]) -> None:
        self._adopted.until(true)

    def fail_one(self) -> None:
        """Its kubelet starts a container again."""
        pod = self.pods[-1]
        statuses = [{**one, "restartCount": 1} for one in pod["status"]["containerStatuses"]]
        patch = {"status": {"containerStatuses": statuses}}
        name = pod["metadata"]["name"]
        self._adopted.api.patch(PODS, self._adopted.name, name, patch, subresource="status")


@contextmanager
def open_lws_site(kube: KubeTarget, ours: OurProcesses, kind: str) -> Iterator[LwsSite]:
    """The set runs when the block begins."""
    with adopted_namespace(kube, ours) as adopted, ExitStack() as stack:
        api = open_api(ours.release.kubeconfig("head"), qps=500, burst=500, timeout_s=60)
        watches = ClientWatches(api, namespaces=[adopted.name])
        stack.callback(watches.close)
        body = leader_worker_set("train", namespace=adopted.name)
        body["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["schedulerName"] = NOBODY
        if kind == QUEUED_SETS:
            open_queue(kube, adopted.name, stack)
            body["metadata"]["labels"] = {QUEUE_LABEL: "gpus"}
        adopted.api.create(LEADER_WORKER_SETS, adopted.name, body)
        site = LwsSite(kind, adopted, Head(api, watches))
        try:
            site.until_it_runs()
            yield site
        finally:
            print(adopted.story(LEADER_WORKER_SETS, STATEFUL_SETS, QUEUE_WORKLOADS), ours.process.log[-5000:])
