"""Words for evidence, in one place, so that commands, reports, messages and pages agree. Values in, text out.

Names of files, functions and variables come from the job: they are cut here, and made fit to be shown by whoever shows
them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Optional

from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import ARROW, Holder, HolderKind, HolderSearch
from tidegauge.core.units import format_bytes, format_count

MAX_NAME_CHARS = 60
MAX_PATH_CHARS = 160
TENSOR_PART = re.compile(r"[\w.]+\[[\d, ]*\]( |$)")
"""Where a path comes to the tensor: ``Tensor[8,128,4096] float32``."""
_SHAPE = re.compile(r"[\w.]+\[([\d, ]*)\]")
_CUT = "..."
"""At the end of a path that was too long."""
_CONTAINER = re.compile(r"(\w+), [\d,]+ items?\)")
_NAME = re.compile(r"[\w.*]+")
_SAID_BY_FOLDER = frozenset(("__init__.py", "__main__.py", "main.py", "utils.py"))
"""Files that a project has more than once: `models/__init__.py` and `data/__init__.py`."""
_CELL = re.compile(r"^<ipython-input-(\d{1,9})-[^>]*>$|[/\\]ipykernel_\d+[/\\]\d+\.py$")

CAUSES = {
    EvidenceCause.RETAINED_GRAPH: "a retained autograd graph",
    EvidenceCause.PYTHON_CONTAINER: "tensors kept alive by Python references",
    EvidenceCause.CLOSURE: "tensors kept alive by a closure",
    EvidenceCause.HOOK: "a hook that stores tensors",
    EvidenceCause.EXCEPTION_FRAME: "a stored exception that keeps its frames alive",
    EvidenceCause.CYCLE: "uncollected reference cycles",
    EvidenceCause.OPTIMIZER_REBUILT: "optimizer state that accumulates",
    EvidenceCause.CUDA_GRAPHS: "private pools of CUDA graphs (or MemPool)",
    EvidenceCause.FRAGMENTATION: "fragmentation",
    EvidenceCause.COMMUNICATORS: "communicators (process groups) that accumulate",
    EvidenceCause.OUTSIDE_ALLOCATOR: "memory allocated outside PyTorch",
    EvidenceCause.OTHER_PROCESS: "another process on the GPU",
    EvidenceCause.DATALOADER_WORKER: "child processes that hold GPU memory, such as DataLoader workers",
    EvidenceCause.PINNED_HOST: "pinned host memory",
    EvidenceCause.CUBLAS_WORKSPACES: "cuBLAS workspaces, one per stream and handle",
    EvidenceCause.AUTOCAST_CACHE: "autocast's cache of converted weights",
    EvidenceCause.DDP_BUCKETS: "gradient buckets of DistributedDataParallel",
    EvidenceCause.UNKNOWN: "unknown",
}
"""Each cause as a noun."""
_UNITS = {"lru_cache": "answers", "list": "slots", "cublas": "workspaces"}
"""What a bound counts, by its kind; else items."""
_SMALLER = {
    "lru_cache": "lower its `maxsize`",
    "deque": "lower its `maxlen`",
    "Queue": "lower its `maxsize`",
    "list": "make it shorter",
    "cublas": "create fewer streams, or reuse a few",
}
"""What makes it smaller, by its kind."""
STILL_SEARCHING = "The search for what holds it is not over yet."
CONFIDENCES = {
    Confidence.NAMED: "two independent lines of evidence agree",
    Confidence.LIKELY: "one line of evidence says so, none contradicts it",
    Confidence.UNKNOWN: "no line of evidence is clear enough",
}
"""How well a cause is founded, as a clause."""


def line_words(line: CodeLine) -> str:
    """ "train.py:41 in step": the last part of the path is what people know a file by."""
    return f"{file_name(line.filename)}:{line.line} in {line.function[:MAX_NAME_CHARS]}"


def lines_words(line: CodeLine, caller: Optional[CodeLine]) -> str:
    """Both lines: "model.py:18 in forward, called from train.py:41 in step"; the caller may be the one to edit."""
    return line_words(line) + _called_from(line, caller)


def file_name(path: str) -> str:
    """The last part of a path, of either kind of slash; with its folder where it says nothing alone.

    A cell of IPython has no file of its own: `<ipython-input-3-0123abcd>`, `/tmp/ipykernel_123/4567.py`.
    """
    cell = _CELL.search(path)
    if cell is not None:
        return f"cell In [{cell[1]}]" if cell[1] else "notebook cell"
    *folders, name = path.replace("\\", "/").rsplit("/", 2)
    if name in _SAID_BY_FOLDER and folders:
        name = f"{folders[-1]}/{name}".lstrip("/")
    return name[-MAX_NAME_CHARS:]


def holder_words(path: str) -> str:
    """The path without the tensor that it leads to: "train.py: Trainer.history (list, 412 items)"."""
    first, *further = path.split(ARROW)
    return ARROW.join([first, *itertools.takewhile(lambda part: not TENSOR_PART.match(part), further)])[:MAX_PATH_CHARS]


def named_holder(holder: Holder) -> str:
    """The holder's name in the code: "`losses` (list, train.py)"; its path where it has no name."""
    if holder.name is None:
        return holder_words(holder.path)
    container = container_of(holder)
    about = [container] if container else []
    about += [file_name(holder.where.filename)] if holder.where is not None and holder.where.filename else []
    name = holder.name[:MAX_NAME_CHARS]
    quoted = f"`{name}`" if _NAME.fullmatch(name) else name
    return quoted + (f" ({', '.join(about)[:MAX_NAME_CHARS]})" if about else "")


