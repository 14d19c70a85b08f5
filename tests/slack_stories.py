"""Stories as the coordinator tells them: a leak, fragmentation, growth outside PyTorch, an out-of-memory, with the
memory of the rank to look at first. For tests of messages and plots, and for the pictures in docs/img."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sample_views import GIB, LEAK, MIB, NOW_S
from scheduler_values import decision, facts, finding, incident, oom_record, record
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, Closure, Incident, IncidentCause, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, Disposition, Outcome
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import Band, Severity
from tidegauge_exporter.messages.values import Story

POINTS = 110
PERIOD_S = 16.0
STEP_S = 1.6
ONSET = 30
"""The point at which growth begins."""


def memory(
    allocated: Callable[[int], float],
    reserved: Callable[[int], float],
    nontorch: Callable[[int], float] | None = lambda _: 0.9,
    *,
    points: int = POINTS,
) -> Sequence[MemoryPoint]:
    """Points that end now; the functions say GiB by the number of the point."""
    return tuple(
        MemoryPoint(
            at_unix_s=NOW_S - (points - 1 - number) * PERIOD_S,
            step=int(number * PERIOD_S / STEP_S),
            allocated_bytes=int(allocated(number) * GIB),
            reserved_bytes=int(reserved(number) * GIB),
            nontorch_bytes=None if nontorch is None else int(nontorch(number) * GIB),
        )
        for number in range(points)
    )


def leak(**changes: Any) -> Story:
    """Rank 3 of 16 leaks; a quarter of an hour is left, the owner was told, the rest is in the policy's hands."""
    worst = finding(3, hostname="gpu-a-017", verdict=LEAK._replace(onset_step=300))
    told = incident(
        number=12,
        findings=(worst,),
        world_size=16,
        onset_step=300,
        opened_unix_s=NOW_S - 900.0,
        grown_bytes=int(18.4 * GIB),
        bytes_per_step=Band(33.0 * MIB, 35.8 * MIB, 40.0 * MIB),
        job_name="llama-70b-sft",
    )
    return _story(
        told,
        memory(
            lambda number: 51.0 + _grown(number, 0.23) + _wave(number, 0.25),
            lambda number: 54.5 + max(_grown(number, 0.23) - 3.0, 0.0),
        ),
        decisions=(_told(told), _held_back(told)),
        **changes,
    )


FOUND = EvidenceBrief(
    evidence_id="auto-12-3",
    rank=3,
    at_unix_s=NOW_S - 400.0,
    line=CodeLine("/home/ada/llama/train.py", 41, "step"),
    grown_bytes=30 * int(35.8 * MIB),
    window_steps=30,
    holder="train.py: Trainer.history (list, 412 items) -> Tensor[8,286,4096] float32",
    cause=EvidenceCause.PYTHON_CONTAINER,
    confidence=Confidence.NAMED,
    advice="`Trainer.history` (list, train.py) keeps a tensor of each step: append `tensor.item()` where a number is "
    "enough, else `tensor.detach().cpu()`; or bound it, by a deque with `maxlen`",
)


def explained(**changes: Any) -> Story:
    """The leak once evidence has come: the line, the holder and the cause are known."""
    story = leak(evidence=(FOUND,), snapshots=("gpu-a-017:/var/lib/tidegauge/snapshots/lab/4711/0/rank-3",), **changes)
    known = IncidentChange(ChangeKind.EVIDENCE, FOUND.at_unix_s, story.incident)
    return replace(story, history=(*story.history, known))


def fragmentation(**changes: Any) -> Story:
    """Rank 0 of 8: reserved climbs in steps, live tensors do not; two hours are left."""
    told = incident(
        IncidentCause.FRAGMENTATION,
        number=13,
        severity=Severity.WARNING,
        findings=(finding(0, hostname="gpu-b-002"),),
        world_size=8,
        onset_step=300,
        seconds_to_oom=Band(5_600.0, 7_200.0, 10_400.0),
        bytes_per_step=Band(3.0 * MIB, 4.1 * MIB, 5.0 * MIB),
        grown_bytes=9 * GIB,
        job_name="dlrm-embed",
    )
    return _story(
        told,
        memory(
            lambda number: 38.0 + _wave(number, 1.5),
            lambda number: 43.0 + 1.5 * math.floor(_grown(number, 0.0776) / 1.5),
        ),
        decisions=(_would(told, ActionKind.REQUEUE),),
        **changes,
    )


