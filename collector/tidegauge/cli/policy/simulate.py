"""``tidegauge policy simulate`` shows what a policy would have done about recent incidents."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegauge.cli.arguments import add_examples
from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.output import print_json, print_table, print_wrapped
from tidegauge.cli.policy.files import need_policy, read_file
from tidegauge.cli.service_api import LONG_ANSWER_S, add_api_arguments, ask, read
from tidegauge.cli.timeline import whence
from tidegauge.cli.times import ago, moment, since_unix_s
from tidegauge.core.incidents import IncidentChange
from tidegauge.core.incidents.actions import Decision, Disposition, JobFacts
from tidegauge.core.incidents.wording import name_job
from tidegauge.core.units import format_last

if TYPE_CHECKING:
    from tidegauge_scheduler_hooks.policy.models import Policy
    from tidegauge_scheduler_hooks.policy.simulate import Simulation

HEADER = ("time", "incident", "job", "user", "cause", "action", "outcome", "policy")
WEEK_S = 604800.0


def prepare(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="policy file")
    parser.add_argument("--since", type=ago, default=WEEK_S, metavar="7d", help="how far back (default: 7d)")
    add_examples(
        parser,
        "tidegauge policy simulate policy.yaml              the last 7 days",
        "tidegauge policy simulate policy.yaml --since 30d",
    )


def run(args: argparse.Namespace) -> int:
    need_policy()
    from tidegauge_scheduler_hooks.policy.simulate import simulate

    policy = _policy(args.file)
    answer = ask(args, f"/api/v1/incident-changes?since={since_unix_s(args.since)}", timeout_s=LONG_ANSWER_S)
    changes = [read(IncidentChange, raw) for raw in answer["changes"]]
    facts = {int(number): read(JobFacts, raw) for number, raw in answer["facts"].items()}
    now_s = max((change.at_unix_s for change in changes), default=0.0)  # the coordinator's clock may be ahead of ours
    simulation = simulate(changes, facts, policy, until_s=max(now_s, time.time()))
    if args.json:
        print_json(_as_json(simulation, left_out=answer["left_out"]))
        return FINE
    if simulation.decisions:
        print_table(HEADER, [_row(decision) for decision in simulation.decisions])
        print()
    for text in _in_words(simulation, policy, since_s=args.since, left_out=answer["left_out"]):
        print_wrapped("", text)
    return FINE


def _policy(path: Path) -> Policy:
    from tidegauge_scheduler_hooks.policy.check import check_policy

    policy = check_policy(read_file(path)).policy
    if policy is None:
        raise UsageError(f"{path} is not a valid policy: run `tidegauge policy check {path}`")
    return policy


def _row(decision: Decision) -> Sequence[str]:
    withheld = decision.disposition is Disposition.WITHHELD
    return (
        moment(decision.decided_s),
        str(decision.incident.number),
        name_job(decision.called).removeprefix("job "),
        decision.incident.user_name,
        decision.incident.key.cause.value,
        decision.action.value,
        f"on hold ({decision.brake}): {decision.reason}" if withheld else "would be done",
        whence(decision),
    )


def _in_words(simulation: Simulation, policy: Policy, *, since_s: float, left_out: int) -> Iterator[str]:
    """Sentences below the table: totals, then limits of the simulation."""
    if not simulation.incidents:
        yield f"nothing to simulate: no incidents in the last {format_last(since_s)}"
        return
    totals = ", ".join(f"{count} x {action.value}" for action, count in simulation.totals.items()) or "nothing"
    yield f"{simulation.incidents} incidents since {moment(simulation.from_s)}. Actions in mode act: {totals}."
    yield (f"Jobs acted on: {len(simulation.jobs_touched)}; jobs whose owner is notified: {len(simulation.jobs_told)}.")
    if simulation.brakes:
        held = ", ".join(f"{brake} {count}" for brake, count in sorted(simulation.brakes.items()))
        yield f"On hold, by brake: {held}."
    if simulation.breaker is not None:
        yield f"The circuit breaker would have opened ({simulation.breaker}): no actions after that until it is reset."
    for why in simulation.user_breakers:
        yield f"A user's breaker would have opened ({why}): no actions on that user's jobs until it is reset."
    if simulation.assumed:
        numbers = ", ".join(map(str, simulation.assumed))
        yield (
            f"No job records for these incidents: {numbers}. The simulation assumes that their owners can be notified, "
            "and that the jobs can neither checkpoint nor requeue."
        )
    if left_out:
        yield f"{left_out} intermediate figures are missing from the answer: some actions may appear too late."
    yield (
        "The simulation assumes that every action succeeds immediately. After an action that ends a job, the job is "
        "ignored, although it kept running."
    )
    if policy.mode != "act":
        yield f"The mode in this file is {policy.mode}: as it is, no action would be taken on a job."


def _as_json(simulation: Simulation, *, left_out: int) -> dict[str, Any]:
    from tidegauge.core.wire import to_wire

    return {
        "from_unix_s": simulation.from_s,
        "until_unix_s": simulation.until_s,
        "incidents": simulation.incidents,
        "totals": to_wire(simulation.totals),
        "jobs_touched": to_wire(sorted(simulation.jobs_touched)),
        "jobs_told": to_wire(sorted(simulation.jobs_told)),
        "brakes": to_wire(simulation.brakes),
        "breaker": simulation.breaker,
        "user_breakers": list(simulation.user_breakers),
        "assumed": list(simulation.assumed),
        "left_out": left_out,
        "decisions": to_wire(simulation.decisions),
    }
