"""The key of pseudonyms: a file of the head's state directory, made by whoever needs it first."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from tidegauge.cluster.service_record import StateFiles
from tidegauge.core.persons.pseudonyms import KEY_BYTES, Pseudonyms
from tidegauge.files import chown_for_root, replace_file
from tidegauge.settings import Settings

log = logging.getLogger(__name__)


def pseudonyms_of(settings: Settings, files: StateFiles) -> Pseudonyms | None:
    """``None``: names are shown. Without a usable key nobody can resolve them, but names are not shown either."""
    if not settings.user_pseudonyms:
        return None
    try:
        return open_pseudonyms(files.pseudonym_key)
    except (OSError, ValueError) as error:
        log.error("pseudonyms are made up until the next start, and whois knows none: %s", error)
        return Pseudonyms(secrets.token_bytes(KEY_BYTES))


def open_pseudonyms(path: Path) -> Pseudonyms:
    """Raises ``OSError``, and ``ValueError`` for a file that holds no key."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        replace_file(draft, secrets.token_hex(KEY_BYTES).encode(), durable=True)
        try:
            os.link(draft, path)  # two processes may want it at once: the first key counts
            chown_for_root(path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    key = bytes.fromhex(path.read_text().strip())
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} holds no key of {KEY_BYTES} bytes")
    return Pseudonyms(key)