def outside(**changes: Any) -> Story:
    """All 8 ranks alike grow outside PyTorch; three to five hours are left."""
    told = incident(
        IncidentCause.OUTSIDE_ALLOCATOR,
        number=14,
        findings=tuple(finding(rank, hostname="gpu-c-009") for rank in range(8)),
        world_size=8,
        common=True,
        onset_step=300,
        seconds_to_oom=Band(10_800.0, 14_000.0, 18_000.0),
        bytes_per_step=Band(8.0 * MIB, 9.6 * MIB, 11.0 * MIB),
        grown_bytes=7 * GIB,
        job_name="moe-experts",
    )
    return _story(
        told,
        memory(lambda number: 44.0 + _wave(number, 0.4), lambda _: 47.5, lambda number: 2.1 + _grown(number, 0.09)),
        **changes,
    )


def out_of_memory(**changes: Any) -> Story:
    """Rank 5 of 8 ran out of memory a minute ago."""
    oom = oom_record(at_unix_s=NOW_S - 60.0, step=1_040, allocated_bytes=int(76.9 * GIB), reserved_bytes=78 * GIB)
    told = incident(
        IncidentCause.OUT_OF_MEMORY,
        number=15,
        findings=(finding(5, hostname="gpu-a-003", oom=oom),),
        world_size=8,
        onset_step=None,
        bytes_per_step=None,
        seconds_to_oom=None,
        grown_bytes=None,
        opened_unix_s=NOW_S - 60.0,
        explanation="the card was full of live tensors: the same job fails again with the same batch size",
        job_name="vit-huge",
    )
    full = memory(
        lambda number: min(61.0 + max(number - 70, 0) * 0.42, 76.9) + _wave(number, 0.2),
        lambda number: min(64.0 + max(number - 70, 0) * 0.40, 78.6),
    )
    return _story(told, full[: POINTS - 3], **changes)


def crashed(closure: Closure = Closure.JOB_ENDED, *, after_s: float = 40.0, steps_after: int = 0) -> Story:
    """The same, and the job has ended by it."""
    before = out_of_memory().incident
    (failed,) = before.findings
    assert failed.oom is not None
    told = replace(
        before,
        state=IncidentState.CLOSED,
        closure=closure,
        closed_unix_s=failed.oom.at_unix_s + after_s,
        findings=(replace(failed, step=failed.oom.step + steps_after),),
    )
    return _story(told, out_of_memory().memory)


def recovering(**changes: Any) -> Story:
    """The leak has stopped: a cache was emptied three minutes ago."""
    before = leak().incident
    told = replace(before, state=IncidentState.RECOVERING, recovering_since_unix_s=NOW_S - 180.0)
    return _story(
        told,
        memory(
            lambda number: 51.0 + (_grown(number, 0.23) if number < POINTS - 12 else 0.0) + _wave(number, 0.25),
            lambda number: 54.5 + max(_grown(min(number, POINTS - 12), 0.23) - 3.0, 0.0),
        ),
        decisions=(_told(told),),
        **changes,
    )


def closed(closure: Closure = Closure.JOB_ENDED, **changes: Any) -> Story:
    """The job was saved and started again, and with its attempt the incident ended."""
    before = leak().incident
    told = replace(before, state=IncidentState.CLOSED, closure=closure, closed_unix_s=NOW_S)
    return _story(told, leak().memory, decisions=(_told(told), _saved(told), _requeued(told)), **changes)


