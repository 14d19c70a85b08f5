"""Evidence on a rank of this host: requested, followed, read, compared and printed."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Optional

from tidegauge.agent.evidence.checks import read_evidence
from tidegauge.agent.evidence.files import MAX_EVIDENCE_BYTES
from tidegauge.agent.evidence.making import ReadSnapshot, read_trace
from tidegauge.agent.evidence.piece import Whose, evidence_of
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.growth.diff import Comparison, compare
from tidegauge.cli.attach.process import AttachTarget
from tidegauge.cli.output import print_wrapped
from tidegauge.cli.snapshot.ranks import NoAnswerError, ask_rank, claimed_by, read_file, read_written, socket_of_target
from tidegauge.core.evidence import Evidence, EvidenceReason
from tidegauge.core.evidence.rank_evidence import RankEvidence, ids_so_far
from tidegauge.core.evidence.request import Window, evidence_request
from tidegauge.core.evidence.words import advice_of, because_lines, cause_words, evidence_sentence, holder_sentence
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.escalation import SEARCH_AND_TRIP_S
from tidegauge.core.incidents.wording import capitalised
from tidegauge.core.run_dirs import evidence_name
from tidegauge.core.text import one_line

LOOK_EVERY_S = 0.5
ANSWER_WITHIN_S = 15.0
SENTENCES: Mapping[str, str] = {
    "warming": "allocation history is on; first snapshot in a few steps",
    "recording": "recording steps",
    "searching": "searching for what holds the growing tensors",
}
"""Progress by the state in the answer to ``evidence_status``."""
MAX_SENTENCE_CHARS = 1000


def find_evidence(target: AttachTarget, *, max_events: int, say: Callable[[str], None]) -> Evidence:
    """Request a window of evidence, wait for its end, and read it. Of a search that takes longer than anybody waits,
    what it has found so far. Raises ``NoAnswerError``."""
    window, evidence_id = Window(), f"asked-{secrets.token_hex(8)}"
    request = evidence_request(evidence_id, EvidenceReason.ASKED, window, max_events=max_events)
    ask_rank(target, request, timeout_s=ANSWER_WITHIN_S)
    deadline_s = time.monotonic() + window.most_s + SEARCH_AND_TRIP_S
    question, told = {"command": "evidence_status", "id": evidence_id}, ""
    while True:
        answer = ask_rank(target, question, timeout_s=ANSWER_WITHIN_S)
        state = str(answer.get("state"))
        is_late = time.monotonic() >= deadline_s
        if state == "done" or (state == "searching" and is_late):
            return _read(target, evidence_id)
        if is_late:
            raise NoAnswerError(f"no evidence within {window.most_s + SEARCH_AND_TRIP_S:.0f} s (state {state})")
        if state != told:
            say(f"{SENTENCES.get(state, 'in progress')} (step {answer.get('step')})")
            told = state
        time.sleep(LOOK_EVERY_S)


def print_evidence(evidence: Evidence) -> None:
    """Print line, holder, cause, advice and problems."""
    holder = None if evidence.search is None else holder_sentence(evidence.search)
    cause = evidence.cause
    texts = [
        ("", evidence_sentence(evidence)),
        ("holder      ", holder),
        ("cause       ", cause_words(cause.cause, cause.confidence)),
        *(("because     ", sentence) for sentence in because_lines(evidence)),
        ("advice      ", advice_of(evidence)),
        *(("missing     ", capitalised(sentence)) for sentence in evidence.problems),
    ]
    for start, text in texts:
        if text:
            print_wrapped(start, one_line(text, MAX_SENTENCE_CHARS))


def _read(target: AttachTarget, evidence_id: str) -> Evidence:
    claimed = claimed_by(socket_of_target(target))
    try:
        found = read_evidence(read_file(target, evidence_name(claimed), MAX_EVIDENCE_BYTES), claimed)
    except UnsafeFileError as error:
        raise NoAnswerError(f"invalid evidence file: {error}") from error
    if found.evidence_id not in (evidence_id, *ids_so_far(evidence_id)):
        raise NoAnswerError("a newer evidence window has started; run this again")
    problems = [found.problem] if found.problem else []
    early = _snapshot(target, found.early_file, found, problems)
    late = _snapshot(target, found.late_file, found, problems)
    comparison = _compared(early, late, problems)
    seen = target.seen
    job = JobKey(one_line((seen.environ or {}).get("TIDEGAUGE_JOB_ID", "")), 0, seen.uid)
    return evidence_of(
        Whose(job, seen.rank or 0, socket.gethostname(), seen.process),
        found,
        comparison,
        early_step=found.early_step,
        late_step=found.late_step,
        at_unix_s=found.ended_unix_s,
        problems=tuple(problems),
    )


def _snapshot(
    target: AttachTarget, name: Optional[str], found: RankEvidence, problems: list[str]
) -> Optional[ReadSnapshot]:
    if name is None:
        return None
    try:
        return read_trace(read_written(target, name)[1], found.device)
    except (NoAnswerError, BadTraceError) as error:
        problems.append(str(error))
        return None


def _compared(early: Optional[ReadSnapshot], late: Optional[ReadSnapshot], problems: list[str]) -> Optional[Comparison]:
    if early is None or late is None or early.trace is None or late.trace is None:
        return None
    try:
        return compare(early.trace, late.trace)
    except BadTraceError as error:
        problems.append(str(error))
        return None
