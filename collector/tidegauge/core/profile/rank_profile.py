"""The memory profile of one rank of a job, as its agent reports it and the service keeps it.

What tables and metrics show is beside the packed profile, so that nobody unpacks hundreds of them for a page.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from tidegauge.core.evidence import SnapshotRef
from tidegauge.core.ids import DeviceUuid, JobKey, ProcessId
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.profile.stored_profile import pack_profile, unpack_profile

PROFILE_WARMED_UP, PROFILE_PEAK_ROSE, PROFILE_ASKED = "warmed up", "peak rose", "asked"
"""Reasons for a profile."""


@dataclass(frozen=True)
class RankProfile:
    """One recording on one rank, profiled; or the reason why it could not be (``packed`` is empty)."""

    profile_id: str
    job: JobKey
    rank: int
    hostname: str
    process: ProcessId
    reason: str
    at_unix_s: float
    began_step: int
    ended_step: int
    allocated_bytes: int = 0
    """At the peak."""
    reserved_bytes: int = 0
    phase: StepPhase = StepPhase.UNKNOWN
    """In which the peak is."""
    by_category: Mapping[Category, int] = field(default_factory=dict)
    """At the peak; sums to ``allocated_bytes``."""
    packed: str = ""
    """The whole profile (``stored_profile``), in base64."""
    snapshots: tuple[SnapshotRef, ...] = ()
    is_compiled: bool = False
    """Whether ``torch.compile`` compiled anything: then lines are those of generated code."""
    longest_stall_s: float = 0.0
    problems: tuple[str, ...] = ()
    """What is missing and why, each a sentence for people."""
    world_size: Optional[int] = None
    """Ranks of the job, as this one says. ``None`` here and below: not known, as in profiles of an older agent."""
    process_outside_bytes: Optional[int] = None
    """What NVML says that the process holds on its GPU, less what PyTorch has reserved."""
    other_processes_bytes: Optional[int] = None
    """What NVML says that all other processes hold on that GPU."""
    other_jobs_bytes: Optional[int] = None
    """Of that, what other jobs hold that the agent watches."""
    gpu_uuid: Optional[DeviceUuid] = None

    @property
    def unwatched_processes_bytes(self) -> Optional[int]:
        """Of ``other_processes_bytes``, what is no watched job's."""
        if self.other_processes_bytes is None:
            return None
        return max(0, self.other_processes_bytes - (self.other_jobs_bytes or 0))

    @property
    def piece_id(self) -> str:
        return self.profile_id

    @property
    def has_profile(self) -> bool:
        return bool(self.packed)

    def profile(self) -> StepProfile:
        """The whole profile. Raises ``ValueError`` where there is none, or none that can be read."""
        try:
            return unpack_profile(base64.b64decode(self.packed, validate=True))
        except binascii.Error as error:
            raise ValueError(f"this is no memory profile: {error}") from error


def parts_of(profile: StepProfile) -> dict[str, Any]:
    """The fields of a ``RankProfile`` that come from its profile. Raises ``ValueError`` as ``pack_profile`` does."""
    return {
        "allocated_bytes": profile.peak.allocated_bytes,
        "reserved_bytes": profile.reserved_bytes,
        "phase": profile.peak.phase,
        "by_category": profile.peak.by_category,
        "packed": base64.b64encode(pack_profile(profile)).decode(),
    }
