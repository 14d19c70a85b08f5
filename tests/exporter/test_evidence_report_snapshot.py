from __future__ import annotations

from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from report_contents import LEAK_BYTES, code_lines, made_trace, stacks
from sample_views import MIB
from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, Trace
from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.owners import CodeLine
from tidegauge_exporter.reports.snapshot_data import (
    GROWN,
    MAX_BLOCKS,
    MAX_EVENTS,
    MAX_STACKS,
    MAX_TEXT_CHARS,
    NO_STACK,
    StackNumbers,
    growth_weights,
    history,
    live_weights,
    memory_map,
    pool_rows,
)

LEAK = StackGrowth(29 * LEAK_BYTES, 29, code_lines(stacks()[0]), None)


def curve(told: dict[str, object], name: str) -> list[int]:
    """Bytes after each event."""
    held = told[f"{name}_before"]
    assert isinstance(held, int)
    changes = told[name]
    assert isinstance(changes, list)
    return [held := held + change for change in changes]


def test_the_history_ends_at_what_the_snapshot_holds() -> None:
    trace = made_trace(steps=5)
    told = history(trace, StackNumbers())
    assert told is not None
    live = sum(held for _, held, _ in live_weights(trace, StackNumbers()))
    assert curve(told, "allocated")[-1] == live
    assert curve(told, "reserved")[-1] == sum(segment.total_bytes for segment in trace.end or ())


def test_a_history_that_lacks_its_beginning_starts_at_what_lived_before_it() -> None:
    whole = made_trace(steps=5)
    cut = len(whole) // 2
    columns = {name: getattr(whole, name)[cut:] for name in ("action", "address", "size_bytes", "stream", "time_us")}
    later = replace(whole, **columns, stack=whole.stack[cut:])
    all_told, told = history(whole, StackNumbers()), history(later, StackNumbers())
    assert all_told is not None
    assert told is not None
    assert curve(all_told, "allocated")[-len(told["allocated"]) :] == curve(told, "allocated")


def test_evidence_report_history_keeps_the_newest_events() -> None:
    trace = made_trace(steps=700)
    told = history(trace, StackNumbers())
    assert told is not None
    assert told["left_out"] == len(trace) - MAX_EVENTS > 0
    assert curve(told, "allocated")[-1] == sum(held for _, held, _ in live_weights(trace, StackNumbers()))


def test_without_free_requests_the_completed_ones_count() -> None:
    trace = Trace(
        action=array("B", [Action.ALLOC, Action.FREE_COMPLETED]), address=array("Q", [0, 0]),
        size_bytes=array("Q", [700, 700]), stream=array("H", [0, 0]), time_us=array("q"), pool=array("H"),
        stack=array("i"), end=(),
    )  # fmt: skip
    told = history(trace, StackNumbers())
    assert told is not None
    assert told["allocated"] == [700, -700]
    assert (told["time_us"], told["stack"]) == (None, None)


@given(st.lists(st.integers(-(1 << 62), 1 << 62), min_size=1))
def test_a_clock_that_goes_back_stands_still(times_us: list[int]) -> None:
    count = len(times_us)
    trace = Trace(
        action=array("B", [Action.ALLOC] * count), address=array("Q", range(count)),
        size_bytes=array("Q", [1] * count), stream=array("H", [0] * count), time_us=array("q", times_us),
        pool=array("H"), stack=array("i"), end=(),
    )  # fmt: skip
    told = history(trace, StackNumbers())
    assert told is not None
    assert min(told["time_us"]) >= 0
    assert told["time_us"][0] == 0


def test_no_events_are_no_history() -> None:
    empty = replace(made_trace(steps=1), action=array("B"))
    assert history(empty, StackNumbers()) is None


def test_the_map_holds_every_byte_of_the_snapshot_once() -> None:
    trace = made_trace(steps=3)
    told = memory_map(trace, None, (), StackNumbers())
    assert told is not None
    assert sum(told["segments"]["bytes"]) == sum(told["blocks"]["bytes"])
    assert sum(told["segments"]["blocks"]) == len(told["blocks"]["bytes"])
    assert set(told["blocks"]["state"]) == {BlockState.INACTIVE, BlockState.ACTIVE_ALLOCATED}
    assert not told["compared"]


def test_evidence_report_map_marks_only_new_blocks_of_growing_stacks() -> None:
    early, late, numbers = made_trace(steps=1), made_trace(steps=30), StackNumbers()
    told = memory_map(late, early, (LEAK,), numbers)
    assert told is not None
    grown = [size for size, state in zip(told["blocks"]["bytes"], told["blocks"]["state"]) if state == GROWN]
    assert grown == [LEAK_BYTES] * 29
    assert GROWN not in memory_map(late, early, (), numbers)["blocks"]["state"]  # type: ignore[index]


def test_of_too_many_blocks_the_largest_segments_are_shown() -> None:
    blocks = (KnownBlock(0, 512, 0, BlockState.INACTIVE),) * (MAX_BLOCKS // 2 + 1)
    small = KnownSegment(0, 2 * MIB, 0, False, False, (0, 0), blocks)
    large = KnownSegment(1 << 40, 9 * MIB, 0, True, False, (0, 0), blocks)
    told = memory_map(replace(made_trace(steps=1), end=(small, large)), None, (), StackNumbers())
    assert told is not None
    assert (told["segments"]["bytes"], told["left_out"]) == ([9 * MIB], 1)


def test_pools_are_summed_up_with_their_largest_gap() -> None:
    segment = KnownSegment(
        0, 20 * MIB, 7, True, False, (0, 3),
        (
            KnownBlock(0, 8 * MIB, 8 * MIB, BlockState.ACTIVE_ALLOCATED),
            KnownBlock(8 * MIB, 5 * MIB, 5 * MIB, BlockState.ACTIVE_PENDING_FREE),
            KnownBlock(13 * MIB, 7 * MIB, 0, BlockState.INACTIVE),
        ),
    )  # fmt: skip
    (row,) = pool_rows([segment])
    assert (row.pool, row.stream, row.segments) == ((0, 3), 7, 1)
    assert [row.live_bytes, row.pending_bytes, row.free_bytes, row.largest_free_bytes] == [
        8 * MIB, 5 * MIB, 7 * MIB, 7 * MIB,
    ]  # fmt: skip


def test_stacks_are_told_once_and_name_the_users_own_line() -> None:
    numbers = StackNumbers()
    one = code_lines(stacks()[0])
    assert numbers.number(one) == numbers.number(one) == 0
    assert numbers.number(()) == NO_STACK
    table = numbers.table()
    name, path, line, library = table["frames"][table["asking"][0]]
    assert (table["texts"][name], table["texts"][path], line, library) == ("step", "/home/ada/llm/train.py", 41, 0)
    assert [table["frames"][frame][3] for frame in table["stacks"][0]] == [1, 0, 0, 0]


def test_a_flood_of_stacks_is_bounded() -> None:
    numbers = StackNumbers()
    told = [numbers.number((CodeLine("a.py", line, "f" * 10_000),)) for line in range(MAX_STACKS + 2)]
    assert told[-3:] == [MAX_STACKS - 1, NO_STACK, NO_STACK]
    assert numbers.number((CodeLine("a.py", 0, "f" * 10_000),)) == 0
    assert max(map(len, numbers.table()["texts"])) <= MAX_TEXT_CHARS


def test_evidence_report_growth_flame_graph_omits_shrunk_stacks() -> None:
    numbers = StackNumbers()
    assert growth_weights((LEAK, LEAK._replace(grown_bytes=-5)), numbers) == [(0, 29 * LEAK_BYTES, 29)]
