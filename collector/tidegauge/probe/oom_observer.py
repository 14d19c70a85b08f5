"""Observes out-of-memory errors: records each in ring and snapshot, and explains the one that ends the program."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Optional

from tidegauge.core.evidence.held_memory import HeldMemory
from tidegauge.core.ids import RankIdentity
from tidegauge.core.jobs.variables import EXPLAIN_OOM_VARIABLE, KEEPER_VARIABLE
from tidegauge.core.run_dirs import LAUNCH_SUFFIX, process_of
from tidegauge.core.samples import EventCode, Sample
from tidegauge.core.text import one_line
from tidegauge.probe.levels import OFF
from tidegauge.probe.process_facts import is_alive
from tidegauge.probe.run_files.oom_snapshot import RefusedAllocation
from tidegauge.probe.run_files.run_files import RunFiles
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.step_counting.watch import Watch

# At the interpreter's end: if an out-of-memory error ended the program, explain it below its traceback.
# Python leaves the exception that ended a program in ``sys.last_exc`` (before 3.12: ``sys.last_value``) and prints its
# traceback before the functions of ``atexit`` run. So nothing is hooked: whatever the job or its framework does with
# ``sys.excepthook`` goes on as it was. Under ``tidegauge run`` the keeper explains it instead.

PREFIX = "tidegauge: "
MAX_LINES = 10
RECENT_NS = 300_000_000_000
"""Between the error and the end: time for a framework to close its files, too short for an error that was survived."""
_MAX_LINKS = 16
_STDERR = 2


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether out-of-memory errors are to be explained in this process at all."""
    return environ.get(EXPLAIN_OOM_VARIABLE, "").strip().lower() != OFF


def has_keeper(environ: Mapping[str, str]) -> bool:
    """Whether a living ``tidegauge run`` on this machine keeps this job: it explains the error at the command's end."""
    keeper = process_of(environ.get(KEEPER_VARIABLE, "") + LAUNCH_SUFFIX)
    return keeper is not None and is_alive(keeper)


def ended_by(is_out_of_memory: Callable[[BaseException], bool]) -> Optional[BaseException]:
    """The out-of-memory error that ends this program, or from which the exception came that does.

    An interactive session does not end by its last exception.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None
    return next(filter(is_out_of_memory, _chain(_last_exception())), None)


_OWN = "this process has "
_OTHER = re.compile(r"Process (\d{1,10}) has (\d{1,19}(?:\.\d+)?) (bytes|KiB|MiB|GiB) memory in use")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MAX_MESSAGE = 1 << 16


def other_processes(message: str) -> Optional[tuple[int, int, int]]:
    """The largest other process that PyTorch's message names, its bytes, and the bytes of all others.

    ``None`` where there is none, or where it does not tell its own process from the others (in a container).
    """
    found = [
        (round(float(size) * _UNITS[unit]), int(pid)) for pid, size, unit in _OTHER.findall(message[:_MAX_MESSAGE])
    ]
    if not found or _OWN not in message:
        return None
    largest_bytes, pid = max(found)
    return pid, largest_bytes, sum(size_bytes for size_bytes, _ in found)


def tell(
    who: RankIdentity,
    samples: Sequence[Sample],
    *,
    mono_ns: int,
    held: Optional[HeldMemory],
    descriptor: int = _STDERR,
) -> None:
    """Print the explanation of the last out-of-memory error of ``samples``, unless it is old; ``held``: memory then.

    Raises ``OSError`` if nothing can be printed.
    """
    from tidegauge.core.oom.of_rank import last_oom, oom_words  # brings the detector, which no other job needs

    if sys.__stderr__ is None:  # closed when Python began: whatever file has its number now is the job's own
        return
    oom = last_oom(samples)
    if oom is None or mono_ns - oom.mono_ns > RECENT_NS:
        return
    lines = oom_words(who, samples, oom, held)[:MAX_LINES]
    with suppress(Exception):
        sys.stderr.flush()  # the traceback comes first
    rest = "".join(f"{PREFIX}{one_line(line, len(line))}\n" for line in lines).encode(errors="replace")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _last_exception() -> Optional[BaseException]:
    error: Optional[BaseException] = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """``error`` and its causes."""
    for _ in range(_MAX_LINKS):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


class OomObserver:
    """Observes one process's out-of-memory errors."""

    def __init__(self, environ: Mapping[str, str], backend: Backend) -> None:
        self._environ = environ
        self._backend = backend
        self._last: Optional[RefusedAllocation] = None
        self._held: Optional[HeldMemory] = None
        """Memory held at ``_last``; ``None`` where no snapshot of it was taken."""

    def saw(self, refusal: RefusedAllocation, watch: Watch, run_files: RunFiles) -> None:
        """An error is about to be raised: record it, then what was held."""
        facts = (refusal.wanted_bytes, refusal.free_bytes, refusal.limit_bytes)
        watch.event(EventCode.OUT_OF_MEMORY, facts, device=refusal.device)
        self._last, self._held = refusal, None
        if run_files.oom_snapshots is not None and run_files.identity is not None and wanted(self._environ):
            held = run_files.oom_snapshots.take(refusal, watch.used, _facts(run_files.identity, refusal))
            self._held = held
            if held is not None and held.private_free_bytes:
                watch.event(EventCode.POOLS_AT_OOM, (held.private_free_bytes, 0, 0), device=refusal.device)

    def last_words(self, run_files: Optional[RunFiles], watch: Optional[Watch]) -> None:
        """The program ends: record which processes PyTorch names beside it in the out-of-memory error that ended it,
        and explain that error, unless a keeper does."""
        if self._last is None or run_files is None or run_files.ring is None or run_files.identity is None:
            return
        error = ended_by(self._backend.is_out_of_memory) if wanted(self._environ) else None
        if error is None:
            return
        others = other_processes(str(error))
        if others is not None and watch is not None:
            watch.note(EventCode.OTHERS_AT_OOM, others)
        if has_keeper(self._environ):
            return
        samples = run_files.ring.samples(self._last.device)
        tell(run_files.identity, samples, mono_ns=time.monotonic_ns(), held=self._held)


def _facts(who: RankIdentity, refusal: RefusedAllocation) -> dict[str, object]:
    """Facts that torch's snapshot lacks."""
    fraction = who.limit_fraction
    capped = fraction is not None and fraction < 1
    return {
        "rank": int(who.rank),
        "job_id": str(who.job_id),
        "torch_version": who.torch_version,
        "alloc_conf": who.alloc_conf,
        "cap_bytes": refusal.limit_bytes if capped else None,
        "total_bytes": round(refusal.limit_bytes / fraction) if fraction else None,
    }
