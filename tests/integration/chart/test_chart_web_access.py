"""What stands before the pages of head and agents: what the chart says is what service and kubelet take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import HelmError

from integration.chart.checks import problems
from integration.chart.pods import pods_in
from integration.chart.rendering import CHART, NAMESPACE, Object, Rendered, render, values_of, with_registry
from tidegauge.settings import Settings, comma_separated

HEAD = f"gpu-memory-tidegauge-head.{NAMESPACE}.svc"
PODS = ("StatefulSet", "DaemonSet")


@pytest.fixture(scope="module")
def closed() -> Rendered:
    return render(values_of(CHART / "ci" / "web-access-values.yaml"))


def web(**values: Any) -> Rendered:
    return render(with_registry(webAccess={"existingSecret": "web", **values}))


def settings_of(rendered: Rendered) -> Settings:
    config = rendered.one("ConfigMap", "-tidegauge")["data"]["config.yaml"]
    return Settings(**yaml.safe_load(config))


def container(rendered: Rendered, kind: str) -> Any:
    return rendered.one(kind)["spec"]["template"]["spec"]["containers"][0]


def probes(rendered: Rendered) -> list[Any]:
    return [
        {how: about for how, about in probe.items() if how in ("httpGet", "tcpSocket")}
        for kind in PODS
        for name, probe in container(rendered, kind).items()
        if name.endswith("Probe")
    ]


def endpoints(rendered: Rendered) -> dict[str, Any]:
    """Of the monitors, by component."""
    found = {}
    for thing in rendered.objects:
        if thing["kind"] in ("PodMonitor", "ServiceMonitor"):
            [endpoint] = thing["spec"].get("podMetricsEndpoints") or thing["spec"]["endpoints"]
            found[thing["metadata"]["labels"]["app.kubernetes.io/component"]] = endpoint
    return found


def test_the_service_takes_files_and_names(closed: Rendered) -> None:
    folder = Path("/etc/tidegauge/web")
    found = settings_of(closed)
    assert (found.web_config_file, found.api_tokens_file) == (folder / "web.yml", folder / "api-tokens")
    assert set(comma_separated(found.api_admins)) == {"ada", "grace"}
    assert set(comma_separated(found.metrics_readers)) == {"prometheus"}


@pytest.mark.parametrize(
    ("values", "files"),
    [
        ({"files": ["web.yml"]}, (Path("/etc/tidegauge/web/web.yml"), None)),
        ({"files": ["api-tokens"], "tls": "none"}, (None, Path("/etc/tidegauge/web/api-tokens"))),
    ],
)
def test_chart_web_access_names_only_files_of_the_secret(values: dict[str, Any], files: object) -> None:
    found = settings_of(web(**values, metricsReaders=[]))
    assert (found.web_config_file, found.api_tokens_file) == files
    assert (comma_separated(found.api_admins), comma_separated(found.metrics_readers)) == ([], [])


def test_head_and_agents_have_the_secrets_as_a_whole_and_readable_by_root_and_their_group_alone(
    closed: Rendered,
) -> None:
    for kind in PODS:
        spec = closed.one(kind)["spec"]["template"]["spec"]
        [volume] = [volume for volume in spec["volumes"] if volume["name"] == "web"]
        sources = [{"secret": {"name": name}} for name in ("tidegauge-web", "tidegauge-web-tls")]
        assert volume["projected"] == {"defaultMode": 0o440, "sources": sources}
        assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"] > 0
        [mount] = [mount for mount in container(closed, kind)["volumeMounts"] if mount["name"] == "web"]
        assert mount == {"name": "web", "mountPath": "/etc/tidegauge/web", "readOnly": True}  # never a subPath


def test_no_other_pod_has_them(closed: Rendered) -> None:
    secrets = ('"tidegauge-web"', '"tidegauge-web-tls"')
    having = {
        pod.owner.partition("/")[0]
        for pod in pods_in(closed.objects)
        if any(secret in json.dumps(pod.spec) for secret in secrets)
    }
    assert having == set(PODS)


def test_probes_ask_in_the_way_that_is_answered() -> None:
    assert {probe["httpGet"].get("scheme") for probe in probes(web())} == {"HTTPS"}
    assert {probe["httpGet"].get("scheme") for probe in probes(web(tls="none"))} == {None}
    assert {probe["tcpSocket"]["port"] for probe in probes(web(tls="mutual"))} == {"api", "metrics"}
    assert len(probes(web(tls="mutual"))) == 5
    assert {probe["httpGet"]["path"] for probe in probes(web())} == {"/healthz"}


def test_prometheus_asks_head_and_agents_over_tls_and_with_what_it_was_given(closed: Rendered) -> None:
    found = endpoints(closed)
    for component in ("head", "agent"):
        assert found[component]["scheme"] == "https"
        ca = {"secret": {"name": "tidegauge-web-tls", "key": "ca.crt"}}
        assert found[component]["tlsConfig"] == {"ca": ca, "serverName": HEAD}
        assert found[component]["basicAuth"]["username"] == {"name": "tidegauge-scrape", "key": "username"}
        assert "authorization" not in found[component]
    assert not {"scheme", "tlsConfig", "basicAuth"} & set(found["controller"])


def test_a_token_and_a_servers_name_of_the_sites_own_are_taken_as_they_are() -> None:
    credentials = {"credentials": {"name": "scrape", "key": "token"}}
    monitors = {"enabled": True, "authorization": credentials, "tlsConfig": {"serverName": "gpu.example"}}
    rendered = render(with_registry(webAccess={"existingSecret": "web"}, monitoring={"monitors": monitors}))
    agent = endpoints(rendered)["agent"]
    assert (agent["authorization"], agent["tlsConfig"]) == (credentials, {"serverName": "gpu.example"})
    assert "needs a login" not in rendered.notes


def test_links_in_alerts_lead_to_tls(closed: Rendered) -> None:
    rules = json.dumps(closed.one("PrometheusRule", "-alerts")["spec"])
    assert f"https://{HEAD}:9495" in rules
    assert "http://gpu-memory" not in rules


def helm_tests(rendered: Rendered) -> list[Object]:
    return [thing for thing in rendered.objects if thing["kind"] == "Pod"]


def test_helm_test_shows_a_token_where_one_is_asked_for(closed: Rendered) -> None:
    [pod] = helm_tests(closed)
    [told] = pod["spec"]["containers"]
    assert told["args"] == ["status", "--api", f"https://{HEAD}:9495"]
    environ = {variable["name"]: variable for variable in told["env"]}
    assert environ["TIDEGAUGE_API_CA_FILE"]["value"] == "/etc/tidegauge/client/ca.crt"
    assert environ["TIDEGAUGE_API_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "tidegauge-test"
    assert "helm -n" in closed.notes


@pytest.mark.parametrize(("tls", "secret"), [("server", ""), ("mutual", "mine")])
def test_there_is_no_helm_test_that_could_only_fail(tls: str, secret: str) -> None:
    values = {"webAccess": {"existingSecret": "web", "tls": tls}, "tests": {"existingSecret": secret}}
    rendered = render(with_registry(**values))
    assert helm_tests(rendered) == []
    assert "helm -n" not in rendered.notes


@pytest.mark.parametrize("tls", ["none", "server", "mutual"])
def test_an_api_server_takes_all_of_it(tls: str) -> None:
    monitors = {"enabled": True, "tlsConfig": {"keySecret": {"name": "scrape", "key": "tls.key"}}}
    rendered = render(with_registry(webAccess={"existingSecret": "web", "tls": tls}, monitoring={"monitors": monitors}))
    assert problems(rendered.objects, "1.33", given=["Secret/web", "Secret/scrape"]) == []


def test_the_notes_tell_who_comes_in(closed: Rendered) -> None:
    assert "sees all jobs" in render(with_registry(webAccess={"open": True})).notes
    assert "kubectl tidegauge --service" in render(with_registry()).notes
    assert "sees all jobs" not in closed.notes
    assert f"--api https://{HEAD}:9495" in closed.notes
    assert "exec -it gpu-memory-tidegauge-head-0 -- tidegauge top" in closed.notes
    assert "no client certificate" in web(tls="mutual").notes
    values = with_registry(webAccess={"existingSecret": "web"}, monitoring={"monitors": {"enabled": True}})
    assert "Prometheus needs a login" in render(values).notes


def test_without_a_secret_nothing_of_it_is_there() -> None:
    rendered = render(with_registry(webAccess={"admins": ["ada"], "files": ["web.yml"], "tls": "mutual"}))
    found = settings_of(rendered)
    assert (found.web_config_file, found.api_tokens_file) == (None, None)
    assert "/etc/tidegauge/web" not in json.dumps(rendered.objects)
    assert {probe["httpGet"].get("scheme") for probe in probes(rendered)} == {None}


@pytest.mark.parametrize("namespaces", [[], ["team-a"]])
def test_logins_by_kubernetes_need_no_secret_and_the_right_to_review_tokens(namespaces: list[str]) -> None:
    admins = ["ada", "group:gpu-admins", "system:serviceaccount:ops:cron"]
    values = {"kubernetesLogin": True, "kubernetesLoginAudience": "tidegauge", "admins": admins}
    rendered = render(with_registry(webAccess=values, rbac={"namespaces": namespaces}))
    found = settings_of(rendered)
    assert (found.kubernetes_login, found.kubernetes_login_audience) == (True, "tidegauge")
    assert comma_separated(found.api_admins) == admins
    role = rendered.one("ClusterRole", "-logins")
    assert role["rules"] == [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ]
    binding = rendered.one("ClusterRoleBinding", "-logins")
    assert [subject["name"].endswith("-head") for subject in binding["subjects"]] == [True]
    assert "Anyone who can reach that port" not in rendered.notes
    assert problems(rendered.objects, "1.33") == []


def test_without_logins_by_kubernetes_nobody_may_review_tokens_or_comes_through_the_api_server() -> None:
    for values in ({"existingSecret": "web", "kubernetesLogin": False}, {"open": True}):
        rendered = render(with_registry(webAccess=values))
        for right in (
            "tokenreviews",
            "subjectaccessreviews",
            "services/proxy",
            "nonResourceURLs",
            "serviceAccountToken",
        ):
            assert right not in json.dumps(rendered.objects)
        assert settings_of(rendered).kubernetes_login is False


def test_by_default_the_pages_ask_for_a_name_and_only_open_says_otherwise() -> None:
    """Finding 1.4: job names, file lines and owners of all teams were there for every pod."""
    assert settings_of(render(with_registry())).kubernetes_login is True
    assert settings_of(render(with_registry(webAccess={"open": True}))).kubernetes_login is False
    for values, told in (
        ({"kubernetesLogin": False}, "webAccess.open if that is what you want"),
        ({"open": True, "existingSecret": "web"}, "leave one of them out"),
    ):
        with pytest.raises(HelmError, match=told):
            render(with_registry(webAccess=values))


def test_by_default_prometheus_shows_the_head_its_own_token_and_agents_none() -> None:
    on = {"enabled": True}
    found = endpoints(render(with_registry(monitoring={"monitors": on})))
    assert found["head"]["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert "bearerTokenFile" not in json.dumps([found["agent"], found["controller"]])
    given = {"credentials": {"name": "scrape", "key": "token"}}
    for values in (
        {"monitoring": {"monitors": {**on, "authorization": given}}},
        {"monitoring": {"monitors": on}, "webAccess": {"kubernetesLoginAudience": "tidegauge"}},
        {"monitoring": {"monitors": on}, "webAccess": {"open": True}},
    ):
        assert "bearerTokenFile" not in json.dumps(render(with_registry(**values)).objects)
    reader = render(with_registry()).one("ClusterRole", "-metrics-reader")
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


def test_by_default_helm_test_shows_a_token_of_its_own_for_the_audience_that_is_asked_for() -> None:
    [pod] = helm_tests(render(with_registry(webAccess={"kubernetesLoginAudience": "tidegauge"})))
    [volume] = [one for one in pod["spec"]["volumes"] if one["name"] == "login"]
    token = {"path": "token", "expirationSeconds": 600, "audience": "tidegauge"}
    assert volume["projected"]["sources"] == [{"serviceAccountToken": token}]
    environ = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert environ["TIDEGAUGE_API_TOKEN_FILE"] == "/etc/tidegauge/login/token"
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_users_of_the_cluster_reach_that_one_port_through_the_api_server() -> None:
    rendered = render(with_registry(webAccess={"existingSecret": "web"}))
    [rule] = rendered.one("Role", "-kubectl")["rules"]
    assert rule["resourceNames"] == ["https:gpu-memory-tidegauge-head:api"]
    assert (rule["resources"], rule["verbs"]) == (["services/proxy"], ["get", "create"])
    [subject] = rendered.one("RoleBinding", "-kubectl")["subjects"]
    assert (subject["kind"], subject["name"]) == ("Group", "system:authenticated")
    none = render(with_registry(webAccess={"kubectlGroups": []}))
    assert "services/proxy" not in json.dumps(none.objects)


INGRESS = {"enabled": True, "host": "gpu.example.org", "className": "nginx", "tlsSecret": "gpu-tls"}
ROUTE = {"enabled": True, "parentRefs": [{"name": "gate", "namespace": "edge"}], "hostnames": ["gpu.example.net"]}


def test_an_ingress_and_a_route_lead_to_the_pages_alone_and_public_url_follows() -> None:
    rendered = render(with_registry(head={"ingress": INGRESS, "httpRoute": ROUTE}))
    assert problems(rendered.objects, "1.33") == []
    [rule] = rendered.one("Ingress")["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert (rule["host"], path["backend"]["service"]["port"]) == ("gpu.example.org", {"name": "api"})
    assert rendered.one("Ingress")["spec"]["tls"] == [{"hosts": ["gpu.example.org"], "secretName": "gpu-tls"}]
    [rule] = rendered.one("HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "gpu-memory-tidegauge-head", "port": 9495}]
    assert settings_of(rendered).public_url == "https://gpu.example.org"
    assert "In a browser: https://gpu.example.org" in rendered.notes
    plain = render(with_registry(head={"ingress": {**INGRESS, "tlsSecret": ""}}))
    assert settings_of(plain).public_url == "http://gpu.example.org"
    assert settings_of(render(with_registry(head={"httpRoute": ROUTE}))).public_url == "https://gpu.example.net"
    said = render(with_registry(head={"ingress": INGRESS}, publicUrl="https://gpu.example.org:8443"))
    assert settings_of(said).public_url == "https://gpu.example.org:8443"
    kinds = {thing["kind"] for thing in render(with_registry()).objects}
    assert not kinds & {"Ingress", "HTTPRoute"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"head": {"ingress": {"enabled": True}}}, "head.ingress.enabled needs head.ingress.host"),
        ({"head": {"httpRoute": {"enabled": True, "hostnames": ["a.b"]}}}, "needs head.httpRoute.parentRefs"),
        (
            {"head": {"ingress": INGRESS}, "publicUrl": "https://else.example.org"},
            "publicUrl leads to else.example.org",
        ),
    ],
)
def test_a_way_in_that_leads_nowhere_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError, match=told):
        render(with_registry(**values))
