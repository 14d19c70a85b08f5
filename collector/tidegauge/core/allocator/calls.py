"""Infers the program's calls of ``empty_cache()``: no event records them, only the segments that they release."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.compiled import Numbers, compiled, entry_point
from tidegauge.core.allocator.device import ALLOC, FREE_COMPLETED, OOM, SEGMENT_ALLOC, SEGMENT_MAP, SEGMENT_UNMAP
from tidegauge.core.allocator.events import is_release, is_segment_event
from tidegauge.core.allocator.layout import UNLIMITED, Record
from tidegauge.core.allocator.sizes import rounded_size, segment_bytes
from tidegauge.core.allocator_sizes import SMALL_SEGMENT_BYTES

ACTIONS = 10


@entry_point
def count_actions(r: Record, counts: Numbers) -> int:
    """Count each action in ``counts``; returns the most bytes that segments take at once, beyond those at the start."""
    reserved = 0
    most = 0
    for event in range(len(r.action)):
        action = r.action[event]
        if action < ACTIONS:
            counts[action] += 1
        if is_segment_event(action):
            if action in (SEGMENT_ALLOC, SEGMENT_MAP):
                reserved += r.size[event]
            else:
                reserved -= r.size[event]
            most = max(most, reserved)
    return most


@compiled
def gives_small_back(r: Record, begin: int, end: int) -> bool:
    """Whether a segment of the small pool goes: garbage collection leaves them."""
    event = begin
    while event < end and not (is_release(r.action[event]) and r.size[event] == SMALL_SEGMENT_BYTES):
        event += 1
    return event < end


@compiled
def was_refused(rules: Numbers, r: Record, reserved: int, begin: int, growth: int, evident: int) -> bool:
    """Whether the request behind segments that go must first have been refused, or was garbage collected for.

    They go from ``begin`` on, until ``growth``; ``evident`` is what the recording shows that there was.
    """
    event = growth
    mapped = 0
    while event < len(r.action) and is_segment_event(r.action[event]):
        mapped += r.size[event] if r.action[event] == SEGMENT_MAP else 0
        event += 1
    if event == len(r.action) or r.action[event] != ALLOC or r.size[event] < 0:
        return True
    needed = max(mapped, segment_bytes(rules, rounded_size(rules, r.size[event])))
    if rules[at.COLLECTS] and reserved > rules[at.COLLECT_ABOVE] and not gives_small_back(r, begin, growth):
        return True
    limit = rules[at.CAP] if rules[at.CAP] < UNLIMITED else evident
    return reserved + needed > limit


@entry_point
def find_calls(rules: Numbers, r: Record, reserved: int, evident: int, calls: Numbers) -> int:
    """Write the events at which ``empty_cache()`` began to ``calls``; the answer is how many.

    Segments that go are a call, unless a request follows at once that takes a segment or fails, and that had to make
    room: the cap, or what the device evidently had, was reached with it.
    """
    count = 0
    event = 0
    while event < len(r.action):
        action = r.action[event]
        if not is_segment_event(action):
            event += 1
            continue
        if not is_release(action):
            reserved += r.size[event]
            event += 1
            continue
        begin = event
        before = reserved
        while event < len(r.action) and (r.action[event] == FREE_COMPLETED or is_release(r.action[event])):
            reserved -= r.size[event] if is_release(r.action[event]) else 0
            event += 1
        next_action = r.action[event] if event < len(r.action) else OOM + 1
        asks = next_action in (SEGMENT_ALLOC, SEGMENT_MAP)
        # What a request has unmapped itself may serve it without being mapped again.
        asks = asks or (next_action == ALLOC and r.action[event - 1] == SEGMENT_UNMAP)
        if next_action == OOM or (asks and was_refused(rules, r, before, begin, event, evident)):
            continue
        for other in range(begin, event):
            if is_release(r.action[other]) and (other == begin or not is_release(r.action[other - 1])):
                calls[count] = other
                count += 1
    return count
