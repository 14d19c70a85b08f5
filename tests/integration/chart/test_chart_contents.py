"""What the chart hands to the service is what the service takes: settings, command lines, labels, rules."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

import tidegauge
from integration.chart.checks import problems
from integration.chart.pods import pods_in
from integration.chart.rendering import CHART, NAMESPACE, RELEASE, ROOT, Rendered, render, values_of, with_registry
from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge.settings import Settings
from tidegauge_scheduler_hooks.kubernetes.controller.options import Options, parse_options
from tidegauge_scheduler_hooks.kubernetes.nri import __main__ as nri
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS

AGENTS_MODULES = ("agent_service", "agent_care", "stand_in", "supervisor", "node_command", "engine_tls")
"""Of the engine, beside the agent's own code."""
OBSERVABILITY = ROOT / "deploy" / "observability"


@pytest.fixture(scope="module")
def least() -> Rendered:
    return render(with_registry())


@pytest.fixture(scope="module")
def full() -> Rendered:
    return render(values_of(CHART / "ci" / "full-values.yaml"))


def settings(rendered: Rendered, component: str = "head") -> Settings:
    """As the component reads them."""
    kind = {"head": "StatefulSet", "agent": "DaemonSet"}[component]
    volumes = rendered.one(kind)["spec"]["template"]["spec"]["volumes"]
    [name] = [volume["configMap"]["name"] for volume in volumes if volume["name"] == "config"]
    [data] = [o["data"] for o in rendered.objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == name]
    return Settings(**yaml.safe_load(data["config.yaml"]))


def options(rendered: Rendered) -> Options:
    container = rendered.one("Deployment", "-controller")["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "tidegauge_scheduler_hooks.kubernetes.controller"]
    return parse_options(container["args"])


def test_the_service_takes_its_settings(full: Rendered) -> None:
    found = settings(full)
    assert (found.cluster, found.listen_host, found.slurm, found.kubernetes) == ("h200-north", "0.0.0.0", "off", "on")
    assert found.poll_period_s == 1
    assert found.public_url == "https://tidegauge.example.org"
    assert found.policy_file == Path("/etc/tidegauge/policy/policy.yaml")
    assert found.kubernetes_requeue == "all"
    assert found.kubernetes_shared_gpu_replicas == 4


def test_head_and_controller_mean_the_same_lease(least: Rendered) -> None:
    assert settings(least).kubernetes_controller == f"{NAMESPACE}/{options(least).lease}"
    role = least.one("Role", "tidegauge-controller")
    names = {name for rule in role["rules"] for name in rule.get("resourceNames", ()) if "leases" in rule["resources"]}
    assert names == {options(least).lease}


def test_the_controller_takes_its_command_line(full: Rendered) -> None:
    found = options(full)
    assert (found.namespace, found.namespaces) == (NAMESPACE, None)
    assert found.webhook is not None
    assert found.webhook.injection.shared_gpu_replicas == 4
    assert found.webhook.injection.probe_resources is not None
    assert found.webhook.service_name == full.one("Service", "-webhook")["metadata"]["name"]
    assert found.webhook.configuration == full.one("MutatingWebhookConfiguration")["metadata"]["name"]
    assert found.webhook.certificate_secret == full.one("Secret", "-webhook")["metadata"]["name"]


def test_rates_and_spread_of_the_controller_are_values(least: Rendered) -> None:
    spread = [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}]
    said = render(with_registry(controller={"apiQps": 50, "apiBurst": 90, "topologySpreadConstraints": spread}))
    assert [(options(one).api_qps, options(one).api_burst) for one in (least, said)] == [(20, 40), (50, 90)]
    pods = [one.one("Deployment", "-controller")["spec"]["template"] for one in (least, said)]
    assert pods[1]["spec"]["topologySpreadConstraints"] == spread
    [by_default] = pods[0]["spec"]["topologySpreadConstraints"]
    assert by_default["topologyKey"] == "kubernetes.io/hostname"
    assert by_default["labelSelector"]["matchLabels"].items() <= pods[0]["metadata"]["labels"].items()


def test_a_pod_is_asked_about_once_as_the_webhook_answers_once(least: Rendered) -> None:
    hooks = least.one("MutatingWebhookConfiguration")["webhooks"]
    assert {hook.get("reinvocationPolicy", "Never") for hook in hooks} == {"Never"}


