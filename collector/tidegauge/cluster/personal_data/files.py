"""What the files beside the database say of one person: journal, settings of later attempts, switch, logs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegauge.cluster.personal_data.words import Words
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import Person
from tidegauge.core.incidents.forgotten import REMOVED
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.files import chown_for_root, owner_for_root, replace_file
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal, entries_of
from tidegauge_exporter.notify.story_lines import decision_key, key_of_incident
from tidegauge_exporter.notify.threads import SLACK

MIN_WORD_CHARS = 4
"""Of a job's name by which lines of logs are found: shorter ones are words of any log."""
MAX_LOG_BYTES = 64 << 20
_CHANNELS = (SLACK, "grafana")
"""Places that everybody sees: which message is about an incident stays known, so that it is rewritten without the
person and not sent again."""


class PersonFiles:
    """``engine_dir``: where Ray keeps logs of its own while the service runs; ``None``: nowhere."""

    def __init__(self, files: StateFiles, person: Person, *, engine_dir: Path | None = None) -> None:
        self._files = files
        self._person = person
        self._engine_dir = engine_dir
        words = {word for word in person.words if len(word) >= MIN_WORD_CHARS} | {job[0] for job in person.jobs}
        self._said = Words({*words, person.name})
        self._named = Words({person.name})
        self._incidents = {key_of_incident(number, opened_s) for number, opened_s in person.opened}
        self._decided = {decision_key(*one) for one in person.decided}
        self._tenants = [json.dumps(str(Tenant(uid))) for uid in person.uids]

    def rows(self) -> Mapping[str, Sequence[Any]]:
        """All that these files say, by kind; every kind is named."""
        return {
            "journal": [
                {"sink": sink, "key": key, "value": value}
                for (sink, key), value in entries_of(self._files.journal).items()
                if self._is_about(key, value)
            ],
            "efficiency_mails": [{"user": self._person.name, "value": value} for value in self._mails()],
            "settings": [one for one in _settings(self._files.job_settings) if self._is_of(one)],
            "switch": [text for text in _switch(self._files.actions).values() if self._names(text)],
            "log_lines": [
                {"file": str(path), "line": line.decode(errors="replace")}
                for path in self._logs()
                for _, line in self._lines(path)
            ],
        }

    def forget_journal(self, journal: DeliveryJournal, pseudonym: str) -> int:
        """Delete entries of direct messages; where a channel is told, only the person goes. Returns how many."""

        def revised(sink: str, key: str, value: str) -> str | None:
            without = value
            for tenant in self._tenants:
                without = without.replace(tenant, json.dumps(pseudonym))
            if self._said.are_in(without.encode()) or (sink not in _CHANNELS and self._is_about(key, value)):
                return None
            return without

        return journal.revise(revised)

    def forget_mails(self) -> int:
        """Delete when the user got mails on unused GPU memory; returns how many entries. Raises ``OSError``, and
        ``DeliveryJournalError`` while such mails are sent."""
        if not self._mails():
            return 0
        path = self._files.efficiency_mails
        journal = DeliveryJournal(path, wall_s=time.time)
        try:
            return journal.revise(lambda _, key, value: None if key == self._person.name else value)
        finally:
            journal.close()
            chown_for_root(path)

    def forget_settings(self) -> int:
        path = self._files.job_settings
        kept = _settings(path)
        rest = [one for one in kept if not self._is_of(one)]
        if len(rest) < len(kept):
            _write(path, {**json.loads(path.read_bytes()), "jobs": rest})
        return len(kept) - len(rest)

    def forget_switch(self, pseudonym: str) -> int:
        path = self._files.actions
        raw = _switch(path)
        changed = {key: self._named.replaced(text, pseudonym) for key, text in raw.items() if self._names(text)}
        if changed:
            _write(path, {**raw, **changed})
        return len(changed)

    def damaged(self) -> Sequence[Path]:
        """Copies of damaged files that speak of the person."""
        return [path for path in self._files.root.glob("*.damaged") if self._said.are_in(path.read_bytes())]

    def forget_damaged(self) -> int:
        gone = self.damaged()
        for path in gone:
            path.unlink()
        return len(gone)

    def forget_log_lines(self) -> int:
        """Overwrite the lines in place: a process that has the file open goes on behind them."""
        count = 0
        for path in self._logs():
            with path.open("r+b") as file:
                for at, line in list(self._lines(path)):
                    file.seek(at)
                    file.write(REMOVED.encode()[: len(line)].ljust(len(line)))
                    count += 1
                file.flush()
                os.fsync(file.fileno())
        return count

    def _mails(self) -> Sequence[str]:
        entries = entries_of(self._files.efficiency_mails)
        return [value for (_, key), value in entries.items() if key == self._person.name]

    def _is_about(self, key: str, value: str) -> bool:
        parts = key.split("/", 1)
        mine = key in self._incidents or (parts[0] in ("told", "done") and parts[-1] in self._decided)
        mine |= parts[0] == "found" and parts[-1].rpartition("/")[0] in self._incidents
        return mine or any(text in value for text in self._tenants) or self._said.are_in(value.encode())

    def _is_of(self, one: Any) -> bool:
        settings = one.get("settings", {}) if isinstance(one, dict) else {}
        job_id, uid = settings.get("job_id"), settings.get("uid")
        return uid in self._person.uids or (job_id, uid) in {(job[0], job[2]) for job in self._person.jobs}

    def _names(self, text: object) -> bool:
        return isinstance(text, str) and self._named.are_in(text.encode())

    def _logs(self) -> Iterator[Path]:
        folders = [self._files.logs]
        if self._engine_dir is not None:
            folders += sorted(self._engine_dir.glob("session_2*/logs"))
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_LOG_BYTES:
                    yield path

    def _lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Lines that speak of the person, each with its place in the file."""
        with path.open("rb") as file:
            at = 0
            for line in file:
                text = line.rstrip(b"\n")
                if self._said.are_in(text):
                    yield at, text
                at += len(line)


def _settings(path: Path) -> list[Any]:
    """The entries; none of a file that is missing or damaged, which the coordinator puts aside."""
    with suppress(OSError, ValueError):
        raw = json.loads(path.read_bytes())
        return list(raw["jobs"]) if isinstance(raw, dict) and isinstance(raw.get("jobs"), list) else []
    return []


def _switch(path: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        raw = json.loads(path.read_bytes())
        return raw if isinstance(raw, dict) else {}
    return {}


def _write(path: Path, value: object) -> None:
    replace_file(path, json.dumps(value, indent=1).encode(), durable=True, owner=owner_for_root(path.parent))
