"""Selects the blocks whose holders to search: those that a window left behind, where live bytes grew most.

The agent compares the two snapshots in full (``tidegauge diff``); the rank needs no more than some hundred addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from tidegauge.core.snapshot_columns import DeviceColumns, PackedSnapshot
from tidegauge.probe.evidence.snapshot_packing import ACTIVE_ALLOCATED, ALLOC
from tidegauge.probe.pacing import Pacer

MAX_BLOCKS = 300
KEPT_PLACES = 60
"""Of these, for groups with many small blocks: a container that grows by an item a step is worth finding."""
Group = tuple[int, int]
"""Stack, as ``_Stacks`` numbers it, and size."""
_Groups = Mapping[Group, frozenset[int]]
_GroupsOfDevices = Mapping[int, _Groups]


class GrownBlocks(NamedTuple):
    """Blocks of one device, each as (address, bytes)."""

    device: int
    blocks: tuple[tuple[int, int], ...]
    in_progress: bool = False
    """They belong to the step in progress: nothing else grew."""


def grown_blocks(
    early: PackedSnapshot, late: PackedSnapshot, pacer: Pacer, *, step_began_us: Optional[int] = None
) -> Optional[GrownBlocks]:
    """Blocks of ``late`` that are not in ``early``, from the groups of stack and size that grew most, on the device
    that grew most; ``None`` where nothing grew. Growth is net of freed blocks of the same size: memory without a stack
    may have been allocated again with one. Raises ``StoppedError``.

    Blocks allocated since ``step_began_us`` (Unix time), in the step that ended at the late snapshot, may be its
    locals, which the next step replaces. They count only where nothing else grew.
    """
    stacks = _Stacks(pacer)
    before, after = _groups(early, stacks, pacer), _groups(late, stacks, pacer)
    born = {} if step_began_us is None else {one.device: _born_since(one, step_began_us, pacer) for one in late.devices}
    older = {device: _without(groups, born[device]) for device, groups in after.items() if born.get(device)}
    settled = _grown(before, {**after, **older})
    if settled is not None or not older:
        return settled
    grown = _grown(before, after)
    return None if grown is None else grown._replace(in_progress=True)


def _grown(before: _GroupsOfDevices, late: _GroupsOfDevices) -> Optional[GrownBlocks]:
    found: list[tuple[int, GrownBlocks]] = []
    for device, after in late.items():
        earlier = before.get(device, {})
        growth = {group: len(blocks) - len(earlier.get(group, ())) for group, blocks in after.items()}
        left = _net_by_size(growth, earlier)
        fresh: list[list[tuple[int, int]]] = []
        grown_bytes = 0
        for group in sorted(growth, key=lambda group: -growth[group] * group[1]):
            count = min(growth[group], left.get(group[1], 0))
            if count <= 0:
                continue
            left[group[1]] -= count
            grown_bytes += count * group[1]
            fresh.append([(address, group[1]) for address in sorted(after[group] - earlier.get(group, frozenset()))])
        wanted = _chosen(fresh)
        if wanted:
            found.append((grown_bytes, GrownBlocks(device, tuple(wanted))))
    return max(found, default=(0, None), key=lambda one: one[0])[1]


def _chosen(groups: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """The blocks to search for: those of the first groups, and some of the groups with most blocks of the others."""
    whole = [block for group in groups for block in group]
    if len(whole) <= MAX_BLOCKS:
        return whole
    first = whole[: MAX_BLOCKS - KEPT_PLACES]
    taken = set(first)
    others = sorted(groups, key=lambda group: -len(group))
    rest = [block for group in others if group[0] not in taken for block in group]
    return [*first, *(rest + whole[len(first) :])[:KEPT_PLACES]] if rest else whole[:MAX_BLOCKS]


def largest_blocks(snapshot: PackedSnapshot, pacer: Pacer) -> Optional[GrownBlocks]:
    """Blocks of the groups that hold most in one snapshot, on the device that holds most."""
    held = []
    for device, groups in _groups(snapshot, _Stacks(pacer), pacer).items():
        ranked = sorted(groups.items(), key=lambda item: -len(item[1]) * item[0][1])
        blocks = [(address, group[1]) for group, addresses in ranked for address in sorted(addresses)]
        held_bytes = sum(group[1] * len(addresses) for group, addresses in ranked)
        held.append((held_bytes, GrownBlocks(device, tuple(blocks[:MAX_BLOCKS]))))
    return max(held, default=(0, None), key=lambda one: one[0])[1]


def _born_since(one: DeviceColumns, since_us: int, pacer: Pacer) -> frozenset[int]:
    """Addresses allocated since then, as far as the recorded events reach back."""
    born: set[int] = set()
    for action, address, time_us in zip(one.events["action"], one.events["address"], one.events["time_us"]):
        if action == ALLOC and time_us >= since_us:
            born.add(address)
        pacer.pace()
    return frozenset(born)


def _without(groups: _Groups, addresses: frozenset[int]) -> _Groups:
    return {group: found - addresses for group, found in groups.items()}


def _net_by_size(growth: Mapping[Group, int], earlier: _Groups) -> dict[int, int]:
    """Growth in blocks of each size over all stacks."""
    net: dict[int, int] = {}
    for (_, size_bytes), count in growth.items():
        net[size_bytes] = net.get(size_bytes, 0) + count
    for group in earlier.keys() - growth.keys():
        net[group[1]] = net.get(group[1], 0) - len(earlier[group])
    return net


def _groups(snapshot: PackedSnapshot, stacks: _Stacks, pacer: Pacer) -> dict[int, _Groups]:
    """Addresses of the live blocks of each device, by stack and size."""
    numbers = stacks.numbers(snapshot)
    return {one.device: _groups_of(one, numbers, pacer) for one in snapshot.devices}


def _groups_of(one: DeviceColumns, numbers: Sequence[int], pacer: Pacer) -> _Groups:
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
