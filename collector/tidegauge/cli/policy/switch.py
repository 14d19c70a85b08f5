"""``tidegauge policy pause`` and ``resume`` set the switch for all actions: a file on the head."""

from __future__ import annotations

import argparse
import os
import pwd
import time
from typing import TYPE_CHECKING, NoReturn

from tidegauge.cli.config import add_settings_arguments
from tidegauge.cli.errors import FINE, CommandError
from tidegauge.cli.head_files import head_files

if TYPE_CHECKING:
    from tidegauge.cluster.incident_loops.action_switch import ActionSwitch
    from tidegauge.cluster.service_record import StateFiles

IN_FORCE = "In force within a second: the switch is read every second, and again right before each action."


def prepare_pause(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    parser.add_argument("--reason", metavar="TEXT", help="reason, shown to everybody who asks")


def pause(args: argparse.Namespace) -> int:
    print("\n".join(pause_actions(args, args.reason)))
    return FINE


def resume(args: argparse.Namespace) -> int:
    print("\n".join(resume_actions(args)))
    return FINE


def pause_actions(args: argparse.Namespace, reason: str | None) -> list[str]:
    """Set the switch, and return what to tell the user. Raises ``CommandError``: then nothing has changed."""
    files, switch = _switch(args)
    try:
        switch.pause(reason, _who(), time.time())
    except OSError as error:
        _not_written(files, error)
    lines = [
        "Actions are paused: no action on any job until `tidegauge policy resume`. Incidents are still recorded.",
        _when(files),
    ]
    if _may_run(files):
        lines.append("Actions already handed to a scheduler cannot be undone; `tidegauge policy status` lists them.")
    return lines


def resume_actions(args: argparse.Namespace) -> list[str]:
    """The same for the end of a pause."""
    files, switch = _switch(args)
    try:
        switch.resume(_who(), time.time())
    except OSError as error:
        _not_written(files, error)
    return [
        "Actions are no longer paused, and the circuit breakers are reset: only new events open them again.",
        "The policy decides which actions are taken: none on jobs in the modes observe and warn.",
        _when(files),
    ]


def _switch(args: argparse.Namespace) -> tuple[StateFiles, ActionSwitch]:
    """The head's files and its switch. Raises ``CommandError`` on another node."""
    from tidegauge.cluster.incident_loops.action_switch import ActionSwitch

    otherwise = (
        "The switch is on the head, in the state directory of the user who runs the service: run this there as that "
        "user, or name the directory with --set state_dir=DIR"
    )
    files, _ = head_files(args, otherwise=otherwise)
    return files, ActionSwitch(files.actions)


def _not_written(files: StateFiles, error: OSError) -> NoReturn:
    raise CommandError(
        f"NOTHING HAS CHANGED: cannot write {files.actions} ({error.strerror}). To stop all actions another way, stop "
        "the service with `tidegauge down`; jobs keep running"
    ) from error


def _when(files: StateFiles) -> str:
    """When the change takes effect."""
    return IN_FORCE if _may_run(files) else "No service is running here; this takes effect when one starts."


def _may_run(files: StateFiles) -> bool:
    """True if a service runs, or may run."""
    from tidegauge.cluster.ray_service.service_control import running_record
    from tidegauge.cluster.service_record import RecordError

    try:
        return running_record(files) is not None
    except RecordError:
        return True


def _who() -> str:
    """The user who runs the command, and the one behind sudo."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    behind = os.environ.get("SUDO_USER")
    return f"{name} ({behind})" if behind and behind != name else name
