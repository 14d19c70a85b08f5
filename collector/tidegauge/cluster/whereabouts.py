"""Which node has a process now: an engine that is started again gives its node another id, and the jobs go on."""

from __future__ import annotations

from collections.abc import Mapping

from tidegauge.cluster.known_node import KnownNode
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents import JobKey


def present_node(nodes: Mapping[str, KnownNode], job: JobKey, process: ProcessId, node_id: str) -> str:
    """The id of the node that reports ``process``, a rank or the keeper of ``job``, if it is not ``node_id`` any more.

    ``node_id`` itself as long as that node is there, and where nobody or more than one reports such a process: pids
    and start times may be alike on two nodes, and an order must not be guessed onto one of them.
    """
    known = nodes.get(node_id)
    if known is not None and known.gone_s is None:
        return node_id
    found = [other.node_id for other in nodes.values() if other.gone_s is None and _has(other, job, process)]
    return found[0] if len(found) == 1 else node_id


def _has(node: KnownNode, job: JobKey, process: ProcessId) -> bool:
    launch = node.launches.get(process)
    if launch is not None and (launch.uid, launch.job_id) == (job.uid, job.job_id):
        return True
    return any(
        of == process and (rank.uid, rank.identity.job_id) == (job.uid, job.job_id)
        for (_, of), rank in node.ranks.items()
    )
