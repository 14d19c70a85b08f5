"""The line on a job's end in its AdminComment: beside what other tools keep there, once, and only where it may be."""

from __future__ import annotations

import base64
import gzip
import json
import logging

import pytest

from sample_views import job_record
from scheduler_hooks.slurm.fake_slurm import FakeJob
from scheduler_hooks.slurm.slurm_world import SlurmWorld, slurm_view
from tidegauge.core.job_records.end_words import end_sentence
from tidegauge_scheduler_hooks.ports import TemporaryError
from tidegauge_scheduler_hooks.slurm.adapter import END_MARK, MAX_END_BYTES

RECORD = job_record()
TEXT = "ended after 2 h; rank 3 on node7: 9.0 GiB of 80.0 GiB reserved (11%); `tidegauge job 40` has all of it"
OURS = "TG1: ended after 2 h; rank 3 on node7: 9.0 GiB of 80.0 GiB reserved (11%); tidegauge job 40 has all of it"
FAILED = "ended after 3 h (failed); tidegauge job 40 has all of it"


@pytest.fixture
def world() -> SlurmWorld:
    return SlurmWorld()


def remark(world: SlurmWorld, admin_comment: str | None, text: str = TEXT) -> str | None:
    """What ``remark_end`` makes of the AdminComment of job 40."""
    job = world.slurm.add(FakeJob(40, state="COMPLETED", admin_comment=admin_comment))
    world.port.remark_end(slurm_view(job), RECORD, text)
    return job.admin_comment


def jobstats(size: int) -> str:
    packed = gzip.compress(json.dumps({"nodes": "n" * size}).encode(), mtime=0)
    return f"JS1:{base64.b64encode(packed).decode()}"


PADDED, UNPADDED = (
    next(one for n in range(99) if (one := jobstats(n)).endswith("=") is padded) for padded in (True, False)
)


def test_an_end_is_written_once_and_a_newer_one_in_its_place(world: SlurmWorld) -> None:
    assert remark(world, "") == OURS
    assert len(world.slurm.acts()) == 1
    assert remark(world, OURS) == OURS
    assert len(world.slurm.acts()) == 1, "the same remark again changes nothing"
    assert remark(world, OURS, FAILED) == f"TG1: {FAILED}"


def test_what_another_tool_wrote_is_read_by_it_as_before(world: SlurmWorld) -> None:
    after = remark(world, PADDED)
    assert after == f"{PADDED} {OURS}"
    assert "nodes" in json.loads(gzip.decompress(base64.b64decode(after.removeprefix("JS1:"))))
    assert remark(world, after, FAILED) == f"{PADDED} TG1: {FAILED}"
    assert remark(world, "moved by the admin") == f"moved by the admin {OURS}"


@pytest.mark.parametrize("theirs", ["see TG1: of our wiki", "TG1: ended early", "tg1: running late"])
def test_what_another_tool_calls_as_we_do_stays(world: SlurmWorld, theirs: str) -> None:
    assert remark(world, theirs) == f"{theirs} {OURS}"
    assert remark(world, f"{theirs} {OURS}", FAILED) == f"{theirs} TG1: {FAILED}"


@pytest.mark.parametrize("ours", [OURS, f"{OURS}; tidegauge report 1 makes a page of its incident"])
@pytest.mark.parametrize("before", ["", "moved by the admin "])
def test_what_another_tool_adds_behind_the_line_stays(world: SlurmWorld, before: str, ours: str) -> None:
    assert remark(world, f"{before}{ours} billed: 3 eur") == f"{before}{ours} billed: 3 eur"
    assert world.slurm.acts() == []
    assert remark(world, f"{before}{ours} billed: 3 eur", FAILED) == f"{before}billed: 3 eur TG1: {FAILED}"


@pytest.mark.parametrize(
    "theirs", [UNPADDED, "JS1:Short", "JS1:None", 'a "quoted" word', "a \\ b", "zwei\nZeilen", "one\n40|0 errors", "ü"]
)
def test_what_would_not_stay_readable_is_left_alone(world: SlurmWorld, theirs: str) -> None:
    assert remark(world, theirs) == theirs
    assert world.slurm.acts() == []


