"""Settings for the next attempts of a job: changes merged into the stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.jobs.settings import JobSettings, decode, encode, settings_name
from tidegauge.core.jobs.variables import FRACTION_VARIABLE
from tidegauge_scheduler_hooks.ports import PermanentError, RequeueChanges, SettingsStore, TemporaryError

LAID_DOWN_WITHIN_S = 30.0
"""Nodes report about once a second; one that is busy takes longer, one that is silent is not waited for."""


class NextSettings:
    """Works on the store that hands settings to the nodes."""

    def __init__(self, store: SettingsStore) -> None:
        self._store = store

    def cap(self, target: JobTarget, fraction: float, *, from_restart: int) -> None:
        """Store a memory fraction for all further attempts, and for processes that the present one starts. Raises
        ``AuditError``."""
        before = self._now(target)
        environ = {**before.environ, FRACTION_VARIABLE: f"{fraction:.6g}"}
        self._put(target, before, replace(before, environ=environ, from_restart=from_restart))

    def prepare(self, target: JobTarget, changes: RequeueChanges, *, from_restart: int) -> JobSettings | None:
        """Store ``changes`` and wait until all nodes have them; returns the settings before, for ``undo``, and ``None``
        if there is nothing to store.

        Raises ``PermanentError`` for settings that are not allowed, ``AuditError``, and ``TemporaryError`` if a
        reporting node does not have them: the job could start there without."""
        before = self._now(target)
        if not changes.alloc_conf and not changes.environ:
            return None
        after = replace(
            before,
            environ={**before.environ, **changes.environ},
            alloc_conf={**before.alloc_conf, **changes.alloc_conf},
            from_restart=from_restart,
            torch_version=target.handle.get("torch_version") or before.torch_version,
        )
        self._put(target, before, after)
        without = self._store.missing_on(timeout_s=LAID_DOWN_WITHIN_S)
        if without:
            hosts = ", ".join(sorted(without)[:5]) + (" …" if len(without) > 5 else "")
            raise TemporaryError(
                f"job {target.job.job_id} is not requeued: its settings are not on {hosts} after "
                f"{LAID_DOWN_WITHIN_S:g} s, so it might restart there without them (see tidegauge status)"
            )
        return before

    def undo(self, before: JobSettings | None) -> None:
        """Restore the settings after a requeue that did not happen. Raises ``AuditError``."""
        if before is not None:
            self._store.put(before)

    def _now(self, target: JobTarget) -> JobSettings:
        job_id, uid = target.job.job_id, target.job.uid
        return self._store.get(job_id, uid) or JobSettings(job_id, uid)

    def _put(self, target: JobTarget, before: JobSettings, after: JobSettings) -> None:
        _check(target, after)
        if after != before:
            self._store.put(after)


def _check(target: JobTarget, settings: JobSettings) -> None:
    """Raises ``PermanentError`` for settings that a node would refuse."""
    try:
        if settings_name(settings.job_id) is None:
            raise ValueError("its name cannot be a file name")
        _check_texts(settings.environ)
        _check_texts(settings.alloc_conf)
        decode(encode(settings))
    except ValueError as error:
        raise PermanentError(f"job {target.job.job_id}: these settings cannot be applied: {error}") from error


def _check_texts(values: Mapping[str, object]) -> None:
    wrong = [name for name, value in values.items() if not isinstance(value, str)]
    if wrong:
        raise ValueError(f"{wrong[0]} is not a text")
