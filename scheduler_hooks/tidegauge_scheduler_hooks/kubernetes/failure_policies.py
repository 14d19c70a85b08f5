"""Before a workload is suspended so that it runs again: its pods must not bear what its own policy fails it for.

The Job controller judges every pod in phase ``Failed`` by the Job's ``podFailurePolicy``, also one that it has just
ended because the Job was suspended (upstream: ``syncJob``, ``getFailJobMessage``). With ``LEAK_CONDITION`` on its pods
a Job whose policy goes by that condition would be failed for good by our own requeue or hold. So the annotation
``INCIDENT`` goes first, whereupon the controller takes the condition off the pods. How far that is shows on the
objects: no try needs to know of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from tidegauge.core.jobs.kubernetes import INCIDENT, LEAK_CONDITION, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.owners import is_true
from tidegauge_scheduler_hooks.kubernetes.patches import annotate_patch
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, ConflictError, KubeApi, Object
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of
from tidegauge_scheduler_hooks.ports import TemporaryError

SETTLES_S = 5.0
"""A controller that is putting the condition on pods at this moment has seen by then that it is to be taken off: it
looks at the workload again after every few pods (``controller.reconcile.MARKED_AT_ONCE``)."""
PODS_PER_S = 10.0
"""How many it does at least; its client makes 20 requests a second."""
MAX_RETRY_S = 60.0


def goes_by_condition(workload: Workload, links: Iterable[Object]) -> bool:
    """Whether the workload, or an object between it and its pods (a TrainJob's JobSet), speaks of the condition."""
    return any(LEAK_CONDITION in json.dumps(obj.get("spec")) for obj in (workload.obj, *links))


def take_marks_off(api: KubeApi, workload: Workload, *, controller_away: str | None) -> None:
    """Returns once none of its pods bears the condition, and none will be given it.

    ``controller_away``: why there is no controller that would take it off; ``None``: there is one. Raises
    ``TemporaryError`` until then, ``PermanentError``."""
    if INCIDENT in annotations_of(workload.obj):
        patch = annotate_patch(workload.obj, {INCIDENT: None})
        with suppress(ConflictError):  # then it is there at the next try
            api.patch(workload.kind.resource, workload.namespace, workload.name, patch)
        raise TemporaryError(
            f"{workload.title} is not suspended yet: first the condition {LEAK_CONDITION} is removed from its pods, or "
            "its podFailurePolicy would fail it",
            retry_after_s=SETTLES_S,
        )
    marked = _marked(api, workload)
    if marked and controller_away is not None:
        raise TemporaryError(
            f"{workload.title} is not suspended: {marked} of its pods have the condition {LEAK_CONDITION}, for which "
            f"its podFailurePolicy would fail it, and no controller removes it ({controller_away}; "
            "docs/kubernetes_controller.md)",
            retry_after_s=MAX_RETRY_S,
        )
    if marked:
        raise TemporaryError(
            f"{workload.title} is not suspended yet: {marked} of its pods still have the condition {LEAK_CONDITION}",
            retry_after_s=min(MAX_RETRY_S, SETTLES_S + marked / PODS_PER_S),
        )


def _marked(api: KubeApi, workload: Workload) -> int:
    """By the API server: a watch may be a moment behind."""
    ours = {pod["metadata"]["uid"] for pod in workload.living}
    pods = api.list(PODS, workload.namespace, label_selector=PROFILE_LABEL) if ours else ()
    return sum(pod["metadata"]["uid"] in ours and is_true(pod, LEAK_CONDITION) for pod in pods)
