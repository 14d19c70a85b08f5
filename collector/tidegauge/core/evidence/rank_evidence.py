"""A rank's report on its own memory: the objects that hold the tensors that grow. The probe makes it.

The agent reads it from the file beside the rank's ring: only the process itself can look. Values only, in bytes and
seconds; texts come from the job and are never trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeLine, CodeRoots

MAX_HOLDERS = 20
MAX_ID_CHARS = 100
"""Characters of an evidence id."""
MAX_TEXT_CHARS = 400
"""Characters of a path or a name."""
ARROW = " -> "
"""Between a holder and what it leads to, in ``Holder.path``."""
ATEXIT = "atexit callbacks"
"""How a path begins whose first object is known to be ``atexit``'s by numbers alone."""
KEPT_BY_CTX = "ctx keeps an output of its own function, and C++ keeps ctx by that output"
"""``Holder.detail``, of a ``torch.autograd.Function``."""
MADE_ANEW = "made anew in each step"
"""How ``Holder.detail`` begins where what was looked for had been replaced when it was found by its size."""
CHAIN = "chain"
"""``Holder.container`` of objects of which each leads to the next by the same reference."""
NAMES = frozenset({"variables", "attributes", "buffers", "parameters", "modules"})
"""``Holder.container`` of names in one namespace that differ in a number only."""


class HolderKind(str, Enum):
    """The kind of a tensor's holder: the last object on its path that a person would look for in the code."""

    GLOBAL = "global"
    """A variable of a module, or what one leads to."""
    CONTAINER = "container"
    """A list, dict, deque or set that has a name, wherever the name lives."""
    ATTRIBUTE = "attribute"
    """An attribute of an object that has a name."""
    CLOSURE = "closure"
    """A cell of a function."""
    HOOK = "hook"
    """A forward or backward hook of a module or a tensor."""
    FRAME = "frame"
    """A local variable of a function that is running."""
    EXCEPTION = "exception"
    """An exception that was kept, with the frames of its traceback."""
    AUTOGRAD = "autograd"
    """The graph of a tensor that is kept: it saved what backward would need."""
    CYCLE = "cycle"
    """Objects that hold each other and that nothing else refers to: garbage that has not been collected."""
    OPTIMIZER = "optimizer"
    """State of an optimizer."""
    THREAD = "thread"
    """A local variable of another thread's function."""
    NATIVE = "native"
    """Nothing of Python's refers to it: C++ does, or it cannot be told."""


class ContainerBound(NamedTuple):
    """A container with a maximum length that the interpreter enforces: ``deque(maxlen=…)``, ``lru_cache(maxsize=…)``,
    ``queue.Queue(maxsize=…)``, a list created at its full length. Several at one place (a dict of deques) are counted
    together."""

    number: int
    """Holders with the same number share it."""
    kind: str
    """``deque``, ``lru_cache``, ``Queue``, ``list``."""
    items: int
    """What it has now."""
    most_items: int
    found_items: int
    """Of its items, those that hold blocks that were looked for."""
    held_bytes: int
    """Of blocks that were looked for, by all holders that share it."""
    least_item_bytes: int
    """Of one of ``found_items``."""
    most_item_bytes: int


class Holder(NamedTuple):
    """An owner of tensors that grow."""

    kind: HolderKind
    path: str
    """For people: ``train.py: Trainer.history (list, 412 items) -> Tensor[8,128,4096] float32``."""
    held_bytes: int
    """Of those that were looked for, by their blocks."""
    tensors: int
    name: Optional[str] = None
    """What the code calls the holder: ``Trainer.history``, ``losses``."""
    where: Optional[CodeLine] = None
    """Where that name lives: a module's file (line 0), a function."""
    container: Optional[str] = None
    """Type of the container that grows, else of the last on the path: ``list``, ``dict``. ``CHAIN``, or one of
    ``NAMES``."""
    items: Optional[int] = None
    """Its length; the number of links or names."""
    detail: Optional[str] = None
    """What else there is to say: type of the exception, kind of the hook, nodes of the graph and their names."""
    bound: Optional[ContainerBound] = None
    """Of a container on the path."""
    by_size_bytes: int = 0
    """Of ``held_bytes``: no reference leads to these blocks, their sizes alone fit."""
    blocks: tuple[int, ...] = ()
    """Addresses of the blocks that references lead to, for comparison with the snapshots; empty beyond the node."""


