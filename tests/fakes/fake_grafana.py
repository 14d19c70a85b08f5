"""A Grafana on a loopback port: its classic HTTP API as far as Tidegauge uses it, with state.

Shapes and refusals are those of Grafana's documentation and of its own OpenAPI description; no real Grafana was at
hand. It is stricter than the real one: a key or a type that is not in the description is refused, nulls included.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from serving import Serving

TOKEN = "glsa_of-the-tests"
MAX_TAGS_BYTES = 500
"""``tags_length`` of Grafana's section [annotations]."""


class Reply(NamedTuple):
    """An answer; a mapping becomes JSON."""

    status: int
    body: Mapping[str, Any] | list[Any] | str
    headers: Mapping[str, str] = {}


class RefusalError(Exception):
    """Ends a request with Grafana's words."""

    def __init__(self, code: int, message: str, **more: Any) -> None:
        self.reply = Reply(code, {"message": message, **more})


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class _Folder(_Form):
    title: str = Field(min_length=1)
    uid: str = ""


class _DataSource(_Form):
    name: str = Field(min_length=1)
    type: str = Field(min_length=1)
    access: str = Field(pattern="^(proxy|direct)$")
    url: str
    uid: str = ""
    basic_auth: bool = False
    basic_auth_user: str = ""
    with_credentials: bool = False
    is_default: bool = False
    json_data: dict[str, Any] = {}


class _Save(_Form):
    dashboard: dict[str, Any]
    folder_uid: str = ""
    overwrite: bool = False
    message: str = ""


class _Annotation(_Form):
    text: str = Field(min_length=1)
    time: int
    time_end: int = 0
    tags: list[str] = []
    dashboard_uid: str = Field(default="", alias="dashboardUID")
    panel_id: int = 0


class _Patch(_Form):
    text: str = ""
    time: int = 0
    time_end: int = 0
    tags: list[str] = []


