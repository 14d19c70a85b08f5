"""The API's own description: as many pages as there are, and shapes that real answers have."""

from __future__ import annotations

import enum
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NewType

import jsonschema
import pytest

from api_world import LOCAL_SOCKET, filled_service
from sample_views import NOW_S
from tidegauge.cluster.api import client
from tidegauge.cluster.api.openapi import PAGES, Schemas, openapi_document, openapi_json
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.core.wire import to_wire
from waiting import PATIENCE_S

JOB = "job_id=4711&attempt=0"
ASKED = {
    "/api/v1/job": JOB,
    "/api/v1/node": "node_id=node0",
    "/api/v1/memory": f"{JOB}&uid=1001",
    "/api/v1/job-record": "job_id=4711",
    "/api/v1/incident": "number=1",
    "/api/v1/incidents": "all=1",
    "/api/v1/evidence": "incident=1",
    "/api/v1/profiles": f"{JOB}&uid=1001",
    "/api/v1/profile": f"{JOB}&uid=1001&rank=1",
    "/api/v1/heat-map": JOB,
    "/job": JOB,
    "/profile": f"{JOB}&uid=1001",
    "/report": "incident=1",
    "/grade": "incident=1",
    "/act": "incident=1",
    "/api/v1/acts": "incident=1",
}
"""What a page is asked here, where it needs to be told."""
FULL = {
    "/api/v1/status": "nodes", "/api/v1/nodes": "nodes", "/api/v1/jobs": "jobs", "/api/v1/overview": "jobs",
    "/api/v1/heat-map": "rows", "/api/v1/job": "ranks", "/api/v1/events": "events", "/api/v1/incidents": "incidents",
    "/api/v1/incident": "history",
    "/api/v1/incident-marks": "marks", "/api/v1/incident-changes": "changes", "/api/v1/decisions": "decisions",
    "/api/v1/evidence": "evidence", "/api/v1/memory": "ranks", "/api/v1/grades": "incidents",
    "/api/v1/ended-jobs": "jobs", "/api/v1/profiled-jobs": "jobs", "/api/v1/profiles": "profiles",
    "/api/v1/profile": "profile", "/api/v1/job-record": "incidents", "/api/v1/usage": "usage",
    "/api/v1/node-overview": "nodes", "/api/v1/node": "ranks",
}  # fmt: skip
"""The key that must hold something: an empty list fits any schema."""
DOCUMENT = openapi_document()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[CoordinatorService]:
    with filled_service(folder) as service:
        yield service


def asked(service: CoordinatorService, path: str, query: str | None = None) -> tuple[int, str, bytes]:
    """Status, type and body."""
    url = f"{service.url}{path}?{ASKED.get(path, '') if query is None else query}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return int(answer.status), str(answer.headers["Content-Type"]), bytes(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, str(error.headers["Content-Type"]), error.read()


def check(value: object, schema: Mapping[str, Any]) -> None:
    jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def test_every_page_and_form_is_described_and_none_else(service: CoordinatorService) -> None:
    assert set(PAGES) == set(service.routes())
    assert {path for path, page in PAGES.items() if page.form is not None} == set(service.forms())


@pytest.mark.parametrize("path", PAGES)
def test_a_real_answer_is_as_described(service: CoordinatorService, path: str) -> None:
    status, content_type, body = asked(service, path)
    content = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]
    assert (status, content_type) == (200, next(iter(content)))
    if content_type == "application/json":
        value = json.loads(body)
        check(value, content[content_type]["schema"])
        assert path not in FULL or value[FULL[path]]


def test_a_real_answer_to_a_form_is_as_described(service: CoordinatorService, folder: Path) -> None:
    said = DOCUMENT["paths"]["/api/v1/grades"]["post"]
    fields = {"incident": "1", "grade": "leak", "comment": "a list of losses"}
    (form,) = said["requestBody"]["content"].values()
    jsonschema.Draft202012Validator(form["schema"]).validate({**fields, "incident": 1})
    assert service.url, "it is served"
    answer = client.send(f"unix://{folder / LOCAL_SOCKET}", "/api/v1/grades", fields)
    check(answer, said["responses"]["200"]["content"]["application/json"]["schema"])
    assert [one["comment"] for one in answer["answers"]] == ["a list of losses"]


