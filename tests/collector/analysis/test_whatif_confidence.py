from __future__ import annotations

from tidegauge.analysis.whatif.results import ReplayConfidence
from tidegauge.analysis.whatif.search import confidence, delayed_frees, trace_doubts
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak
from tidegauge.core.allocator.trace import Action, Trace
from whatif_worlds import GIB, MIB, Event, alloc, free, replay_of, trace_of

NEW, OLD = AllocatorSettings(tie_break=TieBreak.SEGMENT), AllocatorSettings(tie_break=TieBreak.ADDRESS)
DELAYED = [
    *alloc(0, MIB),
    *alloc(1, MIB),
    Event(Action.FREE_REQUESTED, 0, MIB),
    *free(1, MIB),
    Event(Action.FREE_COMPLETED, 0, MIB),
]


def judged(
    trace: Trace, settings: AllocatorSettings, *, today: bool = False, mismatches: int = 0
) -> tuple[ReplayConfidence, str]:
    doubts = trace_doubts(trace, replay_of(GIB, address_mismatches=mismatches))
    level, reasons = confidence(doubts, settings, today=today)
    return level, "; ".join(reasons)


def test_a_whole_trace_of_a_new_torch_is_exact() -> None:
    assert judged(trace_of([*alloc(0, MIB), *free(0, MIB)]), NEW) == (ReplayConfidence.EXACT, "")


def test_whatif_confidence_is_close_if_addresses_decide_and_exact_for_todays_setting() -> None:
    level, reasons = judged(trace_of(), OLD)
    assert level is ReplayConfidence.CLOSE
    assert "lowest address" in reasons
    assert judged(trace_of(), OLD, today=True) == (ReplayConfidence.EXACT, "")


def test_addresses_inside_expandable_segments_are_known() -> None:
    expandable = AllocatorSettings(tie_break=TieBreak.ADDRESS, expandable_segments=True)
    assert judged(trace_of(), expandable)[0] is ReplayConfidence.EXACT


def test_frees_that_waited_for_another_stream_make_other_settings_close() -> None:
    trace = trace_of(DELAYED)
    assert delayed_frees(trace) == 1
    level, reasons = judged(trace, NEW)
    assert level is ReplayConfidence.CLOSE
    assert "1 blocks were given back" in reasons
    assert judged(trace, NEW, today=True)[0] is ReplayConfidence.EXACT


def test_a_lost_beginning_makes_every_figure_rough() -> None:
    level, reasons = judged(trace_of(complete=False), NEW, today=True)
    assert level is ReplayConfidence.ROUGH
    assert "beginning" in reasons


def test_whatif_confidence_counts_entries_left_out() -> None:
    level, reasons = judged(trace_of(skipped={"entries of an unknown action": 1200}), NEW)
    assert level is ReplayConfidence.CLOSE
    assert "1,200 entries of an unknown action left out" in reasons


def test_whatif_confidence_counts_entries_left_out_for_todays_setting() -> None:
    level, reasons = judged(trace_of(skipped={"entries of an unknown action": 1200}), NEW, today=True)
    assert level is ReplayConfidence.CLOSE
    assert "1,200 entries of an unknown action left out" in reasons


def test_completions_that_were_not_recorded_are_not_taken_for_delays() -> None:
    assert delayed_frees(trace_of([*alloc(0, MIB), Event(Action.FREE_REQUESTED, 0, MIB)])) == 0


def test_addresses_that_did_not_come_back_make_it_rough() -> None:
    level, reasons = judged(trace_of(), NEW, mismatches=7)
    assert level is ReplayConfidence.ROUGH
    assert "7 of 1,000 addresses" in reasons
