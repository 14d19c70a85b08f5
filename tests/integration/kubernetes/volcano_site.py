"""A Volcano Job on an API server where Volcano's controllers are at work as their project ships them. Its scheduler is
played: it lets every PodGroup in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from integration.kubernetes.adopted_namespace import NOBODY, AdoptedNamespace, OurProcesses, adopted_namespace
from integration.kubernetes.target import KubeTarget
from scheduler_hooks.kubernetes.notified_contract import VOLCANO, Head, NotifiedSite
from scheduler_hooks.kubernetes.volcano_neighbour import POD_GROUPS, volcano_job
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.owners import VOLCANO_JOBS
from tidegauge_scheduler_hooks.kubernetes.ports import FIELD_MANAGER, PODS, Object, ObjectNotFoundError

RESTART_JOB = [{"event": "PodFailed", "action": "RestartJob"}]


class VolcanoSite(NotifiedSite):
    """``open_volcano_site`` makes one."""

    kind = VOLCANO

    def __init__(self, adopted: AdoptedNamespace, head: Head) -> None:
        self.head = head
        self._adopted = adopted

    @property
    def pods(self) -> Sequence[Any]:
        return sorted(self._adopted.pods, key=lambda pod: str(pod["metadata"]["name"]))

    @property
    def traces(self) -> Mapping[str, Any]:
        """Whether we wrote to it, by object: others write there all the time."""
        managers = self._adopted.managers(VOLCANO_JOBS, POD_GROUPS, PODS)
        return {uid: FIELD_MANAGER in found for uid, found in managers.items()}

    @property
    def events(self) -> Sequence[Object]:
        return self._adopted.events

    def until(self, true: Callable[[], bool]) -> None:
        def looked() -> bool:
            self._let_in()
            return true()

        self._adopted.until(looked)

    def fail_one(self) -> None:
        pod = self.pods[-1]
        ended = [
            {**one, "ready": False, "state": {"terminated": {"exitCode": 1}}}
            for one in pod["status"]["containerStatuses"]
        ]
        patch = {"status": {"phase": "Failed", "containerStatuses": ended}}
        self._adopted.api.patch(PODS, self._adopted.name, pod["metadata"]["name"], patch, subresource="status")

    def _let_in(self) -> None:
        """One phase a look, as the scheduler does (pkg/scheduler/actions/enqueue, pkg/scheduler/framework)."""
        for group in self._adopted.api.list(POD_GROUPS, self._adopted.name):
            before = (group.get("status") or {}).get("phase") or "Pending"
            after = {"Pending": "Inqueue", "Inqueue": "Running"}.get(before)
            if after is not None:
                name, patch = group["metadata"]["name"], {"status": {"phase": after}}
                with suppress(ObjectNotFoundError):  # its controller takes it away with the pods
                    self._adopted.api.patch(POD_GROUPS, self._adopted.name, name, patch)


@contextmanager
def open_volcano_site(kube: KubeTarget, ours: OurProcesses) -> Iterator[VolcanoSite]:
    """The Job runs when the block begins. It starts all of its pods again where one fails."""
    with adopted_namespace(kube, ours) as adopted, ExitStack() as stack:
        api = open_api(ours.release.kubeconfig("head"), qps=500, burst=500, timeout_s=60)
        watches = ClientWatches(api, namespaces=[adopted.name])
        stack.callback(watches.close)
        body = volcano_job("train", policies=RESTART_JOB)
        body["metadata"]["namespace"] = adopted.name
        for task in body["spec"]["tasks"]:
            task["template"]["spec"]["schedulerName"] = NOBODY
        adopted.api.create(VOLCANO_JOBS, adopted.name, body)
        site = VolcanoSite(adopted, Head(api, watches))
        try:
            site.until_it_runs()
            yield site
        finally:
            print(adopted.story(VOLCANO_JOBS, POD_GROUPS), ours.process.log[-5000:])
