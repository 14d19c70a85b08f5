"""Address and token of the Grafana that the commands use."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidegauge.cli.arguments import CONNECTION, group
from tidegauge.cli.errors import ENVIRONMENT, USAGE, CommandError, need

if TYPE_CHECKING:
    from tidegauge.settings import Settings
    from tidegauge_exporter.grafana.client import GrafanaClient

TOKEN_VARIABLE = "TIDEGAUGE_GRAFANA_TOKEN"


def add_grafana_arguments(parser: argparse.ArgumentParser) -> None:
    connection = group(parser, CONNECTION)
    connection.add_argument(
        "--url", type=web_address, metavar="URL", help="URL of Grafana (default: the setting grafana_url)"
    )
    connection.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help=f"file (mode 0600) with the token of a service account (default: the setting grafana_token_file, then "
        f"{TOKEN_VARIABLE} in the environment)",
    )  # fmt: skip


def web_address(text: str) -> str:
    """An HTTP URL that is safe in links, rules and dashboards. Raises ``argparse.ArgumentTypeError``."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or any(mark in text for mark in " \"'<>{}|\\"):
        raise argparse.ArgumentTypeError("not a URL such as https://grafana.example, without user and password")
    return text.rstrip("/")


@contextmanager
def grafana_of(args: argparse.Namespace, settings: Settings) -> Iterator[GrafanaClient]:
    """A client of Grafana, whose errors become ``CommandError``, also inside the block."""
    need("grafana_api", extra="grafana", what="talking to Grafana")
    from tidegauge_exporter.grafana.client import GrafanaClient
    from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

    url = args.url or settings.grafana_url
    if url is None:
        raise CommandError("no Grafana URL: use --url https://grafana.example, or the setting grafana_url",
                           exit_code=USAGE)  # fmt: skip
    try:
        client = GrafanaClient(url, token=_token(args, settings))
    except ValueError as error:
        raise CommandError(str(error), exit_code=USAGE) from error
    try:
        yield client
    except (RefusedError, RetryLaterError) as error:
        raise CommandError(str(error), exit_code=ENVIRONMENT) from error
    finally:
        client.close()


def _token(args: argparse.Namespace, settings: Settings) -> str:
    from tidegauge.secrets import SecretError, read_secret

    try:
        token = read_secret(args.token_file or settings.grafana_token_file, os.environ, TOKEN_VARIABLE)
    except SecretError as error:
        raise CommandError(str(error), exit_code=USAGE) from error
    if token is None:
        raise CommandError(
            "Grafana needs the token of a service account: create one under Administration, Users and access, Service "
            f"accounts, save it to a file with mode 0600, and pass that with --token-file (or set {TOKEN_VARIABLE})",
            exit_code=USAGE,
        )
    return token
