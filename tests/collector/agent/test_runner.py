from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from fake_node import FakeClock
from sample_views import LEAK, rank_summary
from tidegauge.agent.direct_reporter import DirectReporter
from tidegauge.agent.runner import QUIET_AFTER_S, AgentRunner, Ticker, quiet_period_s
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.kubernetes import PodFacts
from tidegauge.core.jobs.rank_groups import NameOfGroup
from tidegauge.core.jobs.settings import JobSettings, digest
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import Order, OrderResult, OrderTo
from tidegauge.core.peer_bounds import PeerBound
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.protocol.messages import ReportReply
from waiting import PATIENCE_S


@dataclass
class FakeAgent:
    clock: FakeClock
    poll_takes_s: float = 0.0
    polls_s: list[float] = field(default_factory=list)
    pods: list[PodFacts] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    profiles_kept: list[str] = field(default_factory=list)
    wanted: list[frozenset[str] | None] = field(default_factory=list)
    forgotten: tuple[Forgotten, ...] = ()
    ranks: tuple[RankSummary, ...] = ()
    searches_s: list[float] = field(default_factory=list)

    def poll(self) -> None:
        self.polls_s.append(self.clock.now_s)
        self.clock.pass_s(self.poll_takes_s)

    def search_now(self) -> None:
        self.searches_s.append(self.clock.now_s)

    def summary(self, *, node_id: str, incarnation: str, metrics_address: str | None) -> NodeSummary:
        return NodeSummary(node_id, "node-a", 1, incarnation, metrics_address, self.clock.now_s, self.ranks)

    def hear_of_pods(self, pods: Iterable[PodFacts]) -> None:
        self.pods += pods

    def hear_of_evidence(
        self, kept: Collection[str], wanted: frozenset[str] | None, profiles_kept: Collection[str]
    ) -> None:
        self.kept += kept
        self.profiles_kept += profiles_kept
        self.wanted.append(wanted)

    def hear_of_groups(self, names: Iterable[NameOfGroup]) -> None:
        pass

    def hear_of_forgotten(self, forgotten: Sequence[Forgotten]) -> None:
        self.forgotten = tuple(forgotten)

    def hear_of_bounds(self, bounds: Iterable[PeerBound]) -> None:
        self.bounds = tuple(bounds)

    def carry_out(self, order: Order) -> OrderResult:
        return OrderResult(order.order_id, reply={"ok": True})

    def tenant_of(self, order: Order) -> Tenant:
        return Tenant(order.uid)


class FakeFiles:
    """Settings for jobs in memory."""

    def __init__(self) -> None:
        self.there: tuple[JobSettings, ...] = ()
        self.writes = 0

    def digest(self) -> str:
        return digest(self.there)

    def write(self, wanted: Collection[JobSettings]) -> None:
        self.writes += 1
        self.there = tuple(wanted)


@dataclass
class FakeReporter:
    failing: bool = False
    reply: ReportReply | None = None
    summaries: list[NodeSummary] = field(default_factory=list)
    calls: int = 0

    def report(self, summary: NodeSummary) -> ReportReply | None:
        self.calls += 1
        if self.failing:
            raise ConnectionError("the coordinator is away")
        self.summaries.append(summary)
        return self.reply


@dataclass
class Stage:
    clock: FakeClock = field(default_factory=lambda: FakeClock(now_s=0.0))
    reporter: FakeReporter = field(default_factory=FakeReporter)
    files: FakeFiles = field(default_factory=FakeFiles)
    after_wait: Callable[[], None] = lambda: None
    address: str | None = None
    """Of ``/metrics``; ``None``: another one every second."""
    reports_from_s: float = 0.0

    def run(
        self,
        agent: FakeAgent,
        until_s: float,
        *,
        poll_period_s: float = 0.5,
        report_period_s: float = 1.0,
        quiet_poll_period_s: float | None = None,
    ) -> None:
        def wait(seconds: float) -> bool:
            self.clock.pass_s(seconds)
            self.after_wait()
            return self.clock.now_s >= until_s

        AgentRunner(
            agent,
            DirectReporter(self.reporter.report),
            self.files,
            poll_period_s=poll_period_s,
            report_period_s=report_period_s,
            quiet_poll_period_s=quiet_poll_period_s,
            node_id="n1",
            incarnation="i1",
            metrics_address=lambda: self.address or f"node-a:{int(self.clock.now_s)}",
            monotonic_s=self.clock.monotonic_s,
            wait=wait,
            may_report=lambda: self.clock.now_s >= self.reports_from_s,
        ).run()


