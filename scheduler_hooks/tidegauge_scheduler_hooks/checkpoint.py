"""Has a job save its state through its ranks' command sockets, the same for every scheduler. See docs/checkpoint.md.

Saving is often collective, so all ranks are asked for one step that none of them has reached yet. The ranks keep the
request's state under the decision's id: a coordinator that was restarted looks there and goes on. Groups of ranks that
were launched side by side in one job count steps of their own: each group is asked by itself, and the job has saved
when all of them have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import CheckpointWay, GroupTarget, JobTarget, RankTarget
from tidegauge.core.orders import GONE
from tidegauge_scheduler_hooks.ports import CheckpointProgress, CheckpointStage, ProcessCommands, Reply, TemporaryError

RANK_TIMEOUT_S = 10.0
"""A node's agent takes orders about once a second; a probe answers at once, unless its file server is slow."""
MEASURE_S = 8.0
"""The time for which the job's pace is measured. A job that ends no step in it makes at most one."""
LOOK_EVERY_S = 1.0
ASK_S = 2.0
"""Added to the longest answer time: the next answer may take longer, and ranks are not asked at the same moment."""
TRIES = 3
"""Steps that are tried, each further away, if the one before was over before every rank had the request."""
TRIP_S = 3.0
"""The part of the time left that the way to a rank may take: a save after the deadline is useless."""
MAX_REMEMBERED = 256

UNKNOWN, PASSED, BUSY = "unknown", "passed", "busy"
"""The probe's refusals that need not be final."""


@dataclass(frozen=True)
class _Asked:
    """The ranks that were asked, and the way."""

    way: CheckpointWay
    ranks: tuple[RankTarget, ...]


class _Pace(NamedTuple):
    """The speed of the ranks."""

    step: int
    """The step of the furthest rank."""
    behind: int
    """Steps from there to the last rank."""
    steps_per_s: float
    """An upper bound."""
    answer_s: float
    """The longest answer time."""


