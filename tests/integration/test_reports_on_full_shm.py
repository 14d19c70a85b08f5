"""The engine's object store is a sparse file in /dev/shm: on a full one, whoever writes there gets a SIGBUS. Nothing of
ours may go through it, however large a report is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.namespaces import need_namespaces
from integration.reports_on_full_shm import SIZES_BYTES
from tidegauge.cluster.ray_service.node_command import QUIET, SURVIVE

pytestmark = pytest.mark.timeout(400)

SCRIPT = Path(__file__).with_name("reports_on_full_shm.py")
SHM = "mount -t tmpfs -o size=200m,mode=1777 tmpfs /dev/shm"
WITHIN_S = 380.0


def test_reports_of_any_size_arrive_while_shm_is_full() -> None:
    need_namespaces()
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ours |= QUIET | SURVIVE
    # Despite its name: stay on 127.0.0.1.
    ours |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "PYTHONPATH": ":".join(sys.path)}
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{SHM} && exec "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT)], env=ours, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"arrived": list(SIZES_BYTES), "same_agent": True}