def test_who_submits_a_workload_hears_of_its_earlier_runs_only_where_that_is_wanted(
    full: Rendered, least: Rendered
) -> None:
    webhook = options(full).webhook
    assert webhook is not None
    assert webhook.history_file is not None
    controller = full.one("Deployment", "-controller")["spec"]["template"]["spec"]
    (volume,) = [one for one in controller["volumes"] if one["name"] == "history"]
    assert volume["configMap"] == {"name": "gpu-history", "optional": True}
    (mount,) = [one for one in controller["containers"][0]["volumeMounts"] if one["name"] == "history"]
    assert Path(mount["mountPath"]) == webhook.history_file.parent
    hooks = {hook["name"]: hook for hook in full.one("MutatingWebhookConfiguration")["webhooks"]}
    hook = hooks["submissions.history.tidegauge.dev"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 1)
    asked = {(rule["apiGroups"][0], rule["resources"][0]) for rule in hook["rules"]}
    assert asked == {(kind.resource.group, kind.resource.plural) for kind in KINDS.values()}

    none = options(least).webhook
    assert none is not None
    assert none.history_file is None
    assert len(least.one("MutatingWebhookConfiguration")["webhooks"]) == 2


def test_kueues_check_is_answered_only_where_that_is_wanted(full: Rendered, least: Rendered) -> None:
    assert options(least).memory_check is None
    assert not {
        what for _, what, _ in rights(least) if what.partition(".")[0] in ("admissionchecks", "resourceflavors")
    }
    check = options(full).memory_check
    assert check is not None
    assert (check.rejects, check.within_s) == (True, 60.0)
    assert check.needs_file is not None
    controller = full.one("Deployment", "-controller")["spec"]["template"]["spec"]
    (volume,) = [one for one in controller["volumes"] if one["name"] == "needs"]
    assert volume["configMap"] == {"name": "gpu-needs", "optional": True}
    (mount,) = [one for one in controller["containers"][0]["volumeMounts"] if one["name"] == "needs"]
    assert Path(mount["mountPath"]) == check.needs_file.parent
    changes = {(who, what) for who, what, verb in rights(full) if what.startswith(("admissionchecks", "workloads/"))}
    assert {who for who, _ in changes} == {"controller"}


def test_teams_are_heeded_only_where_that_is_wanted(full: Rendered, least: Rendered) -> None:
    for rendered, wanted in ((full, True), (least, False)):
        assert options(rendered).memory_policies is wanted
        assert settings(rendered).kubernetes_memory_policies is wanted
        given = {(who, verb) for who, what, verb in rights(rendered) if what == "memorypolicies.tidegauge.dev"}
        assert given == (
            {(who, verb) for who in ("head", "controller") for verb in ("list", "watch")} if wanted else set()
        )


def test_nodes_are_told_of_only_where_that_is_wanted(full: Rendered, least: Rendered) -> None:
    for rendered, wanted in ((full, True), (least, False)):
        assert settings(rendered).kubernetes_node_conditions is wanted
        given = {(who, what, verb) for who, what, verb in rights(rendered) if what.startswith("nodes")}
        assert given == ({("head", "nodes", "get"), ("head", "nodes/status", "patch")} if wanted else set())


@pytest.mark.parametrize(
    ("values", "says"),
    [({"rbac": {"namespaces": ["team-a"]}}, "wait for an answer for ever"),
     ({"controller": {"enabled": False}, "injection": {"mode": "none"}}, "needs the controller")],
)  # fmt: skip
def test_kueues_check_is_refused_where_nobody_would_answer(values: dict[str, Any], says: str) -> None:
    with pytest.raises(helm_python.HelmError, match=says):
        render(with_registry(kueueCheck={"enabled": True}, **values))


@pytest.mark.parametrize("site", ["cert-manager", "given-certificate"])
def test_a_certificate_that_others_make_is_mounted(site: str) -> None:
    found = options(render(values_of(CHART / "ci" / f"{site}-values.yaml"))).webhook
    assert found is not None
    assert (found.certificate_dir, found.certificate_secret) == (Path("/etc/tidegauge/certificates"), None)


def test_without_a_webhook_none_is_served_and_nothing_is_registered() -> None:
    rendered = render(with_registry(injection={"mode": "none"}))
    assert options(rendered).webhook is None
    assert not [o for o in rendered.objects if o["kind"] == "MutatingWebhookConfiguration"]
    assert not [o for o in rendered.objects if o["kind"] == "ClusterRole" and o["metadata"]["name"].endswith("webhook")]


