"""Memory fraction: the part of a device a rank may take, by ``TIDEGAUGE_MEMORY_FRACTION`` or command ``fraction``.

It is growth control, not isolation: beyond it the allocator refuses to *grow*, with an OutOfMemoryError in the job;
memory already over it stays, and context, NCCL and other libraries are not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Optional

from tidegauge.core.jobs.variables import (
    FRACTION_VARIABLE,
    SHARE_VARIABLE,
    SHARED_BYTES_VARIABLE,
    parse_fraction,
)
from tidegauge.core.units import format_bytes
from tidegauge.probe.runtime.backend import Backend


def complaint(environ: Mapping[str, str], name: str, consequence: str) -> Optional[str]:
    """One line about an invalid fraction in a variable, or ``None``."""
    text = environ.get(name)
    if not text or parse_fraction(text) is not None:
        return None
    return f"{name}={text[:40]!r} is not above 0 and at most 1: {consequence}"


def of_earlier_runs(environ: Mapping[str, str], backend: Backend) -> Optional[tuple[float, str]]:
    """The fraction of a job that shares its GPUs and states none, and a line about it; ``None``: it has no such one.

    Of bytes and not of a part: the GPU may be smaller than those of the earlier runs. Of several devices the smallest
    counts, rounded up, so that no device gets less than what was needed. Only once the device is ready.
    """
    text, share = environ.get(SHARED_BYTES_VARIABLE, ""), parse_fraction(environ.get(SHARE_VARIABLE, ""))
    if environ.get(FRACTION_VARIABLE) or share is None or share == 1 or not re.fullmatch("[0-9]{1,15}", text):
        return None
    totals = [backend.total_bytes(device) for device in range(backend.device_count())]
    smallest = min((total for total in totals if total is not None), default=0)
    if None in totals or not 0 < int(text) < smallest:
        return None
    line = (
        f"PyTorch may reserve {format_bytes(int(text))} of this shared GPU's {format_bytes(smallest)}: what earlier "
        f"runs of this job needed, with a margin. {FRACTION_VARIABLE}=1 takes this limit away"
    )
    return math.ceil(int(text) / smallest * 1_000_000) / 1_000_000, line


class DeviceCap:
    """The cap of this process on all its visible devices."""

    def __init__(self, backend: Backend) -> None:
        self.fraction: Optional[float] = None
        """The last requested fraction; ``None``: none was."""
        self._backend = backend
        self._due: list[int] = []

    def set(self, fraction: float, *, used: Iterable[int]) -> None:
        """Cap the visible devices; where that would make contexts, the ``used`` ones now and others in ``catch_up``."""
        self.fraction = fraction
        devices = list(range(self._backend.device_count()))
        if not self._backend.caps_without_context():
            self._due = [device for device in devices if device not in set(used)]
            devices = [device for device in devices if device not in self._due]
        for device in devices:
            self._backend.set_fraction(fraction, device)

    def catch_up(self, *, used: Iterable[int]) -> None:
        """Cap devices that were not in use before. Cheap when there is nothing to do."""
        if self._due and self.fraction is not None:
            for device in [device for device in used if device in self._due]:
                self._due.remove(device)
                self._backend.set_fraction(self.fraction, device)