def test_a_real_answer_to_a_request_for_profiles_is_as_described(service: CoordinatorService, folder: Path) -> None:
    said = DOCUMENT["paths"]["/api/v1/profiles"]["post"]
    fields = {"job_id": "4711", "attempt": "0", "uid": "1001", "ranks": "0,1"}
    (form,) = said["requestBody"]["content"].values()
    jsonschema.Draft202012Validator(form["schema"]).validate({**fields, "attempt": 0, "uid": 1001})
    assert service.url, "it is served"
    answer = client.send(f"unix://{folder / LOCAL_SOCKET}", "/api/v1/profiles", fields)
    check(answer, said["responses"]["200"]["content"]["application/json"]["schema"])
    assert [one["rank"] for one in answer["asked"]] == [0, 1]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/api/v1/job", "", 400),
        ("/api/v1/node", "", 400),
        ("/api/v1/node", "node_id=none", 404),
        ("/api/v1/incidents", "limit=1001", 400),
        ("/api/v1/incident", "number=99", 404),
        ("/api/v1/evidence", "incident=99", 404),
        ("/report", "incident=99", 404),
        ("/grade", "incident=99", 404),
        ("/api/v1/job-record", "", 400),
        ("/api/v1/job-record", "job_id=nobodys", 404),
        ("/api/v1/ended-jobs", "ended=badly", 400),
        ("/nowhere", "x=1", 404),
    ],
)
def test_a_real_refusal_is_as_described(service: CoordinatorService, path: str, query: str, status: int) -> None:
    found, content_type, body = asked(service, path, query)
    assert (found, content_type) == (status, "application/json")
    check(json.loads(body), DOCUMENT["components"]["schemas"]["Error"])
    if path in PAGES:
        assert str(status) in DOCUMENT["paths"][path]["get"]["responses"]


@pytest.mark.parametrize("path", [path for path, page in PAGES.items() if page.parameters])
def test_bounds_are_those_of_the_route(service: CoordinatorService, path: str) -> None:
    for parameter in PAGES[path].parameters:
        most = parameter.schema.get("maximum")
        if most is not None:
            of_a_job = path == "/api/v1/evidence" and parameter.name in ("uid", "attempt")
            rest = f"{JOB}&uid=1001" if of_a_job else ASKED.get(path, "")
            others = "&".join(part for part in rest.split("&") if not part.startswith(f"{parameter.name}="))
            assert asked(service, path, f"{others}&{parameter.name}={most}")[0] in (200, 404)
            assert asked(service, path, f"{others}&{parameter.name}={most + 1}")[0] == 400


def test_a_shape_that_changed_is_noticed(service: CoordinatorService) -> None:
    schema = DOCUMENT["paths"]["/api/v1/incidents"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    answer = json.loads(asked(service, "/api/v1/incidents")[2])
    answer["incidents"][0]["opened_unix_s"] = "yesterday"
    with pytest.raises(jsonschema.ValidationError):
        check(answer, schema)


def test_the_document_is_served_and_says_its_version(service: CoordinatorService) -> None:
    assert asked(service, "/api/v1/openapi.json")[2] == openapi_json()
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_reference_leads_somewhere() -> None:
    text = openapi_json().decode()
    names = {piece.split('"', 1)[0] for piece in text.split("#/components/schemas/")[1:]}
    assert names <= DOCUMENT["components"]["schemas"].keys()


class Colour(enum.Enum):
    RED = "red"


Uid = NewType("Uid", int)


class Point(NamedTuple):
    x: float
    colour: Colour | None = None


@dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    ends: tuple[Point, Uid]
    names: Mapping[str, bool]


def test_a_schema_is_what_the_wire_writes() -> None:
    schemas = Schemas()
    form = schemas.of(Line)
    whole = {**form, "components": {"schemas": schemas.components()}}
    validator = jsonschema.Draft202012Validator(whole)
    line = Line((Point(float("inf"), Colour.RED), Point(1.5)), (Point(NOW_S), Uid(3)), {"a": True})
    validator.validate(to_wire(line))
    others: list[Any] = [{"points": []}, {**json.loads(json.dumps(to_wire(line))), "ends": [1, 2]}, []]
    for wrong in others:
        assert not validator.is_valid(wrong)


def test_openapi_schema_of_a_type_without_json_form_is_an_error() -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        Schemas().of(Path)