def test_polls_and_reports_in_their_own_rhythms_beginning_at_once() -> None:
    stage = Stage()
    agent = FakeAgent(stage.clock)
    stage.run(agent, until_s=3)
    assert agent.polls_s == [0, 0.5, 1, 1.5, 2, 2.5]
    assert [summary.sent_unix_s for summary in stage.reporter.summaries] == [0, 1, 2]
    assert [summary.metrics_address for summary in stage.reporter.summaries] == ["node-a:0", "node-a:1", "node-a:2"]
    assert (stage.reporter.summaries[0].node_id, stage.reporter.summaries[0].incarnation) == ("n1", "i1")


def test_a_quiet_node_is_polled_a_quarter_as_often_and_reported_after_each_poll() -> None:
    stage = Stage(address="node-a:9494")
    agent = FakeAgent(stage.clock, ranks=(rank_summary(0),))
    stage.run(agent, until_s=QUIET_AFTER_S + 7, quiet_poll_period_s=2.0)
    assert agent.polls_s == [*(number / 2 for number in range(60)), 30, 32, 34, 36]
    assert [one.sent_unix_s for one in stage.reporter.summaries] == [*range(31), 32, 34, 36]
    assert agent.searches_s == agent.polls_s


@pytest.mark.parametrize("change", [rank_summary(0, alive=False), rank_summary(0, cap_fraction=0.5)])
def test_a_quiet_node_is_polled_often_again_once_anything_changes(change: RankSummary) -> None:
    stage = Stage(address="node-a:9494")
    agent = FakeAgent(stage.clock, ranks=(rank_summary(0),))

    def changes() -> None:
        if stage.clock.now_s == 34:
            agent.ranks = (change,)

    stage.after_wait = changes
    stage.run(agent, until_s=70, quiet_poll_period_s=2.0)
    assert [at_s for at_s in agent.polls_s if 30 <= at_s < 36] == [30, 32, 34, 34.5, 35, 35.5]
    assert agent.polls_s[-3:] == [64, 66, 68]


def test_a_node_with_a_suspected_rank_is_never_quiet() -> None:
    stage = Stage(address="node-a:9494")
    agent = FakeAgent(stage.clock, ranks=(rank_summary(0), rank_summary(1, verdict=LEAK)))
    stage.run(agent, until_s=60, quiet_poll_period_s=2.0)
    assert len(agent.polls_s) == 120


def test_a_quiet_node_that_is_asked_for_something_is_polled_often_until_it_is_done() -> None:
    """Whoever asked waits for the evidence."""
    stage = Stage(address="node-a:9494")
    agent = FakeAgent(stage.clock)
    order = Order("o1", OrderTo.RANK, ProcessId(1, 2), 1000, {"command": "ping"}, 10.0)

    def asks() -> None:
        if stage.clock.now_s == 34:
            stage.reporter.reply = ReportReply(accepted=True, coordinator="c1", orders=(order,))

    stage.after_wait = asks
    stage.run(agent, until_s=36, quiet_poll_period_s=2.0)
    assert [at_s for at_s in agent.polls_s if at_s >= 32] == [32, 34, 34.5, 35, 35.5]


