"""Growth between two snapshots: the line that is to blame comes first, in recordings of real leaks and made-up ones."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from examples import fewer
from tidegauge.analysis.growth.diff import Comparison, compare
from tidegauge.analysis.snapshots.reading import read_bytes, read_snapshot
from tidegauge.analysis.snapshots.traces import trace_with_memory
from tidegauge.core.allocator.trace import BlockState, Frame, KnownBlock, KnownSegment, Stack, Trace
from tidegauge.core.evidence import PrivatePools
from tidegauge.core.evidence.owners import CodeLine

DATA = Path(__file__).parents[2] / "data" / "snapshots"
MIB = 1 << 20


def recorded(name: str) -> Comparison:
    sides = ("rank0", "rank1") if name.startswith("ddp_") else ("early", "late")
    early, late = (trace_with_memory(read_snapshot(next(DATA.glob(f"{name}.{side}.*")))) for side in sides)
    return compare(early, late)


class Truth(NamedTuple):
    """Of a recording: the line whose blocks are kept, how many, and the line that all of it came through."""

    line: str
    blocks: int
    through: str


LEAKS = {
    # losses.append(loss): the loss that cross_entropy allocated in loss_of
    "losses_append": Truth("train/scenarios.py:48 loss_of", 332, "train/scenarios.py:48 loss_of"),
    # total += loss in validation: seven lines of the model keep what backward would need, all called by one
    "total_loss_graph": Truth("train/scenarios.py:21 forward", 1992, "train/scenarios.py:83 total_loss_graph"),
    # kept.append(out[:1, :1]): a small view of the output of the model's last layer
    "outputs_kept": Truth("train/scenarios.py:34 forward", 33, "train/scenarios.py:34 forward"),
    "hook_activations": Truth("train/scenarios.py:98 hook", 332, "train/scenarios.py:98 hook"),
    "val_epoch_stair": Truth("train/scenarios.py:117 val_epoch_stair", 78, "train/scenarios.py:117 val_epoch_stair"),
    "slow_under_noise": Truth(
        "train/scenarios.py:154 slow_under_noise", 332, "train/scenarios.py:154 slow_under_noise"
    ),
    "late_leak": Truth("train/scenarios.py:161 late_leak", 198, "train/scenarios.py:161 late_leak"),
    "ddp_rank1_leak": Truth("train/dist_runs.py:30 <module>", 300, "train/dist_runs.py:30 <module>"),
    # healthy, and growing all the same: bounded
    "replay_buffer": Truth("train/scenarios.py:263 replay_buffer", 183, "train/scenarios.py:263 replay_buffer"),
    "best_model_copies": Truth(
        "train/scenarios.py:357 best_model_copies", 54, "train/scenarios.py:357 best_model_copies"
    ),
}
FLAT = (
    "fragmentation_growth", "untracked_cudamalloc", "ddp_comm_growth", "steady_lm", "cuda_graph", "ddp_steady",
    "periodic_eval", "checkpoint_spikes", "variable_length", "curriculum", "gc_sawtooth",
)  # fmt: skip


def told(line: CodeLine | None) -> str | None:
    return None if line is None else f"{line.filename}:{line.line} {line.function}"


def test_every_recording_is_in_the_table() -> None:
    assert {path.name.partition(".")[0] for path in DATA.glob("*.late.*")} | {
        path.name.partition(".")[0] for path in DATA.glob("*.rank1.*")
    } == {*LEAKS, *FLAT}


@pytest.mark.parametrize("name", LEAKS)
def test_the_true_line_comes_first(name: str) -> None:
    comparison, truth = recorded(name), LEAKS[name]
    assert told(comparison.lines[0].line) == truth.line
    assert told(comparison.growth[0].line) == truth.line
    assert comparison.lines[0].blocks == truth.blocks
    assert told(comparison.through) == truth.through
    assert any(told(line) == truth.through for line in comparison.growth[0].stack)


@pytest.mark.parametrize("name", sorted({*LEAKS} - {"total_loss_graph"}))
def test_diff_of_a_leak_names_only_the_leaking_line(name: str) -> None:
    assert [told(line.line) for line in recorded(name).lines] == [LEAKS[name].line]


@pytest.mark.parametrize("name", FLAT)
def test_diff_without_a_culprit_names_no_line(name: str) -> None:
    comparison = recorded(name)
    assert (comparison.growth, comparison.lines) == ((), ())
    assert comparison.through is None
    assert comparison.grown_bytes <= 0


def test_diff_reports_growth_of_reserved_memory_separately() -> None:
    assert recorded("fragmentation_growth").reserved_grown_bytes > 7 << 30
    assert recorded("untracked_cudamalloc").reserved_grown_bytes == 0


def test_diff_reports_private_pools_separately() -> None:
    recording = recorded("cuda_graph")
    assert recording.late_pools == PrivatePools(pools=1, reserved_bytes=400_556_032, live_bytes=71_525_376)
    assert recording.early_pools == recording.late_pools, "it records its graph once, before the first snapshot"
    assert recording.unused_bytes == 94_371_840 - 72_340_480
    assert recorded("fragmentation_growth").late_pools == PrivatePools()


def test_figures_agree_with_each_other() -> None:
    comparison = recorded("total_loss_graph")
    changed = [*comparison.growth, *comparison.shrunk]
    # Not exactly: what the allocator gave beyond a request is nobody's growth.
    assert sum(one.grown_bytes for one in changed) == pytest.approx(comparison.grown_bytes, rel=0.001)
    assert sum(one.grown_bytes for one in comparison.live) == comparison.late_live_bytes
    assert sum(size.grown_bytes for size in comparison.by_size) == pytest.approx(comparison.grown_bytes, rel=0.01)
    sizes = [one.grown_bytes for one in comparison.growth]
    assert sizes == sorted(sizes, reverse=True)


LIBRARY = Frame("forward", "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134)


def stack(*frames: str) -> Stack:
    """Innermost first: ``train.py:41 step``."""
    parts = [frame.replace(":", " ").split() for frame in frames]
    return tuple(Frame(function, filename, int(line)) for filename, line, function in parts)


class Block(NamedTuple):
    stack: Stack | None
    wanted_bytes: int
    size_bytes: int = 0
    """0: as wanted."""
    state: BlockState = BlockState.ACTIVE_ALLOCATED


def trace(blocks: Iterable[Block], *, address: int = 4096) -> Trace:
    """A snapshot of these blocks, without a history."""
    stacks: dict[Stack, int] = {}
    known: list[KnownBlock] = []
    start = address
    for block in blocks:
        size_bytes = block.size_bytes or block.wanted_bytes
        number = None if block.stack is None else stacks.setdefault(block.stack, len(stacks))
        known.append(KnownBlock(address, size_bytes, block.wanted_bytes, block.state, number))
        address += size_bytes
    segment = KnownSegment(start, address - start, 0, True, False, (0, 0), tuple(known))
    return Trace(
        action=array("B"), address=array("Q"), size_bytes=array("Q"), stream=array("H"), time_us=array("q"),
        pool=array("H"), stack=array("i"), stacks=tuple(stacks), end=(segment,) if known else (),
    )  # fmt: skip


def compared(early: Sequence[Block], late: Sequence[Block]) -> Comparison:
    return compare(trace(early), trace(late, address=1 << 40))


LEAK, STEP, EVAL = stack("train.py:41 step"), stack("train.py:17 step"), stack("train.py:80 evaluate")


def test_diff_ignores_blocks_reallocated_each_step() -> None:
    comparison = compared([Block(STEP, MIB)] * 8, [Block(STEP, MIB)] * 8)
    assert comparison.growth == ()


def test_blocks_that_got_a_stack_are_no_growth_beside_a_leak_of_their_size() -> None:
    """History began later: what was there has no stack, what took its place has one."""
    replaced = [Block(stack(f"train.py:{line} step"), MIB) for line in range(8)]
    comparison = compared([Block(None, MIB)] * 8, [*replaced, *[Block(LEAK, MIB)] * 30])
    assert [(told(one.line), one.grown_bytes, one.blocks) for one in comparison.growth] == [
        ("train.py:41 step", 30 * MIB, 30)
    ]


def test_diff_groups_blocks_without_a_stack_by_size() -> None:
    comparison = compared([Block(None, 4 * MIB)], [*[Block(None, 4 * MIB)] * 3, *[Block(None, MIB)] * 2])
    assert [(one.line, one.blocks, one.block_bytes) for one in comparison.growth] == [
        (None, 2, 4 * MIB),
        (None, 2, MIB),
    ]
    assert len(comparison.lines) == 2


def test_a_large_tensor_of_another_branch_does_not_hide_a_small_leak() -> None:
    comparison = compared(
        [Block(EVAL, 512 * MIB)], [Block(stack("train.py:50 train"), 512 * MIB), *[Block(LEAK, MIB)] * 30]
    )
    assert [told(line.line) for line in comparison.lines] == ["train.py:41 step"]


def test_a_longer_batch_has_grown_by_the_difference() -> None:
    comparison = compared([Block(STEP, 100 * MIB)], [Block(STEP, 130 * MIB)])
    assert [(one.grown_bytes, one.blocks) for one in comparison.growth] == [(30 * MIB, 0)]


def test_a_longer_batch_does_not_stand_for_a_new_block_of_its_old_size() -> None:
    late = [Block(STEP, 130 * MIB), Block(LEAK, 100 * MIB)]
    comparison = compared([Block(STEP, 100 * MIB)], late)
    assert [(told(line.line), line.grown_bytes) for line in comparison.lines] == [
        ("train.py:41 step", 100 * MIB),
        ("train.py:17 step", 30 * MIB),
    ]


def test_slack_that_the_allocator_gave_is_no_growth() -> None:
    early = [Block(STEP, 3 * MIB)] * 4
    late = [Block(STEP, 3 * MIB, 4 * MIB - 512)] * 4
    assert compared(early, late).growth == ()


def test_code_that_was_compiled_again_is_the_same_stack() -> None:
    def compiled(directory: str, number: int) -> Stack:
        return stack(
            f"/tmp/torchinductor_ada/{directory}/c{directory}x.py:{90 + number} call",
            f"<eval_with_key>.{number}:{number} forward",
            f"train.py:30 torch_dynamo_resume_in_step_at_{number}",
        )

    early = [Block(compiled("aa", 1), MIB), Block(compiled("aa", 1), 2 * MIB)]
    late = [Block(compiled("bb", 7), MIB), Block(compiled("bb", 7), 2 * MIB)]
    assert compared(early, late).growth == ()
    assert len(compared(early, late * 2).growth) == 1


def test_a_gradient_is_told_by_the_line_of_its_forward_pass() -> None:
    """Where anomaly mode recorded it; the threads of backward have no Python stack of their own."""
    forward = [
        '  File "train.py", line 9, in main\n    step()\n',
        '  File "train.py", line 41, in step\n    loss = f(x)\n',
    ]
    block = {"address": 4096, "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": []}
    segment = {
        "device": 0, "address": 4096, "total_size": MIB, "stream": 0, "segment_type": "large",
        "blocks": [{**block, "forward_frames": forward}],
    }  # fmt: skip
    late = read_bytes(pickle.dumps({"segments": [segment]})).traces[0]
    assert [told(line.line) for line in compare(trace([]), late).lines] == ["train.py:41 step"]
    odd_ones: tuple[object, ...] = ("text", [1], ["nothing like it"], [[]])
    for odd in odd_ones:
        segment["blocks"] = [{**block, "forward_frames": odd}]
        assert read_bytes(pickle.dumps({"segments": [segment]})).stacks == ()


def test_stacks_through_one_line_are_one_line() -> None:
    through = [(LIBRARY._replace(line=number), *LEAK) for number in range(20)]
    comparison = compared([], [*(Block(one, MIB) for one in through), Block(EVAL, 2 * MIB)])
    first, second = comparison.lines
    assert (told(first.line), first.grown_bytes, first.stacks) == ("train.py:41 step", 20 * MIB, 20)
    assert told(second.line) == "train.py:80 evaluate"
    assert comparison.growth[0].grown_bytes == 2 * MIB, "stacks are ranked by themselves"


def test_the_caller_is_the_next_line_of_the_users() -> None:
    chain = (*stack("model.py:5 forward"), LIBRARY, *stack("train.py:9 main"))
    comparison = compared([], [Block((LIBRARY, *chain), MIB)])
    assert told(comparison.lines[0].caller) == "train.py:9 main"


def test_diff_does_not_count_blocks_pending_free_as_live() -> None:
    comparison = compared([], [Block(STEP, MIB, state=BlockState.ACTIVE_PENDING_FREE), Block(STEP, MIB)])
    assert comparison.grown_bytes == MIB


def test_two_empty_processes_are_alike() -> None:
    comparison = compared([], [])
    assert (comparison.grown_bytes, comparison.growth, comparison.new_blocks) == (0, (), 0)


def test_new_blocks_are_those_that_were_not_there() -> None:
    early = [Block(STEP, MIB), Block(LEAK, MIB)]
    late = [Block(STEP, MIB), Block(EVAL, MIB), Block(LEAK, MIB)]
    assert compare(trace(early), trace(late)).new_blocks == 2


SIZES = st.sampled_from([512, 4096, 65_536, MIB, 7 * MIB])


@given(
    st.lists(st.tuples(st.integers(1, 12), SIZES, st.integers(1, 3), st.booleans()), max_size=12),
    st.lists(st.tuples(SIZES, st.integers(1, 5)), max_size=6),
    SIZES,
    st.integers(4, 40),
)
def test_a_leak_comes_first_and_whole_whatever_churns_beside_it(
    churn: list[tuple[int, int, int, bool]], old: list[tuple[int, int]], leaked_bytes: int, leaked: int
) -> None:
    """Churn: line, size, blocks at the end of each step, and whether they were there before recording began."""
    kept = [Block(None, size_bytes) for size_bytes, count in old for _ in range(count)]
    early, late = list(kept), list(kept)
    by_line: dict[tuple[int, int], int] = {}
    for line, size_bytes, count, began_before in churn:
        allocated = stack(f"train.py:{line} step")
        early += [Block(None if began_before else allocated, size_bytes)] * count
        late += [Block(allocated, size_bytes)] * count
        by_line[line, size_bytes] = by_line.get((line, size_bytes), 0) + count * began_before
    if any(size_bytes == leaked_bytes and count >= leaked for (_, size_bytes), count in by_line.items()):
        reject()  # as many blocks of its size were replaced through one line: nobody can tell them apart
    comparison = compared(early, [*late, *[Block(LEAK, leaked_bytes)] * leaked])
    assert [(told(line.line), line.grown_bytes) for line in comparison.lines] == [
        ("train.py:41 step", leaked * leaked_bytes)
    ]
    assert comparison.shrunk == ()


BLOCKS = st.lists(
    st.tuples(st.sampled_from([None, LEAK, STEP, EVAL]), st.sampled_from([512, 1024, 4096, MIB])).map(
        lambda pair: Block(*pair)
    ),
    max_size=30,
)


@fewer(2)
@given(BLOCKS, BLOCKS)
def test_growth_adds_up_for_any_two_snapshots(early: list[Block], late: list[Block]) -> None:
    comparison = compared(early, late)
    changed = [*comparison.growth, *comparison.shrunk]
    assert sum(one.grown_bytes for one in changed) == comparison.grown_bytes
    assert sum(line.grown_bytes for line in comparison.lines) >= comparison.grown_bytes
    back = compared(late, early)
    assert back.grown_bytes == -comparison.grown_bytes
    assert sum(size.blocks for size in back.by_size) == -sum(size.blocks for size in comparison.by_size)
