"""The kinds of objects that are served, and the discovery documents that tell clients of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class ResourceType(NamedTuple):
    """One kind in one version. ``subresources`` have paths of their own below an object's."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    """OpenAPI v3 of a custom resource; ``None`` for built-in kinds."""
    reviews: bool = False
    """It can be posted and is answered, but never stored (``SubjectAccessReview``)."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As messages name it: ``pods``, ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def custom(self) -> bool:
        return self.schema is not None


_STATUS = ("status",)
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"

BUILT_IN: Sequence[ResourceType] = (
    ResourceType("", "v1", "namespaces", "Namespace", False, _STATUS),
    ResourceType("", "v1", "nodes", "Node", False, _STATUS),
    ResourceType("", "v1", "pods", "Pod", True, ("status", "eviction", "binding")),
    ResourceType("", "v1", "configmaps", "ConfigMap"),
    ResourceType("", "v1", "secrets", "Secret"),
    ResourceType("", "v1", "services", "Service", True, _STATUS),
    ResourceType("", "v1", "serviceaccounts", "ServiceAccount", True, ("token",)),
    ResourceType("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, _STATUS),
    ResourceType("", "v1", "events", "Event"),
    ResourceType("events.k8s.io", "v1", "events", "Event"),
    ResourceType("batch", "v1", "jobs", "Job", True, _STATUS),
    ResourceType("apps", "v1", "deployments", "Deployment", True, _STATUS),
    ResourceType("apps", "v1", "statefulsets", "StatefulSet", True, _STATUS),
    ResourceType("apps", "v1", "daemonsets", "DaemonSet", True, _STATUS),
    ResourceType("coordination.k8s.io", "v1", "leases", "Lease"),
    ResourceType("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, _STATUS),
    ResourceType(_RBAC, "v1", "roles", "Role"),
    ResourceType(_RBAC, "v1", "rolebindings", "RoleBinding"),
    ResourceType(_RBAC, "v1", "clusterroles", "ClusterRole", False),
    ResourceType(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    ResourceType(_ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False),
    ResourceType("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, _STATUS),
    ResourceType(_AUTHORIZATION, "v1", "subjectaccessreviews", "SubjectAccessReview", False, reviews=True),
    ResourceType("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, reviews=True),
    ResourceType(_AUTHORIZATION, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, reviews=True),
)


def built_in(plural: str, group: str = "") -> ResourceType:
    return next(each for each in BUILT_IN if (each.group, each.plural) == (group, plural))


NAMESPACES = built_in("namespaces")
PODS = built_in("pods")
CORE_EVENTS = built_in("events")
JOBS = built_in("jobs", "batch")
BUDGETS = built_in("poddisruptionbudgets", "policy")
SERVICE_ACCOUNTS = built_in("serviceaccounts")
ROLES = built_in("roles", _RBAC)
ROLE_BINDINGS = built_in("rolebindings", _RBAC)
CLUSTER_ROLES = built_in("clusterroles", _RBAC)
CLUSTER_ROLE_BINDINGS = built_in("clusterrolebindings", _RBAC)
WEBHOOKS = built_in("mutatingwebhookconfigurations", _ADMISSION)
CRDS = built_in("customresourcedefinitions", "apiextensions.k8s.io")

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_VERBS = {"status": ["get", "patch", "update"], "eviction": ["create"], "binding": ["create"]}


def version_document(types: Iterable[ResourceType], group: str, version: str) -> dict[str, Any] | None:
    """``/apis/GROUP/VERSION``: an ``APIResourceList``; ``None`` if nothing of it is served."""
    entries: list[dict[str, Any]] = []
    for each in types:
        if (each.group, each.version) != (group, version):
            continue
        common = {"namespaced": each.namespaced, "kind": each.kind}
        verbs = ["create"] if each.reviews else _VERBS
        entries.append({"name": each.plural, "singularName": each.kind.lower(), **common, "verbs": verbs})
        entries.extend(
            {
                "name": f"{each.plural}/{sub}",
                "singularName": "",
                **common,
                "verbs": _SUBRESOURCE_VERBS.get(sub, ["update"]),
            }
            for sub in each.subresources
        )
    if not entries:
        return None
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def group_list(types: Iterable[ResourceType]) -> dict[str, Any]:
    """``/apis``: an ``APIGroupList``."""
    versions: dict[str, list[str]] = {}
    for each in types:
        if each.group and each.version not in versions.setdefault(each.group, []):
            versions[each.group].append(each.version)
    groups = []
    for group, served in versions.items():
        entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in served]
        groups.append({"name": group, "versions": entries, "preferredVersion": entries[0]})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


CORE_VERSIONS = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