def test_a_quiet_node_is_polled_at_once_when_a_ring_was_found() -> None:
    clock, found_s = FakeClock(now_s=0.0), QUIET_AFTER_S + 1.25
    agent = FakeAgent(clock)

    def wait(seconds: float) -> bool:
        finds = clock.now_s < found_s <= clock.now_s + seconds
        clock.pass_s(found_s - clock.now_s if finds else seconds)
        if finds:
            runner.poll_soon()
        return clock.now_s >= QUIET_AFTER_S + 4

    runner = AgentRunner(
        agent, DirectReporter(FakeReporter().report), FakeFiles(), poll_period_s=0.5, report_period_s=1.0,
        quiet_poll_period_s=2.0, node_id="n", incarnation="i", monotonic_s=clock.monotonic_s, wait=wait,
    )  # fmt: skip
    runner.run()
    assert [at_s for at_s in agent.polls_s if at_s >= 30] == [30, 31.25, 33.25]


@pytest.mark.parametrize(("poll_period_s", "quiet_s"), [(0.05, 0.2), (0.5, 2.0), (1.0, 2.0), (2.0, 2.0), (30.0, 30.0)])
def test_a_quiet_node_is_never_polled_more_often_than_the_setting_says(poll_period_s: float, quiet_s: float) -> None:
    assert quiet_period_s(poll_period_s) == quiet_s


def test_a_reply_is_heard_when_it_comes_and_not_at_the_next_poll() -> None:
    """Over Ray it comes after the report was sent, and the next poll of a quiet node is 2 s away."""
    heard = threading.Event()

    class Later:
        replies: list[ReportReply]
        on_reply: Callable[[], None]

        def __init__(self) -> None:
            self.replies = []

        def listen(self, on_reply: Callable[[], None]) -> None:
            self.on_reply = on_reply

        def report(self, summary: NodeSummary) -> bool:
            threading.Thread(target=self.answer).start()
            return True

        def answer(self) -> None:
            self.replies.append(ReportReply(accepted=True, coordinator="c1", evidence_kept=("e1",)))
            self.on_reply()

        def hear(self) -> ReportReply | None:
            return self.replies.pop() if self.replies else None

    class Agent(FakeAgent):
        def hear_of_evidence(self, *_: object) -> None:
            heard.set()

    runner = AgentRunner(
        Agent(FakeClock()), Later(), FakeFiles(), poll_period_s=600, report_period_s=600, node_id="n", incarnation="i",
    )  # fmt: skip
    runner.start()
    assert heard.wait(PATIENCE_S)
    runner.stop()


def test_polls_do_not_wait_until_reports_may_be_made() -> None:
    stage = Stage(reports_from_s=1.7)
    agent = FakeAgent(stage.clock)
    stage.run(agent, until_s=4)
    assert agent.polls_s[:4] == [0, 0.5, 1, 1.5]
    assert [summary.sent_unix_s for summary in stage.reporter.summaries] == [2, 3]


def test_a_slow_poll_does_not_shift_the_rhythm_and_a_missed_one_is_left_out() -> None:
    stage = Stage()
    agent = FakeAgent(stage.clock, poll_takes_s=0.25)
    stage.run(agent, until_s=2)
    assert agent.polls_s == [0, 0.5, 1, 1.5]
    stage = Stage()
    agent = FakeAgent(stage.clock, poll_takes_s=1.25)
    stage.run(agent, until_s=6, report_period_s=60)
    assert agent.polls_s == [0, 1.25, 2.5, 3.75, 5.0]


def test_a_coordinator_that_is_away_is_said_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(reporter=FakeReporter(failing=True, reply=ReportReply(accepted=True, coordinator="c1")))
    agent = FakeAgent(stage.clock)

    def comes_back() -> None:
        stage.reporter.failing = stage.clock.now_s < 5

    stage.after_wait = comes_back
    with caplog.at_level("INFO"):
        stage.run(agent, until_s=10)
    assert len(agent.polls_s) == 20
    assert stage.reporter.calls == 10
    assert [summary.sent_unix_s for summary in stage.reporter.summaries] == [5, 6, 7, 8, 9]
    assert len(caplog.records) == 2