def test_with_nri_the_runtime_is_asked_and_nothing_is_registered() -> None:
    rendered = render(values_of(CHART / "ci" / "nri-values.yaml"))
    assert options(rendered).webhook is None
    assert not [o for o in rendered.objects if o["kind"].startswith("Mutating")]
    containers = rendered.one("DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert [one["name"] for one in containers] == ["agent", "opener", "nri"]
    assert containers[2]["image"] == containers[0]["image"]
    found = nri.options(containers[2]["args"])
    places = {mount["mountPath"] for mount in containers[2]["volumeMounts"]}
    assert {str(found.socket.parent), str(found.store)} == places
    assert found.namespace == [("team-a", "auto")]
    assert found.exclude == ["kube-system", NAMESPACE]


def test_agents_have_the_image_of_watched_pods_pulled() -> None:
    rendered = render(values_of(CHART / "ci" / "full-values.yaml"))
    webhook = options(rendered).webhook
    assert webhook is not None
    [keeps] = [
        one for one in rendered.one("DaemonSet")["spec"]["template"]["spec"]["containers"]
        if one["name"] == "probe-image"
    ]  # fmt: skip
    assert keeps["image"] == webhook.injection.probe_image


def test_namespaces_bound_all_of_it() -> None:
    rendered = render(values_of(CHART / "ci" / "namespaced-values.yaml"))
    assert options(rendered).namespaces == ("team-a", "team-b")
    assert settings(rendered).kubernetes_namespaces == "team-a,team-b"
    wide = [o["metadata"]["name"] for o in rendered.objects if o["kind"] == "ClusterRole"]
    assert {name.rpartition("-")[2] for name in wide} == {"webhook", "logins", "reader"}
    role = rendered.one("ClusterRole", "-webhook")
    assert [(rule["resources"], rule["resourceNames"]) for rule in role["rules"]] == [
        (["namespaces"], ["team-a", "team-b"])
    ]
    for hook in rendered.one("MutatingWebhookConfiguration")["webhooks"]:
        rule = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
        assert rule in hook["namespaceSelector"]["matchExpressions"]


def test_pods_that_say_it_and_namespaces_that_say_it_are_never_asked_about_twice(least: Rendered) -> None:
    hooks = {hook["name"].partition(".")[0]: hook for hook in least.one("MutatingWebhookConfiguration")["webhooks"]}
    on_pod = [(rule["key"], rule["operator"]) for rule in hooks["pods"]["objectSelector"]["matchExpressions"]]
    on_other = [(rule["key"], rule["operator"]) for rule in hooks["namespaces"]["objectSelector"]["matchExpressions"]]
    assert on_pod == [(PROFILE_LABEL, "Exists"), (PROFILE_LABEL, "NotIn")]
    assert on_other == [(PROFILE_LABEL, "DoesNotExist")]
    for hook in hooks.values():
        out = [
            r
            for r in hook["namespaceSelector"]["matchExpressions"]
            if r["operator"] == "NotIn" and "/metadata" in r["key"]
        ]
        assert [rule["values"] for rule in out] == [["kube-system", NAMESPACE]]


WORKLOADS = {"jobs", "jobsets", "trainjobs", "pytorchjobs", "rayjobs", "workloads", "pods", "pods/status"}


@pytest.mark.parametrize(
    ("switched_on", "head", "controller"),
    [
        ({}, set(), set()),
        ({"actions": True}, WORKLOADS - {"pods", "pods/status"}, WORKLOADS - {"pods", "pods/status"}),
        ({"podConditions": True}, WORKLOADS - {"pods", "pods/status", "workloads"}, {"pods/status"}),
        (
            {"actions": True, "podConditions": True},
            WORKLOADS - {"pods", "pods/status"},
            WORKLOADS - {"pods"},
        ),
    ],
    ids=["by default", "actions", "conditions", "both"],
)
def test_roles_change_workloads_and_pods_only_where_that_is_switched_on(
    switched_on: dict[str, bool], head: set[str], controller: set[str]
) -> None:
    given = rights(render(with_registry(workloads=switched_on)))
    changes = {
        (who, resource.partition(".")[0])
        for who, resource, verb in given
        if verb not in ("get", "list", "watch") and resource.partition(".")[0] in WORKLOADS
    }
    assert {what for who, what in changes if who == "head"} == head
    assert {what for who, what in changes if who == "controller"} == controller


def test_controller_is_told_whether_it_marks_pods(least: Rendered, full: Rendered) -> None:
    def arguments(rendered: Rendered) -> list[str]:
        found: list[str] = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
        return found

    assert "--no-pod-conditions" in arguments(least)
    assert "--no-pod-conditions" not in arguments(full)


def test_chart_grants_create_of_events_incidents_and_reviews_alone(least: Rendered, full: Rendered) -> None:
    def creates(rendered: Rendered) -> set[str]:
        roles = [o for o in rendered.objects if o["kind"] == "ClusterRole"]
        return {r for role in roles for rule in role["rules"] if "create" in rule["verbs"] for r in rule["resources"]}

    reviews = {"tokenreviews", "subjectaccessreviews"}
    assert creates(least) == creates(full) == {"events", "memoryincidents"} | reviews


def test_a_token_is_made_and_another_one_for_every_site(least: Rendered) -> None:
    def token(rendered: Rendered) -> str:
        return base64.b64decode(rendered.one("Secret", "-token")["data"]["token"]).decode()

    assert re.fullmatch(r"[A-Za-z0-9]{64}", token(least))
    assert token(least) != token(render(with_registry()))


def test_a_token_of_the_sites_own_is_used_everywhere() -> None:
    rendered = render(with_registry(head={"token": {"existingSecret": "mine", "key": "value"}}))
    assert not [o for o in rendered.objects if o["kind"] == "Secret" and o["metadata"]["name"].endswith("-token")]
    named = {
        v["secret"]["secretName"] for pod in pods_in(rendered.objects) for v in pod.spec["volumes"] if "secret" in v
    }
    assert named == {"mine"}
    assert (
        "/etc/tidegauge/token/value" in rendered.one("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"]
    )


POLICY = {"version": 1, "mode": "observe"}


@pytest.mark.parametrize(
    ("values", "agents_are_new"),
    [
        ({"cluster": "b"}, True),
        ({"settings": {"poll_period_s": 2}}, True),
        ({"settings": {"slack_channel": "#gpu", "contact": "on-call", "keep_jobs_days": 100}}, False),
        ({"publicUrl": "https://tidegauge.example.org"}, False),
        ({"workloads": {"requeue": "all"}}, False),
        ({"policy": POLICY}, False),
    ],
)
def test_a_change_of_settings_makes_new_pods_of_those_who_read_them(
    least: Rendered, values: dict[str, Any], agents_are_new: bool
) -> None:
    changed = render(with_registry(**values))
    assert annotations_of(changed, "StatefulSet") != annotations_of(least, "StatefulSet")
    assert (annotations_of(changed, "DaemonSet") != annotations_of(least, "DaemonSet")) is agents_are_new


def annotations_of(rendered: Rendered, kind: str) -> Any:
    return rendered.one(kind)["spec"]["template"]["metadata"]["annotations"]


def test_a_change_of_the_policy_makes_no_new_pods_and_it_may_be_text_or_not() -> None:
    first, second = (
        render(with_registry(policy=policy, workloads={"actions": True}))
        for policy in (POLICY, yaml.safe_dump(POLICY | {"mode": "act"}))
    )
    for kind in ("DaemonSet", "StatefulSet"):
        assert annotations_of(first, kind) == annotations_of(second, kind)
    texts = [one.one("ConfigMap", "-policy")["data"]["policy.yaml"] for one in (first, second)]
    assert [yaml.safe_load(text) for text in texts] == [POLICY, POLICY | {"mode": "act"}]


def test_agents_read_no_setting_that_is_left_out_of_theirs(full: Rendered) -> None:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    [heads] = re.findall(r'\$heads := "(.+)"', helpers)
    tidegauge_dir = Path(tidegauge.__file__).parent
    engine = tidegauge_dir / "cluster" / "ray_service"
    code = [*tidegauge_dir.glob("agent/**/*.py"), *(engine / f"{name}.py" for name in AGENTS_MODULES)]
    read = {name for path in code for name in re.findall(r"\bsettings\.(\w+)", path.read_text(encoding="utf-8"))}
    left_out = {name for name in Settings.model_fields if re.match(heads, name)}
    assert read & set(Settings.model_fields) > {"cluster", "linger_s", "opener_socket"}
    assert read & left_out == set()
    agents, head = settings(full, "agent"), settings(full)
    assert {name for name in Settings.model_fields if getattr(agents, name) != getattr(head, name)} <= left_out
    assert agents.policy_file is None


@pytest.mark.parametrize(("interval", "timeout"), [("15s", "5s"), ("1m", "5s"), ("3s", None)])
def test_no_scrape_may_take_longer_than_the_time_to_the_next(interval: str, timeout: str | None) -> None:
    monitors = {"enabled": True, "interval": interval}
    objects = render(with_registry(monitoring={"monitors": monitors})).objects
    found = {
        endpoint.get("scrapeTimeout")
        for thing in objects
        if thing["kind"] in ("PodMonitor", "ServiceMonitor")
        for endpoint in thing["spec"].get("podMetricsEndpoints", thing["spec"].get("endpoints"))
    }
    assert found == {timeout}


def test_a_sites_own_labels_and_objects_are_part_of_the_release(least: Rendered) -> None:
    own = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-site"},
        "data": {"a": "b"},
    }
    rendered = render(with_registry(commonLabels={"team": "gpu"}, extraObjects=[own], revisionHistoryLimit=2))
    assert problems(rendered.objects, "1.33") == []
    ours = [thing for thing in rendered.objects if thing["metadata"]["name"] != f"{RELEASE}-site"]
    assert len(ours) == len(rendered.objects) - 1 == len(least.objects)
    labels = [thing["metadata"]["labels"] for thing in ours]
    labels += [pod.labels for pod in pods_in(ours) if not pod.owner.startswith("Pod/")]
    assert {one.get("team") for one in labels} == {"gpu"}
    kinds = ("DaemonSet", "StatefulSet", "Deployment")
    assert {rendered.one(kind)["spec"]["revisionHistoryLimit"] for kind in kinds} == {2}
    for kind in kinds:
        selector = rendered.one(kind)["spec"]["selector"]
        assert selector == least.one(kind)["spec"]["selector"], "which cannot be changed"


