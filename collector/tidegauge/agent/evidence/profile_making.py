"""Makes the memory profile of a rank from its recording and the node's own facts. Values in, values out.

The node vouches for the rank's identity, job and readings; the job supplies events, stacks, and which tensor is what.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.agent.evidence.making import NodeFacts, job_of
from tidegauge.analysis.profile.apart import AdviceFacts
from tidegauge.core.evidence import SnapshotRef
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS
from tidegauge.core.profile.rank_profile import RankProfile, parts_of
from tidegauge.core.profile.rank_recording import RankRecording
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.profile_policy import peak_of
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes

ALL_OF_PEAK = 0.9
"""A recording that reaches so much of the rank's highest memory shows what that is made of."""


def advice_facts(node: NodeFacts) -> AdviceFacts:
    """The rank's limit is the memory fraction in force, or what others leave PyTorch of the GPU."""
    view = node.view
    limit = view.limit_bytes
    if limit is not None and view.cap_fraction is None:
        limit = max(1, limit - (view.nontorch_bytes or 0) - (node.other_processes_bytes or 0))
    return AdviceFacts(view.identity.world_size, limit)


def rank_profile_of(
    said: RankRecording,
    node: NodeFacts,
    profile: StepProfile | None,
    *,
    at_unix_s: float,
    snapshots: Sequence[SnapshotRef] = (),
    problems: Sequence[str] = (),
) -> RankProfile:
    """The profile of what the rank ``said``, already bounded (``checks``); ``None``: there is none, for a reason that
    ``said`` or ``problems`` tell."""
    told = [*filter(None, [said.problem]), *problems]
    if said.snapshot_file is not None and not said.is_complete:
        told.append("the recording lacks its first events: the allocator made more than fit into its history")
    parts = {}
    if profile is not None:
        highest_bytes = peak_of(node.view)
        if profile.peak.allocated_bytes < ALL_OF_PEAK * highest_bytes:
            told.append(
                f"the rank held up to {format_bytes(highest_bytes)} before, more than in the recorded steps: "
                "that peak is not among them"
            )
        try:
            parts = parts_of(profile)
        except ValueError as error:
            told.append(f"the profile cannot be kept: {error}")
    return RankProfile(
        profile_id=said.recording_id,
        job=job_of(node.view),
        rank=int(node.view.identity.rank),
        hostname=node.hostname,
        process=node.view.process,
        reason=said.reason,
        at_unix_s=at_unix_s,
        began_step=said.began_step,
        ended_step=said.ended_step,
        snapshots=tuple(snapshots),
        is_compiled=said.is_compiled,
        longest_stall_s=said.longest_stall_s,
        problems=tuple(one_line(problem, MAX_TEXT_CHARS) for problem in told),
        world_size=node.view.identity.world_size,
        process_outside_bytes=node.view.nontorch_bytes,
        other_processes_bytes=node.other_processes_bytes,
        other_jobs_bytes=node.other_jobs_bytes,
        gpu_uuid=node.view.uuid,
        **parts,
    )