@dataclass
class FakeGrafana:
    """``instead`` is asked before a request ("GET /api/health") is looked at: the answer, if it is to be another."""

    role: str = "Admin"
    """Of the token: ``Admin``, ``Editor``, ``Viewer``."""
    schema_version: int = 0
    """Of dashboards: a save raises lower ones to it, as Grafana's migrations do."""
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    dashboards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By uid, each with ``dashboard`` and ``meta``."""
    annotations: dict[int, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Method and path of each, without the query."""
    instead: Callable[[str], Reply | None] = lambda _: None
    prefix: str = ""
    url: str = ""

    @property
    def writes(self) -> list[str]:
        return [request for request in self.requests if not request.startswith("GET ")]

    def add_dashboard(self, model: Mapping[str, Any], *, folder_uid: str = "", provisioned: bool = False) -> None:
        """As if somebody had saved it, or a file had brought it."""
        stored = {**copy.deepcopy(dict(model)), "id": len(self.dashboards) + 1, "version": 1}
        about = {"folderUid": folder_uid, "provisioned": provisioned, "version": 1}
        self.dashboards[str(model["uid"])] = {"dashboard": stored, "meta": about}

    def answer(self, method: str, path: str, query: Mapping[str, list[str]], body: Any) -> Reply:
        """Raises ``RefusalError``."""
        parts = [unquote(part) for part in path.removeprefix(f"{self.prefix}/api/").split("/")]
        for known, shape, reply in self._routes(query, body):
            if known == method and len(shape) == len(parts) and all(a in (b, "*") for a, b in zip(shape, parts)):
                return reply(parts[-1])
        raise RefusalError(404, "Not found")

    def _routes(self, query: Mapping[str, list[str]], body: Any) -> list[tuple[str, list[str], Callable[[str], Reply]]]:
        """Method, path, and what is answered, given the last part of the path."""
        by_name = {source["name"]: source for source in self.sources.values()}
        return [
            ("GET", ["health"], lambda _: Reply(200, {"commit": "0", "database": "ok", "version": "12.3.1"})),
            ("GET", ["folders", "*"], lambda uid: _known(self.folders, uid, "folder not found")),
            ("POST", ["folders"], lambda _: self._create_folder(_Folder.model_validate(body))),
            ("GET", ["datasources", "uid", "*"], lambda uid: _known(self.sources, uid, "Data source not found")),
            ("GET", ["datasources", "name", "*"], lambda name: _known(by_name, name, "Data source not found")),
            ("POST", ["datasources"], lambda _: self._create_source(_DataSource.model_validate(body))),
            (
                "PUT",
                ["datasources", "uid", "*"],
                lambda uid: self._change_source(uid, _DataSource.model_validate(body)),
            ),
            ("GET", ["dashboards", "uid", "*"], lambda uid: _known(self.dashboards, uid, "Dashboard not found")),
            ("POST", ["dashboards", "db"], lambda _: self._save(_Save.model_validate(body))),
            ("GET", ["annotations"], lambda _: self._list_annotations(query)),
            ("POST", ["annotations"], lambda _: self._annotate(_Annotation.model_validate(body))),
            ("PATCH", ["annotations", "*"], lambda id_: self._change_annotation(int(id_), _Patch.model_validate(body))),
        ]

    def refuse_by_role(self, method: str, path: str) -> None:
        """Raises ``RefusalError``: reading and writing data sources is for admins, writing anything for editors."""
        allowed = {"Admin"} if "/datasources" in path else {"Admin", "Editor"}
        if self.role not in (allowed if method != "GET" or "/datasources" in path else {"Admin", "Editor", "Viewer"}):
            raise RefusalError(403, "You'll need additional permissions to perform this action.", title="Access denied")

    def _create_folder(self, form: _Folder) -> Reply:
        if form.uid in self.folders:
            raise RefusalError(412, "the folder has been changed by someone else", status="version-mismatch")
        if any(folder["title"] == form.title for folder in self.folders.values()):
            raise RefusalError(409, "a folder with the same name already exists in the current location")
        self.folders[form.uid] = {"id": len(self.folders) + 1, "version": 1, **form.model_dump(by_alias=True)}
        return Reply(200, self.folders[form.uid])

    def _create_source(self, form: _DataSource) -> Reply:
        if any(source["name"] == form.name or source["uid"] == form.uid for source in self.sources.values()):
            raise RefusalError(409, "data source with the same name already exists")
        self.sources[form.uid] = {
            "id": len(self.sources) + 1,
            "orgId": 1,
            "readOnly": False,
            **form.model_dump(by_alias=True),
        }
        return Reply(200, {"id": 1, "message": "Datasource added", "datasource": self.sources[form.uid]})

    def _change_source(self, uid: str, form: _DataSource) -> Reply:
        if uid not in self.sources:
            raise RefusalError(404, "Data source not found")
        source = self.sources[uid]
        if source["readOnly"]:
            raise RefusalError(403, "Cannot update read-only data source")
        source.update(form.model_dump(by_alias=True))
        return Reply(200, {"message": "Datasource updated", "datasource": source})

    def _save(self, form: _Save) -> Reply:
        model = form.dashboard
        uid, stored = model.get("uid", ""), self.dashboards.get(model.get("uid", ""))
        if model.get("id") and (stored is None or model["id"] != stored["dashboard"]["id"]):
            raise RefusalError(404, "Dashboard not found", status="not-found")
        if not model.get("title"):
            raise RefusalError(400, "Dashboard title cannot be empty")
        if form.folder_uid and form.folder_uid not in self.folders:
            raise RefusalError(400, "folder not found")
        if stored is not None and stored["meta"]["provisioned"]:
            raise RefusalError(400, "Cannot save provisioned dashboard")
        if stored is not None and not form.overwrite and model.get("version") != stored["dashboard"]["version"]:
            raise RefusalError(412, "The dashboard has been changed by someone else", status="version-mismatch")
        for other, entry in self.dashboards.items():
            same = (entry["dashboard"]["title"], entry["meta"]["folderUid"]) == (model["title"], form.folder_uid)
            if same and other != uid:
                raise RefusalError(
                    412, "A dashboard with the same name in the folder already exists", status="name-exists"
                )
        version = 1 if stored is None else stored["dashboard"]["version"] + 1
        self.add_dashboard(model, folder_uid=form.folder_uid)
        self.dashboards[uid]["dashboard"]["version"] = version
        if model.get("schemaVersion", self.schema_version) < self.schema_version:
            self.dashboards[uid]["dashboard"]["schemaVersion"] = self.schema_version
        return Reply(200, {"id": 1, "uid": uid, "url": f"/d/{uid}/x", "status": "success", "version": version})

    def _annotate(self, form: _Annotation) -> Reply:
        number = len(self.annotations) + 1
        entry = {"id": number, "alertId": 0, "dashboardId": 0, "panelId": form.panel_id, "userId": 0, "newState": "",
                 "time": form.time, "timeEnd": form.time_end or form.time, "text": form.text,
                 "tags": _stored_tags(form.tags)}  # fmt: skip
        self.annotations[number] = entry
        return Reply(200, {"id": number, "message": "Annotation added"})

    def _change_annotation(self, number: int, form: _Patch) -> Reply:
        if number not in self.annotations:
            raise RefusalError(404, "Annotation not found")
        changes = form.model_dump(by_alias=True, exclude_unset=True)
        if "tags" in changes:
            changes["tags"] = _stored_tags(changes["tags"])
        self.annotations[number].update(changes)
        return Reply(200, {"message": "Annotation patched"})

    def _list_annotations(self, query: Mapping[str, list[str]]) -> Reply:
        wanted = set(query.get("tags", []))
        start, end = (int(query.get(name, ["0"])[0]) for name in ("from", "to"))
        found = [
            entry
            for entry in self.annotations.values()
            if wanted <= set(entry["tags"]) and (not end or (entry["time"] <= end and entry["timeEnd"] >= start))
        ]
        return Reply(200, found[: int(query.get("limit", ["100"])[0])])


