"""A container's environment and command as its pod writes them: values, downward API, ``$(NAME)``. Values only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kube_standins.api import Object

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$\$|\$\(([^()$]+)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class UnsupportedError(ValueError):
    """The pod asks for what a stand-in node cannot do; says what."""


class Here(NamedTuple):
    """What the downward API tells and the pod object does not say yet."""

    node: str
    pod_ip: str
    host_ip: str
    api_address: tuple[str, int]


def environ_of(container: Object, pod: Object, here: Here, given: Mapping[str, str]) -> dict[str, str]:
    """``given`` is from the devices. Raises ``UnsupportedError`` for a source other than ``fieldRef``."""
    if container.get("envFrom"):
        raise UnsupportedError(f"container {container['name']}: envFrom is not supported here")
    host, port = here.api_address
    environ = {
        "PATH": PATH,
        "HOSTNAME": pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        **given,
    }
    for variable in container.get("env") or ():
        name, source = variable["name"], variable.get("valueFrom")
        if source is None:
            environ[name] = expanded(variable.get("value") or "", environ)
        elif "fieldRef" in source:
            environ[name] = field_of(source["fieldRef"]["fieldPath"], pod, here)
        else:
            raise UnsupportedError(f"container {container['name']}: env {name} is from {', '.join(source)}")
    return environ


def command_of(container: Object, environ: Mapping[str, str], image_command: Sequence[str]) -> list[str]:
    """Entrypoint and arguments. Raises ``UnsupportedError`` where neither the pod nor ``image_command`` has one."""
    command = [expanded(word, environ) for word in container.get("command") or ()] or list(image_command)
    if not command:
        raise UnsupportedError(
            f"container {container['name']}: images are not pulled, so a command is needed (image "
            f"{container.get('image')!r})"
        )
    return [*command, *(expanded(word, environ) for word in container.get("args") or ())]


def expanded(text: str, environ: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where the name is known, ``$$`` by ``$``; all else stays (Container v1, field ``args``)."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else environ.get(match[1], match[0]), text)


def field_of(path: str, pod: Object, here: Here) -> str:
    """A field of the downward API. Raises ``UnsupportedError`` for one that there is not."""
    metadata: Mapping[str, Any] = pod["metadata"]
    keyed = _KEYED.fullmatch(path)
    if keyed is not None:
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": here.node,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName") or "default",
        "status.podIP": here.pod_ip,
        "status.podIPs": here.pod_ip,
        "status.hostIP": here.host_ip,
        "status.hostIPs": here.host_ip,
    }
    if path not in fields:
        raise UnsupportedError(f"the downward API has no field {path} here; it has {', '.join(fields)}, and keys of "
                               "metadata.labels and metadata.annotations")  # fmt: skip
    return str(fields[path])
