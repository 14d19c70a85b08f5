"""What any API server does with objects: versions, refusals, the kinds of writes. Holds on a real one, too."""

from __future__ import annotations

import pytest

from integration.kubernetes.target import Connection, pod

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON, APPLY = "application/json-patch+json", "application/apply-patch+yaml"


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def test_a_new_object_gets_uid_time_and_version(admin: Connection, pods: str) -> None:
    made = admin.do("POST", pods, pod("a"))
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["metadata"]["resourceVersion"].isdigit()
    assert made["status"]["phase"] == "Pending"


def test_the_same_name_again_is_already_there(admin: Connection, maps: str) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a"}})
    answer = admin.ask("POST", maps, {"metadata": {"name": "a"}})
    assert answer.refusal == (409, "AlreadyExists")
    assert answer.body["message"] == 'configmaps "a" already exists'


def test_kube_contract_missing_object_is_not_found(admin: Connection, maps: str) -> None:
    answer = admin.ask("GET", f"{maps}/none")
    assert answer.refusal == (404, "NotFound")
    assert answer.body["message"] == 'configmaps "none" not found'
    assert answer.body["kind"] == "Status"


def test_an_unserved_kind_is_not_found_and_names_no_object(admin: Connection, namespace: str) -> None:
    answer = admin.ask("GET", f"/apis/none.example.org/v1/namespaces/{namespace}/nones")
    assert answer.code == 404
    assert "page not found" in answer.body["message"] or "could not find" in answer.body["message"]


def test_an_object_of_a_missing_namespace_is_refused(admin: Connection) -> None:
    answer = admin.ask("POST", "/api/v1/namespaces/no-such-namespace/configmaps", {"metadata": {"name": "a"}})
    assert answer.refusal == (404, "NotFound")
    assert answer.body["message"] == 'namespaces "no-such-namespace" not found'


def test_a_bad_name_is_invalid(admin: Connection, maps: str) -> None:
    answer = admin.ask("POST", maps, {"metadata": {"name": "Bad_Name"}})
    assert answer.refusal == (422, "Invalid")
    assert 'metadata.name: Invalid value: "Bad_Name"' in answer.body["message"]


@pytest.mark.parametrize("labels", [{"a b": "1"}, {"a": "x" * 64}, {"a": "-"}])
def test_a_bad_label_is_invalid(admin: Connection, maps: str, labels: dict[str, str]) -> None:
    answer = admin.ask("POST", maps, {"metadata": {"name": "a", "labels": labels}})
    assert answer.refusal == (422, "Invalid")


