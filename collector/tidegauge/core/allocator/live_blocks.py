"""Live allocations by recorded address: a table with open addressing. Source-compatible with Python 3.9."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.compiled import compiled
from tidegauge.core.allocator.layout import GONE, NONE, Tables


@compiled
def _home(address: int, mask: int) -> int:
    """The slot where an address belongs: its bits well mixed, as addresses are multiples of much."""
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
