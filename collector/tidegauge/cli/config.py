"""``tidegauge config`` shows settings and creates tokens; ``load_settings`` is how every command gets its settings.

Precedence: flag > environment ``TIDEGAUGE_<NAME>`` > file > default.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tidegauge.cli.arguments import CONNECTION, OUTPUT, add_examples, add_json, group, nearest
from tidegauge.cli.errors import FINE, UsageError, need
from tidegauge.cli.output import print_json, tame
from tidegauge.core.jobs.variables import IN_JOBS

if TYPE_CHECKING:
    from tidegauge.settings import Settings

HELP = "show the settings and where each value comes from, or create an API token"

CONFIG_FILES = ("~/.config/tidegauge/config.yaml", "/etc/tidegauge/config.yaml")
"""Configuration files; the first that exists is read, unless ``TIDEGAUGE_CONFIG`` or ``--config`` names another."""

OTHER_VARIABLES = IN_JOBS | {
    f"TIDEGAUGE_{name}"
    for name in (
        "CONFIG",
        "SLACK_TOKEN",
        "SLACK_APP_TOKEN",
        "GRAFANA_TOKEN",
        "NOTIFY_TOKEN",
        "MAIL_PASSWORD",
        "API_TOKEN",
    )
}
"""``TIDEGAUGE_`` variables of the probe or the command line, which are no settings of the service."""

DEFAULT = "default"
"""The origin of a setting that has its default."""
SECTIONS = {
    "Access to the API": (
        "web_",
        "api_tokens",
        "api_admins",
        "api_token_file",
        "api_ca_file",
        "metrics_readers",
        "session_",
        "proxy_user_",
        "trusted_proxies",
        "munge_",
    ),
    "Addresses and ports": (
        "listen_host",
        "metrics_port",
        "api_port",
        "engine_",
        "public_url",
    ),
    "Storage": ("state_dir", "run_dir", "opener_", "database_", "snapshot_", "keep_"),
    "Personal data": ("user_",),
    "Timing": ("poll_", "report_", "linger_"),
    "Policy": ("policy_", "incident_"),
    "Slurm": ("slurm",),
    "Kubernetes": ("kubernetes",),
    "Ray Jobs": ("ray_jobs_",),
    "Slack": ("slack_",),
    "Mail": ("mail_", "efficiency_mail_"),
    "Grafana and Alertmanager": ("grafana_", "alertmanager_", "notify_", "contact"),
}
"""Titles of ``config show``, with the prefixes of their settings."""
OTHER_SECTION = "Cluster"
NOT_A_WHOLE_NUMBER = ("int_parsing", "int_type", "int_from_float", "greater_than_equal", "less_than_equal")
"""pydantic's types of error for a setting that is a whole number within limits."""
MAX_WIDTH = 100
INDENT = " " * 6

_URL_PASSWORD = re.compile(r"(://[^/?#@:]*:)[^/?#]*(@)")
"""A URL's password, between the user name and the last ``@`` before the path."""
_QUERY_PASSWORD = re.compile(r"([?&][^=&#]*(?:pass|pwd|secret|token|key|sig|credential)[^=&#]*=)[^&#]*", re.IGNORECASE)
"""A password, key or signature in the query of a URL of a database or an object store."""


