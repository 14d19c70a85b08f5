"""``squeue --json`` of three releases to the same jobs, and of whatever else to an error of ours."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_hooks.slurm.fake_slurm import RELEASES, recorded
from tidegauge.core.jobs.slurm import KEEP, MAY_REQUEUE, comment_words
from tidegauge_scheduler_hooks.slurm.jobs_json import SlurmJob, read_jobs

BYTES_OF = {release: recorded(release) for release in RELEASES}
ENTRY: dict[str, Any] = json.loads(BYTES_OF["24.11"].decode(errors="replace"))["jobs"][0]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(params=RELEASES)
def jobs(request: pytest.FixtureRequest) -> dict[int, SlurmJob]:
    """What a release was seen to print; the same jobs were submitted to each (README.md beside the recordings)."""
    return {job.job_id: job for job in read_jobs(BYTES_OF[request.param])}


def of(jobs: dict[int, SlurmJob], **wanted: Any) -> list[SlurmJob]:
    return [job for job in jobs.values() if all(getattr(job, name) == value for name, value in wanted.items())]


def parsed(**changes: Any) -> SlurmJob:
    (job,) = read_jobs(json.dumps({"jobs": [{**ENTRY, **changes}]}, ensure_ascii=False).encode())
    return job


# Recordings


def test_a_job_on_two_nodes(jobs: dict[int, SlurmJob]) -> None:
    job = jobs[1]
    assert (job.uid, job.restarts, job.name) == (5001, 0, "1")
    assert job.running
    assert job.batch
    assert job.may_requeue
    assert job.nodes == "n[1-2]"
    assert job.gres == ("gpu:fake:1(IDX:0)", "gpu:fake:1(IDX:0)")
    assert job.partition == "gpu"
    assert comment_words(job.comment) == {MAY_REQUEUE}
    assert job.started_unix_s is not None
    assert job.started_unix_s > 1_795_000_000
    assert not job.het


def test_squeue_json_gives_the_owners_comment_requeue_flag_and_time_limit(jobs: dict[int, SlurmJob]) -> None:
    assert comment_words(jobs[2].comment) == {KEEP}
    assert not jobs[3].may_requeue
    assert jobs[3].started_unix_s is not None
    assert jobs[3].ends_unix_s == jobs[3].started_unix_s + 3600
    assert len(of(jobs, batch=False)) == 1


def test_tasks_of_an_array_have_names_of_their_own(jobs: dict[int, SlurmJob]) -> None:
    assert [jobs[number].name for number in (14, 15)] == ["4_1", "4_2"]
    assert all(jobs[number].running for number in (14, 15))
    assert jobs[4].name in ("4_3", None), "the last one waits; 26.05 does not call it a task before it starts"
    assert not jobs[4].running


def test_both_parts_of_a_heterogeneous_job_are_told(jobs: dict[int, SlurmJob]) -> None:
    assert {job.job_id for job in of(jobs, het=True)} == {5, 6}


def test_squeue_json_text_written_by_a_user_forges_no_job(jobs: dict[int, SlurmJob]) -> None:
    job = jobs[8]
    assert job.uid == 5001
    assert '"job_id": 4, {set}' in job.comment
    assert comment_words(job.comment) == {KEEP}
    assert len(jobs) == 15


def test_text_that_was_written_with_escapes_is_read_too() -> None:
    (job,) = read_jobs(json.dumps({"jobs": [{**ENTRY, "comment": "\u2713 tidegauge:keep"}]}).encode())
    assert job.comment == "\u2713 tidegauge:keep"


def test_jobs_that_do_not_run(jobs: dict[int, SlurmJob]) -> None:
    requeued = of(jobs, restarts=1)
    assert requeued
    assert not any(job.running for job in requeued)
    assert all(job.started_unix_s is None for job in of(jobs, states=frozenset({"PENDING"}), restarts=0))


# Shapes that are known from Slurm's source


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7), (7.0, 7), (None, None), ({"set": True, "infinite": False, "number": 7}, 7), ({"number": 7}, 7),
        ({"set": False, "infinite": False, "number": 7}, None), ({"set": True, "infinite": True, "number": 0}, None),
        ("7", None), ([], None), (-7, None), (True, None), (float("inf"), None), ({"set": True}, None),
        (10**400, None), (1e300, None), (float("nan"), None),
    ],
)  # fmt: skip
def test_numbers_in_all_their_shapes(value: object, expected: int | None) -> None:
    assert parsed(end_time=value).ends_unix_s == expected


@pytest.mark.parametrize(
    ("states", "running"),
    [
        ("RUNNING", True), (["RUNNING"], True), (["RUNNING", "COMPLETING"], False), ("COMPLETING", False),
        (["SUSPENDED"], True), (["CONFIGURING", "RUNNING"], True), (["PENDING", "REQUEUED"], False),
        (["CANCELLED", "COMPLETING"], False), ("REQUEUE_HOLD", False), (["RUNNING", "STAGE_OUT"], False),
        (["RUNNING", "SOMETHING_NEW"], True), ("SOMETHING_NEW", False),
    ],
)  # fmt: skip
def test_states_in_all_their_shapes(states: object, running: bool) -> None:
    assert parsed(job_state=states).running is running


def test_fields_that_a_release_does_not_have_are_unknown() -> None:
    (job,) = read_jobs(b'{"jobs": [{"job_id": 7, "user_id": 5, "restart_cnt": 0, "job_state": "RUNNING"}]}')
    assert job == SlurmJob(7, 5, frozenset({"RUNNING"}), 0, None, None, batch=False, may_requeue=False, het=False)


@pytest.mark.parametrize("missing", ["job_id", "user_id", "restart_cnt", "job_state"])
def test_a_job_without_what_makes_a_run_is_left_out(missing: str) -> None:
    entry = {name: value for name, value in ENTRY.items() if name != missing}
    (left,) = read_jobs(json.dumps({"jobs": [entry, {**ENTRY, "job_id": 99}]}).encode())
    assert left.job_id == 99


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"null", b"{}", b'{"jobs": 7}', b'{"jobs": [', b'{"jobs": [7, {}]}', b'{"jobs": [] "errors": []}',
        b'{"errors": [{"error": "x"}], "jobs": []}', b'{"jobs": [], "errors": [{"error": "x"}]}', b"[" * 100_000,
        b'{"jobs": [' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_squeue_json_that_is_malformed_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the messages differ by what is wrong
        read_jobs(content)


def test_an_empty_cluster_has_no_jobs() -> None:
    assert read_jobs(b'{"meta": {}, "errors": [], "jobs": [\n ]\n}\n') == []


# Any


@given(st.dictionaries(st.sampled_from(sorted(ENTRY)), json_values, max_size=8))
def test_a_field_of_any_value_never_breaks_the_list(changes: dict[str, Any]) -> None:
    content = json.dumps({"jobs": [{**ENTRY, **changes}, {**ENTRY, "job_id": 99}]}).encode()
    assert read_jobs(content)[-1].job_id == 99


@given(st.data(), st.sampled_from(RELEASES))
def test_a_damaged_list_is_a_list_or_a_value_error(data: st.DataObject, release: str) -> None:
    content = BYTES_OF[release][:20_000]
    at = data.draw(st.integers(0, len(content)))
    damaged = content[:at] + data.draw(st.binary(max_size=20)) + content[at + data.draw(st.integers(0, 40)) :]
    with contextlib.suppress(ValueError):
        read_jobs(damaged)


@given(st.text(), st.text())
def test_names_and_comments_of_any_text_change_no_other_field(name: str, comment: str) -> None:
    calm = parsed(name="x", comment="")
    odd = parsed(name=name, comment=comment)
    assert odd == SlurmJob(**{**vars(calm), "comment": comment})
