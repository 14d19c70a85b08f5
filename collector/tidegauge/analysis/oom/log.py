"""Finds out-of-memory errors in a log of any length: their order, their ranks, and the lines of code.

Lines are read one by one and the last few kept, so that a log of gigabytes takes no memory. Nothing in it is trusted:
what is shown of it is made printable by whoever shows it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Optional

from tidegauge.analysis.oom.forms import OomText, parse_message, starts
from tidegauge.core.evidence.owners import is_library

# Log lines about memory that ran out elsewhere than in PyTorch's allocator, and what to do. The GPU's memory and the
# host's are mixed up most often.

_OUTSIDE = (
    "It allocates from the driver directly, and memory that PyTorch caches is not free for it. Limit PyTorch "
    "(torch.cuda.set_per_process_memory_fraction(0.9), or `tidegauge run --memory-fraction 0.9`), or lower its peak."
)
_HOST = "The GPU has no part in it: look at the job's memory request, DataLoader workers and their prefetching."
_WHO_KILLED = (
    "See dmesg, the scheduler (Slurm: sacct, Kubernetes: kubectl describe pod) or the node's log for who sent it. If "
    "it was memory: raise the job's memory request, or lower num_workers, prefetch_factor and what each worker caches."
)


class Elsewhere(NamedTuple):
    """One kind of out-of-memory error other than ``torch.OutOfMemoryError``."""

    kind: str
    pattern: re.Pattern[str]
    what: str
    """For people: what ran out."""
    advice: str
    beside_allocator: bool = False
    """Whether it is GPU memory that PyTorch's allocator did not ask for."""
    symptom: bool = False
    """Whether another kind in the same log says more than this one."""


