"""Makes and enlarges the tables of a replay, and finds live allocations in them by their recorded addresses."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.compiled import compiled, entry_point, zeros
from tidegauge.core.allocator.device import OWN_ADDRESSES
from tidegauge.core.allocator.layout import BLOCK_FIELDS, CHUNK, FAILURE_FIELDS, GONE, HEADER, NONE, Tables
from tidegauge.core.allocator.results import MAX_FAILED

FIRST_ROOM = 1024
REGIONS = (at.ORDER_AT, at.LENGTHS_AT, at.CHUNKS_AT, at.SCRATCH_AT, at.LIVE_AT, at.LIVE_BLOCKS_AT)
"""In the order in which they lie behind the header."""


def empty_tables(rules: Sequence[int], room: int) -> Tables:
    """An allocator that has nothing yet, with room for so many blocks; ``rules`` are its first numbers."""
    numbers = zeros(HEADER + MAX_FAILED * FAILURE_FIELDS)
    numbers[: len(rules)] = rules
    for field in (at.SPARE_BLOCK, at.FIRST_MISMATCH, at.FIRST_PENDING):
        numbers[field] = NONE
    numbers[at.NEXT_ADDRESS] = OWN_ADDRESSES
    for region in REGIONS:
        numbers[region] = len(numbers)
    return larger_tables(Tables(zeros(0), numbers), max(FIRST_ROOM, room))


def grown(t: Tables) -> Tables:
    """The same state with much more room than it takes."""
    return larger_tables(t, 4 * (max(int(t.numbers[at.BLOCKS]), int(t.numbers[at.LIVE])) + FIRST_ROOM))


def larger_tables(t: Tables, room: int) -> Tables:
    """The same state with room for ``room`` blocks and as many live allocations; more than there is now."""
    slots = 1 << (2 * room).bit_length()
    chunks = 4 * room // CHUNK + 4  # neighbours are never less than half full together
    sizes = (chunks, chunks, chunks * CHUNK, room, slots, slots)
    header = HEADER + MAX_FAILED * FAILURE_FIELDS
    numbers = zeros(header + sum(sizes))
    numbers[:header] = t.numbers[:header]
    begin = header
    for region, size in zip(REGIONS, sizes):
        numbers[region] = begin
        begin += size
    numbers[at.ROOM] = room
    numbers[at.LIVE_MASK] = slots - 1
    blocks = zeros(room * BLOCK_FIELDS)
    blocks[: len(t.blocks)] = t.blocks
    larger = Tables(blocks, numbers)
    _fill(t, larger, chunks, slots)
    return larger


@entry_point
def _fill(t: Tables, larger: Tables, chunks: int, slots: int) -> None:
    """The regions of the larger tables: all chunks and live allocations of the former ones, the rest empty."""
    former, numbers = t.numbers, larger.numbers
    former_chunks = former[at.LENGTHS_AT] - former[at.ORDER_AT]
    for chunk in range(chunks):
        is_former = chunk < former_chunks
        numbers[numbers[at.ORDER_AT] + chunk] = former[former[at.ORDER_AT] + chunk] if is_former else chunk
        numbers[numbers[at.LENGTHS_AT] + chunk] = former[former[at.LENGTHS_AT] + chunk] if is_former else 0
    for place in range(former_chunks * CHUNK):
        numbers[numbers[at.CHUNKS_AT] + place] = former[former[at.CHUNKS_AT] + place]
    for slot in range(slots):
        numbers[numbers[at.LIVE_BLOCKS_AT] + slot] = NONE
    for slot in range(former[at.LIVE_BLOCKS_AT] - former[at.LIVE_AT]):
        block = former[former[at.LIVE_BLOCKS_AT] + slot]
        if block != NONE:
            address = former[former[at.LIVE_AT] + slot]
            new = slot_of(larger, address)
            numbers[numbers[at.LIVE_AT] + new] = address
            numbers[numbers[at.LIVE_BLOCKS_AT] + new] = block


@compiled
def _home(address: int, mask: int) -> int:
    """The slot where an address belongs (open addressing): its bits well mixed, as addresses are multiples of much."""
    mixed = (address ^ (address >> 31)) & 0x7FFFFFFF
    return ((mixed * 0x9E3779B1) >> 15) & mask


@compiled
def slot_of(t: Tables, address: int) -> int:
    """The slot of a live address, or the empty one where it would go."""
    numbers = t.numbers
    mask, addresses, blocks = numbers[at.LIVE_MASK], numbers[at.LIVE_AT], numbers[at.LIVE_BLOCKS_AT]
    slot = _home(address, mask)
    while numbers[blocks + slot] != NONE and numbers[addresses + slot] != address:
        slot = (slot + 1) & mask
    return slot


@compiled
def block_in(t: Tables, slot: int) -> int:
    """The block in a slot; GONE where the model has none for the allocation, NONE where the slot is empty."""
    return t.numbers[t.numbers[at.LIVE_BLOCKS_AT] + slot]


@compiled
def set_gone(t: Tables, slot: int) -> None:
    t.numbers[t.numbers[at.LIVE_BLOCKS_AT] + slot] = GONE


@compiled
def note_live(t: Tables, slot: int, address: int, block: int) -> None:
    """Fill an empty slot that `slot_of` found."""
    numbers = t.numbers
    numbers[numbers[at.LIVE_AT] + slot] = address
    numbers[numbers[at.LIVE_BLOCKS_AT] + slot] = block
    numbers[at.LIVE] += 1


@compiled
def forget_live(t: Tables, slot: int) -> None:
    """Empty a slot, moving up the entries behind it that would not be found any more."""
    numbers = t.numbers
    mask, addresses, blocks = numbers[at.LIVE_MASK], numbers[at.LIVE_AT], numbers[at.LIVE_BLOCKS_AT]
    numbers[blocks + slot] = NONE
    numbers[at.LIVE] -= 1
    other = (slot + 1) & mask
    while numbers[blocks + other] != NONE:
        home = _home(numbers[addresses + other], mask)
        if ((other - home) & mask) >= ((other - slot) & mask):
            numbers[addresses + slot] = numbers[addresses + other]
            numbers[blocks + slot] = numbers[blocks + other]
            numbers[blocks + other] = NONE
            slot = other
        other = (other + 1) & mask
