"""HTTP: from bytes to a request, to the verb that it is for, and back. One thread a connection, TLS or plain."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

from kube_emulator import lists, rbac, subresources
from kube_emulator.accounts import User
from kube_emulator.api import Api
from kube_emulator.errors import ApiError, bad_request, no_such_path
from kube_emulator.faults import Faults
from kube_emulator.requests import Reply, Request
from kube_emulator.resources import CORE_VERSIONS, ResourceType, group_list, version_document
from kube_emulator.selectors import named
from kube_emulator.store import StaleError, key_of

_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2-emulated", "platform": "linux/amd64"}
_MAX_BODY_BYTES = 3 << 20


class Server(ThreadingHTTPServer):
    """Answers until it is closed. ``Server`` and all its connections end within a moment."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, api: Api, faults: Faults, tls: ssl.SSLContext | None) -> None:
        self.api, self.faults = api, faults
        self._tls = tls
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.watch_generation = 0
        """Watches of an earlier generation are cut."""
        super().__init__(("127.0.0.1", port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._tls is not None:  # the handshake is left to the connection's own thread
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no errors of ours; what is one was answered with a 500."""

    def cut_watches(self) -> None:
        self.watch_generation += 1
        with self.api.store.changed:
            self.api.store.changed.notify_all()

    def cut_connections(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):  # gone already
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *arguments: Any) -> None:
        """Quiet: tests look at what clients see."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 (names that http.server looks for)

    def _answer(self) -> None:
        warnings: list[str] = []
        try:
            body = self._read_body()
            if self.server.faults.delay_s:
                time.sleep(self.server.faults.delay_s)
            failure = self.server.faults.failure(self.command, self.path)
            if failure is not None:
                raise failure
            reply = self._dispatch(body, warnings)
        except ApiError as error:
            reply = Reply(error.status, error.code, error.headers)
        except (BrokenPipeError, ConnectionError, ssl.SSLError):
            raise
        except Exception as error:
            message = f"Internal error occurred: the emulator failed: {type(error).__name__}: {error}"
            reply = Reply(ApiError(500, "InternalError", message).status, 500)
        if reply is None:
            return
        if self.command != "GET" and reply.code < 300 and self.server.faults.takes_answer():
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._send(reply, warnings)

    def _read_body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MAX_BODY_BYTES:
            self.close_connection = True
            raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {_MAX_BODY_BYTES}")
        data = self.rfile.read(length)
        if not data:
            return None
        try:
            return yaml.safe_load(data) if "yaml" in self.headers.get("Content-Type", "") else json.loads(data)
        except (ValueError, yaml.YAMLError) as error:
            raise bad_request(f"the object provided is unrecognized (must be of type Object): {error}") from None

    def _dispatch(self, body: Any, warnings: list[str]) -> Reply | None:
        """The reply; ``None`` when it was sent already (a watch)."""
        parts = urlsplit(self.path)
        user = self.server.api.accounts.user_of(self.headers.get("Authorization"))
        found = _resource_path(self.server.api, parts.path)
        if found is None:
            return self._document(parts.path, user)
        resource, namespace, name, subresource = found
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        content_type = self.headers.get("Content-Type", "").partition(";")[0]
        agent = self.headers.get("User-Agent", "unknown")
        request = Request(
            user, self.command, resource, namespace, name, subresource, query, body, content_type, agent, warnings
        )
        self._authorise(request)
        if request.verb == "watch":
            self._watch(request)
            return None
        return self._carry_out(request)

    def _authorise(self, request: Request) -> None:
        name = request.name or named(request.query.get("fieldSelector", "")) or ""
        plural, namespace = request.resource.plural, request.namespace
        if request.resource.plural == "namespaces" and request.name:
            namespace = request.name
        wanted = rbac.Attributes(
            request.verb,
            request.resource.group,
            f"{plural}/{request.subresource}" if request.subresource else plural,
            namespace,
            name,
        )
        if request.resource.kind == "SelfSubjectAccessReview":
            return
        if request.user.admin:
            return
        role = rbac.role_that_allows(self.server.api.store, request.user, wanted)
        followed = self.server.api.accounts.followed.get(request.user.name)
        if followed is not None:
            followed.setdefault(rbac.Asked(wanted, role))
        if role is None:
            raise rbac.refusal(request.user, wanted)

    def _carry_out(self, request: Request) -> Reply:
        api, verb = self.server.api, request.verb
        if request.resource.reviews:
            if verb != "create":
                raise _not_allowed()
            return subresources.review(api, request)
        if request.subresource in subresources.SUBRESOURCES:
            if verb != "create":
                raise _not_allowed()
            return subresources.SUBRESOURCES[request.subresource](api, request)
        if verb in ("update", "patch") and self.server.faults.takes_conflict(request.resource.plural, request.name):
            _touch(api, request)
        if bool(request.name) == (verb in ("create", "list", "deletecollection")):
            raise _not_allowed()
        answers = {
            "get": api.get,
            "list": api.list_objects,
            "create": api.create,
            "update": api.update,
            "patch": api.patch,
            "delete": api.delete,
            "deletecollection": api.delete_collection,
        }
        return answers[verb](request)

    def _document(self, path: str, user: User) -> Reply:
        if not rbac.path_allowed(self.server.api.store, user, path):
            raise rbac.path_refusal(user, self.command.lower(), path)
        steps = path.strip("/").split("/")
        document: Mapping[str, Any] | None = None
        if path == "/version":
            document = _VERSION
        elif path in ("/healthz", "/livez", "/readyz"):
            document = {"status": "ok"}
        elif path in ("/api", "/api/"):
            document = CORE_VERSIONS
        elif path in ("/apis", "/apis/"):
            document = group_list(self.server.api.types())
        elif steps[0] == "api" and len(steps) == 2:
            document = version_document(self.server.api.types(), "", steps[1])
        elif steps[0] == "apis" and len(steps) == 3:
            document = version_document(self.server.api.types(), steps[1], steps[2])
        if document is None:
            raise no_such_path()
        return Reply(document)

    def _send(self, reply: Reply, warnings: list[str]) -> None:
        data = json.dumps(reply.body).encode()
        self.send_response(reply.code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        for warning in warnings:
            quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
            self.send_header("Warning", f'299 - "{quoted}"')
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, request: Request) -> None:
        generation = self.server.watch_generation
        events = lists.watch(self.server.api.store, request)
        first = next(events, None)  # a refusal comes before the stream begins
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in _with_first(first, events):
            if self.server.watch_generation != generation:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if event is None:
                if self._has_more():
                    self.close_connection = True  # a watching client sends nothing more: it has gone
                    return
            else:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def _has_more(self) -> bool:
        """Whether the client said something more, or has gone."""
        poll = select.poll()  # select(2) knows no descriptor above 1,023
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0))


def _with_first(first: dict[str, Any] | None, rest: Iterator[dict[str, Any] | None]) -> Iterator[dict[str, Any] | None]:
    yield first
    yield from rest


def _not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def _resource_path(api: Api, path: str) -> tuple[ResourceType, str, str, str] | None:
    """Resource, namespace, name and subresource of a path; ``None`` for paths that are no resource's.

    Raises a 404 for a resource that is not served.
    """
    steps = [unquote(step) for step in path.strip("/").split("/")]
    if steps[0] == "api" and len(steps) > 2:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[0] == "apis" and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    resource = api.find_type(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        raise no_such_path()
    if name and resource.namespaced and not namespace:
        raise no_such_path()
    return resource, namespace, name, subresource


def _touch(api: Api, request: Request) -> None:
    """Somebody else's change: an annotation, so that the object is another version."""
    key = key_of(request.resource, request.namespace, request.name)
    while (value := api.store.get(key)) is not None:
        metadata = value["metadata"]
        annotations = {**(metadata.get("annotations") or {}), "emulator/touched": metadata["resourceVersion"]}
        try:
            api.store.update(
                key, value, cast(dict[str, Any], {**value, "metadata": {**metadata, "annotations": annotations}})
            )
            return
        except StaleError:
            continue
