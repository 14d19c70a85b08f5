"""Forgets one person on the head: the database, the files beside it, and what the running service has in memory."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from tidegauge.cluster.coordinator.forgotten_list import add_forgotten
from tidegauge.cluster.personal_data.files import PersonFiles
from tidegauge.cluster.personal_data.writers import WriterError, Writers
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import Person, Store
from tidegauge.core.incidents.forgotten import PREFIX
from tidegauge.core.persons.forgotten import Forgotten, folder_digest, path_part
from tidegauge_exporter.notify.delivery_journal import DeliveryJournalError

_RANDOM_BYTES = 4


def new_pseudonym() -> str:
    """Random: nobody can compute the name from it, nor tell that two of them are one person."""
    return f"{PREFIX}{secrets.token_hex(_RANDOM_BYTES)}"


def forget_person(
    files: StateFiles, store: Store, person: Person, pseudonym: str, *, now_s: float, engine_dir: Path | None = None,
    writers: Writers | None = None,
) -> Mapping[str, int]:  # fmt: skip
    """Returns the number of entries by kind, as ``cli.persons.export`` calls them; again, it finds nothing.

    Raises ``StoreError``, ``WriterError`` and ``OSError``: then some of it may be done, and the next call does the
    rest. Nodes are told by the list that the coordinator reads when it starts.
    """
    writers = writers or Writers(files)
    of_files = PersonFiles(files, person, engine_dir=engine_dir)
    done = {"efficiency_mails": _forget_mails(of_files)}  # first: a round of mails that runs refuses it
    add_forgotten(files.forgotten, _to_forget(person, now_s))

    def while_nobody_writes() -> None:
        writers.end_coordinator()
        done["settings"] = of_files.forget_settings()
        done["switch"] = of_files.forget_switch(pseudonym)

    at_s = max(now_s, store.newest_s() or 0.0)
    done |= store.persons.forget(person, pseudonym, at_s=at_s, before_commit=while_nobody_writes)
    with writers.journal() as journal:
        done["journal"] = 0 if journal is None else of_files.forget_journal(journal, pseudonym)
    done["damaged"] = of_files.forget_damaged()
    done["log_lines"] = of_files.forget_log_lines()
    store.persons.clear_traces()
    return done


def _forget_mails(of_files: PersonFiles) -> int:
    try:
        return of_files.forget_mails()
    except DeliveryJournalError as error:
        raise WriterError("`tidegauge efficiency --mail --send` runs now, and may write to the user") from error


def _to_forget(person: Person, now_s: float) -> Forgotten:
    digests = {folder_digest(uid, path_part(job_id)) for job_id, _, uid in person.jobs}
    return Forgotten(now_s, tuple(sorted(person.uids)), tuple(sorted(digests)))
