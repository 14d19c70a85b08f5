"""What the rings of a job that failed tell its owner."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fake_node import GIB, MIB, STEP_S, FakeClock, FakeRank, identity
from tidegauge.core.ids import GlobalRank, JobId, ProcessId
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.launch.post_mortem import MAX_TOLD, out_of_memory_notes

BEGAN_S = 1.7e9
CAP = 4 * GIB


class Dead:
    """Ranks that ended, and the folder with their rings."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.clock = FakeClock()
        FakeRank(run_dir, self.clock, process=ProcessId(1, 1), who=identity(job_id=JobId("another")))
        self.folder = os.open(run_dir / str(os.getuid()), os.O_RDONLY)

    def rank(
        self, number: int, *, growth: int, steps: int = 400, ticks: int = 0, out_of_memory: bool = True
    ) -> FakeRank:
        """``growth``: bytes a step, and a tick; ``ticks``, half a second apart, come after the steps."""
        who = identity(rank=GlobalRank(number), limit_fraction=0.05, world_size=16)
        rank = FakeRank(self.run_dir, self.clock, process=ProcessId(100 + number, 7), capacity=1024, who=who)
        for point in range(1, steps + ticks + 1):
            kind = RecordKind.STEP if point <= steps else RecordKind.TICK
            self.clock.pass_s(0.0 if point <= steps else 0.5 - STEP_S)
            allocated = GIB + growth * point
            rank.record(kind=kind, step=min(point, steps), allocated=allocated, reserved=allocated + 64 * MIB)
        if out_of_memory:
            figures = {"event_a": 20 * MIB, "event_b": 60 * GIB, "event_c": CAP}
            rank.record(
                kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, step=steps,
                allocated=CAP - 10 * MIB, reserved=CAP, **figures,
            )  # fmt: skip
        return rank

    def snapshot(
        self, number: int, *, at_unix_s: float | None = None, frames: bool = True, wanted_bytes: int = 20 * MIB
    ) -> Path:
        """What rank ``number`` held when it ran out: two blocks of 1.5 GiB by one line, and 300 MiB free."""
        lines = [{"name": "forward", "filename": "/home/ada/train.py", "line": 41}] if frames else []
        live = {"size": 1536 * MIB, "requested_size": 1, "state": "active_allocated", "frames": lines}
        free = {"size": 300 * MIB, "requested_size": 1, "state": "inactive", "frames": []}
        segment = {
            "device": 0, "address": 1 << 40, "total_size": 3372 * MIB, "allocated_size": 3072 * MIB,
            "active_size": 3072 * MIB, "requested_size": 2, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [live, dict(live), free],
        }  # fmt: skip
        taken_s = self.clock.unix_s() if at_unix_s is None else at_unix_s
        whole = {
            "segments": [segment], "device_traces": [], "allocator_settings": {}, "external_annotations": [],
            "tidegauge": {"device": 0, "unix_s": taken_s, "wanted_bytes": wanted_bytes, "free_bytes": 60 * GIB},
        }  # fmt: skip
        path = self.run_dir / str(os.getuid()) / f"{100 + number}-7.oom.pickle"
        path.write_bytes(pickle.dumps(whole))
        return path

    def notes(self, *, since_unix_s: float = BEGAN_S, told: Sequence[str] = ()) -> list[str]:
        return out_of_memory_notes(self.folder, job_id="job-1", since_unix_s=since_unix_s, told=told)


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Dead]:
    dead = Dead(tmp_path)
    yield dead
    os.close(dead.folder)


def test_the_cap_is_named_where_it_was_the_limit(dead: Dead) -> None:
    dead.rank(1, growth=0)
    (note,) = dead.notes()
    assert note.startswith("rank 1 ran out of memory at step 400: an allocation of 20.0 MiB failed")
    assert "memory fraction" in note


def test_what_the_service_has_explained_in_the_same_terminal_is_not_repeated(dead: Dead) -> None:
    dead.rank(1, growth=0)
    dead.snapshot(1)
    (note,) = dead.notes()
    error, figures, _ = note.splitlines()[0].split(": ", 2)
    (brief,) = dead.notes(told=["Incident 1", f"Incident 3: job oom.\nRank 1, step 400: {figures}: a leak.\nMore."])
    assert brief.splitlines() == [f"{error}, as explained above", *note.splitlines()[1:]]
    assert len(brief.splitlines()) > 1
    assert dead.notes(told=["Incident 1: another reason"]) == [note]


def test_a_leak_is_named_from_the_steps_that_the_ring_still_holds(dead: Dead) -> None:
    dead.rank(1, growth=7 * MIB)
    (note,) = dead.notes()
    assert "live tensors grew" in note


@pytest.mark.parametrize("steps", [0, 100], ids=["no step", "an evaluation after training"])
def test_a_leak_of_a_rank_that_makes_no_steps_is_named_from_its_ticks(dead: Dead, steps: int) -> None:
    dead.rank(1, growth=4 * MIB, steps=steps, ticks=700)
    (note,) = dead.notes()
    assert "live tensors grew by 2." in note
    assert "since step" not in note, "it has none of its own"


