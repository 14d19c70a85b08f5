"""Mistakes that people make in charts, each made in an object of ours: what the checks are worth is how many they see.

The kinds are those that were tried against a real API server, which sees all but the misspelt verb.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import yaml

from integration.chart.rendering import Object

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: gauges.example.org
spec:
  group: example.org
  names: {kind: Gauge, plural: gauges, singular: gauge}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      additionalPrinterColumns:
        - {name: Level, type: string, jsonPath: .spec.level}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties:
                level: {type: string}
              x-kubernetes-validations:
                - {rule: self.level != '', message: a level is needed}
"""
"""The chart has no definition of its own; mistakes in one need one."""


GONE: Final = object()
"""In place of a value: what is there is removed."""
ADDED = "+"
"""Last part of a path: the value becomes the last of the list."""


class Mutant(NamedTuple):
    mistake: str
    kind: str
    """Of the object that it is made in, the first of this kind."""
    path: str
    """Keys and indices, with blanks between."""
    value: object = GONE


POD = "spec template spec"
CONTAINER = f"{POD} containers 0"
OPENER = f"{POD} containers 1"
KUBELETS = {"name": "pod-resources", "mountPath": "/k", "readOnly": True}
HOOK = "webhooks 0"
VERSION = "spec versions 0"
SPEC_SCHEMA = f"{VERSION} schema openAPIV3Schema properties spec"
WEBHOOK, DEFINED, BUDGET = "MutatingWebhookConfiguration", "CustomResourceDefinition", "PodDisruptionBudget"
EXEC = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
ALL_SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
ENDPOINT = "spec podMetricsEndpoints 0"

TRIED_ON_A_SERVER = (
    Mutant("a misspelt field", "DaemonSet", f"{CONTAINER} readinesProbe", {"httpGet": {"path": "/", "port": 1}}),
    Mutant("a port as text", "Service", "spec ports 0 port", "9495"),
    Mutant("no selector", "DaemonSet", "spec selector"),
    Mutant("a selector for other labels", "DaemonSet", "spec selector matchLabels x", "y"),
    Mutant("a pull policy that is none", "DaemonSet", f"{CONTAINER} imagePullPolicy", "Sometimes"),
    Mutant("a failure policy that is none", WEBHOOK, f"{HOOK} failurePolicy", "Maybe"),
    Mutant("a quantity that is none", "DaemonSet", f"{CONTAINER} resources limits memory", "12Gx"),
    Mutant("capitals in a name", "ConfigMap", "metadata name", "Bad_Name"),
    Mutant("a label with blanks", "ConfigMap", "metadata labels a", "no spaces allowed"),
    Mutant("a mount without a volume", "DaemonSet", f"{CONTAINER} volumeMounts +", {"name": "no", "mountPath": "/x"}),
    Mutant("a webhook with a short name", WEBHOOK, f"{HOOK} name", "pods"),
    Mutant("a webhook without sideEffects", WEBHOOK, f"{HOOK} sideEffects"),
    Mutant("a property without a type", DEFINED, f"{SPEC_SCHEMA} properties level type"),
    Mutant("a rule about no property", DEFINED, f"{SPEC_SCHEMA} x-kubernetes-validations 0 rule", "self.nope == 1"),
    Mutant("a definition's wrong name", DEFINED, "metadata name", "x.example.org"),
    Mutant("a misspelt printer column", DEFINED, f"{VERSION} additionalPrinterColumns 0 jsonpath", 1),
    Mutant("a misspelt verb", "ClusterRole", "rules 0 verbs", ["gett"]),
    Mutant("a version that is gone", BUDGET, "apiVersion", "policy/v1beta1"),
)

