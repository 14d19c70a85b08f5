"""For the tests of the injection: a webhook that an API server on this machine asks, and the probe's image."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tidegauge
from integration.kubernetes.chart_accounts import RELEASE, SYSTEM, ChartRelease
from integration.kubernetes.target import Connection, eventually, pod
from kube_standins.images import Image
from tidegauge.core.jobs.kubernetes import INJECTED, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import SecretCertificate, trust
from tidegauge_scheduler_hooks.kubernetes.injection.history import SubmissionHistory
from tidegauge_scheduler_hooks.kubernetes.injection.names import INSTALL_COMMAND
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import Injector, WebhookServer
from tidegauge_scheduler_hooks.kubernetes.owners import watched_kinds
from tidegauge_scheduler_hooks.kubernetes.ports import NAMESPACES

PROBE_IMAGE = "registry.example.org/tidegauge-probe:1"
ROOT = Path(__file__).parents[3]
VALUES = {"workloads": {"kinds": ["Job"]}, "rbac": {"namespaces": [SYSTEM]}}
"""Of the chart."""
SECRET = f"{RELEASE}-webhook"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Webhook:
    """Served on loopback for the pods of one namespace."""

    def __init__(self, admin: Connection, release: ChartRelease, *, history: Path | None = None) -> None:
        self.name, namespace = release.cluster_name, release.namespace
        self._admin = admin
        self._api = api = open_api(release.kubeconfig("controller"), timeout_s=60)
        self.certificate = SecretCertificate(api, namespace, SECRET, ["localhost"])
        self.history = SubmissionHistory(history)
        self.history.refresh()
        self.watches = ClientWatches(api, namespaces=[namespace])
        kinds = watched_kinds(["Job"])
        stores = {kind.resource: self.watches.store(kind.resource) for kind in kinds.values()}
        settings_of = OwnerReader(api, kinds, stores).settings_of
        self.injector = Injector(InjectionOptions(PROBE_IMAGE), self._said, self.history.sentence, settings_of)
        self.server = WebhookServer("127.0.0.1", 0, self.certificate, self.injector.answer)

    def _said(self, namespace: str) -> Mapping[str, Any]:
        said: Mapping[str, Any] = self._api.get(NAMESPACES, None, namespace)["metadata"]
        return said

    def trusted(self) -> None:
        """Tell the API server whom to trust now."""
        bundle = self.certificate.trusted
        assert bundle is not None
        trust(self._api, self.name, bundle)

    def is_asked(self, namespace: str) -> bool:
        """Whether pods there come out injected by now: a server takes a new configuration within moments."""
        return INJECTED in (dry_run(self._admin, namespace, asking("look"))["metadata"].get("annotations") or {})


@contextmanager
def serving(admin: Connection, release: ChartRelease, *, history: Path | None = None) -> Iterator[Webhook]:
    """The webhook of a release with ``VALUES``, for the pods of its own namespace, asked by the time that the block
    begins, and for its Jobs where there is a file of what earlier ones needed."""
    webhook, namespace = Webhook(admin, release, history=history), release.namespace
    webhook.certificate.maintain()
    webhook.server.start()
    try:
        configuration = _configuration(webhook.name, webhook.server.port, namespace, jobs=history is not None)
        path = f"{CONFIGURATIONS}/{webhook.name}"
        admin.do("PATCH", path, configuration, content_type="application/merge-patch+json")
        webhook.trusted()
        eventually(lambda: webhook.is_asked(namespace))
        yield webhook
    finally:
        webhook.server.stop(drain_s=5.0)
        webhook.watches.close()


def _configuration(name: str, port: int, namespace: str, *, jobs: bool) -> dict[str, Any]:
    webhook = pod_webhook(port, {"kubernetes.io/metadata.name": namespace})
    rules = [{"apiGroups": ["batch"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["jobs"]}]
    on_jobs = {**webhook, "name": "submissions.history.tidegauge.dev", "rules": rules}
    return {"metadata": {"name": name}, "webhooks": [webhook, *([on_jobs] if jobs else [])]}


def pod_webhook(port: int, namespaces: Mapping[str, str], *, trusted: bytes | None = None) -> dict[str, Any]:
    """As the chart has it, but for a URL in the place of a Service, for namespaces with these labels alone, and for a
    machine that may stand still: who is not answered in time goes on without the webhook."""
    bundle = {} if trusted is None else {"caBundle": base64.b64encode(trusted).decode()}
    return {
        "name": "pods.memory-profile.tidegauge.dev",
        "clientConfig": {"url": f"https://localhost:{port}/mutate", **bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": dict(namespaces)},
        "failurePolicy": "Ignore",
        "timeoutSeconds": 30,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def asking(name: str, *, spec: Mapping[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A pod with the label."""
    labels = {PROFILE_LABEL: "stats", **metadata.pop("labels", {})}
    return pod(name, spec=spec, labels=labels, **metadata)


def dry_run(admin: Connection, namespace: str, body: Mapping[str, Any]) -> Any:
    return admin.do("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)


def probe_image(folder: Path) -> Image:
    """The files of deploy/containers/probe.Dockerfile, at their place."""
    folder.mkdir()
    shutil.copy(ROOT / "deploy" / "containers" / "install-probe.sh", folder)
    package = Path(tidegauge.__file__).parent
    (folder / "tidegauge").mkdir()
    shutil.copy(package / "__init__.py", folder / "tidegauge")
    for part in ("core", "probe", "integrations"):
        shutil.copytree(package / part, folder / "tidegauge" / part, ignore=shutil.ignore_patterns("__pycache__"))
    return Image(INSTALL_COMMAND, str(folder), str(Path(INSTALL_COMMAND[0]).parent), user=65532)
