"""Head and controller as the chart lets them be: the rules of their roles, and the admission policy that binds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel

from integration.chart.rendering import render, with_registry
from kube_emulator.webhooks import Admission, covers

RELEASE, SYSTEM = "tidegauge", "tidegauge-system"
COMPONENTS = ("head", "controller")


def chart_objects(values: Mapping[str, Any]) -> list[Any]:
    """What a release of the chart is made of."""
    return render(with_registry(**values), release=RELEASE, namespace=SYSTEM).objects


class AccountPolicy:
    """The chart's ValidatingAdmissionPolicy, evaluated by another implementation of CEL than a server's.

    Accounts of tests stand for the chart's by their names (``head-1f``: the head)."""

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
def account_policy(*, kueue_check: bool = False) -> AccountPolicy:
    """That of an installation by default, or of one that answers Kueue's admission check."""
    values = {"kueueCheck": {"enabled": kueue_check}}
    found = [one for one in chart_objects(values) if one["kind"] == "ValidatingAdmissionPolicy"]
    (policy,) = found
    return AccountPolicy(policy)


def _compiled(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def _request(admission: Admission) -> dict[str, Any]:
    _, _, account = admission.user.name.rpartition(":")
    component = account.partition("-")[0]
    stands_for = f"system:serviceaccount:{SYSTEM}:{RELEASE}-{component}"
    return {
        "operation": admission.operation,
        "resource": {"group": admission.resource.group, "resource": admission.resource.plural},
        "subResource": admission.subresource,
        "userInfo": {"username": stands_for if component in COMPONENTS else admission.user.name},
    }


def component_rules(component: str, **values: Any) -> Iterator[Any]:
    """The rules of all roles of a component, as rendered."""
    objects = chart_objects(values)
    names = {
        thing["roleRef"]["name"]
        for thing in objects
        if thing["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and thing["subjects"][0]["name"].endswith(f"-{component}")
    }
    for thing in objects:
        if thing["kind"] in ("Role", "ClusterRole") and thing["metadata"]["name"] in names:
            yield from thing["rules"]
