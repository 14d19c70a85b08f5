"""Which report of a node is news: by the order in which it was sent, whatever somebody does to the node's clock."""

from __future__ import annotations

import pytest

from tidegauge.cluster.coordinator.known_node import KnownNode
from tidegauge.core.views import NodeSummary


def summary(*, unix_s: float, mono_s: float | None, incarnation: str = "i1") -> NodeSummary:
    return NodeSummary(
        node_id="n1", hostname="h1", agent_pid=7, incarnation=incarnation, metrics_address=None,
        sent_unix_s=unix_s, sent_mono_s=mono_s,
    )  # fmt: skip


def node(last: NodeSummary) -> KnownNode:
    return KnownNode("n1", summary=last)


@pytest.mark.parametrize("jump_s", [-3600.0, -59.0, -5.0, 0.0, 59.0, 3600.0])
def test_a_clock_that_is_set_makes_no_report_old(jump_s: float) -> None:
    last = summary(unix_s=1.8e9, mono_s=100.0)
    assert node(last).is_news(summary(unix_s=1.8e9 + 1 + jump_s, mono_s=101.0))


@pytest.mark.parametrize("jump_s", [-3600.0, 0.0, 3600.0])
def test_a_report_that_was_sent_before_is_never_news(jump_s: float) -> None:
    last = summary(unix_s=1.8e9, mono_s=100.0)
    assert not node(last).is_news(summary(unix_s=1.8e9 + jump_s, mono_s=99.5))


def test_after_a_reboot_the_clock_since_boot_begins_anew() -> None:
    last = summary(unix_s=1.8e9, mono_s=1e6)
    assert node(last).is_news(summary(unix_s=1.8e9 + 60, mono_s=20.0, incarnation="i2"))


def test_an_agent_that_does_not_say_is_judged_by_its_clock() -> None:
    last = summary(unix_s=1.8e9, mono_s=None)
    assert node(last).is_news(summary(unix_s=1.8e9 + 1, mono_s=None))
    assert not node(last).is_news(summary(unix_s=1.8e9 - 1, mono_s=None))
