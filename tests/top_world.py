"""A made-up cluster for ``tidegauge top``: a real coordinator that was told two hours of it, and the real pages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from loop_store import FakeAudit, FakeIncidents, FakeStore
from sample_views import GIB, LEAK, MIB, NOW_S, gpu_view, identity, rank_summary, uuid_of
from scheduler_values import decision, finding, incident, record
from tidegauge.cli.errors import CommandError
from tidegauge.cli.top.service import Service
from tidegauge.cluster.api.http_api import (
    BadRequestError,
    HttpApi,
    NotFoundError,
    Request,
    Route,
    UnavailableError,
    json_route,
)
from tidegauge.cluster.api.loop_api import loop_routes
from tidegauge.cluster.api.memory_api import memory_routes
from tidegauge.cluster.api.overview_api import KEPT_S, Kept, OverviewReads
from tidegauge.cluster.api.record_api import RecordPages
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.core.ids import DeviceUuid, JobId, JobKey, ProcessId
from tidegauge.core.incidents import ChangeKind, IncidentCause, IncidentChange
from tidegauge.core.incidents.actions import ActionKind, Disposition, LoopStatus, Outcome
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import GpuView, NodeSummary, RankSummary

LIFE_S = 7200.0
REPORTS = 240
GPUS_A_NODE = 8

LEAKS = LEAK._replace(onset_step=4_310, suspect_step=4_380, alarm_step=4_520)
FRAGMENTS = Verdict(
    LeakState.LEAK, Severity.WARNING, Signal.RESERVED, "reserved_growth", 9_100, 9_200, 9_400,
    bytes_per_step=Band(1.1 * MIB, 1.4 * MIB, 1.9 * MIB), grown_bytes=9 * GIB,
    steps_to_oom=Band(30_000, 40_000, 55_000), seconds_to_oom=Band(19_000, 25_000, 34_000),
)  # fmt: skip
SUSPECTED = Verdict(
    LeakState.SUSPECTED, Severity.WARNING, Signal.NONTORCH, "outside_allocator", 1_200, 1_300, None,
    bytes_per_step=Band(3 * MIB, 9 * MIB, 30 * MIB), steps_to_oom=Band(900, 4_000, 20_000),
    seconds_to_oom=Band(2_000, 7_900, math.inf),
)  # fmt: skip
BUFFER = LEAK._replace(
    severity=Severity.NOTE, bytes_per_step=Band(20_000, 24_000, 30_000), seconds_to_oom=Band(3.0e6, 4.0e6, 5.0e6),
    steps_to_oom=None,
)  # fmt: skip


@dataclass(frozen=True)
class MadeUpJob:
    """A job on ``ranks`` GPUs from ``first_gpu`` of the cluster on, and how the memory of its ranks goes."""

    job_id: str
    name: str | None
    user: str
    uid: int
    scheduler: str | None
    first_gpu: int
    ranks: int
    base_bytes: float
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    attempt: int = 0
    steps_a_report: int = 60
    wave: float = 0.05
    ended: bool = False
    run_id: str | None = None
    """Jobs of one id and user that differ in it are launches side by side."""
    attempts_each: int = 1

    def rank(self, number: int, share_of_life: float, report: int) -> RankSummary:
        """One rank after so much of its life."""
        verdict = self.verdicts.get(number, OK)
        grown = max(share_of_life - 0.3, 0.0) / 0.7
        gains = dict.fromkeys(Signal, 0.0)
        if verdict.signal is not None:
            gains[verdict.signal] = grown * (9.0 if verdict.state is LeakState.SUSPECTED else 24.0) * GIB
            if verdict.severity is Severity.NOTE:
                gains[verdict.signal] *= 0.2
        warm = min(share_of_life / 0.04, 1.0)
        swing = 1.0 + self.wave * math.sin(report * 0.9 + number * 1.7)
        allocated = self.base_bytes * warm * swing + gains[Signal.ALLOCATED]
        cached = 0.08 * self.base_bytes * warm + gains[Signal.RESERVED] + gains[Signal.ALLOCATED] * 0.02
        step = (report + 1) * self.steps_a_report
        return rank_summary(
            number,
            identity=identity(
                number, job_id=JobId(self.job_id), attempt=self.attempt, job_name=self.name, scheduler=self.scheduler,
                world_size=self.ranks, run_id=self.run_id, attempts_each=self.attempts_each,
            ),
            process=ProcessId(20_000 + 100 * self.first_gpu + number, 5_000 + number),
            uid=self.uid,
            user_name=self.user,
            gpu=(self.first_gpu + number) % GPUS_A_NODE,
            uuid=uuid_of(self.first_gpu + number),
            step=step,
            allocated_bytes=int(allocated),
            reserved_bytes=int(allocated + cached),
            nontorch_bytes=int(1.4 * GIB * warm + gains[Signal.NONTORCH]),
            host_rss_bytes=int(11 * GIB),
            last_sample_unix_s=NOW_S - LIFE_S * (1.0 - share_of_life),
            verdict=verdict if share_of_life == 1.0 else OK,
            alive=not (self.ended and share_of_life == 1.0),
        )  # fmt: skip


JOBS = (
    MadeUpJob("48211", "llm-pretrain-7b", "ada", 1001, "slurm", 0, 16, 38 * GIB, {11: LEAKS}),
    MadeUpJob("48219", "vit-huge-finetune", "grace", 1002, "slurm", 16, 8, 30 * GIB,
              dict.fromkeys(range(8), FRAGMENTS), steps_a_report=76),
    MadeUpJob("research/ppo-4", "ppo-4", "linus", 1003, "kubernetes", 24, 4, 22 * GIB, {2: SUSPECTED}, wave=0.15),
    MadeUpJob("48230", "diffusion-xl", "ada", 1001, "slurm", 28, 4, 70 * GIB, wave=0.01, attempt=2),
    MadeUpJob("48231", "moe-8x3b", "barbara", 1004, "slurm", 32, 16, 51 * GIB, {5: BUFFER}, wave=0.02),
    MadeUpJob("raysubmit_Xq3c9mKc2bZ", "tune-lr", "grace", 1002, "ray", 48, 2, 9 * GIB, wave=0.2),
    MadeUpJob("48190", "asr-conformer", "edsger", 1005, "slurm", 50, 2, 17 * GIB),
    MadeUpJob("run-7f3a", None, "linus", 1003, None, 52, 1, 4 * GIB, ended=True),
)  # fmt: skip


class World:
    """The coordinator, the incidents, and the API's routes."""

    def __init__(self, jobs: tuple[MadeUpJob, ...] = JOBS) -> None:
        self.jobs = jobs
        self.elapsed_s = 0.0
        self.coordinator = Coordinator(
            wall_s=lambda: NOW_S - LIFE_S + self.elapsed_s, monotonic_s=lambda: self.elapsed_s, incarnation="c"
        )
        self.store = FakeStore()
        self.status = LoopStatus("observe", None)
        self.problem: str | None = None
        """Why nobody answers."""
        self.asked: list[str] = []
        self.wishes: list[tuple[JobKey, int, Mapping[str, Any]]] = []
        """What ranks were asked for."""
        self.sent: list[tuple[str, dict[str, str]]] = []
        """Forms that were sent, by path."""
        self.switched: list[tuple[str, str | None]] = []
        """How the switch of all actions was set, and why."""

    def live(self, reports: int = REPORTS) -> World:
        """Two hours pass."""
        for report in range(reports):
            share = (report + 1) / reports
            self.elapsed_s = LIFE_S * share
            self.report(share, report)
        return self

    def report(self, share: float, report: int) -> None:
        nodes: dict[int, list[RankSummary]] = {}
        for job in self.jobs:
            for number in range(job.ranks):
                node = (job.first_gpu + number) // GPUS_A_NODE
                nodes.setdefault(node, []).append(job.rank(number, share, report))
        for node, ranks in nodes.items():
            self.report_one(*ranks, node_id=f"{node:02d}", gpus=_gpus(node, ranks))

    def report_one(self, *ranks: RankSummary, node_id: str, gpus: tuple[GpuView, ...] = ()) -> None:
        """One agent's report, now."""
        now_s = NOW_S - LIFE_S + self.elapsed_s
        self.coordinator.report(
            NodeSummary(f"id-{node_id}", f"gpu-node-{node_id}", 321, "i", None, now_s, tuple(ranks), gpus)
        )

    def tell_incidents(self) -> World:
        """Three of them, with what the policy would do."""
        leak = incident(
            number=12, job=JobKey("48211", 0, 1001), job_name="llm-pretrain-7b", scheduler="slurm", world_size=16,
            findings=(finding(11, hostname="gpu-node-01", step=14_400, verdict=LEAKS),), onset_step=4_310,
            opened_unix_s=NOW_S - 1_500.0,
        )  # fmt: skip
        fragments = incident(
            IncidentCause.FRAGMENTATION, number=11, job=JobKey("48219", 0, 1002), user_name="grace",
            job_name="vit-huge-finetune", scheduler="slurm", world_size=8, severity=Severity.WARNING,
            worst_severity=Severity.WARNING, common=True,
            findings=tuple(finding(rank, hostname="gpu-node-02", verdict=FRAGMENTS) for rank in range(8)),
            bytes_per_step=FRAGMENTS.bytes_per_step, seconds_to_oom=FRAGMENTS.seconds_to_oom, onset_step=9_100,
            opened_unix_s=NOW_S - 4_000.0,
        )  # fmt: skip
        changes = [
            IncidentChange(ChangeKind.OPENED, NOW_S - 4_000.0, fragments),
            IncidentChange(
                ChangeKind.OPENED, NOW_S - 1_500.0,
                replace(leak, severity=Severity.WARNING, updated_unix_s=NOW_S - 1_500.0),
            ),
            IncidentChange(ChangeKind.ESCALATED, NOW_S - 600.0, leak),
        ]  # fmt: skip
        told = decision(
            incident=leak, decided_s=NOW_S - 1_499.0, rule="leak-with-checkpoint", disposition=Disposition.DO,
            reason="Rank 11 of job 48211 leaks 12.0 MiB per step.",
        )  # fmt: skip
        would = decision(
            ActionKind.CHECKPOINT, decision_id="12:leak:1:1", incident=leak, decided_s=NOW_S - 590.0, rung=1,
            rule="leak-with-checkpoint", disposition=Disposition.WOULD, mode="observe",
            reason="Out of memory in 14-22 min; the job can save its state.",
        )  # fmt: skip
        made = [record(told, Outcome.DONE, detail="message to ada"), record(would)]
        self.store = FakeStore(FakeIncidents(changes), FakeAudit(made))
        self.status = LoopStatus("observe", None, incidents_open=2)
        return self

    def routes(self) -> dict[str, Route]:
        jobs = Kept(self.coordinator.jobs, kept_s=KEPT_S, monotonic_s=lambda: self.elapsed_s)
        return {
            **memory_routes(self.coordinator, lambda: self.store()),
            **OverviewReads(
                self.coordinator, jobs, lambda: self.status, cluster="lab",
                wall_s=lambda: NOW_S - LIFE_S + self.elapsed_s, monotonic_s=lambda: self.elapsed_s,
            ).routes(),
            **loop_routes(lambda: self.store(), lambda: self.status),
            **RecordPages(lambda: self.store()).routes(),
            "/api/v1/events": json_route(
                lambda request: {"events": self.coordinator.events(request.number("after", default=0))}
            ),
        }  # fmt: skip

    def service(self) -> Service:
        """The pages without a socket, every answer by way of JSON."""
        routes = self.routes()

        def ask(path: str, _: float) -> dict[str, Any]:
            self.asked.append(path)
            if self.problem is not None:
                raise CommandError(self.problem)
            parts = urlsplit(path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            try:
                answer: dict[str, Any] = json.loads(routes[parts.path](Request(query, None)).body)
            except (BadRequestError, NotFoundError, UnavailableError) as error:
                raise CommandError(str(error)) from error
            return answer

        def wish(job: JobKey, rank: int, request: Mapping[str, Any]) -> Mapping[str, Any]:
            if self.problem is not None:
                raise CommandError(self.problem)
            self.wishes.append((job, rank, request))
            return {"ok": True, "id": request.get("id"), "state": "recording", "step": 3600}

        def send(path: str, fields: Mapping[str, str]) -> dict[str, Any]:
            if self.problem is not None:
                raise CommandError(self.problem)
            self.sent.append((path, dict(fields)))
            yours = {"grade": fields.get("grade", "leak"), "by": "ada", "as_admin": False, "at_unix_s": NOW_S}
            return {"answers": [yours], "yours": yours, "text": "said and done"}

        def switch(words: str) -> Callable[[str | None], list[str]]:
            def set_switch(reason: str | None) -> list[str]:
                if self.problem is not None:
                    raise CommandError(self.problem)
                self.switched.append((words, reason))
                return [f"{words}."]

            return set_switch

        return Service(ask, lambda: "http://head:9495/", wish, send, switch("paused"), switch("resumed"))


@contextmanager
def serving_world(world: World) -> Iterator[str]:
    """The pages on loopback; yields the API's address."""
    api = HttpApi(world.routes(), host="127.0.0.1", port=0)
    api.start()
    try:
        yield api.url
    finally:
        api.stop()


def _gpus(node: int, ranks: list[RankSummary]) -> tuple[GpuView, ...]:
    used = {rank.uuid: rank.reserved_bytes + (rank.nontorch_bytes or 0) for rank in ranks}
    uuids: list[DeviceUuid] = [uuid_of(node * GPUS_A_NODE + gpu) for gpu in range(GPUS_A_NODE)]
    return tuple(gpu_view(gpu, uuid=uuid, used_bytes=used.get(uuid, 500 * MIB)) for gpu, uuid in enumerate(uuids))
