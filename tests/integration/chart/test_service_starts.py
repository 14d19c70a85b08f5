"""The service as the chart starts it: head and agent come up with the rendered commands, settings, users and rights."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import bcrypt
import pytest
import yaml

from integration.chart.pods import Pod, pods_in
from integration.chart.pods_here import HEAD_IP, NODE_IP, NODE_NAME, PodsHere
from integration.chart.rendering import CHART, NAMESPACE, Object, Rendered, render, values_of, with_registry
from integration.namespaces import need_namespaces
from integration.needs import missing
from integration.service import eventually
from tidegauge.http.tokens import make_token, token_line
from web_certificates import Authority

pytestmark = pytest.mark.timeout(400)

LOOK = """
import ssl, sys, urllib.error, urllib.request
anybodys = ssl._create_unverified_context()  # as the kubelet: it looks at no certificate
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30, context=anybodys).read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code)
"""
PASSWORD = "CANARY-password"
MAX_JOINS = 5
"""Of an agent, where head and agent share a machine that is slow."""


class Service:
    """Head and agent of a release as they come up, the agent first."""

    def __init__(self, pods: PodsHere, rendered: Rendered) -> None:
        self._pods, self._rendered = pods, rendered
        self._joins = 0
        """Those that failed."""
        self._agent = pods.start(self._pod("DaemonSet/"), NODE_IP)
        assert self._agent.stdout is not None
        assert "waiting for the head" in self._agent.stdout.readline()  # agents come up first at many an installation
        self._head = pods.start(self._pod("StatefulSet/"), HEAD_IP)

    def page(self, url: str) -> str:
        assert self._head.poll() is None, self._head.communicate()[0]
        if self._agent.poll() is not None:
            said = self._agent.communicate()[0]
            self._joins += 1
            # The head's port answers before the head does: an agent that waited for it in vain is begun again, as a
            # kubelet does. Any other end, and one too many, is none to be begun again after.
            assert "Ray did not start" in said
            assert self._joins < MAX_JOINS, said
            self._agent = self._pods.start(self._pod("DaemonSet/"), NODE_IP)
        return self._pods.run(sys.executable, "-c", LOOK, url).stdout.strip()

    def helm_test(self) -> str | None:
        test = self._pods.start(self._pod("Pod/"), HEAD_IP)
        said, _ = test.communicate(timeout=100)
        return said if test.returncode == 0 and NODE_NAME in said else None

    def _pod(self, owner: str) -> Pod:
        [found] = [pod for pod in pods_in(self._rendered.objects) if pod.owner.startswith(owner)]
        return found


@contextmanager
def started(folder: Path, rendered: Rendered) -> Iterator[Service]:
    need_namespaces()
    with PodsHere(folder, head_name(rendered), rendered.objects) as pods:
        if pods.run("setpriv", "--reuid=10001", "--clear-groups", "sh", "-c", f"exec {sys.executable} -V").returncode:
            missing(f"another user than root cannot run {sys.executable}")
        yield Service(pods, rendered)


def head_name(rendered: Rendered) -> str:
    return f"{rendered.one('Service', '-head')['metadata']['name']}.{NAMESPACE}.svc"


def test_head_and_agent_find_each_other_and_helm_test_says_so(tmp_path: Path) -> None:
    # Without logins by Kubernetes, here and below: there is no API server, without which such a head does not start.
    with started(tmp_path, render(with_registry(webAccess={"open": True}))) as service:
        head = f"http://{HEAD_IP}:9495/healthz"
        assert eventually(lambda: service.page(head), "the head's probe answers", within_s=150) == "ok"
        metrics = f"http://{NODE_IP}:9494/metrics"
        eventually(
            lambda: "tidegauge_collect_success" in service.page(metrics), "the agent's probe answers", within_s=150
        )
        assert NODE_IP in eventually(service.helm_test, "helm test is content", within_s=150)


def test_with_secrets_for_it_only_probes_and_those_with_a_name_come_in(tmp_path: Path) -> None:
    values = values_of(CHART / "ci" / "web-access-values.yaml")
    rendered = render({**values, "webAccess": {**values["webAccess"], "kubernetesLogin": False}})
    (tmp_path / "pods").mkdir()
    rendered.objects.extend(the_sites_secrets(tmp_path, head_name(rendered)))
    with started(tmp_path / "pods", rendered) as service:
        head, agent = f"https://{HEAD_IP}:9495", f"https://{NODE_IP}:9494"
        health = eventually(lambda: service.page(f"{head}/healthz"), "the head's probe answers", within_s=150)
        assert health == "ok"
        assert eventually(lambda: service.page(f"{agent}/healthz"), "the agent's probe answers", within_s=150) == "ok"
        for closed in (f"{head}/api/v1/jobs", f"{agent}/metrics"):
            assert eventually(partial(service.page, closed), "an answer to somebody without a name") == "401"
        assert NODE_IP in eventually(service.helm_test, "helm test is content", within_s=150)


def the_sites_secrets(folder: Path, name: str) -> Iterator[Object]:
    """Those of ci/web-access-values.yaml that pods read."""
    authority = Authority(folder)
    pair = authority.issue("head", name)
    ca, token = authority.certificate.read_bytes(), make_token()
    users = {"prometheus": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}
    web = {
        "tls_server_config": {"cert_file": "tls.crt", "key_file": "tls.key"},
        "basic_auth_users": users,
    }
    tokens = token_line("helm-test", token)
    yield secret("tidegauge-web", {"web.yml": yaml.safe_dump(web).encode(), "api-tokens": tokens.encode()})
    certificate, key = pair.certificate.read_bytes(), pair.key.read_bytes()
    yield secret("tidegauge-web-tls", {"tls.crt": certificate, "tls.key": key, "ca.crt": ca})
    yield secret("tidegauge-test", {"token": token.encode(), "ca.crt": ca})


def secret(name: str, files: Mapping[str, bytes]) -> Object:
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}
