"""Words for findings, in one place, so that commands, reports, owners' messages and the policy's reasons agree.

Values in, text out; quantities are written by ``core.units``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, Optional

from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.words import brief_line, brief_sentences, cause_clause
from tidegauge.core.host_memory import HostProcess
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, Closure, Incident, IncidentCause, IncidentChange, OomEnd, RankFinding
from tidegauge.core.incidents.actions import Outcome
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.samples import OomRecord
from tidegauge.core.units import format_band, format_bytes, format_count, format_duration
from tidegauge.core.verdicts import Band, Severity

MODE_WORDS = {
    "observe": "decisions are logged, no action is taken",
    "warn": "owners are notified, no other action is taken",
    "act": "the actions of the rules are taken, within the brakes",
}
"""What a mode of the policy does."""
OUTCOME_WORDS = {
    Outcome.DONE: "done",
    Outcome.FAILED: "failed",
    Outcome.UNVERIFIED: "accepted, but not confirmed",
    Outcome.NO_PROOF: "not proven in time",
    Outcome.SUPERSEDED: "skipped because the job had ended or changed",
    Outcome.STOPPED: "skipped because actions were stopped",
}
"""How a decision that was to be carried out ended."""
IF_GROWTH_CONTINUES, IF_THIS_CONTINUES = "If the growth continues, ", "If this continues, "
"""How the sentence begins that says what the policy does next to an incident."""
RAN_OUT = "ran out of memory"
"""The state of a closed incident that ended by an out-of-memory error."""
MAX_AHEAD_S = 1e9
"""No forecast is so long before its error: the clock is wrong, or made up."""
MAX_RANKS_NAMED = 6
"""More are counted in a sentence."""
MAX_RANKS_PER_CELL = 4
_FROM_CODE = re.compile(r"_|\w[.(]\w|\(\)")
"""In the first word of a sentence: it is a name from the job's code."""


class _Words(NamedTuple):
    one: str
    """What one rank does; ``{rate}`` is "12.0 MiB per step", or "memory" where that is not known."""
    several: str
    past: str
    """The past participle of both, after "had"."""
    hint: str
    """Where to look."""


