"""`KeeperRequests`: what a keeper does is written down first, once, and about the right attempt."""

from __future__ import annotations

from typing import Any

import pytest

from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import (
    MAX_DECISIONS,
    MAX_ID_CHARS,
    LaunchRecord,
    LaunchState,
    decode_launch_record,
    encode_launch_record,
)
from tidegauge.launch.requests import MAX_SAID_CHARS, KeeperRequests

STOPS = ("requeue", "hold", "cancel")


class Job:
    """Requests and what happened around it, in order."""

    def __init__(self, environ: dict[str, str] | None = None, **changes: Any) -> None:
        record = LaunchRecord(
            ProcessId(7, 70), "job-1", "train", 0, LaunchState.RUNNING, requeueable=True, exempt=False,
            gpu_share=None, started_unix_s=1e9,
        )  # fmt: skip
        self.events: list[str] = []
        self.said = ""
        self.held_back: str | None = None
        self.requests = KeeperRequests(
            record._replace(**changes),
            environ or {},
            save=self._save,
            say=self._say,
            held_back=lambda: self.held_back,
        )

    def _save(self, record: LaunchRecord) -> None:
        assert decode_launch_record(encode_launch_record(record)) == record
        self.events.append(f"saved {record.state.value} {','.join(record.decisions)}")

    def _say(self, text: str) -> None:
        self.events.append("said")
        self.said += text + "\n"

    def ask(self, command: str, decision_id: str = "d-1", **more: Any) -> dict[str, Any]:
        return self.requests.answer(
            {"command": command, "id": decision_id, "restarts": 0, "reason": "it leaks", **more}
        )


@pytest.mark.parametrize(
    ("command", "then"),
    [("requeue", LaunchState.RUNNING), ("hold", LaunchState.HELD), ("cancel", LaunchState.ENDED)],
)
def test_a_stop_is_written_down_before_anything_else(command: str, then: LaunchState) -> None:
    job = Job()
    assert job.ask(command, grace_s=5) == {"ok": True}
    assert job.events == ["saved stopping d-1", "said"]
    assert "it leaks" in job.said
    assert job.requests.stop is not None
    assert (job.requests.stop.then, job.requests.stop.grace_s) == (then, 5.0)


@pytest.mark.parametrize("command", ["notify", "annotate", "cap", *STOPS])
def test_an_id_that_was_carried_out_does_nothing_more(command: str) -> None:
    job = Job()
    job.ask(command, text="a word", fraction=0.5)
    before = list(job.events)
    assert job.ask(command, text="a word", fraction=0.5) == {"ok": True, "already": True}
    assert job.events == before


def test_an_id_is_remembered_over_a_restart() -> None:
    job = Job()
    job.ask("requeue")
    job.requests.attempt_began(2e9, restarts=1)
    assert job.ask("requeue") == {"ok": True, "already": True}
    assert job.requests.stop is None


@pytest.mark.parametrize("command", ["notify", "cap", *STOPS])
def test_another_attempt_than_the_one_meant_is_left_alone(command: str) -> None:
    job = Job(restarts=1)
    reply = job.ask(command, text="a word", fraction=0.5)
    assert reply["kind"] == "changed"
    assert "attempt 1" in reply["error"]
    assert job.events == []


@pytest.mark.parametrize("second", STOPS)
def test_a_job_that_is_being_ended_is_not_ended_again(second: str) -> None:
    job = Job()
    job.ask("requeue")
    assert job.ask(second, "d-2")["kind"] == "changed"
    assert job.requests.stop is not None
    assert job.requests.stop.then is LaunchState.RUNNING


@pytest.mark.parametrize("command", ["cap", *STOPS])
def test_an_exempt_job_is_told_things_and_nothing_else(command: str) -> None:
    job = Job(exempt=True)
    assert job.ask("notify", text="a word") == {"ok": True}
    reply = job.ask(command, "d-2", fraction=0.5)
    assert reply["kind"] == "refused"
    assert "--no-actions" in reply["error"]
    assert job.requests.stop is None


def test_keeper_requeues_only_a_job_whose_owner_allows_it() -> None:
    job = Job(requeueable=False)
    reply = job.ask("requeue")
    assert reply["kind"] == "refused"
    assert "--requeue" in reply["error"]
    assert job.ask("cancel") == {"ok": True}


