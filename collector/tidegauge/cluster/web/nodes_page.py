"""The page of nodes: how full each GPU is, whose ranks are on it, and which node is not reporting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from tidegauge.cluster.views import NodeHealth, NodeStatus
from tidegauge.cluster.web.markup import (
    bytes_text,
    choice,
    filter_form,
    health_chip,
    name_text,
    search_field,
    share_bar,
)
from tidegauge.core.detector.unheld import is_unheld
from tidegauge.core.ids import DeviceUuid, JobKey
from tidegauge.core.text import one_line
from tidegauge.core.units import format_count, format_duration
from tidegauge.core.views import GpuView, JobView, ranks_by_gpu
from tidegauge_exporter.links import job_address
from tidegauge_exporter.reports.html_page import lead, muted, section

MAX_NODES: Final = 100
"""Cards at most; the filter finds the others."""
SHOW: Final = {"": "all nodes", "problem": "nodes not reporting", "unknown": "GPUs with unattributed memory"}
MIN_UNKNOWN_BYTES: Final = 256 * 1024 * 1024
"""Of processes that are no watched ranks; less is what a desktop or a monitor holds."""


class Tenancy(NamedTuple):
    """A rank on a GPU, as far as the viewer may see it."""

    job: JobKey
    called: str
    user_name: str
    rank: int
    used_bytes: int


Tenancies = Mapping[tuple[str, DeviceUuid], Sequence[Tenancy | None]]
"""``None`` is a rank of a job that the viewer may not see."""


def tenancies(seen: Iterable[JobView], every: Iterable[JobView]) -> Tenancies:
    """Living ranks of all jobs by host and GPU; a viewer is told whose they are of the jobs ``seen``."""
    told = {id(job) for job in seen}

    def tenancy(job: JobView, index: int) -> Tenancy | None:
        rank = job.ranks[index]
        called = job.job_name or job.job_id
        is_told = id(job) in told
        return Tenancy(job.key, called, rank.user_name, int(rank.identity.rank), rank.used_bytes) if is_told else None

    return {place: [tenancy(*one) for one in ranks] for place, ranks in ranks_by_gpu(every).items()}


def nodes_page(nodes: Sequence[NodeStatus], on: Tenancies, *, words: str, show: str) -> list[str]:
    """The sections of the page. ``on``: ranks of jobs that the viewer may see."""
    fitting = [node for node in nodes if _fits(node, on, words, show)]
    fitting.sort(key=lambda node: (node.health is NodeHealth.OK, -_fullest(node), node.hostname))
    ill = [node for node in nodes if node.health is not NodeHealth.OK]
    sentence = f"{len(ill):,} of {format_count(len(nodes), 'node')} not reporting." if ill else "All nodes report."
    form = filter_form(search_field("words", "Host, user or job", words), choice("show", "Show", SHOW, show))
    cards = "\n".join(_card(node, on) for node in fitting[:MAX_NODES])
    left_out = len(fitting) - MAX_NODES
    return [
        lead(
            sentence if nodes else "No node is known yet.", tone="warning" if ill else "ok",
            figures=[
                (f"{len(nodes):,}", "nodes"),
                (f"{sum(len(node.gpus) for node in nodes):,}", "GPUs"),
                (f"{sum(node.ranks for node in nodes):,}", "ranks"),
            ],
        ),
        section("Nodes", form, f'<div class="nodes">{cards}</div>' if cards else muted("No node fits."),
                muted(f"{left_out:,} more nodes: filter for them.") if left_out > 0 else ""),
    ]  # fmt: skip


def _fits(node: NodeStatus, on: Tenancies, words: str, show: str) -> bool:
    if show == "problem" and node.health is NodeHealth.OK and node.problem is None:
        return False
    if show == "unknown" and not any((gpu.other_processes_bytes or 0) >= MIN_UNKNOWN_BYTES for gpu in node.gpus):
        return False
    if not words:
        return True
    there = (one for gpu in node.gpus for one in on.get((node.hostname, gpu.uuid), ()) if one is not None)
    text = " ".join([node.hostname, *(f"{one.called} {one.job.job_id} {one.user_name}" for one in there)]).lower()
    return all(word in text for word in words.lower().split())


def _share(gpu: GpuView) -> float | None:
    return gpu.used_bytes / gpu.total_bytes if gpu.total_bytes and gpu.used_bytes is not None else None


def _fullest(node: NodeStatus) -> float:
    return max((_share(gpu) or 0.0 for gpu in node.gpus), default=0.0)


def _card(node: NodeStatus, on: Tenancies) -> str:
    age = node.last_report_age_s
    heard = "never reported" if age is None else f"reported {format_duration(age)} ago"
    told = "" if node.health is NodeHealth.OK else f" <small>{heard}</small>"
    gpus = "".join(_gpu(gpu, on.get((node.hostname, gpu.uuid), ())) for gpu in node.gpus)
    rows = f"<ul>{gpus}</ul>" if gpus else muted("No GPU is known of it.")
    chip = health_chip(node.health.value, is_well=node.health is NodeHealth.OK)
    problem = f"<p>{escape(node.problem)}</p>" if node.problem else ""
    return f'<article class="node"><h3>{name_text(node.hostname)}</h3><p>{chip}{told}</p>{problem}{rows}</article>'


def _gpu(gpu: GpuView, ranks: Sequence[Tenancy | None]) -> str:
    title = f"{bytes_text(gpu.used_bytes)} of {bytes_text(gpu.total_bytes)}, {gpu.name}"
    who = [
        f'<a href="{escape(job_address(one.job, rank=one.rank))}">{escape(one_line(one.called, 40))}</a> '
        f"rank {one.rank} ({name_text(one.user_name, 40)}, {bytes_text(one.used_bytes)})"
        for one in ranks
        if one is not None
    ]
    if hidden := ranks.count(None):
        who.append(f"{format_count(hidden, 'rank')} of others")
    if (gpu.other_processes_bytes or 0) >= MIN_UNKNOWN_BYTES:
        who.append(f"unattributed {bytes_text(gpu.other_processes_bytes)} !")
    if is_unheld(gpu.unheld_for_s):
        who.append(f"held by nobody {bytes_text(gpu.unheld_bytes)} !")
    told = f"<small>{'; '.join(who)}</small>" if who else "<small>no rank</small>"
    name = f'<span class="gpu" title="{escape(title)}">GPU {gpu.gpu}</span>'
    return f"<li>{name}{share_bar(_share(gpu), title=title)}{told}</li>"
