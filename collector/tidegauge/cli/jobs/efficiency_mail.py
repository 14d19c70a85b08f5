"""``tidegauge efficiency --mail`` writes to users whose jobs left GPU memory unused: without ``--send`` it only shows
what it would do."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import BAD_NEWS, FINE, CommandError, UsageError
from tidegauge.cli.output import plain_lines, print_table, tame
from tidegauge.cli.persons.head import Head, opened_head
from tidegauge.cli.times import day
from tidegauge.core.jobs.right_size import SizedUsage, UsageBy
from tidegauge.core.jobs.waste import HOUR_S, UserWaste, WasteRules, parse_left_out, wasteful
from tidegauge.core.units import format_last

if TYPE_CHECKING:
    from tidegauge.core.persons.pseudonyms import Pseudonyms
    from tidegauge.settings import Settings
    from tidegauge_exporter.mail.html_parts import MailText
    from tidegauge_exporter.mail.outbox import Outbox
    from tidegauge_exporter.mail.waste_round import UserMail, WasteRound
    from tidegauge_exporter.mail.waste_text import WasteMails
    from tidegauge_exporter.notify.delivery_journal import DeliveryJournal

DAY_S = 86400.0
MAX_JOBS = 100_000
"""As many as there may be records."""
HEADER = ("user", "jobs", "GPU h", "needed", "unused", "mail")


def mail(args: argparse.Namespace) -> int:
    """Raises ``CommandError`` on another node than the head, and where mails cannot be sent."""
    with opened_head(args) as head:
        settings = _settings(args, head)
        return _send(head, settings, args) if args.send else _show(head, settings, args)


def _settings(args: argparse.Namespace, head: Head) -> Settings:
    """Those that the service was started with, and before them those that this command is given."""
    from tidegauge.settings import Settings

    given = load_settings(args)
    return Settings(**{**head.spec.settings, **given.model_dump(mode="json", exclude_unset=True)})


def _wasteful(head: Head, settings: Settings, args: argparse.Namespace) -> Sequence[UserWaste]:
    since_s = time.time() - args.since
    table = head.store.usage
    left_out = parse_left_out(settings.efficiency_mail_exclude or "")
    rows = table.usage(
        UsageBy.JOB, since_s=since_s, limit=MAX_JOBS, user_name=args.user, job_name=args.name, left_out=left_out
    )
    sizes = table.gpu_sizes(since_s=since_s)
    rules = WasteRules(
        settings.efficiency_mail_min_gpu_hours,
        settings.efficiency_mail_max_used_share,
        settings.efficiency_mail_min_runs,
    )
    return wasteful((SizedUsage.of(row, sizes) for row in rows), rules)


def _show(head: Head, settings: Settings, args: argparse.Namespace) -> int:
    """Print what would be sent, and one mail."""
    from tidegauge_exporter.mail.waste_round import Fate, read_record
    from tidegauge_exporter.mail.waste_text import waste_letter

    wastes = _wasteful(head, settings, args)
    if not wastes:
        return _nobody(settings, args.since)
    mails = _mails(settings, args.since)
    plan = _planned(settings, wastes, read_record(head.files.efficiency_mails))
    print_table(HEADER, [_row(one) for one in plan], gives_way=HEADER[1:5])
    due = [one for one in plan if one.fate is Fate.DUE]
    if due:
        letter = waste_letter(due[0].waste, mails)
        headers = (
            f"From: {settings.mail_from or '(mail_from is not set)'}", f"To: {due[0].address}",
            f"Subject: {letter.subject}",
        )  # fmt: skip
        print("", *map(tame, headers), "", *map(tame, letter.text.splitlines()), sep="\n")
    print(f"\nNothing was sent. `tidegauge efficiency --mail --send` sends {_count(len(due))}.")
    try:
        _outbox(settings)
    except CommandError as error:
        print(f"It cannot yet: {error}")
    return FINE


def _send(head: Head, settings: Settings, args: argparse.Namespace) -> int:
    from tidegauge_exporter.mail.waste_round import FAILURES, Fate, WasteRound, read_record

    outbox = _outbox(settings)
    mails = _mails(settings, args.since)
    with _record(head) as journal:
        # Not before it is ours: `forget` waits for nobody else, and whom it has deleted must not be written to.
        wastes = _wasteful(head, settings, args)
        if not wastes:
            return _nobody(settings, args.since)
        plan = _planned(settings, wastes, read_record(head.files.efficiency_mails))
        one_round = WasteRound(outbox, journal, mails, time.time)
        done = one_round.send(plan)
        print_table(HEADER, [_row(one) for one in done], gives_way=HEADER[1:5])
        sent, failed = (sum(one.fate in fates for one in done) for fates in ((Fate.SENT,), FAILURES))
        well = failed == 0
        if sent or failed:
            well &= _report(head, settings, one_round, done, sent=sent, failed=failed)
    return FINE if well else BAD_NEWS


@contextmanager
def _record(head: Head) -> Iterator[DeliveryJournal]:
    """The record of mails that were sent, for this process alone. Raises ``CommandError``."""
    from tidegauge.files import chown_for_root
    from tidegauge_exporter.notify.delivery_journal import DeliveryJournal, DeliveryJournalError

    path = head.files.efficiency_mails
    try:
        journal = DeliveryJournal(path, wall_s=time.time)
    except DeliveryJournalError as error:
        raise CommandError(f"another `tidegauge efficiency --mail --send` runs now ({path})") from error
    try:
        if journal.problem is not None:
            raise CommandError(f"{journal.problem}. Nothing was sent: it would be sent again the next time")
        yield journal
    finally:
        journal.close()
        for written in (path, path.with_name(f".{path.name}.lock")):
            if written.exists():
                chown_for_root(written)


def _outbox(settings: Settings) -> Outbox:
    """Raises ``UsageError``."""
    from tidegauge.cluster.incident_loops.notifying import MAIL_PASSWORD
    from tidegauge.secrets import SecretError, read_secret
    from tidegauge_exporter.mail.outbox import open_outbox
    from tidegauge_exporter.mail.owner_channel import checked_address

    try:
        outbox = open_outbox(settings, read_secret(settings.mail_password_file, os.environ, MAIL_PASSWORD))
        for address in _report_addresses(settings):
            checked_address(address, "efficiency_mail_report")
    except (SecretError, ValueError) as error:
        raise UsageError(f"{error} (docs/mail.md)") from error
    return outbox


def _mails(settings: Settings, span_s: float) -> WasteMails:
    from tidegauge_exporter.mail.waste_text import WasteMails

    return WasteMails(
        settings.cluster, span_s, settings.efficiency_mail_every_days * DAY_S, settings.efficiency_mail_greeting
    )


def _planned(settings: Settings, wastes: Sequence[UserWaste], record: Mapping[str, str]) -> Sequence[UserMail]:
    from tidegauge_exporter.mail.owner_channel import recipient_domain
    from tidegauge_exporter.mail.waste_round import planned

    try:
        domain = None if settings.mail_domain is None else recipient_domain(settings.mail_domain)
    except ValueError as error:
        raise UsageError(str(error)) from error
    every_s = settings.efficiency_mail_every_days * DAY_S
    return planned(wastes, record, domain=domain, every_s=every_s, now_unix_s=time.time())


def _report(
    head: Head, settings: Settings, one_round: WasteRound, done: Sequence[UserMail], *, sent: int, failed: int
) -> bool:
    """Whether all reports are sent."""
    from tidegauge.cluster.pseudonym_key import pseudonyms_of
    from tidegauge_exporter.mail.waste_text import report_letter

    addresses = _report_addresses(settings)
    if not addresses:
        return True
    names = pseudonyms_of(settings, head.files)
    lines = plain_lines(HEADER, [_row(one, names) for one in done])
    letter = report_letter(lines, one_round.mails, sent=sent, failed=failed)
    told = [_reported(one_round, address, letter) for address in addresses]
    return all(told)


def _reported(one_round: WasteRound, address: str, letter: MailText) -> bool:
    from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

    try:
        one_round.report(address, letter)
    except (RefusedError, RetryLaterError) as error:
        print(f"no report to {address}: {error}")
        return False
    return True


def _report_addresses(settings: Settings) -> Sequence[str]:
    from tidegauge.settings import comma_separated

    return comma_separated(settings.efficiency_mail_report)


def _row(one: UserMail, names: Pseudonyms | None = None) -> Sequence[str]:
    from tidegauge_exporter.mail.waste_text import gib_hours

    waste = one.waste
    what = one.fate.value.format(day="" if one.before_unix_s is None else day(one.before_unix_s))
    told = [what, one.problem] if one.problem else [what]
    if one.address is not None and one.before_unix_s is None:
        told.insert(0, one.address)
    said = ": ".join(told)
    user = waste.user_name
    if names is not None:
        user, said = names.of(user), names.instead_of(user, said)
    return (
        user, str(len(waste.jobs)), f"{waste.gpu_seconds / HOUR_S:,.0f}", f"{waste.used_share:.0%}",
        gib_hours(waste.unused_byte_seconds), said,
    )  # fmt: skip


def _nobody(settings: Settings, span_s: float) -> int:
    print(
        f"nobody to write to: no user's jobs of the last {format_last(span_s)} that needed at most "
        f"{settings.efficiency_mail_max_used_share:.0%} of their GPU memory, in at least "
        f"{settings.efficiency_mail_min_runs} runs, and could have asked for less, ran for "
        f"{settings.efficiency_mail_min_gpu_hours:,g} GPU-hours in all (settings efficiency_mail_*)"
    )
    return FINE


def _count(mails: int) -> str:
    return "no mail" if mails == 0 else "this mail" if mails == 1 else f"{mails} such mails"
