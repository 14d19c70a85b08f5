"""The NRI plugin and a runtime at the other end of its socket: what is put into which container, and that every
question has an answer."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import pytest

import tidegauge
from scheduler_hooks.kubernetes.nri_runtime import PLUGIN, NriRuntime, entries, new
from tidegauge.core.jobs.kubernetes import CHECKPOINT_SIGNAL, CONTAINERS, FRACTION, INJECTED, PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.injection.names import PYTHONPATH_ENTRY
from tidegauge_scheduler_hooks.kubernetes.nri.__main__ import answers, main
from tidegauge_scheduler_hooks.kubernetes.nri.adjustment import NriOptions
from tidegauge_scheduler_hooks.kubernetes.nri.connection import NriError, keep_serving, serve
from tidegauge_scheduler_hooks.kubernetes.nri.kept_probe import keep_probe

PROBE = Path("/var/lib/tidegauge/probe/0123")
OPTIONS = NriOptions({"listed": "dormant"}, excluded=["kube-system"])
GPU = "NVIDIA_VISIBLE_DEVICES=GPU-1"


class Bench:
    """A plugin that serves in a thread of its own, and the runtime."""

    def __init__(self, frame: int = 4096) -> None:
        ours, theirs = socket.socketpair()
        self.runtime = NriRuntime(theirs, frame=frame)
        self._ours, self._theirs = ours, theirs
        self.ended: list[Exception] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            serve(self._ours, answers(OPTIONS, PROBE))
        except (NriError, ValueError, OSError) as error:
            self.ended.append(error)

    def hang_up(self) -> str:
        """Why the plugin ends."""
        self._theirs.shutdown(socket.SHUT_WR)
        self._thread.join()
        self._ours.close()
        self._theirs.close()
        return str(self.ended[0])


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.runtime.registered()
    yield bench
    assert bench.hang_up() == "the runtime closed the connection"


def created(
    bench: Bench,
    *env: str,
    namespace: str = "team",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **container: Any,
) -> tuple[dict[str, str], list[tuple[str, str, str, Sequence[str]]]]:
    """Variables and mounts that the plugin puts into a container ``main`` of a pod that asks for ``stats``."""
    said = {PROFILE_LABEL: "stats"} if labels is None else labels
    pod = new("PodSandbox", id="s", name="train-0", uid="u-1", namespace=namespace, pid=7, labels=entries(said),
              annotations=entries(annotations or {}))  # fmt: skip
    whole = new("Container", id="c", name="main", args=["python"], env=list(env), created_at=1 << 40, **container)
    answer = bench.runtime.ask(
        "CreateContainer", new("CreateContainerRequest", pod=pod, container=whole), "CreateContainerResponse"
    )
    taken = [one.key[1:] for one in answer.adjust.env if one.key.startswith("-")]
    given = {one.key: one.value for one in answer.adjust.env if not one.key.startswith("-")}
    assert taken == list(given), "of two plugins that set one variable the later has to take the earlier one's away"
    return given, [(one.destination, one.type, one.source, list(one.options)) for one in answer.adjust.mounts]


def test_the_plugin_asks_only_for_containers_that_are_made() -> None:
    bench = Bench()
    asked = bench.runtime.registered()
    assert (asked.plugin_name, asked.plugin_idx) == ("tidegauge", "90")
    assert bench.runtime.ask("Configure", new("Request"), "ConfigureResponse").events == 1 << 3
    for more in (True, False):
        request = new("Synchronize", pods=[new("PodSandbox", id="p")], more=more)
        assert bench.runtime.ask("Synchronize", request, "SynchronizeResponse").more == more
    for method in ("Shutdown", "StateChange", "WhateverIsNew"):
        bench.runtime.ask(method, b"\xff\xff", "Response")
    bench.hang_up()


def test_a_container_with_a_gpu_gets_probe_run_directory_and_variables(bench: Bench) -> None:
    environ, mounts = created(bench, GPU, "PYTHONPATH=/image:", "TIDEGAUGE_JOB_NAME=mine", "A=b=c")
    assert environ == {
        "TIDEGAUGE_PROFILE": "stats",
        "TIDEGAUGE_JOB_ID": "team/train-0",
        "TIDEGAUGE_POD": "train-0",
        "TIDEGAUGE_POD_NAMESPACE": "team",
        "TIDEGAUGE_POD_UID": "u-1",
        "TIDEGAUGE_ATTEMPT": "0",
        "TIDEGAUGE_CONTAINER": "main",
        "PYTHONPATH": f"{PYTHONPATH_ENTRY}:/image:",
    }
    assert mounts == [
        ("/tidegauge", "bind", str(PROBE), ["bind", "ro", "nosuid", "nodev"]),
        ("/run/tidegauge", "tmpfs", "tmpfs", ["nosuid", "nodev", "noexec", "mode=1777", f"size={256 << 20}"]),
    ]


def test_words_of_the_pod_become_variables_as_with_the_webhook(bench: Bench) -> None:
    labels = {PROFILE_LABEL: "", "jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/restart-attempt": "2"}
    environ, _ = created(bench, GPU, labels=labels, annotations={FRACTION: "0.5", CHECKPOINT_SIGNAL: "USR1"})
    assert environ["TIDEGAUGE_PROFILE"] == "auto"
    assert (environ["TIDEGAUGE_JOB_ID"], environ["TIDEGAUGE_ATTEMPT"]) == ("team/set", "2")
    assert (environ["TIDEGAUGE_MEMORY_FRACTION"], environ["TIDEGAUGE_CHECKPOINT_SIGNAL"]) == ("0.5", "USR1")


def test_pods_of_a_volcano_job_say_which_and_how_often_it_had_been_started(bench: Bench) -> None:
    """The runtime tells no owners, so that the pod's own words have to do."""
    labels, annotations = {PROFILE_LABEL: "", "volcano.sh/job-name": "v"}, {"volcano.sh/job-version": "4"}
    environ, _ = created(bench, GPU, labels=labels, annotations=annotations)
    assert (environ["TIDEGAUGE_JOB_ID"], environ["TIDEGAUGE_ATTEMPT"]) == ("team/v", "4")


