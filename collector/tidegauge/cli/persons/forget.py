"""``tidegauge forget USER`` deletes what is kept about a person, or puts a pseudonym in the person's place."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.arguments import add_examples
from tidegauge.cli.config import add_settings_arguments
from tidegauge.cli.errors import FINE, CommandError, UsageError
from tidegauge.cli.output import print_table, progress
from tidegauge.cli.persons.head import Head, opened_head, uids_of, user_name

if TYPE_CHECKING:
    from tidegauge.cluster.store import Person

HELP = "delete what is kept about a user, on the head and on nodes"
MAX_JOBS_NAMED = 10
DELETED, PSEUDONYM = "deleted", "without the person"
KINDS = {
    "job_records": ("database", "records of jobs", DELETED),
    "job_memory": ("database", "memory of these jobs", DELETED),
    "evidence": ("database", "evidence", DELETED),
    "profiles": ("database", "memory profiles", DELETED),
    "incident_memory": ("database", "memory of incidents", DELETED),
    "incidents": ("database", "incidents", PSEUDONYM),
    "incident_changes": ("database", "history of incidents", PSEUDONYM),
    "decisions": ("database", "audit of actions", PSEUDONYM),
    "grades": ("database", "grades, their comments", PSEUDONYM),
    "acts": ("database", "acts, their words and accounts", PSEUDONYM),
    "journal": ("notified.jsonl", "direct messages; of channels: the uid", DELETED),
    "efficiency_mails": ("efficiency_mails.jsonl", "mails on unused GPU memory", DELETED),
    "settings": ("settings.json", "settings of later attempts", DELETED),
    "switch": ("actions.json", "who paused actions", PSEUDONYM),
    "log_lines": ("logs/", "lines of logs", DELETED),
    "damaged": ("*.damaged", "copies of damaged files", DELETED),
}
"""Where, what and how, by kind of an export."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("user", metavar="USER", help="name of the user, as `tidegauge jobs` shows it")
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted, and change nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--running-too", action="store_true",
        help="also if jobs of the user run: what is known of them until now goes, and they are recorded anew",
    )  # fmt: skip
    add_settings_arguments(parser)
    add_examples(
        parser,
        "tidegauge export --user ada -o ada   what is kept, before it goes",
        "tidegauge forget ada --dry-run       what would be deleted",
        "tidegauge forget ada                 delete it",
    )


def run(args: argparse.Namespace) -> int:
    name = user_name(args.user)
    with opened_head(args) as head:
        person = head.store.persons.find(name, uids_of(name))
        found = _found(head, person)
        if not any(found.values()):
            print(f"nothing is kept about {name} on this head")
            return FINE
        if person.running and not (args.running_too or args.dry_run):
            raise CommandError(_still_runs(person))
        if args.dry_run:
            _print(found)
            print(f"\nNothing was changed. `tidegauge forget {name}` does it.")
            return FINE
        if not args.yes:
            _ask(name, found)
        _forget(head, person)
    return FINE


def _found(head: Head, person: Person) -> Mapping[str, int]:
    from tidegauge.cluster.personal_data.files import PersonFiles

    of_files = PersonFiles(head.files, person, engine_dir=Path(head.spec.engine_dir))
    rows = {**head.store.persons.rows(person), **of_files.rows()}
    return {**{kind: len(entries) for kind, entries in rows.items()}, "damaged": len(of_files.damaged())}


def _forget(head: Head, person: Person) -> None:
    from tidegauge.cluster.personal_data.forgetting import forget_person, new_pseudonym
    from tidegauge.cluster.personal_data.writers import WriterError
    from tidegauge.cluster.store import StoreError

    pseudonym = new_pseudonym()
    try:
        with progress("forget") as say:
            say("deleting, and writing the database anew")
            done = forget_person(
                head.files, head.store, person, pseudonym, now_s=time.time(), engine_dir=Path(head.spec.engine_dir)
            )
    except (StoreError, WriterError, OSError) as error:
        raise CommandError(f"{error}. Not everything is deleted: run this again when that is mended") from error
    _print(done)
    print(
        f"\n{pseudonym} stands for {person.name} in what stays: that actions were taken, on which incidents, and when."
    )
    print("Agents delete the snapshots with their next report; nodes that are away, when they are back.")
    others = head.store.persons.mentions(person.names)
    if others:
        print(f"{others} rows about other users have the name in them, such as paths of files: they stay.")
    print("Not within reach: Prometheus, Slack, mail, Grafana, backups (docs/privacy.md says what to do there).")


def _print(counts: Mapping[str, int]) -> None:
    rows = [(*KINDS[kind], str(counts[kind])) for kind in KINDS if counts.get(kind)]
    print_table(("where", "what", "how", "entries"), rows)


def _still_runs(person: Person) -> str:
    jobs = _named(person.running)
    return (
        f"NOTHING WAS DELETED: {person.name} has running jobs, or had when the service last ran ({jobs}). Wait until "
        "they have ended, or use --running-too: what is known of them until now goes, and they are recorded anew"
    )


def _named(jobs: Collection[str]) -> str:
    some = ", ".join(list(jobs)[:MAX_JOBS_NAMED])
    return some if len(jobs) <= MAX_JOBS_NAMED else f"{some} and {len(jobs) - MAX_JOBS_NAMED} more"


def _ask(name: str, found: Mapping[str, int]) -> None:
    """Raises ``UsageError`` unless a person says yes."""
    if not sys.stdin.isatty():
        raise UsageError(f"nobody can be asked here: add --yes, or see with `tidegauge forget {name} --dry-run`")
    _print(found)
    print(f"\nDelete all this about {name}? It cannot be undone. Type the name of the user: ", end="", flush=True)
    if sys.stdin.readline().strip() != name:
        raise UsageError("nothing was deleted: that is not the name")
