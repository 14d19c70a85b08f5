"""Memory profiles for tests: real recordings as a rank leaves them, and small values of what becomes of them."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import zstandard

from rank_windows import put, recording
from sample_views import NOW_S
from scheduler_values import JOB
from tidegauge.analysis.profile.advice.advise import advice_of
from tidegauge.analysis.profile.profile import profile_of
from tidegauge.analysis.profile.recording import recording_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core import wire
from tidegauge.core.ids import ProcessId
from tidegauge.core.profile.rank_profile import PROFILE_WARMED_UP, RankProfile, parts_of
from tidegauge.core.profile.rank_recording import RankRecording
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.run_dirs import PROFILE_SNAPSHOT_SUFFIX, recording_name, snapshot_name

STEADY = Path(__file__).parent / "data" / "snapshots" / "steady_lm.late.snap.zst"
"""Four steps of a small language model on an H200."""


@cache
def steady_profile() -> StepProfile:
    return profile_of(open_trace(STEADY))


@cache
def advised_profile(*, ranks: int | None = None, limit_bytes: int | None = None) -> StepProfile:
    """The same with what would help, as an agent makes it."""
    return replace(
        steady_profile(), advice=advice_of(recording_of(open_trace(STEADY)), ranks=ranks, limit_bytes=limit_bytes)
    )


@cache
def recorded_snapshot(file: Path = STEADY) -> bytes:
    """The same recording as the probe leaves it."""
    return zlib.compress(zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes()))


def leave_recording(
    folder: Path, process: ProcessId, said: RankRecording | bytes | None = None, snapshot: bytes | None = None
) -> None:
    """All files of a recording: snapshot first, as the probe writes them."""
    said = recording(process, boundaries_us=(), owned=(), roots=None) if said is None else said
    put(folder, snapshot_name(process, PROFILE_SNAPSHOT_SUFFIX), recorded_snapshot() if snapshot is None else snapshot)
    put(folder, recording_name(process), said if isinstance(said, bytes) else wire.to_json(said))


def rank_profile(rank: int = 1, **changes: Any) -> RankProfile:
    """A profile of ``JOB``'s rank."""
    whole = RankProfile(
        profile_id=f"profile-{rank}",
        job=JOB,
        rank=rank,
        hostname="node0",
        process=ProcessId(1000 + rank, 5_000 + rank),
        reason=PROFILE_WARMED_UP,
        at_unix_s=NOW_S,
        began_step=100,
        ended_step=102,
        longest_stall_s=0.018,
        **parts_of(steady_profile()),
    )
    return replace(whole, **changes)
