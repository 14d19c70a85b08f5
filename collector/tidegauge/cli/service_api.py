"""Requests of the commands to the coordinator: over its HTTP API, and on its head to the ranks of its jobs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegauge.cli.arguments import CONNECTION, add_json, group
from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import ENVIRONMENT, USAGE, CommandError, UsageError
from tidegauge.cli.output import said_when_slow, tame
from tidegauge.cluster.api import client
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.acts import PersonAct
from tidegauge.core.text import one_line
from tidegauge.core.wire import from_wire
from tidegauge.files import why_unwritable
from tidegauge.http.access import LEFT_OUT

if TYPE_CHECKING:
    from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
    from tidegauge.cluster.service_record import ServiceRecord, StateFiles
    from tidegauge_exporter.links import Links
    from tidegauge_exporter.messages.values import Story

T = TypeVar("T")

ANSWER_S = 20.0
"""Timeout of a request, seconds: a coordinator on a busy machine answers late."""
LONG_ANSWER_S = 60.0
"""Timeout of a request for a history, seconds: weeks of many ranks are megabytes."""
RANK_ANSWER_S = 75.0
"""Timeout of a request to a rank, seconds: the coordinator looks every 2 s, and a snapshot takes up to a minute."""
LOOK_EVERY_S = 0.5
UNAVAILABLE, FORBIDDEN, NO_SUCH_PAGE = 503, 403, 404
"""HTTP status codes: temporarily unavailable, not for this user to see, and none of its pages, or of its jobs."""
API_TOKEN = "TIDEGAUGE_API_TOKEN"
"""Environment variable with the API token, where the setting ``api_token_file`` names no file."""
AGENT_UNIT_STATE_DIR = Path("/var/lib/tidegauge-agent")
"""Of tidegauge-agent.service. Root's own default is another folder, the head's."""
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
    """The files of this node's service, and its record if it runs. Where nobody says in which state directory, the
    agent's unit counts as well. Raises ``CommandError``."""
    settings = load_settings(args)
    folders = [settings.state_dir.resolve()]
    if "state_dir" not in settings.model_fields_set and os.access(AGENT_UNIT_STATE_DIR, os.R_OK | os.X_OK):
        folders.append(AGENT_UNIT_STATE_DIR)
    return first_running(folders)


def first_running(folders: Sequence[Path]) -> tuple[StateFiles, ServiceRecord | None]:
    """The first of these state directories whose service runs, else the first of all. Raises ``CommandError``."""
    from tidegauge.cluster.ray_service.service_control import running_record
    from tidegauge.cluster.service_record import RecordError, StateFiles

    all_files = [StateFiles(folder) for folder in folders]
    try:
        found = ((files, record) for files in all_files if (record := running_record(files)) is not None)
        return next(found, (all_files[0], None))
    except RecordError as error:
        raise CommandError(f"cannot determine the service's status: {error}") from error


def not_running(files: StateFiles) -> str:
    """The message for a node where no service runs: why, and what to do."""
    from tidegauge.cluster.ray_service.service_control import why_not_seen
    from tidegauge.cluster.service_record import RecordError, read_record

    try:
        record = read_record(files)
    except RecordError:
        record = None
    if (why := why_not_seen(files, record)) is not None:
        return why
    if record is not None and record.phase == "failed":
        log = "" if str(files.logs) in record.detail else f"; logs: {files.logs}"
        return f"the last `tidegauge up` failed: {record.detail}{log}"
    if files.record.exists():
        closed = why_unwritable(files.root)
        return (
            "the service ended without `tidegauge down` (crash or reboot); parts of it may still run. "
            f"{how_it_starts_again(files, record)} restarts it, `tidegauge down` cleans up; logs: {files.logs}"
            + ("" if closed is None else f". First mend this: {files.root} cannot be written: {closed}")
        )
    return NOT_RUNNING


def how_it_starts_again(files: StateFiles, record: ServiceRecord | None) -> str:
    """The command, quoted, that starts a crashed service as what it was: head, or node of its head."""
    if record is None or record.spec.is_head:
        return "`tidegauge up`"
    return f"`tidegauge up --join {record.spec.head_address} --token-file {files.token}`"


def ask(args: argparse.Namespace, path: str, *, timeout_s: float = ANSWER_S, quietly: bool = False) -> dict[str, Any]:
    """The API's answer. Raises ``CommandError`` that says why there is none and what to do.

    On a terminal, a slow answer is announced unless ``quietly``.
    """
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
            answer = get(api, access)
        if LEFT_OUT in str(answer.get("seen_as")):
            print(f"the service sees you as {tame(str(answer['seen_as']))}", file=sys.stderr)
        return answer
    except client.ApiAddressError as error:
        raise UsageError(str(error)) from error
    except client.ApiError as error:
        if error.refusal is not None:
            exit_code = ENVIRONMENT if error.status in (UNAVAILABLE, FORBIDDEN) else USAGE
            raise CommandError(error.refusal, exit_code=exit_code) from error
        if error.status == NO_SUCH_PAGE:
            raise CommandError(
                f"the service at {api} has no such page: it runs an older version of Tidegauge, or is none of "
                "Tidegauge's"
            ) from error
        hint = "" if args.api else "; check `tidegauge status`"
        raise CommandError(f"{error}{hint}") from error


