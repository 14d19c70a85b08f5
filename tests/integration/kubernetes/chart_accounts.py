"""Head and controller as the chart lets them be: the rules of their roles, and the admission policy that binds them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import celpy
import yaml
from celpy import celtypes
from celpy.adapter import json_to_cel

from integration.chart.rendering import render, with_registry
from integration.kubernetes.target import KubeTarget, for_namespace
from kube_emulator.rbac import Asked, Attributes
from kube_emulator.webhooks import Admission, covers

RELEASE, SYSTEM = "tidegauge", "tidegauge-system"
COMPONENTS = ("head", "controller")


@cache
def _rendered(values: str, namespace: str) -> str:
    return json.dumps(render(with_registry(**json.loads(values)), release=RELEASE, namespace=namespace).objects)


def chart_objects(values: Mapping[str, Any]) -> list[Any]:
    """What a release of the chart is made of."""
    found: list[Any] = json.loads(_rendered(json.dumps(values), SYSTEM))
    return found


class ChartRelease:
    """A release of the chart in a namespace of a test: its accounts with their rights, on the API server itself, and
    what its components are told. Its pods are not made.

    ``namespace`` stands for ``SYSTEM`` in ``values``, too."""

    def __init__(self, kube: KubeTarget, namespace: str, folder: Path, values: Mapping[str, Any]) -> None:
        self.namespace = namespace
        self.cluster_name = f"{RELEASE}-{namespace}"
        """Of objects that belong to no namespace."""
        self.lacks: set[str] = set()
        """What its accounts are refused by intent: ``controller: patch jobs.batch``."""
        self.objects: list[Any] = []
        self._kube = kube
        self._folder = folder
        self.upgrade(values)
        self._asked: dict[str, Iterable[Asked]] = dict.fromkeys(COMPONENTS, ())
        policies = [one for one in self.objects if one["kind"] == "ValidatingAdmissionPolicy"]
        self._refusals = [AccountPolicy(policy).refusal for policy in policies]
        if kube.emulator is not None:
            self._asked = {one: kube.emulator.follow(self._user(one)) for one in COMPONENTS}
            kube.emulator.validators.extend(self._refusals)

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """Give the accounts the rights that they have with other values."""
        self.objects = json.loads(json.dumps(chart_objects(values)).replace(SYSTEM, self.namespace))
        paths = _PATHS if self._kube.emulator is not None else {**_PATHS, **_ADMISSION}
        for thing in self.objects:
            if thing["kind"] in paths:
                self._apply(thing, paths[thing["kind"]])

    def kubeconfig(self, component: str) -> Path:
        """With the account of the component."""
        return self._kube.kubeconfig_of(self.namespace, f"{RELEASE}-{component}", self._folder)

    def controller_arguments(self, *more: str) -> list[str]:
        """Those of the controller's container, and then ``more``; ports and addresses are those of a test."""
        [pod] = [one["spec"]["template"]["spec"] for one in self.objects if one["kind"] == "Deployment"]
        told: list[str] = pod["containers"][0]["args"]
        kept = [one for one in told if not one.startswith(("--health-port", "--webhook-port"))]
        return [*kept, f"--kubeconfig={self.kubeconfig('controller')}", *more]

    def settings(self) -> Mapping[str, Any]:
        """Those of the head that are about Kubernetes."""
        [told] = [
            one["data"]["config.yaml"]
            for one in self.objects
            if one["kind"] == "ConfigMap" and one["metadata"]["name"] == RELEASE
        ]
        return {name: value for name, value in yaml.safe_load(told).items() if name.startswith("kubernetes_")}

    def rights(self, component: str) -> set[str]:
        """As rendered: ``get pods by ClusterRole tidegauge``."""
        bound = {
            _role(thing["roleRef"]["kind"], thing["metadata"].get("namespace", ""), thing["roleRef"]["name"])
            for thing in self.objects
            if thing["kind"] in ("RoleBinding", "ClusterRoleBinding")
            and thing["subjects"][0]["name"] == f"{RELEASE}-{component}"
        }
        roles = {
            _role(thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]): thing["rules"]
            for thing in self.objects
            if thing["kind"] in ("Role", "ClusterRole")
        }
        return {
            f"{Attributes(verb, group, resource)} by {role}"
            for role in bound
            for rule in roles[role]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def used(self, component: str) -> set[str]:
        """Of the rights those by which a request was allowed."""
        return {f"{one.wanted} by {_role(*one.role)}" for one in self._all(component) if one.role is not None}

    def refused(self) -> set[str]:
        """``controller: patch jobs.batch``."""
        return {
            f"{component}: {one.wanted}" for component in COMPONENTS for one in self._all(component) if one.role is None
        }

    def close(self) -> None:
        """Whoever still asks in its name is no part of a test any more."""
        emulator = self._kube.emulator
        if emulator is None:
            return
        for component in COMPONENTS:
            emulator.unfollow(self._user(component))
        for refusal in self._refusals:
            emulator.validators.remove(refusal)

    def _all(self, component: str) -> list[Asked]:
        """Safe while requests come."""
        return list(self._asked[component])

    def _user(self, component: str) -> str:
        return f"system:serviceaccount:{self.namespace}:{RELEASE}-{component}"

    def _apply(self, thing: Any, path: str) -> None:
        thing["metadata"]["labels"] |= for_namespace(self.namespace)
        namespace = thing["metadata"].get("namespace")
        path = path.format(f"namespaces/{namespace}/" if namespace else "")
        admin = self._kube.admin
        if admin.ask("POST", path, thing).code == 409:
            name = thing["metadata"]["name"]
            admin.do("PATCH", f"{path}/{name}", thing, content_type="application/merge-patch+json")


@contextmanager
def installed(kube: KubeTarget, namespace: str, folder: Path, values: Mapping[str, Any]) -> Iterator[ChartRelease]:
    """A release until the block ends, which then lacks no right that was asked for."""
    release = ChartRelease(kube, namespace, folder, values)
    try:
        yield release
        assert release.refused() - release.lacks == set(), "refused to the chart's accounts, and no test expects it"
    finally:
        release.close()


_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_PATHS = {
    "ServiceAccount": "/api/v1/{}serviceaccounts",
    "Secret": "/api/v1/{}secrets",
    "Role": f"{_RBAC}/{{}}roles",
    "RoleBinding": f"{_RBAC}/{{}}rolebindings",
    "ClusterRole": f"{_RBAC}/{{}}clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/{{}}clusterrolebindings",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/{}mutatingwebhookconfigurations",
}
"""What a release needs so that its components may work."""
_ADMISSION = {
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/{}validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/{}validatingadmissionpolicybindings",
}
"""What limits the accounts further; the emulator has ``AccountPolicy`` instead."""


def _role(kind: str, namespace: str, name: str) -> str:
    return f"{kind} {namespace}/{name}" if namespace and kind == "Role" else f"{kind} {name}"


class AccountPolicy:
    """The chart's ValidatingAdmissionPolicy, evaluated by another implementation of CEL than a server's."""

    def __init__(self, policy: Mapping[str, Any]) -> None:
        spec = policy["spec"]
        self.name: str = policy["metadata"]["name"]
        self._rules = spec["matchConstraints"]["resourceRules"]
        self._conditions = [_compiled(one["expression"]) for one in spec["matchConditions"]]
        self._variables = [(one["name"], _compiled(one["expression"])) for one in spec["variables"]]
        self._validations = [
            (
                _compiled(one["expression"]),
                one.get("message"),
                _compiled(one["messageExpression"]) if "messageExpression" in one else None,
            )
            for one in spec["validations"]
        ]

    def refusal(self, admission: Admission) -> str | None:
        """The server's words, or ``None``: the change is admitted, or the policy is about others."""
        if not any(covers(rule, admission) for rule in self._rules):
            return None
        scope: dict[str, Any] = {
            "request": json_to_cel(_request(admission)),
            "object": json_to_cel(admission.value),
            "oldObject": json_to_cel(admission.old),
        }
        if not all(one.evaluate(scope) for one in self._conditions):
            return None
        variables = celtypes.MapType()
        for name, program in self._variables:
            variables[celtypes.StringType(name)] = program.evaluate({**scope, "variables": variables})
        scope["variables"] = variables
        for program, message, expression in self._validations:
            if not program.evaluate(scope):
                words = message if expression is None else str(expression.evaluate(scope))
                return f"ValidatingAdmissionPolicy '{self.name}' with binding '{self.name}' denied request: {words}"
        return None


@cache
def account_policy(*, kueue_check: bool = False, node_conditions: bool = False) -> AccountPolicy:
    """That of an installation by default, or of one that answers Kueue's admission check, or tells of nodes."""
    values = {"kueueCheck": {"enabled": kueue_check}, "nodeConditions": {"enabled": node_conditions}}
    found = [one for one in chart_objects(values) if one["kind"] == "ValidatingAdmissionPolicy"]
    (policy,) = found
    return AccountPolicy(policy)


@cache
def _compiled(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def _request(admission: Admission) -> dict[str, Any]:
    return {
        "operation": admission.operation,
        "resource": {"group": admission.resource.group, "resource": admission.resource.plural},
        "subResource": admission.subresource,
        "userInfo": {"username": admission.user.name},
    }