def container_of(holder: Holder) -> Optional[str]:
    """The named container: the ``list`` of "Trainer.seen (list, 9 items) -> tuple (2 items) -> Tensor[8]", where
    ``Holder.container`` is what holds the tensor itself."""
    _, found, rest = holder.path.partition(f"{holder.name} (")
    named = _CONTAINER.match(rest) if holder.name and found else None
    return named[1] if named else holder.container


def elements_of(holder: Holder) -> Optional[int]:
    """The number of elements of each tensor that the path leads to, by its shape; ``None``: the path shows none."""
    if holder.path.endswith(_CUT):
        return None
    shapes = [_SHAPE.match(part) for part in holder.path.split(ARROW)[1:] if TENSOR_PART.match(part)]
    if not shapes or shapes[-1] is None:
        return None
    return math.prod(int(size) for size in shapes[-1][1].split(",") if size.strip())


def brief_line(brief: EvidenceBrief) -> Optional[str]:
    """Lines and holder for a cell or a headline: "model.py:18 in forward, called from train.py:41 in step, held by
    train.py: losses (list, 412 items)".

    ``None`` where neither is known.
    """
    where = None if brief.line is None else lines_words(brief.line, brief.through)
    held = None if brief.holder is None else f"held by {holder_words(brief.holder)}"
    return ", ".join(filter(None, (where, held))) or None


def brief_facts(brief: EvidenceBrief) -> str:
    """Sentences about the growing line, its holder and the cause, as far as known."""
    held = None if brief.holder is None else f"It is held by {brief.holder[:MAX_PATH_CHARS]}."
    ends = None if brief.bound is None else _sentence(bound_words(brief.bound))
    cause = STILL_SEARCHING if brief.searching else _cause(brief)
    return " ".join(filter(None, (_grown(brief), held, cause, ends)))


def brief_sentences(brief: EvidenceBrief) -> tuple[str, ...]:
    """``brief_facts``, and then what to change, where something can be said."""
    advice = _sentence(_advice(brief.advice, brief.bound))
    return (brief_facts(brief), *([] if advice is None else [advice]))