def test_one_controller_keeps_no_node_from_being_drained(least: Rendered) -> None:
    assert least.one("PodDisruptionBudget")["spec"]["minAvailable"] == 1
    alone = render(with_registry(controller={"replicas": 1})).objects
    assert not [thing for thing in alone if thing["kind"] == "PodDisruptionBudget"]


def images_of(rendered: Rendered) -> Mapping[str, set[str]]:
    """By the kind of what has the pods."""
    found: dict[str, set[str]] = {}
    for pod in pods_in(rendered.objects):
        found.setdefault(pod.owner.partition("/")[0], set()).update(one["image"] for one in pod.containers)
    return found


def test_digests_name_the_images(full: Rendered) -> None:
    service = {"registry.example.org/gpu/tidegauge@sha256:" + "0123456789abcdef" * 4}
    agents = {"registry.example.org/gpu/tidegauge-agent@sha256:" + "fedcba9876543210" * 4}
    agents.add(f"registry.example.org/gpu/tidegauge-probe:{tidegauge.__version__}")
    assert images_of(full) == {"DaemonSet": agents, "StatefulSet": service, "Deployment": service, "Pod": service}


def test_a_registry_for_all_of_a_parent_chart_wins() -> None:
    rendered = render(with_registry() | {"global": {"imageRegistry": "mirror.example.org"}})
    assert {image for images in images_of(rendered).values() for image in images} == {
        f"mirror.example.org/{name}:{tidegauge.__version__}"
        for name in ("tidegauge", "tidegauge-agent", "tidegauge-probe")
    }


