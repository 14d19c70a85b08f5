"""What is raised for an answer of the API server: the right class, and words that help."""

from __future__ import annotations

import json

import pytest

from tidegauge_scheduler_hooks.kubernetes.client.errors import ApiCall, ExpiredError, lost, not_connected, refusal
from tidegauge_scheduler_hooks.kubernetes.ports import (
    JOBS,
    NAMESPACES,
    PODS,
    ConflictError,
    ForbiddenError,
    InvalidError,
    ObjectNotFoundError,
    Resource,
)
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError, TemporaryError

PATCH = ApiCall("patch", JOBS, "research", "train")
CREATE = ApiCall("create", JOBS, "research", "train")
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")


def status(code: int, reason: str, message: str, **details: str) -> bytes:
    """As an API server writes it."""
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return json.dumps({**said, "message": message, "details": details}).encode()


@pytest.mark.parametrize(
    ("ask", "code", "reason", "kind"),
    [
        (PATCH, 400, "BadRequest", InvalidError),
        (PATCH, 401, "Unauthorized", ForbiddenError),
        (PATCH, 403, "Forbidden", ForbiddenError),
        (PATCH, 404, "NotFound", ObjectNotFoundError),
        (PATCH, 405, "MethodNotAllowed", PermanentError),
        (PATCH, 409, "Conflict", ConflictError),
        (CREATE, 409, "AlreadyExists", ConflictError),
        (CREATE, 409, "Conflict", TemporaryError),
        (PATCH, 410, "Expired", ExpiredError),
        (PATCH, 415, "UnsupportedMediaType", PermanentError),
        (PATCH, 422, "Invalid", InvalidError),
        (PATCH, 429, "TooManyRequests", TemporaryError),
        (PATCH, 500, "InternalError", TemporaryError),
        (PATCH, 503, "ServiceUnavailable", TemporaryError),
        (PATCH, 504, "Timeout", TemporaryError),
    ],
)
def test_every_answer_is_raised_as_what_it_means(
    ask: ApiCall, code: int, reason: str, kind: type[SchedulerError]
) -> None:
    error = refusal(ask, code, status(code, reason, "the server's own words"))
    assert type(error) is kind
    assert "jobs.batch train in namespace research" in str(error)


def test_a_patch_that_found_another_object_is_a_conflict() -> None:
    cause = {
        "reason": "FieldValueInvalid",
        "message": 'Invalid value: "a": field is immutable',
        "field": "metadata.uid",
    }
    said = 'Pod "rank-0" is invalid: metadata.uid: Invalid value: "a": field is immutable'
    body = json.loads(status(422, "Invalid", said)) | {"details": {"name": "rank-0", "causes": [cause]}}
    error = refusal(ApiCall("patch", PODS, "r", "rank-0", "status"), 422, json.dumps(body).encode())
    assert type(error) is ConflictError
    assert "field is immutable" in str(error)


def test_a_right_that_is_missing_is_named_as_a_role_spells_it() -> None:
    said = 'jobs.batch "train" is forbidden: User "system:serviceaccount:tidegauge:head" cannot patch resource "jobs" in API group "batch" in the namespace "research"'  # noqa: E501
    error = refusal(PATCH, 403, status(403, "Forbidden", said, name="train"))
    assert 'the verb "patch" on "jobs" of the API group batch in namespace research' in str(error)
    assert "system:serviceaccount:tidegauge:head" in str(error)


def test_a_missing_right_to_a_subresource_of_the_core_group() -> None:
    said = (
        'pods "rank-0" is forbidden: User "u" cannot patch resource "pods/status" in API group "" in the namespace "r"'
    )
    error = refusal(ApiCall("patch", PODS, "r", "rank-0", "status"), 403, status(403, "Forbidden", said))
    assert 'on "pods/status" of the API group "" in namespace r' in str(error)


def test_another_403_is_not_called_a_missing_right() -> None:
    said = 'pods "rank-0" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes'
    error = refusal(ApiCall("create", PODS, "research", "rank-0"), 403, status(403, "Forbidden", said))
    assert isinstance(error, ForbiddenError)
    assert "role" not in str(error)
    assert "hostPath volumes" in str(error)


def test_a_missing_object_is_told_from_a_missing_kind() -> None:
    no_object = refusal(PATCH, 404, status(404, "NotFound", 'jobs.batch "train" not found', name="train"))
    no_kind = refusal(ApiCall("list", JOBSETS, None), 404, b"404 page not found\n")
    assert isinstance(no_object, ObjectNotFoundError)
    assert isinstance(no_kind, ObjectNotFoundError)
    assert (no_object.kind_missing, no_kind.kind_missing) == (False, True)
    assert "JobSet (jobset.x-k8s.io/v1alpha2): its CRD is not installed" in str(no_kind)


def test_a_write_that_failed_inside_the_server_may_have_been_done() -> None:
    assert "may have taken effect" in str(refusal(PATCH, 500, b"oops"))
    assert "may have taken effect" not in str(refusal(ApiCall("get", JOBS, "research", "train"), 500, b"oops"))
    assert "may have taken effect" not in str(refusal(PATCH, 429, b""))
    assert "may have taken effect" in str(lost(PATCH, "https://api", "connection reset"))
    assert "may have taken effect" not in str(not_connected(PATCH, "https://api", "connection refused"))


def test_the_servers_wish_when_to_come_back_is_passed_on() -> None:
    error = refusal(PATCH, 429, b"", retry_after_s=7.0)
    assert isinstance(error, TemporaryError)
    assert error.retry_after_s == 7.0


def test_kube_error_is_truncated_and_stripped_of_control_characters() -> None:
    error = refusal(PATCH, 422, status(422, "Invalid", "spec: \x1b[31m\n" + "x" * 10_000))
    assert str(error).isprintable()
    assert len(str(error)) < 600


def test_places_in_words() -> None:
    assert str(ApiCall("list", PODS, None)) == "list pods in all namespaces"
    assert str(ApiCall("get", NAMESPACES, None, "research")) == "get namespaces research of the cluster"
