"""Reads tokens from a file or the environment, never from a setting that is printed; no message or log quotes them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

MAX_SECRET_BYTES = 16 * 1024
"""A token has some dozens of bytes; a service account's JSON some thousands."""
MAX_LIST_BYTES = 4 * 1024 * 1024
"""A file of ten thousand lines of a name and a digest has two million."""


class SecretError(Exception):
    """A configured secret cannot be used; the message says where and what to do, and never quotes it."""


def read_secret(file: Path | None, environ: Mapping[str, str], variable: str) -> str | None:
    """The secret in ``file``, else in ``variable`` of the environment, stripped; ``None``: neither is set.

    A file must be a regular one that nobody else may read (``others_may``); a link to one is accepted, because
    Kubernetes mounts secrets so. Raises ``SecretError``.
    """
    if file is not None:
        return _checked(_content(file, MAX_SECRET_BYTES), str(file))
    value = environ.get(variable, "")
    return _checked(value, f"the variable {variable}") if value.strip() else None


def read_lines(file: Path) -> list[str]:
    """The lines of a file of secrets, under the same conditions as a file with one. Raises ``SecretError``."""
    text = _content(file, MAX_LIST_BYTES)
    if len(text) > MAX_LIST_BYTES:
        raise SecretError(f"{file} is longer than {MAX_LIST_BYTES} bytes")
    return text.splitlines()


def others_may(status: os.stat_result, uid: int) -> bool:
    """Whether anybody but a process of this user may read or change such a file of secrets.

    Accepted are a file of the owner alone (0600) and, where the process is not root, one of root that a group reads
    (0640): the kubelet gives a Secret to a container of another user as root:fsGroup 0440, and PostgreSQL accepts its
    key so, too.
    """
    closed_to = 0o037 if status.st_uid == 0 and uid != 0 else 0o077
    return bool(status.st_mode & closed_to)


def _content(file: Path, most_bytes: int) -> str:
    try:
        # O_NONBLOCK: to open a FIFO would wait for somebody who writes into it.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise SecretError(f"{file} cannot be read: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise SecretError(f"{file} is not a regular file")
    with os.fdopen(descriptor, "rb") as opened:
        if others_may(status, os.geteuid()):
            mode = stat.S_IMODE(status.st_mode)
            raise SecretError(f"{file} has mode {mode:04o}: others may read or change it; run chmod 600 {file}")
        try:
            return opened.read(most_bytes + 1).decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            # Without the cause: the error of a decoder quotes what it could not decode.
            raise SecretError(f"{file} cannot be read as text: {error.__class__.__name__}") from None


def _checked(text: str, where: str) -> str:
    secret = text.strip()
    if not secret:
        raise SecretError(f"{where} is empty: put the token there, or take the setting away")
    if len(text) > MAX_SECRET_BYTES or not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise SecretError(f"{where} does not hold a token: that is one line of ASCII without spaces")
    return secret
