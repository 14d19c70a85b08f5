"""Owners of allocator memory: live blocks grouped by the line that allocated them.

Pure: whoever has a snapshot, of the own process or from a file, makes ``LiveBlock``s of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

CUBLAS_WORKSPACE_BYTES = frozenset((4096 * 1024 * 2 + 16 * 1024 * 8, 8 * 1024 * 1024, 32 * 1024 * 1024))
"""What PyTorch takes for cuBLAS for each handle and stream: 8.1 MiB, 8 MiB, and 32 MiB on Hopper and later."""
_MAX_WORKSPACES = 2 * 33
"""Two handles (forward and backward pass) on the default stream and the 32 of PyTorch's pool; no program has more."""
_FRAME = r"^$|^<(?!ipython-input-)|^\?\?|\.(?:cpp|cc|cu|h|so)\b"
"""Frames without a file of Python's: ``<frozen runpy>``, ``??``, C++. Cells of IPython are the user's own code."""
_PACKAGES = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]")
_TORCH_CHECKOUT = re.compile(
    r"[/\\]torch[/\\](?:_\w+(?:[/\\].+)?\.py|nn[/\\](?:modules[/\\].+|functional|parameter)\.py|optim[/\\]\w+\.py|"
    r"(?:autograd|amp|cuda|utils|distributed)[/\\](?:_\w+(?:[/\\].+)?|function|graph|checkpoint|autocast_mode|"
    r"(?:data|fsdp|tensor|pipelining)[/\\].+)\.py)$"
)
"""Files of a source checkout of PyTorch, by its own layout: a project may lie in a folder called ``torch``."""
_NO_FILE = re.compile(_FRAME)
MAX_ROOTS = 100


class CodeRoots(NamedTuple):
    """Folders of one process, each with a separator at its end. The innermost that a file lies in says whose it is."""

    libraries: tuple[str, ...] = ()
    """Of installed packages, the standard library, and source checkouts of libraries."""
    own: tuple[str, ...] = ()
    """Of the user's own code: the package or folder of ``__main__``."""


class CodeLine(NamedTuple):
    """A line of a program, as a snapshot or a traceback names it. The job chose it: never trusted."""

    filename: str
    line: int
    function: str


class LiveBlock(NamedTuple):
    """A block in use. ``stack``: innermost first; empty if not recorded."""

    size_bytes: int
    stack: Sequence[CodeLine] = ()


class Owner(NamedTuple):
    """The blocks of one line."""

    held_bytes: int
    blocks: int
    line: Optional[CodeLine]
    """``None``: allocated when no stacks were recorded."""
    caller: Optional[CodeLine]
    """The next line of the same program further out, by which most of these bytes came: ``line`` may be a helper."""
    block_bytes: Optional[int]
    """The size of all of its blocks, where they are of one size."""
    what: Optional[str] = None
    """For people, where it is known what it is: a library's workspace."""


@functools.lru_cache(maxsize=8192)
def is_library(filename: str, roots: Optional[CodeRoots] = None) -> bool:
    """Whether the file belongs to a library, so that its lines say little to the author of a training script.

    ``roots``: of the process that ran it; where they are not known, its path decides.
    """
    if _NO_FILE.search(filename):
        return True
    if roots is None:
        return _PACKAGES.search(filename) is not None or _TORCH_CHECKOUT.search(filename) is not None
    around = (root for root in (*roots.libraries, *roots.own) if root and filename.startswith(root))
    root = max(around, key=len, default="")
    return root in roots.libraries or _PACKAGES.search(filename[max(len(root) - 1, 0) :]) is not None


def asking_line(stack: Sequence[CodeLine], roots: Optional[CodeRoots] = None) -> Optional[CodeLine]:
    """The innermost line that is not a library's; of a stack with nothing else, the innermost of Python's."""
    own = (line for line in stack if not is_library(line.filename, roots))
    python = (line for line in stack if line.filename.endswith(".py"))
    return next(own, None) or next(python, None) or next(iter(stack), None)


def calling_line(
    line: Optional[CodeLine], stack: Sequence[CodeLine], roots: Optional[CodeRoots] = None
) -> Optional[CodeLine]:
    """The next line further out than ``line`` that is not a library's."""
    if line is None or line not in stack:
        return None
    further_out = stack[list(stack).index(line) + 1 :]
    return next((frame for frame in further_out if not is_library(frame.filename, roots)), None)


def owners_of(blocks: Iterable[LiveBlock], roots: Optional[CodeRoots] = None) -> list[Owner]:
    """The owners of ``blocks``, the largest first. Blocks without a stack are grouped by their size."""
    groups: dict[tuple[Optional[CodeLine], Optional[int]], list[LiveBlock]] = {}
    for block in blocks:
        line = asking_line(block.stack, roots)
        groups.setdefault((line, block.size_bytes if line is None else None), []).append(block)
    owners = [_owner(line, group, roots) for (line, _), group in groups.items()]
    return sorted(owners, key=lambda owner: (-owner.held_bytes, owner.line or CodeLine("", 0, "")))


def _owner(line: Optional[CodeLine], blocks: Sequence[LiveBlock], roots: Optional[CodeRoots]) -> Owner:
    sizes = {block.size_bytes for block in blocks}
    size = sizes.pop() if len(sizes) == 1 else None
    by_caller: dict[CodeLine, int] = {}
    for block in blocks:
        caller = calling_line(line, block.stack, roots)
        if caller is not None:
            by_caller[caller] = by_caller.get(caller, 0) + block.size_bytes
    workspace = line is None and size in CUBLAS_WORKSPACE_BYTES and len(blocks) <= _MAX_WORKSPACES
    return Owner(
        held_bytes=sum(block.size_bytes for block in blocks),
        blocks=len(blocks),
        line=line,
        caller=max(by_caller, key=lambda caller: by_caller[caller], default=None),
        block_bytes=size,
        what="as large as a workspace of cuBLAS" if workspace else None,
    )