def test_a_generated_name_begins_as_asked(admin: Connection, maps: str) -> None:
    names = {admin.do("POST", maps, {"metadata": {"generateName": "gen-"}})["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("gen-") for name in names)


def test_an_unknown_field_is_refused_only_on_demand(admin: Connection, pods: str) -> None:
    body = pod("a", spec={"nope": 1})
    strict = admin.ask("POST", pods, body, fieldValidation="Strict")
    assert strict.refusal == (400, "BadRequest")
    assert 'unknown field "spec.nope"' in strict.body["message"]
    warned = admin.ask("POST", pods, body)
    assert warned.code == 201
    assert "nope" not in warned.body["spec"]
    assert 'unknown field \\"spec.nope\\"' in warned.headers["Warning"]


def test_a_value_of_the_wrong_type_is_a_bad_request(admin: Connection, pods: str) -> None:
    answer = admin.ask("POST", pods, pod("a", spec={"terminationGracePeriodSeconds": "soon"}))
    assert answer.refusal == (400, "BadRequest")


def test_a_dry_run_leaves_nothing(admin: Connection, maps: str) -> None:
    assert admin.ask("POST", maps, {"metadata": {"name": "a"}}, dryRun="All").code == 201
    assert admin.ask("GET", f"{maps}/a").code == 404


def test_put_replaces_everything(admin: Connection, maps: str) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a"}, "data": {"one": "1", "two": "2"}})
    replaced = admin.do("PUT", f"{maps}/a", {"metadata": {"name": "a"}, "data": {"one": "3"}})
    assert replaced["data"] == {"one": "3"}


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_stale_version_is_a_conflict(admin: Connection, maps: str, method: str) -> None:
    seen = admin.do("POST", maps, {"metadata": {"name": "a"}, "data": {}})
    admin.do("PATCH", f"{maps}/a", {"data": {"z": "1"}}, content_type=MERGE)
    version = {"name": "a", "resourceVersion": seen["metadata"]["resourceVersion"]}
    content_type = MERGE if method == "PATCH" else "application/json"
    answer = admin.ask(method, f"{maps}/a", {"metadata": version, "data": {"y": "1"}}, content_type=content_type)
    assert answer.refusal == (409, "Conflict")
    assert "the object has been modified" in answer.body["message"]
    assert admin.do("GET", f"{maps}/a")["data"] == {"z": "1"}


def test_a_patch_that_changes_nothing_keeps_the_version(admin: Connection, maps: str) -> None:
    made = admin.do("POST", maps, {"metadata": {"name": "a"}, "data": {"z": "1"}})
    same = admin.do("PATCH", f"{maps}/a", {"data": {"z": "1"}}, content_type=MERGE)
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_null_in_a_merge_patch_removes_a_key(admin: Connection, maps: str) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a", "annotations": {"q": "1", "r": "2"}}})
    patched = admin.do("PATCH", f"{maps}/a", {"metadata": {"annotations": {"q": None}}}, content_type=MERGE)
    assert patched["metadata"]["annotations"] == {"r": "2"}


def test_json_patch_does_all_or_nothing(admin: Connection, maps: str) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a"}, "data": {"z": "1"}})
    add = {"op": "add", "path": "/metadata/annotations", "value": {"q": "1"}}
    assert admin.do("PATCH", f"{maps}/a", [add], content_type=JSON)["metadata"]["annotations"] == {"q": "1"}
    failing = [{"op": "remove", "path": "/data/z"}, {"op": "test", "path": "/metadata/name", "value": "b"}]
    assert admin.ask("PATCH", f"{maps}/a", failing, content_type=JSON).code == 422
    assert admin.do("GET", f"{maps}/a")["data"] == {"z": "1"}


def test_strategic_patch_merges_containers_by_name(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a"))
    change = {"spec": {"containers": [{"name": "one", "image": "example.org/new:1"}]}}
    patched = admin.do("PATCH", f"{pods}/a", change, content_type=STRATEGIC)
    images = [(container["name"], container["image"]) for container in patched["spec"]["containers"]]
    assert images == [("one", "example.org/new:1"), ("two", "example.org/two:1")]


def test_an_unknown_kind_of_patch_is_refused(admin: Connection, maps: str) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a"}})
    assert admin.ask("PATCH", f"{maps}/a", {}, content_type="application/json").code == 415


def test_apply_creates_and_a_second_manager_conflicts(admin: Connection, maps: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}}
    assert admin.ask("PATCH", f"{maps}/a", body, content_type=APPLY, fieldManager="one").code == 201
    other = {**body, "data": {"k": "2"}}
    answer = admin.ask("PATCH", f"{maps}/a", other, content_type=APPLY, fieldManager="two")
    assert answer.refusal == (409, "Conflict")
    assert 'conflict with "one"' in answer.body["message"]
    assert ".data.k" in answer.body["message"]
    forced = admin.do("PATCH", f"{maps}/a", other, content_type=APPLY, fieldManager="two", force="true")
    assert forced["data"] == {"k": "2"}


def test_managed_fields_name_who_was_the_last_to_change_a_field(admin: Connection, maps: str) -> None:
    def managers(key: str) -> list[set[str]]:
        (listed,) = (item for item in admin.do("GET", maps)["items"] if item["metadata"]["name"] == "a")
        shown = (admin.do("GET", f"{maps}/a"), listed)
        return [
            {
                entry["manager"]
                for entry in item["metadata"]["managedFields"]
                if f"f:{key}" in entry["fieldsV1"].get("f:data", {})
            }
            for item in shown
        ]

    admin.do("POST", maps, {"metadata": {"name": "a"}, "data": {"k": "1", "l": "1"}}, fieldManager="one")
    admin.do("PATCH", f"{maps}/a", {"data": {"k": "2"}}, content_type=MERGE, fieldManager="two")
    assert (managers("k"), managers("l")) == ([{"two"}] * 2, [{"one"}] * 2)
    admin.do("PATCH", f"{maps}/a", {"data": {"k": "2", "l": "2"}}, content_type=MERGE, fieldManager="one")
    assert (managers("k"), managers("l")) == ([{"two"}] * 2, [{"one"}] * 2), "a value that stays changes nothing"
    admin.do("PATCH", f"{maps}/a", {"data": {"k": "1"}}, content_type=MERGE, fieldManager="one")
    assert managers("k") == [{"one"}] * 2


def test_apply_to_an_object_by_its_uid_makes_none(admin: Connection, maps: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "of-another-one"}}
    answer = admin.ask("PATCH", f"{maps}/a", body, content_type=APPLY, fieldManager="one")
    assert answer.refusal == (409, "Conflict")
    assert admin.ask("GET", f"{maps}/a").code == 404


def test_another_uid_is_invalid_in_a_patch_and_a_conflict_in_a_put(admin: Connection, maps: str) -> None:
    made = admin.do("POST", maps, {"metadata": {"name": "a"}})
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "of-another-one"}}
    applied = admin.ask("PATCH", f"{maps}/a", body, content_type=APPLY, fieldManager="one")
    assert applied.refusal == admin.ask("PATCH", f"{maps}/a", body, content_type=MERGE).refusal == (422, "Invalid")
    assert admin.ask("PUT", f"{maps}/a", body).refusal == (409, "Conflict")
    old = {"metadata": {"uid": "of-another-one", "resourceVersion": str(int(made["metadata"]["resourceVersion"]) - 1)}}
    assert admin.ask("PATCH", f"{maps}/a", old, content_type=MERGE).refusal == (409, "Conflict")


