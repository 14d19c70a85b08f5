"""``scripts/stand_still.py``: real processes that are stopped for a while, and all go on in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.needs import missing
from integration.service import eventually

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "stand_still.py"
UNTIL_STOPPED = """
import sys, time
longest, last = 0.0, time.monotonic()
end = last + 120.0
while last < end and not (longest > 0.05 and all(f"\\t{name}\\n" in open("told").read() for name in WANTED)):
    time.sleep(0.005)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
print(longest)
"""
PROGRAM = "until_stopped.py"
STARTS_IT = f"{sys.executable} {PROGRAM}"


def test_a_command_and_its_orphan_stand_still_and_go_on_and_its_exit_code_is_told(tmp_path: Path) -> None:
    wanted = ["sleep 600", STARTS_IT]
    command = f"(setsid sleep 600 >/dev/null 2>&1 &); {STARTS_IT}; exit 7"
    done, stopped = standing_still(tmp_path, wanted, "sh", "-c", command)
    (orphan,) = [line for line in done.stderr.splitlines() if line.startswith("still there: ")]
    pid, name = orphan.removeprefix("still there: ").split("\t")
    try:
        eventually(lambda: state_of(pid) == "S", "nobody is left standing")
    finally:
        os.kill(int(pid), signal.SIGKILL)
    assert name == "sleep 600"
    assert done.returncode == 7
    assert {*wanted} <= stopped
    assert float(done.stdout) > 0.05, "by its own clock, too"


def test_nsenter_which_stops_with_its_child_goes_on_with_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("it takes root to enter a namespace")
    inside = ["nsenter", "--target", str(os.getpid()), "--pid", "--", *STARTS_IT.split()]
    done, stopped = standing_still(tmp_path, [STARTS_IT], *inside)
    assert STARTS_IT in stopped
    assert done.returncode == 0, done.stderr


def state_of(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def standing_still(
    folder: Path, wanted: Sequence[str], *command: str
) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The command once it has ended, and the command lines of all that were stopped. ``PROGRAM`` goes on until each of
    ``wanted`` was."""
    (folder / PROGRAM).write_text(f"WANTED = {wanted!r}\n{UNTIL_STOPPED}")
    options = ["--per-s", "8", "--longest-s", "0.5", "--told", "told"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, "--", *command],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done, {line.split("\t")[3] for line in (folder / "told").read_text().splitlines()}
