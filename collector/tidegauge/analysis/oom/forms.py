"""Parses the text of a ``torch.OutOfMemoryError``, as written by every PyTorch since 1.0.

The sentences come from ``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``) and, of the backend ``cudaMallocAsync``, from
``CUDAMallocAsyncAllocator.cpp``. Which of them are there depends on the version, on a cap, on private pools and on
whether NVML answered, so each figure is looked for by itself. Line breaks do not matter: loggers wrap. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.oom.case import OomCase

NOT_AVAILABLE_BYTES = 1 << 60
"""NVML's "not available" is 2**64 - 1 and is printed as a size (17179869184.00 GiB): nothing beyond this is one."""
MAX_MESSAGE_CHARS = 4000
"""Of one message; the longest have some 900, and 60 for each further process on the GPU."""

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"(\d{1,15}(?:\.\d{1,2})?) (bytes|KiB|MiB|GiB)"


class SizeRange(NamedTuple):
    """The range of a size that was written with two decimals, both ends included."""

    low_bytes: int
    high_bytes: int

    @property
    def likely_bytes(self) -> int:
        return (self.low_bytes + self.high_bytes) // 2


class OomTextForm(Enum):
    """The form of the message."""

    NATIVE = "native"
    """The caching allocator's own."""
    REJECTED = "rejected"
    """Of ``throw_on_cudamalloc_oom:True`` (torch 2.12): refused before anything was tried, the cache not given back."""
    UNNAMED_SIZE = "unnamed_size"
    """More than an exbibyte: the size is not even named."""
    ASYNC = "async"
    """Of the backend ``cudaMallocAsync``."""


class OtherProcess(NamedTuple):
    """A process that NVML lists on the GPU."""

    pid: int
    """In the pid namespace of the driver: in a container not the one that the process knows."""
    size: Optional[SizeRange]
    """``None`` where NVML does not tell."""


@dataclass(frozen=True)
class OomText:
    """The fields of one message; ``None``: not in it."""

    form: OomTextForm
    wanted: Optional[SizeRange] = None
    device: Optional[int] = None
    total: Optional[SizeRange] = None
    free: Optional[SizeRange] = None
    cap: Optional[SizeRange] = None
    allocated: Optional[SizeRange] = None
    """By tensors, and what is free in private pools."""
    private_free: Optional[SizeRange] = None
    unused: Optional[SizeRange] = None
    """Reserved by PyTorch, but unallocated."""
    own: Optional[SizeRange] = None
    """All that the process holds on the GPU, by NVML."""
    others: tuple[OtherProcess, ...] = ()
    at_least: Optional[str] = None
    """The PyTorch release from which on the text reads like this, where that matters for settings."""
    old: bool = False
    """Of PyTorch 2.0 or before, which do not know ``expandable_segments``."""
    backend: str = "CUDA"
    """CUDA, HIP or XPU."""


START = re.compile(
    r"(?P<backend>CUDA|HIP|XPU) out of memory\. (?=Tried to allocate|Allocation was preemptively)|"
    r"Allocation on device(?: (?P<device>\d+))? would exceed allowed memory"
)
_WANTED = re.compile(rf"Tried to allocate {_SIZE}|Requested size: {_SIZE}|Requested\s*: {_SIZE}")
_DEVICE = re.compile(r"GPU (\d{1,4})[ ;](?:has a total capac|[\d ])")
_FIGURES = {
    # "capacty" is how 2.1 and 2.2 spell it; the form in parentheses is of 2.0 and before
    "total": re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity|Device limit\s*: {_SIZE}"),
    "free": re.compile(rf"of which {_SIZE} is free|{_SIZE} free;|Free \(according to CUDA\): {_SIZE}"),
    "cap": re.compile(rf"{_SIZE} allowed;|user-supplied memory fraction\)\s*: {_SIZE}"),
    "allocated": re.compile(
        rf"Of the allocated memory {_SIZE} is allocated|{_SIZE} already allocated|Currently allocated\s*: {_SIZE}"
    ),
    "private_free": re.compile(rf"with {_SIZE} allocated in private pools"),
    "unused": re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated"),
    "own": re.compile(rf"this process has {_SIZE} memory in use"),
}
_RESERVED_IN_TOTAL = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_CACHED = re.compile(rf"{_SIZE} cached\)")
"""Of 1.0 to 1.3: reserved and not in use."""
_OTHER_PROCESS = re.compile(rf"Process (\d{{1,10}}) has {_SIZE} memory in use")
_END = re.compile(r"See documentation for\s+Memory Management(?:\s+\(\S+\))?|more than 1EB memory")
_SINCE = (
    ("optimizing-memory-usage-with-pytorch-cuda-alloc-conf", "2.11"),
    ("Allocation was preemptively rejected", "2.12"),
)


def starts(text: str) -> list[int]:
    """The positions where messages begin."""
    return [match.start() for match in START.finditer(text)]


