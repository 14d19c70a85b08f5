"""Commands about a rank's memory: evidence, profile, snapshot, record, holders (docs/probe.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tidegauge.core.evidence.rank_evidence import HolderSearch
from tidegauge.core.profile.rank_recording import MAX_STEPS
from tidegauge.core.run_dirs import ASKED_SUFFIX
from tidegauge.core.wire import to_wire
from tidegauge.probe.evidence.grown_blocks import MAX_BLOCKS, largest_blocks
from tidegauge.probe.evidence.profile_window import ProfileAsk
from tidegauge.probe.evidence.recorded_window import RecordedWindow
from tidegauge.probe.evidence.recorder import EvidenceRecorder
from tidegauge.probe.evidence.snapshot_packing import let_go, pack_columns
from tidegauge.probe.evidence.window import WindowAsk
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.requests import RequestRefusedError, request_id_of
from tidegauge.probe.run_files.command_socket import MAX_REPLY_BYTES
from tidegauge.probe.runtime.history import MAX_ENTRIES, STACKS, Recorder
from tidegauge.probe.runtime.rank_snapshot import NoSnapshotError, RawSnapshot
from tidegauge.probe.step_counting.boundary_calls import BoundaryCalls

_MAX_SEARCH_S = 8.0
"""For ``holders``: whoever asks waits for the answer, and so do the ticks."""
_MAX_REASON_CHARS = 300
_MAX_HOLDERS_S = 3600
_MIN_ENTRIES = 100


class EvidenceCommands:
    """Entries for the table of commands. Each raises ``RequestRefusedError`` for a request that cannot be met."""

    def __init__(self, evidence: EvidenceRecorder, boundary: BoundaryCalls) -> None:
        self._evidence = evidence
        self._boundary = boundary
        self._pacer = Pacer(lambda: evidence.snapshots is None)
        self.table: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "evidence": self._ask,
            "evidence_status": lambda request: _status_of(evidence.find(request_id_of(request))),
            "profile": self._ask_profile,
            "profile_status": lambda request: _status_of(evidence.find_profile(request_id_of(request))),
            "snapshot": self._snapshot,
            "record": self._record,
            "holders": self._holders,
        }

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        usual = WindowAsk("", "")
        holders = request.get("holders", usual.holders)
        if not isinstance(holders, bool):
            raise RequestRefusedError("usage", "holders must be true or false")
        ask = WindowAsk(
            evidence_id=request_id_of(request),
            reason=_reason(request),
            warm_up_steps=_whole(request, "warm_up_steps", usual.warm_up_steps, 0, 10_000),
            window_steps=_whole(request, "window_steps", usual.window_steps, 1, 100_000),
            enough_s=_seconds(request, "enough_s", usual.enough_s),
            most_s=_seconds(request, "most_s", usual.most_s),
            max_events=_whole(request, "max_events", usual.max_events, _MIN_ENTRIES, MAX_ENTRIES),
            holders=holders,
        )
        return _begun(self._evidence.ask(ask))

    def _ask_profile(self, request: Mapping[str, Any]) -> dict[str, Any]:
        usual, join = ProfileAsk("", ""), request.get("join", False)
        if not isinstance(join, bool):
            raise RequestRefusedError("usage", "join must be true or false")
        ask = ProfileAsk(
            recording_id=request_id_of(request),
            reason=_reason(request),
            steps=_whole(request, "steps", usual.steps, 1, MAX_STEPS),
            most_s=_seconds(request, "most_s", usual.most_s),
            max_events=_whole(request, "max_events", usual.max_events, _MIN_ENTRIES, MAX_ENTRIES),
        )
        return _begun(self._evidence.ask_profile(ask, join=join))

    def _snapshot(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _, files = self._evidence.watched()
        raw = self._take(
            request, most_events=_whole(request, "max_events", WindowAsk("", "").max_events, 0, MAX_ENTRIES)
        )
        packed = pack_columns(raw, self._pacer)
        let_go(raw, self._pacer)
        try:
            name, size_bytes = files.write_snapshot(ASKED_SUFFIX, packed, self._pacer)
        except OSError as error:
            raise RequestRefusedError("unable", f"the snapshot could not be written: {error}") from error
        return {"ok": True, "file": name, "bytes": size_bytes, "step": raw.step, "stall_s": raw.took_s}

    def _record(self, request: Mapping[str, Any]) -> dict[str, Any]:
        snapshots, _ = self._evidence.watched()
        history, on, now = self._evidence.recording(), request.get("on"), request.get("now") is True
        if not isinstance(on, bool):
            raise RequestRefusedError("usage", "on must be true or false")
        if self._evidence.window is not None:
            raise RequestRefusedError("busy", "evidence or a profile is being recorded; retry when it is done")
        if not on:
            self._boundary.call(history.end, now=now)
            return {"ok": True, "on": history.recorder() is not Recorder.NOBODY, "recording": history.recorder().value}
        entries = _whole(request, "max_entries", WindowAsk("", "").max_events, _MIN_ENTRIES, MAX_ENTRIES)
        stacks = request.get("stacks", STACKS[0])
        if stacks not in STACKS:
            raise RequestRefusedError("usage", f"stacks must be one of {', '.join(STACKS)}")

        def begin() -> bool:
            return history.begin(entries=entries, stacks=stacks, step=snapshots.steps())

        if not self._boundary.call(begin, now=now) and (history.entries, history.stacks) != (entries, stacks):
            if history.recorder() is Recorder.JOB:
                raise RequestRefusedError("unable", "the job itself records allocation history; it is left unchanged")
            recorded = f"{history.entries:,} entries, stacks {history.stacks}"
            raise RequestRefusedError("busy", f"already recording ({recorded}): switch that off first")
        return {"ok": True, "on": True, "recording": history.recorder().value, "max_entries": entries, "stacks": stacks}

    def _holders(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._evidence.watched()
        blocks = self._largest(request) if request.get("blocks") is None else _blocks(request["blocks"])
        found = self._evidence.search(blocks, most_s=_MAX_SEARCH_S, pacer=self._pacer)
        return {"ok": True, **_fitting(found)}

    def _largest(self, request: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        raw = self._take(request, most_events=0)
        packed = pack_columns(raw, self._pacer)
        let_go(raw, self._pacer)
        largest = largest_blocks(packed, self._pacer)
        return largest.blocks if largest is not None else ()

    def _take(self, request: Mapping[str, Any], *, most_events: int) -> RawSnapshot:
        snapshots, _ = self._evidence.watched()

        def take() -> RawSnapshot:
            try:
                return snapshots.take(most_events=most_events)
            except NoSnapshotError as error:
                raise RequestRefusedError("unable", str(error)) from None

        return self._boundary.call(take, now=request.get("now") is True)


def _begun(window: RecordedWindow) -> dict[str, Any]:
    state = "recording" if window.waits_for_steps else window.phase.value
    return {"ok": True, "id": window.window_id, "state": state}


def _status_of(window: RecordedWindow) -> dict[str, Any]:
    state = window.phase.value
    return {"ok": True, "id": window.window_id, "state": state, "step": window.step, "problem": window.problem}


def _reason(request: Mapping[str, Any]) -> str:
    reason = request.get("reason")
    return reason[:_MAX_REASON_CHARS] if isinstance(reason, str) else ""


def _whole(request: Mapping[str, Any], key: str, usual: int, least: int, most: int) -> int:
    value = request.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestRefusedError("usage", f"{key} must be a whole number from {least:,} to {most:,}")
    return value


def _seconds(request: Mapping[str, Any], key: str, usual: float) -> float:
    value = request.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= _MAX_HOLDERS_S:
        raise RequestRefusedError("usage", f"{key} must be a number of seconds from 1 to {_MAX_HOLDERS_S:,}")
    return float(value)


def _blocks(raw: object) -> list[tuple[int, int]]:
    pairs = raw if isinstance(raw, list) else [None]
    if len(pairs) > MAX_BLOCKS:
        raise RequestRefusedError("usage", f"at most {MAX_BLOCKS} blocks per search")
    blocks = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(part) is int and part > 0 for part in pair):
            raise RequestRefusedError("usage", "blocks must be a list of pairs: address and bytes of a live block")
        blocks.append((pair[0], pair[1]))
    return blocks


def _fitting(found: HolderSearch) -> dict[str, Any]:
    """What fits into a reply; the holders of least go first."""
    while True:
        answer = to_wire(found)
        assert isinstance(answer, dict)
        if not found.holders or len(json.dumps(answer)) < MAX_REPLY_BYTES:
            return answer
        found = found._replace(holders=found.holders[:-1])
