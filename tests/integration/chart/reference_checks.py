"""What one object says of another, and what is asked of webhooks, roles and definitions beyond their schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from integration.chart.pods import matches, name_of, pods_in
from integration.chart.rendering import Object

VERBS = {"get", "list", "watch", "create", "update", "patch"}
"""That the service may be given. ``delete`` exists, too: never for us."""
RESOURCES = {
    "": {"pods", "pods/status", "namespaces", "nodes", "nodes/status", "secrets", "services/proxy"},
    "batch": {"jobs"},
    "jobset.x-k8s.io": {"jobsets"},
    "trainer.kubeflow.org": {"trainjobs"},
    "kubeflow.org": {"pytorchjobs"},
    "ray.io": {"rayjobs", "rayclusters"},
    "kueue.x-k8s.io": {
        "workloads",
        "workloads/status",
        "admissionchecks",
        "admissionchecks/status",
        "resourceflavors",
    },
    "tidegauge.dev": {"memoryincidents", "memoryincidents/status", "memorypolicies", "memorypolicies/status"},
    "events.k8s.io": {"events"},
    "coordination.k8s.io": {"leases"},
    "authentication.k8s.io": {"tokenreviews"},
    "authorization.k8s.io": {"subjectaccessreviews"},
    "admissionregistration.k8s.io": {"mutatingwebhookconfigurations"},
}


def references_lead_somewhere(objects: Sequence[Object]) -> Iterator[str]:
    there = {name_of(thing) for thing in objects} | {"ServiceAccount/default"}
    there |= {f"Secret/{thing['spec']['secretName']}" for thing in objects if thing["kind"] == "Certificate"}
    for owner, wanted in _references(objects):
        if wanted not in there:
            yield f"{owner}: there is no {wanted}"


def _references(objects: Sequence[Object]) -> Iterator[tuple[str, str]]:
    for pod in pods_in(objects):
        if "serviceAccountName" in pod.spec:
            yield pod.owner, f"ServiceAccount/{pod.spec['serviceAccountName']}"
        for volume in pod.spec.get("volumes", ()):
            for key, kind, field in (
                ("configMap", "ConfigMap", "name"),
                ("secret", "Secret", "secretName"),
                ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
            ):
                if key in volume and not volume[key].get("optional"):
                    yield pod.owner, f"{kind}/{volume[key][field]}"
            for source in volume.get("projected", {}).get("sources", ()):
                if "secret" in source:
                    yield pod.owner, f"Secret/{source['secret']['name']}"
        for container in pod.containers:
            for variable in container.get("env", ()):
                source = variable.get("valueFrom", {}).get("secretKeyRef")
                if source and not source.get("optional"):
                    yield pod.owner, f"Secret/{source['name']}"
    for thing in objects:
        if thing["kind"] == "StatefulSet":
            yield name_of(thing), f"Service/{thing['spec']['serviceName']}"
        if thing["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            yield name_of(thing), f"{thing['roleRef']['kind']}/{thing['roleRef']['name']}"
            for subject in thing["subjects"]:
                if subject["kind"] != "Group":
                    yield name_of(thing), f"{subject['kind']}/{subject['name']}"
        spec = thing.get("spec", {})
        monitored = spec if thing["kind"] in ("PodMonitor", "ServiceMonitor") else {}
        for endpoint in monitored.get("podMetricsEndpoints", monitored.get("endpoints", ())):
            for secret in _secrets_of(endpoint):
                yield name_of(thing), f"Secret/{secret}"
        for rule in spec.get("rules", ()) if thing["kind"] == "Ingress" else ():
            for path in rule["http"]["paths"]:
                yield name_of(thing), f"Service/{path['backend']['service']['name']}"
        for rule in spec.get("rules", ()) if thing["kind"] == "HTTPRoute" else ():
            for backend in rule["backendRefs"]:
                yield name_of(thing), f"Service/{backend['name']}"
        for hook in thing.get("webhooks", ()):
            yield name_of(thing), f"Service/{hook['clientConfig']['service']['name']}"


def _secrets_of(endpoint: Mapping[str, Any]) -> Iterator[str]:
    """Of a monitor: what Prometheus shows and trusts there."""
    tls = endpoint.get("tlsConfig", {})
    shown = [*endpoint.get("basicAuth", {}).values(), *endpoint.get("authorization", {}).values()]
    for selector in (*shown, tls.get("ca", {}).get("secret"), tls.get("cert", {}).get("secret"), tls.get("keySecret")):
        if isinstance(selector, Mapping):
            yield selector["name"]


def selectors_choose_pods(objects: Sequence[Object]) -> Iterator[str]:
    """Of Services (with the ports that they lead to), budgets, network policies and monitors."""
    for thing in objects:
        selection = _selection(thing)
        if selection is None:
            continue
        selector, wanted = selection
        chosen = [pod for pod in pods_in(objects) if matches(selector, pod.labels)]
        ports = {port["name"] for pod in chosen for c in pod.containers for port in c.get("ports", ())}
        if len(chosen) != 1 or not wanted <= ports:
            owners = [pod.owner for pod in chosen]
            yield f"{name_of(thing)}: chooses {owners}, of whom none has ports {sorted(wanted - ports)}"


def _selection(thing: Object) -> tuple[Mapping[str, Any], set[str]] | None:
    """The selector, and names of the ports that are wanted of whom it chooses."""
    spec = thing.get("spec", {})
    if thing["kind"] == "Service":
        return {"matchLabels": spec["selector"]}, {port["targetPort"] for port in spec["ports"]}
    if thing["kind"] in ("PodDisruptionBudget", "PodMonitor"):
        return spec["selector"], {endpoint["port"] for endpoint in spec.get("podMetricsEndpoints", ())}
    if thing["kind"] == "NetworkPolicy":
        return spec["podSelector"], set()
    return None


def monitors_choose_one_service(objects: Sequence[Object]) -> Iterator[str]:
    for thing in (thing for thing in objects if thing["kind"] == "ServiceMonitor"):
        ports = [
            port["name"]
            for service in objects
            if service["kind"] == "Service" and matches(thing["spec"]["selector"], service["metadata"]["labels"])
            for port in service["spec"]["ports"]
        ]
        for endpoint in thing["spec"]["endpoints"]:
            if ports.count(endpoint["port"]) != 1:
                yield f"{name_of(thing)}: port {endpoint['port']!r} is that of {ports.count(endpoint['port'])} Services"


def webhooks_never_block_a_job(objects: Sequence[Object]) -> Iterator[str]:
    for thing in objects:
        if thing["kind"] != "MutatingWebhookConfiguration":
            continue
        for hook in thing["webhooks"]:
            if len(hook["name"].split(".")) < 3:
                yield f"{name_of(thing)}: {hook['name']!r} needs three parts at least, as a domain's name"
            wrong = {
                "failurePolicy": hook.get("failurePolicy") != "Ignore",
                "timeoutSeconds": not 1 <= hook.get("timeoutSeconds", 10) <= 10,
                "sideEffects": hook.get("sideEffects") not in ("None", "NoneOnDryRun"),
                "namespaceSelector": not hook.get("namespaceSelector", {}).get("matchExpressions"),
                "objectSelector": not hook.get("objectSelector", {}).get("matchExpressions"),
            }
            for field in (field for field, bad in wrong.items() if bad):
                yield f"{name_of(thing)}: {hook['name']}: {field} is {hook.get(field)!r}"


def roles_give_what_exists_and_is_meant(objects: Sequence[Object]) -> Iterator[str]:
    for thing in objects:
        for rule in thing.get("rules", ()) if thing["kind"] in ("Role", "ClusterRole") else ():
            for verb in set(rule["verbs"]) - VERBS:
                yield f"{name_of(thing)}: verb {verb!r}"
            if set(rule.get("nonResourceURLs", ())) - {"/metrics"}:
                yield f"{name_of(thing)}: paths {rule['nonResourceURLs']}"
            for group in rule.get("apiGroups", ()):
                for resource in set(rule["resources"]) - RESOURCES.get(group, set()):
                    yield f"{name_of(thing)}: {resource!r} of {group!r}"
            limited = {"secrets", "services/proxy", "mutatingwebhookconfigurations"} & set(rule.get("resources", ()))
            if limited and not rule.get("resourceNames"):
                yield f"{name_of(thing)}: all {', '.join(sorted(limited))}"


def definitions_are_whole(objects: Sequence[Object]) -> Iterator[str]:
    """CustomResourceDefinitions: name, types of all properties, fields that rules name."""
    for thing in objects:
        if thing["kind"] != "CustomResourceDefinition":
            continue
        spec = thing["spec"]
        if thing["metadata"]["name"] != f"{spec['names']['plural']}.{spec['group']}":
            yield f"{name_of(thing)}: the name is not plural.group"
        for version in spec["versions"]:
            for wrong in _incomplete(version["schema"]["openAPIV3Schema"], "schema"):
                yield f"{name_of(thing)}: {wrong}"


def _incomplete(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if "type" not in schema and not schema.get("x-kubernetes-int-or-string"):
        yield f"{path} has no type"
    properties = schema.get("properties", {})
    for rule in schema.get("x-kubernetes-validations", ()):
        for field in re.findall(r"\bself\.(\w+)", rule["rule"]):
            if field not in properties:
                yield f"{path}: a rule names {field!r}, which is no property"
    for name, below in properties.items():
        yield from _incomplete(below, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from _incomplete(schema["items"], f"{path}[]")


CHECKS = (
    references_lead_somewhere,
    selectors_choose_pods,
    monitors_choose_one_service,
    webhooks_never_block_a_job,
    roles_give_what_exists_and_is_meant,
    definitions_are_whole,
)
