"""Feeds the events of a trace to the allocator, one after the other."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.cache import releasable, release_all
from tidegauge.core.allocator.compiled import compiled, entry_point
from tidegauge.core.allocator.device import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    LAST_ACTION,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_UNMAP,
    note_mismatch,
    own_segment,
)
from tidegauge.core.allocator.free_blocks import take
from tidegauge.core.allocator.frees import complete_free, end_free, fail, free, request_free
from tidegauge.core.allocator.layout import (
    BAD_SIZE,
    FINE,
    GONE,
    LIVE_ADDRESS,
    MAX_SIZE_BYTES,
    NO_ROOM,
    NONE,
    UNKNOWN_ACTION,
    UNKNOWN_POOL,
    UNKNOWN_STREAM,
    Events,
    Record,
    Tables,
)
from tidegauge.core.allocator.requests import as_recorded, best_fit, found_before, grow, hand_out
from tidegauge.core.allocator.sizes import rounded_size, segment_bytes, shelf_of
from tidegauge.core.allocator.tables import block_in, note_live, slot_of
from tidegauge.core.allocator_sizes import MAX_SMALL_BYTES

SPARE_BLOCKS = 16
"""More than one event makes, giving back the cache apart."""


@compiled
def has_room(t: Tables) -> bool:
    """Whether the tables hold what one event can add: unmapping may make two blocks more of each."""
    numbers = t.numbers
    needed = 3 * numbers[at.BLOCKS] if numbers[at.UNMAPS] else numbers[at.BLOCKS]
    return needed + SPARE_BLOCKS <= numbers[at.ROOM] and 2 * numbers[at.LIVE] + 2 <= numbers[at.LIVE_MASK]


@compiled
def is_segment_event(action: int) -> bool:
    return SEGMENT_ALLOC <= action <= SEGMENT_UNMAP


@compiled
def is_release(action: int) -> bool:
    return action in (SEGMENT_FREE, SEGMENT_UNMAP)


@compiled
def shelf_at(t: Tables, e: Events, event: int, size: int) -> int:
    """The shelf for the request of this event, whose rounded size it is; NONE, and an error, where there is none."""
    if e.stream[event] >= len(e.ranks):
        fail(t, UNKNOWN_STREAM, event)
        return NONE
    pool = 0
    if len(e.pool):
        if e.pool[event] >= len(e.pool_numbers):
            fail(t, UNKNOWN_POOL, event)
            return NONE
        pool = e.pool_numbers[e.pool[event]]
    return shelf_of(t.numbers, pool, e.ranks[e.stream[event]], 1 if size <= MAX_SMALL_BYTES else 0)


@compiled
def shelf_asked(t: Tables, r: Record, e: Events, event: int) -> int:
    """The shelf for the request of this event; NONE, and an error, where the event contradicts what was before."""
    if r.size[event] < 0 or r.size[event] > MAX_SIZE_BYTES:
        fail(t, BAD_SIZE, event)
        return NONE
    if r.action[event] == ALLOC and block_in(t, slot_of(t, r.address[event])) != NONE:
        fail(t, LIVE_ADDRESS, event)
        return NONE
    return shelf_at(t, e, event, rounded_size(t.numbers, r.size[event]))


@compiled
def answer(t: Tables, r: Record, event: int, block: int) -> None:
    """Hand the block, or NONE, to the program; where the recording has an OOM, free it again."""
    numbers = t.numbers
    if numbers[at.PEAK_RESERVED] > numbers[at.COUNTED_PEAK]:
        numbers[at.COUNTED_PEAK] = numbers[at.PEAK_RESERVED]
        numbers[at.ALLOCATED_AT_PEAK_RESERVED] = numbers[at.ALLOCATED_BYTES]
    address = r.address[event]
    if r.action[event] == ALLOC:
        note_live(t, slot_of(t, address), address, GONE if block == NONE else block)
        if block == NONE:
            return
        t.blocks[block + at.OWNER] = address
        if numbers[at.FOLLOWS] and t.blocks[block + at.START] != address:
            note_mismatch(t, event, address, t.blocks[block + at.START])
    elif block != NONE:
        if numbers[at.FOLLOWS]:
            note_mismatch(t, event, 0, t.blocks[block + at.START])
        else:
            numbers[at.RECOVERED] += 1
        request_free(t, block)
        complete_free(t, block)


@compiled
def first_answer(t: Tables, r: Record, event: int) -> int:
    """The event with the request's answer: where the recording is followed, it comes after segment events and frees."""
    if not t.numbers[at.FOLLOWS]:
        return event
    end = event
    while end < len(r.action) and (is_segment_event(r.action[end]) or r.action[end] == FREE_COMPLETED):
        end += 1
    if end > event or (end < len(r.action) and r.action[end] == OOM):
        t.numbers[at.BEGUN] = event
        t.numbers[at.CURSOR] = event
        t.numbers[at.LIMIT] = end
    return end


