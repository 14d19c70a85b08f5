"""The JobSet kind, as far as the stand-in knows it: names and fields are those of jobset.x-k8s.io/v1alpha2."""

from __future__ import annotations

from typing import Any

GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
API_VERSION = f"{GROUP}/{VERSION}"
CRD_NAME = f"{PLURAL}.{GROUP}"
STAND_IN_LABEL = "tidegauge.dev/stand-in"
"""Of the definition, where it is ours: only then nobody else looks after JobSets."""

FAIL, RESTART, RESTART_UNCOUNTED = "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"
RECREATE, BLOCKING_RECREATE = "Recreate", "BlockingRecreate"


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _text(*choices: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", **({"enum": list(choices)} if choices else {}), **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _count(default: int) -> dict[str, Any]:
    return {"type": "integer", "format": "int32", "minimum": 0, "default": default}


_WHATEVER = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_CONDITION = _object(
    ("type", "status"),
    type=_text(), status=_text(), reason=_text(), message=_text(), lastTransitionTime=_text(format="date-time"),
)  # fmt: skip
_RULE = _object(
    ("action",),
    name=_text(),
    action=_text(FAIL, RESTART, RESTART_UNCOUNTED),
    onJobFailureReasons=_list(_text()),
    targetReplicatedJobs=_list(_text()),
)
_SPEC = _object(
    replicatedJobs=_list(_object(("name", "template"), name=_text(), replicas=_count(1), template=_WHATEVER)),
    suspend={"type": "boolean"},
    successPolicy=_object(("operator",), operator=_text("All", "Any"), targetReplicatedJobs=_list(_text())),
    failurePolicy=_object(
        maxRestarts=_count(0),
        restartStrategy=_text(RECREATE, BLOCKING_RECREATE, default=RECREATE),
        rules=_list(_RULE),
    ),
    network=_WHATEVER,
)
_STATUS = _object(
    conditions=_list(_CONDITION),
    restarts=_count(0),
    restartsCountTowardsMax=_count(0),
    terminalState=_text(),
    replicatedJobsStatus=_list(_WHATEVER),
)

JOBSET_CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CRD_NAME, "labels": {STAND_IN_LABEL: "jobset"}},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "JobSet", "listKind": "JobSetList", "plural": PLURAL, "singular": "jobset"},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": _object(spec=_SPEC, status=_STATUS)},
            }
        ],
    },
}