def test_the_agent_hears_which_evidence_is_kept_and_which_snapshots_must_stay() -> None:
    stage = Stage()
    stage.reporter.reply = ReportReply(
        accepted=True,
        coordinator="c1",
        evidence_kept=("e1", "e2"),
        profiles_kept=("p1",),
        snapshots_wanted=frozenset({"a/b"}),
    )
    agent = FakeAgent(stage.clock)
    stage.run(agent, until_s=1)
    assert (agent.kept, agent.wanted) == (["e1", "e2"], [frozenset({"a/b"})])
    assert agent.profiles_kept == ["p1"]


def test_settings_for_jobs_are_written_as_replied_and_reported_the_next_time() -> None:
    stage = Stage()
    wanted = (JobSettings("7", 1001, alloc_conf={"expandable_segments": "True"}),)
    stage.reporter.reply = ReportReply(accepted=True, coordinator="c1", job_settings=wanted)
    stage.run(FakeAgent(stage.clock), until_s=2)
    assert [summary.settings_digest for summary in stage.reporter.summaries] == [digest(()), digest(wanted)]


def test_a_reply_without_settings_leaves_them_alone() -> None:
    stage = Stage()
    stage.files.there = (JobSettings("7", 1001),)
    stage.reporter.reply = ReportReply(accepted=True, coordinator="c1")
    stage.run(FakeAgent(stage.clock), until_s=2)
    assert (stage.files.there, stage.files.writes) == ((JobSettings("7", 1001),), 0)


def test_a_beat_is_due_once() -> None:
    beat = Ticker(1.0, now_s=10)
    assert [beat.is_due(now_s) for now_s in (10, 10.5, 11, 11.1, 14.5, 14.6, 15.4, 15.5)] == [
        True, False, True, False, True, False, False, True,
    ]  # fmt: skip


def test_runner_passes_pod_facts_from_the_reply_to_the_agent() -> None:
    facts = PodFacts("u1", "team-a", "llm-0", "llm", "Job")
    stage = Stage(reporter=FakeReporter(reply=ReportReply(accepted=True, coordinator="c1", pods=(facts,))))
    agent = FakeAgent(stage.clock)
    stage.run(agent, until_s=1)
    assert agent.pods == [facts]


def test_a_beat_can_be_due_earlier_but_not_later() -> None:
    beat = Ticker(10.0, now_s=0)
    assert beat.is_due(0)
    beat.hasten(3.0)
    beat.hasten(5.0)
    assert [beat.is_due(now_s) for now_s in (2.9, 3.0, 4.0)] == [False, True, False]


def test_orders_are_carried_out_and_their_results_reported_long_before_the_next_beat() -> None:
    reported = threading.Event()
    order = Order("o1", OrderTo.RANK, ProcessId(1, 2), 1000, {"command": "ping"}, 10.0)

    class Reporter(FakeReporter):
        def report(self, summary: NodeSummary) -> ReportReply:
            super().report(summary)
            if summary.order_results:
                reported.set()
                return ReportReply(accepted=True, coordinator="c1")
            return ReportReply(accepted=True, coordinator="c1", orders=(order,))

    reporter = Reporter()
    runner = AgentRunner(
        FakeAgent(FakeClock()), DirectReporter(reporter.report), FakeFiles(), poll_period_s=600,
        report_period_s=600, node_id="n", incarnation="i",
    )  # fmt: skip
    runner.start()
    assert reported.wait(PATIENCE_S)
    runner.stop()
    assert [summary.order_results for summary in reporter.summaries] == [
        (), (OrderResult("o1", reply={"ok": True}),)
    ]  # fmt: skip


def test_the_thread_starts_and_stops_with_real_time() -> None:
    polled = threading.Event()

    class Agent(FakeAgent):
        def poll(self) -> None:
            polled.set()

    runner = AgentRunner(
        Agent(FakeClock()), DirectReporter(FakeReporter().report), FakeFiles(), poll_period_s=60,
        report_period_s=60, node_id="n", incarnation="i",
    )  # fmt: skip
    runner.start()
    assert polled.wait(PATIENCE_S)
    runner.stop(timeout_s=PATIENCE_S)
    assert "tidegauge-agent" not in {thread.name for thread in threading.enumerate()}


