"""``tidegauge policy status`` and ``log`` show the state of policy and actions, and all decisions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidegauge.cli.errors import BAD_NEWS, FINE, CommandError
from tidegauge.cli.output import print_json, print_table, print_wrapped
from tidegauge.cli.service_api import add_api_arguments, ask, local_service, read
from tidegauge.cli.timeline import became, whence
from tidegauge.cli.times import ago, clock, moment, since_unix_s
from tidegauge.core.incidents.actions import DecisionRecord, LoopStatus
from tidegauge.core.incidents.acts import PersonAct, act_in_words
from tidegauge.core.incidents.wording import MODE_WORDS, name_job
from tidegauge.core.units import format_count

LOG_HEADER = ("time", "incident", "job", "user", "action", "outcome", "policy", "why")
ACTS_HEADER = ("time", "incident", "what people did", "account on Slack")
DAY_S = 86400.0


def prepare_log(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    parser.add_argument("--since", type=ago, default=DAY_S, metavar="1d", help="how far back (default: 1d)")
    parser.add_argument(
        "--limit", type=int, default=1000, metavar="N",
        help="limit the output to the newest N (default and maximum: 1000)",
    )  # fmt: skip


def status(args: argparse.Namespace) -> int:
    try:
        answer = ask(args, "/api/v1/policy")
    except CommandError as error:
        paused = _paused_here(args)
        if paused is None:
            raise
        raise CommandError(
            f"{error}. Actions are PAUSED {paused} (the switch on this head)", exit_code=error.exit_code
        ) from error
    found = read(LoopStatus, answer)
    if args.json:
        print_json(answer)
    else:
        for name, text in lines(found):
            print_wrapped(f"{name:<12}", text)
    return FINE if is_well(found) else BAD_NEWS


def _paused_here(args: argparse.Namespace) -> str | None:
    """The pause that is set on this head, which is in force when its service starts."""
    from tidegauge.cluster.incident_loops.action_switch import ActionSwitch

    return None if args.api else ActionSwitch(local_service(args)[0].actions).paused()


def is_well(found: LoopStatus) -> bool:
    """True without a problem; a pause is none."""
    broken = (found.policy_problem, found.breaker, found.store_problem, found.records_problem)
    return all(problem is None for problem in broken) and not (found.scheduler_problems or found.user_breakers)


def lines(found: LoopStatus) -> list[tuple[str, str]]:
    """Names and texts of the page."""
    page = [
        ("mode", f"{found.mode}: {MODE_WORDS[found.mode]}"),
        ("policy", found.policy_file or "default (`tidegauge policy show --default` prints it)"),
    ]
    if found.policy_problem is not None:
        page.append(("PROBLEM", f"{found.policy_problem} (the last valid policy stays in force, else the default)"))
    page += [
        ("actions", "not paused" if found.paused is None else f"PAUSED {found.paused}"),
        (
            "breaker",
            "closed" if found.breaker is None else f"OPEN: {found.breaker}; `tidegauge policy resume` resets it",
        ),
        *(("breaker", f"OPEN: {why}; `tidegauge policy resume` resets it") for why in found.user_breakers),
        ("database", "ok" if found.store_problem is None else f"PROBLEM, no decisions: {found.store_problem}"),
        (
            "records",
            "ok" if found.records_problem is None else f"PROBLEM, no jobs are recorded: {found.records_problem}",
        ),
        *((name, f"PROBLEM: {problem}") for name, problem in sorted(found.scheduler_problems.items())),
        ("incidents", f"{found.incidents_open} open"),
    ]
    for each in found.under_way:
        what = f"{each.action.value} of {name_job(each.job)} since {clock(each.since_s)}: {each.what}"
        page.append(("in progress", what))
    return page


def in_one_line(found: LoopStatus) -> str:
    """The state in one line, for ``tidegauge status``."""
    parts = [f"policy {found.mode}", f"{format_count(found.incidents_open, 'incident')} open"]
    if found.paused is not None:
        parts.append(f"PAUSED {found.paused}")
    if found.breaker is not None:
        parts.append("circuit breaker OPEN")
    if found.user_breakers:
        parts.append(f"circuit breaker of {format_count(len(found.user_breakers), 'user')} OPEN")
    if found.under_way:
        parts.append(f"{format_count(len(found.under_way), 'action')} in progress")
    if found.records_problem:
        parts.append("NO RECORDS of jobs")
    if found.policy_problem or found.store_problem or found.records_problem or found.scheduler_problems:
        parts.append("PROBLEMS, see `tidegauge policy status`")
    return ", ".join(parts)


def log(args: argparse.Namespace) -> int:
    answer = ask(args, f"/api/v1/decisions?since={since_unix_s(args.since)}&limit={max(args.limit, 0)}")
    if args.json:
        print_json(answer)
        return FINE
    records = [read(DecisionRecord, raw) for raw in answer["decisions"]]
    acts = [read(PersonAct, raw) for raw in answer.get("acts", ())]  # missing in an older service's answer
    if answer["left_out"]:
        print(f"{answer['left_out']} older decisions are not shown (--limit)\n")
    if records:
        print_table(LOG_HEADER, [_row(record) for record in records])
    else:
        print("no decisions in this period")
    if acts:
        print()
        print_table(ACTS_HEADER, [_act_row(act) for act in acts])
    return FINE


def _act_row(act: PersonAct) -> Sequence[str]:
    return moment(act.at_unix_s), str(act.number), act_in_words(act, when=moment), act.sender or "-"


def _row(record: DecisionRecord) -> Sequence[str]:
    decision = record.decision
    return (
        moment(decision.decided_s),
        str(decision.incident.number),
        name_job(decision.called).removeprefix("job "),
        decision.incident.user_name,
        decision.action.value,
        became(record) + (f": {record.detail}" if record.detail else ""),
        whence(decision),
        decision.reason,
    )