def test_every_target_has_the_labels_that_rules_and_dashboards_rest_on(full: Rendered) -> None:
    components = set()
    for thing in full.objects:
        for endpoint in thing.get("spec", {}).get("podMetricsEndpoints", thing.get("spec", {}).get("endpoints", ())):
            assert endpoint["honorLabels"] is True
            given = {rule["targetLabel"]: rule for rule in endpoint["relabelings"] if rule["action"] == "replace"}
            assert set(given) == {"job", "component", "cluster", "hostname", "instance"}
            assert (given["job"]["replacement"], given["cluster"]["replacement"]) == ("tidegauge", "h200-north")
            components.add(given["component"]["replacement"])
    rules = (OBSERVABILITY / "prometheus" / "rules" / "tidegauge-alerts.yml").read_text(encoding="utf-8")
    assert set(re.findall(r'up\{job="tidegauge",component="(\w+)"\}', rules)) <= components


def test_rules_are_the_projects_own_with_the_sites_addresses(full: Rendered) -> None:
    spec = full.one("PrometheusRule", "-alerts")["spec"]
    own = (OBSERVABILITY / "prometheus" / "rules" / "tidegauge-alerts.yml").read_text(encoding="utf-8")
    runbooks = "https://wiki.example.org/tidegauge-runbooks.html"
    own = own.replace("http://localhost:9090/consoles/tidegauge-runbooks.html", runbooks)
    own = own.replace("http://localhost:9495", "https://tidegauge.example.org")
    wanted = yaml.safe_load(own.replace("http://localhost:3000", "https://grafana.example.org"))
    namespace = full.one("PrometheusRule", "-alerts")["metadata"]["namespace"]
    for rule in (rule for group in wanted["groups"] for rule in group["rules"]):
        if "tidegauge_component" in rule["labels"]:  # the operator's AlertmanagerConfig gets those of its namespace
            rule["labels"]["namespace"] = namespace
    assert spec == wanted
    assert "{{ $labels.job_id }}" in json.dumps(spec)