@pytest.mark.parametrize(
    ("env", "container", "has_gpu"),
    [
        ([], {}, False),
        (["NVIDIA_VISIBLE_DEVICES=all"], {}, False),
        (["NVIDIA_VISIBLE_DEVICES=void"], {}, False),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=MIG-2"], {}, True),
        ([], {"linux": new("Linux", devices=[new("Device", path="/dev/nvidia3", major=195)])}, True),
        ([], {"linux": new("Linux", devices=[new("Device", path="/dev/nvidiactl")])}, False),
        ([], {"linux": new("Linux", devices=[new("Device", path="/dev/kfd")])}, True),
        ([], {"mounts": [new("Mount", destination="/var/run/nvidia-container-devices/GPU-1")]}, True),
        ([], {"cdi_devices": [new("CDIDevice", name="nvidia.com/gpu=0")]}, True),
        ([], {"cdi_devices": [new("CDIDevice", name="k8s.gpu.nvidia.com/claim=x")]}, True),
        ([], {"cdi_devices": [new("CDIDevice", name="example.com/nic=0")]}, False),
    ],
)
def test_a_gpu_is_known_by_what_drivers_and_device_plugins_hand_in(
    bench: Bench, env: list[str], container: dict[str, Any], has_gpu: bool
) -> None:
    assert bool(created(bench, *env, **container)[0]) == has_gpu
    assert created(bench, *env, annotations={CONTAINERS: "other, main"}, **container)[0], "its owner may name it"
    assert created(bench, *env, annotations={CONTAINERS: "other"}, **container) == ({}, [])


@pytest.mark.parametrize(
    ("namespace", "labels", "annotations", "level"),
    [
        ("team", {}, {}, None),
        ("listed", {}, {}, "dormant"),
        ("listed", {PROFILE_LABEL: "trace"}, {}, "trace"),
        ("listed", {PROFILE_LABEL: "off"}, {}, None),
        ("team", {PROFILE_LABEL: "loud"}, {}, None),
        ("kube-system", {PROFILE_LABEL: "auto"}, {}, None),
        ("team", {PROFILE_LABEL: "auto"}, {INJECTED: "1"}, None),
    ],
)
def test_the_pods_label_asks_or_the_admins_list_of_namespaces(
    bench: Bench, namespace: str, labels: dict[str, str], annotations: dict[str, str], level: str | None
) -> None:
    environ, _ = created(bench, GPU, namespace=namespace, labels=labels, annotations=annotations)
    assert environ.get("TIDEGAUGE_PROFILE") == level


@pytest.mark.parametrize(
    ("destination", "options", "places"),
    [
        ("/tidegauge", [], []),
        ("/run", ["rw"], ["/tidegauge", "/run/tidegauge"]),
        ("/run", ["ro"], ["/tidegauge"]),
        ("/var/run/tidegauge", [], ["/tidegauge"]),
    ],
)
def test_nothing_is_mounted_over_or_below_what_is_there(
    bench: Bench, destination: str, options: list[str], places: list[str]
) -> None:
    theirs = new("Mount", destination=destination, options=options)
    environ, mounts = created(bench, GPU, mounts=[theirs])
    assert [one[0] for one in mounts] == places
    assert bool(environ) == bool(places)