class HolderSearch(NamedTuple):
    """Result of a search for owners in the process, and its cost to the process."""

    holders: tuple[Holder, ...] = ()
    """The one that holds most first."""
    wanted_bytes: int = 0
    """Of the blocks that were looked for."""
    found_bytes: int = 0
    """Of these, with a holder."""
    objects: int = 0
    """Looked at."""
    took_s: float = 0.0
    longest_pause_s: float = 0.0
    """The longest slice, for which training stood still."""
    problem: Optional[str] = None
    """Why it is incomplete, for people; ``None``: it is not."""
    unfinished: bool = False
    """It was cut short, and may find more when it is tried again."""


class RankFacts(NamedTuple):
    """What the process reports about itself at the end of the window. ``None``: this torch does not report it."""

    gc_enabled: Optional[bool] = None
    """``gc.isenabled()``."""
    gc_frozen: Optional[int] = None
    """``gc.get_freeze_count()``."""
    graph_nodes: Optional[int] = None
    """Autograd nodes that kept tensors lead to."""
    process_groups: Optional[int] = None
    """``torch.distributed`` groups of this process."""
    pinned_bytes: Optional[int] = None
    """``torch.cuda.host_memory_stats()["allocated_bytes.current"]``."""
    optimizers: Optional[int] = None
    """Living instances of ``torch.optim.Optimizer``."""
    parameter_bytes: Optional[int] = None
    """Of all parameters on CUDA devices."""
    python: Optional[str] = None
    cuda_graphs: Optional[int] = None
    """Living instances of ``torch.cuda.CUDAGraph``."""
    in_autocast: Optional[bool] = None
    """Training steps end inside ``torch.autocast`` whose cache is on."""


NO_FACTS = RankFacts()


def ids_so_far(evidence_id: str) -> tuple[str, ...]:
    """The ids of what a rank writes of a window before its holder search is over, in this order."""
    return tuple(f"{evidence_id[: MAX_ID_CHARS - 2]}+{number}" for number in (1, 2))


@dataclass(frozen=True)
class RankEvidence:
    """The probe's report beside its ring, written last: ``<pid>-<starttime>.evidence.json``, by ``core.wire``."""

    evidence_id: str
    """As it was given in the command; while ``searching`` one of its ``ids_so_far``."""
    reason: str
    device: int
    """Ordinal of the device that the snapshots are read for."""
    began_unix_s: float
    ended_unix_s: float
    began_step: int
    """When history went on."""
    early_step: Optional[int] = None
    late_step: Optional[int] = None
    """Steps at whose boundaries the two snapshots were taken; ``None``: it was not."""
    early_file: Optional[str] = None
    late_file: Optional[str] = None
    """Names of snapshots beside the ring (``core.snapshot_columns``, zlib)."""
    longest_stall_s: float = 0.0
    """The longest time for which training stood still for it (taking a snapshot, in the training thread)."""
    search: Optional[HolderSearch] = None
    search_failed: bool = False
    """It ended with an error, which ``problem`` tells; ``search`` is ``None``."""
    searching: bool = False
    """The search goes on, over slow steps: ``search`` has what it has found so far. The whole evidence follows."""
    facts: RankFacts = NO_FACTS
    early_facts: RankFacts = NO_FACTS
    """The same as the window began: what rose meanwhile (groups, optimizers, pinned memory) is evidence."""
    roots: Optional[CodeRoots] = None
    """Which folders hold libraries and which the user's code; ``None``: the probe did not say."""
    problem: Optional[str] = None
    """Why it ended early or lacks something: the job records by itself, a graph was captured, no steps came."""
