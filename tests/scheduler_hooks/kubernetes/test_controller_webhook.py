"""The webhook as a part of the controller: who makes its certificate, and what it knows of namespaces."""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from typing import Any

import pytest

from fakes.kube import FakeKube
from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge_exporter.metrics.families import exposition
from tidegauge_scheduler_hooks.kubernetes.controller.options import parse_options
from tidegauge_scheduler_hooks.kubernetes.controller.webhook import (
    NamedNamespaces,
    Upkeep,
    WatchedNamespaces,
    Webhook,
    reviews,
)
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, NAMESPACES, SECRETS, WEBHOOKS, ForbiddenError
from tidegauge_scheduler_hooks.ports import TemporaryError

CONFIGURATION = "tidegauge"


class Bench:
    """An API server with the empty Secret and the configuration that the chart makes, and replicas."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        webhooks = [{"name": f"{name}.tidegauge.dev", "clientConfig": {}} for name in ("pod", "namespace")]
        self.kube.put(WEBHOOKS, {"metadata": {"name": CONFIGURATION}, "webhooks": webhooks})
        self.kube.put(SECRETS, {"metadata": {"name": "webhook", "namespace": "tidegauge"}})

    def replica(self, *more: str, leads: bool) -> Upkeep:
        given = ["--namespace=tidegauge", "--probe-image=p", "--certificate-secret=webhook"]
        options = parse_options([*given, f"--webhook-configuration={CONFIGURATION}", *more])
        assert options.webhook is not None
        return Upkeep(options.webhook, options, self.kube, self.kube, leading=lambda: leads)

    @property
    def bundles(self) -> list[str | None]:
        found: Any = self.kube.peek(WEBHOOKS, None, CONFIGURATION)
        return [one["clientConfig"].get("caBundle") for one in found["webhooks"]]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_leader_makes_the_certificate_and_the_others_serve_it(bench: Bench) -> None:
    leader, other = bench.replica(leads=True), bench.replica(leads=False)
    other.keep_up()
    assert "no certificate" in (other.why_not_ready() or "")
    leader.keep_up()
    other.keep_up()
    assert leader.why_not_ready() is None
    assert other.why_not_ready() is None
    (bundle, same) = bench.bundles
    assert bundle == same
    assert bundle is not None
    secret = bench.kube.peek(SECRETS, "tidegauge", "webhook")
    assert base64.b64decode(bundle) == base64.b64decode(secret["data"]["ca.crt"])


def test_without_the_api_server_it_says_why_and_serves_what_it_had(bench: Bench) -> None:
    leader = bench.replica(leads=True)
    bench.kube.fail_next(TemporaryError("no answer"), verb="get")
    leader.keep_up()
    assert leader.why_not_ready() == "the webhook has no certificate: no answer"
    leader.keep_up()
    bench.kube.fail_next(TemporaryError("no answer"), verb="get")
    leader.keep_up()
    assert leader.why_not_ready() is None


def test_a_defect_in_one_round_does_not_end_the_upkeep(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Its thread is the only one that renews the certificate, which runs out months later."""
    leader = bench.replica(leads=True)
    bench.kube.fail_next(KeyError("metadata"), verb="get")
    leader.keep_up()
    assert "internal error" in (leader.why_not_ready() or "")
    assert "KeyError" in caplog.text
    leader.keep_up()
    assert leader.why_not_ready() is None


def test_namespaces_that_cannot_be_read_keep_nobody_from_the_certificate(bench: Bench) -> None:
    leader = bench.replica("--namespaces=lab", leads=True)
    bench.kube.fail_next(ForbiddenError("no namespaces"), verb="get", kind="Namespace")
    leader.keep_up()
    assert leader.why_not_ready() is None


def test_owners_of_pods_that_were_left_alone_are_told_at_each_upkeep(bench: Bench) -> None:
    upkeep = bench.replica(leads=False)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    upkeep.left_alone.note("team", {"ownerReferences": [owner]}, "why")
    upkeep.keep_up()
    assert [event["note"] for event in bench.kube.list(EVENTS)] == ["why"]


def test_what_a_few_namespaces_say_is_asked_for_and_of_all_watched() -> None:
    kube = FakeKube()
    kube.put(NAMESPACES, {"metadata": {"name": "lab", "labels": {PROFILE_LABEL: "auto"}}})
    some = NamedNamespaces(kube, ["lab", "gone"])
    assert some.metadata("lab") is None
    some.refresh()
    kube.fail_next(TemporaryError("no answer"))
    with pytest.raises(TemporaryError):
        some.refresh()
    for namespaces in (some, WatchedNamespaces(kube)):
        assert (namespaces.metadata("lab") or {})["labels"] == {PROFILE_LABEL: "auto"}
        assert namespaces.metadata("gone") is None


def test_reviews_are_counted_by_outcome() -> None:
    page = exposition([reviews({("injected", ""): 3, ("failed", ""): 0, ("skipped", "off"): 2})], None).body.decode()
    assert page.splitlines()[2:] == [
        'tidegauge_webhook_reviews_total{outcome="failed",reason=""} 0.0',
        'tidegauge_webhook_reviews_total{outcome="injected",reason=""} 3.0',
        'tidegauge_webhook_reviews_total{outcome="skipped",reason="off"} 2.0',
    ]


def test_taken_port_is_named_with_the_options_that_choose_another(bench: Bench, tmp_path: Path) -> None:
    owners = OwnerReader(bench.kube, {}, {})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = ["--namespace=tidegauge", "--probe-image=p", f"--certificate-dir={tmp_path}"]
        options = parse_options([*given, "--webhook-host=127.0.0.1", f"--webhook-port={port}"])
        assert options.webhook is not None
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use. ") as told:
            Webhook(options.webhook, options, bench.kube, bench.kube, owners, leading=lambda: True)
    assert str(told.value).endswith("End what listens there, or choose another by --webhook-host, --webhook-port")


def test_what_earlier_runs_needed_is_read_at_each_upkeep(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tidegauge_history.tsv"
    upkeep = bench.replica(f"--history-file={file}", leads=True)
    upkeep.keep_up()
    assert upkeep.history.sentence("team-a", "train") is None
    assert upkeep.settled, "a file that is not there yet is no problem"
    file.write_text("team-a\ttrain\tearlier runs needed less\n")
    upkeep.keep_up()
    assert upkeep.history.sentence("team-a", "train") == "earlier runs needed less"
