"""Mutating admission webhooks by URL, with real TLS. Holds on a real API server that can reach this machine, too."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.target import Connection, eventually, for_namespace, pod
from integration.server_process import free_port
from kube_emulator.certificates import ServerFiles, make_server_files

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
LABEL = "tidegauge.test/mutate"

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class AnnotatingServer:
    """A webhook that does what ``answer`` says of a review's ``request``; remembers the requests."""

    def __init__(self, folder: Path) -> None:
        self.files: ServerFiles = make_server_files(folder)
        self.requests: list[dict[str, Any]] = []
        self.answer: Answer = annotate
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(review["request"])
                response = {"uid": review["request"]["uid"], **outer.answer(review["request"])}
                head = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
                data = json.dumps({**head, "response": response}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                """Quiet."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.files.certificate, self.files.key)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}/mutate"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def bundle(self) -> str:
        return base64.b64encode(self.files.authority.read_bytes()).decode()


def annotate(request: dict[str, Any]) -> dict[str, Any]:
    path = "/metadata/annotations"
    return mutation([{"op": "add", "path": path, "value": {"seen": request["operation"]}}])


def mutation(operations: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": patch, **more}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AnnotatingServer]:
    server = AnnotatingServer(tmp_path)
    server.thread.start()
    yield server
    server.server.shutdown()
    server.server.server_close()
    server.thread.join()


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def register(admin: Connection, namespace: str) -> Iterator[Callable[..., None]]:
    """Registers a webhook for the labelled pods of the test's namespace, and waits until it is asked."""
    name = f"test-{namespace}"

    def do(url: str, bundle: str, **more: Any) -> None:
        webhook = {
            "name": "mutate.tidegauge.test",
            "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "objectSelector": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
            **more,
        }
        metadata = {"name": name, "labels": dict(for_namespace(namespace))}
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
        admin.do("POST", CONFIGURATIONS, {**kind, "metadata": metadata, "webhooks": [webhook]})

    yield do
    admin.ask("DELETE", f"{CONFIGURATIONS}/{name}")


def labelled(name: str = "a", **more: Any) -> dict[str, Any]:
    return pod(name, labels={LABEL: "1"}, **more)


def is_mutated(admin: Connection, pods: str) -> bool:
    """By a dry run: a new configuration takes a moment on a real server."""
    answer = admin.do("POST", pods, labelled("trial"), dryRun="All")
    return "seen" in (answer["metadata"].get("annotations") or {})


def test_selected_pods_are_changed_and_others_not(
    admin: Connection, pods: str, server: AnnotatingServer, register: Callable[..., None]
) -> None:
    register(server.url, server.bundle())
    eventually(lambda: is_mutated(admin, pods))
    assert admin.do("POST", pods, labelled())["metadata"]["annotations"] == {"seen": "CREATE"}
    assert "annotations" not in admin.do("POST", pods, pod("b"))["metadata"]


def test_a_review_shows_the_pod_as_it_would_be_stored_but_for_its_name(
    admin: Connection, namespace: str, pods: str, server: AnnotatingServer, register: Callable[..., None]
) -> None:
    register(server.url, server.bundle())
    eventually(lambda: is_mutated(admin, pods))
    body = labelled()
    body["metadata"] = {"generateName": "gen-", "labels": body["metadata"]["labels"]}
    admin.do("POST", pods, body)
    request = server.requests[-1]
    assert (request["kind"]["kind"], request["resource"]["resource"]) == ("Pod", "pods")
    assert (request["namespace"], request["operation"], request["dryRun"]) == (namespace, "CREATE", False)
    shown = request["object"]
    assert shown["metadata"].get("name") is None
    assert shown["spec"]["containers"][0]["terminationMessagePath"] == "/dev/termination-log"
    assert shown["spec"]["serviceAccountName"] == "default"
    assert request["userInfo"]["groups"]


def test_warnings_reach_whoever_asked(
    admin: Connection, pods: str, server: AnnotatingServer, register: Callable[..., None]
) -> None:
    server.answer = lambda request: {**annotate(request), "warnings": ["the fraction is no number"]}
    register(server.url, server.bundle())
    eventually(lambda: is_mutated(admin, pods))
    assert "the fraction is no number" in admin.ask("POST", pods, labelled()).headers["Warning"]


def test_a_denial_is_the_answer(
    admin: Connection, pods: str, server: AnnotatingServer, register: Callable[..., None]
) -> None:
    server.answer = lambda _request: {"allowed": False, "status": {"message": "not today"}}
    register(server.url, server.bundle())
    answer = eventually(lambda: admin.ask("POST", pods, labelled(), dryRun="All"), lambda seen: seen.code != 201)
    assert answer.code == 400  # a denial without a code of its own
    assert answer.body["message"] == 'admission webhook "mutate.tidegauge.test" denied the request: not today'


def test_a_patch_that_breaks_the_pod_is_refused(
    admin: Connection, pods: str, server: AnnotatingServer, register: Callable[..., None]
) -> None:
    mount = {"name": "no-such-volume", "mountPath": "/x"}
    server.answer = lambda _request: mutation(
        [{"op": "add", "path": "/spec/containers/0/volumeMounts/-", "value": mount}]
    )
    register(server.url, server.bundle())
    answer = eventually(lambda: admin.ask("POST", pods, labelled(), dryRun="All"), lambda seen: seen.code != 201)
    assert answer.refusal == (422, "Invalid")
    assert "no-such-volume" in answer.body["message"]


@pytest.mark.parametrize(("policy", "code"), [("Ignore", 201), ("Fail", 500)])
def test_a_webhook_that_is_away(
    admin: Connection, pods: str, server: AnnotatingServer, register: Callable[..., None], policy: str, code: int
) -> None:
    register(f"https://127.0.0.1:{free_port()}/mutate", server.bundle(), failurePolicy=policy)
    answer = eventually(lambda: admin.ask("POST", pods, labelled(), dryRun="All"), lambda seen: seen.code == code)
    if code == 500:
        assert 'failed calling webhook "mutate.tidegauge.test"' in answer.body["message"]


def test_a_certificate_of_somebody_else_is_not_trusted(
    admin: Connection,
    pods: str,
    server: AnnotatingServer,
    register: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = make_server_files(tmp_path_factory.mktemp("other"))
    bundle = base64.b64encode(other.authority.read_bytes()).decode()
    register(server.url, bundle, failurePolicy="Fail")
    answer = eventually(lambda: admin.ask("POST", pods, labelled(), dryRun="All"), lambda seen: seen.code != 201)
    assert answer.code == 500
    assert "certificate" in answer.body["message"]
    assert server.requests == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": "pods"},
        {"sideEffects": "Some"},
        {"clientConfig": {"url": "http://127.0.0.1:1/x"}},
        {"timeoutSeconds": 31},
        {"failurePolicy": "Perhaps"},
    ],
)
def test_a_broken_configuration_is_invalid(admin: Connection, change: dict[str, Any]) -> None:
    webhook = {
        "name": "mutate.tidegauge.test",
        "clientConfig": {"url": "https://127.0.0.1:1/x"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **change,
    }
    body = {"metadata": {"generateName": "broken-"}, "webhooks": [webhook]}
    assert admin.ask("POST", CONFIGURATIONS, body, dryRun="All").refusal == (422, "Invalid")
