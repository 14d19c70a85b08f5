"""Settings for later attempts of jobs: kept on the head's disk, sent to agents in the replies to their reports.

Implements the hooks' ``ports.SettingsStore``. All nodes get one set, because a job may start anywhere; agents report
the digest of the set on their node (``core.jobs.settings.digest``) and receive the whole set when it differs.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.jobs.settings import JobSettings, decode, digest, encode
from tidegauge.core.views import NodeSummary
from tidegauge.files import replace_file

log = logging.getLogger(__name__)

MAX_JOBS = 10_000
"""Each is a small file on every node."""
UNSEEN_DAYS = 14.0
"""Settings of a job that no agent has seen for so long are dropped. A requeued job may wait in the queue for days."""
LOOK_EVERY_S = 3600.0
"""How often it is noted which jobs are there."""
DAY_S = 86400.0
VERSION = 1


class SettingsKeptError(AuditError):
    """The settings file cannot be written or read."""


@dataclass(frozen=True)
class _Kept:
    settings: JobSettings
    seen_unix_s: float
    """When the job was last there, or its settings were last changed."""

    @property
    def key(self) -> tuple[str, int]:
        return self.settings.job_id, self.settings.uid


class JobSettingsStore:
    """Thread-safe. ``path`` is ``StateFiles.job_settings``; ``reporting`` gives the latest summary of every node whose
    agent reports (``Coordinator.heard_lately``), and must not wait for the store.

    Raises ``SettingsKeptError`` if the file cannot be read. A damaged file is renamed, and the store begins empty.
    """

    def __init__(
        self,
        path: Path,
        *,
        wall_s: Callable[[], float],
        reporting: Callable[[], Sequence[NodeSummary]],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._wall_s = wall_s
        self._reporting = reporting
        self._monotonic_s = monotonic_s
        self._writing = threading.Lock()
        """Held while the file is written; ``_changed`` never is, so that a slow disk holds up no report."""
        self._changed = threading.Condition()
        self._look_s = monotonic_s() + LOOK_EVERY_S
        self._kept: dict[str, _Kept] = {}
        """By job id."""
        self._settings: tuple[JobSettings, ...] = ()
        self._digest = digest(())
        self._take(_read(path))

    def get(self, job_id: str, uid: int) -> JobSettings | None:
        with self._changed:
            kept = self._kept.get(job_id)
        return kept.settings if kept is not None and kept.settings.uid == uid else None

    def put(self, settings: JobSettings) -> None:
        """Replace the settings of a job; they are on disk when this returns.

        A job with the same id of another user is an older one: its settings go. Raises ``SettingsKeptError``, and
        ``ValueError`` for settings that no probe would accept.
        """
        decode(encode(settings))
        with self._writing:
            kept = self._seen_now()
            kept[settings.job_id] = _Kept(settings, self._wall_s())
            self._keep(kept)

    def missing_on(self, *, timeout_s: float) -> Sequence[str]:
        """Wait until every reporting node has all settings; returns the hosts that do not have them by then.

        Nodes on which Slurm starts no job, such as the head, do not count: its users must not delay anybody's job.
        """
        deadline_s = self._monotonic_s() + timeout_s
        with self._changed:
            while True:
                missing = [
                    node.hostname
                    for node in self._reporting()
                    if node.settings_digest != self._digest and node.slurm_node is not False
                ]
                left_s = deadline_s - self._monotonic_s()
                if not missing or left_s <= 0:
                    return sorted(missing)
                self._changed.wait(left_s)

    def reply_to(self, summary: NodeSummary, *, before: NodeSummary | None) -> tuple[JobSettings, ...] | None:
        """The settings for the reply to a report, once ``reporting`` includes it; ``None`` if the node has them.
        ``before`` is its previous report."""
        self._look_at_jobs()
        with self._changed:
            if before is None or before.settings_digest != summary.settings_digest:
                self._changed.notify_all()
            return None if summary.settings_digest == self._digest else self._settings

    def _look_at_jobs(self) -> None:
        """Note now and then which jobs are there, so that their settings are not dropped."""
        if self._monotonic_s() < self._look_s or not self._writing.acquire(blocking=False):
            return
        try:
            self._look_s = self._monotonic_s() + LOOK_EVERY_S
            if self._kept:
                self._keep(self._seen_now())
        except SettingsKeptError as error:
            log.warning("%s: if this persists, settings of jobs are dropped too early", error)
        finally:
            self._writing.release()

    def _seen_now(self) -> dict[str, _Kept]:
        """All entries; those of jobs that are there now are marked as seen."""
        now_s = self._wall_s()
        there = {(rank.identity.job_id, rank.uid) for node in self._reporting() for rank in node.ranks}
        with self._changed:
            kept = dict(self._kept)
        return {
            job_id: replace(one, seen_unix_s=now_s) if one.key in there else one for job_id, one in kept.items()
        }  # fmt: skip

    def _keep(self, kept: dict[str, _Kept]) -> None:
        """Write the file, then use it. Raises ``SettingsKeptError``: then nothing has changed."""
        oldest_s = self._wall_s() - UNSEEN_DAYS * DAY_S
        lately = sorted((one for one in kept.values() if one.seen_unix_s >= oldest_s), key=lambda one: one.seen_unix_s)
        rest = lately[-MAX_JOBS:]
        if len(rest) < len(lately):
            log.warning("more than %d jobs have settings: dropping the %d oldest", MAX_JOBS, len(lately) - MAX_JOBS)
        try:
            replace_file(self._path, _text(rest).encode(), durable=True)
        except OSError as error:
            raise SettingsKeptError(f"{self._path} cannot be written: {error.strerror or error}") from error
        self._take(rest)

    def _take(self, kept: Iterable[_Kept]) -> None:
        with self._changed:
            self._kept = {one.settings.job_id: one for one in kept}
            self._settings = tuple(one.settings for one in self._kept.values())
            self._digest = digest(self._settings)
            self._changed.notify_all()


def _text(kept: Iterable[_Kept]) -> str:
    jobs = [{"seen_unix_s": one.seen_unix_s, "settings": json.loads(encode(one.settings))} for one in kept]
    return json.dumps({"version": VERSION, "jobs": jobs}, indent=1)


def _read(path: Path) -> list[_Kept]:
    """The entries of the file; none without a file. Raises ``SettingsKeptError``."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingsKeptError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return [_kept(raw) for raw in _jobs(json.loads(text))]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        aside = _put_aside(path)
        log.error(
            "%s is damaged (%s) and was renamed to %s. Jobs waiting for their next attempt start without the policy's"
            " settings",
            path, error, aside.name,
        )  # fmt: skip
        return []


def _jobs(raw: Any) -> list[Any]:
    if not isinstance(raw, dict) or raw.get("version") != VERSION or not isinstance(raw.get("jobs"), list):
        raise ValueError("it is from another version of Tidegauge, or not a list of settings")
    return list(raw["jobs"])


def _kept(raw: Any) -> _Kept:
    return _Kept(decode(json.dumps(raw["settings"]).encode()), float(raw["seen_unix_s"]))


def _put_aside(path: Path) -> Path:
    """Rename the damaged file, for people; the latest one is kept."""
    aside = path.with_name(f"{path.name}.damaged")
    try:
        os.replace(path, aside)
    except OSError as error:
        raise SettingsKeptError(f"{path} is damaged and cannot be moved aside: {error.strerror}") from error
    return aside
