"""Texts for owners: the incident, what Tidegauge does next and when, what they can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone

from tidegauge.core.alloc_conf import CUDA_NAME, merge_alloc_conf
from tidegauge.core.incidents import Incident, IncidentCause
from tidegauge.core.incidents.actions import ActionKind, JobFacts
from tidegauge.core.incidents.wording import (
    IF_GROWTH_CONTINUES,
    IF_THIS_CONTINUES,
    capitalised,
    further_name,
    guidance,
    incident_sentence,
    name_job,
    time_left,
)
from tidegauge.core.jobs.kubernetes import namespace_of
from tidegauge.core.units import format_duration
from tidegauge_scheduler_hooks.policy.allocator_settings import EXPANDABLE
from tidegauge_scheduler_hooks.policy.conditions import settings_in_force
from tidegauge_scheduler_hooks.policy.due_decision import Case, exemption, requeues_used, warnings_given
from tidegauge_scheduler_hooks.policy.rungs import AnnotateRung, CheckpointRung, NotifyRung, RequeueRung, Rung

EXEMPTIONS: Mapping[str, str] = {
    "local": "start it with `tidegauge run --no-actions`",
    "ray": 'submit it with the metadata {{"tidegauge.actions": "off"}}',
    "slurm": (
        "put tidegauge:keep into its comment: `scontrol update JobId={job_id} Comment=tidegauge:keep`, or "
        "--comment=tidegauge:keep at submission"
    ),
    "kubernetes": (
        "annotate its workload: `kubectl annotate --overwrite -n {namespace} KIND {name} "
        "tidegauge.dev/actions=keep` (KIND: job, jobset, …)"
    ),
}
"""How an owner exempts a job, by adapter: texts for ``str.format``."""


def message(case: Case) -> str:
    """The text of a notify or annotate rung."""
    rung = case.rung
    assert isinstance(rung, (NotifyRung, AnnotateRung)), rung
    if rung.text is None:
        exempting = _how_to_exempt(case.facts) if _acting_rungs(case) else ""
        parts = (_heading(case), incident_sentence(case.incident), next_actions(case), advice(case), exempting)
        return "\n".join(filter(None, parts))
    text = rung.text.format_map(_placeholders(case))
    adds_next = isinstance(rung, NotifyRung) and "{next}" not in rung.text and _acting_rungs(case)
    return f"{text}\n{next_actions(case)}" if adds_next else text


def reason(case: Case) -> str:
    """The reason in one sentence, for the audit and the scheduler's records."""
    count = len(case.rule.ladder)
    where = f"rule {case.rule.name}, rung {case.step.rung + 1} of {count}"
    used_up = case.action.value != case.rung.action
    instead = f" (instead of another requeue: {requeues_used(case)} already made)" if used_up else ""
    return f"{incident_sentence(case.incident)} Incident {case.incident.number}, {where}{instead}."


def next_actions(case: Case) -> str:
    """The next actions and their times; never more than Tidegauge will do in this mode."""
    exempt = exemption(case.facts, case.policy.brakes.exempt)
    if exempt is not None:
        return f"Tidegauge takes no action on this job: {exempt}."
    acting = _acting_rungs(case)
    if not acting:
        return "Tidegauge takes no action on this job."
    first, *rest = (_does(case, rung) for rung in acting)
    actions = ", then ".join([first.format("this job"), *(one.format("it") for one in rest)])
    begins = IF_GROWTH_CONTINUES if case.incident.key.cause.is_growth else IF_THIS_CONTINUES
    grace = next((rung.grace for rung in acting if isinstance(rung, CheckpointRung)), None)
    waits = "" if grace is None else f" (it waits up to {format_duration(grace)} for the checkpoint)"
    return f"{begins}Tidegauge will {actions}{_when(case, acting[0])}{waits}."


def advice(case: Case) -> str:
    cause, facts = case.incident.key.cause, case.facts
    parts = [capitalised(guidance(case.incident))]
    if cause is IncidentCause.FRAGMENTATION:
        parts.append(_fragmentation_advice(facts))
    if cause is IncidentCause.LEAK and not _is_only_told(facts):
        parts += _checkpoint_advice(facts)
    if cause is IncidentCause.SHARE_EXCEEDED and facts.cap_fraction is not None:
        parts.append(f"A memory fraction of {facts.cap_fraction:.3g} keeps it within its share.")
    return " ".join(parts)


def _checkpoint_advice(facts: JobFacts) -> Iterator[str]:
    if unable := facts.groups_without_checkpoint:
        yield (
            "The job has several groups of ranks and is stopped only when all of them have checkpointed. "
            f"{' and '.join(unable)} cannot checkpoint on request: give {'it' if len(unable) == 1 else 'them'} "
            "tidegauge.on_checkpoint_request(fn), or TIDEGAUGE_CHECKPOINT=none if there is nothing to save "
            "(docs/checkpoint.md)."
        )
    elif facts.checkpoint is None:
        yield (
            "To let Tidegauge checkpoint the job before it runs out of memory, give it "
            "tidegauge.on_checkpoint_request(fn) or a checkpoint signal (docs/run.md)."
        )