def test_a_release_that_makes_small_letters_gets_no_text_of_another_tool(world: SlurmWorld) -> None:
    world.slurm.release = "22.05.8"
    assert remark(world, PADDED) == PADDED
    assert remark(world, "") == OURS.lower()
    assert remark(world, OURS.lower()) == OURS.lower()
    assert len(world.slurm.acts()) == 1


@pytest.mark.parametrize("hostile", ["';drop table x;--", 'a"b', "a\\b", "\x1b[31m", "$(id)", "TG1: TG1: ", "x" * 9999])
def test_no_text_leaves_its_place(world: SlurmWorld, hostile: str) -> None:
    after = remark(world, "", f"ended after 2 h; {hostile}")
    assert after is not None
    assert after.startswith(f"{END_MARK}ended")
    assert len(after) <= len(END_MARK) + MAX_END_BYTES
    assert not set(after) & set("\"'\\`$\x1b")
    assert remark(world, after, FAILED) == f"TG1: {FAILED}"


def test_the_last_task_of_an_array_leaves_the_texts_of_the_other_tasks(world: SlurmWorld) -> None:
    """It has the number of the array, and sacctmgr takes that for all of its tasks."""
    first = world.slurm.add(FakeJob(41, state="COMPLETED", array=(40, 0), admin_comment="billing: 100 eur"))
    last = world.slurm.add(FakeJob(40, state="COMPLETED", array=(40, 1), admin_comment="billing: 200 eur"))
    world.port.remark_end(slurm_view(last), RECORD, TEXT)
    assert (first.admin_comment, last.admin_comment) == ("billing: 100 eur", f"billing: 200 eur {OURS}")
    world.port.remark_end(slurm_view(first), RECORD, TEXT)
    assert (first.admin_comment, last.admin_comment) == (f"billing: 100 eur {OURS}", f"billing: 200 eur {OURS}")


def test_a_part_of_a_heterogeneous_job_leaves_the_texts_of_the_others(world: SlurmWorld) -> None:
    leader, other = (
        world.slurm.add(FakeJob(number, state="COMPLETED", het_job_id=40, admin_comment=str(number)))
        for number in (40, 41)
    )
    world.port.remark_end(slurm_view(leader), RECORD, TEXT)
    assert (leader.admin_comment, other.admin_comment) == (f"40 {OURS}", "41")


def test_an_array_whose_task_has_no_row_of_its_own_yet_is_tried_again(world: SlurmWorld) -> None:
    job = world.slurm.add(FakeJob(40, state="COMPLETED", array=(40, 1)))
    job.array = (40, "[1-3]")  # type: ignore[assignment]
    with pytest.raises(TemporaryError):
        world.port.remark_end(slurm_view(job), RECORD, TEXT)
    assert world.slurm.acts() == []


def test_a_job_that_slurmdbd_does_not_know_yet_is_tried_again(world: SlurmWorld) -> None:
    with pytest.raises(TemporaryError):
        remark(world, None)


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED"])
def test_a_job_whose_script_goes_on_has_no_end_yet(world: SlurmWorld, state: str) -> None:
    job = world.slurm.add(FakeJob(40, state=state))
    with pytest.raises(TemporaryError, match=state):
        world.port.remark_end(slurm_view(job), RECORD, TEXT)
    job.state = "CANCELLED"
    world.port.remark_end(slurm_view(job), RECORD, TEXT)
    assert job.admin_comment == OURS


@pytest.mark.parametrize("lacking", ["accounting", "operator"])
def test_where_it_is_not_allowed_that_is_said_once(
    world: SlurmWorld, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(world.slurm, lacking, False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert remark(world, "") == ""
    assert len(caplog.records) == 1


def test_a_real_sentence_stays_whole(world: SlurmWorld) -> None:
    after = remark(world, "", end_sentence(RECORD))
    assert after is not None
    assert "tidegauge job" in after
    assert "GiB" in after
