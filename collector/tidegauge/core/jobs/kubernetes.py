"""Kubernetes values: a process's pod, what the API server reports about it, and names written on its objects.

Values only. The agent sees a pod's uid in a process's cgroup; who the pod is knows the API server, whom the head asks
(``tidegauge_scheduler_hooks.kubernetes``), so that no agent needs any right there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

SCHEDULER = "kubernetes"
"""As the probe and ``tidegauge_job_info`` call it."""

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""Where a kubelet tells which container has which devices."""

PREFIX = "tidegauge.dev/"

# What owners write on a workload (or on its pod template; PROFILE also on a namespace, for all pods that say nothing).
PROFILE_LABEL = PREFIX + "memory-profile"
"""Label: ``off``, ``dormant``, ``stats``, ``auto``, ``trace``; ``true`` and the empty text mean ``auto``."""
FRACTION = PREFIX + "memory-fraction"
"""Annotation: above 0 and at most 1."""
CONTAINERS = PREFIX + "containers"
"""Annotation: names, separated by commas, of the containers to watch. Default: those that ask for a GPU; if none does,
all, unless only the namespace asks."""
IMAGE_PYTHONPATH = PREFIX + "pythonpath"
"""Annotation: the ``PYTHONPATH`` that the image sets, which cannot be read from outside (the probe goes before it).
On a namespace: of all its images."""
ACTIONS = PREFIX + "actions"
"""Annotation or label: words separated by commas, ``keep`` (leave it alone) and ``requeue`` (may be started again)."""
OWNER = PREFIX + "owner"
"""Annotation: who is told, as Slack and mail know them. Default: the namespace."""
NEEDED_MEMORY = PREFIX + "needed-gpu-memory"
"""Annotation of a workload or of its pod template: what each of its ranks needs of a GPU (``61Gi``), as ``tidegauge
estimate --annotation`` says it. For Kueue's admission check."""
GPU_MEMORY = PREFIX + "gpu-memory"
"""Annotation of a ResourceFlavor of Kueue's: the memory of one GPU on its nodes (``80Gi``), where no label says it."""
CHECKPOINT_SIGNAL = PREFIX + "checkpoint-signal"
CHECKPOINT_PATH = PREFIX + "checkpoint-path"
"""Annotations for ``TIDEGAUGE_CHECKPOINT_…``."""

KEEP, MAY_REQUEUE = "keep", "requeue"
"""Words in ``ACTIONS``."""

# What Tidegauge writes.
INJECTED = PREFIX + "injected"
"""Annotation of a pod: version of what was put into it; a pod that has it is not touched again."""
ATTEMPT = PREFIX + "attempt"
"""Annotation of the workload: how often Tidegauge started it again. The webhook copies it to each new pod."""
CHANGES = PREFIX + "changes"
"""Annotation of the workload, JSON ``{"environ": {…}, "alloc_conf": {…}}``: what its new pods are started with, in the
words of ``core.jobs.settings``. The webhook reads it there; templates are their owner's and Kueue's."""
UNREAD = PREFIX + "settings-unread"
"""Annotation of a pod: why the webhook could not read ``ATTEMPT`` and ``CHANGES`` of its workload."""
REQUEUE = PREFIX + "requeue"
"""Annotation of a suspended workload: it is to be started again once its pods are gone (``RequeueOrder`` as JSON)."""
RESTARTING = PREFIX + "restarting"
"""Annotation of a workload that was started again, until a new pod has shown with what; its text is as ``REQUEUE``."""
STOPPED = PREFIX + "stopped"
"""Annotation of a workload that was held or stopped, JSON ``{"decision", "action", "reason", "at"}``."""
INCIDENT = PREFIX + "incident"
"""Annotation of a workload with an incident: what is told to its owner. Put on its pods as ``LEAK_CONDITION``."""
REMARK = PREFIX + "remark"
"""Annotation of a workload: the latest remark."""
ENDED = PREFIX + "ended"
"""Annotation of a workload: how its latest run ended, and how full its GPUs were."""
RECOMMENDED = PREFIX + "recommended"
"""Annotation of a workload, JSON: what its latest run needed of each GPU, and what would have done."""
LEAK_CONDITION = PREFIX + "GpuMemoryIncident"
"""Condition of pods that ``podFailurePolicy`` can match (``onPodConditions``)."""


