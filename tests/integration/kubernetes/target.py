"""The API server that a test talks to: a real one (``TIDEGAUGE_TEST_KUBECONFIG``), else the project's emulator.

Plain HTTP with the answers as they are: contract tests look at codes, reasons and raw JSON, which a client would hide.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from kube_emulator import Emulator

Object = dict[str, Any]
_Value = TypeVar("_Value")

_MADE_FOR = "tidegauge-test/namespace"
_CLUSTER_WIDE = (
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
)

WITHIN_S = 60.0
"""How long anything may take that a controller has to do."""


class Answer(NamedTuple):
    """``body`` is JSON; of a refusal a ``Status``."""

    code: int
    body: Any
    headers: Mapping[str, str]

    @property
    def refusal(self) -> tuple[int, str | None]:
        """Code and reason, as ``(409, "Conflict")``."""
        return self.code, self.body.get("reason")


class Connection:
    """Requests of one user of a kubeconfig. Every request is made on its own; nothing is repeated."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        self.server: str = cluster["server"]
        self.cluster: Object = cluster
        self._token = user.get("token")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *_tls(cluster, user, kubeconfig))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **query: str | int,
    ) -> Answer:
        """Whatever the server says; raises ``OSError`` where it says nothing."""
        request = self._request(method, path, body, content_type, headers or {}, query)
        try:
            with self._opener.open(request, timeout=60) as answer:
                return Answer(answer.status, json.loads(answer.read()), answer.headers)
        except urllib.error.HTTPError as refusal:
            with refusal:
                text = refusal.read()
            try:
                told = json.loads(text)
            except ValueError:
                told = {"message": text.decode(errors="replace")}
            return Answer(refusal.code, told, dict(refusal.headers))

    def do(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The object; raises ``AssertionError`` with the server's words if it refuses."""
        answer = self.ask(method, path, body, **options)
        assert answer.code < 300, f"{method} {path}: {answer.code} {answer.body.get('message')}"
        return answer.body

    @contextmanager
    def watch(self, path: str, **query: str | int) -> Iterator[Iterator[Object]]:
        """The events of a watch; it ends with ``timeoutSeconds`` (default: 20), or with the block."""
        query = {"watch": "true", "timeoutSeconds": 20, **query}
        request = self._request("GET", path, None, "application/json", {}, query)
        with self._opener.open(request, timeout=60) as stream:
            yield (json.loads(line) for line in stream)

    def _request(
        self, method: str, path: str, body: Any, content_type: str, headers: Mapping[str, str], query: Mapping[str, Any]
    ) -> urllib.request.Request:
        text = f"?{urllib.parse.urlencode(query)}" if query else ""
        sent = {"Accept": "application/json", "Content-Type": content_type, **headers}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(f"{self.server}{path}{text}", data=data, headers=sent, method=method)


def _named(entries: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], kubeconfig: Path) -> list[urllib.request.HTTPSHandler]:
    if not cluster["server"].startswith("https"):
        return []
    bundle = _pem(cluster, "certificate-authority", kubeconfig)
    context = ssl.create_default_context(cadata=bundle.decode() if bundle else None)
    certificate, key = _pem(user, "client-certificate", kubeconfig), _pem(user, "client-key", kubeconfig)
    if certificate and key:
        both = kubeconfig.parent / f"client-{uuid.uuid4().hex}.pem"
        both.touch(mode=0o600)
        try:
            both.write_bytes(certificate + b"\n" + key)
            context.load_cert_chain(both)
        finally:
            both.unlink()
    return [urllib.request.HTTPSHandler(context=context)]


def _pem(entry: Mapping[str, Any], name: str, kubeconfig: Path) -> bytes | None:
    """Of ``NAME-data`` or of the file that ``NAME`` names."""
    if f"{name}-data" in entry:
        return base64.b64decode(str(entry[f"{name}-data"]))
    if name in entry:
        return (kubeconfig.parent / str(entry[name])).read_bytes()
    return None


