"""What the API server fills in when an object of a built-in kind is created or changed, before it is validated."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from kube_emulator.resources import ResourceType

Object = dict[str, Any]

GENERATED_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def with_defaults(resource: ResourceType, value: Object) -> Object:
    """A copy with defaults."""
    value = json.loads(json.dumps(value))
    fill = None if resource.custom else _BY_KIND.get(resource.kind)
    if fill is not None:
        fill(value)
    return value


def _fill(target: Object, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if target.get(key) is None:
            target[key] = json.loads(json.dumps(value))


def fill_pod_spec(spec: Object) -> None:
    """The defaults that a pod and a pod template share."""
    _fill(
        spec,
        {
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "terminationGracePeriodSeconds": 30,
        },
    )
    if "serviceAccountName" in spec:
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _fill_container(container)
    for volume in spec.get("volumes") or []:
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if source in volume:
                _fill(volume[source], {"defaultMode": 0o644})
        if "hostPath" in volume:
            _fill(volume["hostPath"], {"type": ""})


def _fill_container(container: Object) -> None:
    image = str(container.get("image") or "")
    tag = image.rpartition("/")[2].partition(":")[2]
    latest = "@" not in image and tag in ("", "latest")
    _fill(
        container,
        {
            "imagePullPolicy": "Always" if latest else "IfNotPresent",
            "resources": {},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        },
    )
    resources = container["resources"]
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    for entry in container.get("env") or []:
        reference = (entry.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            _fill(reference, {"apiVersion": "v1"})
    for port in container.get("ports") or []:
        _fill(port, {"protocol": "TCP"})


def _fill_pod(pod: Object) -> None:
    spec = pod.setdefault("spec", {})
    fill_pod_spec(spec)
    _fill(spec, {"enableServiceLinks": True})
    if spec.get("hostNetwork"):
        for container in spec.get("containers") or []:
            for port in container.get("ports") or []:
                _fill(port, {"hostPort": port.get("containerPort")})


def admit_pod(pod: Object) -> None:
    """What the admission plug-ins ServiceAccount, DefaultTolerationSeconds and Priority add to a new pod."""
    spec = pod["spec"]
    _fill(spec, {"serviceAccountName": "default", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"})
    spec["serviceAccount"] = spec["serviceAccountName"]
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(toleration.get("key") in (key, None) for toleration in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    if spec.get("automountServiceAccountToken", True):
        _mount_token(pod)
    pod["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def _mount_token(pod: Object) -> None:
    spec = pod["spec"]
    name = f"kube-api-access-{secrets.token_hex(3)[:5]}"
    mounted = False
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        mounts = container.setdefault("volumeMounts", [])
        if not any(mount.get("mountPath") == TOKEN_PATH for mount in mounts):
            mounts.append({"name": name, "readOnly": True, "mountPath": TOKEN_PATH})
            mounted = True
    if mounted:
        sources = [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        spec.setdefault("volumes", []).append({"name": name, "projected": {"sources": sources, "defaultMode": 0o644}})


def _quality(spec: Mapping[str, Any]) -> str:
    """``qosClass`` by the requests and limits of cpu and memory."""
    asked: list[tuple[Any, Any]] = []
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        asked.extend((requests.get(name), limits.get(name)) for name in ("cpu", "memory"))
    if all(request is None and limit is None for request, limit in asked):
        return "BestEffort"
    if all(limit is not None and request == limit for request, limit in asked):
        return "Guaranteed"
    return "Burstable"


def _fill_job(job: Object) -> None:
    spec = job.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        _fill(spec, {"completions": 1})
    _fill(
        spec,
        {
            "parallelism": 1,
            "completionMode": "NonIndexed",
            "backoffLimit": 6,
            "suspend": False,
            "manualSelector": False,
            "podReplacementPolicy": "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed",
        },
    )
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            _fill(pattern, {"status": "True"})
    template = spec.setdefault("template", {})
    fill_pod_spec(template.setdefault("spec", {}))
    job.setdefault("status", {})


def generate_selector(job: Object) -> None:
    """The selector and labels that tie pods to this Job; what is there already stays (and may be refused)."""
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    for key in GENERATED_LABELS:
        labels.setdefault(key, metadata["uid"])
    for key in NAME_LABELS:
        labels.setdefault(key, metadata["name"])
    selector = spec.setdefault("selector", {})
    if "matchLabels" not in selector:
        selector["matchLabels"] = {GENERATED_LABELS[0]: metadata["uid"]}


def _fill_webhooks(configuration: Object) -> None:
    for webhook in configuration.get("webhooks") or []:
        _fill(
            webhook,
            {
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "reinvocationPolicy": "Never",
                "timeoutSeconds": 10,
            },
        )
        for rule in webhook.get("rules") or []:
            _fill(rule, {"scope": "*"})
        if "service" in (webhook.get("clientConfig") or {}):
            _fill(webhook["clientConfig"]["service"], {"port": 443})


def _fill_namespace(namespace: Object) -> None:
    _fill(namespace, {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
    metadata = namespace["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}


def _fill_secret(secret: Object) -> None:
    _fill(secret, {"type": "Opaque"})
    plain = secret.pop("stringData", None) or {}
    encoded = {key: _base64(text) for key, text in plain.items()}
    if encoded:
        secret["data"] = {**(secret.get("data") or {}), **encoded}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _fill_workload(workload: Object) -> None:
    template = (workload.get("spec") or {}).get("template")
    if template is not None:
        fill_pod_spec(template.setdefault("spec", {}))
    workload.setdefault("status", {})


_BY_KIND: Mapping[str, Callable[[Object], None]] = {
    "Pod": _fill_pod,
    "Job": _fill_job,
    "MutatingWebhookConfiguration": _fill_webhooks,
    "Namespace": _fill_namespace,
    "Secret": _fill_secret,
    "Deployment": _fill_workload,
    "StatefulSet": _fill_workload,
    "DaemonSet": _fill_workload,
}
