"""Freeing: at once, or after other streams have finished (``record_stream``)."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.blocks import set_free
from tidegauge.core.allocator.compiled import compiled
from tidegauge.core.allocator.device import FREE_COMPLETED
from tidegauge.core.allocator.layout import (
    ALLOCATED,
    DOUBLE_FREE,
    GONE,
    NONE,
    OTHER_SIZE,
    PENDING,
    UNKNOWN_FREE,
    Record,
    Tables,
)
from tidegauge.core.allocator.tables import block_in, forget_live, set_gone, slot_of


@compiled
def request_free(t: Tables, block: int) -> None:
    """The owner has freed it: it counts as allocated no more, but stays active."""
    blocks, numbers = t.blocks, t.numbers
    numbers[at.ALLOCATED_BYTES] -= blocks[block + at.SIZE]
    numbers[at.REQUESTED_BYTES] -= blocks[block + at.REQUESTED]
    blocks[block + at.STATE] = PENDING


@compiled
def complete_free(t: Tables, block: int) -> None:
    """No stream uses it any more."""
    t.numbers[at.ACTIVE_BYTES] -= t.blocks[block + at.SIZE]
    set_free(t, block)


@compiled
def wait(t: Tables, block: int) -> None:
    """Note a block that is PENDING for longer than the event itself."""
    blocks = t.blocks
    first = t.numbers[at.FIRST_PENDING]
    blocks[block + at.KEY] = NONE
    blocks[block + at.TIE] = first
    if first != NONE:
        blocks[first + at.KEY] = block
    t.numbers[at.FIRST_PENDING] = block


@compiled
def stop_waiting(t: Tables, block: int) -> None:
    blocks = t.blocks
    before, after = blocks[block + at.KEY], blocks[block + at.TIE]
    if before == NONE:
        t.numbers[at.FIRST_PENDING] = after
    else:
        blocks[before + at.TIE] = after
    if after != NONE:
        blocks[after + at.KEY] = before


@compiled
def complete_at(t: Tables, slot: int) -> None:
    """The recorded end of a free, whose entry among the live allocations this is."""
    block = block_in(t, slot)
    if block != GONE:
        if t.blocks[block + at.STATE] == ALLOCATED:  # the recorder was told to leave out the request
            request_free(t, block)
        else:
            stop_waiting(t, block)
        complete_free(t, block)
    forget_live(t, slot)


@compiled
def complete_all(t: Tables) -> None:
    """Wait for all streams: ``synchronize_and_free_events``. What the recording says of these frees later is past."""
    while t.numbers[at.FIRST_PENDING] != NONE:
        block = t.numbers[at.FIRST_PENDING]
        stop_waiting(t, block)
        set_gone(t, slot_of(t, t.blocks[block + at.OWNER]))
        complete_free(t, block)


@compiled
def fail(t: Tables, error: int, event: int) -> None:
    """Stop the replay before this event."""
    t.numbers[at.ERROR] = error
    t.numbers[at.ERROR_EVENT] = event


@compiled
def unknown_free(t: Tables, event: int) -> None:
    if t.numbers[at.COMPLETE]:
        fail(t, UNKNOWN_FREE, event)
    else:
        t.numbers[at.SKIPPED_FREES] += 1


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
        if blocks[block + at.STATE] != ALLOCATED:
            fail(t, DOUBLE_FREE, event)
            return event
        if blocks[block + at.REQUESTED] != r.size[event]:
            fail(t, OTHER_SIZE, event)
            return event
        request_free(t, block)
        if ends or not t.numbers[at.COMPLETES]:
            complete_free(t, block)
        else:
            wait(t, block)
    if ends or not t.numbers[at.COMPLETES]:
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
