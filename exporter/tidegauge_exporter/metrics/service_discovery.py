"""The coordinator's ``/sd`` for Prometheus (``http_sd_configs``): the address of every node's ``/metrics``.

Labels begin with ``__meta_``: a target label named like one of ours (``hostname``, ``cluster``) would rename ours to
``exported_hostname`` unless the scrape sets ``honor_labels``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from tidegauge.core.views import NodeSummary
from tidegauge.http.access import split_scheme

_WILDCARDS = ("0.0.0.0", "[::]", "")


class ScrapeTargets(TypedDict):
    """An entry of Prometheus' HTTP service discovery."""

    targets: list[str]
    labels: dict[str, str]


def advertised_address(bound: str, hostname: str) -> str:
    """The address at which others reach a server of the node ``hostname`` that listens on ``bound`` (``host:port``, or
    ``https://host:port``): ``bound``, or the node's name for a server that listens on every address."""
    scheme, address = split_scheme(bound)
    host, _, port = address.rpartition(":")
    if host not in _WILDCARDS:
        return bound
    name = f"[{hostname}]" if ":" in hostname else hostname
    return f"{name}:{port}" if scheme == "http" else f"{scheme}://{name}:{port}"


def http_sd(
    nodes: Iterable[NodeSummary],
    *,
    cluster: str,
    coordinator_address: str | None = None,
    notifier_port: int | None = None,
) -> list[ScrapeTargets]:
    """The scrape targets, one group a node so that each keeps its own labels, in a stable order.

    A node whose ``/metrics`` is not served is left out; of two nodes with one address the first by name is kept.
    ``coordinator_address`` is that of the coordinator's own ``/metrics``, and ``notifier_port`` that of the notifier's
    on the same host, which is a target also while it is down. A target with TLS has the label ``__scheme__``, which
    overrides the scrape's ``scheme``.
    """
    groups: dict[str, ScrapeTargets] = {}
    if coordinator_address is not None:
        groups[coordinator_address] = _group(coordinator_address, component="coordinator", cluster=cluster)
        if notifier_port is not None:
            beside = f"{coordinator_address.rpartition(':')[0]}:{notifier_port}"
            groups[beside] = _group(beside, component="notifier", cluster=cluster)
    for node in sorted(nodes, key=lambda node: (node.hostname, node.node_id)):
        address = node.metrics_address
        if address is not None and address not in groups:
            groups[address] = _group(
                address, component="agent", cluster=cluster, hostname=node.hostname, node_id=node.node_id
            )
    return list(groups.values())


def _group(announced: str, **meta: str) -> ScrapeTargets:
    scheme, address = split_scheme(announced)
    labels = {f"__meta_tidegauge_{name}": value for name, value in meta.items()}
    return {"targets": [address], "labels": labels if scheme == "http" else {"__scheme__": scheme, **labels}}
