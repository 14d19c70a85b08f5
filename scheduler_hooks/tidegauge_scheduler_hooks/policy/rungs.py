"""The rungs of a ladder: their actions, waiting times and tries."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeGuard, Union

from pydantic import AfterValidator, Field

from tidegauge.core.alloc_conf import ALLOCATOR_VARIABLES
from tidegauge.core.incidents.actions import ActionKind
from tidegauge_scheduler_hooks.policy.allocator_settings import check_settings
from tidegauge_scheduler_hooks.policy.conditions import PolicyModel, Settings
from tidegauge_scheduler_hooks.policy.durations import Duration

PLACEHOLDERS = {
    "what": "the incident in one sentence: which ranks, what grows, since which step, when it runs out",
    "next": "what Tidegauge will do next, and when",
    "advice": "what the owner can do about it, the setting included",
    "exemption": "how to keep Tidegauge from acting on the job",
    "job": "`job 4711 (attempt 2)`",
    "job_name": "its name, or its id",
    "user": "the owner's login name",
    "incident": "the incident's number",
    "cause": "`leak`, `fragmentation` and so on",
    "time_left": "time to out-of-memory as a range, or `an unknown time`",
    "explanation": "of an out-of-memory: what it was and whether a retry makes sense",
}
"""What a text may contain, in braces."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_template(text: str) -> str:
    try:
        fields = [
            name + (f"!{convert}" if convert else "") + (f":{form}" if form else "")
            for _, name, form, convert in string.Formatter().parse(text)
            if name is not None
        ]
    except ValueError as error:
        raise ValueError(f"invalid placeholder in the text ({error}); write a literal brace twice") from error
    unknown = [f"{{{name}}}" for name in fields if name not in PLACEHOLDERS]
    if unknown:
        valid = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ValueError(f"unknown placeholder {unknown[0]} in the text; the placeholders are {valid}")
    return text


def _check_environ(environ: dict[str, str]) -> dict[str, str]:
    for name in environ:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of an environment variable")
        if name in ALLOCATOR_VARIABLES:
            raise ValueError(f"{name} would replace the owner's settings; use alloc_conf, which is merged with them")
    return environ


Template = Annotated[str, Field(min_length=1), AfterValidator(_check_template)]


class _Rung(PolicyModel):
    """The fields of every rung."""

    after: Duration = 0.0
    """Time since the rung before was finished; for the first one, since the incident was opened."""
    before_oom: Duration | None = None
    """Only when the near end of the time to out-of-memory is this or less: the job runs on for as long as it safely
    can. While the time is not known, the rung is not due."""
    tries: int = Field(default=2, ge=1, le=20)
    """How often it is tried in all."""
    retry_after: Duration = 60.0
    """Time between a try that failed and the next."""

    kind: ClassVar[ActionKind]
    """The action as the audit names it."""


class NotifyRung(_Rung):
    """Notify the owner."""

    kind: ClassVar[ActionKind] = ActionKind.NOTIFY
    action: Literal["notify"]
    text: Template | None = None
    """The text, with placeholders in braces; left out: a complete message. What Tidegauge will do next is appended
    where the text does not say it."""


class AnnotateRung(_Rung):
    """Put a note on the job, where the scheduler shows it."""

    kind: ClassVar[ActionKind] = ActionKind.ANNOTATE
    action: Literal["annotate"]
    text: Template = "tidegauge incident {incident}: {what}"
    """The text, with placeholders in braces."""


class SnapshotRung(_Rung):
    """Ask the rank to look at first for evidence: some 30 steps with allocation stacks, two snapshots and their
    difference, what holds the tensors that grow. It changes nothing about the job, so `warn` does it too."""

    kind: ClassVar[ActionKind] = ActionKind.SNAPSHOT
    action: Literal["snapshot"]


class CapRung(_Rung):
    """Set the memory fraction of the job's ranks, as derived from its share of the GPU. It frees nothing: what is above
    the cap stays, what comes on top fails with an out-of-memory error in this job instead of in its neighbour."""

    kind: ClassVar[ActionKind] = ActionKind.CAP
    action: Literal["cap"]


class CheckpointRung(_Rung):
    """Ask the job to save its state, and wait for proof."""

    kind: ClassVar[ActionKind] = ActionKind.CHECKPOINT
    action: Literal["checkpoint"]
    grace: Duration = 600.0
    """How long to wait for the proof."""


class _StopRung(_Rung):
    """The fields of every rung that ends the job's processes."""

    without_checkpoint: bool = False
    """Stop the job even if no checkpoint of this ladder was proven: work is lost. Off: no stop without one."""


class RequeueRung(_StopRung):
    """Requeue the job: end it and let it start again."""

    kind: ClassVar[ActionKind] = ActionKind.REQUEUE
    action: Literal["requeue"]
    alloc_conf: Annotated[Settings, AfterValidator(check_settings)] = Field(default_factory=dict)
    """Allocator settings to merge into those of the job, such as ``{expandable_segments: True}``. Where they are all in
    force already, the job is not requeued for them."""
    environ: Annotated[Settings, AfterValidator(_check_environ)] = Field(default_factory=dict)
    """Other variables for the next attempt."""
    when_used_up: Literal["hold", "cancel", "leave"] = "hold"
    """What to do instead once Tidegauge has requeued the job ``brakes.requeues_per_job`` times."""

    def sets(self, settings: Mapping[str, str]) -> bool:
        """Whether ``alloc_conf`` has all of these allocator settings."""
        return settings.items() <= self.alloc_conf.items()


class HoldRung(_StopRung):
    """End the job and hold it until a person releases it."""

    kind: ClassVar[ActionKind] = ActionKind.HOLD
    action: Literal["hold"]


class CancelRung(_StopRung):
    """End the job for good."""

    kind: ClassVar[ActionKind] = ActionKind.CANCEL
    action: Literal["cancel"]


StopRung = Union[RequeueRung, HoldRung, CancelRung]
Rung = Annotated[
    Union[NotifyRung, AnnotateRung, SnapshotRung, CapRung, CheckpointRung, StopRung], Field(discriminator="action")
]


def stops(rung: Rung) -> TypeGuard[StopRung]:
    """Whether the rung ends the job's processes."""
    return rung.kind.is_stop
