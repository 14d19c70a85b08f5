"""The service under soak: one real ``tidegauge up`` that tells people on a fake Slack, with a policy that warns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fakegpu.rig import Rig
from fakes.fake_slack import FakeSlack
from integration.service import Service
from soak.past import leave_past

OWNER = "ada@example.org"
CHANNEL = "#gpu-memory"
LINGER_S = 20
"""Ended ranks are forgotten six times as soon as by default: more is forgotten within the run."""
POLICY = """
version: 1
mode: warn
brakes: {warnings_before_stop: 1, min_age: 1s}
rules:
  - name: everything
    ladder:
      - {action: notify}
      - {action: notify, after: 20s}
"""


@contextmanager
def soaked_service(rig: Rig, scratch: Path) -> Iterator[tuple[Service, FakeSlack]]:
    """Up, with coordinator, agent and notifier; everything is gone afterwards."""
    service = Service(rig.environ(devices=2, total_bytes=80 << 30, state=scratch / "gpus"))
    with FakeSlack() as slack:
        slack.add_user(OWNER)
        (scratch / "users.yaml").write_text(f"root: {OWNER}\n")
        (scratch / "policy.yaml").write_text(POLICY)
        token = scratch / "slack-token"
        token.write_text(slack.token)
        token.chmod(0o600)
        service.environ |= {
            "TIDEGAUGE_SLACK_API_URL": slack.api_url,
            "TIDEGAUGE_SLACK_TOKEN_FILE": str(token),
            "TIDEGAUGE_SLACK_CHANNEL": CHANNEL,
            "TIDEGAUGE_SLACK_USERS_FILE": str(scratch / "users.yaml"),
            "TIDEGAUGE_NOTIFY_PORT": "0",
            "TIDEGAUGE_POLICY_FILE": str(scratch / "policy.yaml"),
            "TIDEGAUGE_LINGER_S": str(LINGER_S),
            "TIDEGAUGE_KEEP_SNAPSHOTS_DAYS": "0.01",
            "TIDEGAUGE_KEEP_SNAPSHOTS_GIB": "0.01",
        }
        leave_past(service.files.root)
        try:
            service.up()
            yield service, slack
        finally:
            service.close()