@dataclass(frozen=True)
class ShownSetting:
    """A setting in force. ``origin`` is the ``--flag``, variable or file that set it, or ``default``."""

    name: str
    value: Any
    origin: str
    help: str


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config FILE`` and ``--set NAME=VALUE`` (repeatable) to a command."""
    connection = group(parser, CONNECTION)
    connection.add_argument("--config", metavar="FILE", help="read settings from this YAML file")
    connection.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], dest="assignments",
        help="override one setting (see `tidegauge config show --all`), or unset it (NAME=); repeatable",
    )  # fmt: skip


def load_settings(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force for a command. Raises ``CommandError`` that names an invalid key and the valid ones."""
    return _resolve(args, environ)[0]


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    parser.add_argument(
        "what", choices=["show", "token"], metavar="show|token",
        help="show: print the settings; token: create a token for NAME and print the line for api_tokens_file",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", nargs="?", help="user or script that the token is for")
    group(parser, OUTPUT).add_argument(
        "--all", action="store_true", help="show all settings, also those that have their default value"
    )
    add_json(parser, "print JSON; `config show` then prints all settings")
    add_examples(
        parser,
        "tidegauge config show                 settings that differ from the default, and who set them",
        "tidegauge config show --all           every setting with its meaning",
        "tidegauge config token ada            create an API token for user ada",
    )


def run(args: argparse.Namespace) -> int:
    if (args.what == "token") is not (args.name is not None):
        raise UsageError("`config token` needs a NAME; `config show` takes none")
    return _show(args) if args.what == "show" else _make_token(args)


def _show(args: argparse.Namespace) -> int:
    settings = explain(args)
    if args.json:
        values = {s.name: {"value": without_password(s.value), "origin": s.origin} for s in settings}
        print(json.dumps(values, indent=2, default=str))
    else:
        width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
        print("\n".join(page_lines(settings, every=args.all, width=width)))
    return FINE


def _make_token(args: argparse.Namespace) -> int:
    """Print a new token, which is stored nowhere, and the line with its digest."""
    need("pydantic", extra="agent", what="the service")
    from tidegauge.http.tokens import make_token, token_line

    token = make_token()
    try:
        line = token_line(args.name, token)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.json:
        print_json({"name": args.name, "token": token, "line": line})
        return FINE
    print(f"token  {token}")
    print(f"line   {line}")
    print("\nAdd the line to api_tokens_file on the head, and on each node whose /metrics NAME may read.")
    print("The token is shown only once: NAME saves it to a file (chmod 600) and sets TIDEGAUGE_API_TOKEN_FILE to it.")
    return FINE


def without_password(value: Any) -> Any:
    """``value`` without the password if it is a URL with one, as ``database_url`` may be."""
    if not isinstance(value, str) or "://" not in value:
        return value
    return _QUERY_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1***\2", value))


def page_lines(settings: Sequence[ShownSetting], *, every: bool, width: int) -> list[str]:
    """The settings by section, each with value, origin and meaning; without those at their default unless ``every``."""
    shown = [one for one in settings if every or one.origin != DEFAULT]
    hidden = len(settings) - len(shown)
    lines: list[str] = []
    for title in dict.fromkeys(map(section, (one.name for one in settings))):
        members = [one for one in shown if section(one.name) == title]
        lines += [title] if members else []
        for one in members:
            value = ": not set" if one.value is None else f" = {without_password(one.value)}"
            origin = DEFAULT if one.origin == DEFAULT else f"from {one.origin}"
            lines.append(tame(f"  {one.name}{value}   ({origin})"))
            lines += textwrap.wrap(one.help.replace("``", "`"), width, initial_indent=INDENT, subsequent_indent=INDENT)
        lines += [""] if members else []
    if hidden:
        what = f"{hidden} other settings have" if shown else f"All {hidden} settings have"
        lines.append(f"{what} the default value; `tidegauge config show --all` lists them.")
    return lines


def section(name: str) -> str:
    return next((title for title, beginnings in SECTIONS.items() if name.startswith(beginnings)), OTHER_SECTION)


def explain(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> list[ShownSetting]:
    """All settings with values and origins. Raises ``CommandError``."""
    settings, origins = _resolve(args, environ)
    return [
        ShownSetting(
            name=name,
            value=getattr(settings, name),
            origin=origins.get(name, DEFAULT),
            help=" ".join((field.description or "").split()),
        )
        for name, field in type(settings).model_fields.items()
    ]


def _resolve(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    pydantic = need("pydantic", extra="agent", what="the service")
    from tidegauge.settings import Settings

    names = set(Settings.model_fields)
    given: dict[str, tuple[Any, str]] = {}

    def take(name: str, value: Any, origin: str) -> None:
        if name not in names:
            raise UsageError(
                f"{origin}: unknown setting {name!r}{nearest(name, names)} (settings: {', '.join(sorted(names))})"
            )
        given[name] = (value, origin)

    path = _config_file(args, environ)
    for name, value in ({} if path is None else _read(path)).items():
        take(name, value, str(path))
    for variable, value in environ.items():
        if variable.startswith("TIDEGAUGE_") and variable not in OTHER_VARIABLES and value:
            take(variable[len("TIDEGAUGE_") :].lower(), value, variable)
    for assignment in getattr(args, "assignments", []):
        name, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set takes NAME=VALUE, not {assignment!r}")
        take(name, value, f"--set {name}")
        if value == "" and Settings.model_fields[name].default is None:
            del given[name]  # unset, even if a file sets it
    try:
        settings = Settings(**{name: value for name, (value, _) in given.items()})
    except pydantic.ValidationError as error:
        wrong = error.errors()[0]
        name, why = str(wrong["loc"][0]), wrong["msg"].removeprefix("Value error, ")
        value, origin = given[name]
        if wrong["type"] in NOT_A_WHOLE_NUMBER and (limits := _limits(Settings.model_fields[name])):
            raise UsageError(f"{origin}: {value!r} is not a whole number {limits}") from error
        raise UsageError(f"{origin}: invalid value {value!r} for {name}: {why}") from error
    return settings, {name: origin for name, (_, origin) in given.items()}


def _limits(field: Any) -> str:
    """The limits of a whole number, "from 0 to 65535"; empty if it has not both, or is no whole number."""
    low, high = (
        next((getattr(one, name) for one in field.metadata if hasattr(one, name)), None) for name in ("ge", "le")
    )
    is_whole = int in (field.annotation, *get_args(field.annotation))
    return f"from {low} to {high}" if is_whole and low is not None and high is not None else ""


def _config_file(args: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    chosen = getattr(args, "config", None) or environ.get("TIDEGAUGE_CONFIG")
    if chosen:
        if not Path(chosen).is_file():
            why = "is not a file" if Path(chosen).exists() else "does not exist"
            raise UsageError(f"configuration file {chosen} {why}")
        return Path(chosen)
    candidates = (Path(name).expanduser() for name in CONFIG_FILES)
    return next((path for path in candidates if _is_there(path)), None)


def _is_there(path: Path) -> bool:
    """False, too, in a folder that only another user enters: of ``su`` or ``setpriv`` that kept ``HOME``."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _read(path: Path) -> dict[str, Any]:
    yaml = need("yaml", extra="agent", what="the configuration file")
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"cannot read {path} as YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UsageError(f"{path} must contain lines of the form `name: value`")
    return content
