"""Freeing: at once, or after other streams have finished (``record_stream``). Source-compatible with Python 3.9."""

from __future__ import annotations

from tidegauge.core.allocator.blocks import set_free
from tidegauge.core.allocator.compiled import compiled
from tidegauge.core.allocator.device import FREE_COMPLETED
from tidegauge.core.allocator.layout import (
    ACTIVE_BYTES,
    ALLOCATED,
    ALLOCATED_BYTES,
    COMPLETE,
    COMPLETES,
    DOUBLE_FREE,
    ERROR,
    ERROR_EVENT,
    FIRST_PENDING,
    GONE,
    KEY,
    NONE,
    OTHER_SIZE,
    OWNER,
    PENDING,
    REQUESTED,
    REQUESTED_BYTES,
    SIZE,
    SKIPPED_FREES,
    STATE,
    TIE,
    UNKNOWN_FREE,
    Record,
    Tables,
)
from tidegauge.core.allocator.live_blocks import block_in, forget_live, set_gone, slot_of


@compiled
def request_free(t: Tables, block: int) -> None:
    """The owner has freed it: it counts as allocated no more, but stays active."""
    blocks, numbers = t.blocks, t.numbers
    numbers[ALLOCATED_BYTES] -= blocks[block + SIZE]
    numbers[REQUESTED_BYTES] -= blocks[block + REQUESTED]
    blocks[block + STATE] = PENDING


@compiled
def complete_free(t: Tables, block: int) -> None:
    """No stream uses it any more."""
    t.numbers[ACTIVE_BYTES] -= t.blocks[block + SIZE]
    set_free(t, block)


@compiled
def wait(t: Tables, block: int) -> None:
    """Note a block that is PENDING for longer than the event itself."""
    blocks = t.blocks
    first = t.numbers[FIRST_PENDING]
    blocks[block + KEY] = NONE
    blocks[block + TIE] = first
    if first != NONE:
        blocks[first + KEY] = block
    t.numbers[FIRST_PENDING] = block


@compiled
def stop_waiting(t: Tables, block: int) -> None:
    blocks = t.blocks
    before, after = blocks[block + KEY], blocks[block + TIE]
    if before == NONE:
        t.numbers[FIRST_PENDING] = after
    else:
        blocks[before + TIE] = after
    if after != NONE:
        blocks[after + KEY] = before


@compiled
def complete_at(t: Tables, slot: int) -> None:
    """The recorded end of a free, whose entry among the live allocations this is."""
    block = block_in(t, slot)
    if block != GONE:
        if t.blocks[block + STATE] == ALLOCATED:  # the recorder was told to leave out the request
            request_free(t, block)
        else:
            stop_waiting(t, block)
        complete_free(t, block)
    forget_live(t, slot)


@compiled
def complete_all(t: Tables) -> None:
    """Wait for all streams: ``synchronize_and_free_events``. What the recording says of these frees later is past."""
    while t.numbers[FIRST_PENDING] != NONE:
        block = t.numbers[FIRST_PENDING]
        stop_waiting(t, block)
        set_gone(t, slot_of(t, t.blocks[block + OWNER]))
        complete_free(t, block)


@compiled
def fail(t: Tables, error: int, event: int) -> None:
    """Stop the replay before this event."""
    t.numbers[ERROR] = error
    t.numbers[ERROR_EVENT] = event


@compiled
def unknown_free(t: Tables, event: int) -> None:
    if t.numbers[COMPLETE]:
        fail(t, UNKNOWN_FREE, event)
    else:
        t.numbers[SKIPPED_FREES] += 1


@compiled
def free(t: Tables, r: Record, event: int) -> int:
    """The owner frees. The answer is the next event: the end of the free mostly follows at once."""
    blocks = t.blocks
    address = r.address[event]
    slot = slot_of(t, address)
    block = block_in(t, slot)
    if block == NONE:
        unknown_free(t, event)
        return event + 1
    after = event + 1
    ends = after < len(r.action) and r.action[after] == FREE_COMPLETED and r.address[after] == address
    if block != GONE:
        if blocks[block + STATE] != ALLOCATED:
            fail(t, DOUBLE_FREE, event)
            return event
        if blocks[block + REQUESTED] != r.size[event]:
            fail(t, OTHER_SIZE, event)
            return event
        request_free(t, block)
        if ends or not t.numbers[COMPLETES]:
            complete_free(t, block)
        else:
            wait(t, block)
    if ends or not t.numbers[COMPLETES]:
        forget_live(t, slot)
    return after + 1 if ends else after


@compiled
def end_free(t: Tables, r: Record, event: int) -> None:
    """A free ends that other streams have held up."""
    slot = slot_of(t, r.address[event])
    if block_in(t, slot) == NONE:
        unknown_free(t, event)
    else:
        complete_at(t, slot)