def _known(things: Mapping[str, dict[str, Any]], key: str, message: str) -> Reply:
    if key not in things:
        raise RefusalError(404, message)
    return Reply(200, things[key])


def _stored_tags(tags: list[str]) -> list[str]:
    """As Grafana's database gives them back: taken apart at the first colon, stripped, each once."""
    written = json.dumps(tags, ensure_ascii=False, separators=(",", ":"))
    size = len(written.encode()) + 5 * sum(written.count(char) for char in "<>&")  # Go escapes these three
    if size > MAX_TAGS_BYTES:
        raise RefusalError(400, f"tags length ({size}) exceeds the maximum allowed ({MAX_TAGS_BYTES})")
    pairs = [tuple(part.strip() for part in tag.partition(":")[::2]) for tag in tags]
    return list(dict.fromkeys(f"{key}:{value}" if value else key for key, value in pairs if key))


@contextmanager
def grafana_server(**state: Any) -> Iterator[FakeGrafana]:
    """Listening until the block ends."""
    grafana = FakeGrafana(**state)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(grafana))
    server.daemon_threads = True
    grafana.url = f"http://127.0.0.1:{server.server_port}{grafana.prefix}"
    with Serving(server):
        yield grafana


def _handler(grafana: FakeGrafana) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            request = f"{self.command} {parts.path}"
            grafana.requests.append(request)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            _send(self, grafana.instead(request) or self._answer(parts.path, parse_qs(parts.query), body))

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

        def do_PATCH(self) -> None:
            self.do_GET()

        def _answer(self, path: str, query: Mapping[str, list[str]], body: bytes) -> Reply:
            try:
                if not path.endswith("/api/health"):
                    if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                        raise RefusalError(401, "Invalid API key", messageId="api-key.invalid")
                    grafana.refuse_by_role(self.command, path)
                return grafana.answer(self.command, path, query, json.loads(body) if body else None)
            except ValidationError as error:
                return Reply(400, {"message": f"bad request data: {error.errors()[0]['msg']}"})
            except RefusalError as refusal:
                return refusal.reply

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Nothing: the tests ask ``requests``."""

    return Handler


def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
    is_text = isinstance(reply.body, str)
    body = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
    handler.send_response(reply.status)
    for name, value in reply.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", "text/html" if is_text else "application/json; charset=UTF-8")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
