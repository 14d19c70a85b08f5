"""Reads the door's files into one state, notices changes, and refuses one that would weaken the door by mistake."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from tidegauge.http.config import WebConfig, WebConfigError, parse_web_config
from tidegauge.http.tls import certificate_files, server_context
from tidegauge.http.tokens import ApiToken, read_tokens
from tidegauge.secrets import SecretError
from tidegauge.settings import Settings

MEND_BROKEN = "mend it: it is read again by itself; a restart of the service before that would close its pages"
UNDO = "put it back as it was, or, if this is meant, restart the service (`tidegauge down`, `tidegauge up`)"


class DoorFileError(WebConfigError):
    """One of the door's files cannot be used."""

    def __init__(self, message: str, file: Path, *, advice: str = MEND_BROKEN) -> None:
        super().__init__(message)
        self.file = file
        """As the settings name it."""
        self.advice = advice
        """What to do next while the last good state is in force."""


@dataclass(frozen=True)
class DoorState:
    """The content of all files when they were last good."""

    config: WebConfig
    context: ssl.SSLContext | None
    tokens: tuple[ApiToken, ...]
    asks_names: bool


WITHOUT_FILES = DoorState(WebConfig(), None, (), asks_names=False)
"""What is in force where the settings name none."""

Signature = tuple[tuple[str | int, ...], ...]


def read_door_files(settings: Settings) -> tuple[DoorState, Signature]:
    """The state, ``WITHOUT_FILES`` if none is set, and the signature of the files. Raises ``DoorFileError``."""
    if settings.web_config_file is None and settings.api_tokens_file is None:
        return WITHOUT_FILES, ()
    config, context = WebConfig(), None
    tokens: tuple[ApiToken, ...] = ()
    file, before = settings.web_config_file, signature_of(settings, config)
    if file is not None:
        try:
            config = parse_web_config(_text(file))
            before += signature_of(settings, config)[len(before) :]
            context = None if config.tls is None else server_context(config.tls, file.parent)
        except WebConfigError as error:
            raise DoorFileError(f"web_config_file {file}: {error}", file) from None
    if settings.api_tokens_file is not None:
        try:
            tokens = read_tokens(settings.api_tokens_file)
        except SecretError as error:
            raise DoorFileError(f"api_tokens_file: {error}", settings.api_tokens_file) from None
    # Taken before the files were read: what changed meanwhile is read again.
    return DoorState(config, context, tokens, bool(config.users) or settings.api_tokens_file is not None), before


def check_not_weaker(old: DoorState, new: DoorState, settings: Settings, *, asks_anyway: bool) -> None:
    """An emptied file must not open the door; ``asks_anyway``: names are asked for without files too. Raises
    ``DoorFileError``."""
    file = settings.web_config_file
    if file is None:
        return  # tokens alone switch neither
    if (old.context is None) is not (new.context is None):
        changed = "TLS was switched on or off"
    elif old.asks_names and not new.asks_names and not asks_anyway:
        changed = "it has no basic_auth_users any more"
    else:
        return
    raise DoorFileError(f"web_config_file {file}: {changed}, which takes a restart of the service", file, advice=UNDO)


def signature_of(settings: Settings, config: WebConfig) -> Signature:
    """A value that changes with any of the files. Follows links, because Kubernetes replaces mounted secrets so."""
    files = [file for file in (settings.web_config_file, settings.api_tokens_file) if file is not None]
    if config.tls is not None and settings.web_config_file is not None:
        files += certificate_files(config.tls, settings.web_config_file.parent)
    return tuple(_file_signature(file) for file in files)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise WebConfigError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise WebConfigError("it is no text") from None


def _file_signature(file: Path) -> tuple[str | int, ...]:
    """Includes mode and owner, to notice a file of tokens that others may read from now on."""
    try:
        status = os.stat(file)
    except OSError:
        return (str(file),)
    return (
        str(file), status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode, status.st_uid, status.st_gid,
    )  # fmt: skip