KINDS = (
    Elsewhere(
        "nccl",
        re.compile(
            r"NCCL.{0,400}(?:out of memory|Failed to CUDA (?:calloc|malloc))|Cuda failure (?:2 )?'out of memory'"
        ),
        "NCCL could not allocate GPU memory for its buffers",
        _OUTSIDE,
        beside_allocator=True,
    ),
    Elsewhere(
        "library",
        re.compile(r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS)_(?:STATUS_)?(?:ALLOC_FAILED|INSUFFICIENT\w*)"),
        "a CUDA library (cuBLAS, cuDNN) could not allocate its handle or workspace: usually the GPU is full",
        _OUTSIDE + " If the GPU has room, an earlier kernel may have failed: run with CUDA_LAUNCH_BLOCKING=1.",
        beside_allocator=True,
    ),
    Elsewhere(
        "driver",
        re.compile(r"(?:CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"),
        "the CUDA driver ran out of memory: for a context, a kernel, a graph, or pinned host memory",
        _OUTSIDE + " If it comes at once, the GPU was full before: see nvidia-smi. If the GPU has room, it may be "
        "pinned host memory, of which WSL and containers have little: try DataLoader(pin_memory=False).",
        beside_allocator=True,
    ),
    Elsewhere(
        "driver_mapping",
        re.compile(r"CUDA driver error: out of memory"),
        "the CUDA driver could not reserve address space or map memory for a segment that can expand",
        "Where much memory is free, it is address space that ran out: with expandable_segments:True each private pool "
        "(CUDA graph, MemPool) reserves 1.125 times the GPU's memory, and a process has room for about 830 pools on "
        "an H200. Let graphs share one pool, or run without expandable_segments. Else the GPU is full: see nvidia-smi.",
    ),
    Elsewhere(
        "xpu_driver",
        re.compile(r"UR_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)|ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
        "the driver of an Intel GPU (XPU) ran out of memory: for a kernel, or because other processes fill the GPU",
        "Limit or lower what PyTorch takes (torch.xpu.memory_reserved() tells), and see xpu-smi for other processes.",
        beside_allocator=True,
    ),
    Elsewhere(
        "text_lost",
        re.compile(r"NVML_SUCCESS == r INTERNAL ASSERT FAILED"),
        "PyTorch's allocator ran out of memory, and NVML failed while the message was written (pytorch #185240)",
        "The figures are lost. Where nvidia-smi fails too, the driver is the first thing to mend.",
    ),
    Elsewhere(
        "mps",
        re.compile(r"MPS backend out of memory"),
        "PyTorch reached its limit on Apple GPU memory (MPS), which the GPU shares with the host",
        "Close other programs, or use less memory (a smaller batch or model). PYTORCH_MPS_HIGH_WATERMARK_RATIO raises "
        "the limit; at 0.0 there is none, and macOS may swap or fail.",
    ),
    Elsewhere(
        "cpu_allocator",
        re.compile(
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|Torch: not enough memory: you tried|"
            r"posix_memalign\(.{0,80}\) == 0\. 12 vs 0"
        ),
        "host memory could not serve a CPU tensor",
        "It is host memory, not GPU memory. A large request: its shape may be wrong, or the tensor was meant for the "
        "GPU. A small one: the host, the job's memory limit, or the page file (Windows) was exhausted.",
    ),
    Elsewhere(
        "ray",
        re.compile(
            r"ray\.exceptions\.OutOfMemoryError|running low on memory|RayOutOfMemoryError|"
            r"killed due to memory pressure \(OOM\)"
        ),
        "Ray ended a worker because its node's host memory ran low",
        _HOST,
    ),
    Elsewhere(
        "killed",
        re.compile(
            r"oom[-_]kill|Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|OOMKilled|"
            r"\btasks? [\d,-]{1,80}: Out Of Memory|Exceeded (?:job|step) memory limit|exceeded memory limit \(|"
            r"\bOUT_OF_MEMORY\s*$"
        ),
        "the kernel's OOM killer ended a process: the host's memory, or the job's share of it, ran out",
        _HOST + " A rank that is killed so gets no traceback.",
    ),
    Elsewhere(
        "evicted",
        re.compile(r"node was low on resource: memory\b"),
        "Kubernetes evicted the pod because its node's host memory ran low",
        "Request as much memory as the job uses (resources.requests.memory): pods that use more than their request are "
        "evicted first. The GPU has no part in it.",
    ),
    Elsewhere(
        "mappings",
        re.compile(r"unable to mmap \d{1,20} bytes from file .{0,400}Cannot allocate memory"),
        "the kernel refused to map shared memory: too many mappings, or the host's memory ran out",
        "Small requests are usually refused because of the number of mappings: see sysctl vm.max_map_count, and share "
        "fewer, larger tensors. Otherwise look at free host memory and at the job's memory limit.",
    ),
    Elsewhere(
        "open_files",
        re.compile(r"unable to open shared memory object .{0,400}/torch_.{0,400}(?:Too many open files|mode\s*$)"),
        "a shared memory file could not be opened: usually the process has too many open files, which is no lack of "
        "memory",
        "Raise ulimit -n, or share memory by name: torch.multiprocessing.set_sharing_strategy('file_system'). If that "
        "does not help, look at df -h /dev/shm.",
    ),
    Elsewhere(
        "shared_memory",
        re.compile(
            r"insufficient shared memory \(shm\)|workers are out of shared memory|is killed by signal: Bus error|"
            r"unable to (?:write to|mmap|resize).{0,400}/(?:torch_|dev/shm)|unable to allocate shared memory\s?\(shm\)|"
            r"creating shared memory segment /dev/shm|failed to extend /dev/shm"
        ),
        "a process found no room in /dev/shm, where DataLoader workers and NCCL share memory",
        "See df -h /dev/shm. A container has 64 MiB there unless told otherwise (--shm-size; on Kubernetes an emptyDir "
        "of medium Memory). With room there, look at the job's memory limit, which counts /dev/shm.",
    ),
    Elsewhere(
        "host",
        re.compile(
            r"^\s*(?:numpy[\w.]{0,40}\.)?_?(?:Array)?MemoryError\b|std::bad_alloc|\[Errno 12\] Cannot allocate memory|"
            r"\[WinError 1455\]|\(os error 1455\)"
        ),
        "a process found no host memory",
        _HOST + " On Windows, enlarge the page file.",
    ),
    Elsewhere(
        "worker_killed",
        re.compile(r"DataLoader worker \(pid[^)]{0,40}\) is killed by signal: Killed"),
        "a DataLoader worker was killed by SIGKILL: usually the kernel's OOM killer, because host memory ran out; the "
        "text does not say who sent it",
        _WHO_KILLED,
        symptom=True,
    ),
    Elsewhere(
        "sigkill",
        re.compile(
            r"exitcode\s{0,8}: -9\b|Signal 9 \(SIGKILL\) received by PID|exits with return code = -9\b|"
            r"died with <Signals\.SIGKILL|\bexit ?code(?:\"?: {0,20}| )137\b|^\s{0,8}Killed\s*$|it/s\]Killed\s*$|"
            r"line \d{1,9}: {1,8}\d{1,10} Killed\b",
            re.IGNORECASE,
        ),
        "a process was killed by SIGKILL: usually the kernel's OOM killer, because host memory ran out, or a "
        "scheduler's limit; the text does not say who sent it",
        "With torchrun, the rank under 'Root Cause' died first. " + _WHO_KILLED,
        symptom=True,
    ),
)
"""In this order: the first that fits a line is its kind. No pattern looks arbitrarily far from its beginning: on a line
of 64 KiB of one repeated word, or of the spaces of a progress bar, that would take minutes."""

MAPPING_FAILED = re.compile(
    r"(?P<mapping>expandable_segments: )?memory (?:allocation|mapping) failed with OOM on device \d{1,4} while trying"
)
"""torch 2.13 writes this for each refused ``cudaMalloc``, also for those that the allocator gets over by giving back
its cache; with ``expandable_segments:True`` for each refused mapping."""


_HINTS = (
    "memor", "alloc", "kill", "mmap", "memalign", "shm", "nvml", "unable to", "insufficient", "bus error", "1455",
    "exit", "cuda", "out_of_",
)  # fmt: skip
"""One of these words, in small letters, is in every line that a pattern of this module fits: nearly all lines of a log
have none, and need no further look."""


def may_tell(line: str) -> bool:
    """Whether a line may be about memory at all."""
    small = line.lower()
    return any(word in small for word in _HINTS)


def recognise(line: str) -> Optional[Elsewhere]:
    """The kind of memory error in ``line``, or ``None``."""
    return next((kind for kind in KINDS if kind.pattern.search(line)), None)


LINES_BEFORE = 400
"""Of the ranks together: a traceback of 40 calls through torch.compile has some 200."""
LINES_AFTER = 12
"""A message that a logger wraps, or that of ``cudaMallocAsync``."""
MAX_LINE_CHARS = 65536
MAX_MESSAGES = 1000
"""Messages; a program that catches and tries again writes more than anybody reads."""
MAX_MESSAGES_PER_LINE = 20
"""A log in JSON has some in a line. Each is read with the lines around it: a line of 1,600 would take minutes."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_TIME = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?\s?")
_MARK = re.compile(
    r"^\s*(?:\[(?:rank|default|trainer)(\d{1,7})\]:\s?|(\d{1,7}): ?|\(\w[\w .,=:()-]{0,80}pid=\d+[^)]*\)\s?)"
)
"""How torch, ``torchrun --tee``, ``srun --label`` and Ray say whose line it is."""
_FRAME = re.compile(r'^\s*(?:[│|]\s*)?File "([^"\n]{1,4096})", line (\d{1,9})(?:, in (.{1,400}))?')
_TRACEBACK = "Traceback (most recent call last)"
_CARETS = re.compile(r"^[\s~^]*$")


_VICTIM = re.compile(
    r"Kill(?:ed)? process (?P<pid>\d{1,10}) \((?P<name>[^)]{1,64})\)|"
    r"oom-kill:.{0,1000}\btask=(?P<task>[^,]{1,64}),pid=(?P<task_pid>\d{1,10})"
)
_PID = re.compile(r"\bpid[ =:]{1,3}(\d{1,10})\b|line \d{1,9}: {1,8}(\d{1,10}) Killed\b", re.IGNORECASE)
MAX_PIDS = 10_000


class Victim(NamedTuple):
    """A process that the kernel's OOM killer ended, by the kernel's own line."""

    pid: int
    name: str


class LogPlace(NamedTuple):
    """A line of a traceback: the innermost one that is not a library's."""

    filename: str
    line: int
    function: Optional[str]
    code: Optional[str]


@dataclass(frozen=True)
class FoundOom:
    """One ``torch.OutOfMemoryError`` in a log."""

    text: OomText
    line_number: int
    """Where it begins, from 1."""
    rank: Optional[int] = None
    place: Optional[LogPlace] = None
    expandable: bool = False
    """A refused mapping before it says that ``expandable_segments`` is on."""


class FoundElsewhere(NamedTuple):
    """A log line about other memory."""

    what: Elsewhere
    line_number: int
    rank: Optional[int]
    line: str


@dataclass
class OomLog:
    """The findings in a log."""

    found: list[FoundOom] = field(default_factory=list)
    """In the log's order: the first is mostly the cause of the others."""
    elsewhere: list[FoundElsewhere] = field(default_factory=list)
    """The first of each kind."""
    refused_mallocs: int = 0
    """Lines about refused calls of ``cudaMalloc``, in vain or got over."""
    victim: Optional[Victim] = None
    """The first of the kernel's lines."""
    pids: set[int] = field(default_factory=set)
    """Processes that other lines name."""
    lines: int = 0
    not_kept: int = 0

    @property
    def cause_elsewhere(self) -> Optional[FoundElsewhere]:
        """The first of ``elsewhere`` that is more than a symptom, or else the first."""
        first = self.elsewhere[0] if self.elsewhere else None
        return next((seen for seen in self.elsewhere if not seen.what.symptom), first)


class _Line(NamedTuple):
    number: int
    mark: str
    rank: Optional[int]
    text: str


def read_log(lines: Iterable[str]) -> OomLog:
    """Go through ``lines``; each is cut at ``MAX_LINE_CHARS`` characters."""
    log, before, mapped = OomLog(), deque[_Line](maxlen=LINES_BEFORE), set[str]()
    cleaned = _cleaned(lines)
    ahead: deque[_Line] = deque(islice(cleaned, LINES_AFTER))
    while ahead:
        line = ahead.popleft()
        ahead.extend(islice(cleaned, 1))
        log.lines = line.number
        _note_processes(log, line)
        if may_tell(line.text):
            refused = MAPPING_FAILED.search(line.text)
            if refused:
                log.refused_mallocs += 1
                if refused["mapping"]:
                    mapped.add(line.mark)
            elif starts(line.text):
                _keep(log, line, before, ahead, expandable=line.mark in mapped)
            else:
                _look_elsewhere(log, line)
        before.append(line)
    return log


def _keep(log: OomLog, line: _Line, before: deque[_Line], ahead: deque[_Line], *, expandable: bool) -> None:
    rest = [later.text for later in ahead if later.mark == line.mark]
    own = [earlier.text for earlier in before if earlier.mark == line.mark]
    places = starts(line.text)
    kept = places[: min(MAX_MESSAGES_PER_LINE, MAX_MESSAGES - len(log.found))]
    log.not_kept += len(places) - len(kept)
    for at in kept:
        text = parse_message("\n".join([line.text[at:], *rest]))
        if text is None:
            continue
        place = _innermost([*own, *line.text[:at].splitlines()])
        log.found.append(FoundOom(text, line.number, line.rank, place, expandable))


def _look_elsewhere(log: OomLog, line: _Line) -> None:
    what = recognise(line.text)
    if what is not None and all(known.what.kind != what.kind for known in log.elsewhere):
        log.elsewhere.append(FoundElsewhere(what, line.number, line.rank, line.text.strip()))


def _note_processes(log: OomLog, line: _Line) -> None:
    found = _VICTIM.search(line.text) if "ill" in line.text else None
    if found is None:
        for pid in _PID.findall(f"{line.mark} {line.text}") if len(log.pids) < MAX_PIDS else ():
            log.pids.add(int(pid[0] or pid[1]))
    elif log.victim is None:
        log.victim = Victim(int(found["pid"] or found["task_pid"]), found["name"] or found["task"])


def _cleaned(lines: Iterable[str]) -> Iterator[_Line]:
    """Strip colours, times and the mark of the process from each line, and undo the escapes of JSON."""
    for number, raw in enumerate(lines, start=1):
        text = raw[:MAX_LINE_CHARS].rstrip("\r\n")
        text = _ANSI.sub("", text) if "\x1b" in text else text
        text = text.rpartition("\r")[2] if "\r" in text else text  # a progress bar writes over itself
        if "\\n" in text and ('\\"' in text or text.lstrip().startswith("{")):
            text = text.replace("\\n", "\n").replace('\\"', '"')
        text = _TIME.sub("", text)
        mark = _MARK.match(text)
        rank = None if mark is None else mark[1] or mark[2]
        yield _Line(
            number=number,
            mark="" if mark is None else mark[0].strip(),
            rank=None if rank is None else int(rank),
            text=text if mark is None else text[mark.end() :],
        )


def _innermost(lines: list[str]) -> Optional[LogPlace]:
    """The line that asked, by the traceback that ends here: libraries are passed over while there is anybody else."""
    last = next((at for at in range(len(lines) - 1, -1, -1) if _TRACEBACK in lines[at]), None)
    if last is None:
        return None
    places = []
    block = [part for line in lines[last:] for part in line.splitlines()]
    for at, line in enumerate(block):
        frame = _FRAME.match(line)
        if frame is not None:
            code = block[at + 1].strip() if at + 1 < len(block) else ""
            has_code = bool(code) and not _FRAME.match(block[at + 1]) and not _CARETS.match(code)
            places.append(LogPlace(frame[1], int(frame[2]), frame[3], code if has_code else None))
    own = [place for place in places if not is_library(place.filename)]
    return next(iter(reversed(own or places)), None)
