"""Who may do what: roles and bindings (``rbac.authorization.k8s.io``), and the refusals in the API server's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kube_emulator.accounts import AUTHENTICATED, User
from kube_emulator.errors import ApiError
from kube_emulator.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES
from kube_emulator.store import Store, key_of

_GROUP = ROLES.group


class Attributes(NamedTuple):
    """What is asked for. ``resource`` is a plural, with ``/subresource`` where there is one."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """``patch jobs.batch``."""
        return f"{self.verb} {self.resource}{self.group and '.'}{self.group}"


class Asked(NamedTuple):
    """A request, and the role by which it was allowed; ``None``: it was refused."""

    wanted: Attributes
    role: tuple[str, str, str] | None
    """Kind, namespace (empty for a ClusterRole) and name."""


def allowed(store: Store, user: User, wanted: Attributes) -> bool:
    """Admins may do everything; others what a rule of a role that is bound to them allows."""
    return user.admin or role_that_allows(store, user, wanted) is not None


def role_that_allows(store: Store, user: User, wanted: Attributes) -> tuple[str, str, str] | None:
    """The first one of those that are bound to the user, as ``Asked.role``."""
    roles = _roles_of(store, user, wanted.namespace)
    return next((key for key, rules in roles if any(_covers(rule, wanted) for rule in rules)), None)


def path_allowed(store: Store, user: User, path: str) -> bool:
    """Paths that are no resources: version and health are for everybody, discovery for all who are known."""
    if path in ("/version", "/healthz", "/livez", "/readyz") or user.admin:
        return True
    if AUTHENTICATED in user.groups and path.split("/")[1] in ("api", "apis", "openapi"):
        return True
    rules = (rule for _, of_role in _roles_of(store, user, "") for rule in of_role)
    return any(path in (rule.get("nonResourceURLs") or ()) for rule in rules)


def _roles_of(
    store: Store, user: User, namespace: str
) -> Iterator[tuple[tuple[str, str, str], Sequence[Mapping[str, Any]]]]:
    bindings = store.of_kind(_GROUP, CLUSTER_ROLE_BINDINGS.plural)
    if namespace:
        bindings = bindings + store.of_kind(_GROUP, ROLE_BINDINGS.plural, namespace)
    for binding in bindings:
        where = binding["metadata"].get("namespace", "")
        if any(_is_subject(each, user, where) for each in binding.get("subjects") or []):
            reference = binding["roleRef"]
            kind = CLUSTER_ROLES if reference["kind"] == "ClusterRole" else ROLES
            role = store.get(key_of(kind, where, reference["name"]))
            place = where if kind is ROLES else ""
            yield (kind.kind, place, reference["name"]), (role or {}).get("rules") or ()


def _is_subject(subject: Mapping[str, Any], user: User, namespace: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    return bool(subject["name"] == user.name)


def _covers(rule: Mapping[str, Any], wanted: Attributes) -> bool:
    resources = rule.get("resources") or []
    _, slash, subresource = wanted.resource.partition("/")
    named = wanted.resource in resources or "*" in resources or (slash and f"*/{subresource}" in resources)
    names = rule.get("resourceNames") or []
    return bool(
        named
        and _in(rule.get("verbs"), wanted.verb)
        and _in(rule.get("apiGroups"), wanted.group)
        and (not names or wanted.name in names)
    )


def _in(values: Any, wanted: str) -> bool:
    return wanted in (values or ()) or "*" in (values or ())


def refusal(user: User, wanted: Attributes) -> ApiError:
    """403, with the same words as the API server's."""
    plural = wanted.resource.partition("/")[0]
    qualified = f"{plural}.{wanted.group}" if wanted.group else plural
    what = f'{qualified} "{wanted.name}"' if wanted.name else qualified
    scope = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    message = (
        f'{what} is forbidden: User "{user.name}" cannot {wanted.verb} resource "{wanted.resource}" '
        f'in API group "{wanted.group}" {scope}'
    )
    details = {**({"name": wanted.name} if wanted.name else {}), "group": wanted.group, "kind": plural}
    return ApiError(403, "Forbidden", message, details={key: value for key, value in details.items() if value})


def path_refusal(user: User, verb: str, path: str) -> ApiError:
    message = f'forbidden: User "{user.name}" cannot {verb} path "{path}"'
    return ApiError(403, "Forbidden", message, details={})


def review(store: Store, user: User, body: Mapping[str, Any]) -> dict[str, Any]:
    """The ``status`` of a (Self)SubjectAccessReview's answer."""
    asked = (body.get("spec") or {}).get("resourceAttributes") or {}
    resource = asked.get("resource", "")
    if asked.get("subresource"):
        resource = f"{resource}/{asked['subresource']}"
    wanted = Attributes(
        asked.get("verb", ""), asked.get("group", ""), resource, asked.get("namespace", ""), asked.get("name", "")
    )
    return {"allowed": allowed(store, user, wanted)}
