"""A real PostgreSQL for tests: a child process on a Unix socket of its own, its data in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

READY_WITHIN_S = 100.0
UNPRIVILEGED = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""


@dataclass
class PostgresServer:
    """A cluster of databases that can be stopped and started again. ``binaries`` is where its programs are."""

    folder: Path
    binaries: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    def url(self, database: str) -> str:
        # A server that stands still for longer than the usual 5 s is not away.
        return f"postgresql+psycopg://postgres@/{database}?host={quote(str(self.folder))}&connect_timeout=60"

    def new_database(self, name: str) -> str:
        """Make an empty one; returns its address."""
        self.sql(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def sql(self, statement: str, *, database: str = "postgres") -> str:
        """Run one statement by psql; what it prints, without a header."""
        command = [
            str(self.binaries / "psql"),
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            str(self.folder),
            "-U",
            "postgres",
        ]
        return subprocess.run(
            [*command, "-d", database, "-c", statement], check=True, capture_output=True, text=True
        ).stdout.strip()  # fmt: skip

    def start(self) -> None:
        """Begin, and wait until it takes connections. Raises ``AssertionError`` with the end of its log."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *_as_unprivileged(), str(self.binaries / "postgres"), "-D", str(self.folder / "data"),
                    # No port at all. No fsync: here nobody cuts the power, and it is the tests' time.
                    "-k", str(self.folder), "-c", "listen_addresses=", "-c", "fsync=off",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        deadline_s = time.monotonic() + READY_WITHIN_S
        ready = [str(self.binaries / "pg_isready"), "-q", "-h", str(self.folder), "-U", "postgres"]
        while subprocess.run(ready, check=False).returncode != 0:
            log_end = (self.folder / "log").read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, f"postgres ended with {self.process.returncode}: {log_end}"
            assert time.monotonic() < deadline_s, f"postgres was not ready within {READY_WITHIN_S} s: {log_end}"
            time.sleep(0.02)  # between two looks; nothing is decided by it

    def stop(self) -> None:
        """End it at once, in order; connections are cut."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
        self.process = None


def postgres_binaries() -> Path | None:
    """Where the server's programs are: on the path, else where Debian puts them. ``None``: not installed, or it would
    have to run as root."""
    if os.geteuid() == 0 and not _user_exists():
        return None
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(installed, key=lambda binary: float(binary.parts[-3]), default=None)
    return None if newest is None else newest.parent


@contextmanager
def running_postgres(binaries: Path) -> Iterator[PostgresServer]:
    """A server that is ready, until the block ends.

    Its folder is not below pytest's, which only root may enter; and a socket's path must be short.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidegauge-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, UNPRIVILEGED)
        # C and UTF8: what the tests see must not depend on the machine's locale.
        initdb = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-N"]
        made = subprocess.run(
            [*_as_unprivileged(), *initdb, "--locale=C", "-E", "UTF8"],
            cwd=folder, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        server = PostgresServer(folder, binaries)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_unprivileged() -> Sequence[str]:
    if os.geteuid() != 0:
        return ()
    user = pwd.getpwnam(UNPRIVILEGED)
    # Replaces itself by the command: the child's id is the server's.
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--")


def _user_exists() -> bool:
    try:
        pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        return False
    return True
