"""Selects the blocks whose holders to search: those that a window left behind, where live bytes grew most.

The agent compares the two snapshots in full (``tidegauge diff``); the rank needs no more than some hundred addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from tidegauge.core.snapshot_columns import DeviceColumns, PackedSnapshot
from tidegauge.probe.evidence.snapshot_packing import ACTIVE_ALLOCATED
from tidegauge.probe.pacing import Pacer

MAX_BLOCKS = 300
Group = tuple[int, int]
"""Stack, as ``_Stacks`` numbers it, and size."""


class GrownBlocks(NamedTuple):
    """Blocks of one device, each as (address, bytes)."""

    device: int
    blocks: tuple[tuple[int, int], ...]


def grown_blocks(early: PackedSnapshot, late: PackedSnapshot, pacer: Pacer) -> Optional[GrownBlocks]:
    """Blocks of ``late`` that are not in ``early``, from the groups of stack and size that grew most, on the device
    that grew most; ``None`` where nothing grew. Growth is net of freed blocks of the same size: memory without a stack
    may have been allocated again with one. Raises ``StoppedError``."""
    stacks = _Stacks(pacer)
    before = _groups(early, stacks, pacer)
    found: list[tuple[int, GrownBlocks]] = []
    for device, after in _groups(late, stacks, pacer).items():
        earlier = before.get(device, {})
        growth = {group: len(blocks) - len(earlier.get(group, ())) for group, blocks in after.items()}
        left = _net_by_size(growth, earlier)
        wanted: list[tuple[int, int]] = []
        grown_bytes = 0
        for group in sorted(growth, key=lambda group: -growth[group] * group[1]):
            count = min(growth[group], left.get(group[1], 0))
            if count <= 0:
                continue
            left[group[1]] -= count
            grown_bytes += count * group[1]
            fresh = after[group] - earlier.get(group, frozenset())
            wanted += [(address, group[1]) for address in sorted(fresh)[: MAX_BLOCKS - len(wanted)]]
        if wanted:
            found.append((grown_bytes, GrownBlocks(device, tuple(wanted))))
    return max(found, default=(0, None), key=lambda one: one[0])[1]


def largest_blocks(snapshot: PackedSnapshot, pacer: Pacer) -> Optional[GrownBlocks]:
    """Blocks of the groups that hold most in one snapshot, on the device that holds most."""
    held = []
    for device, groups in _groups(snapshot, _Stacks(pacer), pacer).items():
        ranked = sorted(groups.items(), key=lambda item: -len(item[1]) * item[0][1])
        blocks = [(address, group[1]) for group, addresses in ranked for address in sorted(addresses)]
        held_bytes = sum(group[1] * len(addresses) for group, addresses in ranked)
        held.append((held_bytes, GrownBlocks(device, tuple(blocks[:MAX_BLOCKS]))))
    return max(held, default=(0, None), key=lambda one: one[0])[1]


def _net_by_size(growth: Mapping[Group, int], earlier: Mapping[Group, frozenset[int]]) -> dict[int, int]:
    """Growth in blocks of each size over all stacks."""
    net: dict[int, int] = {}
    for (_, size_bytes), count in growth.items():
        net[size_bytes] = net.get(size_bytes, 0) + count
    for group in earlier.keys() - growth.keys():
        net[group[1]] = net.get(group[1], 0) - len(earlier[group])
    return net


def _groups(snapshot: PackedSnapshot, stacks: _Stacks, pacer: Pacer) -> dict[int, dict[Group, frozenset[int]]]:
    """Addresses of the live blocks of each device, by stack and size."""
    numbers = stacks.numbers(snapshot)
    return {one.device: _groups_of(one, numbers, pacer) for one in snapshot.devices}


def _groups_of(one: DeviceColumns, numbers: Sequence[int], pacer: Pacer) -> dict[Group, frozenset[int]]:
    groups: dict[Group, set[int]] = {}
    at = 0
    for start, count in zip(one.segments["address"], one.segments["blocks"]):
        address = start
        for index in range(at, at + count):
            size_bytes = one.blocks["size_bytes"][index]
            if one.blocks["state"][index] == ACTIVE_ALLOCATED:
                stack = one.blocks["stack"][index]
                groups.setdefault((numbers[stack] if stack >= 0 else -1, size_bytes), set()).add(address)
            address += size_bytes
            pacer.pace()
        at += count
    return {group: frozenset(addresses) for group, addresses in groups.items()}


class _Stacks:
    """Numbers stacks: the same stack gets the same number in every snapshot."""

    def __init__(self, pacer: Pacer) -> None:
        self._numbers: dict[tuple[tuple[str, str, int], ...], int] = {}
        self._pacer = pacer

    def numbers(self, snapshot: PackedSnapshot) -> list[int]:
        """Numbers of a snapshot's stacks, in its order."""
        texts, frames, numbers, at = snapshot.texts, snapshot.frames, [], 0
        for depth in snapshot.stacks["depth"]:
            stack = tuple(
                [
                    (texts[frames["name"][index]], texts[frames["filename"][index]], frames["line"][index])
                    for index in snapshot.stack_frames[at : at + depth]
                ]
            )
            numbers.append(self._numbers.setdefault(stack, len(self._numbers)))
            at += depth
            self._pacer.pace()
        return numbers
