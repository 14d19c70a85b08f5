"""The one place that assembles a piece of evidence: for the agent, ``tidegauge snapshot`` and ``report``.

Whatever comes from the job, code lines above all, is made printable and bounded here, so that no caller can forget to:
cause and advice texts quote it, and terminals, pages and messages show it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Optional

from tidegauge.analysis.growth.diff import Comparison
from tidegauge.core.evidence import MAX_FRAMES, MAX_GROWTHS, MAX_LIVE, Evidence, SnapshotRef, StackGrowth
from tidegauge.core.evidence.bound_finding import find_bound
from tidegauge.core.evidence.brief import Confidence
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.causes import name_cause, not_known
from tidegauge.core.evidence.ledger import LinesByBlock, nodes_grown, without_addresses, without_still_graphs
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS, NO_FACTS, HolderSearch, RankEvidence
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.text import one_line

_NOTHING = CauseInput()


class Whose(NamedTuple):
    """The rank that a piece of evidence is about, as kernel and scheduler identify it."""

    job: JobKey
    rank: int
    hostname: str
    process: ProcessId


def evidence_of(
    whose: Whose,
    found: Optional[RankEvidence],
    comparison: Optional[Comparison],
    *,
    beside: CauseInput = _NOTHING,
    early_step: Optional[int] = None,
    late_step: Optional[int] = None,
    at_unix_s: float,
    snapshots: Sequence[SnapshotRef] = (),
    problems: Sequence[str] = (),
    most_growths: Optional[int] = MAX_GROWTHS,
) -> Evidence:
    """Make evidence from what the rank ``found``, already bounded (``checks``), and a comparison of its snapshots.

    ``beside`` has what else is known for naming the cause: verdict, readings, children. ``most_growths``: ``None`` for
    all stacks, where the piece is not sent anywhere.
    """
    growth = () if comparison is None else _tamed(comparison.growth)
    if comparison is not None:
        beside = beside._replace(
            grown_bytes=comparison.grown_bytes,
            reserved_grown_bytes=comparison.reserved_grown_bytes,
            unused_bytes=comparison.unused_bytes,
            early_pools=comparison.early_pools,
            late_pools=comparison.late_pools,
            pools_line=None if comparison.pools_line is None else _tame_line(comparison.pools_line),
        )
    case = beside._replace(
        roots=None if found is None else found.roots,
        growth=growth,
        window_steps=None if early_step is None or late_step is None else late_step - early_step,
        search=None if found is None else _grown_search(found),
        facts=NO_FACTS if found is None else found.facts,
        early_facts=NO_FACTS if found is None else found.early_facts,
        late_step=late_step,
        live_bytes=None if comparison is None else comparison.late_live_bytes,
        workspaces=None if comparison is None else comparison.workspaces,
        lines_by_block={} if comparison is None else _tamed_lines(comparison.lines_by_block),
    )
    # The line that is told is the holder's, whose blocks it allocated.
    growth = tuple(sorted(growth, key=lambda one: case.line is None or one.line != case.line))
    through = None if comparison is None else _through(comparison, growth)
    case = case._replace(growth=growth, through=through, search=_told_first(case))
    problems = (*problems, *_of_search(case.search))
    searching = found is not None and found.searching
    cause = not_known(case) if searching else name_cause(case)
    return Evidence(
        evidence_id="files" if found is None else found.evidence_id,
        job=whose.job,
        rank=whose.rank,
        hostname=whose.hostname,
        process=whose.process,
        reason="asked" if found is None else found.reason,
        began_step=(early_step or 0) if found is None else found.began_step,
        at_unix_s=at_unix_s,
        early_step=early_step,
        late_step=late_step,
        grown_bytes=case.grown_bytes,
        growth=tuple(one for one in growth if one.grown_bytes > 0)[:most_growths],
        through=through,
        live=() if comparison is None else _tamed(comparison.live[: None if most_growths is None else MAX_LIVE]),
        early_pools=case.early_pools,
        late_pools=case.late_pools,
        search=None if case.search is None else without_addresses(case.search),
        unfinished=cause.confidence is not Confidence.NAMED and _is_unfinished(found),
        searching=searching,
        facts=case.facts,
        cause=cause,
        bound=None if searching else find_bound(case),
        snapshots=tuple(snapshots),
        longest_stall_s=0.0 if found is None else found.longest_stall_s,
        problems=tuple(one_line(problem, MAX_TEXT_CHARS) for problem in problems),
    )


def evidence_of_one(
    whose: Whose,
    evidence_id: str,
    comparison: Optional[Comparison],
    *,
    step: int,
    at_unix_s: float,
    snapshots: Sequence[SnapshotRef] = (),
    problems: Sequence[str] = (),
) -> Evidence:
    """Make evidence from one requested snapshot, compared with itself: its live memory, and nothing about growth."""
    piece = evidence_of(
        whose, None, None, late_step=step, at_unix_s=at_unix_s, snapshots=snapshots, problems=problems
    )  # fmt: skip
    live = () if comparison is None else _tamed(comparison.live[:MAX_LIVE])
    return dataclasses.replace(piece, evidence_id=evidence_id, began_step=step, live=live)


def _through(comparison: Comparison, growth: Sequence[StackGrowth]) -> Optional[CodeLine]:
    """The line that nearly all growth came through; where that is the growing line itself, its caller if it has one."""
    first = growth[0].line if growth else None
    through = None if comparison.through is None else _tame_line(comparison.through)
    if through not in (None, first):
        return through
    callers = (
        _tame_line(one.caller)
        for one in comparison.lines
        if one.line is not None and one.caller is not None and _tame_line(one.line) == first
    )
    return next(callers, None) or through


def _grown_search(found: RankEvidence) -> Optional[HolderSearch]:
    if found.search is None:
        return None
    return without_still_graphs(found.search, nodes_grown(found.early_facts, found.facts), found.roots)


def _told_first(case: CauseInput) -> Optional[HolderSearch]:
    """The search with the holder that explains the growth in front."""
    if case.search is None:
        return None
    holders = sorted(case.search.holders, key=lambda one: one != case.holder)
    return case.search._replace(holders=tuple(holders))


def _of_search(search: Optional[HolderSearch]) -> tuple[str, ...]:
    return () if search is None or search.problem is None else (f"the holder search is incomplete: {search.problem}",)


def _is_unfinished(found: Optional[RankEvidence]) -> bool:
    return found is not None and (found.search_failed or (found.search is not None and found.search.unfinished))


def _tamed_lines(lines: LinesByBlock) -> LinesByBlock:
    tamed = {line: _tame_line(line) for line in {line for line in lines.values() if line is not None}}
    return {block: None if line is None else tamed[line] for block, line in lines.items()}


def _tamed(growths: Sequence[StackGrowth]) -> tuple[StackGrowth, ...]:
    """With printable lines of bounded length: file names and functions are the job's."""
    return tuple(
        one._replace(
            stack=tuple(map(_tame_line, one.stack[:MAX_FRAMES])),
            line=None if one.line is None else _tame_line(one.line),
        )
        for one in growths
    )


def _tame_line(line: CodeLine) -> CodeLine:
    return CodeLine(one_line(line.filename, MAX_TEXT_CHARS), line.line, one_line(line.function, MAX_TEXT_CHARS // 2))