@pytest.mark.parametrize("command", STOPS)
def test_a_job_that_cannot_be_ended_now_can_be_later(command: str) -> None:
    job = Job()
    job.held_back = "its owner asked it to end a moment ago"
    assert job.ask(command)["kind"] == "busy"
    assert job.events == []
    job.held_back = None
    assert job.ask(command) == {"ok": True}


def test_a_requeue_changes_the_next_environment() -> None:
    job = Job({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "HOME": "/x"})
    job.ask("requeue", alloc_conf={"expandable_segments": "True"}, environ={"A": "b c;d"})
    assert job.requests.environ == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True", "HOME": "/x", "A": "b c;d"
    }  # fmt: skip
    assert set(job.requests.changed_environ) == {"PYTORCH_CUDA_ALLOC_CONF", "A"}
    assert "expandable_segments:True" in job.said


def test_the_version_of_torch_decides_the_variable() -> None:
    job = Job()
    job.ask("requeue", alloc_conf={"expandable_segments": "True"}, torch_version="2.11.0+cu130")
    assert job.requests.environ == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def test_a_cap_is_for_later_attempts() -> None:
    job = Job()
    assert job.ask("cap", fraction=0.5) == {"ok": True}
    assert job.requests.environ == {"TIDEGAUGE_MEMORY_FRACTION": "0.5"}
    assert job.requests.stop is None


def test_messages_and_remarks_are_kept_and_only_messages_are_said() -> None:
    job = Job()
    job.ask("notify", "d-1", text="rank 3 leaks\nsee incidents 7")
    job.ask("annotate", "d-2", text="watched")
    record = job.requests.answer({"command": "describe"})
    assert record["messages"] == ["rank 3 leaks / see incidents 7"]
    assert record["remarks"] == ["watched"]
    assert job.said == "rank 3 leaks\nsee incidents 7\n"


def test_a_long_message_is_cut_not_refused() -> None:
    job = Job()
    assert job.ask("notify", text="x" * 5000) == {"ok": True}
    assert len(job.said) == MAX_SAID_CHARS + 1


def test_the_oldest_decisions_are_forgotten() -> None:
    job = Job()
    for number in range(MAX_DECISIONS + 5):
        job.ask("notify", f"d-{number}", text="a word")
    decisions = job.requests.record.decisions
    assert (len(decisions), decisions[-1]) == (MAX_DECISIONS, f"d-{MAX_DECISIONS + 4}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": "dance"},
        {"command": None},
        {"command": ["requeue"]},
        {"id": ""},
        {"id": "two\nlines"},
        {"id": 7},
        {"id": "x" * 201},
        {"restarts": None},
        {"restarts": True},
        {"restarts": "0"},
        {"grace_s": "long"},
        {"grace_s": float("inf")},
        {"grace_s": -1},
        {"environ": {"A": "\ud800"}},
        {"environ": {"A=B": "c"}},
        {"environ": {"A": "nul\0"}},
        {"environ": {"A": 1}},
        {"environ": [1]},
        {"alloc_conf": {"a,b": "1"}},
        {"alloc_conf": {"": "1"}},
        {"command": "cap", "fraction": 0},
        {"command": "cap", "fraction": True},
        {"command": "cap", "fraction": 1.5},
        {"command": "notify"},
        {"command": "annotate", "text": 5},
    ],
)
def test_a_wrong_request_is_refused_and_changes_nothing(wrong: dict[str, Any]) -> None:
    job = Job()
    reply = job.requests.answer({"command": "requeue", "id": "d-1", "restarts": 0, **wrong})
    assert reply["kind"] == "refused"
    assert reply["error"]
    assert (job.events, job.requests.environ, job.requests.stop) == ([], {}, None)


def test_grace_is_bounded() -> None:
    job = Job()
    job.ask("cancel", grace_s=10**400)
    assert job.requests.stop is not None
    assert job.requests.stop.grace_s == 3600.0


def test_a_record_of_the_longest_texts_is_still_read() -> None:
    job = Job()
    for number in range(MAX_DECISIONS):
        wide = "\N{GRINNING FACE}"
        job.ask(
            "annotate" if number % 2 else "notify",
            f"{number:03d}" + wide * (MAX_ID_CHARS - 3),
            text=wide * MAX_SAID_CHARS,
        )
    assert len(job.requests.record.decisions) == MAX_DECISIONS  # each was written and read back, see Job
