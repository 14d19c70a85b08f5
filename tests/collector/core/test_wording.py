"""The sentences that commands, reports, messages and the audit share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Optional

import pytest

from evidence_values import evidence
from sample_views import MIB, NOW_S
from scheduler_values import died_of_oom, finding, incident, oom_record
from tidegauge.core.evidence import brief_of
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.host_memory import HostProcess
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents import (
    ChangeKind,
    Closure,
    Incident,
    IncidentCause,
    IncidentChange,
    IncidentKey,
    IncidentState,
)
from tidegauge.core.incidents.wording import (
    capitalised,
    change_in_words,
    does,
    evidence_sentences,
    further_name,
    guidance,
    hint,
    incident_sentence,
    job_and_run,
    list_ranks,
    name_ranks,
    other_half,
    time_left,
)
from tidegauge.core.verdicts import Band, Severity

FOUR = tuple(finding(rank) for rank in (3, 0, 1, 2))
OOM = IncidentCause.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        (
            incident(),
            "Rank 1 of job 4711 leaks 12.0 MiB per step since step 40; at this rate it runs out of memory in "
            "14–22 min.",
        ),
        (
            incident(job=JobKey("4711", 2, 1001), bytes_per_step=None, onset_step=None, seconds_to_oom=None),
            "Rank 1 of job 4711 (attempt 2) leaks memory.",
        ),
        (
            incident(IncidentCause.HOST_MEMORY, severity=Severity.NOTE),
            "Rank 1 of job 4711 grows by 12.0 MiB per step in host memory since step 40; at this rate it would take "
            "weeks to matter.",
        ),
        (
            incident(IncidentCause.FRAGMENTATION, findings=FOUR[:2], world_size=4, seconds_to_oom=None),
            "Ranks 0 and 3 of job 4711 reserve memory beyond what their tensors need. Look first at rank 3: it "
            "reserves 12.0 MiB per step beyond what its tensors need since step 40.",
        ),
        (
            incident(IncidentCause.CUDA_GRAPHS, seconds_to_oom=None),
            "Rank 1 of job 4711 grows by 12.0 MiB per step in private pools of CUDA graphs since step 40.",
        ),
        (
            incident(findings=FOUR, common=True, world_size=4, seconds_to_oom=None),
            "All 4 ranks of job 4711 leak alike. Look first at rank 3: it leaks 12.0 MiB per step since step 40.",
        ),
        (
            incident(findings=FOUR[:3], common=True, world_size=4, seconds_to_oom=None),
            "3 of 4 ranks of job 4711 leak alike. Look first at rank 3: it leaks 12.0 MiB per step since step 40.",
        ),
        (
            incident(OOM, findings=(finding(1, oom=oom_record()),), bytes_per_step=None, seconds_to_oom=None),
            "Rank 1 of job 4711 ran out of memory at step 200: wanted 512.0 MiB, 200.0 MiB free.",
        ),
        (incident(OOM, findings=()), "Ranks of job 4711 ran out of memory."),
        (
            incident(IncidentCause.SHARE_EXCEEDED, bytes_per_step=None, seconds_to_oom=None),
            "Rank 1 of job 4711 uses more of its GPU than the share that its job requested.",
        ),
    ],
)
def test_an_incident_is_one_sentence(about: Incident, sentence: str) -> None:
    assert incident_sentence(about) == sentence


def test_growth_of_host_memory_names_the_process_that_grew() -> None:
    worker = HostProcess(ProcessId(4300, 7), "DataLoader worker", 19 << 30, 18 << 30)
    told = guidance(incident(IncidentCause.HOST_MEMORY, findings=(finding(1, host_process=worker),)))
    assert told.startswith(
        "Process 4300 (DataLoader worker) grew most: by 18.0 GiB to 19.0 GiB. It is a child of the rank"
    )
    own = finding(1, host_process=worker._replace(process=finding(1).process, name="python"))
    told = guidance(incident(IncidentCause.HOST_MEMORY, findings=(own,)))
    assert told == f"Process 1001 (python) grew most: by 18.0 GiB to 19.0 GiB. {hint(IncidentCause.HOST_MEMORY)}"


def closed(closure: Closure, cause: IncidentCause = IncidentCause.LEAK, **changes: Any) -> Incident:
    return incident(cause, **{"state": IncidentState.CLOSED, "closure": closure, "closed_unix_s": NOW_S, **changes})


@pytest.mark.parametrize("cause", list(IncidentCause))
def test_every_cause_has_its_words(cause: IncidentCause) -> None:
    assert "{" not in does(cause, Band(MIB, MIB, MIB))
    assert hint(cause).endswith(".")


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        (
            ChangeKind.OPENED,
            {"severity": Severity.WARNING},
            "opened, severity warning: rank 1, 12.0 MiB per step, out of memory in 14–22 min",
        ),
        (
            ChangeKind.SPREAD,
            {"findings": FOUR, "seconds_to_oom": None},
            "more ranks affected: rank 3, 0, 1, 2, 12.0 MiB per step",
        ),
        (ChangeKind.ESCALATED, {"bytes_per_step": None, "seconds_to_oom": None}, "severity rose to critical: rank 1"),
        (ChangeKind.CLOSED, {"closure": Closure.JOB_ENDED}, "closed: all processes of this attempt have ended"),
        (ChangeKind.CLOSED, {}, "closed"),
        (
            ChangeKind.RECOVERING,
            {},
            "recovering: it has stopped; the incident closes if it does not come back",
        ),
    ],
)
def test_a_change_says_what_happened(kind: ChangeKind, changes: dict[str, Any], text: str) -> None:
    assert change_in_words(IncidentChange(kind, NOW_S, incident(**changes))) == text


@pytest.mark.parametrize("kind", list(ChangeKind))
def test_every_change_has_its_words(kind: ChangeKind) -> None:
    assert change_in_words(IncidentChange(kind, NOW_S, incident()))


@pytest.mark.parametrize(
    ("ranks", "sentence", "cell"),
    [
        ((3,), "rank 3", "rank 3"),
        ((3, 0), "ranks 0 and 3", "rank 3, 0"),
        ((5, 3, 0, 1, 2), "ranks 0, 1, 2, 3 and 5", "rank 5, 3, 0, 1 and 1 more"),
        (tuple(range(64)), "64 ranks", "rank 0, 1, 2, 3 and 60 more"),
    ],
)
def test_ranks_are_named_as_long_as_they_are_few(ranks: tuple[int, ...], sentence: str, cell: str) -> None:
    assert name_ranks(ranks) == sentence
    assert list_ranks(ranks, common=False) == cell


def test_ranks_that_are_all_alike_are_counted() -> None:
    assert list_ranks((1, 0), common=True) == "all alike (2)"
    assert list_ranks((1, 0), common=True, left_out=62) == "all alike (64)"
    assert list_ranks((), common=False) == "-"


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("ranks", [2, 7, 64])
def test_words_of_a_shortened_incident_count_all_its_ranks(ranks: int, common: bool) -> None:
    whole = incident(findings=tuple(finding(rank) for rank in range(ranks)), common=common, world_size=64)
    once = whole.shortened(5)
    assert once.shortened(5) is once
    for short in (once, once.shortened(16)):
        assert incident_sentence(short) == incident_sentence(whole)
        assert change_in_words(IncidentChange(ChangeKind.UPDATED, NOW_S, short)) == change_in_words(
            IncidentChange(ChangeKind.UPDATED, NOW_S, whole)
        )
    assert once.shortened(1).ranks_left_out == ranks - 1
    assert f"{ranks} ranks of job 4711" in incident_sentence(whole.shortened(1)) or common or ranks == 64


@pytest.mark.parametrize(
    ("seconds", "steps", "text"),
    [
        (Band(60.0, 70.0, 80.0), None, "60–80 s"),
        (Band(math.inf, math.inf, math.inf), Band(1.0, 2.0, 3.0), None),
        (None, Band(1000.0, 2000.0, 3000.0), "1,000–3,000 steps"),
        (None, Band(math.inf, math.inf, math.inf), None),
        (None, None, None),
    ],
)
def test_time_left_is_said_in_steps_where_time_is_not_known(
    seconds: Optional[Band], steps: Optional[Band], text: Optional[str]
) -> None:
    assert time_left(seconds, steps) == text


@pytest.mark.parametrize(
    ("job_id", "name", "further"),
    [
        ("4711", "llm", "llm"),
        ("team-a/train", "train", None),
        ("team-a/pretrain", "train", "train"),
        ("4711", None, None),
        ("local-vm-1479-77", "train", "local-vm-1479-77"),
        ("local-vm-1479-77", None, None),
    ],
)
def test_a_workload_is_not_named_twice(job_id: str, name: Optional[str], further: Optional[str]) -> None:
    about = incident(job_name=name, key=IncidentKey(JobKey(JobId(job_id), 0, 1001), IncidentCause.LEAK))
    assert further_name(about) == further


FOUND = brief_of(evidence())
NOTHING = EvidenceBrief("auto-7", 7, NOW_S)


@pytest.mark.parametrize(
    ("brief", "text"),
    [
        (
            FOUND,
            "line found: train.py:41 in step, held by train.py: Trainer.history (list, 412 items); cause: tensors kept "
            "alive by Python references",
        ),
        (
            FOUND._replace(line=None, confidence=Confidence.LIKELY),
            "holder found: held by train.py: Trainer.history (list, 412 items); likely cause: tensors kept alive by "
            "Python references",
        ),
        (
            FOUND._replace(holder=None, cause=EvidenceCause.UNKNOWN),
            "line found: train.py:41 in step; cause unknown",
        ),
        (
            EvidenceBrief("auto-1", 3, NOW_S, cause=EvidenceCause.FRAGMENTATION, confidence=Confidence.NAMED),
            "evidence collected on rank 3; cause: fragmentation",
        ),
    ],
)
def test_evidence_says_what_is_known_best(brief: EvidenceBrief, text: str) -> None:
    assert change_in_words(IncidentChange(ChangeKind.EVIDENCE, NOW_S, incident(evidence=(brief,)))) == text


def test_guidance_uses_known_evidence_else_a_general_hint() -> None:
    assert guidance(incident()) == hint(IncidentCause.LEAK)
    assert guidance(incident(evidence=(NOTHING,))) == hint(IncidentCause.LEAK)
    assert guidance(incident(evidence=(NOTHING, FOUND))) == " ".join(evidence_sentences(incident(evidence=(FOUND,))))
    assert guidance(incident(evidence=(FOUND,), explanation="the card was full")) == "the card was full"


RATE = Band(1 << 20, 2 << 20, 3 << 20)


@pytest.mark.parametrize("severity", [None, Severity.NOTE, Severity.WARNING])
def test_growth_that_is_not_dangerous_grows_and_does_not_leak(severity: Severity | None) -> None:
    assert does(IncidentCause.LEAK, RATE, severity) == "grows by 2.0 MiB per step"
    assert does(IncidentCause.LEAK, None, severity) == "grows"
    assert does(IncidentCause.HOST_MEMORY, RATE, severity) == "grows by 2.0 MiB per step in host memory"
    assert does(IncidentCause.FRAGMENTATION, RATE, severity) == "reserves 2.0 MiB per step beyond what its tensors need"


def test_dangerous_growth_leaks() -> None:
    assert does(IncidentCause.LEAK, RATE, Severity.CRITICAL) == "leaks 2.0 MiB per step"
    assert does(IncidentCause.HOST_MEMORY, RATE, Severity.CRITICAL) == "leaks 2.0 MiB per step of host memory"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("rank 1 leaks", "Rank 1 leaks"),
        ("done.", "Done."),
        ("train.py:88 allocates it", "train.py:88 allocates it"),
        ("append_loss keeps it", "append_loss keeps it"),
        ("queue.Queue(maxsize=8) fills", "queue.Queue(maxsize=8) fills"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_but_for_a_name_from_code(text: str, written: str) -> None:
    assert capitalised(text) == written


def test_a_group_of_ranks_is_named_where_the_job_has_several() -> None:
    of_first = incident(group_name="step 0")
    assert incident_sentence(of_first).replace("job 4711 (step 0)", "job 4711") == incident_sentence(incident())
    assert "of job 4711 (step 0) " in incident_sentence(of_first)
    again = replace(of_first, key=of_first.key._replace(job=JobKey("4711", 2, 1001)))
    assert "of job 4711 (step 0, attempt 2) " in incident_sentence(again)
    assert (job_and_run(again), job_and_run(incident())) == ("4711, step 0, attempt 2", "4711")


def test_a_job_without_a_scheduler_goes_by_the_name_that_its_owner_gave_it() -> None:
    made_up = incident(job_name="train", key=IncidentKey(JobKey("local-vm-1479-77", 0, 1001), IncidentCause.LEAK))
    assert "of job train " in incident_sentence(made_up)
    assert "of job local-vm-1479-77 " in incident_sentence(replace(made_up, job_name=None))
    assert job_and_run(made_up) == "train"


def test_a_task_of_an_array_goes_by_its_own_name() -> None:
    task = incident(job_name="llm", array_name="4811_3", key=IncidentKey(JobKey("4815", 0, 1001), IncidentCause.LEAK))
    assert "of job 4811_3 " in incident_sentence(task)
    assert (job_and_run(task), further_name(task)) == ("4811_3", "llm, 4815")


def test_growth_and_the_error_that_it_ended_in_name_each_other() -> None:
    assert other_half(died_of_oom()) == "ended in incident 2 (out_of_memory)"
    assert other_half(incident(OOM, number=2, grew_in=1)) == "follows the growth of incident 1"
    assert other_half(incident()) is None


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        (
            died_of_oom(),
            "Rank 1 of job 4711 ran out of GPU memory at 08:00:00 UTC (step 3,816), 28 s after the first forecast: "
            "wanted 20.0 MiB, 10.0 MiB free. It had leaked 12.0 MiB per step since step 40; the forecast of "
            "07:59:32 UTC said 17\u201328 s.",
        ),
        (
            died_of_oom(findings=FOUR, common=True, world_size=4, foreseen=None),
            "Rank 1 of job 4711 ran out of GPU memory at 08:00:00 UTC (step 3,816): wanted 20.0 MiB, 10.0 MiB free. "
            "All 4 ranks had leaked up to 12.0 MiB per step since step 40; no forecast had been made.",
        ),
        (
            incident(
                OOM,
                findings=(finding(1, oom=oom_record()),),
                state=IncidentState.CLOSED,
                closure=Closure.JOB_ENDED,
                closed_unix_s=NOW_S + 2.0,
                bytes_per_step=None,
                seconds_to_oom=None,
            ),
            "Rank 1 of job 4711 ran out of GPU memory at 08:00:00 UTC (step 200): wanted 512.0 MiB, 200.0 MiB free. "
            "The job ended by it.",
        ),
        (
            closed(Closure.JOB_ENDED),
            "Rank 1 of job 4711 had leaked 12.0 MiB per step since step 40 when the job ended; at that rate it would "
            "have run out of memory in 14\u201322 min.",
        ),
        (
            closed(Closure.RECOVERED, findings=FOUR[:2], seconds_to_oom=None),
            "Ranks 0 and 3 of job 4711 had leaked up to 12.0 MiB per step since step 40 when it stopped.",
        ),
        (
            closed(Closure.CULPRITS_ENDED, key=incident(IncidentCause.OUTSIDE_ALLOCATOR).key, seconds_to_oom=None),
            "Rank 1 of job 4711 had grown by 12.0 MiB per step outside PyTorch's allocator since step 40 when the "
            "ranks ended.",
        ),
    ],
)
def test_an_incident_that_has_ended_is_told_in_the_past_tense(about: Incident, sentence: str) -> None:
    assert incident_sentence(about) == sentence


def test_times_of_a_sentence_are_written_by_the_readers_clock() -> None:
    assert "at noon (step 3,816)" in incident_sentence(died_of_oom(), lambda _: "noon")


@pytest.mark.parametrize("at_unix_s", [math.inf, math.nan, 1e300, -1e300])
def test_a_time_that_no_calendar_has_is_left_out(at_unix_s: float) -> None:
    end = died_of_oom().ran_out
    assert end is not None
    odd = died_of_oom(ran_out=end._replace(oom=end.oom._replace(at_unix_s=at_unix_s)))
    assert "ran out of GPU memory at step 3,816" in incident_sentence(odd)


def test_the_end_in_an_error_is_told_with_its_figures() -> None:
    change = IncidentChange(ChangeKind.CLOSED, NOW_S, died_of_oom())
    assert change_in_words(change) == (
        "closed: rank 1 ran out of memory at step 3,816 (wanted 20.0 MiB, 10.0 MiB free)"
    )


@pytest.mark.parametrize("cause", list(IncidentCause))
def test_no_cause_that_has_ended_is_told_in_the_present_or_the_future(cause: IncidentCause) -> None:
    for about in (closed(Closure.JOB_ENDED, cause), died_of_oom(key=incident(cause).key)):
        told = incident_sentence(about)
        assert "runs out" not in told
        assert "{" not in told