_WORDS = {
    IncidentCause.LEAK: _Words(
        "leaks {rate}",
        "leak",
        "leaked {rate}",
        "Live tensors accumulate: something keeps references from step to step. Usual suspects: lists of losses or "
        "outputs without .detach(), module hooks that store activations, caches without a bound.",
    ),
    IncidentCause.FRAGMENTATION: _Words(
        "reserves {rate} beyond what its tensors need",
        "reserve memory beyond what their tensors need",
        "reserved {rate} beyond what tensors needed",
        "Reserved memory grows while live tensors do not: free blocks do not fit new requests (fragmentation), or "
        "each new CUDA graph keeps a private pool. Evidence shows which. The usual fix for fragmentation is "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
    IncidentCause.CUDA_GRAPHS: _Words(
        "grows by {rate} in private pools of CUDA graphs",
        "grow in private pools of CUDA graphs",
        "grown by {rate} in private pools of CUDA graphs",
        "CUDA graphs keep private pools that nothing else can use. Capture fewer graphs (pad inputs to a few sizes) "
        "and share one pool (pool= of torch.cuda.graph). Allocator settings do not help.",
    ),
    IncidentCause.OUTSIDE_ALLOCATOR: _Words(
        "grows by {rate} outside PyTorch's allocator",
        "grow outside PyTorch's allocator",
        "grown by {rate} outside PyTorch's allocator",
        "The process allocates GPU memory outside PyTorch: NCCL communicators (process groups created in a loop), "
        "other CUDA libraries, or extensions that call cudaMalloc.",
    ),
    IncidentCause.HOST_MEMORY: _Words(
        "leaks {rate} of host memory",
        "leak host memory",
        "leaked {rate} of host memory",
        "The rank's host memory grows: often a loss kept with its autograd graph, which costs little on the GPU and "
        "much in RAM. If it continues, the node's OOM killer ends a process.",
    ),
    IncidentCause.OUT_OF_MEMORY: _Words(
        "ran out of memory",
        "ran out of memory",
        "run out of memory",
        "PyTorch's allocator could not serve a request; the job gets torch.OutOfMemoryError.",
    ),
    IncidentCause.SHARE_EXCEEDED: _Words(
        "uses more of its GPU than the share that its job requested",
        "use more of their GPUs than the share that their job requested",
        "used more than the share of a GPU that the job requested",
        "The GPU is shared: the other jobs on it may lack what this job uses beyond its share.",
    ),
}

_CHILD_HINT = (
    "It is a child of the rank. In a DataLoader worker, usually the dataset or a transform keeps what it loads, once "
    "in each worker. If it continues, the node's OOM killer ends a process."
)

_GROWS = {IncidentCause.LEAK: "", IncidentCause.HOST_MEMORY: " in host memory"}
"""Of causes that are called leaks: where it grows, while nobody can know that it is one."""

_WHEN = {
    Closure.RECOVERED: "when it stopped",
    Closure.JOB_ENDED: "when the job ended",
    Closure.CULPRITS_ENDED: "when the ranks ended",
}
"""Until when it went on."""

CLOSURES = {
    Closure.RECOVERED: "it stopped and did not come back",
    Closure.JOB_ENDED: "all processes of this attempt have ended",
    Closure.CULPRITS_ENDED: "the affected ranks have ended, and the job goes on without them",
    Closure.RAN_OUT_OF_MEMORY: "it ended in an out-of-memory error",
}
"""Why an incident was closed."""


def utc_clock(unix_s: float) -> str:
    """ "03:35:40 UTC"."""
    return f"{datetime.fromtimestamp(unix_s, timezone.utc):%H:%M:%S} UTC"


def incident_sentence(incident: Incident, clock: Callable[[float], str] = utc_clock) -> str:
    """The incident in one sentence: who, what, since when, and when it ends; in the past tense once it has ended.
    ``clock`` writes times of day."""
    cause, job = incident.key.cause, name_job(incident.called)
    end = oom_end(incident)
    if end is not None:
        return _sentence_of_end(incident, end, clock)
    if not incident.is_open and cause is not IncidentCause.OUT_OF_MEMORY:
        return _sentence_of_past(incident)
    if not incident.findings:
        return f"Ranks of {job} {do(cause, incident.severity)}."
    worst = incident.findings[0]
    concerned = len(incident.findings) + incident.ranks_left_out
    if concerned == 1:
        return f"Rank {worst.rank} of {job} {_does_so(incident, worst)}{_of_replicas(incident)}"
    if not incident.common:
        who, alike = name_ranks(incident.ranks, left_out=incident.ranks_left_out), ""
    elif concerned == incident.world_size:
        who, alike = f"all {incident.world_size} ranks", " alike"
    else:
        who, alike = f"{concerned} of {incident.world_size} ranks", " alike"
    first = f"Look first at rank {worst.rank}: it {_does_so(incident, worst)}"
    return f"{capitalised(who)} of {job} {do(cause, incident.severity)}{alike}. {first}{_of_replicas(incident)}"


def _of_replicas(incident: Incident) -> str:
    """In how many replicas memory grows, beside the one that is told of: other incidents may be about those."""
    replicas = incident.replicas
    if replicas is None or replicas.running < 2 or not replicas.growing or not incident.key.cause.is_growth:
        return ""
    return f" In all, memory grows in {replicas.growing} of {replicas.running} replicas, whatever the cause or process."


def _sentence_of_end(incident: Incident, end: OomEnd, clock: Callable[[float], str]) -> str:
    others = f" and {end.others} more" if end.others else ""
    time, step = _moment(clock, end.oom.at_unix_s), f"step {end.oom.step:,}"
    when = f"{time} ({step})" if time else step
    first = f"Rank {end.rank}{others} of {name_job(incident.called)} ran out of GPU memory at {when}"
    foreseen = incident.foreseen
    if not incident.key.cause.is_growth:
        ended = "The job" if end.ended_job else "The ranks" if end.others else "The rank"
        return f"{first}: {wanted_and_free(end.oom)}. {ended} ended by it."
    ahead_s = None if foreseen is None else end.oom.at_unix_s - foreseen.at_unix_s
    is_known = ahead_s is not None and 0 <= ahead_s < MAX_AHEAD_S
    after = f", {format_duration(ahead_s)} after the first forecast" if ahead_s is not None and is_known else ""
    said = _forecast_said(incident, clock)
    is_it = incident.ranks == (end.rank,) and not incident.ranks_left_out
    grew = f"{'it' if is_it else _who_had(incident)} had {_had(incident)}{since(incident.onset_step)}; {said}."
    return f"{first}{after}: {wanted_and_free(end.oom)}. {capitalised(grew)}"


def _forecast_said(incident: Incident, clock: Callable[[float], str]) -> str:
    """ "the forecast of 03:35:12 UTC said 17-28 s"."""
    if incident.foreseen is None:
        return "no forecast had been made"
    when = _moment(clock, incident.foreseen.at_unix_s)
    return f"the {f'forecast of {when}' if when else 'first forecast'} said {format_band(incident.foreseen.seconds)}"


def _sentence_of_past(incident: Incident) -> str:
    when = "until then" if incident.closure is None else _WHEN.get(incident.closure, "until then")
    end = None if incident.severity is Severity.NOTE else time_left(incident.seconds_to_oom)
    rest = f"; at that rate it would have run out of memory in {end}" if end and incident.key.cause.is_growth else ""
    who = _who_had(incident, of=f" of {name_job(incident.called)}")
    return f"{capitalised(who)} had {_had(incident)}{since(incident.onset_step)} {when}{rest}."


def _who_had(incident: Incident, of: str = "") -> str:
    """ "rank 3 of job 4711", "all 64 ranks"; "ranks" where none is known."""
    if not incident.findings:
        return f"ranks{of}"
    concerned = len(incident.findings) + incident.ranks_left_out
    is_all = incident.common and concerned == incident.world_size and concerned > 1
    return f"all {concerned} ranks{of}" if is_all else name_ranks(incident.ranks, left_out=incident.ranks_left_out) + of


def _had(incident: Incident) -> str:
    """The growth as a participle: "leaked 12.0 MiB per step", of several ranks "leaked up to 12.0 MiB per step"."""
    cause, amount = incident.key.cause, rate(incident.bytes_per_step)
    several = len(incident.findings) + incident.ranks_left_out > 1
    speed = None if amount is None else f"{'up to ' if several else ''}{amount} per step"
    if (incident.worst_severity or incident.severity) is not Severity.CRITICAL and cause in _GROWS:
        return f"grown{f' by {speed}' if speed else ''}{_GROWS[cause]}"
    return _WORDS[cause].past.format(rate=speed or "memory")


def _moment(clock: Callable[[float], str], unix_s: float) -> str:
    """The time of day; empty for one that is beyond the calendar: a job may say any."""
    try:
        return clock(unix_s)
    except (OverflowError, OSError, ValueError):
        return ""


def change_in_words(change: IncidentChange) -> str:
    """A change of an incident: "severity rose to critical: rank 1, 12.0 MiB per step, out of memory in 14 min"."""
    incident = change.incident
    ran_out = oom_end(incident)
    if change.kind is ChangeKind.CLOSED and ran_out is not None:
        oom = ran_out.oom
        return f"closed: rank {ran_out.rank} {RAN_OUT} at step {oom.step:,} ({wanted_and_free(oom)})"
    if change.kind is ChangeKind.CLOSED:
        return f"closed: {CLOSURES[incident.closure]}" if incident.closure is not None else "closed"
    if change.kind is ChangeKind.RECOVERING:
        return "recovering: it has stopped; the incident closes if it does not come back"
    if change.kind is ChangeKind.EVIDENCE:
        return evidence_in_words(incident)
    happened = {
        ChangeKind.OPENED: f"opened, severity {incident.severity.value}",
        ChangeKind.ESCALATED: f"severity rose to {incident.severity.value}",
        ChangeKind.EASED: f"severity fell to {incident.severity.value}",
        ChangeKind.SPREAD: "more ranks affected",
        ChangeKind.REOPENED: "reopened",
        ChangeKind.UPDATED: "new figures",
    }
    end, speed = time_left(incident.seconds_to_oom), rate(incident.bytes_per_step)
    figures = [list_ranks(incident.ranks, common=incident.common, left_out=incident.ranks_left_out)]
    figures += [f"{speed} per step"] * (speed is not None) + [f"out of memory in {end}"] * (end is not None)
    error = incident.findings[0].oom if incident.findings else None
    if incident.key.cause is IncidentCause.OUT_OF_MEMORY and error is not None:
        figures.append(wanted_and_free(error))
    return f"{happened[change.kind]}: {', '.join(figures)}"


def evidence_in_words(incident: Incident) -> str:
    """The best evidence: "line found: train.py:41 in step, held by train.py: losses (list, 412 items); cause: tensors
    kept alive by Python references"."""
    if not incident.evidence:
        return "evidence collected"
    first = incident.evidence[0]
    where, why = brief_line(first), cause_clause(first.cause, first.confidence)
    if where is None:
        return f"evidence collected on rank {first.rank}; {why}"
    return f"{'line' if first.line is not None else 'holder'} found: {where}; {why}"


def guidance(incident: Incident) -> str:
    """Where to look: the explanation of an out-of-memory error, else the evidence, else the usual places."""
    return incident.explanation or " ".join(evidence_sentences(incident)) or meaning(incident)


def evidence_sentences(incident: Incident) -> tuple[str, ...]:
    """The best piece of evidence in sentences; none while nothing is known but that something grows."""
    best = best_evidence(incident)
    return () if best is None else brief_sentences(best)


def change_sentence(incident: Incident) -> str:
    """What no earlier run of the same job did; empty where nothing is known of that."""
    return f"{capitalised(incident.change)}." if incident.change else ""


def best_evidence(incident: Incident) -> Optional[EvidenceBrief]:
    """The first piece that says where, by whom or why."""
    return next((one for one in incident.evidence if brief_line(one) or one.advice), None)


def state_in_words(incident: Incident) -> str:
    """ "open", "closed", "ran out of memory"."""
    return incident.state.value if incident.is_open or oom_end(incident) is None else RAN_OUT


def other_number(incident: Incident) -> Optional[int]:
    """The number of the incident that is one story with this one: growth and the error that it ended in."""
    if incident.grew_in is not None:
        return incident.grew_in
    return None if incident.ran_out is None else incident.ran_out.number


def other_half(incident: Incident) -> Optional[str]:
    """The same in words: "ended in incident 3 (out_of_memory)"."""
    number = other_number(incident)
    if number is None:
        return None
    if incident.grew_in is not None:
        return f"follows the growth of incident {number}"
    return f"ended in incident {number} ({IncidentCause.OUT_OF_MEMORY.value})"


def snapshots_gone(incident: Incident, *, kept_s: float, now_s: float) -> Optional[str]:
    """What became of its snapshots, if nodes have deleted them by their age: "2 snapshots are gone: ...".
    ``None``: there are none, or they may be there. Nodes keep those of an open incident."""
    closed_s = incident.closed_unix_s
    if not incident.snapshots or closed_s is None or now_s - closed_s <= kept_s:
        return None
    count = format_count(len(incident.snapshots), "snapshot")
    are = "is" if len(incident.snapshots) == 1 else "are"
    return f"{count} {are} gone: nodes delete snapshots after {format_duration(kept_s)}"


def does(
    cause: IncidentCause, bytes_per_step: Optional[Band] = None, severity: Optional[Severity] = Severity.CRITICAL
) -> str:
    """A rank's part as a verb: "leaks 12.0 MiB per step", or "grows by …" as long as it is not dangerous."""
    amount = rate(bytes_per_step)
    if severity is not Severity.CRITICAL and cause in _GROWS:
        return f"grows{f' by {amount} per step' if amount else ''}{_GROWS[cause]}"
    return _WORDS[cause].one.format(rate=f"{amount} per step" if amount else "memory")


def do(cause: IncidentCause, severity: Severity) -> str:
    """The part of several ranks as a verb: "leak", "grow outside PyTorch's allocator"."""
    if severity is not Severity.CRITICAL and cause in _GROWS:
        return f"grow{_GROWS[cause]}"
    return _WORDS[cause].several


def hint(cause: IncidentCause) -> str:
    """The usual places to look for a cause."""
    return _WORDS[cause].hint


def meaning(incident: Incident) -> str:
    """The usual places to look; for host memory, the process that grew."""
    worst = incident.findings[0] if incident.findings else None
    if incident.key.cause is not IncidentCause.HOST_MEMORY or worst is None or worst.host_process is None:
        return hint(incident.key.cause)
    return host_growth(worst.host_process, rank=worst.process.pid)


def host_growth(grown: HostProcess, *, rank: int) -> str:
    """The process of a rank that grew most on the host, and where to look. ``rank``: the pid of the rank itself."""
    which = f"process {grown.process.pid} ({grown.name})"
    told = f"{capitalised(which)} grew most: by {format_bytes(grown.grown_bytes)} to {format_bytes(grown.held_bytes)}."
    return f"{told} {hint(IncidentCause.HOST_MEMORY) if grown.process.pid == rank else _CHILD_HINT}"


def wanted_and_free(oom: OomRecord) -> str:
    """The two figures of an out-of-memory error that everybody asks for: "wanted 20.0 MiB, 10.0 MiB free"."""
    return f"wanted {format_bytes(oom.wanted_bytes)}, {format_bytes(oom.free_bytes)} free"


def since(onset_step: Optional[int]) -> str:
    """ " since step 1,234", or nothing."""
    return "" if onset_step is None else f" since step {onset_step:,}"


def outlook(severity: Optional[Severity], seconds: Optional[Band], steps: Optional[Band] = None) -> str:
    """The end of the growth, as the rest of a sentence: "; at this rate it runs out of memory in 14-22 min."."""
    if severity is Severity.NOTE:
        return "; at this rate it would take weeks to matter."
    end = time_left(seconds, steps)
    return f"; at this rate it runs out of memory in {end}." if end else "."


def time_left(seconds: Optional[Band], steps: Optional[Band] = None) -> Optional[str]:
    """ "14-22 min", or in steps where time is not known; ``None`` without an end in sight."""
    if seconds is not None:
        return None if math.isinf(seconds.low) else format_band(seconds)
    if steps is not None and not math.isinf(steps.low):
        return format_band(steps, lambda count: f"{count:,.0f} steps")
    return None


def rate(bytes_per_step: Optional[Band]) -> Optional[str]:
    """The likely growth per step: "12.0 MiB"."""
    return None if bytes_per_step is None else format_bytes(bytes_per_step.likely)


def name_job(job: JobKey) -> str:
    """ "job 4711", "job 4711 (step 1, attempt 2)": the first attempt is 0 and goes without saying."""
    more = [*filter(None, [job.group]), *([f"attempt {job.attempt}"] if job.attempt else [])]
    return f"job {job.job_id} ({', '.join(more)})" if more else f"job {job.job_id}"


def job_and_run(incident: Incident) -> str:
    """The job in a row of facts: "4711", "4711, step 1, attempt 2"."""
    job = incident.called
    return ", ".join(filter(None, (job.job_id, job.group, f"attempt {job.attempt}" if job.attempt else "")))


def further_name(incident: Incident) -> Optional[str]:
    """A job's names beside ``Incident.called``: its given name, unless its id contains it (``team-a/train`` is the
    workload ``train``), and its id where it is called by another name."""
    job_id, shown, given = incident.key.job.job_id, incident.called.job_id, incident.job_name
    is_news = given is not None and given != shown and not job_id.endswith(f"/{given}")
    return ", ".join(filter(None, (given if is_news else None, None if job_id == shown else job_id))) or None


def rank_place(hostname: str, gpu: Optional[int]) -> str:
    """Host and GPU of a rank: "node7, GPU 3", or the host alone."""
    return hostname if gpu is None else f"{hostname}, GPU {gpu}"


def name_ranks(ranks: Sequence[int], *, left_out: int = 0) -> str:
    """Ranks in a sentence: "rank 3", "ranks 0, 3 and 7", "64 ranks". ``left_out``: how many more there are."""
    if left_out or len(ranks) > MAX_RANKS_NAMED:
        return f"{len(ranks) + left_out} ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    numbers = [str(number) for number in sorted(ranks)]
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def list_ranks(ranks: Sequence[int], *, common: bool, left_out: int = 0) -> str:
    """Ranks in a table's cell, in the order given: "rank 3", "rank 0, 3 and 5 more", "all alike (64)", "-".
    ``left_out``: how many more there are."""
    if not ranks:
        return "-"
    if common:
        return f"all alike ({len(ranks) + left_out})"
    named = ranks[:MAX_RANKS_PER_CELL]
    more = len(ranks) - len(named) + left_out
    return f"rank {', '.join(map(str, named))}" + (f" and {more} more" if more > 0 else "")


def ranks_besides(shortened: Incident, ranks: Sequence[int]) -> int:
    """The number of an incident's ranks beside ``ranks``. ``shortened`` is the incident with its first findings."""
    return len(shortened.findings) + shortened.ranks_left_out - len(ranks)


def capitalised(text: str) -> str:
    """The text with a capital letter in front; a name from code (``append_loss``) stays as it is."""
    first = text.partition(" ")[0]
    return text if _FROM_CODE.search(first) else text[:1].upper() + text[1:]


def _does_so(incident: Incident, worst: RankFinding) -> str:
    cause = incident.key.cause
    if not cause.is_growth:
        return f"{does(cause)}{_at_the_oom(worst)}."
    grows = does(cause, incident.bytes_per_step, incident.severity)
    return f"{grows}{since(incident.onset_step)}{outlook(incident.severity, incident.seconds_to_oom)}"


def _at_the_oom(finding: RankFinding) -> str:
    oom = finding.oom
    if oom is None:
        return ""
    return f" at step {oom.step:,}: {wanted_and_free(oom)}"
