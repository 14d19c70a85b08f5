"""One job's line, the shares of GPUs, and our remark in a comment: pure values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_hooks.slurm.fake_slurm import UID
from tidegauge.core.jobs.slurm import comment_words
from tidegauge_scheduler_hooks.ports import Presence
from tidegauge_scheduler_hooks.slurm.adapter import MAX_COMMENT_BYTES, with_remark, without_remark
from tidegauge_scheduler_hooks.slurm.facts_of_jobs import MAX_NODES, expand, gpu_share, needs_nodes
from tidegauge_scheduler_hooks.slurm.squeue_rows import Run, SqueueRow, parse_incarnation, parse_look, presence_of

RUN = Run(7, 1, 1_795_264_650)
NODES = {"n1": "gpu:fake:2,shard:fake:8", "n2": "gpu:h200:4(S:0-1),shard:h200:8(S:0-1)", "n3": "gpu:2,mps:200"}


def line(comment: bytes = b"", *, state: str = "RUNNING", task: str = "N/A", start: str = "1795264650") -> bytes:
    """As ``squeue`` of all three releases prints a job."""
    return f"7|{task}|{UID}|{state}|1|{start}|4294901759|1|1|N/A|".encode() + comment + b"|\n"


def look(
    state: str = "RUNNING", restarts: int = 1, *, held: bool = False, started_unix_s: int = 1_795_264_650
) -> SqueueRow:
    return SqueueRow(
        7, array=False, uid=UID, state=state, restarts=restarts, started_unix_s=started_unix_s, held=held, batch=True,
        may_requeue=True, het=False, comment="",
    )  # fmt: skip


# Lines


def test_a_line_is_read() -> None:
    assert parse_look(line()) == look()
    assert parse_look(line(start="N/A", state="PENDING")).started_unix_s is None
    assert [parse_look(line(task=task)).array for task in ("3", "6-900%1", "3%2", "N/A")] == [True, True, True, False]


@given(st.binary(max_size=200))
def test_a_comment_of_any_bytes_changes_no_other_field(comment: bytes) -> None:
    found = parse_look(line(comment))
    assert found._replace(comment="") == look()
    assert found.comment.encode(errors="surrogateescape") == comment


@given(st.binary(max_size=80))
def test_slurm_values_refuse_a_malformed_line(output: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whichever field is wrong first
        parse_look(output)


@given(st.integers(0, 10**10), st.integers(0, 10**6), st.integers(0, 10**11))
def test_an_incarnation_names_its_run(job_id: int, restarts: int, started_unix_s: int) -> None:
    run = Run(job_id, restarts, started_unix_s)
    assert parse_incarnation(run.incarnation) == run


@pytest.mark.parametrize("text", ["", "none", "7", "7#1", "7#1@", "7#1@x", "07#1@5", "7#1@5 ", "7#-1@5", "7@1#5"])
def test_any_other_text_names_none(text: str) -> None:
    assert parse_incarnation(text) is None


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (None, Presence.GONE),
        (look(), Presence.RUNNING),
        (look("SUSPENDED"), Presence.RUNNING),
        (look("CONFIGURING"), Presence.RUNNING),
        (look("COMPLETING"), Presence.STOPPING),
        (look("COMPLETING", 2), Presence.REPLACED),
        (look("COMPLETING", 2, held=True), Presence.HELD),
        (look("PENDING", 2), Presence.REPLACED),
        (look("PENDING", 2, held=True), Presence.HELD),
        (look("REQUEUED", 2), Presence.REPLACED),
        (look("SPECIAL_EXIT", 2, held=True), Presence.HELD),
        (look("RUNNING", 2), Presence.REPLACED),
        (look("RUNNING", held=True), Presence.RUNNING),
        (look("COMPLETED"), Presence.GONE),
        (look("COMPLETED", 2), Presence.GONE),
        (look("CANCELLED"), Presence.GONE),
        (look("OUT_OF_MEMORY"), Presence.GONE),
        (look("RUNNING", 0), Presence.GONE),
        (look("RUNNING", started_unix_s=1), Presence.GONE),
        (look()._replace(uid=UID + 1), Presence.GONE),
        (look()._replace(job_id=8), Presence.GONE),
    ],
)  # fmt: skip
def test_slurm_presence_of_a_run_follows_from_its_row(seen: SqueueRow | None, expected: Presence) -> None:
    assert presence_of(RUN, UID, seen) is expected


# Shares


@pytest.mark.parametrize(
    ("gres", "nodes", "expected"),
    [
        (["gpu:fake:1(IDX:0)"], "n1", None),
        ([], "", None),
        (["shard:fake:2(IDX:1)"], "n1", 0.5),
        (["shard:fake:2(IDX:1)"], "n2", 1.0),
        (["shard:fake:2(IDX:0-1)"], "n1", 0.25),
        (["shard:fake:2(0/4,2/4)"], "n9", 0.5),
        (["shard:fake:4(3/4,1/4)"], "n9", 0.25),
        (["shard:fake:1(IDX:0)", "shard:fake:1(IDX:0)"], "n[1-2]", 0.25),
        (["mps:25(IDX:0)"], "n3", 0.25),
        (["shard:fake:2(IDX:1)"], "n9", None),
        (["shard:fake:9(IDX:1)"], "n1", None),
        (["nonsense", "shard:", "shard:x:y(0/0)"], "n[1-3]", None),
    ],
)
def test_the_share_of_a_card(gres: list[str], nodes: str, expected: float | None) -> None:
    assert gpu_share(gres, nodes, NODES) == expected


def test_nodes_are_asked_about_only_where_a_job_does_not_say_it_all() -> None:
    assert needs_nodes(["gpu:fake:1(IDX:0)", "shard:fake:2(IDX:1)"])
    assert not needs_nodes(["shard:fake:2(0/4,2/4)"])
    assert not needs_nodes(["gpu:fake:1(IDX:0)"])


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("", []), ("n1", ["n1"]), ("n[1-2]", ["n1", "n2"]), ("a,b[08-10,20],c", ["a", "b08", "b09", "b10", "b20", "c"]),
        ("r[1-2]n[3-4]x", ["r1n3x", "r1n4x", "r2n3x", "r2n4x"]),
    ],
)  # fmt: skip
def test_host_lists(nodes: str, names: list[str]) -> None:
    assert expand(nodes) == names


def test_a_host_list_without_end_is_cut_off() -> None:
    assert len(expand("n[0-999999999]")) == MAX_NODES


@given(st.text(alphabet="n0123456789[]-,:()/IDXshardgpu", max_size=60), st.text(alphabet="n019[]-,", max_size=40))
def test_any_gres_and_any_host_list_give_a_share_or_none(gres: str, nodes: str) -> None:
    share = gpu_share([gres], nodes, {"n1": gres})
    assert share is None or 0 < share <= 1


# Remarks


@given(st.text(max_size=1200), st.text(max_size=1200), st.text(max_size=1200))
def test_a_remark_leaves_the_owners_words_as_they_are(comment: str, first: str, second: str) -> None:
    own = without_remark(comment)
    once = with_remark(own, first)
    if once is None:
        return
    assert len(once.encode()) <= MAX_COMMENT_BYTES
    assert without_remark(once) == own
    assert comment_words(once) == comment_words(own)
    twice = with_remark(once, second)
    assert twice == with_remark(own, second)


@pytest.mark.parametrize("text", ["tidegauge:requeue", "x Tidegauge:Keep, y", "] tidegauge:requeue [", "a\n\x1b[31mb"])
def test_no_remark_holds_a_word_of_the_owners(text: str) -> None:
    found = with_remark("", text)
    assert found is not None
    assert found.isprintable()
    assert comment_words(found) == frozenset()