class PodCgroup(NamedTuple):
    """The pod of a process, read from its cgroup: set by the kernel, so a process in a pod cannot change it."""

    pod_uid: str
    container_id: Optional[str]
    """As the container runtime counts: 64 hexadecimal digits."""


class PodPlace(NamedTuple):
    """Location of a process in Kubernetes. ``namespace``, ``pod`` and ``container`` never come from the process
    itself."""

    pod_uid: str
    namespace: Optional[str] = None
    pod: Optional[str] = None
    container: Optional[str] = None
    job_known: bool = False
    """The head has said which workload the pod belongs to. Without that no adapter acts on the rank."""
    kind: str = ""
    """Of the server that the pod is in a replica of, and empty for all other pods: as ``PodFacts.kind``."""
    replica: str = ""
    """As ``PodFacts.replica``."""

    @property
    def full_name(self) -> Optional[str]:
        """``namespace/pod``, as people write it; ``None`` until both are known."""
        return None if self.namespace is None or self.pod is None else f"{self.namespace}/{self.pod}"


@dataclass(frozen=True)
class PodFacts:
    """A pod and its workload as the API server reports them; agents attribute ranks by it."""

    pod_uid: str
    namespace: str
    pod: str
    job_name: str
    """Name of the topmost owner that Tidegauge knows (``Job``, ``JobSet``, ``TrainJob`` …), else of the pod."""
    kind: str
    """Of that owner; ``Pod`` for a bare pod or one whose owner is of an unknown kind."""
    attempt: int = 0
    """Starts of the workload before this pod's, by Tidegauge (``ATTEMPT``) and by its own controller (a JobSet's
    restarts, failures of a pod's index)."""
    user_name: str = ""
    """By ``OWNER``, else the namespace."""
    containers: Mapping[str, str] = field(default_factory=dict)
    """Names by container id (64 digits, no ``containerd://``)."""
    replica: str = ""
    """Of an inference server: which of its replicas the pod is in, "replica 3" or "pod vllm-6d4cf56db-x7k2p". ``kind``
    is the server's then (``Deployment``, ``StatefulSet``, ``LeaderWorkerSet``). Empty for all other workloads."""

    @property
    def job_id(self) -> str:
        return job_id(self.namespace, self.job_name)


_JOB_ID = re.compile(r"([a-z0-9-]{1,63})/[a-z0-9.-]{1,253}")
"""Namespace and name: RFC 1123, as Kubernetes wants them."""


def job_id(namespace: str, name: str) -> str:
    """``namespace/name``: how a workload is called in labels, commands and messages."""
    return f"{namespace}/{name}"


def namespace_of(job: str) -> Optional[str]:
    """The namespace in a ``job_id`` of ours; ``None`` for any other, which agents let no pod have."""
    found = _JOB_ID.fullmatch(job)
    return None if found is None else found[1]


class NamespaceScope(NamedTuple):
    """Jobs of one owner by name, and all jobs of some namespaces."""

    user_name: str
    namespaces: frozenset[str]

    def covers(self, user_name: Optional[str], job_id: str) -> bool:
        """Whether a job of this owner is in it. A namespace that owns its jobs itself (no ``OWNER``) is nobody's name:
        a user who is called like it has no right in it by that."""
        namespace = job_id.rpartition("/")[0]
        return namespace in self.namespaces or (user_name == self.user_name and namespace != user_name)


def words(text: Optional[str]) -> frozenset[str]:
    """The words of ``ACTIONS``."""
    return frozenset(word.strip().lower() for word in (text or "").split(",")) - {""}
