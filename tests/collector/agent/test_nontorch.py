from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fake_node import GIB, MIB
from tidegauge.agent.ranks.device_series import PATIENCE_NS, NontorchMeter
from tidegauge.core.samples import EventCode, RecordKind, Sample

S = 1_000_000_000


def record(at_s: float, reserved: int) -> Sample:
    known = (1, RecordKind.TICK, EventCode.NONE, 0, 0, int(at_s * S), 0, 0, 0, reserved, reserved)
    return Sample._make((*known, *[None] * 14, 0, 0, 0))


def test_is_nvml_minus_reserved_once_a_record_follows() -> None:
    meter = NontorchMeter()
    meter.record(record(1.0, 6 * GIB))
    meter.nvml_says(7 * GIB, mono_ns=2 * S)
    assert meter.bytes is None
    meter.record(record(2.1, 6 * GIB))
    assert meter.bytes == GIB


def test_a_segment_taken_just_before_nvml_looked_is_not_nontorch() -> None:
    meter = NontorchMeter()
    meter.record(record(1.0, 6 * GIB))
    meter.nvml_says(7 * GIB, mono_ns=2 * S)
    meter.record(record(2.1, 6 * GIB))
    meter.nvml_says(9 * GIB, mono_ns=3 * S)  # the allocator took 2 GiB at 2.9 s
    meter.record(record(3.1, 8 * GIB))
    assert meter.bytes == GIB


def test_a_segment_taken_just_after_nvml_looked_is_not_missing() -> None:
    meter = NontorchMeter()
    meter.record(record(1.0, 6 * GIB))
    meter.nvml_says(7 * GIB, mono_ns=2 * S)
    meter.record(record(2.1, 6 * GIB))
    meter.nvml_says(7 * GIB, mono_ns=3 * S)  # the allocator takes 2 GiB at 3.05 s
    meter.record(record(3.1, 8 * GIB))
    assert meter.bytes == GIB


def test_real_growth_shows_through_a_changing_reserved() -> None:
    meter = NontorchMeter()
    meter.record(record(1.0, 6 * GIB))
    meter.nvml_says(7 * GIB, mono_ns=2 * S)
    meter.record(record(2.1, 6 * GIB))
    meter.nvml_says(15 * GIB, mono_ns=3 * S)
    meter.record(record(3.1, 8 * GIB))
    assert meter.bytes == 7 * GIB


def test_nvml_waits_while_records_from_before_it_still_come_in() -> None:
    meter = NontorchMeter()
    meter.record(record(1.0, 6 * GIB))
    meter.nvml_says(9 * GIB, mono_ns=2 * S)
    meter.record(record(1.5, 8 * GIB))
    assert meter.bytes is None
    meter.record(record(2.5, 8 * GIB))
    assert meter.bytes == GIB


def test_a_rank_that_writes_nothing_any_more_is_settled_by_its_last_record() -> None:
    meter = NontorchMeter()
    meter.record(record(1.0, 6 * GIB))
    meter.nvml_says(7 * GIB, mono_ns=2 * S)
    meter.nvml_says(7 * GIB, mono_ns=2 * S + PATIENCE_NS)
    assert meter.bytes is None
    meter.nvml_says(7 * GIB, mono_ns=2 * S + PATIENCE_NS + 1)
    assert meter.bytes is None  # its ring is read after this, and may have more
    meter.nvml_says(7 * GIB, mono_ns=3 * S + PATIENCE_NS)
    assert meter.bytes == GIB


def test_an_agent_that_stood_still_reads_the_ring_before_it_gives_up() -> None:
    meter = NontorchMeter()
    meter.record(record(1.0, 6 * GIB))
    meter.nvml_says(7 * GIB, mono_ns=2 * S)
    meter.record(record(2.1, 6 * GIB))
    meter.nvml_says(9 * GIB, mono_ns=3 * S)  # the allocator took 2 GiB at 2.9 s
    meter.nvml_says(9 * GIB, mono_ns=10 * S)  # the whole machine slept
    assert meter.bytes == GIB
    meter.record(record(3.1, 8 * GIB))
    assert meter.bytes == GIB


def test_unknown_when_nvml_does_not_tell() -> None:
    meter = NontorchMeter()
    meter.nvml_says(7 * GIB, mono_ns=S)
    meter.record(record(1.5, 6 * GIB))
    assert meter.bytes is None  # nothing was known of reserved before
    meter.nvml_says(7 * GIB, mono_ns=2 * S)
    meter.record(record(2.5, 6 * GIB))
    assert meter.bytes == GIB
    meter.nvml_says(None, mono_ns=3 * S)
    assert meter.bytes is None


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=2, max_size=40))
def test_constant_nontorch_is_measured_exactly_whenever_the_allocator_rests_once(
    moves: list[tuple[int, bool]],
) -> None:
    """Reserved changes at random moments around NVML's readings; the meter never shows more than is there."""
    meter, reserved = NontorchMeter(), GIB
    meter.record(record(0, reserved))
    for poll, (size, before) in enumerate(moves, 1):
        next_reserved = size * 100 * MIB
        at_nvml = next_reserved if before else reserved
        meter.nvml_says(at_nvml + GIB, mono_ns=poll * S)
        reserved = next_reserved
        meter.record(record(poll + 0.25, reserved))
        meter.record(record(poll + 0.5, reserved))
        assert meter.bytes is not None
        assert meter.bytes <= GIB
    meter.nvml_says(reserved + GIB, mono_ns=(len(moves) + 1) * S)
    meter.record(record(len(moves) + 1.5, reserved))
    assert meter.bytes == GIB
