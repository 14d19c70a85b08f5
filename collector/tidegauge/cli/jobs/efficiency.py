"""``tidegauge efficiency`` lists what ended jobs had and what they needed, and what would have done."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tidegauge.cli.arguments import OUTPUT, add_examples, group, some_text
from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.output import print_json, print_table, print_wrapped
from tidegauge.cli.service_api import add_api_arguments, ask, read, whose
from tidegauge.cli.times import ago, since_unix_s
from tidegauge.core.jobs.right_size import MIN_RUN_S, GpuUsage, SizedUsage, UsageBy
from tidegauge.core.units import format_bytes, format_duration, format_last

HELP = "list what ended jobs had and needed of their GPUs, and what the next run could ask for"
DEFAULT_SINCE = "7d"
DEFAULT_LIMIT, MAX_LIMIT = 20, 1000
HOUR_S, GIB = 3600.0, 1 << 30
MAILS = "mails to users"
GIVES_WAY = ("runs", "gpus", "user", "of", "unused")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    parser.add_argument(
        "--by", choices=[by.value for by in UsageBy], default=UsageBy.JOB.value, metavar="WHAT",
        help=f"sum runs up by {', '.join(by.value for by in UsageBy)} (default: job)",
    )  # fmt: skip
    parser.add_argument("--user", type=some_text, help="only runs of this user")
    parser.add_argument(
        "--name", type=some_text, help="only runs with this job name; * stands for any characters: 'llm-*'"
    )
    parser.add_argument(
        "--since", type=ago, default=ago(DEFAULT_SINCE), metavar="SINCE",
        help=f"runs that ended within this time (default: {DEFAULT_SINCE})",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=int, default=DEFAULT_LIMIT, help=f"lines at most (default: {DEFAULT_LIMIT}, up to {MAX_LIMIT})"
    )
    group(parser, OUTPUT).add_argument(
        "--for-submission", action="store_true",
        help="print what Slurm says (by Lua files) to who submits a job: user, job name and sentence, with tabs",
    )  # fmt: skip
    group(parser, OUTPUT).add_argument(
        "--for-sharing", action="store_true",
        help="print what the Lua files limit jobs on shared GPUs to: user, job name and bytes, with tabs",
    )  # fmt: skip
    group(parser, OUTPUT).add_argument(
        "--for-admission", action="store_true",
        help="print what the Kubernetes controller compares with the GPUs that Kueue assigns: user, job name, bytes, "
        "runs and runs out of memory, with tabs",
    )  # fmt: skip
    mails = group(parser, MAILS)
    mails.add_argument(
        "--mail", action="store_true",
        help="show who would get a mail on what their jobs left unused, and one such mail; nothing is sent (head only)",
    )  # fmt: skip
    mails.add_argument("--send", action="store_true", help="with --mail: send them, each user at most one in some days")
    add_examples(
        parser,
        "tidegauge efficiency                       jobs of the last week, most unused memory first",
        "tidegauge efficiency --by user --since 30d  the same by user",
        "tidegauge efficiency --name train --json    one job, for scripts",
        "tidegauge efficiency --mail --send          mails to users, once a week",
    )


def run(args: argparse.Namespace) -> int:
    if args.mail or args.send:
        return _mail(args)
    files = [name for name in FILES if getattr(args, name)]
    if len(files) > 1:
        raise UsageError(f"{' and '.join('--' + name.replace('_', '-') for name in files)} are two files")
    if files:
        args.by, args.limit = UsageBy.JOB.value, MAX_LIMIT
    query = {"by": args.by, "since": int(since_unix_s(args.since)), "limit": min(max(args.limit, 1), MAX_LIMIT)}
    query |= {name: given for name, given in (("user", args.user), ("name", args.name)) if given}
    answer = ask(args, f"/api/v1/usage?{urlencode(query)}")
    if args.json:
        print_json(answer)
        return FINE
    found = [read(SizedUsage, raw) for raw in answer["usage"]]
    if files:
        _print_file(found, FILES[files[0]])
        return FINE
    if not found:
        print_wrapped("", _none(args, answer))
        return FINE
    by_job = args.by == UsageBy.JOB.value
    header = (args.by, *(["user"] if by_job else []), "runs", "gpus", "of", "needed", "full", "GPU h", "unused")
    print_table(header, [_row(one, by_job=by_job) for one in found], gives_way=GIVES_WAY)
    advised = [f"{_name(one)}: {one.advice}" for one in found if one.advice and by_job]
    if args.name:
        advised += [_on_shared_gpus(one) for one in found if one.shared_bytes is not None and by_job]
    if advised:
        print()
    for line in advised:
        print_wrapped("", line)
    return FINE


def _none(args: argparse.Namespace, answer: Mapping[str, Any]) -> str:
    """The message without a run: what was looked for, and where else to look."""
    matching = [f"--{name} {shlex.quote(value)}" for name in ("user", "name") if (value := getattr(args, name))]
    seen = whose(answer)
    parts = [
        f"no run{' of yours' if seen else ''} of {format_duration(MIN_RUN_S)} or longer ended in the last "
        f"{format_last(args.since)}{' with ' if matching else ''}{' '.join(matching)}"
    ]
    if seen:
        parts.append(seen)
    further = "; `tidegauge efficiency --since 90d` looks further back" if args.since < ago("90d") else ""
    return f"{': '.join(parts)}{further}"


def _sentence(one: SizedUsage) -> Sequence[object]:
    return () if one.advice is None else (f"earlier runs {one.advice}",)


def _limit(one: SizedUsage) -> Sequence[object]:
    return () if one.shared_bytes is None else (one.shared_bytes,)


def _need(one: SizedUsage) -> Sequence[object]:
    return one.usage.highest_bytes, one.usage.runs, one.usage.ooms


FILES: Mapping[str, Callable[[SizedUsage], Sequence[object]]] = {
    "for_submission": _sentence, "for_sharing": _limit, "for_admission": _need,
}  # fmt: skip
"""The last columns of each file for other programs, by the option that prints it; none: no line."""


def _print_file(found: Iterable[SizedUsage], columns: Callable[[SizedUsage], Sequence[object]]) -> None:
    for one in found:
        told = columns(one)
        if told and one.usage.name and (one.usage.name + one.usage.user_name).isprintable():
            print(one.usage.user_name, one.usage.name, *told, sep="\t")


def _on_shared_gpus(one: SizedUsage) -> str:
    return (
        f"{_name(one)}: on a shared GPU {format_bytes(one.shared_bytes or 0)} at most, where the site limits jobs to "
        "what their earlier runs needed and the job states no memory fraction"
    )


def _mail(args: argparse.Namespace) -> int:
    from tidegauge.cli.jobs.efficiency_mail import mail

    if not args.mail:
        raise UsageError("--send goes with --mail")
    if args.api or args.json or any(getattr(args, name) for name in FILES) or args.by != UsageBy.JOB.value:
        raise UsageError("--mail goes with --since, --user and --name, not with --api, --json, --by or --for-…")
    return mail(args)


def _name(one: SizedUsage) -> str:
    return one.usage.name or "(none)"


def _full(usage: GpuUsage) -> str:
    """At most all of it: a cap does not bound memory outside PyTorch."""
    return f"{min(usage.needed_byte_seconds / usage.had_byte_seconds, 1.0):.0%}" if usage.had_byte_seconds else "-"


def _row(one: SizedUsage, *, by_job: bool) -> Sequence[str]:
    usage = one.usage
    return (
        _name(one),
        *([usage.user_name] if by_job else []),
        str(usage.runs),
        str(usage.gpus),
        format_bytes(usage.limit_bytes),
        format_bytes(usage.highest_bytes),
        _full(usage),
        f"{usage.gpu_seconds / HOUR_S:,.1f}",
        f"{usage.unused_byte_seconds / HOUR_S / GIB:,.0f} GiB h",
    )
