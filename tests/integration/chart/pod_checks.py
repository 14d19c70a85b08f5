"""What must be so in every pod of the chart."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from integration.chart.pods import Pod, matches, name_of, pods_in
from integration.chart.rendering import Object

AGENT = "agent"
OPENER_CAPABILITIES = {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "SYS_PTRACE"]}
OPENER_MOUNTS = {"opener", "pod-resources"}
NRI, NRI_MOUNTS = "nri", {"nri-socket", "nri-probe"}
AGENT_HOST_PATHS = {"/var/lib/kubelet/pod-resources", "/var/run/nri", "/var/lib/tidegauge/probe"}
PRIVILEGES = "privileges, or a way to more of them"
CAPABILITIES = "capabilities"
ROOT = "may be root"
SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|SECRET)$")


def selectors_choose_their_own_template(objects: Sequence[Object]) -> Iterator[str]:
    for thing in objects:
        if thing["kind"] in ("Deployment", "DaemonSet", "StatefulSet"):
            selector, labels = thing["spec"].get("selector", {}), thing["spec"]["template"]["metadata"]["labels"]
            if not selector or not matches(selector, labels):
                yield f"{name_of(thing)}: the selector does not choose the template's labels"


def mounts_have_volumes(objects: Sequence[Object]) -> Iterator[str]:
    claims = {
        name_of(thing): [claim["metadata"]["name"] for claim in thing["spec"].get("volumeClaimTemplates", ())]
        for thing in objects
        if thing["kind"] == "StatefulSet"
    }
    for pod in pods_in(objects):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", ())} | set(claims.get(pod.owner, ()))
        mounted = {mount["name"] for container in pod.containers for mount in container.get("volumeMounts", ())}
        for name in sorted(mounted - volumes):
            yield f"{pod.owner}: {name!r} is mounted and is no volume"
        for name in sorted(volumes - mounted):
            yield f"{pod.owner}: volume {name!r} is mounted nowhere"


def probes_ask_ports_that_exist(objects: Sequence[Object]) -> Iterator[str]:
    for pod in pods_in(objects):
        for container in pod.containers:
            ports = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                for how in ("httpGet", "tcpSocket"):
                    port = container.get(probe, {}).get(how, {}).get("port")
                    if port is not None and port not in ports:
                        yield f"{pod.owner}: {probe} asks port {port!r}, which the container does not name"


def servers_have_a_readiness_probe(objects: Sequence[Object]) -> Iterator[str]:
    for pod in pods_in(objects):
        for container in pod.spec["containers"]:
            if container.get("ports") and "readinessProbe" not in container:
                yield f"{pod.owner}: {container['name']} has ports and no readinessProbe"


def images_are_named_exactly(objects: Sequence[Object]) -> Iterator[str]:
    for pod in pods_in(objects):
        for container in pod.containers:
            image = container["image"]
            name, _, tag = image.rpartition(":")
            if "@sha256:" not in image and (not name or "/" in tag or tag == "latest" or not tag):
                yield f"{pod.owner}: {image!r} says not exactly what runs"


def containers_say_what_they_take(objects: Sequence[Object]) -> Iterator[str]:
    for pod in pods_in(objects):
        for container in pod.containers:
            resources = container.get("resources", {})
            if not resources.get("requests") or "memory" not in resources.get("limits", {}):
                yield f"{pod.owner}: {container['name']} has no requests or no memory limit"


def service_links_are_off(objects: Sequence[Object]) -> Iterator[str]:
    """A Service ``tidegauge-head`` would make variables ``TIDEGAUGE_HEAD_…``: settings that do not exist."""
    for pod in pods_in(objects):
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.owner}: enableServiceLinks is not off"


def all_but_the_agent_are_restricted(objects: Sequence[Object]) -> Iterator[str]:
    """Pod Security Standards, restricted; and a root file system that is read only."""
    for pod in pods_in(objects):
        if _is_agent(pod):
            continue
        if any(pod.spec.get(key) for key in ("hostPID", "hostIPC", "hostNetwork")):
            yield f"{pod.owner}: a namespace of the host"
        if any("hostPath" in volume for volume in pod.spec.get("volumes", ())):
            yield f"{pod.owner}: a hostPath"
        for container in pod.containers:
            for wrong in _beyond_restricted(pod.spec.get("securityContext", {}), container):
                yield f"{pod.owner}: {container['name']}: {wrong}"


def the_agent_has_what_it_needs_and_no_more(objects: Sequence[Object]) -> Iterator[str]:
    for pod in filter(_is_agent, pods_in(objects)):
        if not pod.spec.get("hostPID") or pod.spec.get("hostIPC") or pod.spec.get("hostNetwork"):
            yield f"{pod.owner}: hostPID, and no other namespace of the host, is needed"
        paths = {volume["hostPath"]["path"] for volume in pod.spec["volumes"] if "hostPath" in volume}
        if not paths <= AGENT_HOST_PATHS:
            yield f"{pod.owner}: hostPath {sorted(paths - AGENT_HOST_PATHS)}"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.owner}: it needs no word with the API server"
        agent, opener, *more = pod.containers
        for wrong in _beyond_restricted(pod.spec.get("securityContext", {}), agent):
            if wrong not in (PRIVILEGES, CAPABILITIES) or not agent["securityContext"].get("privileged"):
                yield f"{pod.owner}: {agent['name']}: {wrong}"
        for wrong in _beyond_the_opener(opener):
            yield f"{pod.owner}: {opener['name']}: {wrong}"
        for container in more:  # the plugin is root, like whose socket it is
            for wrong in _beyond_restricted(pod.spec.get("securityContext", {}), container):
                if wrong != ROOT or container["name"] != NRI:
                    yield f"{pod.owner}: {container['name']}: {wrong}"
            if {mount["name"] for mount in container.get("volumeMounts", ())} - NRI_MOUNTS or container.get("env"):
                yield f"{pod.owner}: {container['name']}: words from elsewhere"
        by_host = {volume["name"] for volume in pod.spec["volumes"] if "hostPath" in volume}
        for mount in agent["volumeMounts"]:
            if mount["name"] in by_host or (mount["name"] == "opener" and not mount.get("readOnly")):
                yield f"{pod.owner}: {agent['name']} gets into {mount['mountPath']}"


def secrets_are_in_secrets_only(objects: Sequence[Object]) -> Iterator[str]:
    secret = [
        base64.b64decode(value).decode()
        for thing in objects
        if thing["kind"] == "Secret"
        for value in (thing.get("data") or {}).values()
    ]
    for thing in objects:
        if thing["kind"] != "Secret" and any(value in json.dumps(thing) for value in secret if value):
            yield f"{name_of(thing)}: holds what is in a Secret"
    for pod in pods_in(objects):
        for container in pod.containers:
            for variable in container.get("env", ()):
                if SECRET_NAME.search(variable["name"]) and "value" in variable:
                    yield f"{pod.owner}: {variable['name']} is written out"


def _is_agent(pod: Pod) -> bool:
    return pod.labels.get("app.kubernetes.io/component") == AGENT


def _beyond_restricted(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    context = {**pod, **container.get("securityContext", {})}
    if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
        yield PRIVILEGES
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield CAPABILITIES
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        yield ROOT
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "no seccomp profile"
    if not context.get("readOnlyRootFilesystem"):
        yield "a root file system that can be written to"


def _beyond_the_opener(container: Mapping[str, Any]) -> Iterator[str]:
    context = container.get("securityContext", {})
    if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
        yield PRIVILEGES
    if context.get("capabilities") != OPENER_CAPABILITIES or context.get("runAsUser") != 0:
        yield CAPABILITIES
    if not context.get("readOnlyRootFilesystem"):
        yield "a root file system that can be written to"
    if container.get("ports") or container.get("env"):
        yield "words from elsewhere"
    more = {mount["name"] for mount in container["volumeMounts"]} - OPENER_MOUNTS
    if more:
        yield f"mounts {sorted(more)}"


CHECKS = (
    selectors_choose_their_own_template,
    mounts_have_volumes,
    probes_ask_ports_that_exist,
    servers_have_a_readiness_probe,
    images_are_named_exactly,
    containers_say_what_they_take,
    service_links_are_off,
    all_but_the_agent_are_restricted,
    the_agent_has_what_it_needs_and_no_more,
    secrets_are_in_secrets_only,
)
