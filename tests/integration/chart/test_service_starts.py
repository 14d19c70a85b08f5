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

RANK = Path(__file__).parents[1] / "container_rank.py"
LOOK = """
import ssl, sys, urllib.error, urllib.request
anybodys = ssl._create_unverified_context()  # as the kubelet: it looks at no certificate
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30, context=anybodys).read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code)
"""
PASSWORD = "CANARY-password"
ADA = 4200
METRICS = f"http://{NODE_IP}:9494/metrics"


class Service:
    """Head and agent of a release as they come up, the agent first, as at many an installation."""

    def __init__(self, pods: PodsHere, rendered: Rendered) -> None:
        self._pods, self._rendered = pods, rendered
        self.parts = [pods.start(self._pod("DaemonSet/"), NODE_IP)]

    def start_head(self) -> None:
        self.parts.append(self._pods.start(self._pod("StatefulSet/"), HEAD_IP))

    def start_rank(self) -> None:
        """Of another user, in a container of its own."""
        self._pods.start_job(ADA, NODE_IP, sys.executable, str(RANK), "adas")

    def page(self, url: str, ip: str = HEAD_IP) -> str:
        for part in self.parts:
            assert part.poll() is None, part.communicate(timeout=10)[0]
        return self._pods.run(sys.executable, "-c", LOOK, url, ip=ip).stdout.strip()

    def helm_test(self) -> str | None:
        test = self._pods.start(self._pod("Pod/"), HEAD_IP)
        said, _ = test.communicate(timeout=100)
        if test.returncode != 0 or NODE_NAME not in said:
            print(f"helm test ended with {test.returncode}: {said}")  # shown with a failure
            return None
        return str(said)

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
        service.start_rank()
        eventually(
            lambda: 'job_id="adas"' in service.page(METRICS, NODE_IP), "a job is seen by the opener", within_s=150
        )
        assert 'tidegauge_collect_success{source="opener"} 1' in service.page(METRICS, NODE_IP)
        service.start_head()
        head = f"http://{HEAD_IP}:9495/healthz"
        assert eventually(lambda: service.page(head), "the head's probe answers", within_s=150) == "ok"
        assert NODE_IP in eventually(service.helm_test, "helm test is content", within_s=150)


def test_with_secrets_for_it_only_probes_and_those_with_a_name_come_in(tmp_path: Path) -> None:
    values = values_of(CHART / "ci" / "web-access-values.yaml")
    rendered = render({**values, "webAccess": {**values["webAccess"], "kubernetesLogin": False}})
    (tmp_path / "pods").mkdir()
    rendered.objects.extend(the_sites_secrets(tmp_path, head_name(rendered)))
    with started(tmp_path / "pods", rendered) as service:
        service.start_head()
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