def whose(answer: Mapping[str, Any]) -> str | None:
    """The reason why a list has only the caller's jobs; ``None`` if it has all, or if the service is too old."""
    name = answer.get("seen_as")
    if name is None:
        return None
    return f"the service sees you as {tame(str(name))}; only its admins see other users' jobs"


def read(form: type[T], raw: Mapping[str, Any]) -> T:
    """A value of the API's answer. Raises ``CommandError`` if the service is of another version."""
    try:
        return from_wire(form, raw)
    except ValueError as error:
        raise CommandError(
            f"the service runs another version of Tidegauge, and its answer cannot be read: {error}"
        ) from error


def ask_story(args: argparse.Namespace, number: int) -> Story:
    """An incident with its history and decisions. Raises ``CommandError``."""
    from tidegauge_exporter.messages.values import Story

    page = ask(args, f"/api/v1/incident?number={number}", timeout_s=LONG_ANSWER_S)
    return Story(
        read(Incident, page["incident"]),
        tuple(read(IncidentChange, line) for line in page["history"]),
        tuple(read(DecisionRecord, line) for line in page["decisions"]),
        acts=tuple(read(PersonAct, line) for line in page.get("acts", ())),  # missing in an older service's answer
    )


def api_url(args: argparse.Namespace) -> str:
    """The URL of the API for people. Raises ``CommandError`` that says why there is none."""
    from tidegauge.cluster.service_record import read_address

    return str(args.api) if args.api else _local_api(args, lambda files: read_address(files.api))


NO_URL = "not a URL such as http://head:9495, without user and password"
"""What is wrong with a ``public_url`` that is not a ``pages_url``."""


def web_pages(args: argparse.Namespace) -> Links:
    """Addresses of the coordinator's web pages for people: at the setting ``public_url``, else at the API that is
    asked; of none where that is not known."""
    from tidegauge_exporter.links import Links

    with suppress(CommandError):
        return Links(service_url=load_settings(args).pages_url or api_url(args))
    return Links()


def api_to_ask(args: argparse.Namespace) -> str:
    """The URL that ``client`` asks: the service on this node needs no token there. Raises ``CommandError``."""
    from tidegauge.cluster.service_record import local_api

    return str(args.api) if args.api else _local_api(args, local_api)


def api_access(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> client.ApiAccess:
    """Token and CA for the API that ``--api`` names. Raises ``CommandError`` for an unusable token."""
    from tidegauge.secrets import SecretError, read_secret

    if not args.api:
        return client.NO_ACCESS
    settings = load_settings(args)
    try:
        token = read_secret(settings.api_token_file, environ, API_TOKEN)
    except SecretError as error:
        raise UsageError(str(error)) from error
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


def asks_here(args: argparse.Namespace) -> EvidenceAsks:
    """The folder of requests of the coordinator on this node. Raises ``CommandError`` if this is not the head.

    Requests to ranks go through files, because the HTTP API is read-only.
    """
    from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks

    files, record = local_service(args)
    if args.api or record is None or not record.spec.is_head:
        raise CommandError("to reach ranks on other hosts, run this on the service's head, as its user or root")
    return EvidenceAsks(files.asks)


def ask_remote_rank(asks: EvidenceAsks, job: JobKey, rank: int, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rank's answer to a request. Raises ``CommandError``, also if the rank refuses."""
    try:
        made = asks.put(job, rank, request)
    except OSError as error:
        raise CommandError(
            f"cannot reach the service ({error}): run this as the user who runs it, or as root"
        ) from error
    try:
        answer = until(lambda: asks.fetch(made), within_s=RANK_ANSWER_S)
        asks.withdraw(made)
    except OSError as error:
        raise CommandError(f"cannot read the service's answer: {error}") from error
    if answer is None:
        raise CommandError(f"no answer from the service within {RANK_ANSWER_S:.0f} s; check `tidegauge status`")
    if answer.reply is None:
        raise CommandError(f"rank {rank}: {one_line(answer.error or 'no answer')}")
    return answer.reply


def until(look: Callable[[], T | None], *, within_s: float, every_s: float = LOOK_EVERY_S) -> T | None:
    """Call ``look`` until it returns a value, and return that; ``None`` after ``within_s`` seconds."""
    deadline_s = time.monotonic() + within_s
    while (found := look()) is None and time.monotonic() < deadline_s:
        time.sleep(every_s)
    return found
