"""Pod Security Standards: what the levels ``baseline`` and ``restricted`` refuse of a pod.

Checked is what Tidegauge's injection or its agents could violate: host namespaces, hostPath, host ports, privileged,
capabilities, and for ``restricted`` volumes, escalation, users and seccomp. Left out: AppArmor, SELinux, procMount,
sysctls, Windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ENFORCE = "pod-security.kubernetes.io/enforce"

_BASELINE_CAPABILITIES = frozenset(
    (
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    )
)
_RESTRICTED_VOLUMES = frozenset(
    (
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
)
_SECCOMP = ("RuntimeDefault", "Localhost")


def violation(level: str | None, spec: Mapping[str, Any]) -> str | None:
    """What is refused, as the message of the 403 goes on after ``is forbidden: ``; ``None`` if nothing is."""
    if level not in ("baseline", "restricted"):
        return None
    found = list(_baseline(spec))
    if level == "restricted":
        found.extend(_restricted(spec))
    return f'violates PodSecurity "{level}:latest": {", ".join(found)}' if found else None


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _security(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return container.get("securityContext") or {}


def _named(containers: list[Mapping[str, Any]]) -> str:
    names = ", ".join(f'"{container["name"]}"' for container in containers)
    return f"container{'s' if len(containers) > 1 else ''} {names}"


def _added(container: Mapping[str, Any]) -> frozenset[str]:
    return frozenset((_security(container).get("capabilities") or {}).get("add") or ())


def _baseline(spec: Mapping[str, Any]) -> Iterator[str]:
    host = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if host:
        yield f"host namespaces ({', '.join(host)})"
    paths = [f'"{volume["name"]}"' for volume in spec.get("volumes") or [] if "hostPath" in volume]
    if paths:
        yield f"hostPath volumes (volume{'s' if len(paths) > 1 else ''} {', '.join(paths)})"
    containers = _containers(spec)
    ports = [each for each in containers if any(port.get("hostPort") for port in each.get("ports") or [])]
    if ports:
        yield f"hostPort ({_named(ports)} uses hostPort)"
    privileged = [each for each in containers if _security(each).get("privileged")]
    if privileged:
        yield f"privileged ({_named(privileged)} must not set securityContext.privileged=true)"
    capable = [each for each in containers if _added(each) - _BASELINE_CAPABILITIES]
    if capable:
        names = sorted(frozenset().union(*map(_added, capable)) - _BASELINE_CAPABILITIES)
        words = ", ".join(f'"{name}"' for name in names)
        told = f"{_named(capable)} must not include {words} in securityContext.capabilities.add"
        yield f"non-default capabilities ({told})"
    if _seccomp(spec.get("securityContext") or {}) == "Unconfined" or any(
        _seccomp(_security(each)) == "Unconfined" for each in containers
    ):
        yield 'seccompProfile (must not set securityContext.seccompProfile.type to "Unconfined")'


def _restricted(spec: Mapping[str, Any]) -> Iterator[str]:
    volumes = [volume for volume in spec.get("volumes") or [] if not _RESTRICTED_VOLUMES & set(volume)]
    if volumes:
        names = ", ".join(f'"{volume["name"]}"' for volume in volumes)
        yield f"restricted volume types (volumes {names} use restricted volume types)"
    containers, whole = _containers(spec), spec.get("securityContext") or {}
    escalating = [each for each in containers if _security(each).get("allowPrivilegeEscalation") is not False]
    if escalating:
        told = f"{_named(escalating)} must set securityContext.allowPrivilegeEscalation=false"
        yield f"allowPrivilegeEscalation != false ({told})"
    capable = [each for each in containers if not _drops_all(each) or _added(each) - {"NET_BIND_SERVICE"}]
    if capable:
        yield f'unrestricted capabilities ({_named(capable)} must set securityContext.capabilities.drop=["ALL"])'
    rootable = [each for each in containers if not _security(each).get("runAsNonRoot", whole.get("runAsNonRoot"))]
    if rootable:
        yield f"runAsNonRoot != true (pod or {_named(rootable)} must set securityContext.runAsNonRoot=true)"
    if whole.get("runAsUser") == 0 or any(_security(each).get("runAsUser") == 0 for each in containers):
        yield "runAsUser=0 (pod or containers must not set runAsUser=0)"
    open_ones = [each for each in containers if (_seccomp(_security(each)) or _seccomp(whole)) not in _SECCOMP]
    if open_ones:
        told = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        yield f"seccompProfile (pod or {_named(open_ones)} {told})"


def _drops_all(container: Mapping[str, Any]) -> bool:
    return "ALL" in ((_security(container).get("capabilities") or {}).get("drop") or ())


def _seccomp(context: Mapping[str, Any]) -> str | None:
    found: str | None = (context.get("seccompProfile") or {}).get("type")
    return found
