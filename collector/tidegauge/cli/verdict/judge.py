"""Judges one job, or one process, of this machine as a service does: with agent, coordinator and escalation, but in
one process, without Ray, SQL and HTTP.

Needs the standard library alone. NVML (memory outside PyTorch) is read where nvidia-ml-py is installed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, NamedTuple

from tidegauge.agent.direct_reporter import DirectReporter
from tidegauge.agent.evidence.attempts import EvidenceAttempts
from tidegauge.agent.evidence.budget import EvidenceBudget
from tidegauge.agent.evidence.collector import EvidenceCollector
from tidegauge.agent.evidence.growth_bounds import GrowthBounds
from tidegauge.agent.evidence.making import job_of, read_trace
from tidegauge.agent.evidence.node_profiles import PROFILES_FOLDER, NodeProfiles
from tidegauge.agent.evidence.profiled_ranks import ProfiledRanks
from tidegauge.agent.evidence.snapshot_archive import Keeping, SnapshotArchive
from tidegauge.agent.evidence.snapshot_store import snapshot_key
from tidegauge.agent.evidence.waiting import WaitingEvidence, WaitingProfiles
from tidegauge.agent.node_agent import NodeAgent
from tidegauge.agent.ports import GpuSource, SystemClock
from tidegauge.agent.processes.host_memory import open_host_memory
from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.agent.rings.new_rings import Wanted
from tidegauge.agent.runner import AgentRunner
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.escalation_loop import EscalationLoop
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.core.evidence import Evidence, SnapshotRef
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.evidence import newest_of_ranks, news_of, with_bounds
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile_policy import ProfilePolicy, ProfileRules
from tidegauge.core.snapshot_columns import unpack
from tidegauge.core.views import RankView, with_fields

if TYPE_CHECKING:
    from tidegauge.cluster.store import KeptEvidence
    from tidegauge.core.allocator.trace import Trace
    from tidegauge.core.jobs.settings import JobSettings

PERIOD_S = 0.5
"""Of polls and reports, as of a service's agent."""
EVIDENCE_TURN_S = 2.0
EVIDENCE_WITHIN_S = 20.0
"""For what a rank wrote before it ended to be read and compared."""
MAX_SNAPSHOTS = 8
"""Of the job, kept in memory for the report."""
PROFILE_RULES = ProfileRules(few_ranks=1)
"""One line is told: the fullest and the emptiest rank are enough for it, and leave room among the snapshots."""
_NODE, _INCARNATION = "here", "run"
_FOR_GOOD_S = 1e9


class _Settings(NamedTuple):
    cluster: str = ""
    linger_s: float = _FOR_GOOD_S
    """Ranks that ended are part of the verdict, and their files are left to the probe."""
    poll_period_s: float = PERIOD_S


def ranks_of(job_id: str) -> Wanted:
    """The ranks that say that they are of this job."""
    return lambda _, who: who is not None and who.job_id == job_id


class Found(NamedTuple):
    """A piece of evidence on one rank."""

    evidence: Evidence
    brief: EvidenceBrief
    traces: Callable[[], Sequence[Trace]]
    """Reads its snapshots, the earlier one first, as far as they could be kept; takes up to a second."""


