"""The NRI plugin and a real containerd: what a program in a container finds, and that no container waits for a plugin
that is away or stands still, nor fails by it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.containerd_server import IMAGE_PYTHONPATH, Containerd, binaries
from integration.kubernetes.target import eventually
from tidegauge.core.jobs.kubernetes import CONTAINERS, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.injection.names import PYTHONPATH_ENTRY

pytestmark = pytest.mark.timeout(300)

GPU = {"NVIDIA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"}
"""As NVIDIA's device plugin gives it."""
PROGRAM = """
import json, os, sys
import of_the_image
def refused(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.errno
print(json.dumps({
    "path": [part for part in sys.path if part],
    "probe": sys.modules.get("tidegauge.probe.activation.boot") is not None,
    "write": refused("/tidegauge/tidegauge/core/x"),
    "environ": {name: text for name, text in os.environ.items() if name.startswith("TIDEGAUGE_")},
    "run": os.stat("/run/tidegauge").st_mode & 0o7777 if os.path.exists("/run/tidegauge") else None,
}))
"""
SLOW_S = 30.0
"""More than containerd waits for a plugin (2 s), and a busy machine takes for a whole pod."""


class Plugin:
    """The plugin's process, which can be started again."""

    def __init__(self, socket: Path, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tidegauge_scheduler_hooks.kubernetes.nri", f"--socket={socket}"]
        self._command += [f"--store={folder / 'probe'}", "--namespace=team=dormant", "--exclude=kube-system"]
        self._log = folder / "plugin.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def is_asked(self, server: Containerd, *, times: int) -> None:
        """Returns once the runtime has taken it, ``times`` in all, and asks it."""
        eventually(lambda: self._log.read_text().count("asks about new containers") == times)
        eventually(lambda: ran(server, f"asked-{times}")["probe"])


@pytest.fixture(scope="module")
def server() -> Iterator[Containerd]:
    path = binaries()
    with tempfile.TemporaryDirectory(prefix="nri", ignore_cleanup_errors=True) as name:
        server = Containerd(Path(name), path)
        try:
            server.start()
            server.load_images()
            yield server
        finally:
            server.stop()


@pytest.fixture
def plugin(server: Containerd, tmp_path: Path) -> Iterator[Plugin]:
    plugin = Plugin(server.nri_socket, tmp_path)
    plugin.start()
    try:
        plugin.is_asked(server, times=1)
        yield plugin
    finally:
        plugin.send(signal.SIGKILL)


def ran(
    server: Containerd,
    name: str,
    env: Mapping[str, str] = GPU,
    *,
    image: str = "with-path",
    level: str | None = "stats",
    **more: str,
) -> Any:
    """What the program found in a new pod's container ``main``; ``more`` are annotations."""
    labels = {} if level is None else {PROFILE_LABEL: level}
    with server.pod(name, labels=labels, annotations=more) as pod:
        code, output = pod.run("main", image, PROGRAM, env)
    assert code == 0, output
    return json.loads(output)


@pytest.mark.usefixtures("plugin")
def test_a_container_with_a_gpu_has_the_probe_and_what_its_image_put_on_the_path(server: Containerd) -> None:
    found = ran(server, "train-0")
    assert found["path"][:2] == [PYTHONPATH_ENTRY, IMAGE_PYTHONPATH]
    assert found["probe"]
    assert found["write"] == 30, "the probe is everybody's on the node: EROFS"
    assert found["run"] == 0o1777
    assert found["environ"] == {
        "TIDEGAUGE_PROFILE": "stats",
        "TIDEGAUGE_JOB_ID": "team/train-0",
        "TIDEGAUGE_JOB_NAME": "train-0",
        "TIDEGAUGE_POD": "train-0",
        "TIDEGAUGE_POD_NAMESPACE": "team",
        "TIDEGAUGE_POD_UID": "uid-of-train-0",
        "TIDEGAUGE_CONTAINER": "main",
        "TIDEGAUGE_ATTEMPT": "0",
    }


@pytest.mark.usefixtures("plugin")
def test_a_container_keeps_its_own_words_and_a_namespace_of_the_admins_list_touches_gpus_alone(
    server: Containerd,
) -> None:
    own = {**GPU, "PYTHONPATH": "/own:/image/lib", "TIDEGAUGE_JOB_NAME": "mine"}
    found = ran(server, "own", own, image="plain", level=None)
    assert found["path"][:3] == [PYTHONPATH_ENTRY, "/own", IMAGE_PYTHONPATH]
    assert (found["environ"]["TIDEGAUGE_PROFILE"], found["environ"]["TIDEGAUGE_JOB_NAME"]) == ("dormant", "mine")
    for name, env, level in (("no-gpu", {}, None), ("off", GPU, "off")):
        assert ran(server, name, env, level=level)["environ"] == {}
    assert ran(server, "named", {}, **{CONTAINERS: "main"})["probe"]
    twice = ran(server, "twice", own)
    assert twice["path"][:2] == ["/own", IMAGE_PYTHONPATH], "this containerd could not put anything before it"
    assert twice["run"] is None


def test_no_container_waits_for_a_plugin_that_is_killed_frozen_or_back(server: Containerd, plugin: Plugin) -> None:
    def probed(name: str) -> bool:
        began_s = time.monotonic()
        found = ran(server, name)
        assert time.monotonic() - began_s < SLOW_S
        return bool(found["probe"])

    plugin.send(signal.SIGKILL)
    assert not probed("killed")
    plugin.start()
    plugin.is_asked(server, times=2)
    plugin.send(signal.SIGSTOP)
    assert not probed("frozen")
    plugin.send(signal.SIGCONT)
    plugin.is_asked(server, times=3)
    server.stop()
    server.start()
    plugin.is_asked(server, times=4)