def test_a_model_that_is_loaded_before_the_first_step_is_no_leak(dead: Dead) -> None:
    dead.rank(1, growth=16 * MIB, steps=0, ticks=200)
    (note,) = dead.notes()
    assert "grew" not in note


def test_ranks_are_told_in_the_order_of_their_end_and_not_all_of_many(dead: Dead) -> None:
    for number in (9, 2, 5, 7, 1):
        dead.rank(number, growth=0, steps=3)
    assert [note.split()[1] for note in dead.notes()] == ["9", "2", "5"]
    assert MAX_TOLD == 3


def test_jobs_that_did_not_run_out_of_memory_are_not_spoken_of(dead: Dead) -> None:
    dead.rank(1, growth=0, out_of_memory=False)
    assert dead.notes() == []


def test_an_error_of_an_earlier_attempt_is_not_told_again(dead: Dead) -> None:
    dead.rank(1, growth=0)
    assert dead.notes(since_unix_s=dead.clock.unix_s() + 1) == []


def test_rings_that_cannot_be_read_are_passed_over(dead: Dead, tmp_path: Path) -> None:
    folder = tmp_path / str(os.getuid())
    (folder / "5-5.ring").write_bytes(b"")
    (folder / "6-6.ring").write_bytes(b"nonsense" * 4096)
    (folder / "7-7.ring").symlink_to("/etc/passwd")
    os.mkfifo(folder / "8-8.ring")
    dead.rank(1, growth=0)
    assert len(dead.notes()) == 1


def test_post_mortem_names_the_holder_from_the_probes_oom_snapshot(dead: Dead) -> None:
    dead.rank(1, growth=0)
    dead.snapshot(1)
    (note,) = dead.notes()
    first, owner, free = note.splitlines()
    assert first.startswith("rank 1 ran out of memory at step 400: ")
    assert owner == "  3.0 GiB (100 %) in 2 blocks of 1.5 GiB: /home/ada/train.py:41 in forward"
    assert free == ("  The allocator had 300.0 MiB free, in 1 block; largest usable by the request: 300.0 MiB.")


def test_blocks_without_stacks_are_told_by_their_size(dead: Dead) -> None:
    dead.rank(1, growth=0)
    dead.snapshot(1, frames=False)
    (note,) = dead.notes()
    assert note.splitlines()[1] == "  3.0 GiB (100 %) in 2 blocks of 1.5 GiB: no stack was recorded"


def test_a_snapshot_of_another_error_is_not_taken_for_this_one(dead: Dead) -> None:
    dead.rank(1, growth=0)
    dead.snapshot(1, at_unix_s=dead.clock.unix_s() - 60)
    (note,) = dead.notes()
    assert len(note.splitlines()) == 1


def test_a_snapshot_that_cannot_be_believed_is_passed_over(dead: Dead, tmp_path: Path) -> None:
    dead.rank(1, growth=0)
    path = dead.snapshot(1)
    whole = path.read_bytes()
    hostile = b"cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR."
    for content in (whole[:-20], hostile, b"", b"nonsense"):
        path.write_bytes(content)
        assert len(dead.notes()[0].splitlines()) == 1
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert len(dead.notes()[0].splitlines()) == 1
    path.unlink()
    os.mkfifo(path)
    assert len(dead.notes()[0].splitlines()) == 1
    assert not (tmp_path / "owned").exists()


def test_a_snapshot_of_the_error_just_before_is_not_taken_for_the_last_one(dead: Dead) -> None:
    dead.rank(1, growth=0)
    dead.snapshot(1, wanted_bytes=40 * MIB)
    (note,) = dead.notes()
    assert len(note.splitlines()) == 1


@pytest.mark.parametrize(("theirs", "missing", "blamed"), [(3 * GIB, 20 * MIB, True), (10 * MIB, 20 * MIB, False)])
def test_another_rank_on_the_same_gpu_is_named_where_it_holds_what_was_missing(
    dead: Dead, theirs: int, missing: int, blamed: bool
) -> None:
    """Each rank says what it had itself; that they meet on one GPU shows only in both."""
    for number, reserved, wanted in ((0, 4 * GIB, missing), (1, theirs, 0)):
        who = identity(rank=GlobalRank(number), world_size=2)
        rank = FakeRank(dead.run_dir, dead.clock, process=ProcessId(100 + number, 7), who=who)
        kind, event = (RecordKind.EVENT, EventCode.OUT_OF_MEMORY) if wanted else (RecordKind.STEP, EventCode.NONE)
        rank.record(
            kind=kind, event=event, step=0, allocated=reserved, reserved=reserved, event_a=wanted, event_b=0,
            event_c=8 * GIB,
        )  # fmt: skip
    (note,) = dead.notes()
    assert ("other ranks) held 3.0 GiB of the GPU" in note) is blamed
