"""`ReportEndpoint`: agents' bytes to the coordinator, its replies back, and refusals that people see."""

from __future__ import annotations

import logging
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from protocol_forms import full, packed, unpacked
from sample_views import NOW_S, rank_summary
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.report_endpoint import ReportEndpoint
from tidegauge.cluster.coordinator.report_times import IMPOSSIBLE_TIMES
from tidegauge.cluster.views import SILENT_OPENER, EngineNode, NodeHealth, NodeStatus
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.incidents.wording import utc_clock
from tidegauge.core.orders import OrderResult, Reply
from tidegauge.core.samples import OomRecord
from tidegauge.core.views import NodeSummary
from tidegauge.protocol.coding import ReportRefusedError, decode, encode
from tidegauge.protocol.messages import VERSION, ProtocolVersion, ReportReply
from tidegauge.rate_limited_log import LINES_PER_MINUTE
from waiting import PATIENCE_S, eventually

SUMMARY = NodeSummary("id-a", "node-a", 321, "i1", None, 1_800_000_000.0, ranks=(rank_summary(),))


class Head:
    """A coordinator that knows of one node, and its endpoint."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(wall_s=lambda: 1_800_000_000.0, monotonic_s=lambda: 50.0, incarnation="c1")
        self.coordinator.engine_nodes([EngineNode("id-a", "node-a", "10.0.0.1")])
        self.endpoint = ReportEndpoint(self.coordinator, monotonic_s=lambda: 50.0)

    def reply(self, message: object, node_id: str = "id-a") -> ReportReply:
        return decode(ReportReply, self.endpoint.answer(node_id, message)).message

    def refusal(self, message: object, node_id: str = "id-a") -> str:
        with pytest.raises(ReportRefusedError) as caught:
            self.reply(message, node_id)
        return str(caught.value)

    def node(self) -> NodeStatus:
        (node,) = self.coordinator.nodes()
        return node


def told(version: ProtocolVersion, **changes: Any) -> bytes:
    """The summary as an agent of that version sends it."""
    return packed("report", {**unpacked(encode(SUMMARY))[2], **changes}, version)


@pytest.mark.parametrize("minor", [VERSION.minor - 1, VERSION.minor, VERSION.minor + 1])
def test_endpoint_hands_reports_of_neighbouring_releases_to_the_coordinator(minor: int) -> None:
    head = Head()
    assert head.reply(told(VERSION._replace(minor=minor))).accepted
    assert (head.node().health, head.node().ranks, head.node().problem) == (NodeHealth.OK, 1, None)
    (job,) = head.coordinator.jobs()
    assert job.ranks == (rank_summary(),)


def test_endpoint_brings_orders_and_takes_their_results() -> None:
    head = Head()
    head.reply(encode(SUMMARY))
    (job,) = head.coordinator.jobs()
    target = RankTarget(0, "id-a", rank_summary().process, step=1)
    with ThreadPoolExecutor(1) as waiting:
        answer = waiting.submit(
            head.coordinator.orders.ask_ranks, job.key, [target], {"command": "ping"}, timeout_s=PATIENCE_S
        )
        orders = eventually(lambda: head.reply(encode(SUMMARY)).orders)
        assert [(one.process, one.request) for one in orders] == [(target.process, {"command": "ping"})]
        results = (OrderResult(orders[0].order_id, {"ok": True}),)
        head.reply(encode(replace(SUMMARY, order_results=results)))
        assert answer.result() == {0: Reply({"ok": True})}


def test_endpoint_refuses_a_report_of_another_version_and_status_says_why(caplog: pytest.LogCaptureFixture) -> None:
    head = Head()
    late = told(ProtocolVersion(VERSION.major, VERSION.minor + 2))
    words = head.refusal(late)
    assert words.endswith("this one must be upgraded")
    assert head.node().health is NodeHealth.WAITING
    assert head.node().problem == f"its report was refused: {words}"
    head.refusal(late)
    assert [record.message for record in caplog.records] == [f"node node-a: its report was refused: {words}"], "once"
    assert head.reply(encode(SUMMARY)).accepted
    assert head.node().problem is None


def test_a_node_that_is_gone_has_no_problem_any_more() -> None:
    head = Head()
    head.refusal(b"")
    assert head.node().problem is not None
    head.coordinator.engine_nodes([])
    assert (head.node().health, head.node().problem) == (NodeHealth.GONE, None)


def test_endpoint_says_which_items_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    head = Head()
    raw = unpacked(encode(full(NodeSummary)))[2]
    raw["evidence"][0]["search"]["holders"][0]["kind"] = "weather"
    assert head.reply(told(VERSION, evidence=raw["evidence"])).accepted
    problem = head.node().problem
    assert problem is not None
    assert "holders[0].kind: 'weather'" in problem
    assert len(caplog.records) == 1


@pytest.mark.parametrize("at_unix_s", [1e18, 253_402_300_800.0, math.inf, -1.0], ids=["", "10,000", "inf", "1969"])
def test_endpoint_takes_no_error_of_a_time_that_cannot_be(at_unix_s: float) -> None:
    """Whoever tells an incident makes a date of it, which raised there, each second; and it was the newest for ever."""
    head = Head()
    oom = OomRecord(at_unix_s, 200, 2, 1, 80, 79, 80)
    lying = replace(rank_summary(0), last_oom=oom, last_sample_unix_s=at_unix_s)
    honest = replace(rank_summary(1), last_oom=oom._replace(at_unix_s=NOW_S - 1))
    assert head.reply(encode(replace(SUMMARY, ranks=(lying, honest)))).accepted
    (job,) = head.coordinator.jobs()
    assert [rank.last_oom for rank in job.ranks] == [None, honest.last_oom]
    for rank in job.ranks:
        utc_clock(rank.last_sample_unix_s)
    assert head.node().problem == IMPOSSIBLE_TIMES


def test_endpoint_takes_times_of_a_clock_that_is_hours_ahead() -> None:
    head = Head()
    ranks = (replace(rank_summary(0), last_sample_unix_s=NOW_S + 12 * 3600),)
    assert head.reply(encode(replace(SUMMARY, ranks=ranks))).accepted
    assert head.node().problem is None


@pytest.mark.parametrize("message", [SUMMARY, pickle.dumps(SUMMARY), b"", None])
def test_endpoint_refuses_what_is_no_message(message: object) -> None:
    assert "no message of the protocol between nodes" in Head().refusal(message)


def test_endpoint_takes_no_report_in_another_nodes_name() -> None:
    head = Head()
    assert "another node than the one that sent it" in head.refusal(encode(SUMMARY), node_id="id-b")
    assert head.node().health is NodeHealth.WAITING


def test_endpoint_log_cannot_be_flooded(caplog: pytest.LogCaptureFixture) -> None:
    head = Head()
    with caplog.at_level(logging.WARNING):
        for minor in range(9, 9 + 3 * LINES_PER_MINUTE):
            head.refusal(told(VERSION._replace(minor=minor)))
    assert len(caplog.records) == LINES_PER_MINUTE


def test_a_node_whose_opener_does_not_answer_says_so_until_it_does() -> None:
    head = Head()
    head.reply(encode(replace(SUMMARY, opener_answers=False)))
    assert (head.node().health, head.node().problem) == (NodeHealth.OK, SILENT_OPENER)
    for answers in (True, None):
        head.reply(encode(replace(SUMMARY, opener_answers=answers)))
        assert head.node().problem is None
