"""Custom resources: definitions, defaults, validation, pruning, status. Holds on a real API server, too."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from integration.kubernetes.target import Connection, eventually, for_namespace

MERGE = "application/merge-patch+json"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "test.tidegauge.dev"

SPEC = {
    "type": "object",
    "properties": {
        "onLeak": {"type": "string", "enum": ["notify", "evict"], "default": "notify"},
        "n": {"type": "integer", "minimum": -5},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "port": {"x-kubernetes-int-or-string": True},
        "items": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
    },
    "x-kubernetes-validations": [{"rule": "!has(self.n) || self.n != 0", "message": "n must not be 0"}],
}
SCHEMA = {
    "type": "object",
    "properties": {"spec": SPEC, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
}


def definition(plural: str, namespace: str, schema: dict[str, Any]) -> dict[str, Any]:
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    kind = plural[:-1].capitalize()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": dict(for_namespace(namespace))},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural[:-1], "kind": kind},
            "versions": [version],
        },
    }


def unique_plural() -> str:
    return f"p{uuid.uuid4().hex[:8]}s"


@pytest.fixture
def things(admin: Connection, namespace: str) -> Iterator[str]:
    """The path of the objects of a kind of its own."""
    plural = unique_plural()
    admin.do("POST", DEFINITIONS, definition(plural, namespace, SCHEMA))
    path = f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/{plural}"
    eventually(lambda: admin.ask("GET", path).code, lambda code: code == 200)
    yield path
    admin.do("DELETE", f"{DEFINITIONS}/{plural}.{GROUP}")


def thing(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def make(admin: Connection, things: str, name: str, **spec: Any) -> Any:
    return admin.do("POST", things, typed(things, thing(name, **spec)))


def typed(things: str, body: dict[str, Any]) -> dict[str, Any]:
    kind = things.rpartition("/")[2][:-1].capitalize()
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, **body}


def test_a_definition_is_established_and_discovered(admin: Connection, things: str) -> None:
    plural = things.rpartition("/")[2]
    told = admin.do("GET", f"{DEFINITIONS}/{plural}.{GROUP}")["status"]["conditions"]
    assert {each["type"]: each["status"] for each in told}["Established"] == "True"
    found = admin.do("GET", f"/apis/{GROUP}/v1alpha1")["resources"]
    assert {plural, f"{plural}/status"} <= {each["name"] for each in found}


def test_defaults_of_the_schema_are_filled_in(admin: Connection, things: str) -> None:
    assert make(admin, things, "a", n=1)["spec"] == {"n": 1, "onLeak": "notify"}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"onLeak": "zap"}, "spec.onLeak: Unsupported value"),
        ({"n": "1"}, "spec.n"),
        ({"n": -6}, "spec.n"),
        ({"n": 0}, "n must not be 0"),
    ],
)
def test_kube_contract_custom_object_that_the_schema_forbids_is_invalid(
    admin: Connection, things: str, spec: dict[str, Any], told: str
) -> None:
    answer = admin.ask("POST", things, typed(things, thing("a", **spec)))
    assert answer.refusal == (422, "Invalid")
    assert told in answer.body["message"]


def test_unknown_fields_are_pruned_except_where_they_are_kept(admin: Connection, things: str) -> None:
    made = make(admin, things, "a", nope=1, free={"any": {"thing": 1}}, port="http", items=[{"a": "1", "b": "2"}])
    assert made["spec"] == {"free": {"any": {"thing": 1}}, "port": "http", "items": [{"a": "1"}], "onLeak": "notify"}


def test_status_has_its_own_path_and_no_part_in_the_generation(admin: Connection, things: str) -> None:
    assert "status" not in admin.do("POST", things, typed(things, {**thing("a", n=1), "status": {"x": 0}}))
    change = {"status": {"x": 1}, "spec": {"n": 5}, "metadata": {"labels": {"l": "1"}}}
    written = admin.do("PATCH", f"{things}/a/status", change, content_type=MERGE)
    assert (written["status"], written["spec"]["n"], written["metadata"]["generation"]) == ({"x": 1}, 1, 1)
    assert "labels" not in written["metadata"]
    changed = admin.do("PATCH", f"{things}/a", {"spec": {"n": 9}, "status": {"x": 2}}, content_type=MERGE)
    assert (changed["metadata"]["generation"], changed["status"]) == (2, {"x": 1})


def test_items_of_custom_kinds_repeat_the_kind(admin: Connection, things: str) -> None:
    make(admin, things, "a")
    listed = admin.do("GET", things)
    assert listed["items"][0]["apiVersion"] == f"{GROUP}/v1alpha1"
    assert listed["kind"] == f"{listed['items'][0]['kind']}List"


def test_a_put_must_name_the_version(admin: Connection, things: str) -> None:
    make(admin, things, "a")
    answer = admin.ask("PUT", f"{things}/a", typed(things, thing("a", n=2)))
    assert answer.refusal == (422, "Invalid")
    assert "metadata.resourceVersion" in answer.body["message"]


def test_strategic_patches_are_for_built_in_kinds_alone(admin: Connection, things: str) -> None:
    make(admin, things, "a")
    strategic = "application/strategic-merge-patch+json"
    assert admin.ask("PATCH", f"{things}/a", {"spec": {"n": 2}}, content_type=strategic).code == 415


def test_a_field_without_a_type_is_no_structural_schema(admin: Connection, namespace: str) -> None:
    untyped = {"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}}
    answer = admin.ask("POST", DEFINITIONS, definition(unique_plural(), namespace, untyped))
    assert answer.refusal == (422, "Invalid")
    assert "must not be empty for specified object fields" in answer.body["message"]


def test_the_name_of_a_definition_is_plural_and_group(admin: Connection, namespace: str) -> None:
    body = definition(unique_plural(), namespace, SCHEMA)
    body["metadata"]["name"] = f"other.{GROUP}"
    assert admin.ask("POST", DEFINITIONS, body).refusal == (422, "Invalid")


def test_objects_go_with_their_definition(admin: Connection, namespace: str) -> None:
    plural = unique_plural()
    path = f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/{plural}"
    body = definition(plural, namespace, SCHEMA)
    admin.do("POST", DEFINITIONS, body)
    eventually(lambda: admin.ask("GET", path).code, lambda code: code == 200)
    make(admin, path, "a")
    admin.do("DELETE", f"{DEFINITIONS}/{plural}.{GROUP}")
    eventually(lambda: admin.ask("GET", path).code, lambda code: code == 404)
    eventually(lambda: admin.ask("POST", DEFINITIONS, body).code, lambda code: code == 201)
    eventually(lambda: admin.ask("GET", path).code, lambda code: code == 200)
    assert admin.do("GET", path)["items"] == []
    admin.do("DELETE", f"{DEFINITIONS}/{plural}.{GROUP}")


def test_apply_of_a_status_leaves_the_rest_and_takes_back_what_it_no_longer_says(
    admin: Connection, things: str
) -> None:
    make(admin, things, "a", n=1)
    apply = "application/apply-patch+yaml"

    def say(manager: str, **status: Any) -> Any:
        body = typed(things, {"metadata": {"name": "a"}, "status": status})
        return admin.do("PATCH", f"{things}/a/status", body, content_type=apply, fieldManager=manager, force="true")

    say("other", theirs=1)
    say("ours", state="Open", left="14 min")
    found = say("ours", state="Closed")
    assert found["status"] == {"theirs": 1, "state": "Closed"}
    assert found["spec"] == {"n": 1, "onLeak": "notify"}
    missing = typed(things, {"metadata": {"name": "b"}, "status": {"state": "Open"}})
    answer = admin.ask("PATCH", f"{things}/b/status", missing, content_type=apply, fieldManager="ours", force="true")
    assert answer.refusal == (404, "NotFound")