def test_alerts_about_the_service_go_to_the_sites_own_receiver_and_the_watchdog_to_its_switch(full: Rendered) -> None:
    spec = full.one("AlertmanagerConfig", "-service")["spec"]
    assert spec["route"]["matchers"] == [{"name": "tidegauge_component", "value": "service", "matchType": "="}]
    [branch] = spec["route"]["routes"]
    assert branch["matchers"] == [{"name": "alertname", "value": "Watchdog", "matchType": "="}]
    receivers = {receiver["name"]: receiver for receiver in spec["receivers"]}
    assert receivers[spec["route"]["receiver"]]["slackConfigs"][0]["channel"] == "#on-call"
    assert "webhookConfigs" in receivers[branch["receiver"]]
    assert "NOBODY IS NOTIFIED" not in full.notes


def test_a_site_without_a_receiver_of_its_own_is_told_who_is_not_notified() -> None:
    rules = {"prometheusRule": {"enabled": True}}
    assert "NOBODY IS NOTIFIED WHEN THE HEAD IS DOWN" in render(with_registry(monitoring=rules)).notes
    with pytest.raises(helm_python.HelmError, match="serviceReceiver is empty"):
        render(with_registry(monitoring={**rules, "alertmanagerConfig": {"enabled": True}}))


def test_dashboards_are_the_projects_own(full: Rendered) -> None:
    found = {
        name: json.loads(text)
        for thing in full.objects
        if thing["kind"] == "ConfigMap" and thing["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in thing["data"].items()
    }
    own = (OBSERVABILITY / "grafana" / "dashboards").glob("*.json")
    assert found == {path.name: json.loads(path.read_text(encoding="utf-8")) for path in own}


def test_the_notes_say_what_to_do_next(least: Rendered, full: Rendered) -> None:
    for words in (
        "pod-security.kubernetes.io/enforce=privileged",
        f"{PROFILE_LABEL}: auto",
        "kubectl tidegauge",
        "helm -n",
    ):
        assert words in least.notes
    assert "monitoring.monitors.enabled" in least.notes
    assert "No policy is set" in least.notes
    assert "release: NAME" in full.notes
    assert f"exec {full.one('StatefulSet')['metadata']['name']}-0 -- tidegauge policy pause" in full.notes


@pytest.mark.parametrize("release", ["tidegauge", "a", "a" * 53])
def test_names_are_allowed_whatever_the_release_is_called(release: str) -> None:
    assert problems(render(with_registry(), release=release).objects, "1.33") == []


def test_the_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == tidegauge.__version__


def rights(rendered: Rendered) -> set[tuple[str, str, str]]:
    """(who, resource.group, verb) of all roles."""
    bound = {
        thing["roleRef"]["name"]: re.split("[-:]", thing["subjects"][0]["name"])[-1]
        for thing in rendered.objects
        if thing["kind"] in ("RoleBinding", "ClusterRoleBinding")
    }
    return {
        (bound.get(role["metadata"]["name"], "yours"), f"{resource}.{group}".rstrip("."), verb)
        for role in rendered.objects
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule.get("apiGroups", [""])
        for resource in rule.get("resources") or rule["nonResourceURLs"]
        for verb in rule["verbs"]
    }


def test_the_guide_lists_every_right_and_no_other(full: Rendered) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    table = page.split("with the rendered roles -->")[1].split("\n\n")[1]
    listed = set()
    for row in table.splitlines()[2:]:
        who, resources, verbs, _ = (cell.strip() for cell in row.strip("|").split("|"))
        for component in who.split(", "):
            for resource in re.findall(r"`([^`]+)`", resources):
                listed |= {(component, resource, verb) for verb in verbs.split(", ")}
    assert listed == rights(full)
