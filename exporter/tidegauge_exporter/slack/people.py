"""Slack accounts of users of the cluster, by a file of names, or by the same name at the site's e-mail domain.

The name is the kernel's owner of the process, never a claim of the job: nobody gets somebody else's messages by
claiming a name. On Kubernetes uids tell nothing, and the workload names its owner (``core.jobs.kubernetes.OWNER``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

SLACK_ID: Final = re.compile(r"[UW][A-Z0-9]{6,20}")
EMAIL: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+")
LOGIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
"""A login name that may stand before the @ of an address."""


class People:
    """Slack ids and e-mail addresses of users. Unusable lines are logged and left out; while the file cannot be read,
    its last content stays in force. ``email_domain``, without an @, is for users whom the file does not name."""

    def __init__(self, users_file: Path | None, email_domain: str | None) -> None:
        self._file = users_file
        self._domain = email_domain.lstrip("@") if email_domain else None
        self._version: tuple[int, int, int] | None = None
        """Time, size and inode of the file that was read."""
        self._known: Mapping[str, str] = {}
        self._said: str | None = None

    def find(self, user_name: str) -> str | None:
        """Slack's id of the user, or an e-mail address; ``None``: unknown. Never raises."""
        self._refresh()
        known = self._known.get(user_name)
        if known is not None:
            return known
        if self._domain is None or not LOGIN.fullmatch(user_name):
            return None
        return f"{user_name}@{self._domain}"

    def names_of(self, slack_id: str, email: str | None) -> list[str]:
        """The users behind an account: those whom the file gives this id or this address, else the one whose name is
        before the site's domain. Never a user whom the file gives another account."""
        self._refresh()
        address = (email or "").lower()
        named = [name for name, who in self._known.items() if who == slack_id or (address and who.lower() == address)]
        if named or self._domain is None:
            return named
        name, _, domain = address.partition("@")
        is_theirs = domain == self._domain.lower() and LOGIN.fullmatch(name) is not None and name not in self._known
        return [name] if is_theirs else []

    def have_emails(self) -> bool:
        """True if some user is looked up on Slack by an e-mail address."""
        self._refresh()
        return self._domain is not None or any("@" in who for who in self._known.values())

    def _refresh(self) -> None:
        if self._file is None:
            return
        try:
            found = self._file.stat()
            version = found.st_mtime_ns, found.st_size, found.st_ino
            if version == self._version:
                return
            self._version = version
            read = read_people(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            trouble = f"{self._file} cannot be read: {error.strerror if isinstance(error, OSError) else error}"
            if trouble != self._said:
                log.error("%s; what was read before stays in force", trouble)
                self._said = trouble
            return
        self._known = read.known
        self._said = None
        for problem in read.problems:
            log.error("%s, %s: no messages on Slack to this user", self._file, problem)


class Read(NamedTuple):
    """The content of a file."""

    known: Mapping[str, str]
    """Slack's id or e-mail address by login name."""
    problems: tuple[str, ...]
    """Sentences with line and user."""


def read_people(text: str) -> Read:
    """Read YAML: ``ada: U024BE7LH`` or ``ada: ada@example.org``. Raises ``ValueError``, also if PyYAML is missing."""
    try:
        import yaml
    except ImportError as error:
        raise ValueError("PyYAML is needed to read it: pip install 'tidegauge[slack]'") from error
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise ValueError(f"{where}not YAML ({getattr(error, 'problem', None) or 'unreadable'})") from error
    if root is None:
        return Read({}, ())
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("not a list of users: it takes lines such as ada: ada@example.org")
    known: dict[str, str] = {}
    problems = []
    for name, value in root.value:
        line, user = name.start_mark.line + 1, str(name.value)
        who = value.value if isinstance(value, yaml.ScalarNode) else ""
        if user in known:
            problems.append(f"line {line}: {user} is named a second time, and the first counts")
        elif SLACK_ID.fullmatch(who) or EMAIL.fullmatch(who):
            known[user] = who
        else:
            problems.append(f"line {line}: {user}: {who[:80]!r} is neither Slack's id of a user (U...) nor an e-mail")
    return Read(known, tuple(problems))
