"""Evidence thread: packs a window's snapshots, finds blocks that grew and their holders, writes the files."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from tidegauge.core.evidence.owners import CodeRoots
from tidegauge.core.evidence.rank_evidence import (
    NO_FACTS,
    HolderKind,
    HolderSearch,
    RankEvidence,
    RankFacts,
    ids_so_far,
)
from tidegauge.core.run_dirs import EARLY_SUFFIX, LATE_SUFFIX
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.probe.evidence.grown_blocks import GrownBlocks, grown_blocks
from tidegauge.probe.evidence.loading import EVIDENCE_MODULES, load
from tidegauge.probe.evidence.recorded_window import WindowPhase
from tidegauge.probe.evidence.snapshot_packing import let_go, pack_columns
from tidegauge.probe.evidence.window import EvidenceWindow
from tidegauge.probe.faults import describe
from tidegauge.probe.pacing import Pacer, StoppedError
from tidegauge.probe.run_files.evidence_files import EvidenceFiles

TELL_AFTER_S = (60.0, 600.0)
"""Since the search began. Where steps are slow it takes many minutes: what is known is told meanwhile, first the line
and what names of the program led to. Most searches are over sooner."""
SoFar = Callable[[float, Callable[[], HolderSearch]], None]
"""Called again and again while a search goes on, with its seconds and a function that sums up what it has found."""


class Searches(NamedTuple):
    """Functions that search the job's own objects."""

    search: Callable[[Sequence[tuple[int, int]], Pacer, SoFar], HolderSearch]
    """For what holds the blocks, given as (address, bytes)."""
    facts: Callable[[Pacer], RankFacts]


class _Kept(NamedTuple):
    step: int
    packed: PackedSnapshot
    file: Optional[str]
    """Its name; ``None``: it could not be written."""


def gather(window: EvidenceWindow, files: EvidenceFiles, looks: Searches) -> None:
    """Follow ``window`` to its end and write its files, none if it was stopped. Returns when all is done."""
    work = _Work(window, files, looks)
    try:
        files.remove_evidence()  # of an earlier window
        evidence = work.evidence()
        window.problem = evidence.problem
        files.write_evidence(evidence)
    except StoppedError:
        files.remove_evidence()
    except Exception as error:
        window.problem = f"no evidence could be written ({describe(error)})"
        raise
    finally:
        window.phase = WindowPhase.DONE


class _Work:
    def __init__(self, window: EvidenceWindow, files: EvidenceFiles, looks: Searches) -> None:
        self._window = window
        self._files = files
        self._looks = looks
        self._pacer = Pacer(lambda: window.stopped)
        self._problems: list[str] = []
        self._search_failed = False

    def evidence(self) -> RankEvidence:
        """The findings, once the window is over. Raises ``StoppedError``."""
        load(EVIDENCE_MODULES, self._pacer)
        roots = roots_or_none(self._pacer, self._problems)
        self._window.open()
        early = self._next(EARLY_SUFFIX)
        early_facts = self._facts() if early is not None else NO_FACTS
        late = self._next(LATE_SUFFIX) if early is not None else None
        self._pacer.rest()
        grown = self._grown(early, late)
        window = self._window
        known = RankEvidence(
            evidence_id=window.ask.evidence_id,
            reason=window.ask.reason,
            device=grown.device if grown is not None else _device(early),
            began_unix_s=window.began_unix_s,
            ended_unix_s=window.began_unix_s,
            began_step=window.began_step,
            early_step=early.step if early is not None else None,
            late_step=late.step if late is not None else None,
            early_file=early.file if early is not None else None,
            late_file=late.file if late is not None else None,
            longest_stall_s=window.longest_stall_s,
            early_facts=early_facts,
            roots=roots,
        )
        search = self._search(grown, known) if grown is not None and window.ask.holders else None
        known = replace(known, search=search, search_failed=self._search_failed, facts=self._facts())
        self._pacer.rest()
        return self._ended_now(known)

    def _ended_now(self, evidence: RankEvidence) -> RankEvidence:
        problems = dict.fromkeys(filter(None, [self._window.problem, *self._problems]))
        ended_unix_s = max(time.time(), evidence.began_unix_s)  # somebody may have set the clock back meanwhile
        return replace(evidence, ended_unix_s=ended_unix_s, problem="; ".join(problems) or None)

    def _grown(self, early: Optional[_Kept], late: Optional[_Kept]) -> Optional[GrownBlocks]:
        if early is None or late is None:
            return None
        return grown_blocks(early.packed, late.packed, self._pacer, step_began_us=self._window.step_began_us)

    def _next(self, suffix: str) -> Optional[_Kept]:
        raw = self._window.next_snapshot()
        if raw is None:
            return None
        packed = pack_columns(raw, self._pacer)
        let_go(raw, self._pacer)
        file = None
        try:
            file, _ = self._files.write_snapshot(suffix, packed, self._pacer)
        except OSError as error:
            self._problems.append(f"the snapshot at step {raw.step} could not be written ({describe(error)})")
        return _Kept(raw.step, packed, file)

    def _search(self, grown: GrownBlocks, known: RankEvidence) -> Optional[HolderSearch]:
        """What holds the blocks. While that takes long, ``known`` is told with what was found so far."""
        due = deque(zip(TELL_AFTER_S, ids_so_far(known.evidence_id)))
        told: list[tuple[str, ...]] = []

        def sure(found: HolderSearch) -> HolderSearch:
            return _unsure_of_locals(found) if grown.in_progress else found

        def tell(took_s: float, sum_up: Callable[[], HolderSearch]) -> None:
            if not due or took_s < due[0][0]:
                return
            _, evidence_id = due.popleft()
            try:
                found = sure(sum_up())
                holders = tuple(holder.path for holder in found.holders)
                if holders not in told:
                    told.append(holders)
                    so_far = replace(known, evidence_id=evidence_id, search=found, searching=True)
                    self._files.write_evidence(self._ended_now(so_far))
            except Exception as error:  # the search itself goes on
                due.clear()
                self._problems.append(f"what was found meanwhile could not be written ({describe(error)})")

        try:
            return sure(self._looks.search(grown.blocks, self._pacer, tell))
        except StoppedError:
            raise
        except Exception as error:
            self._problems.append(f"the search for holders failed ({describe(error)})")
            self._search_failed = True
            return None

    def _facts(self) -> RankFacts:
        try:
            return self._looks.facts(self._pacer)
        except StoppedError:
            raise
        except Exception as error:
            self._problems.append(f"some facts of the process could not be read ({describe(error)})")
            return NO_FACTS


def roots_or_none(pacer: Pacer, problems: list[str]) -> Optional[CodeRoots]:
    """The folders of the process's libraries, or a problem more. Raises ``StoppedError``."""
    from tidegauge.probe.code_roots import take_roots  # here, for a process that never looks

    try:
        return take_roots(pacer.pace)
    except StoppedError:
        raise
    except Exception as error:
        problems.append(f"the folders of libraries could not be read ({describe(error)})")
        return None


def _unsure_of_locals(found: HolderSearch) -> HolderSearch:
    """The next step replaces a local of the step in progress, with a block at the same address or of its size."""
    unsure = (HolderKind.FRAME, HolderKind.THREAD)
    holders = (one._replace(by_size_bytes=one.held_bytes) if one.kind in unsure else one for one in found.holders)
    return found._replace(holders=tuple(holders))


def _device(early: Optional[_Kept]) -> int:
    devices = early.packed.devices if early is not None else ()
    return devices[0].device if devices else 0
