"""Canaries in place of every secret of the service: after all that can go wrong with them they are where they were put.

Every address leads nowhere, so that clients meet their errors. The web's passwords and tokens are in
``tests/integration/test_web_access.py``; what mail servers, Slack and clusters answer to a wrong secret in the tests of
their clients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.service import Finished, Service, eventually
from tidegauge.osproc.processes import descendants

pytestmark = pytest.mark.timeout(400)

NOWHERE = "http://127.0.0.1:1"
SECRETS = {
    "slack_token_file": "xoxb-CANARY-slack",
    "slack_app_token_file": "xapp-CANARY-slack",
    "mail_password_file": "CANARY-mail-password",
    "grafana_token_file": "glsa_CANARY_grafana",
    "ray_jobs_token_file": "CANARY-ray-jobs-token",
    "notify_token_file": "CANARY-alertmanagers-password",
    "kubernetes_kubeconfig": "CANARY-kubernetes-token",
}
COMMANDS = (
    ("status",), ("config", "show"), ("config", "show", "--json"), ("jobs",), ("incidents",), ("policy", "log"),
    ("notify", "--user", "ada"), ("grafana", "apply"), ("up", "--json"),
)  # fmt: skip
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: CANARY-kubernetes-token}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
"""


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    folder = one.root / "secrets"
    folder.mkdir(mode=0o700)
    for setting, secret in SECRETS.items():
        file = folder / setting
        file.write_text(KUBECONFIG if setting == "kubernetes_kubeconfig" else f"{secret}\n")
        file.chmod(0o600)
        one.environ[f"TIDEGAUGE_{setting.upper()}"] = str(file)
    one.environ |= {
        "TIDEGAUGE_SLACK_API_URL": f"{NOWHERE}/api/",
        "TIDEGAUGE_SLACK_CHANNEL": "#gpu-memory",
        "TIDEGAUGE_SLACK_EMAIL_DOMAIN": "example.org",
        "TIDEGAUGE_MAIL_SERVER": "127.0.0.1:1",
        "TIDEGAUGE_MAIL_FROM": "tidegauge@example.org",
        "TIDEGAUGE_MAIL_USER": "tidegauge",
        "TIDEGAUGE_GRAFANA_URL": NOWHERE,
        "TIDEGAUGE_RAY_JOBS_ADDRESS": NOWHERE,
        "TIDEGAUGE_KUBERNETES": "on",
        "TIDEGAUGE_NOTIFY_PORT": "0",
        "TIDEGAUGE_SNAPSHOT_STORE": "s3://tidegauge:CANARY-store-password@bucket/prefix",
    }
    yield one
    one.close()


def test_no_secret_is_anywhere_but_in_its_file(service: Service) -> None:
    said = [service.up()]
    eventually(lambda: service.get("/api/v1/status")["healthy"], "the agent reports")
    engine_token = (service.files.root / "token").read_text().strip()
    words = ("CANARY", engine_token)
    said += [service.call(*command) for command in COMMANDS]
    assert "127.0.0.1" in said[COMMANDS.index(("grafana", "apply")) + 1].err, "Grafana was asked, and did not answer"
    until_s = time.monotonic() + 3.0
    while time.monotonic() < until_s:
        check_processes(service, words)
        time.sleep(0.5)
    for finished in said:
        check_said(finished, words)
    for page in ("/api/v1/status", "/api/v1/nodes", "/api/v1/policy"):
        assert not any(word in str(service.get(page)) for word in words), page
    check_files(service, words)
    assert service.call("down").code == 0
    check_files(service, words)


def check_said(finished: Finished, words: tuple[str, ...]) -> None:
    for word in words:
        assert word not in finished.out + finished.err, (finished.out + finished.err)[:3000]


def check_processes(service: Service, words: tuple[str, ...]) -> None:
    """Anybody can read command lines; environments are inherited by whatever a process starts."""
    pids = [service.record.supervisor.pid, *(one.process.pid for one in descendants(service.record.supervisor.pid))]
    for pid in pids:
        for name in ("cmdline", "comm", "environ"):
            try:
                content = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
            except OSError:
                continue
            shown = content.replace(service.environ["TIDEGAUGE_SNAPSHOT_STORE"], "") if name == "environ" else content
            assert not any(word in shown for word in words), f"{name} of {pid}: {content[:2000]}"


def check_files(service: Service, words: tuple[str, ...]) -> None:
    """All that the service wrote. The engine's token has its one file."""
    for folder, _, names in os.walk(service.files.root):
        for name in names:
            path = Path(folder) / name
            if not path.is_file() or path == service.files.root / "token":
                continue
            if path in (
                service.files.record,
                service.files.node,
            ):  # the settings as they were given, for its user alone
                assert path.stat().st_mode & 0o077 == 0
                continue
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # the service is at work: it was renamed, or is not needed any more
                continue
            for word in words:
                assert word.encode() not in content, f"{path} holds a secret"
