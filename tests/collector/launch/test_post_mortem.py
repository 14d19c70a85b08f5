"""What the rings of a job that failed tell its owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_node import GIB, MIB, FakeClock, FakeRank, identity
from tidegauge.core.ids import GlobalRank, JobId, ProcessId
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.launch.post_mortem import MOST_TOLD, out_of_memory_notes

BEGAN_S = 1.7e9
CAP = 4 * GIB


class Dead:
    """Ranks that ended, and the folder with their rings."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.clock = FakeClock()
        FakeRank(run_dir, self.clock, process=ProcessId(1, 1), who=identity(job_id=JobId("another")))
        self.folder = os.open(run_dir / str(os.getuid()), os.O_RDONLY)

    def rank(self, number: int, *, growth: int, steps: int = 400, out_of_memory: bool = True) -> FakeRank:
        who = identity(rank=GlobalRank(number), limit_fraction=0.05, world_size=16)
        rank = FakeRank(self._run_dir, self.clock, process=ProcessId(100 + number, 7), capacity=512, who=who)
        for step in range(1, steps + 1):
            allocated = GIB + growth * step
            rank.record(step=step, allocated=allocated, reserved=allocated + 64 * MIB)
        if out_of_memory:
            figures = {"event_a": 20 * MIB, "event_b": 60 * GIB, "event_c": CAP}
            rank.record(
                kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, step=steps,
                allocated=CAP - 10 * MIB, reserved=CAP, **figures,
            )  # fmt: skip
        return rank

    def notes(self, *, since_unix_s: float = BEGAN_S) -> list[str]:
        return out_of_memory_notes(self.folder, job_id="job-1", since_unix_s=since_unix_s)


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Dead]:
    dead = Dead(tmp_path)
    yield dead
    os.close(dead.folder)


def test_the_cap_is_named_where_it_was_the_limit(dead: Dead) -> None:
    dead.rank(1, growth=0)
    (note,) = dead.notes()
    assert note.startswith("rank 1 ran out of memory at step 400: 20.0 MiB more were refused")
    assert "memory fraction" in note


def test_a_leak_is_named_from_the_steps_that_the_ring_still_holds(dead: Dead) -> None:
    dead.rank(1, growth=7 * MIB)
    (note,) = dead.notes()
    assert "tensors that are kept grew" in note


def test_ranks_are_told_in_the_order_of_their_end_and_not_all_of_many(dead: Dead) -> None:
    for number in (9, 2, 5, 7, 1):
        dead.rank(number, growth=0, steps=3)
    assert [note.split()[1] for note in dead.notes()] == ["9", "2", "5"]
    assert MOST_TOLD == 3


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