def test_a_refusal_that_comes_later_is_said_once_however_often_reports_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock(now_s=0.0)

    class Refused:
        """As over Ray: a report can be sent, and its answer is heard at a later poll."""

        sent_s: float | None = None

        def report(self, summary: NodeSummary) -> bool:
            self.sent_s = clock.now_s
            return True

        def hear(self) -> ReportReply | None:
            if self.sent_s in (None, clock.now_s):
                return None
            self.sent_s = None
            if clock.now_s < 10:
                raise ValueError("this one must be upgraded")
            return ReportReply(accepted=True, coordinator="c1")

        def listen(self, on_reply: Callable[[], None]) -> None:
            pass

    def wait(seconds: float) -> bool:
        clock.pass_s(seconds)
        return clock.now_s >= 20

    with caplog.at_level("INFO"):
        AgentRunner(
            FakeAgent(clock), Refused(), FakeFiles(), poll_period_s=0.5, report_period_s=1.0, node_id="n",
            incarnation="i", monotonic_s=clock.monotonic_s, wait=wait,
        ).run()  # fmt: skip
    assert [record.message for record in caplog.records] == [
        "this node's report cannot be sent to the coordinator; continuing: this one must be upgraded",
        "the coordinator accepts this node's reports again",
    ]


def test_a_paced_agent_polls_as_before_and_reports_when_it_was_asked_to() -> None:
    stage = Stage(address="node-a:9494")
    stage.reporter.reply = ReportReply(accepted=True, coordinator="c1", report_every_s=4.0)
    agent = FakeAgent(stage.clock)
    stage.run(agent, until_s=20)
    sent_s = [summary.sent_unix_s for summary in stage.reporter.summaries]
    assert len(agent.polls_s) == 40
    assert sent_s[0] == 0
    assert [after - before for before, after in zip(sent_s[1:], sent_s[2:])] == [4.0] * (len(sent_s) - 2)


def test_a_paced_agent_reports_again_at_once_after_a_failure() -> None:
    stage = Stage(address="node-a:9494")
    stage.reporter.reply = ReportReply(accepted=True, coordinator="c1", report_every_s=10.0)

    def fails_once() -> None:
        stage.reporter.failing = 14 < stage.clock.now_s < 21

    stage.after_wait = fails_once
    stage.run(FakeAgent(stage.clock), until_s=25)
    sent_s = [summary.sent_unix_s for summary in stage.reporter.summaries]
    assert next(second for second in sent_s if second > 14) == 21


def test_a_reply_is_taken_at_the_next_poll_not_at_the_next_report() -> None:
    class Late(FakeReporter):
        def hear(self) -> ReportReply | None:
            return self.reply if stage.clock.now_s == 1.5 else None

        def report(self, summary: NodeSummary) -> bool:  # type: ignore[override]  # as Ray: the answer comes later
            self.summaries.append(summary)
            return True

        def listen(self, on_reply: Callable[[], None]) -> None:
            pass

    stage = Stage()
    reporter = Late(reply=ReportReply(accepted=True, coordinator="c1", evidence_kept=("e1",)))
    agent = FakeAgent(stage.clock)
    heard_s: list[float] = []

    def wait(seconds: float) -> bool:
        stage.clock.pass_s(seconds)
        if agent.kept and not heard_s:
            heard_s.append(stage.clock.now_s)
        return stage.clock.now_s >= 5

    AgentRunner(
        agent, reporter, FakeFiles(), poll_period_s=0.5, report_period_s=4.0, node_id="n", incarnation="i",
        monotonic_s=stage.clock.monotonic_s, wait=wait,
    ).run()  # fmt: skip
    assert heard_s == [2.0]


def test_runner_passes_forgotten_persons_from_the_reply_to_the_agent() -> None:
    gone = Forgotten(5.0, (1001,))
    stage = Stage(reporter=FakeReporter(reply=ReportReply(accepted=True, coordinator="c1", forgotten=(gone,))))
    agent = FakeAgent(stage.clock)
    stage.run(agent, until_s=1)
    assert agent.forgotten == (gone,)