def parse_message(text: str) -> Optional[OomText]:
    """The first message in ``text``, or ``None``. Figures after it are not taken for its own."""
    found = START.search(text)
    if found is None:
        return None
    following = START.search(text, found.end())
    text = text[found.start() : min(following.start() if following else len(text), found.start() + MAX_MESSAGE_CHARS)]
    end = _END.search(text)
    text = " ".join(re.sub("[│|]", " ", text[: end.end()] if end else text).split())
    if "more than 1EB memory" in text:
        return OomText(OomTextForm.UNNAMED_SIZE)
    device = found["device"] or next(iter(_DEVICE.findall(text)), None)
    figures = {name: _size_in(pattern, text) for name, pattern in _FIGURES.items()}
    reserved = _size_in(_RESERVED_IN_TOTAL, text)
    if reserved is not None:
        figures["unused"] = _difference(reserved, figures["allocated"])
    cached = _size_in(_CACHED, text)
    if cached is not None:
        figures["unused"] = cached
    form = OomTextForm.NATIVE
    if found[0].startswith("Allocation on device"):
        form = OomTextForm.ASYNC
    elif "preemptively rejected" in text:
        form = OomTextForm.REJECTED
    return OomText(
        form=form,
        wanted=_size_in(_WANTED, text),
        device=None if device is None else int(device),
        others=tuple(OtherProcess(int(pid), _size(*size)) for pid, *size in _OTHER_PROCESS.findall(text)),
        old=reserved is not None or cached is not None,
        backend=found["backend"] or "CUDA",
        at_least=next((version for words, version in _SINCE if words in text), None),
        **figures,
    )


def figures_of(text: OomText, *, expandable: bool = False) -> Optional[OomCase]:
    """The figures for ``core.oom``, or ``None`` where the message has too few to go by."""
    if text.wanted is None or text.total is None or text.free is None or text.allocated is None:
        return None
    private_free_bytes = _likely(text.private_free)
    wanted_bytes, free_bytes = text.wanted.likely_bytes, text.free.likely_bytes
    reserved_bytes = reserved_bytes_of(text)
    limit_bytes, fraction = text.total.likely_bytes, None
    if text.cap is not None:
        limit_bytes, fraction = text.cap.likely_bytes, text.cap.likely_bytes / max(text.total.likely_bytes, 1)
        beyond_cap = _high(text.allocated) + _high(text.unused) + text.wanted.high_bytes >= text.cap.low_bytes
        if text.free.low_bytes > text.wanted.high_bytes and beyond_cap:
            # The GPU had room, so the cap did refuse it, whatever the decimals that are not printed say.
            reserved_bytes = max(reserved_bytes, limit_bytes - wanted_bytes + 1)
    own_bytes, others_bytes = _whose(text)
    return OomCase(
        wanted_bytes=wanted_bytes,
        free_bytes=free_bytes,
        limit_bytes=limit_bytes,
        allocated_bytes=max(0, text.allocated.likely_bytes - private_free_bytes),
        reserved_bytes=reserved_bytes,
        cap_fraction=fraction,
        usable_bytes=text.total.likely_bytes or None,
        nontorch_bytes=None if own_bytes is None else max(0, own_bytes - reserved_bytes),
        others_bytes=others_bytes,
        private_free_bytes=private_free_bytes,
        expandable=expandable,
        approximate=True,
        uncapped=text.cap is None,
        before_2_1=text.old,
        neighbours=_pids_and_bytes(text),
    )


def neighbours(text: OomText) -> tuple[OtherProcess, ...]:
    """The processes that the message lists and that are not the one that writes it.

    In a container NVML's pids are not those that the process knows, so that it finds none of its own among them: then
    it is taken for the one that holds just a little more than what PyTorch reserved.
    """
    own = _own_among(text)
    return tuple(process for process in text.others if process is not own)


def _pids_and_bytes(text: OomText) -> tuple[tuple[int, int], ...]:
    known = [(process.pid, process.size.likely_bytes) for process in neighbours(text) if process.size is not None]
    return tuple(sorted(known, key=lambda one: -one[1]))


def reserved_bytes_of(text: OomText) -> int:
    """The allocator's reserved bytes, as far as the message says."""
    return _likely(text.allocated) + _likely(text.unused)


def _own_among(text: OomText) -> Optional[OtherProcess]:
    if text.own is not None or any(process.size is None for process in text.others):
        return None
    reserved_bytes = reserved_bytes_of(text)
    fitting = [process for process in text.others if process.size and process.size.high_bytes >= reserved_bytes]
    return min(fitting, key=lambda process: _likely(process.size), default=None)


def _whose(text: OomText) -> tuple[Optional[int], Optional[int]]:
    """The bytes that the process and that others hold on the GPU."""
    own = _own_among(text)
    own_size = text.own if own is None else own.size
    others = [process.size for process in neighbours(text)]
    if own_size is None:
        return None, None
    known = None not in others
    return own_size.likely_bytes, sum(size.likely_bytes for size in others if size is not None) if known else None


def _size_in(pattern: re.Pattern[str], text: str) -> Optional[SizeRange]:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return _size(number, unit)


def _size(number: str, unit: str) -> Optional[SizeRange]:
    """The range of sizes that ``format_size`` prints like this; ``None`` for NVML's "not available"."""
    unit_bytes = _UNITS[unit]
    count = round(float(number) * unit_bytes)
    if count >= NOT_AVAILABLE_BYTES:
        return None
    slack = 0 if unit_bytes == 1 else unit_bytes // 200 + 1
    return SizeRange(max(0, count - slack), count + slack)


def _difference(whole: Optional[SizeRange], part: Optional[SizeRange]) -> Optional[SizeRange]:
    if whole is None or part is None:
        return None
    low, high = whole.low_bytes - part.high_bytes, whole.high_bytes - part.low_bytes
    return SizeRange(max(0, low), max(0, high))


def _high(size: Optional[SizeRange]) -> int:
    return 0 if size is None else size.high_bytes


def _likely(size: Optional[SizeRange]) -> int:
    return 0 if size is None else size.likely_bytes
