"""A rank's recording of its own memory over some whole training steps, for a memory profile. The probe makes it.

The agent reads it from the file beside the rank's ring, and the events from the snapshot that it names. Values only;
texts come from the job and are never trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeRoots
from tidegauge.core.profile.categories import Category

MAX_STEPS = 3
"""Whole steps in one recording."""
MAX_OWNED = 20_000
"""Tensors in ``RankRecording.owned``; the largest come first. A model whose optimizer has two states for each parameter
has four for each of its parameters."""
MAX_RECORDING_BYTES = 4 << 20
"""Of the file. A tensor with its name takes some 120 bytes."""


class OwnedTensor(NamedTuple):
    """A storage of known purpose on a GPU, at the end of the recording."""

    address: int
    """Of the storage's first byte; the allocator's block may hold others as well."""
    size_bytes: int
    """Of the storage."""
    category: Category
    name: str = ""
    """As the model calls it: ``blocks.0.mlp.weight``; of a gradient or an optimizer's state, the name of its parameter;
    of others, what the program calls them: ``EMA.shadow['head.weight']``. Empty where it is not known."""
    model: Optional[int] = None
    """Index into ``RankRecording.models`` of the one that ``name`` is a path in; ``None``: of none, or of several."""


@dataclass(frozen=True)
class RankRecording:
    """The probe's report beside its ring, written last: ``<pid>-<starttime>.profile.json``, by ``core.wire``."""

    recording_id: str
    """As it was given in the command."""
    reason: str
    device: int
    """Ordinal of the device that the rank trains on; the snapshot may have others."""
    began_step: int
    """Training steps that the process had finished as the recording began."""
    ended_step: int
    """The same at the snapshot."""
    snapshot_file: Optional[str] = None
    """Name of the snapshot beside the ring, with all events (``core.snapshot_columns``, zlib); ``None``: there is
    none."""
    boundaries_us: tuple[int, ...] = ()
    """Unix times of steps' ends, by the clock that dates the allocator's events. The first begins the first whole step,
    each further one ends a step."""
    owned: tuple[OwnedTensor, ...] = ()
    owned_before: tuple[OwnedTensor, ...] = ()
    """Gradients as the recording began: in it they may be freed, and others made at their addresses."""
    models: tuple[str, ...] = ()
    """The outermost modules' classes; each begins the paths of its modules in the snapshot's events."""
    modules_missing: Optional[str] = None
    """Why events have no module, or only some of them, for people."""
    is_complete: bool = True
    """Whether the snapshot has all events since the first boundary."""
    is_compiled: bool = False
    """Whether ``torch.compile`` compiled anything in this process."""
    longest_stall_s: float = 0.0
    """The longest time for which training stood still for it."""
    roots: Optional[CodeRoots] = None
    """As ``RankEvidence.roots``."""
    problem: Optional[str] = None
    """Why it ended early or lacks something, for people."""

    def module_of(self, tensor: OwnedTensor) -> Optional[str]:
        return module_of(tensor, self.models)


def module_of(tensor: OwnedTensor, models: Sequence[str]) -> Optional[str]:
    """The path of the module that a tensor belongs to, as the events have it: ``Net.blocks.0.mlp``."""
    if tensor.model is None or tensor.model >= len(models):
        return None
    model, path = models[tensor.model], tensor.name.rpartition(".")[0]
    return f"{model}.{path}" if path else model
