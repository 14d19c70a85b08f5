"""Where the commands find the coordinator's API."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from tidegauge.cli.arguments import CONNECTION, add_json, group
from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import ENVIRONMENT, USAGE, CommandError
from tidegauge.cli.output import said_when_slow, tame
from tidegauge.cluster.api import client
from tidegauge.core.wire import from_wire

if TYPE_CHECKING:
    from tidegauge.cluster.service_record import ServiceRecord, StateFiles

T = TypeVar("T")

ANSWER_S = 20.0
"""How long a command waits for what somebody asked for: a coordinator whose machine is busy answers late, and who is
told "timed out" asks again."""
LONG_ANSWER_S = 60.0
"""How long to wait for a history: weeks of many ranks are megabytes, which take the coordinator seconds."""
UNAVAILABLE, FORBIDDEN = 503, 403
"""HTTP's status for what is away for now, and for what is somebody else's to see."""
API_TOKEN = "TIDEGAUGE_API_TOKEN"
"""Variable of the environment that may hold what the setting ``api_token_file`` names a file with."""
NOT_RUNNING = (
    "no service of yours is running here. Use your cluster's with --api http://HEAD:9495, or start one with "
    "`tidegauge up`"
)


def add_api_arguments(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    group(parser, CONNECTION).add_argument(
        "--api", metavar="URL", help="URL of the coordinator's API (default: the service on this node)"
    )
    add_json(parser)


def local_service(args: argparse.Namespace) -> tuple[StateFiles, ServiceRecord | None]:
    """The files of this node's service, and its record if it runs."""
    from tidegauge.cluster.engine.service_control import running_record
    from tidegauge.cluster.service_record import RecordError, StateFiles

    files = StateFiles(load_settings(args).state_dir.resolve())
    try:
        return files, running_record(files)
    except RecordError as error:
        raise CommandError(f"cannot determine the service's status: {error}") from error


def not_running(files: StateFiles) -> str:
    """What to say, and to do, where ``local_service`` finds no service that runs."""
    if files.record.exists():
        return (
            "the service ended without `tidegauge down` (crash or reboot); parts of it may still run. `tidegauge up` "
            f"restarts it, `tidegauge down` cleans up; logs: {files.logs}"
        )
    return NOT_RUNNING


def ask(args: argparse.Namespace, path: str, *, timeout_s: float = ANSWER_S, quietly: bool = False) -> dict[str, Any]:
    """The API's answer. Raises ``CommandError`` that says why there is none and what to do. On a terminal it is said
    what is waited for, but ``quietly`` not."""
    return _answer(args, lambda api, access: client.get(api, path, timeout_s=timeout_s, access=access), quietly)


def send(args: argparse.Namespace, path: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """The API's answer to a form of these fields. Raises ``CommandError`` as ``ask`` does."""
    return _answer(args, lambda api, access: client.send(api, path, fields, timeout_s=ANSWER_S, access=access))


def _answer(
    args: argparse.Namespace, get: Callable[[str, client.ApiAccess], dict[str, Any]], quietly: bool = False
) -> dict[str, Any]:
    api, access = api_to_ask(args), api_access(args)
    waiting = nullcontext() if quietly else said_when_slow("waiting for the coordinator")
    try:
        with waiting:
            return get(api, access)
    except client.ApiError as error:
        if error.refusal is not None:
            exit_code = ENVIRONMENT if error.status in (UNAVAILABLE, FORBIDDEN) else USAGE
            raise CommandError(error.refusal, exit_code=exit_code) from error
        hint = "" if args.api else "; check `tidegauge status`"
        raise CommandError(f"{error}{hint}") from error


def whose(answer: Mapping[str, Any]) -> str | None:
    """Why a list may be short, in words, for whoever is shown their own alone; ``None``: everybody's are listed, or the
    service is too old to tell."""
    name = answer.get("seen_as")
    if name is None:
        return None
    return f"the service sees you as {tame(str(name))}; only its admins see other users' jobs"


def read(form: type[T], raw: Mapping[str, Any]) -> T:
    """A value out of the API's answer. Raises ``CommandError`` where the service is of another version."""
    try:
        return from_wire(form, raw)
    except ValueError as error:
        raise CommandError(
            f"the service runs another version of Tidegauge, and its answer cannot be read: {error}"
        ) from error


def api_url(args: argparse.Namespace) -> str:
    """Where the API is, for people. Raises ``CommandError`` that says why it is not there."""
    from tidegauge.cluster.service_record import read_address

    return str(args.api) if args.api else _local_api(args, lambda files: read_address(files.api))


def api_to_ask(args: argparse.Namespace) -> str:
    """The same, as ``client`` asks it: at the service on this node nobody has to say who they are."""
    from tidegauge.cluster.service_record import local_api

    return str(args.api) if args.api else _local_api(args, local_api)


def api_access(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> client.ApiAccess:
    """What to show to an API that ``--api`` names. Raises ``CommandError`` for a token that cannot be used."""
    from tidegauge.secrets import SecretError, read_secret

    if not args.api:
        return client.NO_ACCESS
    settings = load_settings(args)
    try:
        token = read_secret(settings.api_token_file, environ, API_TOKEN)
    except SecretError as error:
        raise CommandError(str(error), exit_code=USAGE) from error
    return client.ApiAccess(token, settings.api_ca_file)


def _local_api(args: argparse.Namespace, find: Callable[[StateFiles], str | None]) -> str:
    files, record = local_service(args)
    if record is None:
        raise CommandError(not_running(files))
    url = find(files)
    if url is not None:
        return url
    if record.spec.is_head:
        raise CommandError(f"the coordinator is not running (service phase: {record.phase}); see {files.logs}")
    raise CommandError(
        f"this node runs only an agent; the API is on the head {record.spec.head_address}: run this there, or use "
        "--api URL"
    )
