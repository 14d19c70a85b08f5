"""Hours of a made-up fleet as OpenMetrics text with timestamps, for ``promtool tsdb create-blocks-from openmetrics``.

Names and labels are the product's own: rows of the tables of ``tidegauge_exporter.metrics.table`` are read from its own
values, and what is not in a table of ranks or GPUs comes from the real pages. What Prometheus would add is added
(target labels, ``up``), and what dcgm-exporter would say of the same GPUs. Series that end have no staleness marker:
Prometheus goes on showing their last value for five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from exposition_text import text_of
from fleet_happenings import loop_figures
from fleet_story import CLUSTER, GIB, GPUS_PER_NODE, STEPS_PER_S, Fleet, Moment
from tidegauge.core.views import GpuView, NodeView, RankView
from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.families import label_value
from tidegauge_exporter.metrics.jobs import job_metrics
from tidegauge_exporter.metrics.table import (
    GPU_LABELS,
    GPU_METRICS,
    GROUP_LABELS,
    NODE_LABELS,
    NODE_METRICS,
    RANK_INFO,
    RANK_LABELS,
    RANK_METRICS,
    RANK_PROFILE,
)

MIB = 1024**2
COORDINATOR_TARGET = f'job="tidegauge",instance="coordinator:9495",component="coordinator",cluster="{CLUSTER}"'


def write_history(
    path: Path, *, jobs: int, ranks_per_job: int, hours: float, period_s: float, end_unix_s: float, seed: int = 0
) -> None:
    """One reading of everything each ``period_s``, the last one at ``end_unix_s``. The same arguments give the same
    text. What happens in it is told in ``fleet_story``; every plot has its place from seven jobs on.
    """
    readings = int(hours * 3600 / period_s)
    fleet = Fleet(jobs, ranks_per_job, end_unix_s - readings * period_s, end_unix_s, seed)
    with path.open("w", encoding="utf-8") as file:
        for index in range(readings + 1):
            moment = fleet.moment(fleet.began_unix_s + index * period_s)
            stamp = f" {moment.unix_s:.3f}\n"
            file.writelines(sample + stamp for sample in samples(fleet, moment))
        file.write("# EOF\n")


def samples(fleet: Fleet, moment: Moment) -> Iterator[str]:
    """Everything that Prometheus would have stored at this moment, as ``name{labels} value``."""
    nodes = list(fleet.node_views(moment))
    itself = list(_of_the_agent_itself(fleet, moment))
    for index, node in enumerate(nodes):
        target = node_target(node.hostname)
        if fleet.stale(index, moment):
            yield f"up{{{target}}} 0"
            continue
        yield f"up{{{target}}} 1"
        for rank in node.ranks:
            yield from _of_rank(rank, node, target)
        for gpu in node.gpus:
            yield from _of_gpu(gpu, node, target)
        yield from _of_memory(node, target)
        yield from _targeted(itself, target)
    yield f"up{{{COORDINATOR_TARGET}}} 1"
    page = job_metrics(
        fleet.job_views(nodes, moment), cluster=CLUSTER, now_unix_s=moment.unix_s, loop=loop_figures(fleet, moment)
    )
    yield from _targeted(page.body.decode().splitlines(), COORDINATOR_TARGET)


def node_target(hostname: str) -> str:
    """The labels that the scrape of deploy/observability puts on everything of a node."""
    return f'job="tidegauge",instance="{hostname}",component="agent",cluster="{CLUSTER}",hostname="{hostname}"'


def _of_rank(rank: RankView, node: NodeView, target: str) -> Iterator[str]:
    who = rank.identity
    labels, facts = _rank_labels(
        (who.job_id, who.attempt, who.rank, who.local_rank, node.hostname, rank.gpu, rank.uuid),
        (rank.process.pid, node.hostname, who.torch_version, who.alloc_conf, who.profile),
        rank.group,
        target,
    )
    for metric in RANK_METRICS:
        if (rank.alive or metric.lingers) and (value := metric.read(rank)) is not None:
            yield f"{metric.name}{labels} {value}"
    for category, held in rank.profile_bytes.items() if rank.alive else ():
        yield f'{RANK_PROFILE.name}{labels[:-1]},category="{category.value}"}} {held}'
    yield f"{RANK_INFO.name}{facts} 1"


@lru_cache(maxsize=50_000)
def _rank_labels(values: Sequence[object], facts: Sequence[object], group: str, target: str) -> tuple[str, str]:
    """The label blocks of a rank's series and of its info."""
    own = dict(zip((*RANK_LABELS, *GROUP_LABELS), (CLUSTER, *values, group), strict=True))
    more = dict(zip(RANK_INFO.labels[len(RANK_LABELS) :], facts, strict=True))
    return _block(own, target), _block({**own, **more}, target)


