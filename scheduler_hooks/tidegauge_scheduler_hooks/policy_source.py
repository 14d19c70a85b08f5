"""The policy in force: read from its file whenever that changes; a broken file never puts anything into force."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tidegauge_scheduler_hooks.policy.files import PolicyFileError, load_policy
from tidegauge_scheduler_hooks.policy.models import Policy

log = logging.getLogger(__name__)

_Signature = tuple[int, int, int]


class PolicySource:
    """``path`` of ``None`` is the default policy, for good.

    Where the file cannot be used from the start, the default policy is in force, which only observes; where it breaks
    later, the last good one stays. ``problem`` says so for as long as it lasts.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem: str | None = None
        self._policy = load_policy(None)
        self._seen: _Signature | None = None

    def current(self) -> Policy:
        """Looks at the file's state; reads it only when that is another than before."""
        if self.path is not None:
            signature = _signature(self.path)
            if signature is None or signature != self._seen:
                self._seen = signature
                self._read(self.path)
        return self._policy

    def _read(self, path: Path) -> None:
        try:
            policy = load_policy(path)
        except (PolicyFileError, OSError) as error:
            if self.problem != str(error):
                log.error("the policy file cannot be used, keeping the last good policy: %s", error)
            self.problem = str(error)
            return
        if self.problem is not None or policy != self._policy:
            log.info("policy %s is in force, mode %s", path, policy.mode)
        self.problem = None
        self._policy = policy


def _signature(path: Path) -> _Signature | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    # Not the time of the last write: a file that became readable by chmod must be read as well.
    return status.st_ino, status.st_ctime_ns, status.st_size