def _is_only_told(facts: JobFacts) -> bool:
    return facts.scheduler_facts is not None and facts.scheduler_facts.only_told is not None


def _fragmentation_advice(facts: JobFacts) -> str:
    if settings_in_force(facts, EXPANDABLE):
        return (
            "The setting is already in force. What else helps: fewer different sizes (padding to a few lengths), and "
            "torch.cuda.empty_cache() between phases, such as after an evaluation."
        )
    in_force = {CUDA_NAME: facts.alloc_conf} if facts.alloc_conf else {}
    ((name, value),) = merge_alloc_conf(in_force, EXPANDABLE, torch_version=facts.torch_version).items()
    return f"Against fragmentation, start the job with {name}={value}."


def _acting_rungs(case: Case) -> list[Rung]:
    """The rungs after this one that act on the job; none in a mode that only warns, or for an exempt job."""
    if case.policy.mode == "warn" or exemption(case.facts, case.policy.brakes.exempt) is not None:
        return []
    return [rung for rung in case.rule.ladder[case.step.rung + 1 :] if rung.kind.is_acting]


def _does(case: Case, rung: Rung) -> str:
    """The action on the job, whose place ``{}`` takes."""
    if isinstance(rung, CheckpointRung):
        return "checkpoint {}"
    if isinstance(rung, RequeueRung) and (
        rung.when_used_up == "leave" or requeues_used(case) < case.policy.brakes.requeues_per_job
    ):
        changes = ", ".join(f"{key}:{value}" for key, value in rung.alloc_conf.items())
        return "requeue {}" + (f" with {changes}" if changes else "")
    action = ActionKind(rung.when_used_up) if isinstance(rung, RequeueRung) else rung.kind
    if action is ActionKind.CAP:
        fraction = case.facts.cap_fraction
        return "cap {} at its share" + ("" if fraction is None else f" (memory fraction {fraction:.3g})")
    return "stop {} and hold it until a person releases it" if action is ActionKind.HOLD else "cancel {}"


def _when(case: Case, rung: Rung) -> str:
    """The conditions of the first rung that acts, as far as they are known now; with a colon, or empty."""
    index = case.rule.ladder.index(rung, case.step.rung + 1)
    wait_s = sum(one.after for one in case.rule.ladder[case.step.rung + 1 : index + 1])
    conditions = []
    if wait_s:
        conditions.append(f"not before {datetime.fromtimestamp(case.now_s + wait_s, timezone.utc):%H:%M} UTC")
    if rung.before_oom is not None:
        conditions.append(f"only once OOM may be {format_duration(rung.before_oom)} or less away")
    return f": {', and '.join(conditions)}" if conditions else ""


def _heading(case: Case) -> str:
    """The first line: incident, job and user, and the number of the warning where the ladder ends in a stop."""
    job = name_job(case.incident.called)
    called = further_name(replace(case.incident, job_name=case.facts.job_name))
    name = f" ({called})" if called and case.incident.called.job_id == case.incident.key.job.job_id else ""
    wanted = case.policy.brakes.warnings_before_stop
    threatens = wanted > 0 and any(rung.kind.is_stop for rung in _acting_rungs(case))
    number = len(warnings_given(case)) + 1
    warning = f"; warning {number} of {wanted} before a stop" if threatens and number <= wanted else ""
    return f"Incident {case.incident.number}: {job}{name}, user {case.facts.user_name}{warning}."


def _how_to_exempt(facts: JobFacts) -> str:
    job_id = facts.target.job.job_id
    how = EXEMPTIONS.get(facts.target.scheduler, "ask the cluster's admins to exempt it")
    # What is no workload's name is the job's own word, and does not belong into a line that people paste into a shell.
    namespace, name = job_id.split("/") if namespace_of(job_id) else ("NAMESPACE", "NAME")
    return f"To exempt the job from actions: {how.format(job_id=job_id, namespace=namespace, name=name)}."


def _placeholders(case: Case) -> dict[str, str]:
    incident: Incident = case.incident
    return {
        "what": incident_sentence(incident),
        "next": next_actions(case),
        "advice": advice(case),
        "exemption": _how_to_exempt(case.facts),
        "job": name_job(incident.called),
        "job_name": case.facts.job_name or incident.key.job.job_id,
        "user": case.facts.user_name,
        "incident": str(incident.number),
        "cause": incident.key.cause.value,
        "time_left": time_left(incident.seconds_to_oom) or "an unknown time",
        "explanation": capitalised(incident.explanation or ""),
    }