def test_a_path_that_a_runtime_cannot_change_stays(bench: Bench) -> None:
    assert created(bench, GPU, "PYTHONPATH=/image", "PYTHONPATH=/pod") == ({}, [])


@pytest.mark.parametrize("request_bytes", [b"", b"\xff", b"\x0a\x05abc", b"\x0a\x00\x12\x03\x42\x01\xff"])
def test_a_request_that_cannot_be_read_makes_no_container_fail(bench: Bench, request_bytes: bytes) -> None:
    answer = bench.runtime.ask("CreateContainer", request_bytes, "CreateContainerResponse")
    assert not answer.HasField("adjust")
    assert created(bench, GPU)[0]


def test_messages_in_many_frames_and_long_answers_are_whole() -> None:
    bench = Bench(frame=7)
    bench.runtime.registered()
    long = "/data:" * 2000
    assert created(bench, GPU, f"PYTHONPATH={long}")[0]["PYTHONPATH"] == f"{PYTHONPATH_ENTRY}:{long}"
    bench.runtime.send_on(9, b"a channel that nobody knows")
    assert created(bench, GPU)[0]
    bench.hang_up()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff" * 10, "a message of 4294967295 bytes"),
        (b"\x00\x00\x00\x02\x00\x00\x00\x01\x01\x00\xff\xff", "a number"),
    ],
)
def test_a_runtime_that_speaks_otherwise_is_left(content: bytes, why: str) -> None:
    bench = Bench()
    bench.runtime.registered()
    bench.runtime.send_on(PLUGIN, content)
    assert why in bench.hang_up()


def test_a_refusal_by_the_runtime_is_said_in_its_words() -> None:
    bench = Bench()
    bench.runtime.registered(refusal="too old")
    assert bench.hang_up() == "the runtime refuses the plugin: too old"


class _EnoughError(Exception):
    pass


def test_the_plugin_comes_back_after_each_restart_and_says_a_problem_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nri.sock"
    waits: list[float] = []
    listener = socket.socket(socket.AF_UNIX)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:  # the runtime starts, and ends at once
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(10)
            threading.Thread(target=lambda: listener.accept()[0].close()).start()
        elif len(waits) == 3:
            listener.close()
            path.unlink()
            raise _EnoughError

    with pytest.raises(_EnoughError):
        keep_serving(path, answers(OPTIONS, PROBE), wait)
    assert waits == [1.0] * 3
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == ["no container runtime asks"] * 2


def test_the_probe_is_kept_whole_under_the_name_of_its_content_and_old_ones_stay(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for part in ("core/deep", "probe", "integrations", "cluster"):
        (package / part).mkdir(parents=True)
        (package / part / "code.py").write_text(part)
    (package / "__init__.py").write_text("")
    (package / "core" / "stale.pyc").write_bytes(b"x")
    store = tmp_path / "store"
    umask = os.umask(0o077)
    try:
        first = keep_probe(package, store)
    finally:
        os.umask(umask)
    files = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    assert files == [f"tidegauge/{name}" for name in
                     ("__init__.py", "core/deep/code.py", "integrations/code.py", "probe/code.py")]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in (first, *first.rglob("*"))} == {0o755, 0o644}
    before = (first / "tidegauge").stat().st_ino
    assert keep_probe(package, store) == first
    assert (first / "tidegauge").stat().st_ino == before, "containers have it mounted"
    (package / "probe" / "code.py").write_text("a newer release")
    second = keep_probe(package, store)
    assert sorted(store.iterdir()) == sorted([first, second])
    (second / "tidegauge" / "probe" / "code.py").write_text("")  # a node that lost its power
    assert keep_probe(package, store) == second
    assert (second / "tidegauge" / "probe" / "code.py").read_text() == "a newer release"


def test_the_kept_probe_is_at_the_place_that_the_path_names(tmp_path: Path) -> None:
    kept = keep_probe(Path(tidegauge.__file__).parent, tmp_path)
    assert (kept / PurePath(PYTHONPATH_ENTRY).relative_to("/tidegauge") / "sitecustomize.py").is_file()


@pytest.mark.parametrize("given", ["team", "team=loud", "=auto"])
def test_a_namespace_without_a_level_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--namespace", given])
    assert "is not NAME=LEVEL" in capsys.readouterr().err
