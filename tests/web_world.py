"""A coordinator with what the pages of the web UI have to show: a job of 64 ranks of which one leaks, healthy jobs, one
with a hostile name, jobs that ended, and a node that is not reporting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from api_world import filled_service
from sample_views import GIB, LEAK, MIB, NOW_S, identity, rank_summary
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, ProcessId
from tidegauge.core.verdicts import OK
from tidegauge.core.views import GpuView, NodeSummary, RankSummary

LEAKY, ODD_RANK = "5200", 13
HOSTILE = '<script>document.title="pwned"</script>&"\'' + "A" * 300
"""With a word that is wider than any screen."""
STEP_S, STEPS, GPUS = 10.0, 40, 8
LIMIT = 80 * GIB


@contextmanager
def web_service(folder: Path, *, nodes: int = 8) -> Iterator[CoordinatorService]:
    """``filled_service``, whose nodes ``node0`` and ``node1`` are not reporting any more, with the jobs above."""
    with filled_service(folder) as service:
        fill(service, nodes=nodes)
        yield service


def fill(service: CoordinatorService, *, nodes: int, steps: int = STEPS) -> None:
    """Let nodes of eight GPUs report for some minutes: seven ranks on each of job ``LEAKY``, and one of a job of its
    own on the last GPU."""
    clock = _Clock(service)
    for step in range(steps):
        clock.turn(step)
        for node in range(nodes):
            service.coordinator.report(_report(node, step, world_size=7 * nodes))


def lengthen(service: CoordinatorService, *, steps: int = STEPS) -> None:
    """Let the ranks of the open incident's job report for some minutes, so that its page has a chart."""
    clock = _Clock(service)
    for step in range(1, steps):
        clock.turn(step)
        at_s = NOW_S + step * STEP_S
        leaky = replace(
            rank_summary(1, verdict=LEAK), step=400 + step, last_sample_unix_s=at_s,
            reserved_bytes=20 * GIB + step * 256 * MIB,
        )  # fmt: skip
        ranks = (rank_summary(0), leaky)
        service.coordinator.report(NodeSummary("node0", "node0", 321, "i", "node0:9494", at_s, ranks))


class _Clock:
    def __init__(self, service: CoordinatorService) -> None:
        self._now_s = 0.0
        own: Callable[[], float] = lambda: 100.0 + self._now_s  # noqa: E731 - one of two alike
        wall: Callable[[], float] = lambda: NOW_S + self._now_s  # noqa: E731
        service.coordinator._monotonic_s, service.coordinator._wall_s = own, wall

    def turn(self, step: int) -> None:
        self._now_s = step * STEP_S


def _report(node: int, step: int, *, world_size: int) -> NodeSummary:
    host = f"gpu-a-{node:03d}"
    ranks = [_rank(node, gpu, step, world_size) for gpu in range(GPUS)]
    gpus = tuple(
        GpuView(
            _uuid(node, gpu), gpu, "NVIDIA H100 80GB HBM3", LIMIT, rank.reserved_bytes + 500 * MIB + _others(node, gpu),
            _others(node, gpu), unheld_bytes=2 * GIB, unheld_for_s=600.0 if (node, gpu) == (3, 1) else None,
        )
        for gpu, rank in enumerate(ranks)
    )  # fmt: skip
    return NodeSummary(host, host, 321, "i", f"{host}:9494", NOW_S + step * STEP_S, tuple(ranks), gpus)


def _rank(node: int, gpu: int, step: int, world_size: int) -> RankSummary:
    number = node * 7 + gpu
    leaks = gpu < GPUS - 1 and number == ODD_RANK
    used = 20 * GIB + (node * 31 + gpu * 17 + step * 7) % 23 * 64 * MIB + (step * GIB if leaks else 0)
    job = JobId(LEAKY) if gpu < GPUS - 1 else JobId(f"{6000 + node}")
    name = "moe-pretrain" if gpu < GPUS - 1 else HOSTILE if node == 0 else f"vit-sweep-{node}"
    rank = number if gpu < GPUS - 1 else 0
    who = identity(rank, job_id=job, job_name=name, world_size=world_size if gpu < GPUS - 1 else 1)
    return replace(
        rank_summary(rank, verdict=LEAK if leaks else OK), identity=who._replace(rank=GlobalRank(rank)),
        process=ProcessId(10_000 + node * GPUS + gpu, 5), gpu=gpu, uuid=_uuid(node, gpu), step=10 + step * 20,
        allocated_bytes=used - GIB, reserved_bytes=used, nontorch_bytes=500 * MIB, limit_bytes=LIMIT,
        last_sample_unix_s=NOW_S + step * STEP_S,
    )  # fmt: skip


def _others(node: int, gpu: int) -> int:
    """Of processes that are no ranks."""
    return 3 * GIB if (node, gpu) == (2, 5) else 0


def _uuid(node: int, gpu: int) -> DeviceUuid:
    return DeviceUuid(f"GPU-{node:04d}{gpu:04d}-1111-2222-3333-444444444444")