def _of_gpu(gpu: GpuView, node: NodeView, target: str) -> Iterator[str]:
    labels, dcgm = _gpu_labels((node.hostname, gpu.gpu, gpu.uuid), gpu.name, target)
    for metric in GPU_METRICS:
        if (value := metric.read(gpu)) is not None:
            yield f"{metric.name}{labels} {value}"
    used_bytes = gpu.used_bytes or 0
    yield f"DCGM_FI_DEV_FB_USED{dcgm} {used_bytes // MIB}"
    busy = used_bytes > 20 * GIB
    yield f"DCGM_FI_DEV_GPU_UTIL{dcgm} {97 if busy else 0}"
    yield f"DCGM_FI_DEV_POWER_USAGE{dcgm} {640 if busy else 90}"
    yield f"DCGM_FI_DEV_XID_ERRORS{dcgm} {0 if busy else 79}"


def _of_memory(node: NodeView, target: str) -> Iterator[str]:
    labels = _block(dict(zip(NODE_LABELS, (CLUSTER, node.hostname), strict=True)), target)
    for metric in NODE_METRICS:
        if node.memory is not None and (value := metric.read(node.memory)) is not None:
            yield f"{metric.name}{labels} {value}"


@lru_cache(maxsize=50_000)
def _gpu_labels(values: Sequence[object], model: str, target: str) -> tuple[str, str]:
    """The label blocks of a GPU's series, and of dcgm-exporter's for the same GPU."""
    own = dict(zip(GPU_LABELS, (CLUSTER, *values), strict=True))
    hostname, gpu, uuid = values
    dcgm = {"gpu": gpu, "UUID": uuid, "device": f"nvidia{gpu}", "modelName": model, "hostname": hostname}
    return _block(own, target), _block(dcgm, f'job="dcgm-exporter",instance="{hostname}:9400"')


def _block(labels: Mapping[str, object], target: str) -> str:
    """A label block. Target labels of the same name as ours give way (``honor_labels``); empty ones are no labels."""
    own = {name: text for name, value in labels.items() if (text := label_value(value))}
    added = [pair for pair in target.split(",") if pair.partition("=")[0] not in own]
    return "{" + ",".join([f'{name}="{text}"' for name, text in own.items()] + added) + "}"


def _of_the_agent_itself(fleet: Fleet, moment: Moment) -> Iterable[str]:
    """What a node's page says beside ranks and GPUs; all nodes say the same."""
    points = int((moment.unix_s - fleet.began_unix_s) * STEPS_PER_S * GPUS_PER_NODE)
    view = NodeView(
        hostname="any",
        cluster=CLUSTER,
        now_unix_s=moment.unix_s,
        collect_success={"rings": True, "nvml": True, "proc": True},
        collect_duration_s={"rings": 0.0004, "nvml": 0.0021, "proc": 0.0007},
        rings_skipped={"truncated": 0},
        poll_deferred={"records": 0},
        claims_overruled={"job_id": 0},
        detector_points=points,
    )
    return text_of(NodeCollector(lambda: view, clock=lambda: moment.unix_s)).splitlines()


def _targeted(page: Iterable[str], target: str) -> Iterator[str]:
    """The samples of a page with the labels of its target; those that it has itself stay."""
    for line in page:
        if line.startswith("#"):
            continue
        series, _, value = line.rpartition(" ")
        name, _, labels = series.rstrip("}").partition("{")
        own = {pair.partition("=")[0] for pair in labels.split('",')}
        added = [pair for pair in target.split(",") if pair.partition("=")[0] not in own]
        yield f"{name}{{{','.join([labels, *added] if labels else added)}}} {value}"
