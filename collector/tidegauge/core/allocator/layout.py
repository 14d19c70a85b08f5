"""The layout of the model's tables, which hold all of its state as numbers.

A table is one flat row of numbers, so that the same functions are quick when compiled and when they are not. A block is
named by the place of its first field in ``Tables.blocks``. Other modules import this one as ``at``:
``blocks[block + at.SIZE]``, ``numbers[at.LIVE]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tidegauge.core.allocator.compiled import Numbers

NONE = -1
"""No block, no reservation."""
GONE = -2
"""Of an allocation that the model has no block for: it failed, or its memory was given back early."""

# The fields of a block.
START = 0
SIZE = 1
REQUESTED = 2
STATE = 3
PREVIOUS = 4
"""The neighbour at lower addresses of the same segment, or NONE."""
NEXT = 5
SHELF = 6
"""Which of the allocator's sets of free blocks it belongs to: pool, large or small, stream."""
COUNTER = 7
"""Decides between equally large blocks before the address does; what it counts depends on the torch."""
BORN = 8
"""The number of searches before it became free: garbage collection takes it for the age."""
RESERVATION = 9
"""First address of the expandable segment, or NONE."""
KEY = 10
"""Shelf and size in one number: the order of free blocks. While it waits for other streams: the one before it."""
TIE = 11
"""COUNTER while it is free, 0 while it is unmapped. While it waits for other streams: the next one."""
OWNER = 12
"""The recorded address, by which the trace will free it."""
BLOCK_FIELDS = 13

# The states of a block.
FREE = 0
ALLOCATED = 1
PENDING = 2
UNMAPPED = 3
UNUSED = 4

# Free blocks are kept in order in chunks of at most this many.
CHUNK_BITS = 6
CHUNK = 1 << CHUNK_BITS

SIZE_BITS = 38
"""Of a size in units of 512 bytes, in KEY: 128 TiB, the addresses that a process has."""
MAX_SIZE_BYTES = 1 << (SIZE_BITS + 8)
MAX_SHELVES = 1 << (62 - SIZE_BITS)

# What is counted, in ``Tables.numbers``.
CHUNKS = 0
"""Chunks in use."""
BLOCKS_END = 1
"""Place behind the last block ever used."""
SPARE_BLOCK = 2
"""First of the blocks to use again, linked by NEXT."""
LIVE = 3
"""Entries of the table of live allocations."""
LAST_COUNTER = 4
SEARCHES = 5
"""``get_free_blocks_call_count`` of the default large pool."""
NEXT_ADDRESS = 6
"""Where the model puts its next own segment."""
FIRST_PENDING = 7
BLOCKS = 8
"""Blocks that exist."""
ALLOCATED_BYTES = 9
ACTIVE_BYTES = 10
RESERVED_BYTES = 11
REQUESTED_BYTES = 12
PEAK_ALLOCATED = 13
PEAK_ACTIVE = 14
PEAK_RESERVED = 15
ALLOCATED_AT_PEAK_RESERVED = 16
REQUESTED_AT_PEAK = 17
MISMATCHES = 18
FIRST_MISMATCH = 19
"""Its event, or NONE; what was recorded and what was replayed follow."""
MISMATCH_RECORDED = 20
MISMATCH_REPLAYED = 21
TIES = 22
"""How often the recorded address chose among equally large blocks whose age no file says."""
FIRST_TIE = 23
"""The event of the first time; what was recorded and what the model would have taken follow."""
TIE_RECORDED = 24
TIE_REPLAYED = 25
RETRIES = 26
OOMS = 27
DEVICE_ALLOCS = 28
DEVICE_FREES = 29
SEGMENTS = 30
FAILURES = 31
RECOVERED = 32
SKIPPED_FREES = 33
WINDOW_ALLOCATED = 34
WINDOW_RESERVED = 35
CURSOR = 36
"""Next recorded segment event of the request under way."""
LIMIT = 37
"""Event of the request under way."""
NEXT_CALL = 38
"""Next entry of ``Events.calls``."""
ERROR = 39
"""Why the replay stopped; the event follows."""
ERROR_EVENT = 40
BEGUN = 41
"""First event that is recorded of the request under way."""
MAY_BE_CALL = 42
"""Whether it may have been the program, not the request under way, that gave back the cache."""
COUNTED_PEAK = 43
"""PEAK_RESERVED for which ALLOCATED_AT_PEAK_RESERVED is."""

# What is fixed for one replay.
MAX_SPLIT = 44
NON_SPLIT_ROUNDING = 45
LARGE_SEGMENT = 46
EXPANDABLE = 47
BLOCK_COUNTERS = 48
SEGMENT_COUNTERS = 49
CAP = 50
CAPACITY = 51
COLLECTS = 52
"""Whether there is garbage collection: it takes a threshold and a cap."""
COLLECT_ABOVE = 53
"""Bytes."""
DEVICE_BYTES = 54
"""Address space of an expandable segment before it is rounded up."""
SHELVES = 55
STREAMS = 56
FOLLOWS = 57
"""Whether the recording answers for the device: its addresses, and whether it had memory."""
AGES_KNOWN = 58
COMPLETE = 59
COMPLETES = 60
"""Whether the trace tells when a free is complete."""
DIVIDES = 61
DIVISIONS = 62
"""Of sixteen buckets."""
FLUSHING_SHELVES = 78
"""Shelves below this one belong to pools whose requests give back the cache before they fail."""
UNMAPS = 79
"""Whether there may be expandable segments."""

# Where the regions of ``Tables.numbers`` begin.
ORDER_AT = 80
"""Chunks in use, in order, then the spare ones."""
LENGTHS_AT = 81
"""Of each chunk."""
CHUNKS_AT = 82
"""Blocks in order; chunk ``c`` begins at ``c * CHUNK``."""
LIVE_AT = 83
"""Recorded addresses of live allocations: open addressing."""
LIVE_BLOCKS_AT = 84
"""Of each address the block, or GONE; NONE where the slot is empty."""
LIVE_MASK = 85
"""Slots less one; they are a power of two."""
SCRATCH_AT = 86
"""Blocks gathered before they are given back."""
ROOM = 87
"""Blocks that the tables hold."""
FAILURES_AT = 88
HEADER = 89

UNLIMITED = 1 << 62
MAX_TIES = 4096
"""Equally large free blocks that are looked through at most, so that no trace makes this slow."""

FAILURE_FIELDS = 8
"""Event, requested, rounded, segment, allocated, reserved, largest free and all free bytes; see `FailedRequest`."""

# Why a replay stopped.
FINE = 0
NO_ROOM = 1
"""The tables must grow first."""
LIVE_ADDRESS = 2
UNKNOWN_FREE = 3
DOUBLE_FREE = 4
OTHER_SIZE = 5
BAD_SIZE = 6
UNKNOWN_ACTION = 7
UNKNOWN_STREAM = 8
UNKNOWN_POOL = 9


class Tables(NamedTuple):
    """The allocator's state. Two tables only: each further one slows down compiling."""

    blocks: Numbers
    numbers: Numbers


class Record(NamedTuple):
    """The columns of a trace that the allocator compares itself with."""

    action: Any
    address: Any
    size: Any


class Events(NamedTuple):
    """The other columns of a trace."""

    stream: Any
    pool: Any
    ranks: Numbers
    """Of each stream, the place of its handle among all."""
    pool_numbers: Numbers
    """Of each pool, its number in the model: the default pool is 0, then come those of ``MemPool``."""
    calls: Numbers
    """Events at which the program called ``empty_cache()``; the last entry is behind all events."""
