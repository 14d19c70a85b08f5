"""Records a training step without memory: its allocator events, and the purpose of each allocation. No torch here."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import Optional

from tidegauge.core.allocator.trace import Action, Trace


class EstimateError(ValueError):
    """The job cannot run without its GPU; the text says which part of it, and what to change."""


class RecordedKind(IntEnum):
    """The purpose of an allocation."""

    OTHER = 0
    PARAMETER = 1
    BUFFER = 2
    """``Module.buffers()``."""
    GRADIENT = 3
    OPTIMIZER_STATE = 4
    ACTIVATION = 5
    """Made in the forward pass and still alive when the backward pass began, or made again there by checkpointing."""
    TEMPORARY = 6
    """Freed in the phase that it was made in."""
    WORKSPACE = 7
    """Asked for by a kernel and never seen by the program."""
    INPUT = 8
    """Made by the step outside forward, backward and optimizer: a batch, mostly."""


class Phase(IntEnum):
    """The phase of the program."""

    BUILD = 0
    INPUT = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


@dataclass(frozen=True)
class Recording:
    """The events of a few training steps, as input for the allocator's model. The columns have one entry an event."""

    trace: Trace
    """Allocations and frees, addresses made up. Marks: ``build`` (where it ended) and ``step`` (where each ended)."""
    kinds: array[int]
    """``RecordedKind`` of the block that is made or freed, typecode ``B``."""
    phases: array[int]
    """``Phase`` of the event, typecode ``B``."""
    sites: array[int]
    """Index into ``site_names``, typecode ``i``."""
    site_names: tuple[str, ...]
    """The module and the operator, as in ``model.layers.3.mlp: aten.addmm``."""
    parameter_count: int
    """Elements of ``model.parameters()``, whether they are trained or not."""
    assumptions: tuple[str, ...]
    """What was assumed in place of what only a run can tell, in sentences for people."""
    torch_version: str
    """Of the PyTorch that ran the step."""


@dataclass
class Block:
    """One allocated block."""

    address: int
    size_bytes: int
    stream: int
    made: int
    """Index of its event."""
    phase: Phase
    kind: Optional[RecordedKind] = None
    """``None`` until something says it; the rest is told from its life when the log is read."""
    freed: Optional[int] = None


class AllocatorEventLog:
    """Appends events; addresses are made up and never used twice."""

    def __init__(self) -> None:
        self.phase = Phase.BUILD
        self.site = 0
        self.stream = 0
        """Whose blocks are made from here on; the allocator keeps those of each stream apart."""
        self.live_bytes = 0
        self.peak_bytes = 0
        self._action = array("B")
        self._address = array("Q")
        self._size = array("Q")
        self._streams = array("H")
        self._phases = array("B")
        self._sites = array("i")
        self._blocks: list[Block] = []
        self._site_names: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._action)

    def enter(self, name: str) -> None:
        """Events from here on belong to this place."""
        self.site = self._site_names.setdefault(name, len(self._site_names))

    def alloc(self, size_bytes: int, kind: Optional[RecordedKind] = None) -> Block:
        block = Block(len(self._blocks) + 1, size_bytes, self.stream, len(self), self.phase, kind)
        self._blocks.append(block)
        self._append(Action.ALLOC, block)
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return block

    def free(self, block: Block) -> None:
        block.freed = len(self)
        self._append(Action.FREE_REQUESTED, block)
        self._append(Action.FREE_COMPLETED, block)
        self.live_bytes -= block.size_bytes

    def trace(self, *, torch_version: str, total_bytes: int, marks: dict[str, tuple[int, ...]]) -> Trace:
        """A copy of the events so far."""
        return Trace(
            action=self._action[:], address=self._address[:], size_bytes=self._size[:],
            stream=self._streams[:],
            streams=tuple(range(max(self._streams, default=0) + 1)),
            time_us=array("q"), pool=array("H"), stack=array("i"),
            torch_version=torch_version, total_bytes=total_bytes, marks=marks,
        )  # fmt: skip

    def columns(self) -> tuple[array[int], array[int], array[int], tuple[str, ...]]:
        """Kinds, phases and sites of the events so far, and the names of the sites."""
        kinds = array("B", bytes(len(self)))
        for block in self._blocks:
            kind = block.kind if block.kind is not None else self._kind_by_life(block)
            kinds[block.made] = kind
            if block.freed is not None:
                kinds[block.freed] = kinds[block.freed + 1] = kind
        return kinds, self._phases[:], self._sites[:], tuple(self._site_names)

    def _kind_by_life(self, block: Block) -> RecordedKind:
        died_in = None if block.freed is None else Phase(self._phases[block.freed])
        if block.phase is Phase.FORWARD and died_in is Phase.BACKWARD:
            return RecordedKind.ACTIVATION
        if block.phase is Phase.INPUT:
            return RecordedKind.INPUT
        return RecordedKind.TEMPORARY if died_in is block.phase else RecordedKind.OTHER

    def _append(self, action: Action, block: Block) -> None:
        self._action.append(action)
        self._address.append(block.address)
        self._size.append(block.size_bytes)
        self._streams.append(block.stream)
        self._phases.append(self.phase)
        self._sites.append(self.site)
