# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import unittest
from collections.abc import Sequence
from typing import Any

from probe_fakes import MIB, block, torch_snapshot
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.probe.evidence.grown_blocks import MAX_BLOCKS, GrownBlocks, grown_blocks, largest_blocks
from tidegauge.probe.evidence.snapshot_packing import pack_columns
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.runtime.rank_snapshot import RawSnapshot

PACER = Pacer(sleep=lambda _seconds: None)
BASE = 1 << 30


def packed(*sizes_and_lines: tuple[int, int], device: int = 0, **more: Any) -> PackedSnapshot:
    """Live blocks one after the other from ``BASE`` on, as (bytes, line of train.py or 0 for no stack)."""
    blocks, address = [], BASE
    for size_bytes, line in sizes_and_lines:
        blocks.append(block(address, size_bytes, line, **more))
        address += size_bytes
    return pack_columns(RawSnapshot(torch_snapshot(blocks, device=device), {}, 0.0), PACER)


class Grown(unittest.TestCase):
    def test_the_new_blocks_of_the_line_that_grew(self) -> None:
        early = packed((MIB, 7), (512, 9))
        late = packed((MIB, 7), (512, 9), (MIB, 7), (MIB, 7))
        first = BASE + MIB + 512
        expected = GrownBlocks(0, ((first, MIB), (first + MIB, MIB)))
        self.assertEqual(grown_blocks(early, late, PACER), expected)

    def test_the_line_that_grew_most_comes_first(self) -> None:
        grown = grown_blocks(packed((MIB, 7)), packed((MIB, 7), (512, 9), (4 * MIB, 8)), PACER)
        assert grown is not None
        self.assertEqual([size_bytes for _, size_bytes in grown.blocks], [4 * MIB, 512])

    def test_grown_blocks_is_none_without_growth(self) -> None:
        self.assertIsNone(grown_blocks(packed((MIB, 7)), packed((MIB, 7)), PACER))
        self.assertIsNone(grown_blocks(packed((MIB, 7), (MIB, 7)), packed((MIB, 7)), PACER))

    def test_memory_that_got_a_stack_as_it_was_allocated_again_did_not_grow(self) -> None:
        """It was there before history went on."""
        self.assertIsNone(grown_blocks(packed((MIB, 0)), packed((MIB, 7)), PACER))
        grown = grown_blocks(packed((MIB, 0)), packed((MIB, 7), (MIB, 7)), PACER)
        assert grown is not None
        self.assertEqual(len(grown.blocks), 2)  # one of the two: which one, nobody can tell

    def test_without_stacks_the_size_tells(self) -> None:
        grown = grown_blocks(packed((MIB, 0)), packed((MIB, 0), (MIB, 0)), PACER)
        self.assertEqual(grown, GrownBlocks(0, ((BASE + MIB, MIB),)))

    def test_free_blocks_are_not_looked_for(self) -> None:
        self.assertIsNone(grown_blocks(packed((MIB, 7)), packed((MIB, 7), (MIB, 7), state="inactive"), PACER))

    def test_the_device_that_grew_most(self) -> None:
        blocks = [torch_snapshot([block(BASE, MIB, 7)], device=0), torch_snapshot([block(BASE, 4 * MIB, 7)], device=1)]
        both = {**blocks[0], "segments": [segment for one in blocks for segment in one["segments"]]}
        late = pack_columns(RawSnapshot(both, {}, 0.0), PACER)
        self.assertEqual(grown_blocks(packed((512, 3)), late, PACER), GrownBlocks(1, ((BASE, 4 * MIB),)))

    def test_no_more_than_a_search_can_take(self) -> None:
        late = packed(*[(512, 7)] * (MAX_BLOCKS + 50))
        grown = grown_blocks(packed((MIB, 3)), late, PACER)
        assert grown is not None
        self.assertEqual(len(grown.blocks), MAX_BLOCKS)

    def test_a_small_block_of_each_step_has_a_place_beside_large_ones(self) -> None:
        late = packed(*[(2 * MIB, 7)] * (MAX_BLOCKS + 50), *[(512, 9)] * 30)
        grown = grown_blocks(packed((MIB, 3)), late, PACER)
        assert grown is not None
        self.assertEqual(len(set(grown.blocks)), MAX_BLOCKS)
        self.assertEqual(sum(size_bytes == 512 for _, size_bytes in grown.blocks), 30)


class StepInProgress(unittest.TestCase):
    """The snapshot is taken inside the optimizer's step: locals of the training function live."""

    def late(self, *sizes_and_lines: tuple[int, int], born_us: Sequence[int]) -> PackedSnapshot:
        snapshot, address = packed(*sizes_and_lines), BASE
        for (size_bytes, _), time_us in zip(sizes_and_lines, born_us):
            row = {
                "action": 0,
                "address": address,
                "size_bytes": size_bytes,
                "stream": 0,
                "time_us": time_us,
                "pool": 0,
            }
            for name, value in {**row, "stack": -1}.items():
                snapshot.devices[0].events[name].append(value)
            address += size_bytes
        return snapshot

    def test_a_local_that_happens_to_be_larger_is_not_looked_for(self) -> None:
        early = packed((MIB, 7), (40 * MIB, 5))
        late = self.late((MIB, 7), (MIB, 7), (MIB, 7), (60 * MIB, 5), born_us=(10, 40, 50, 90))
        grown = grown_blocks(early, late, PACER, step_began_us=80)
        assert grown is not None
        self.assertEqual([size_bytes for _, size_bytes in grown.blocks], [MIB, MIB])
        self.assertFalse(grown.in_progress)

    def test_where_nothing_else_grew_it_is_and_said_to_be_of_this_step(self) -> None:
        early, late = packed((40 * MIB, 5)), self.late((60 * MIB, 5), born_us=(90,))
        self.assertEqual(
            grown_blocks(early, late, PACER, step_began_us=80), GrownBlocks(0, ((BASE, 60 * MIB),), in_progress=True)
        )

    def test_events_without_times_say_nothing(self) -> None:
        early, late = packed((MIB, 7)), self.late((MIB, 7), (MIB, 7), born_us=(10, 90))
        del late.devices[0].events["time_us"][:]
        grown = grown_blocks(early, late, PACER, step_began_us=80)
        assert grown is not None
        self.assertFalse(grown.in_progress)


class Largest(unittest.TestCase):
    def test_the_line_that_holds_most_comes_first(self) -> None:
        largest = largest_blocks(packed((MIB, 7), (512, 9), (MIB, 7), (MIB + 512, 8)), PACER)
        assert largest is not None
        self.assertEqual([size_bytes for _, size_bytes in largest.blocks], [MIB, MIB, MIB + 512, 512])


if __name__ == "__main__":
    unittest.main()