def bad_night(count: int) -> list[Story]:
    """So many open incidents of many jobs, of every cause."""
    makers: Sequence[Callable[..., Story]] = (leak, leak, fragmentation, outside, leak)
    stories = []
    for number in range(count):
        story = makers[number % len(makers)]()
        job = JobKey(str(4711 + number), 0, 1001 + number % 5)
        seconds = Band(*(value * (1.0 + number * 0.4) for value in story.incident.seconds_to_oom or (0.0, 0.0, 0.0)))
        user = ("ada", "grace", "linus", "barbara", "alan")[number % 5]
        one = replace(
            story.incident,
            number=100 + number,
            key=story.incident.key._replace(job=job),
            user_name=user,
            seconds_to_oom=seconds,
        )
        stories.append(Story(one))
    return stories


ALL: Sequence[Callable[[], Story]] = (leak, explained, fragmentation, outside, out_of_memory, recovering, closed)


def notify_decision(story: Story, text: str | None = None) -> Decision:
    """The policy's word to the owner, as its default text reads."""
    one = story.incident
    return decision(
        decision_id=f"{one.number}:leak-requeue:0:1",
        rule="leak-requeue",
        incident=one,
        facts=facts(one.key.job, job_name=one.job_name, user_name=one.user_name),
        parameters={"text": owner_text(story) if text is None else text},
    )


def owner_text(story: Story) -> str:
    """What ``tidegauge_scheduler_hooks.policy.texts`` writes by default."""
    one = story.incident
    return (
        f"Incident {one.number}: job {one.key.job.job_id} ({one.job_name}), user {one.user_name}; "
        "warning 1 of 2 before a stop.\n"
        "If the growth continues, Tidegauge will checkpoint this job, then requeue it: not before 08:10 UTC, and only "
        "once OOM may be 30 min or less away (it waits up to 10 min for the checkpoint).\n"
        "Live tensors accumulate: something keeps references from step to step. Usual suspects: lists of losses or "
        "outputs without .detach(), module hooks that store activations, caches without a bound.\n"
        "To exempt the job from actions: start it with `tidegauge run --no-actions`."
    )


def _story(
    told: Incident, points: Sequence[MemoryPoint], decisions: tuple[DecisionRecord, ...] = (), **changes: Any
) -> Story:
    opened = IncidentChange(ChangeKind.OPENED, told.opened_unix_s, told)
    return Story(replace(told, **changes), (opened,), decisions, points)


def _grown(number: int, per_point: float) -> float:
    return max(number - ONSET, 0) * per_point


def _wave(number: int, height: float) -> float:
    return height * math.sin(number * 1.3) + height / 2 * math.sin(number * 0.37)


def _told(told: Incident) -> DecisionRecord:
    made = decision(incident=told, rule="leak-requeue", decided_s=NOW_S - 880.0)
    return record(made, Outcome.DONE, detail="owner notified: job output, Slack DM")


def _held_back(told: Incident) -> DecisionRecord:
    made = decision(
        ActionKind.CHECKPOINT,
        incident=told,
        rule="leak-requeue",
        rung=2,
        decided_s=NOW_S - 240.0,
        disposition=Disposition.WITHHELD,
        brake="warnings",
        reason="only 1 of 2 warnings has been delivered so far",
    )
    return record(made)


def _would(told: Incident, action: ActionKind) -> DecisionRecord:
    made = decision(action, incident=told, disposition=Disposition.WOULD, mode="observe", decided_s=NOW_S - 60.0)
    return record(made)


def _saved(told: Incident) -> DecisionRecord:
    made = decision(ActionKind.CHECKPOINT, incident=told, rule="leak-requeue", rung=2, decided_s=NOW_S - 200.0)
    return record(made, Outcome.DONE, detail="16 of 16 ranks saved at step 1,090")


def _requeued(told: Incident) -> DecisionRecord:
    made = decision(ActionKind.REQUEUE, incident=told, rule="leak-requeue", rung=3, decided_s=NOW_S - 40.0)
    return record(made, Outcome.DONE, detail="attempt 1 runs")
