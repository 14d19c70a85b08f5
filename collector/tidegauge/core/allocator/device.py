"""Gets device memory and gives it back, as recorded or as the model assumes.

In a replay of the recorded settings the recording answers for the device: each segment event that the model arrives
at is compared with the next recorded one. Otherwise there is memory up to the cap and the capacity, at addresses of
the model's own.
"""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.blocks import drop_block, is_split, new_block, next_counter
from tidegauge.core.allocator.compiled import compiled
from tidegauge.core.allocator.free_blocks import take
from tidegauge.core.allocator.layout import FREE, NONE, Record, Tables

OWN_ADDRESSES = 1 << 57
"""The model's own segments lie below, and above every address that a recording can have."""
ADDRESS_STEP = 2 << 20
# Actions; see `tidegauge.core.allocator.trace.Action`.
ALLOC = 0
FREE_REQUESTED = 1
FREE_COMPLETED = 2
SEGMENT_ALLOC = 3
SEGMENT_FREE = 4
SEGMENT_MAP = 5
SEGMENT_UNMAP = 6
OOM = 8
LAST_ACTION = 9


@compiled
def note_mismatch(t: Tables, event: int, recorded: int, replayed: int) -> None:
    numbers = t.numbers
    if numbers[at.MISMATCHES] == 0:
        numbers[at.FIRST_MISMATCH] = event
        numbers[at.MISMATCH_RECORDED] = recorded
        numbers[at.MISMATCH_REPLAYED] = replayed
    numbers[at.MISMATCHES] += 1


@compiled
def is_next(t: Tables, r: Record, action: int) -> bool:
    """Whether this action is the recording's next one within the present request."""
    return t.numbers[at.CURSOR] < t.numbers[at.LIMIT] and r.action[t.numbers[at.CURSOR]] == action


@compiled
def is_next_at(t: Tables, r: Record, action: int, address: int, size: int) -> bool:
    """The same, at this place; then it is passed."""
    cursor = t.numbers[at.CURSOR]
    if is_next(t, r, action) and r.address[cursor] == address and r.size[cursor] == size:
        t.numbers[at.CURSOR] = cursor + 1
        return True
    return False


@compiled
def own_address(t: Tables, size: int) -> int:
    """An address for a segment that the recording has none for: each new segment lies below all earlier ones.

    As the driver mostly does; up to torch 2.11 the address decides among equally large blocks. With rising addresses 96
    of 126 recordings of an H200 come out at their own peak to the byte, with falling ones 116.
    """
    address = t.numbers[at.NEXT_ADDRESS] - (size + ADDRESS_STEP - 1) // ADDRESS_STEP * ADDRESS_STEP
    t.numbers[at.NEXT_ADDRESS] = address
    return address


@compiled
def grow_reserved(t: Tables, size: int) -> None:
    numbers = t.numbers
    numbers[at.DEVICE_ALLOCS] += 1
    numbers[at.RESERVED_BYTES] += size
    numbers[at.PEAK_RESERVED] = max(numbers[at.PEAK_RESERVED], numbers[at.RESERVED_BYTES])
    numbers[at.WINDOW_RESERVED] = max(numbers[at.WINDOW_RESERVED], numbers[at.RESERVED_BYTES])


@compiled
def is_over_cap(t: Tables, size: int) -> bool:
    return t.numbers[at.RESERVED_BYTES] + size > t.numbers[at.CAP]


@compiled
def has_memory(t: Tables, size: int) -> bool:
    """Whether the device would give that much, in a replay that does not follow the recording."""
    return t.numbers[at.RESERVED_BYTES] + size <= t.numbers[at.CAPACITY]


@compiled
def first_counter(t: Tables) -> int:
    """COUNTER of the first block of a new segment."""
    return next_counter(t) if t.numbers[at.BLOCK_COUNTERS] or t.numbers[at.SEGMENT_COUNTERS] else 0


@compiled
def segment_at(t: Tables, address: int, shelf: int, size: int) -> int:
    """A new segment: one block, in no set."""
    block = new_block(t, address, size, shelf, FREE)
    t.blocks[block + at.COUNTER] = first_counter(t)
    t.numbers[at.SEGMENTS] += 1
    grow_reserved(t, size)
    return block


@compiled
def own_segment(t: Tables, shelf: int, size: int) -> int:
    """A new segment at an address of the model's own, whatever the device says."""
    return segment_at(t, own_address(t, size), shelf, size)


@compiled
def new_segment(t: Tables, r: Record, shelf: int, size: int) -> int:
    """``cudaMalloc``: a block in no set, or NONE."""
    numbers = t.numbers
    if t.numbers[at.FOLLOWS]:
        if not is_next(t, r, SEGMENT_ALLOC):
            return NONE
        cursor = numbers[at.CURSOR]
        if r.size[cursor] == size:
            address = r.address[cursor]
        else:
            address = own_address(t, size)
            note_mismatch(t, cursor, r.address[cursor], address)
        numbers[at.CURSOR] = cursor + 1
    elif is_over_cap(t, size) or not has_memory(t, size):
        return NONE
    else:
        address = own_address(t, size)
    return segment_at(t, address, shelf, size)


@compiled
def release(t: Tables, r: Record, block: int) -> bool:
    """``cudaFree`` a free block that is a whole segment; false where the recording did not: then it stays."""
    blocks, numbers = t.blocks, t.numbers
    if is_split(blocks, block):
        return False
    if t.numbers[at.FOLLOWS] and not is_next_at(t, r, SEGMENT_FREE, blocks[block + at.START], blocks[block + at.SIZE]):
        return False
    take(t, block)
    numbers[at.RESERVED_BYTES] -= blocks[block + at.SIZE]
    numbers[at.DEVICE_FREES] += 1
    numbers[at.SEGMENTS] -= 1
    drop_block(t, block)
    return True
