"""The whole way on one node: files beside a real ring, a poll, the collector's thread, a report, its answer."""

from __future__ import annotations

import json
import os
import pickle
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from fake_node import PID, FakeNode, FakeRank, gpu_reading, identity
from rank_windows import (
    EARLY_STEP,
    HOLDER,
    KEEPS,
    LATE_STEP,
    MIB,
    compressed,
    early,
    late,
    leave_snapshot,
    leave_window,
    packed,
    put,
    window,
)
from tidegauge.agent.evidence.budget import PIECES_OF_TENANT
from tidegauge.agent.evidence.checks import MAX_HEAD_BYTES
from tidegauge.agent.evidence.collector import EvidenceCollector
from tidegauge.agent.evidence.files import MAX_EVIDENCE_BYTES
from tidegauge.agent.evidence.making import MAX_WIRE_BYTES
from tidegauge.agent.evidence.snapshot_store import FolderStore, SnapshotStoreError
from tidegauge.agent.evidence.waiting import MAX_PIECES_PER_REPORT, MAX_WAITING_PER_TENANT
from tidegauge.agent.evidence.work import EvidenceWork
from tidegauge.analysis.snapshots.reading import read_snapshot, write_packed
from tidegauge.core import wire
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.brief import EvidenceCause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import HolderSearch, ids_so_far
from tidegauge.core.ids import GlobalRank, JobId, JobKey, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup, PodFacts
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.run_dirs import EARLY_SUFFIX, LATE_SUFFIX, evidence_name, names_beside, snapshot_name
from tidegauge.core.snapshot_columns import MAGIC, pack
from tidegauge.rate_limited_log import LINES_PER_MINUTE
from tidegauge.settings import Settings

DONE_S = 60.0


class Stage:
    """One node with a training rank, and the agents that it had one after the other."""

    def __init__(self, scratch: Path, cleanup: ExitStack, **settings: object) -> None:
        self.scratch = scratch
        self.state = scratch / "state"
        self._cleanup = cleanup
        self._settings = Settings.model_validate({"cluster": "test", "state_dir": self.state, **settings})
        self.node = self.new_agent()
        self.rank = self.node.start_rank()
        self.rank.record(step=140)
        self.node.poll()

    def new_agent(self, *, linger_s: float = 120.0) -> FakeNode:
        readings = [gpu_reading(processes={4242: 7 << 30})]
        node = FakeNode(self.scratch / "run", readings=readings, evidence=self._settings, linger_s=linger_s)
        self._cleanup.enter_context(closing(node.agent))
        return node

    @property
    def beside(self) -> Path:
        return self.rank.path.parent

    @property
    def snapshots(self) -> Path:
        return self.state / "snapshots"

    def take(self, after_s: float = 2.0) -> tuple[Evidence, ...]:
        """A poll, the work that it leads to, and what the next report brings."""
        take(self.node, after_s)
        return waiting(self.node)

    def refusals(self) -> dict[str, int]:
        take(self.node, 0.5)
        return {reason: n for reason, n in self.node.agent.view().rings_skipped.items() if n}


def take(node: FakeNode, after_s: float = 2.0) -> None:
    node.poll(after_s)
    assert node.collector is not None
    assert node.collector.wait_idle(DONE_S)


def waiting(node: FakeNode) -> tuple[Evidence, ...]:
    return node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None).evidence


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def stage(tmp_path: Path, cleanup: ExitStack) -> Stage:
    return Stage(tmp_path, cleanup)


