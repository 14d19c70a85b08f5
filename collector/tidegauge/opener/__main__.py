"""``python -I -m tidegauge.opener --user USER --socket PATH [--run-dir DIR]… [--kubelet PATH]``: runs until it
is ended."""

from __future__ import annotations

import argparse
import logging
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegauge.core.jobs.kubernetes import KUBELET_SOCKET
from tidegauge.core.run_dir_names import DEFAULT_RUN_DIRS
from tidegauge.opener.rights import MissingRightsError, keep_two_rights
from tidegauge.opener.server import OpenerServer, listening

_log = logging.getLogger("tidegauge.opener")

AS_THE_UNIT = (
    "start it as root with CAP_DAC_OVERRIDE and CAP_SYS_PTRACE, in the group of --user, as its systemd unit does"
)


def build_opener_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegauge.opener", description="Opens other users' files for the agent.")
    parser.add_argument("--user", required=True, help="the agent's user, by name or number; nobody else is answered")
    parser.add_argument("--socket", required=True, type=Path, help="where it listens, in a folder of root's")
    parser.add_argument("--run-dir", action="append", type=Path, help="run directory (default: the two of the probes)")
    parser.add_argument(
        "--kubelet",
        type=Path,
        default=Path(KUBELET_SOCKET),
        help=f"its pod-resources socket (default: {KUBELET_SOCKET})",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = build_opener_parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        user = pwd.getpwuid(int(given.user)) if given.user.isdigit() else pwd.getpwnam(given.user)
        uid, gid = user.pw_uid, user.pw_gid
    except KeyError:
        if not given.user.isdigit():
            print(f"tidegauge.opener: there is no user {given.user}", file=sys.stderr)
            return 2
        uid = gid = int(given.user)
    try:
        listener = listening(given.socket, gid)
    except OSError as error:
        print(f"tidegauge.opener: cannot listen at {given.socket}: {error.strerror}; {AS_THE_UNIT}", file=sys.stderr)
        return 3
    try:
        keep_two_rights()
    except (OSError, MissingRightsError) as error:
        print(f"tidegauge.opener: cannot keep to its two capabilities: {error}; {AS_THE_UNIT}", file=sys.stderr)
        return 3
    run_dirs = [path.resolve() for path in given.run_dir or ()] or [Path(name) for name in DEFAULT_RUN_DIRS]
    _log.info("opens files in %s for uid %d", " and ".join(map(str, run_dirs)), uid)
    OpenerServer(listener, uid, run_dirs, given.kubelet).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