OUR_OWN = (
    Mutant("a right to delete", "ClusterRole", "rules 0 verbs +", "delete"),
    Mutant("a right to run programs in pods", "ClusterRole", "rules +", EXEC),
    Mutant("a right to all secrets", "Role", "rules +", ALL_SECRETS),
    Mutant("a webhook that blocks pods", WEBHOOK, "webhooks 1 failurePolicy", "Fail"),
    Mutant("a webhook for every namespace", WEBHOOK, f"{HOOK} namespaceSelector"),
    Mutant("a webhook for every pod", WEBHOOK, f"{HOOK} objectSelector"),
    Mutant("latest", "Deployment", f"{CONTAINER} image", "registry.example.org/gpu/tidegauge:latest"),
    Mutant("an image without a tag", "Deployment", f"{CONTAINER} image", "registry.example.org:5000/tidegauge"),
    Mutant("a controller that may be root", "Deployment", f"{POD} securityContext runAsUser", 0),
    Mutant("a root to write to", "Deployment", f"{CONTAINER} securityContext readOnlyRootFilesystem"),
    Mutant("an agent with a capability", "DaemonSet", f"{CONTAINER} securityContext capabilities add", ["SYS_PTRACE"]),
    Mutant("an agent that is root", "DaemonSet", f"{POD} securityContext runAsUser", 0),
    Mutant("an agent that may replace its opener", "DaemonSet", f"{CONTAINER} volumeMounts 0 readOnly", False),
    Mutant("an agent in a folder of the node's", "DaemonSet", f"{CONTAINER} volumeMounts +", KUBELETS),
    Mutant(
        "an opener with more capabilities", "DaemonSet", f"{OPENER} securityContext capabilities add +", "SYS_ADMIN"
    ),
    Mutant("an opener that gets more rights", "DaemonSet", f"{OPENER} securityContext allowPrivilegeEscalation"),
    Mutant("an opener with the token", "DaemonSet", f"{OPENER} volumeMounts +", {"name": "token", "mountPath": "/t"}),
    Mutant("a view of the node's disk", "DaemonSet", f"{POD} volumes 0", {"name": "config", "hostPath": {"path": "/"}}),
    Mutant("an agent with an account's token", "DaemonSet", f"{POD} automountServiceAccountToken"),
    Mutant("service links", "StatefulSet", f"{POD} enableServiceLinks"),
    Mutant("a probe of another port", "StatefulSet", f"{CONTAINER} readinessProbe httpGet port", "http"),
    Mutant("no readiness probe", "DaemonSet", f"{CONTAINER} readinessProbe"),
    Mutant("no memory limit", "Deployment", f"{CONTAINER} resources limits"),
    Mutant("a volume for nothing", "Deployment", f"{POD} volumes +", {"name": "left", "emptyDir": {}}),
    Mutant("an account that is not there", "Deployment", f"{POD} serviceAccountName", "nobody"),
    Mutant("a service before nothing", "Service", "spec selector app.kubernetes.io/component", "none"),
    Mutant("a service to a port that nobody has", "Service", "spec ports 0 targetPort", "nope"),
    Mutant("a budget for nothing", BUDGET, "spec selector matchLabels x", "y"),
    Mutant("a monitor of a port that nobody has", "PodMonitor", f"{ENDPOINT} port", "http"),
    Mutant("a misspelt field of a monitor", "PodMonitor", f"{ENDPOINT} honourLabels", True),
    Mutant("a rule without an expression", "PrometheusRule", "spec groups 0 rules 0 expr"),
    Mutant("a binding to no role", "ClusterRoleBinding", "roleRef name", "nope"),
    Mutant("a password written out", "Deployment", f"{CONTAINER} env", [{"name": "API_TOKEN", "value": "swordfish"}]),
)


def mutated(objects: Sequence[Object], mutant: Mutant) -> list[Object]:
    """A copy of the objects with the mistake in it."""
    copies = copy.deepcopy([*objects, yaml.safe_load(DEFINITION)])
    thing: Any = next(thing for thing in copies if thing["kind"] == mutant.kind)
    *way, last = mutant.path.split()
    for part in way:
        thing = thing[int(part) if isinstance(thing, list) else part]
    if last == ADDED:
        thing.append(mutant.value)
    elif mutant.value is GONE:
        del thing[last]
    else:
        thing[int(last) if isinstance(thing, list) else last] = mutant.value
    return copies
