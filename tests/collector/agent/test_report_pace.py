"""Which reports an agent sends when the coordinator wants to hear less often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evidence_values import evidence
from sample_views import LEAK, rank_summary
from tidegauge.agent.runner import ReportPace
from tidegauge.core.orders import OrderResult
from tidegauge.core.views import NodeSummary, RankSummary

RESULT = OrderResult("o1", reply={"ok": True})


def summary(*ranks: RankSummary, **changes: Any) -> NodeSummary:
    whole = NodeSummary("n1", "host", 1, "i", None, 0.0, ranks or (rank_summary(0),))
    return replace(whole, **changes)


def paced(every_s: float = 6.0) -> ReportPace:
    """One that has just reported ``summary()``, at 100 s."""
    pace = ReportPace(1.0, node_id="n1")
    pace.slow_to(every_s, 90.0)
    pace.sent(summary(), 100.0)
    return pace


def test_without_a_wish_every_report_is_sent() -> None:
    pace = ReportPace(1.0, node_id="n1")
    pace.sent(summary(), 100.0)
    assert pace.wants(summary(), 100.1)


def test_a_wish_for_more_than_the_setting_changes_nothing() -> None:
    assert paced(0.5).wants(summary(), 100.1)


def test_figures_that_move_wait_for_the_time_that_was_asked_for() -> None:
    pace, moved = paced(), summary(rank_summary(0, step=9999, allocated_bytes=1))
    sent = [second for second in range(101, 120) if _sends(pace, moved, float(second))]
    assert sent == [106, 112, 118]


def _sends(pace: ReportPace, report: NodeSummary, now_s: float) -> bool:
    wanted = pace.wants(report, now_s)
    if wanted:
        pace.sent(report, now_s)
    return wanted


@pytest.mark.parametrize(
    "news",
    [
        summary(rank_summary(0, verdict=LEAK)),
        summary(rank_summary(0, alive=False)),
        summary(rank_summary(0), rank_summary(1)),
        summary(rank_summary(0, cap_fraction=0.5)),
        summary(evidence=(evidence(),)),
        summary(pods_wanted=("uid",)),
        summary(settings_digest="other"),
        summary(order_results=(RESULT,)),
        summary(metrics_address="host:1"),
    ],
)
def test_report_pace_sends_urgent_news_at_once_and_only_once(news: NodeSummary) -> None:
    pace = paced()
    assert _sends(pace, news, 101.0)
    assert pace.wants(news, 102.0) is bool(news.order_results)  # until it is known to have arrived


def test_the_time_to_out_of_memory_alone_is_no_news() -> None:
    pace, alarm = paced(), summary(rank_summary(0, verdict=LEAK))
    assert _sends(pace, alarm, 101.0)
    assert not pace.wants(summary(rank_summary(0, verdict=LEAK._replace(seconds_to_oom=None))), 102.0)


def test_a_failure_is_made_up_for_at_once() -> None:
    pace = paced()
    pace.failed()
    assert pace.wants(summary(), 101.0)


def test_nodes_that_are_slowed_down_together_do_not_stay_together() -> None:
    first_s = set()
    for number in range(40):
        pace = ReportPace(1.0, node_id=f"node-{number}")
        pace.sent(summary(), 100.0)
        pace.slow_to(10.0, 100.0)
        first_s.add(next(second for second in range(100, 112) if pace.wants(summary(), float(second))))
    assert len(first_s) >= 5


def test_report_pace_can_return_to_the_fast_interval() -> None:
    pace = paced()
    pace.slow_to(0.0, 101.0)
    assert pace.wants(summary(), 101.1)
