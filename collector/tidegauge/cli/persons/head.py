"""The head's files and its database, for commands that run there as the user of the service or as root."""

from __future__ import annotations

import argparse
import pwd
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tidegauge.cli.errors import CommandError, UsageError, need
from tidegauge.cli.head_files import head_files

if TYPE_CHECKING:
    from tidegauge.cluster.service_record import NodeSpec, StateFiles
    from tidegauge.cluster.store import Store

MAX_NAME_CHARS = 256


class Head(NamedTuple):
    files: StateFiles
    spec: NodeSpec
    store: Store


@contextmanager
def opened_head(args: argparse.Namespace) -> Iterator[Head]:
    """Raises ``CommandError`` on another node, and where the database cannot be used."""
    need("pydantic", extra="agent", what="the service")
    need("sqlalchemy", extra="agent", what="the service")
    from tidegauge.cluster.store import StoreError, open_store, sqlite_url
    from tidegauge.settings import Settings

    otherwise = "Run this on the head as the user who runs the service, or name the directory with --set state_dir=DIR"
    files, spec = head_files(args, otherwise=otherwise)
    try:
        store = open_store(Settings(**spec.settings).database_url or sqlite_url(files.root))
        try:
            yield Head(files, spec, store)
        finally:
            store.close()
    except StoreError as error:
        raise CommandError(str(error)) from error


def user_name(text: str) -> str:
    """Raises ``UsageError`` for what is no name of a user."""
    name = text.strip()
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise UsageError(f"{text!r} is no name of a user: give it as `tidegauge jobs` shows it")
    return name


def uids_of(name: str) -> Collection[int]:
    """The uid that this machine knows for the name, if any, or the name itself if it is a number."""
    try:
        return [pwd.getpwnam(name).pw_uid]
    except KeyError:
        return [int(name)] if name.isdecimal() else []