def evidence_sentence(evidence: Evidence) -> str:
    """All of it in one sentence: "97 % of what grew in 30 steps was allocated at train.py:41 in step (11.6 MiB a step);
    it is held by train.py: Trainer.history (list, 412 items)"."""
    rank, steps = f"rank {evidence.rank}", _in_steps(evidence.window_steps)
    if evidence.grown_bytes is None:
        return f"Nothing to compare on {rank}: it has no two snapshots."
    if evidence.grown_bytes <= 0:
        return f"Nothing grew on {rank}{steps}: no more memory is live at the end of the window than at its start."
    whole = max(evidence.grown_bytes, 1)
    first = evidence.growth[0] if evidence.growth else None
    if first is None or first.line is None:
        return f"{format_bytes(whole)} more is live on {rank}{steps}; no stack shows where it was allocated."
    grown = sum(one.grown_bytes for one in evidence.growth if one.line == first.line)
    share = f"{min(100 * grown / whole, 100):.0f} %"
    text = f"{share} of what grew on {rank}{steps} was allocated at {line_words(first.line)}"
    text += _a_step(grown, evidence.window_steps, " ({})") + _called_from(first.line, evidence.through)
    holders = evidence.search.holders if evidence.search is not None else ()
    if not holders:
        return f"{text}."
    if holders[0].kind is HolderKind.NATIVE:
        return f"{text}; {holder_words(holders[0].path)}."
    return f"{text}; it is held by {holder_words(holders[0].path)}."


def holder_sentence(search: HolderSearch) -> Optional[str]:
    """The holder of most of the growth: "train.py: losses (list, 412 items) -> Tensor[] holds 97 % of it (30 tensors,
    15.0 KiB)."; ``None``: nothing was found."""
    if not search.holders:
        return None
    first = search.holders[0]
    if first.kind is HolderKind.NATIVE:
        return _sentence(first.path[:MAX_PATH_CHARS])
    share = "" if search.wanted_bytes <= 0 else f" {min(100 * first.held_bytes / search.wanted_bytes, 100):.0f} % of it"
    tensors = format_count(first.tensors, "tensor")
    return f"{first.path[:MAX_PATH_CHARS]} holds{share} ({tensors}, {format_bytes(first.held_bytes)})."


def because_lines(evidence: Evidence) -> Sequence[str]:
    """The reasons for the cause, and the end of the growth if known, each as a sentence."""
    ends = [] if evidence.bound is None else [bound_words(evidence.bound)]
    return [sentence for sentence in map(_sentence, (*evidence.cause.because, *ends)) if sentence]


def advice_of(evidence: Evidence) -> Optional[str]:
    """Advice as a clause; it depends on the state of the growth's bound, if there is one."""
    return _advice(evidence.cause.advice, evidence.bound)


def _advice(advice: Optional[str], bound: Optional[GrowthBound]) -> Optional[str]:
    return advice if bound is None else bound_advice(bound)


def cause_words(cause: EvidenceCause, confidence: Confidence) -> str:
    """The cause with how sure it is, for a row of that name: "a retained autograd graph", "likely fragmentation"."""
    if cause is EvidenceCause.UNKNOWN or confidence is Confidence.UNKNOWN:
        return CAUSES[EvidenceCause.UNKNOWN]
    return f"{'likely ' if confidence is Confidence.LIKELY else ''}{CAUSES[cause]}"


def cause_clause(cause: EvidenceCause, confidence: Confidence) -> str:
    """The same for a sentence: "cause: a retained autograd graph", "likely cause: fragmentation", "cause unknown"."""
    if cause is EvidenceCause.UNKNOWN or confidence is Confidence.UNKNOWN:
        return f"cause {CAUSES[EvidenceCause.UNKNOWN]}"
    return f"{'likely ' if confidence is Confidence.LIKELY else ''}cause: {CAUSES[cause]}"