def test_empty_parts_of_metadata_are_left_out(admin: Connection, maps: str) -> None:
    some = {"annotations": {"a": "1"}, "labels": {"l": "1"}, "finalizers": ["example.org/x"]}
    admin.do("POST", maps, {"metadata": {"name": "a", **some}})
    none = {"annotations": {"a": None}, "labels": {"l": None}, "finalizers": []}
    changed = admin.do("PATCH", f"{maps}/a", {"metadata": none}, content_type=MERGE)
    made = admin.do("POST", maps, {"metadata": {"name": "b", "annotations": {}, "labels": {}, "finalizers": []}})
    assert not some.keys() & {*changed["metadata"], *made["metadata"]}


def test_apply_takes_back_what_its_manager_no_longer_wants(admin: Connection, maps: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1", "l": "1"}}
    admin.do("PATCH", f"{maps}/a", body, content_type=APPLY, fieldManager="one")
    admin.do("PATCH", f"{maps}/a", {"data": {"theirs": "1"}}, content_type=MERGE)
    less = admin.do("PATCH", f"{maps}/a", {**body, "data": {"l": "1"}}, content_type=APPLY, fieldManager="one")
    assert less["data"] == {"l": "1", "theirs": "1"}


def test_a_finalizer_holds_a_deleted_object(admin: Connection, maps: str) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a", "finalizers": ["test.example.org/hold"]}})
    admin.do("DELETE", f"{maps}/a")
    assert admin.do("GET", f"{maps}/a")["metadata"]["deletionTimestamp"]
    admin.do("PATCH", f"{maps}/a", {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert admin.ask("GET", f"{maps}/a").code == 404


def test_deleting_another_uid_is_a_conflict(admin: Connection, maps: str) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a"}})
    answer = admin.ask("DELETE", f"{maps}/a", {"preconditions": {"uid": "0"}})
    assert answer.refusal == (409, "Conflict")
    assert admin.ask("GET", f"{maps}/a").code == 200


def test_deleting_a_collection_keeps_what_is_not_selected(admin: Connection, maps: str) -> None:
    for name, labels in (("a", {"d": "1"}), ("b", {})):
        admin.do("POST", maps, {"metadata": {"name": name, "labels": labels}})
    admin.do("DELETE", maps, labelSelector="d=1")
    left = {item["metadata"]["name"] for item in admin.do("GET", maps)["items"]}
    assert "a" not in left
    assert "b" in left


def test_secrets_take_plain_text_and_show_base64(admin: Connection, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    made = admin.do("POST", path, {"metadata": {"name": "s"}, "stringData": {"k": "plain"}})
    assert (made["type"], made["data"]) == ("Opaque", {"k": "cGxhaW4="})
