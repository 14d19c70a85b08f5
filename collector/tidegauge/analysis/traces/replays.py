"""Replays for ``tidegauge replay``: the recording itself, then the same requests under other settings.

The recording is always replayed under its own settings first: every address is compared, so the answer says whether the
model followed this process at all before it says anything about other settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Optional

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.core.allocator.replay import replay as run_replay
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import parse_settings
from tidegauge.core.allocator.trace import Trace

TIE_BREAK_VERSIONS = ("2.11", "2.12", "2.13")
"""A torch of each way to choose among equal free blocks (allocator notes, 5.6)."""

OnProgress = Callable[[int, int], None]
"""Told how many events are done, of how many."""


class ReplayAnswer(NamedTuple):
    """The replay of one trace."""

    trace: Trace
    """With the torch version that was taken."""
    recorded: Replay
    """Under its own settings."""
    other: Optional[Replay]
    """Under the settings and the cap that were asked for; ``None`` where they are the recording's own."""
    alloc_conf: str
    """The settings of the replay that was asked for."""
    cap_bytes: Optional[int]
    version_by_addresses: bool
    """Whether the torch version is the one under which all addresses come back, not the one that the file suggests."""

    @property
    def asked(self) -> Replay:
        return self.recorded if self.other is None else self.other


class Followed(NamedTuple):
    """A trace and its replay under its own settings, which shows whether the model follows this process at all."""

    trace: Trace
    """With the torch version that was taken."""
    recorded: Replay
    version_by_addresses: bool
    """As ``Answer.version_by_addresses``."""


def replay_trace(
    trace: Trace,
    *,
    alloc_conf: Optional[str] = None,
    cap_bytes: Optional[int] = None,
    version_is_given: bool = False,
    on_progress: Optional[OnProgress] = None,
) -> ReplayAnswer:
    """Replay ``trace`` under ``alloc_conf`` and ``cap_bytes``; the recording's own where they are not given.

    Raises ``ValueError`` for settings that torch would refuse, and ``BadTraceError`` as ``follow`` does.
    """
    if alloc_conf is not None:
        parse_settings(alloc_conf, trace.torch_version)  # what torch would refuse is said before anything is replayed
    known, recorded, by_addresses = follow(
        trace, cap_bytes=cap_bytes, version_is_given=version_is_given, on_progress=on_progress
    )
    own = parse_settings(known.alloc_conf, known.torch_version)
    wanted = own if alloc_conf is None else parse_settings(alloc_conf, known.torch_version)
    cap = known.cap_bytes if cap_bytes is None else cap_bytes
    conf = known.alloc_conf if alloc_conf is None else alloc_conf
    other = None
    if wanted != own or cap != known.cap_bytes:
        other = run_replay(known, wanted, cap_bytes=cap, on_progress=on_progress)
    return ReplayAnswer(known, recorded, other, conf, cap, by_addresses)


def follow(
    trace: Trace,
    *,
    cap_bytes: Optional[int] = None,
    version_is_given: bool = False,
    recorded: Optional[Replay] = None,
    curve_points: int = 0,
    on_progress: Optional[OnProgress] = None,
) -> Followed:
    """Replay ``trace`` under its own settings, and compare every address.

    A cap that the recording itself has kept to is taken for the one it was made under. Unless ``version_is_given``,
    another way to break ties is tried where addresses do not come back. ``recorded``: the trace, replayed under its own
    settings, where that is done and no ``cap_bytes`` is given. Raises ``BadTraceError`` where events were left out that
    the addresses show to matter, and ``ValueError`` where torch would refuse its settings.
    """

    def run(trace: Trace) -> Replay:
        return run_replay(trace, curve_points=curve_points, on_progress=on_progress)

    known = None if recorded is None or cap_bytes is not None else Followed(trace, recorded, version_by_addresses=False)
    followed = known or _recorded(trace, cap_bytes, run)
    if followed.recorded.address_mismatches and not version_is_given:
        followed = _by_addresses(followed, run)
    recorded = followed.recorded
    if trace.skipped and recorded.address_mismatches:
        raise BadTraceError(
            f"{', '.join(f'{count:,} {reason}' for reason, count in trace.skipped.items())} had to be left out, and "
            f"without them {recorded.address_mismatches:,} addresses do not come back, the first at event "
            f"{_first(recorded):,}: no figure would be worth anything"
        )
    return followed


def _recorded(trace: Trace, cap_bytes: Optional[int], run: Callable[[Trace], Replay]) -> Followed:
    """The recording's own replay, under ``cap_bytes`` where it knows no cap and has kept to this one."""
    if cap_bytes is not None and trace.cap_bytes is None:
        capped = replace(trace, cap_bytes=cap_bytes)
        recorded = run(capped)
        if recorded.peak_reserved_bytes <= cap_bytes and not recorded.address_mismatches:
            return Followed(capped, recorded, version_by_addresses=False)
    return Followed(trace, run(trace), version_by_addresses=False)


def _by_addresses(followed: Followed, run: Callable[[Trace], Replay]) -> Followed:
    """The first other version under which every address comes back, if there is one."""
    for version in TIE_BREAK_VERSIONS:
        other = replace(followed.trace, torch_version=version)
        try:
            tried = run(other)
        except ValueError:  # its settings were not known to that version
            continue
        if not tried.address_mismatches:
            return Followed(other, tried, version_by_addresses=True)
    return followed


def _first(recorded: Replay) -> int:
    return 0 if recorded.first_mismatch is None else recorded.first_mismatch.event
