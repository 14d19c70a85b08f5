"""A policy from its file, or the default one."""

from __future__ import annotations

from pathlib import Path

from tidegauge_scheduler_hooks.policy.check import Findings, check_policy
from tidegauge_scheduler_hooks.policy.models import Policy
from tidegauge_scheduler_hooks.policy.yaml_lines import MAX_FILE_CHARS

DEFAULT_FILE = Path(__file__).with_name("default_policy.yaml")
"""What is in force where no other is given; the comments explain it to admins."""


class PolicyFileError(Exception):
    """The file cannot be used as a policy. The message names file, lines and valid choices."""

    def __init__(self, path: Path, message: str, findings: Findings | None = None) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.findings = findings
        """``None``: it could not be read at all."""


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
