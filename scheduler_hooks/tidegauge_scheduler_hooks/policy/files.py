"""Reads policy files: the default policy, and the policy in force, which is read again when its file changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tidegauge_scheduler_hooks.policy.check import Findings, check_policy
from tidegauge_scheduler_hooks.policy.models import Policy
from tidegauge_scheduler_hooks.policy.yaml_lines import MAX_FILE_CHARS

log = logging.getLogger(__name__)

DEFAULT_FILE = Path(__file__).with_name("default_policy.yaml")
"""The policy in force without another; its comments explain it to admins."""


class PolicyFileError(Exception):
    """The file cannot be used as a policy. The message names file, lines and valid choices."""

    def __init__(self, path: Path, message: str, findings: Findings | None = None) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.findings = findings
        """``None``: the file could not be read."""


def load_policy(path: Path | None) -> Policy:
    """The policy in ``path``; ``None``: the default. Raises ``PolicyFileError``."""
    findings = check_policy(read_policy(DEFAULT_FILE if path is None else path))
    if findings.policy is None:
        first, *more = findings.errors
        also = f" (and {len(more)} more: `tidegauge policy check` lists them)" if more else ""
        raise PolicyFileError(path or DEFAULT_FILE, f"{first}{also}", findings)
    return findings.policy


def read_policy(path: Path) -> str:
    """The file's text. Raises ``PolicyFileError``."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_FILE_CHARS + 1)  # one too many is enough to be refused
    except OSError as error:
        raise PolicyFileError(path, f"the policy file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PolicyFileError(path, f"the policy file is not UTF-8, at byte {error.start}") from error


_Signature = tuple[int, int, int]


class PolicySource:
    """The policy in force. ``path`` of ``None`` is the default policy, for good.

    A file that cannot be used at the start leaves the default policy in force, which only observes; a file that breaks
    later leaves the last good one. ``problem`` says so for as long as it lasts."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem: str | None = None
        self._policy = load_policy(None)
        self._seen: _Signature | None = None

    def current(self) -> Policy:
        """The policy; the file is read only when its state has changed."""
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
