"""The service as the chart starts it: head and agent come up with the rendered commands, settings, users and rights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.chart.pods import Pod, pods_in
from integration.chart.pods_here import HEAD_IP, NODE_IP, NODE_NAME, PodsHere
from integration.chart.rendering import NAMESPACE, Rendered, render, with_registry
from integration.namespaces import need_namespaces
from integration.needs import missing
from integration.service import eventually

LOOK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"


@pytest.fixture
def rendered() -> Rendered:
    return render(with_registry())


@pytest.fixture
def pods_here(tmp_path: Path, rendered: Rendered) -> Iterator[PodsHere]:
    need_namespaces()
    head = f"{rendered.one('Service', '-head')['metadata']['name']}.{NAMESPACE}.svc"
    with PodsHere(tmp_path, head, rendered.objects) as pods:
        if pods.run("setpriv", "--reuid=10001", "--clear-groups", "sh", "-c", f"exec {sys.executable} -V").returncode:
            missing(f"another user than root cannot run {sys.executable}")
        yield pods


def pod_of(rendered: Rendered, owner: str) -> Pod:
    [found] = [pod for pod in pods_in(rendered.objects) if pod.owner.startswith(owner)]
    return found


def test_head_and_agent_find_each_other_and_helm_test_says_so(pods_here: PodsHere, rendered: Rendered) -> None:
    agent = pods_here.start(pod_of(rendered, "DaemonSet/"), NODE_IP)
    assert agent.stdout is not None
    assert "waiting for the head" in agent.stdout.readline()  # agents come up first at many an installation
    head = pods_here.start(pod_of(rendered, "StatefulSet/"), HEAD_IP)

    def page(url: str) -> str:
        for pod in (agent, head):
            assert pod.poll() is None, pod.communicate()[0]
        return pods_here.run(sys.executable, "-c", LOOK, url).stdout

    assert eventually(lambda: page(f"http://{HEAD_IP}:9495/healthz"), "the head's probe answers").strip() == "ok"
    metrics = eventually(lambda: page(f"http://{NODE_IP}:9494/metrics"), "the agent's probe answers")
    assert "tidegauge_collect_success" in metrics

    def status() -> str | None:
        test = pods_here.start(pod_of(rendered, "Pod/"), HEAD_IP)
        said, _ = test.communicate(timeout=60)
        return said if test.returncode == 0 and NODE_NAME in said else None

    assert NODE_IP in eventually(status, "helm test is content")
