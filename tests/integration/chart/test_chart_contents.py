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
from integration.chart.rendering import CHART, NAMESPACE, ROOT, Rendered, render, values_of, with_registry
from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge.settings import Settings
from tidegauge_scheduler_hooks.kubernetes.controller.options import Options, parse_options
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS

OBSERVABILITY = ROOT / "deploy" / "observability"


@pytest.fixture(scope="module")
def least() -> Rendered:
    return render(with_registry())


@pytest.fixture(scope="module")
def full() -> Rendered:
    return render(values_of(CHART / "ci" / "full-values.yaml"))


def settings(rendered: Rendered) -> Settings:
    [data] = [o["data"] for o in rendered.objects if o["kind"] == "ConfigMap" and "config.yaml" in o["data"]]
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
    assert (found.kubernetes_requeue, found.kubernetes_resubmit) == ("all", True)
    assert found.kubernetes_shared_gpu_replicas == 4


def test_head_and_controller_mean_the_same_lease(least: Rendered) -> None:
    assert settings(least).kubernetes_controller == f"{NAMESPACE}/{options(least).lease}"
    role = least.one("Role", "tidegauge-controller")
    names = {name for rule in role["rules"] for name in rule.get("resourceNames", ()) if "leases" in rule["resources"]}
    assert names == {options(least).lease}


def test_the_controller_takes_its_command_line(full: Rendered) -> None:
    found = options(full)
    assert (found.namespace, found.resubmit, found.namespaces) == (NAMESPACE, True, None)
    assert found.webhook is not None
    assert found.webhook.injection.shared_gpu_replicas == 4
    assert found.webhook.injection.probe_resources is not None
    assert found.webhook.service_name == full.one("Service", "-webhook")["metadata"]["name"]
    assert found.webhook.configuration == full.one("MutatingWebhookConfiguration")["metadata"]["name"]
    assert found.webhook.certificate_secret == full.one("Secret", "-webhook")["metadata"]["name"]


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


def test_namespaces_bound_all_of_it() -> None:
    rendered = render(values_of(CHART / "ci" / "namespaced-values.yaml"))
    assert options(rendered).namespaces == ("team-a", "team-b")
    assert settings(rendered).kubernetes_namespaces == "team-a,team-b"
    [role] = [o for o in rendered.objects if o["kind"] == "ClusterRole"]
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


def test_chart_grants_create_only_where_copies_are_wanted(least: Rendered, full: Rendered) -> None:
    def creates(rendered: Rendered) -> set[str]:
        roles = [o for o in rendered.objects if o["kind"] == "ClusterRole"]
        return {r for role in roles for rule in role["rules"] if "create" in rule["verbs"] for r in rule["resources"]}

    assert creates(least) == {"events"}
    assert creates(full) == {"events", "jobs", "jobsets"}


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


def test_a_change_of_settings_makes_new_pods_and_a_change_of_the_policy_does_not(least: Rendered) -> None:
    def annotations(rendered: Rendered) -> Any:
        return [
            rendered.one(kind)["spec"]["template"]["metadata"]["annotations"] for kind in ("DaemonSet", "StatefulSet")
        ]

    first = {"policy": "mode: observe\n"}
    assert annotations(render(with_registry(cluster="b"))) != annotations(least)
    assert annotations(render(with_registry(policy="mode: enforce\n"))) == annotations(render(with_registry(**first)))


def images_of(rendered: Rendered) -> Mapping[str, set[str]]:
    """By the kind of what has the pods."""
    found: dict[str, set[str]] = {}
    for pod in pods_in(rendered.objects):
        found.setdefault(pod.owner.partition("/")[0], set()).update(one["image"] for one in pod.containers)
    return found


def test_digests_name_the_images(full: Rendered) -> None:
    service = {"registry.example.org/gpu/tidegauge@sha256:" + "0123456789abcdef" * 4}
    agents = {"registry.example.org/gpu/tidegauge-agent@sha256:" + "fedcba9876543210" * 4}
    assert images_of(full) == {"DaemonSet": agents, "StatefulSet": service, "Deployment": service, "Pod": service}


def test_a_registry_for_all_of_a_parent_chart_wins() -> None:
    rendered = render(with_registry() | {"global": {"imageRegistry": "mirror.example.org"}})
    assert {image for images in images_of(rendered).values() for image in images} == {
        f"mirror.example.org/{name}:{tidegauge.__version__}" for name in ("tidegauge", "tidegauge-agent")
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
    for words in ("pod-security.kubernetes.io/enforce=privileged", f"{PROFILE_LABEL}: auto", "port-forward", "helm -n"):
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
        thing["roleRef"]["name"]: thing["subjects"][0]["name"].rpartition("-")[2]
        for thing in rendered.objects
        if thing["kind"] in ("RoleBinding", "ClusterRoleBinding")
    }
    return {
        (bound[role["metadata"]["name"]], f"{resource}.{group}".rstrip("."), verb)
        for role in rendered.objects
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
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