@dataclass(frozen=True)
class KubeTarget:
    """A server and its admin's kubeconfig; ``emulator`` is ``None`` for a real one."""

    kubeconfig: Path
    emulator: Emulator | None

    @cached_property
    def admin(self) -> Connection:
        return Connection(self.kubeconfig)

    @cached_property
    def has_job_controller(self) -> bool:
        """Found out by one Job, which is suspended at once."""
        with self.temporary_namespace("probe-jobs") as namespace:
            path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
            container = {"name": "main", "image": "example.org/none:1"}
            template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
            self.admin.do(
                "POST", path, {"metadata": {"name": "probe"}, "spec": {"suspend": True, "template": template}}
            )
            return self._comes_true(lambda: bool(self.admin.do("GET", f"{path}/probe")["status"].get("conditions")))

    @cached_property
    def has_scheduler(self) -> bool:
        """Found out by one pod: where there is a scheduler, it is placed, or told why not."""
        with self.temporary_namespace("probe-scheduler") as namespace:
            path = f"/api/v1/namespaces/{namespace}/pods"
            self.admin.do("POST", path, pod("probe"))
            return self._comes_true(lambda: bool(self.admin.do("GET", f"{path}/probe")["status"].get("conditions")))

    @staticmethod
    def _comes_true(look: Callable[[], bool]) -> bool:
        """Within four seconds of looks, however long the machine stands still between two of them."""
        for _ in range(80):
            if look():
                return True
            time.sleep(0.05)  # between two looks
        return False

    @contextmanager
    def temporary_namespace(self, prefix: str, labels: Mapping[str, str] | None = None) -> Iterator[str]:
        """A fresh namespace with its default ServiceAccount; all that is in it is deleted at the end, and so are the
        cluster-wide objects that carry ``for_namespace`` as a label."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.admin.do("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        try:
            answer = self.admin.ask(
                "POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}
            )
            assert answer.code in (201, 409), answer
            yield name
        finally:
            self.admin.ask("DELETE", f"/api/v1/namespaces/{name}")
            for plural in _CLUSTER_WIDE:
                self.admin.ask("DELETE", plural, labelSelector=f"{_MADE_FOR}={name}")

    def as_user(
        self,
        namespace: str,
        rules: Sequence[Mapping[str, Any]],
        *,
        folder: Path,
        cluster_wide: bool = False,
        name: str = "user",
    ) -> Path:
        """A kubeconfig for a new ServiceAccount in ``namespace`` that may do what the rules say, and no more.

        The rules are those of a Role there, or with ``cluster_wide`` of a ClusterRole, which goes with the namespace.
        """
        name = f"{name}-{uuid.uuid4().hex[:8]}"
        self.admin.do("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        self.grant(namespace, name, rules, cluster_wide=cluster_wide)
        return self.kubeconfig_of(namespace, name, folder)

    def kubeconfig_of(self, namespace: str, name: str, folder: Path) -> Path:
        """Of a ServiceAccount that is there."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 6 * 3600},
        }
        token = self.admin.do("POST", path, request)["status"]["token"]
        return self._kubeconfig_with(token, name, folder)

    def grant(
        self, namespace: str, account: str, rules: Sequence[Mapping[str, Any]], *, cluster_wide: bool = False
    ) -> str:
        """Gives a ServiceAccount more rights; the name of the role and of its binding."""
        name = f"rights-{uuid.uuid4().hex[:8]}"
        kind = "ClusterRole" if cluster_wide else "Role"
        place = f"/apis/rbac.authorization.k8s.io/v1/{'' if cluster_wide else f'namespaces/{namespace}/'}"
        metadata = {"name": name, "labels": for_namespace(namespace)}
        self.admin.do("POST", f"{place}{kind.lower()}s", {"metadata": metadata, "rules": list(rules)})
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding = {"metadata": metadata, "roleRef": reference, "subjects": [subject]}
        self.admin.do("POST", f"{place}{kind.lower()}bindings", binding)
        return name

    def _kubeconfig_with(self, token: str, name: str, folder: Path) -> Path:
        cluster = dict(self.admin.cluster)
        bundle = _pem(cluster, "certificate-authority", self.kubeconfig)
        cluster.pop("certificate-authority", None)
        if bundle is not None:
            cluster["certificate-authority-data"] = base64.b64encode(bundle).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "target", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "target", "context": {"cluster": "target", "user": name}}],
            "current-context": "target",
        }
        path = folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config), encoding="utf-8")
        return path


def eventually(
    look: Callable[[], _Value], accept: Callable[[_Value], bool] = bool, *, within_s: float = WITHIN_S
) -> _Value:
    """Looks until ``accept`` likes what is seen (by default: until it is true) and returns it.

    Raises ``AssertionError`` with the last sight after ``within_s`` seconds.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        is_last = time.monotonic() >= deadline_s  # begun after the time is over: this process may have stood still
        seen = look()
        if accept(seen):
            return seen
        assert not is_last, f"still, after {within_s} s: {json.dumps(seen, default=str)[:2000]}"
        time.sleep(0.05)  # between two looks; nothing is decided by it


def delete_and_wait(connection: Connection, path: str) -> None:
    """A definition keeps its name until all of its objects are gone."""
    connection.do("DELETE", path)
    eventually(lambda: connection.ask("GET", path).code, lambda code: code == 404)


def for_namespace(namespace: str) -> Mapping[str, str]:
    """Labels of a cluster-wide object that is to go with a test's namespace."""
    return {_MADE_FOR: namespace}


def bind(connection: Connection, pods: str, name: str) -> None:
    """As a scheduler does, to a node that is not there: nobody runs the pod, but its deletion has a grace."""
    connection.do("POST", f"{pods}/{name}/binding", binding(name, "no-such-node"))


def binding(pod: str, node: str) -> Object:
    return {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}


def evict(connection: Connection, pods: str, name: str) -> Answer:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return connection.ask("POST", f"{pods}/{name}/eviction", body)


def pod(name: str, *, spec: Mapping[str, Any] | None = None, **metadata: Any) -> Object:
    """A pod of two containers that is never restarted."""
    containers = [{"name": "one", "image": "example.org/one:1"}, {"name": "two", "image": "example.org/two:1"}]
    whole = {"restartPolicy": "Never", "containers": containers, **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": whole}