@compiled
def leave_record(t: Tables, r: Record) -> None:
    """Pass what is recorded of the request under way and did not happen: each segment event is a mismatch."""
    numbers = t.numbers
    for event in range(numbers[at.CURSOR], numbers[at.LIMIT]):
        if r.action[event] == FREE_COMPLETED:
            end_free(t, r, event)
        else:
            note_mismatch(t, event, r.address[event], 0)
    numbers[at.LIMIT] = 0
    numbers[at.CURSOR] = 0
    numbers[at.MAY_BE_CALL] = 0


@compiled
def request(t: Tables, r: Record, e: Events, event: int) -> int:
    """A request, as far as it is followed with the segment events before it. The answer is the next event."""
    numbers = t.numbers
    asked = first_answer(t, r, event)
    if asked == len(r.action) or (r.action[asked] != ALLOC and r.action[asked] != OOM):
        leave_record(t, r)
        return asked
    shelf = shelf_asked(t, r, e, asked)
    if shelf == NONE:
        return event
    requested = r.size[asked]
    size = rounded_size(numbers, requested)
    block = best_fit(t, shelf, size)
    if numbers[at.COLLECTS] and shelf < numbers[at.STREAMS]:
        numbers[at.SEARCHES] += 1
    if block != NONE and numbers[at.FOLLOWS] and not numbers[at.AGES_KNOWN]:
        block = as_recorded(t, r, asked, shelf, size, block)
    if block != NONE and found_before(t, r, block):
        take(t, block)
    else:
        block = grow(t, r, asked, shelf, requested, size)
        if block == NONE and numbers[at.FOLLOWS] and r.action[asked] == ALLOC:
            # The recording has it without a segment: the model has lost its way, which the address will show.
            block = own_segment(t, shelf, segment_bytes(numbers, size))
    if block == NONE:
        numbers[at.OOMS] += 1
        numbers[at.FAILURES] += 1
    else:
        block = hand_out(t, block, shelf, size, requested)
    answer(t, r, asked, block)
    leave_record(t, r)
    return asked + 1


@compiled
def end_of_releases(r: Record, event: int) -> int:
    end = event
    while end < len(r.action) and is_release(r.action[end]):
        end += 1
    return end


@compiled
def is_call(t: Tables, r: Record, e: Events, event: int) -> bool:
    """Whether the program called ``empty_cache()`` here; a followed recording must show that it released everything."""
    numbers = t.numbers
    listed = event == e.calls[numbers[at.NEXT_CALL]]
    if listed:
        numbers[at.NEXT_CALL] += 1
    if not numbers[at.FOLLOWS] or not is_release(r.action[event]):
        return listed
    end = end_of_releases(r, event)
    if not numbers[at.EXPANDABLE] or end == len(r.action) or r.action[end] != ALLOC:
        return listed and end - event >= releasable(t)
    # What a request has unmapped itself may serve it: but then it had found nothing before.
    shelf = shelf_at(t, e, end, rounded_size(numbers, r.size[end]))
    if shelf == NONE:
        return False
    found = best_fit(t, shelf, rounded_size(numbers, r.size[end])) != NONE
    numbers[at.MAY_BE_CALL] = 1 if listed and not found else 0
    return found and end - event >= releasable(t)


@compiled
def empty_cache(t: Tables, r: Record, event: int) -> int:
    """The program gives back its cache. The answer is the next event."""
    numbers = t.numbers
    end = end_of_releases(r, event)
    numbers[at.CURSOR] = event
    numbers[at.LIMIT] = end
    left = release_all(t, r)
    if numbers[at.FOLLOWS]:
        for other in range(numbers[at.CURSOR], end):
            note_mismatch(t, other, r.address[other], 0)
        if left > 0:
            note_mismatch(t, event, 0, 0)
    numbers[at.LIMIT] = 0
    numbers[at.CURSOR] = 0
    return end


@entry_point
def run(t: Tables, r: Record, e: Events, begin: int, end: int) -> int:
    """Replay the events from ``begin`` to ``end``, or a little farther. The answer is the next event.

    It stops early, with ERROR set, where the tables must grow or an event contradicts the ones before it.
    """
    numbers, follows = t.numbers, t.numbers[at.FOLLOWS]
    event = begin
    numbers[at.ERROR] = FINE
    while event < end and numbers[at.ERROR] == FINE:
        if not has_room(t):
            fail(t, NO_ROOM, event)
            return event
        action = r.action[event]
        after = event + 1
        if action == FREE_REQUESTED:
            after = free(t, r, event)
        elif action == FREE_COMPLETED:
            end_free(t, r, event)
        elif is_segment_event(action) and is_call(t, r, e, event):
            after = empty_cache(t, r, event)
        elif action in (ALLOC, OOM) or (follows and is_segment_event(action)):
            after = request(t, r, e, event)
        elif action > LAST_ACTION:
            fail(t, UNKNOWN_ACTION, event)
        event = after
    return event