def test_a_window_becomes_evidence_with_the_line_the_holder_and_the_cause(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    assert (evidence.evidence_id, evidence.reason, evidence.rank) == ("auto-7", "suspected", 0)
    assert (evidence.hostname, evidence.process) == ("node-a", PID)
    assert evidence.at_unix_s == window(PID).ended_unix_s
    assert (evidence.early_step, evidence.late_step, evidence.grown_bytes) == (EARLY_STEP, LATE_STEP, 30 * MIB)
    [growth] = evidence.growth
    assert (growth.grown_bytes, growth.blocks, growth.line) == (30 * MIB, 30, KEEPS[0])
    assert [one.grown_bytes for one in evidence.live] == [64 * MIB, 40 * MIB]
    assert evidence.search is not None
    assert evidence.search.holders[0].name == "history"
    assert evidence.cause.cause is EvidenceCause.PYTHON_CONTAINER
    assert evidence.problems == ()
    assert pickle.loads(pickle.dumps(evidence)) == evidence


def test_a_search_that_goes_on_is_told_with_its_line_and_no_cause_and_the_whole_follows(stage: Stage) -> None:
    part = HolderSearch((HOLDER,), 30 * MIB, 30 * MIB, problem="still running after 9 references")
    [so_far] = ids_so_far("auto-7")[:1]
    leave_window(stage.beside, PID, window(PID, evidence_id=so_far, searching=True, search=part))
    [piece] = stage.take()
    assert (piece.evidence_id, piece.searching, piece.unfinished) == ("auto-7+1", True, False)
    assert (piece.growth[0].line, piece.grown_bytes) == (KEEPS[0], 30 * MIB)
    assert piece.search is not None
    assert piece.search.holders[0].name == HOLDER.name
    assert (piece.cause.cause, piece.bound, piece.snapshots) == (EvidenceCause.UNKNOWN, None, ())
    assert piece.problems == ("the holder search is incomplete: still running after 9 references",)
    leave_window(stage.beside, PID)
    [first, whole] = stage.take()
    assert (first, whole.evidence_id, whole.searching) == (piece, "auto-7", False)
    assert whole.cause.cause is EvidenceCause.PYTHON_CONTAINER
    assert len(whole.snapshots) == 2


def test_evidence_collector_takes_the_uid_from_the_kernel_not_the_file(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    assert evidence.job == JobKey("job-1", 0, os.getuid())


def test_its_snapshots_are_stored_and_can_be_read_again(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    first, second = evidence.snapshots
    assert (first.step, second.step) == (EARLY_STEP, LATE_STEP)
    assert first.key.startswith(f"test/{os.getuid()}/job-1/0/rank-0/step-{EARLY_STEP}-")
    assert first.store == f"node-a:{stage.snapshots}"
    file = stage.snapshots / second.key
    assert second.stored_bytes == file.stat().st_size
    assert stat.S_IMODE(stage.snapshots.stat().st_mode) == 0o700
    [trace] = read_snapshot(str(file), most_bytes=1 << 20).traces.values()
    assert trace.end is not None
    assert len(trace.end[0].blocks) == 41


def test_evidence_collector_reports_a_piece_until_the_coordinator_acknowledges(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    stage.node.agent.hear_of_evidence(["another"], frozenset())
    assert waiting(stage.node) == (evidence,)
    stage.node.agent.hear_of_evidence([evidence.evidence_id], frozenset())
    assert waiting(stage.node) == ()
    assert stage.take() == ()


def test_an_agent_that_dies_loses_nothing_that_is_complete(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    after = stage.new_agent()
    assert waiting(after) == (evidence,)


def test_an_agent_that_starts_anew_does_not_take_a_window_twice(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    stage.node.agent.hear_of_evidence([evidence.evidence_id], frozenset())
    after = stage.new_agent()
    after.procs.facts = stage.node.procs.facts
    for _ in range(3):
        take(after)
    assert after.agent.view().ranks
    assert waiting(after) == ()
    assert len(list(stage.snapshots.rglob("*.snap.zst"))) == 2


def test_the_next_window_of_a_rank_is_taken_too(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    stage.take()
    leave_window(stage.beside, PID, window(PID, evidence_id="auto-8"))
    assert [one.evidence_id for one in stage.take()] == ["auto-7", "auto-8"]


def test_a_report_brings_few_pieces_the_oldest_first(stage: Stage) -> None:
    for number in range(MAX_PIECES_PER_REPORT + 2):
        leave_window(stage.beside, PID, window(PID, evidence_id=f"auto-{number}"))
        stage.take()
    stage.node.agent.hear_of_evidence(["auto-0"], frozenset())
    assert [one.evidence_id for one in waiting(stage.node)] == ["auto-1", "auto-2", "auto-3", "auto-4"]


def test_a_coordinator_that_is_away_leaves_windows_beside_their_rings(stage: Stage) -> None:
    for number in range(MAX_WAITING_PER_TENANT + 1):
        leave_window(stage.beside, PID, window(PID, evidence_id=f"auto-{number}"))
        stage.take()
    kept: set[str] = set()
    while pieces := waiting(stage.node):
        kept |= {one.evidence_id for one in pieces}
        stage.node.agent.hear_of_evidence([one.evidence_id for one in pieces], frozenset())
    assert len(kept) == MAX_WAITING_PER_TENANT
    assert [one.evidence_id for one in stage.take()] == [f"auto-{MAX_WAITING_PER_TENANT}"]


def test_a_snapshot_that_somebody_asked_for_shows_what_lived(stage: Stage) -> None:
    leave_snapshot(stage.beside, PID)
    [evidence] = stage.take()
    assert (evidence.reason, evidence.early_step, evidence.late_step) == ("asked", None, LATE_STEP)
    assert (evidence.growth, evidence.grown_bytes) == ((), None)
    assert [one.grown_bytes for one in evidence.live] == [64 * MIB, 40 * MIB]
    assert [one.step for one in evidence.snapshots] == [LATE_STEP]
    assert evidence.evidence_id.startswith("asked-node-a-4242-777-")
    assert stage.take() == (evidence,)


def test_evidence_collector_takes_files_of_an_ended_rank_before_cleanup(tmp_path: Path, cleanup: ExitStack) -> None:
    stage = Stage(tmp_path, cleanup)
    leave_window(stage.beside, PID)
    stage.node.end(stage.rank)
    assert [one.evidence_id for one in stage.take(0.5)] == ["auto-7"]
    stage.take(200.0)
    stage.take(200.0)
    assert list(stage.beside.iterdir()) == []


def test_a_rank_that_lingers_not_at_all_is_heard_to_the_end(tmp_path: Path, cleanup: ExitStack) -> None:
    stage = Stage(tmp_path, cleanup)
    node = stage.new_agent(linger_s=0.0)
    node.procs.facts = stage.node.procs.facts
    take(node)
    leave_window(stage.beside, PID)
    node.procs.facts = {}
    take(node, 0.5)
    take(node, 0.5)
    assert [one.evidence_id for one in waiting(node)] == ["auto-7"]
    assert not stage.rank.path.exists()


def test_everything_that_a_rank_may_leave_is_cleared_with_its_ring(stage: Stage) -> None:
    for name in names_beside(PID):
        put(stage.beside, name, b"")
    put(stage.beside, "notes.txt", b"not ours")
    stage.node.end(stage.rank)
    for _ in range(3):
        stage.take(200.0)
    assert [path.name for path in stage.beside.iterdir()] == ["notes.txt"]


def test_a_rank_whose_job_is_not_known_yet_waits(stage: Stage) -> None:
    newcomer = ProcessId(5000, 9)
    rank = stage.node.start_rank(process=newcomer, who=identity(rank=GlobalRank(1)))
    leave_window(stage.beside, newcomer)
    assert stage.take() == ()
    rank.record()
    stage.take()
    assert [one.process for one in stage.take()] == [newcomer]


def test_no_room_for_snapshots_costs_the_snapshots_only(tmp_path: Path, cleanup: ExitStack) -> None:
    (tmp_path / "in the way").write_text("a file")
    stage = Stage(tmp_path, cleanup, snapshot_store=str(tmp_path / "in the way" / "snapshots"))
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    assert evidence.growth[0].line == KEEPS[0]
    assert evidence.snapshots == ()
    assert len(evidence.problems) == 2
    assert "was not stored" in evidence.problems[0]
    assert "Not a directory" in evidence.problems[0]
    stage.take()
    assert stage.node.agent.view().collect_success["evidence"] is False


def test_a_store_without_its_driver_is_said_with_the_package(
    tmp_path: Path, cleanup: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path, cleanup, snapshot_store="s3://bucket/prefix")
    assert "needs the Python package s3fs" in caplog.text
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    assert evidence.growth[0].line == KEEPS[0]
    assert "s3fs" in evidence.problems[0]


def test_a_snapshot_of_another_window_is_not_compared(stage: Stage) -> None:
    leave_window(stage.beside, PID, early=compressed(packed([(MIB, KEEPS)], step=3)))
    [evidence] = stage.take()
    assert (evidence.growth, evidence.grown_bytes) == ((), None)
    assert evidence.problems == (
        f"the first snapshot next to the ring is from step 3, not from this window's {EARLY_STEP}",
    )


def test_a_snapshot_that_is_gone_is_said(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    (stage.beside / snapshot_name(PID, LATE_SUFFIX)).unlink()
    [evidence] = stage.take()
    assert evidence.problems == (f"{snapshot_name(PID, LATE_SUFFIX)} is gone",)
    assert evidence.search is not None


def test_evidence_collector_deletes_no_snapshot_before_the_coordinator_answers(
    tmp_path: Path, cleanup: ExitStack
) -> None:
    """An agent that starts anew does not know which snapshots incidents point to: room is made of none of them."""
    first = Stage(tmp_path, cleanup)
    leave_window(first.beside, PID)
    [evidence] = first.take()
    first.node.agent.hear_of_evidence([evidence.evidence_id], frozenset())
    kept = [first.snapshots / ref.key for ref in evidence.snapshots]
    large = first.snapshots / f"test/{os.getuid()}/another/0/rank-0/step-1-1.snap.zst"
    large.parent.mkdir(parents=True)
    large.touch()
    os.truncate(large, 1 << 24)
    kept.append(large)

    after = Stage(tmp_path, cleanup, keep_snapshots_gib=0.01)
    leave_window(after.beside, PID, window(PID, evidence_id="auto-8"))
    [second] = [piece for piece in after.take() if piece.evidence_id == "auto-8"]
    assert second.snapshots == ()
    assert "keep_snapshots_gib" in second.problems[0]
    assert all(path.exists() for path in kept)

    after.node.agent.hear_of_evidence([], frozenset())
    leave_window(after.beside, PID, window(PID, evidence_id="auto-9"))
    [third] = [piece for piece in after.take() if piece.evidence_id == "auto-9"]
    assert len(third.snapshots) == 2
    assert not large.exists()


# --- hostile files


def hostile_evidence() -> dict[str, tuple[bytes, str]]:
    """Content of an evidence file, and the reason for which it is refused."""

    def changed(**changes: object) -> bytes:
        raw = wire.to_wire(window(PID))
        assert isinstance(raw, dict)
        return json.dumps({**raw, **changes}).encode()

    return {
        "no json": (b"\xff\xfe", "evidence_content"),
        "a list": (b"[]", "evidence_content"),
        "deep": (b"[" * 200_000, "evidence_content"),
        "too large": (b" " * (MAX_EVIDENCE_BYTES + 1), "evidence_too_large"),
        "not a number": (changed(ended_unix_s=float("nan")), "evidence_content"),
        "endless": (changed(ended_unix_s=1e300), "evidence_content"),
        "a huge step": (changed(late_step=10**30), "evidence_content"),
        "a huge number of digits": (changed().replace(b"134", b"9" * 300_000), "evidence_content"),
        "a negative step": (changed(began_step=-1), "evidence_content"),
        "steps back": (changed(early_step=500), "evidence_content"),
        "a text for a step": (changed(early_step="12"), "evidence_content"),
        "another's file": (changed(early_file="1-1.early.snap"), "evidence_content"),
        "a path": (changed(late_file="../../etc/shadow"), "evidence_content"),
        "no id": (changed(evidence_id=""), "evidence_content"),
        "an id of lines": (changed(evidence_id="a\nb"), "evidence_content"),
        "an endless id": (changed(evidence_id="a" * 101), "evidence_content"),
    }


@pytest.mark.parametrize("name", hostile_evidence())
def test_evidence_that_makes_no_sense_is_counted_and_nothing_else(name: str, stage: Stage) -> None:
    content, reason = hostile_evidence()[name]
    leave_window(stage.beside, PID, content)
    assert stage.take() == ()
    assert stage.refusals() == {reason: 1}
    assert not stage.snapshots.exists()
    stage.take()
    assert stage.refusals() == {reason: 1}
    leave_window(stage.beside, PID)
    assert len(stage.take()) == 1


def make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_second_name(path: Path) -> None:
    other = path.parent.parent / "other"
    other.write_bytes(b"{}")
    os.link(other, path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_link, "evidence_symlink"),
        (make_fifo, "evidence_not_regular"),
        (make_folder, "evidence_not_regular"),
        (make_second_name, "evidence_hard_link"),
    ],
)
@pytest.mark.parametrize("which", [evidence_name(PID), snapshot_name(PID, EARLY_SUFFIX)])
def test_evidence_collector_never_opens_a_file_that_is_not_regular(
    make: Callable[[Path], None], reason: str, which: str, stage: Stage
) -> None:
    leave_window(stage.beside, PID)
    (stage.beside / which).unlink()
    make(stage.beside / which)
    assert stage.take() == ()
    assert stage.refusals() == {reason: 1}


def test_a_file_of_somebody_else_is_not_read(stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    leave_window(stage.beside, PID)
    os.chown(stage.beside / evidence_name(PID), 4321, -1)
    assert stage.take() == ()
    assert stage.refusals() == {"evidence_owner": 1}


def test_a_time_that_is_still_to_come_is_now(stage: Stage) -> None:
    leave_window(stage.beside, PID, window(PID, ended_unix_s=9e9))
    [evidence] = stage.take()
    assert evidence.at_unix_s == stage.node.clock.unix_s()


HUGE_HEAD = MAGIC + (MAX_HEAD_BYTES + 1).to_bytes(4, "little") + b"{" * (MAX_HEAD_BYTES + 1)
HOSTILE_SNAPSHOTS = {
    "no zlib": (b"x" * 100, "evidence_content"),
    "another compression": (write_packed([pack(late())]), "evidence_content"),
    "not compressed": (pack(late()), "evidence_content"),
    "cut": (compressed(late())[:-20], "evidence_content"),
    "followed": (compressed(late()) + b"more", "evidence_content"),
    "a bomb": (zlib.compress(b"\0" * (65 << 20)), "evidence_content"),
    "no snapshot": (zlib.compress(b"nothing"), "evidence_content"),
    "a huge head": (zlib.compress(HUGE_HEAD), "evidence_too_large"),
    "cut columns": (zlib.compress(pack(late())[:-9]), "evidence_content"),
}


@pytest.mark.parametrize("name", HOSTILE_SNAPSHOTS)
def test_a_snapshot_that_makes_no_sense_is_counted_said_and_not_stored(name: str, stage: Stage) -> None:
    content, reason = HOSTILE_SNAPSHOTS[name]
    leave_window(stage.beside, PID, late=content)
    [evidence] = stage.take()
    assert [ref.step for ref in evidence.snapshots] == [EARLY_STEP]
    assert evidence.growth == ()
    [problem] = evidence.problems
    assert problem.startswith(f"{snapshot_name(PID, LATE_SUFFIX)} cannot be used: ")
    assert stage.refusals() == {reason: 1}


def test_a_hostile_snapshot_that_somebody_asked_for_is_counted_and_nothing_else(stage: Stage) -> None:
    leave_snapshot(stage.beside, PID, b"nothing")
    assert stage.take() == ()
    assert stage.refusals() == {"evidence_content": 1}


def test_texts_of_the_job_become_printable_lines_of_bounded_length(stage: Stage) -> None:
    evil = CodeLine("/home/\x1b[31m\n" + "a" * 5000 + ".py", 1, "f\r" * 5000)
    leave_window(
        stage.beside,
        PID,
        window(PID, reason="\x1b]0;owned\x07", problem="b\n" * 5000),
        late=compressed(packed([(3 * MIB, (evil,))] * 3, step=LATE_STEP)),
    )
    [evidence] = stage.take()
    line = evidence.growth[0].line
    assert line is not None
    for text in (line.filename, line.function, evidence.reason, *evidence.problems):
        assert text.isprintable()
        assert len(text) <= 400


def test_evidence_always_fits_into_what_the_coordinator_takes(stage: Stage) -> None:
    deep = [
        (
            MIB * (1 + each % 3),
            tuple(CodeLine(f"/home/ada/{'deep' * 90}/{each}.py", depth, "call" * 50) for depth in range(60)),
        )
        for each in range(80)
    ]
    leave_window(stage.beside, PID, late=compressed(packed(deep, step=LATE_STEP)))
    [evidence] = stage.take()
    assert len(wire.to_json(evidence)) <= MAX_WIRE_BYTES
    assert len(evidence.growth) == 20


def test_a_job_that_writes_all_day_is_read_so_often_an_hour(stage: Stage) -> None:
    taken = 0
    for number in range(PIECES_OF_TENANT + 5):
        leave_window(stage.beside, PID, window(PID, evidence_id=f"auto-{number}"))
        pieces = stage.take()
        taken += len(pieces)
        stage.node.agent.hear_of_evidence([one.evidence_id for one in pieces], frozenset())
    assert taken == PIECES_OF_TENANT
    assert stage.refusals() == {"evidence_too_many": 5}
    leave_window(stage.beside, PID, window(PID, evidence_id="later"))
    assert len(stage.take(3700.0)) == 1


def test_restarts_of_the_agent_cost_a_user_no_evidence(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    assert len(stage.take()) == 1
    for _ in range(5):
        before, stage.node = stage.node, stage.new_agent()
        stage.node.procs.facts = before.procs.facts
        of_node(stage).take_up_budgets(of_node(before).budgets())
        for _ in range(3):
            take(stage.node)
    assert pieces_charged(stage) == 1
    for number in range(3):  # written again under its old name, it is read again
        leave_window(stage.beside, PID, window(PID, reason=f"again {number}"))
        take(stage.node)
    take(stage.node)
    assert pieces_charged(stage) == 4


def of_node(node: Stage | FakeNode) -> EvidenceCollector:
    found = node.node.collector if isinstance(node, Stage) else node.collector
    assert found is not None
    return found


def pieces_charged(stage: Stage) -> int:
    return len(of_node(stage).budgets()["evidence"]["pieces"])


def test_a_flood_of_our_own_slips_is_logged_in_part(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def slip(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a slip of ours")

    monkeypatch.setattr(EvidenceWork, "do", slip)
    for number in range(LINES_PER_MINUTE + 10):
        leave_window(stage.beside, PID, window(PID, evidence_id=f"auto-{number}"))
        take(stage.node)
    said = [record for record in caplog.records if "could not be processed" in record.getMessage()]
    assert len(said) == LINES_PER_MINUTE
    assert said[0].exc_info is not None


def test_pods_of_one_namespace_share_what_is_read_in_an_hour(stage: Stage) -> None:
    pods = {
        ProcessId(6001, 61): ("a1", "team-a"),
        ProcessId(6002, 62): ("a2", "team-a"),
        ProcessId(6003, 63): ("b1", "team-b"),
    }
    for process, (uid, namespace) in pods.items():
        pod_uid = f"0e32a6ac-0000-4000-8000-0000000000{uid}"
        stage.node.start_rank(process=process, pod=PodCgroup(pod_uid, None)).record(step=140)
        stage.node.poll()
        stage.node.pods.hear([PodFacts(pod_uid, namespace, uid, uid, "Job")])
    stage.node.poll()

    def take(process: ProcessId, number: int) -> int:
        leave_window(stage.beside, process, window(process, evidence_id=f"auto-{process.pid}-{number}"))
        pieces = stage.take()
        stage.node.agent.hear_of_evidence([one.evidence_id for one in pieces], frozenset())
        return len(pieces)

    first, second, other = pods
    assert sum(take(first, number) for number in range(PIECES_OF_TENANT)) == PIECES_OF_TENANT
    assert (take(second, 0), take(other, 0)) == (0, 1)
    assert stage.refusals() == {"evidence_too_many": 1}


def test_evidence_collector_exports_collect_success(stage: Stage) -> None:
    assert "evidence" not in stage.node.agent.view().collect_success
    leave_window(stage.beside, PID)
    stage.take()
    stage.node.poll()
    assert stage.node.agent.view().collect_success["evidence"] is True


def test_another_ranks_evidence_is_its_own(stage: Stage) -> None:
    second = ProcessId(4343, 5)
    rank: FakeRank = stage.node.start_rank(process=second, who=identity(job_id=JobId("job-2"), rank=GlobalRank(1)))
    rank.record()
    leave_window(stage.beside, PID)
    leave_window(stage.beside, second, replace(window(second), evidence_id="auto-9"))
    stage.take()
    stage.node.agent.hear_of_evidence([], frozenset())
    found = {one.evidence_id: (one.job.job_id, one.rank) for one in stage.take()}
    assert found == {"auto-7": ("job-1", 0), "auto-9": ("job-2", 1)}


def test_early_alone_says_what_it_can(stage: Stage) -> None:
    leave_window(stage.beside, PID, window(PID, late_step=None, late_file=None, problem="the job ended"))
    [evidence] = stage.take()
    assert (evidence.growth, evidence.problems) == ((), ("the job ended",))
    assert [ref.step for ref in evidence.snapshots] == [early().facts["step"]]


def test_snapshots_of_a_forgotten_person_are_deleted_at_once_and_no_others(stage: Stage) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    collector = stage.node.collector
    assert collector is not None
    for uid in (evidence.job.uid + 1, evidence.job.uid):
        assert len(list(stage.snapshots.rglob("*.zst"))) == 2
        collector.hear_of_forgotten((Forgotten(4e9, (uid,)),))
        assert collector.wait_idle(DONE_S)
    assert list(stage.snapshots.rglob("*.zst")) == []


def test_a_store_that_is_away_is_asked_again_for_a_forgotten_person(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_window(stage.beside, PID)
    [evidence] = stage.take()
    collector, removed = stage.node.collector, FolderStore.remove
    assert collector is not None

    def away(_store: FolderStore, _key: str) -> None:
        raise SnapshotStoreError("the bucket is away")

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "remove", away)
        collector.hear_of_forgotten((Forgotten(4e9, (evidence.job.uid,)),))
        assert collector.wait_idle(DONE_S)
    assert FolderStore.remove is removed
    assert len(list(stage.snapshots.rglob("*.zst"))) == 2
    collector._tidy()
    assert list(stage.snapshots.rglob("*.zst")) == []
