"""The answer of ``tidegauge replay``, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from tidegauge.analysis.traces.replays import ReplayAnswer
from tidegauge.analysis.whatif.results import titled
from tidegauge.cli.output import print_table, print_wrapped
from tidegauge.core.allocator.results import FailedRequest, Replay
from tidegauge.core.units import format_bytes

MAX_TOLD = 3
"""Maximum number of failed requests that are described; further ones are counted."""
HEADER = ("settings", "peak allocated", "peak reserved", "waste", "retries", "OOMs", "segments", "cudaMallocs")


def replay_json(replay: Replay) -> dict[str, object]:
    return {
        "events": replay.events,
        "peak_allocated_bytes": replay.peak_allocated_bytes,
        "peak_reserved_bytes": replay.peak_reserved_bytes,
        "alloc_retries": replay.alloc_retries,
        "ooms": replay.ooms,
        "segments": replay.segments,
        "peak_active_bytes": replay.peak_active_bytes,
        "waste_bytes": waste_bytes(replay),
        "device_allocs": replay.device_allocs,
        "device_frees": replay.device_frees,
        "allocated_bytes": replay.allocated_bytes,
        "reserved_bytes": replay.reserved_bytes,
        "failed": [failed._asdict() for failed in replay.failed],
    }


def as_json(answer: ReplayAnswer) -> dict[str, object]:
    """The requested replay as JSON; ``address_mismatches`` is null for other settings than the recorded ones."""
    trace = answer.trace
    own = answer.other is None
    return {
        **replay_json(answer.asked),
        "address_mismatches": answer.recorded.address_mismatches if own else None,
        "recorded_settings": own,
        "recorded_address_mismatches": answer.recorded.address_mismatches,
        "alloc_conf": answer.alloc_conf,
        "cap_bytes": answer.cap_bytes,
        "torch_version": trace.torch_version,
        "device": trace.device,
        "complete": trace.complete,
        "skipped": dict(trace.skipped),
    }


def waste_bytes(replay: Replay) -> int:
    """Memory that was reserved but not allocated at the peak of reserved memory."""
    return replay.peak_reserved_bytes - replay.allocated_at_peak_reserved_bytes


def print_for_people(answer: ReplayAnswer) -> None:
    rows = [_row(f"as recorded: {titled(answer.trace.alloc_conf)}", answer.recorded)]
    if answer.other is not None:
        rows.append(_row(_asked_for(answer), answer.other))
    print_table(HEADER, rows, gives_way=("cudaMallocs", "segments", "retries"))
    print()
    for sentence in sentences(answer):
        print_wrapped("", sentence)


def _row(name: str, replay: Replay) -> tuple[str, ...]:
    return (
        name,
        format_bytes(replay.peak_allocated_bytes),
        format_bytes(replay.peak_reserved_bytes),
        format_bytes(waste_bytes(replay)),
        f"{replay.alloc_retries:,}",
        f"{replay.ooms:,}",
        f"{replay.segments:,}",
        f"{replay.device_allocs:,}",
    )


def _asked_for(answer: ReplayAnswer) -> str:
    cap = "" if answer.cap_bytes is None else f", cap {format_bytes(answer.cap_bytes)}"
    return f"{titled(answer.alloc_conf)}{cap}"


def sentences(answer: ReplayAnswer) -> Iterator[str]:
    """Sentences on the accuracy of the replay, and on failed requests."""
    yield _addresses(answer)
    trace = answer.trace
    if not trace.complete:
        held = sum(segment.total_bytes for segment in trace.start)
        yield (
            "The beginning of the recording is missing: the replay starts from the memory held at its first event, "
            f"{format_bytes(held)} in {len(trace.start):,} segments, derived from its end. Earlier peaks are not "
            "included; the age of the free blocks there is unknown, and that of segments is inferred from addresses."
        )
    for reason, count in trace.skipped.items():
        yield f"Ignored: {count:,} {reason}; every address matched without them."
    if answer.other is not None:
        yield (
            "The second row is a simulation: the same requests in the same order, with segments placed by the model. "
            "Its limits: docs/allocator_model.md."
        )
    yield from _failures(answer.asked)


def _addresses(answer: ReplayAnswer) -> str:
    recorded = answer.recorded
    version = f"torch {answer.trace.torch_version}" if answer.trace.torch_version else "an unknown PyTorch version"
    if answer.version_by_addresses:
        version += " (inferred from the addresses; if you know it, use --torch-version)"
    first = recorded.first_mismatch
    if first is None:
        return f"{recorded.events:,} events of {version} replayed as recorded: every address matches."
    suspects = "Check the PyTorch version (--torch-version) and whether the job had a cap (--cap)."
    if not answer.trace.complete:
        suspects = f"The order of free blocks in the missing beginning is unknown. {suspects}"
    return (
        f"{recorded.events:,} events of {version} replayed as recorded: {recorded.address_mismatches:,} addresses do "
        f"not match, the first at event {first.event:,} (recorded {first.recorded:#x}, replayed "
        f"{first.replayed:#x}). From there on, the replay differs from the run, and peaks are estimates. {suspects}"
    )


def _failures(replay: Replay) -> Iterator[str]:
    for failed in replay.failed[:MAX_TOLD]:
        yield _failure(failed)
    if replay.ooms > min(len(replay.failed), MAX_TOLD):
        yield f"{replay.ooms - min(len(replay.failed), MAX_TOLD):,} more requests failed."


def _failure(failed: FailedRequest) -> str:
    recorded = " (as in the recording)" if failed.recorded else ""
    wanted, segment = format_bytes(failed.rounded_bytes), format_bytes(failed.segment_bytes)
    return (
        f"Event {failed.event:,} ran out of memory{recorded}: it requested {wanted}, which needs a device "
        f"segment of {segment}. Allocated: {format_bytes(failed.allocated_bytes)}, reserved: "
        f"{format_bytes(failed.reserved_bytes)}, largest usable free block: {format_bytes(failed.largest_free_bytes)} "
        f"of {format_bytes(failed.free_bytes)} free in total."
    )