class Judge:
    """``start`` begins to poll in threads, ``look`` takes in evidence and asks for it; ``end`` is the last look.

    ``has_nvml``: whether nvidia-ml-py is installed. ``ranks``, ``found`` and ``memory`` answer at any time,
    ``profiles`` after ``end``: there are some with ``asks_for_profiles`` only. Raises ``OSError`` where there is no
    temporary folder.
    """

    def __init__(self, wanted: Wanted, *, run_dirs: Sequence[Path], asks_for_profiles: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidegauge-run-"))
        hostname, clock = gethostname(), SystemClock()
        self._snapshots = _SnapshotsInMemory()
        self._collector = EvidenceCollector(
            self._snapshots,
            WaitingEvidence(self._folder),
            EvidenceAttempts(self._folder),
            EvidenceBudget(),
            GrowthBounds(self._folder),
            hostname=hostname,
            clock=clock,
            profiles=_profiles(self._folder / PROFILES_FOLDER) if asks_for_profiles else None,
        )
        self._profiled: dict[ProcessId, RankProfile] = {}
        self._outside: dict[ProcessId, int] = {}
        self.has_nvml = find_spec("pynvml") is not None
        procs = ProcFs()
        self._agent = NodeAgent(
            _Settings(),
            hostname=hostname,
            gpus=_gpus() if self.has_nvml else None,
            procs=procs,
            search_procs=ProcFs(),
            clock=clock,
            run_dirs=run_dirs,
            evidence=self._collector,
            host_memory=open_host_memory(procs),
            wanted=wanted,
        )
        self._coordinator = Coordinator(
            wall_s=time.time, monotonic_s=time.monotonic, incarnation=_INCARNATION, linger_s=_FOR_GOOD_S
        )
        self._runner = AgentRunner(
            self._agent,
            DirectReporter(self._coordinator.report),
            _NoSettings(),
            poll_period_s=PERIOD_S,
            report_period_s=PERIOD_S,
            node_id=_NODE,
            incarnation=_INCARNATION,
        )
        self._table = _EvidenceInMemory()
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="tidegauge-evidence-asks")
        self._escalation = EscalationLoop(
            self._coordinator,
            lambda: self._table,
            asks=EvidenceAsks(self._folder / "asks"),
            now_s=time.time,
            submit=self._workers.submit,
        )
        self._turn_s = float("-inf")

    def start(self) -> None:
        self._runner.start()

    def look(self) -> None:
        """Ask suspected ranks for evidence, and take in what came. Costs next to nothing most times."""
        now_s = time.monotonic()
        if now_s - self._turn_s >= EVIDENCE_TURN_S:
            self._turn_s = now_s
            self._escalation.turn()
            self._take_profiles()
            self.ranks()

    def end(self) -> None:
        """Read what the ranks have written to their end."""
        self._runner.stop()
        for _ in range(2):  # the first sees that they have ended, the second reads what they wrote until then
            self._agent.poll()
        self._collector.wait_idle(EVIDENCE_WITHIN_S)
        self._agent.poll()  # the bound of a growth may be known now
        self._coordinator.report(self._agent.summary(node_id=_NODE, incarnation=_INCARNATION, metrics_address=None))
        self._escalation.turn()
        self._take_profiles()

    def pause(self) -> None:
        """Poll no more."""
        self._runner.stop()

    def read(self) -> tuple[RankView, ...]:
        """Instead of ``start``, or after ``pause``: read once what the ranks have written, and judge nothing."""
        for _ in range(2):  # the first sees who has ended, the second what they wrote until then
            self._agent.poll()
        return self.ranks()

    def close(self) -> None:
        self._runner.stop()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._agent.close()
        self.discard()

    def discard(self) -> None:
        """Remove the temporary folder, whatever still runs."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def ranks(self) -> tuple[RankView, ...]:
        """The ranks of the latest attempt, in the order of their numbers; of a rank that was started again in place the
        last process, with the peak of all. Memory outside PyTorch is the highest of all looks so far, as a service
        records it: NVML knows nothing of a process that has ended."""
        ranks = self._agent.view().ranks
        latest = max((rank.identity.attempt for rank in ranks), default=0)
        return tuple(
            self._with_highest_outside(_with_peak_of_all(rank)) for rank in ranks if rank.identity.attempt == latest
        )

    def _with_highest_outside(self, rank: RankView) -> RankView:
        known = [size for size in (rank.nontorch_bytes, self._outside.get(rank.process)) if size is not None]
        if not known:
            return rank
        highest = self._outside[rank.process] = max(known)
        return with_fields(rank, nontorch_bytes=highest)

    def profiles(self) -> Mapping[ProcessId, RankProfile]:
        """The last memory profile of each rank that has one."""
        return self._profiled

    def _take_profiles(self) -> None:
        waiting = self._coordinator.profiles.waiting()
        self._profiled.update({one.process: one for one in waiting.values() if one.has_profile})
        self._coordinator.profiles.keep(waiting)

    def found(self) -> Mapping[ProcessId, Found]:
        """The piece of evidence on each rank that says most."""
        views = {view.key.whole: view for view in self._coordinator.jobs() if view.ranks}
        of_process: dict[ProcessId, list[Evidence]] = {}
        for piece in self._table.pieces():
            of_process.setdefault(piece.process, []).append(piece)
        found: dict[ProcessId, Found] = {}
        for process, pieces in of_process.items():
            view = views.get(pieces[0].job.whole)
            news = list(map(news_of, pieces))
            [best] = newest_of_ranks(news if view is None else with_bounds(news, view))
            evidence = next(piece for piece in pieces if piece.evidence_id == best.brief.evidence_id)
            refs = sorted(evidence.snapshots, key=lambda ref: ref.step)
            told = replace(evidence, snapshots=(), bound=best.brief.bound)
            found[process] = Found(told, best.brief, partial(self._snapshots.traces, refs))
        return found

    def memory(self, rank: RankView) -> tuple[MemoryPoint, ...]:
        """The rank's memory over time."""
        number = int(rank.identity.rank)
        for job in self._coordinator.jobs():
            if any(one.process == rank.process for one in job.ranks):
                of_group = self._coordinator.memory(job.job_id, job.attempt, rank.uid, group=job.group, rank=number)
                return of_group.get(number, ())
        return ()