class RankCheckpoint:
    """Requests checkpoints from ranks and follows them. Thread-safe for different decisions."""

    def __init__(
        self,
        commands: ProcessCommands,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._commands = commands
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._asked: dict[tuple[str, JobKey], _Asked] = {}

    def has_asked(self, target: JobTarget, decision_id: str) -> bool:
        """Whether this process remembers that the ranks took the request: then it only follows it."""
        return all((decision_id, group.job) in self._asked for group in target.groups)

    def advance(self, target: JobTarget, *, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        """Ask the ranks, or look how far they are. Raises ``TemporaryError``."""
        if len(target.groups) > 1 and (unable := [one for one in target.groups if self._is_unable(one, decision_id)]):
            for group in target.groups:
                self._withdraw(group, group.ranks, decision_id)
            return _of_all([(group, _UNABLE) for group in unable])
        # One that cannot be asked now does not keep the others from being looked at: what they began goes on.
        found = [(group, self._tried(group, decision_id, deadline_unix_s)) for group in target.groups]
        progress = [(group, one) for group, one in found if not isinstance(one, TemporaryError)]
        if any(one.stage is CheckpointStage.REFUSED for _, one in progress):
            for group, one in progress:
                if one.stage is CheckpointStage.ASKED:
                    self._withdraw(group, group.ranks, decision_id)
        elif problems := [one for _, one in found if isinstance(one, TemporaryError)]:
            raise problems[0]
        return _of_all(progress) if progress else _refused("no rank of the job is running")

    def _is_unable(self, group: GroupTarget, decision_id: str) -> bool:
        """Whether the group has no way to be asked."""
        if (decision_id, group.job) in self._asked:
            return False
        try:
            pings = self._ping(group, group.ranks)
        except TemporaryError:
            return False
        return not _has_nothing_to_save(pings) and _means(group, pings) is None

    def _tried(
        self, group: GroupTarget, decision_id: str, deadline_unix_s: float
    ) -> CheckpointProgress | TemporaryError:
        try:
            return self._advance(group, decision_id, deadline_unix_s)
        except TemporaryError as error:
            return error

    def _advance(self, target: GroupTarget, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        looks = self._send(target, target.ranks, {"command": "checkpoint_status", "id": decision_id})
        begun = {
            rank: reply.value
            for rank, reply in looks.items()
            if reply.value is not None and not reply.value.get("withdrawn")
        }
        asked = self._asked.get((decision_id, target.job))
        if asked is None and begun:
            asked = _means(target, self._ping(target, target.ranks))
        if begun and asked is not None:
            missing = [rank for rank in asked.ranks if rank.rank not in begun and looks[rank.rank].kind != GONE]
            # The coordinator ended while it asked: some ranks know of it, and would wait for the others in vain.
            halfway = missing and all(value.get("stage") == "waiting" for value in begun.values())
            if not halfway:
                return _judged(asked, looks)
        self._refuse_silence(target, [looks[rank.rank] for rank in target.ranks if rank.rank not in begun])
        if begun:
            self._withdraw(target, target.ranks, decision_id)
        return self._begin(target, decision_id, deadline_unix_s)

    def _begin(self, target: GroupTarget, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        pings = self._ping(target, target.ranks)
        if _has_nothing_to_save(pings):
            self._remember(decision_id, target, _Asked(CheckpointWay.NONE, ()))
            return CheckpointProgress(CheckpointStage.PROVEN, "nothing to save (TIDEGAUGE_CHECKPOINT=none)")
        asked = _means(target, pings)
        if asked is None:
            return _UNABLE
        pace = self._pace(target, asked.ranks)
        if pace.behind > 2 + pace.steps_per_s * pace.answer_s:
            return _refused(
                f"the ranks count steps differently (one is at step {pace.step}, another {pace.behind} behind), so "
                "they cannot save at the same step; see tidegauge.step() in docs/checkpoint.md"
            )
        lead_s = 2 * pace.answer_s + ASK_S
        for _ in range(TRIES):
            at_step = pace.step + 1 + math.ceil(pace.steps_per_s * lead_s)
            request = {
                "command": "checkpoint",
                "id": decision_id,
                "at_step": at_step,
                "deadline_unix_s": deadline_unix_s,
                "within_s": self._within_s(deadline_unix_s),
                "way": asked.way.value,
                "ranks": len(asked.ranks),
            }
            replies = self._send(target, asked.ranks, request)
            refusals = {rank: reply for rank, reply in replies.items() if reply.error is not None}
            if not refusals:
                self._remember(decision_id, target, asked)
                return CheckpointProgress(
                    CheckpointStage.ASKED, f"{_ranks(len(asked.ranks))} asked to save at step {at_step}"
                )
            self._withdraw(target, asked.ranks, decision_id)
            if any(reply.kind != PASSED for reply in refusals.values()):
                self._refuse_silence(target, refusals.values())
                rank, reply = min((rank, reply) for rank, reply in refusals.items() if reply.kind != PASSED)
                return _refused(f"rank {rank}: {reply.error}")
            lead_s *= 2
            pace = self._pace(target, asked.ranks)
        raise TemporaryError(f"job {target.job.job_id}: {TRIES} times the step ended before every rank had the request")

    def _within_s(self, deadline_unix_s: float) -> float:
        """The time left, for a rank whose clock may be wrong."""
        left_s = max(0.0, deadline_unix_s - self._wall_s())
        return max(left_s - TRIP_S, left_s / 2)

    def _refuse_silence(self, target: GroupTarget, replies: Iterable[Reply]) -> None:
        """Raises ``TemporaryError`` if one of those that did not take the request may yet take it: it did not answer,
        or has another request to finish first."""
        for reply in replies:
            if reply.error is not None and reply.kind in (None, BUSY, GONE):
                raise TemporaryError(f"job {target.job.job_id} cannot be asked for a checkpoint now: {reply.error}")

    def _pace(self, target: GroupTarget, ranks: Sequence[RankTarget]) -> _Pace:
        """Watch the steps until two were seen, or for ``MEASURE_S``."""
        first: int | None = None
        begin_s = self._monotonic_s()
        answer_s = 0.0
        while True:
            asked_s = self._monotonic_s()
            replies = self._ping(target, ranks)
            now_s = self._monotonic_s()
            answer_s = max(answer_s, now_s - asked_s)
            steps = [value["step"] for value in replies.values()]
            first = max(steps) if first is None else first
            seen, took_s = max(steps) - first, now_s - begin_s
            if seen >= 2 or took_s >= MEASURE_S:
                # One more than was seen: a step may have been about to end at either end of the time.
                pace_steps_per_s = (seen + 1) / max(took_s, LOOK_EVERY_S)
                return _Pace(max(steps), max(steps) - min(steps), pace_steps_per_s, answer_s)
            self._sleep(LOOK_EVERY_S)

    def _ping(self, target: GroupTarget, ranks: Sequence[RankTarget]) -> Mapping[int, Mapping[str, Any]]:
        replies = self._send(target, ranks, {"command": "ping"})
        for rank, reply in sorted(replies.items()):
            if reply.value is None or not isinstance(reply.value.get("step"), int):
                raise TemporaryError(f"job {target.job.job_id}: rank {rank} does not report its step: {reply.error}")
        return {rank: reply.value for rank, reply in replies.items() if reply.value is not None}

    def _withdraw(self, target: GroupTarget, ranks: Sequence[RankTarget], decision_id: str) -> None:
        """Withdraw the request. A rank that this does not reach saves only if all do (``ranks`` in the request)."""
        self._send(target, ranks, {"command": "checkpoint_withdraw", "id": decision_id})

    def _send(
        self, target: GroupTarget, ranks: Sequence[RankTarget], request: Mapping[str, Any]
    ) -> Mapping[int, Reply]:
        return self._commands.ask_ranks(target.job, ranks, request, timeout_s=RANK_TIMEOUT_S)

    def _remember(self, decision_id: str, target: GroupTarget, asked: _Asked) -> None:
        while len(self._asked) >= MAX_REMEMBERED:
            self._asked.pop(next(iter(self._asked)))
        self._asked[decision_id, target.job] = asked


def _of_all(progress: Sequence[tuple[GroupTarget, CheckpointProgress]]) -> CheckpointProgress:
    """The progress of a job's groups: refused if one is, proven if all are."""
    stages = [one.stage for _, one in progress]
    if len(progress) == 1 and not progress[0][0].name:
        return progress[0][1]
    stage = next((one for one in (CheckpointStage.REFUSED, CheckpointStage.ASKED) if one in stages), stages[0])
    told = [
        f"{group.called}: {one.detail}"
        for group, one in progress
        if stage is not CheckpointStage.REFUSED or one.stage is stage
    ]
    return CheckpointProgress(stage, " · ".join(told))


def _has_nothing_to_save(pings: Mapping[int, Mapping[str, Any]]) -> bool:
    return all(ping.get("checkpoint") == CheckpointWay.NONE.value for ping in pings.values())


def _means(target: GroupTarget, pings: Mapping[int, Mapping[str, Any]]) -> _Asked | None:
    """The ranks to ask: those with a callback, else those with a signal; ``None`` if no rank has either.

    One rank that can be asked is enough: many jobs save on rank 0 alone."""
    for way in (CheckpointWay.CALLBACK, CheckpointWay.SIGNAL):
        ranks = tuple(rank for rank in target.ranks if pings[rank.rank].get("checkpoint") == way.value)
        if ranks:
            return _Asked(way, ranks)
    return None


def _judged(asked: _Asked, looks: Mapping[int, Reply]) -> CheckpointProgress:
    """The verdict of the replies. By callback all ranks must have saved; by signal one fresh file is the proof."""
    values = {rank.rank: looks[rank.rank].value for rank in asked.ranks}
    by_stage = {
        stage: {rank: value for rank, value in values.items() if value is not None and value.get("stage") == stage}
        for stage in ("waiting", "asked", "done", "failed")
    }
    done, failed, all_ranks = by_stage["done"], by_stage["failed"], len(asked.ranks)
    if len(done) == all_ranks or (done and asked.way is CheckpointWay.SIGNAL):
        rank, value = min(done.items())
        detail = f"rank {rank}: {value.get('detail')}"
        return CheckpointProgress(CheckpointStage.PROVEN, f"{len(done)} of {_ranks(all_ranks)} saved; {detail}")
    gone = [rank for rank, reply in looks.items() if rank in values and reply.kind == GONE]
    if failed and (asked.way is CheckpointWay.CALLBACK or len(failed) == all_ranks):
        rank, value = min(failed.items())
        return _refused(f"rank {rank}: {value.get('detail')}")
    if gone and asked.way is CheckpointWay.CALLBACK:
        return _refused(f"rank {min(gone)} ended before it saved")
    waiting = by_stage["asked"] or by_stage["waiting"] or {}
    rest = [f"rank {rank}: {value.get('detail')}" for rank, value in sorted(waiting.items())]
    silent = [f"rank {rank}: {looks[rank].error}" for rank, value in sorted(values.items()) if value is None]
    detail = (rest + silent)[0] if rest or silent else ""
    return CheckpointProgress(CheckpointStage.ASKED, f"{len(done)} of {_ranks(all_ranks)} saved; {detail}")


def _refused(detail: str) -> CheckpointProgress:
    return CheckpointProgress(CheckpointStage.REFUSED, detail)


def _ranks(count: int) -> str:
    return f"{count} rank" if count == 1 else f"{count} ranks"


_UNABLE = _refused("no rank can be asked: no checkpoint callback, and no checkpoint signal with a path")