def bound_words(bound: GrowthBound) -> str:
    """The end of the growth, as a clause: "`features` (lru_cache, train.py) fills, and ends at about 3.1 GiB (214 of
    220 answers)"."""
    units = _UNITS.get(bound.kind, "items")
    count = f"{bound.items:,} of {bound.most_items:,} {units}"
    name = bound.what[: 2 * MAX_NAME_CHARS]
    if bound.state is BoundState.REFUTED:
        return (
            f"{name} was expected to end at about {_end(bound)} ({bound.most_items:,} {units}), but memory grew beyond "
            "that: something else grows"
        )
    if bound.state is BoundState.UNRELATED:
        return f"{name} has a bound ({count}); something else grows now"
    if bound.state is BoundState.TOO_LARGE:
        return f"{name} fills ({count}), and {end_words(bound)}: out of memory before it is full"
    if bound.items >= bound.most_items:
        return f"{name} is full ({count}): it ends at about {_end(bound)}"
    return f"{name} fills, and ends at about {_end(bound)} ({count})"


def end_words(bound: GrowthBound) -> str:
    """The end of the growth, in short: "ends at about 3.1 GiB", "needs 352.0 MiB more than there is"; empty where
    something else grows."""
    if bound.state is BoundState.TOO_LARGE:
        missing = bound.missing_bytes
        return f"needs {format_bytes(missing)} more than there is" if missing else "needs about all there is"
    if not bound.explains_growth:
        return ""
    before = "" if bound.is_of_evidence else f", as in {bound.items} earlier runs of this job"
    return f"ends at about {_end(bound)}{before}"


def bound_advice(bound: GrowthBound) -> str:
    """Advice about the bound."""
    lower = _SMALLER.get(bound.kind, "lower its bound")
    if not bound.explains_growth:
        return "collect evidence again (`tidegauge snapshot`): the last evidence does not explain the growth"
    if bound.state is BoundState.TOO_LARGE:
        return lower
    if bound.state is None:
        return f"it ends by itself; {lower} if that is more than there is"
    return f"nothing to do; {lower} if the memory is needed for something else"


def _end(bound: GrowthBound) -> str:
    """The tensor bytes at the end: "3.1 GiB", "3.1 to 4.0 GiB" where items differ in size."""
    low, likely, high = (format_bytes(end) for end in bound.end_bytes)
    return likely if bound.end_bytes.high - bound.end_bytes.low <= 0.1 * bound.end_bytes.likely else f"{low} to {high}"


def _grown(brief: EvidenceBrief) -> Optional[str]:
    if brief.line is None:
        return None
    if not brief.grown_bytes or brief.grown_bytes < 0:
        return f"Fastest-growing line on rank {brief.rank}: {lines_words(brief.line, brief.through)}."
    kept = format_bytes(brief.grown_bytes) + _a_step(brief.grown_bytes, brief.window_steps, " ({})")
    place = lines_words(brief.line, brief.through)
    return f"Rank {brief.rank} kept {kept}{_in_steps(brief.window_steps)}, allocated at {place}."


def _called_from(line: CodeLine, caller: Optional[CodeLine]) -> str:
    return "" if caller is None or caller == line else f", called from {line_words(caller)}"


def _cause(brief: EvidenceBrief) -> Optional[str]:
    return _sentence(cause_clause(brief.cause, brief.confidence))


def _in_steps(steps: Optional[int]) -> str:
    return "" if steps is None or steps <= 0 else f" in {format_count(steps, 'step')}"


def _a_step(grown_bytes: int, steps: Optional[int], form: str) -> str:
    return "" if steps is None or steps <= 1 else form.format(f"{format_bytes(grown_bytes / steps)} a step")


def _sentence(text: Optional[str]) -> Optional[str]:
    """The text with a capital letter in front and a full stop; a name from code stays as it is: `x`, train.py:41."""
    if not text or text.isspace():
        return None
    is_word = text.split(maxsplit=1)[0].rstrip(",:").isalpha()
    return (text[:1].upper() if is_word else text[:1]) + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
