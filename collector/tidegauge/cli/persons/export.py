"""``tidegauge export --user USER`` writes everything that the head keeps about a person as JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegauge.cli.arguments import STANDARD_OUTPUT
from tidegauge.cli.errors import FINE, CommandError, cannot_write
from tidegauge.cli.output import print_json
from tidegauge.cli.persons.head import opened_head, uids_of, user_name

KINDS = {
    "job_records": "one record of each attempt of each job: what ran, where, when, and the highest memory",
    "job_memory": "the peaks of the ranks of these jobs, and how the memory of the fullest ones went",
    "evidence": "why memory grew: lines of code, stacks, names of objects, keys of snapshots in the snapshot store",
    "profiles": "what filled the memory of a rank at its peak, by line of code",
    "incidents": "problems of the jobs' memory as they were last",
    "incident_changes": "the history of these incidents",
    "incident_memory": "how the memory of the ranks of these incidents went",
    "decisions": "the audit: each action on these jobs with its reason, the facts behind it, and how it ended",
    "grades": "answers of people about these incidents, and the person's answers about others",
    "acts": "what people asked for about these incidents, and what the person asked for about others, on Slack too",
    "journal": "messages that were sent about these jobs, and where: ids in Slack, addresses and ids of mails",
    "efficiency_mails": "when the person got a mail on unused GPU memory",
    "settings": "settings for later attempts of these jobs",
    "switch": "what the switch for all actions says of the person",
    "log_lines": "lines of the head's log files that name the person or one of the jobs",
}
"""What each file of an export holds."""
NOT_HERE = (
    "Not in this export: the snapshots themselves (on the nodes or in the snapshot store, by the keys in evidence and "
    "profiles), log files of agents on nodes, and what others keep: Prometheus, Slack, mail, Grafana, backups."
)


def export_person(args: argparse.Namespace) -> int:
    name = user_name(args.user)
    with opened_head(args) as head:
        from tidegauge.cluster.personal_data.files import PersonFiles

        person = head.store.persons.find(name, uids_of(name))
        rows = head.store.persons.rows(person)
        rows = {**rows, **PersonFiles(head.files, person, engine_dir=Path(head.spec.engine_dir)).rows()}
    index = {
        "user": name,
        "uids": sorted(person.uids),
        "made_unix_s": time.time(),
        "not_here": NOT_HERE,
        "kinds": {kind: {"what": what, "entries": len(rows[kind])} for kind, what in KINDS.items()},
    }
    if args.output == STANDARD_OUTPUT:
        print_json({"index": index, **{kind: rows[kind] for kind in KINDS}})
        return FINE
    _write_folder(args.output, {"index": index, **{kind: rows[kind] for kind in KINDS}})
    found = sum(map(len, rows.values()))
    print(f"{args.output}: {found} entries about {name} in {len(KINDS)} files; index.json says what each is")
    return FINE


def _write_folder(folder: Path, files: Mapping[str, Any]) -> None:
    try:
        folder.mkdir(mode=0o700)
        for name, content in files.items():
            path = folder / f"{name}.json"
            path.touch(mode=0o600)
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{cannot_write(folder, error)}; or name another folder with -o") from error
