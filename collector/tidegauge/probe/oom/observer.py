"""What the probe remembers of an out-of-memory error: for a file while the program lives, for a word when it ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Optional

from tidegauge.core.evidence.held_memory import HeldMemory
from tidegauge.core.ids import RankIdentity
from tidegauge.core.samples import EventCode
from tidegauge.probe.oom.last_words import ended_by, has_keeper, tell, wanted
from tidegauge.probe.run_files.oom_snapshot import RefusedAllocation
from tidegauge.probe.run_files.run_files import RunFiles
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.watching.watch import Watch


class OomObserver:
    """Of one process."""

    def __init__(self, environ: Mapping[str, str], backend: Backend) -> None:
        self._environ = environ
        self._backend = backend
        self._last: Optional[RefusedAllocation] = None
        self._held: Optional[HeldMemory] = None
        """What ``_last`` found held; ``None`` where no snapshot of it was taken."""

    def saw(self, refusal: RefusedAllocation, watch: Watch, outlet: RunFiles) -> None:
        """An error is about to be raised: record it, then what was held."""
        facts = (refusal.wanted_bytes, refusal.free_bytes, refusal.limit_bytes)
        watch.event(EventCode.OUT_OF_MEMORY, facts, device=refusal.device)
        self._last, self._held = refusal, None
        if outlet.oom_snapshots is not None and outlet.identity is not None and wanted(self._environ):
            held = outlet.oom_snapshots.take(refusal, watch.used, _facts(outlet.identity, refusal))
            self._held = held
            if held is not None and held.private_free_bytes:
                watch.event(EventCode.POOLS_AT_OOM, (held.private_free_bytes, 0, 0), device=refusal.device)

    def last_words(self, outlet: Optional[RunFiles]) -> None:
        """The program ends: explain the error that ended it, if one did and nobody else will."""
        if self._last is None or outlet is None or outlet.ring is None or outlet.identity is None:
            return
        if not wanted(self._environ) or has_keeper(self._environ) or not ended_by(self._backend.is_out_of_memory):
            return
        samples = outlet.ring.samples(self._last.device)
        tell(outlet.identity, samples, mono_ns=time.monotonic_ns(), held=self._held)


def _facts(who: RankIdentity, refusal: RefusedAllocation) -> dict[str, object]:
    """What torch's snapshot does not say."""
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
