"""The rung ``snapshot``: the rank to look at first is asked for evidence, whatever scheduler the job is of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduler_hooks.carry_out_bench import Bench, wanted
from scheduler_values import finding, incident
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind, Outcome, RankTarget
from tidegauge.core.orders import GONE
from tidegauge_scheduler_hooks.ports import PermanentError, Reply, TemporaryError
from tidegauge_scheduler_hooks.rank_commands import ask_for_evidence

MADE = wanted(ActionKind.SNAPSHOT, incident=incident(findings=(finding(3), finding(0))))


class Ranks:
    """``ProcessCommands`` that keeps what it was asked."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[tuple[JobKey, RankTarget, Mapping[str, Any]]] = []

    def ask_ranks(
        self, job: JobKey, ranks: Collection[RankTarget], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[int, Reply]:
        self.asked += [(job, rank, request) for rank in ranks]
        return {rank.rank: self.reply for rank in ranks}

    def ask_launch(
        self, job: JobKey, node_id: str, handle: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float
    ) -> Reply:
        raise AssertionError("nobody asks a keeper for evidence")


def test_the_rank_to_look_at_first_is_asked_under_the_decisions_id() -> None:
    ranks = Ranks(Reply({"ok": True, "state": "recording"}))
    assert ask_for_evidence(ranks, MADE) == f"rank 3 is collecting evidence {MADE.decision_id}"
    ((job, rank, request),) = ranks.asked
    assert (job, rank.rank, rank.node_id, rank.process) == (
        MADE.target.job, 3, finding(3).node_id, finding(3).process,
    )  # fmt: skip
    assert (request["command"], request["id"], request["reason"]) == ("evidence", MADE.decision_id, "policy")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(error="the job records by itself", kind="busy"), TemporaryError),
        (Reply(error="no answer from the agent on node0 within 20 s"), TemporaryError),
        (Reply(error="this torch has no history", kind="unable"), PermanentError),
        (Reply(error="pid 1003 has ended", kind=GONE), PermanentError),
        (Reply(error="no such command: evidence"), PermanentError),
    ],
)
def test_rank_evidence_error_is_temporary_only_if_a_retry_may_work(reply: Reply, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"job 4711: rank 3 cannot collect evidence: {reply.error}"):
        ask_for_evidence(Ranks(reply), MADE)


def test_an_incident_without_ranks_asks_nobody() -> None:
    with pytest.raises(PermanentError, match="no rank to request evidence from"):
        ask_for_evidence(Ranks(Reply({})), replace(MADE, incident=incident(findings=())))


def test_rank_evidence_needs_no_scheduler_adapter() -> None:
    bench, made = Bench(), replace(MADE, target=replace(MADE.target, scheduler="unheard of"))
    bench.decide(made)
    bench.finish()
    assert (bench.outcome(made), bench.effects(made)) == (Outcome.DONE, 1)
