"""``scripts/stand_still.py``: real processes that are stopped for a while, and all go on in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.needs import missing

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "stand_still.py"
LONGEST_PAUSE = """
import time
longest, last = 0.0, time.monotonic()
end = last + 5.0
while last < end:
    time.sleep(0.005)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
print(longest)
"""


def test_a_command_and_its_orphan_stand_still_and_go_on_and_its_exit_code_is_told(tmp_path: Path) -> None:
    program = tmp_path / "longest_pause.py"
    program.write_text(LONGEST_PAUSE)
    command = f"(setsid sleep 600 >/dev/null 2>&1 &); {sys.executable} {program}; exit 7"
    done, stopped = standing_still(tmp_path, "sh", "-c", command)
    (orphan,) = [line for line in done.stderr.splitlines() if line.startswith("still there: ")]
    pid, name = orphan.removeprefix("still there: ").split("\t")
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    os.kill(int(pid), signal.SIGKILL)
    assert (name, state) == ("sleep 600", "S"), "nobody is left standing"
    assert done.returncode == 7
    assert {"sleep 600", f"{sys.executable} {program}"} <= stopped
    assert float(done.stdout) > 0.05, "by its own clock, too"


def test_nsenter_which_stops_with_its_child_goes_on_with_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing("it takes root to enter a namespace")
    inside = ["sleep", "3"]
    done, stopped = standing_still(tmp_path, "nsenter", "--target", str(os.getpid()), "--pid", "--", *inside)
    assert " ".join(inside) in stopped
    assert done.returncode == 0, done.stderr


def standing_still(folder: Path, *command: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The command once it has ended, and the command lines of all that were stopped."""
    told = folder / "told"
    options = ["--per-s", "8", "--longest-s", "0.5", "--told", str(told)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, "--", *command],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done, {line.split("\t")[3] for line in told.read_text().splitlines()}