def _with_peak_of_all(rank: RankView) -> RankView:
    fullest = max((rank, *rank.hidden), key=lambda one: one.highest_reserved_bytes)
    return with_fields(
        rank,
        reserved_peak_bytes=fullest.highest_reserved_bytes,
        nontorch_bytes=fullest.nontorch_bytes,
        limit_bytes=fullest.limit_bytes,
    )


def _profiles(folder: Path) -> NodeProfiles:
    return NodeProfiles(WaitingProfiles(folder), ProfiledRanks(folder), policy=ProfilePolicy(PROFILE_RULES))


class _SnapshotsInMemory(SnapshotArchive):
    """Keeps the last snapshots instead of storing them: they are wanted for one report."""

    def __init__(self) -> None:
        super().__init__(None, Keeping(0.0, 0), EvidenceBudget(), cluster="")
        self.works = True
        self._contents: dict[str, bytes] = {}

    def keep(
        self,
        view: RankView,
        content: bytes,
        *,
        step: int,
        at_unix_s: float,
        now_s: float,  # noqa: ARG002 - the archive's
        now_unix_s: float,  # noqa: ARG002
        protected: Collection[str],  # noqa: ARG002
    ) -> SnapshotRef:
        key = snapshot_key(
            cluster="", job=job_of(view), rank=int(view.identity.rank), step=step, at_unix_s=at_unix_s
        )  # fmt: skip
        self._contents[key] = zlib.compress(content, 1)
        while len(self._contents) > MAX_SNAPSHOTS:
            del self._contents[next(iter(self._contents))]
        return SnapshotRef(key, "", step, at_unix_s, len(content))

    def keys(self) -> frozenset[str]:
        return frozenset(self._contents)

    def traces(self, refs: Sequence[SnapshotRef]) -> list[Trace]:
        contents = [self._contents[ref.key] for ref in refs if ref.key in self._contents]
        traces = [read_trace(unpack(zlib.decompress(content)), None).trace for content in contents]
        return [trace for trace in traces if trace is not None]


class _EvidenceInMemory:
    """The ``EvidenceTable`` of one job."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[JobKey, str], Evidence] = {}

    def pieces(self) -> Sequence[Evidence]:
        return list(self._pieces.values())

    def keep(self, pieces: Sequence[Evidence], *, at_s: float) -> Collection[Evidence]:  # noqa: ARG002 - the table's
        new = {(piece.job, piece.evidence_id): piece for piece in pieces}
        self._pieces.update(new)
        return list(new.values())

    def recent(self, *, since_s: float, limit: int) -> Iterator[KeptEvidence]:  # noqa: ARG002
        return iter(())

    def of_open_incidents(self, *, limit: int) -> Iterator[KeptEvidence]:  # noqa: ARG002
        return iter(())

    def open_among(self, jobs: Collection[JobKey]) -> frozenset[JobKey]:
        return frozenset(jobs)


class _NoSettings:
    """No settings are laid down for later attempts."""

    def digest(self) -> str:
        return ""

    def write(self, wanted: Collection[JobSettings]) -> None:
        pass


def _gpus() -> GpuSource | None:
    from tidegauge.agent.nvml import open_nvml

    return open_nvml()
