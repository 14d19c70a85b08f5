"""Which node has a process now: an engine that is started again gives its node another id, and the jobs go on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidegauge.cluster.coordinator.known_node import KnownNode
from tidegauge.core.ids import JobKey, ProcessId


def present_nodes(nodes: Mapping[str, KnownNode], job: JobKey, targets: Sequence[tuple[ProcessId, str]]) -> list[str]:
    """For each process, a rank or the keeper of ``job``, and the node that it was on once: the node that has it now.

    The same node as long as that is there, and where nobody or more than one reports such a process: pids and start
    times may be alike on two nodes, and an order must not be guessed onto one of them.
    """
    present = {node_id for node_id, node in nodes.items() if node.gone_s is None}
    found: dict[ProcessId, list[str]] = {process: [] for process, node_id in targets if node_id not in present}
    if found:
        # A fleet has thousands of ranks: all of them are gone through once, whatever the number of targets.
        for node_id in present:
            for process in _those_of(nodes[node_id], job, found.keys()):
                found[process].append(node_id)
    return [
        found[process][0] if node_id not in present and len(found[process]) == 1 else node_id
        for process, node_id in targets
    ]


def _those_of(node: KnownNode, job: JobKey, processes: Collection[ProcessId]) -> set[ProcessId]:
    """Which of ``processes`` the node reports as ranks or keepers of ``job``."""
    whose = (job.uid, job.job_id)
    ranks = {
        process
        for (_, process), rank in node.ranks.items()
        if process in processes and (rank.uid, rank.identity.job_id) == whose
    }
    keepers = {
        process
        for process, launch in node.launches.items()
        if process in processes and (launch.uid, launch.job_id) == whose
    }
    return ranks | keepers
