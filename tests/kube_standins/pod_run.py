"""One pod of a stand-in node from its binding to its end: what a kubelet's pod worker does."""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_standins.api import STRATEGIC, Api, ApiError, Object
from kube_standins.cgroups import NodeCgroups
from kube_standins.containers import ContainerPlan, ContainerProcess, Ended, Mount, now, user_of
from kube_standins.images import Image
from kube_standins.pod_environ import Here, UnsupportedError, command_of, environ_of
from kube_standins.pod_status import ENDED, ContainerStory, Restarts, status_of, with_times
from kube_standins.volumes import PodVolumes

_log = logging.getLogger(__name__)

BACKOFF_S = 0.2
"""Before a container's first restart; then twice as long each time. A kubelet begins with 10 s."""
MAX_BACKOFF_S = 5.0
DEFAULT_GRACE_S = 30
VOLUMES_AGAIN_S = 1.0


@dataclass(frozen=True)
class PodHost:
    """What all pods of a node have in common."""

    api: Api
    folder: Path
    """One folder for each pod in it, by uid."""
    cgroups: NodeCgroups
    images: Mapping[str, Image]
    visible: Sequence[Mount]
    stop: threading.Event
    """The node ends: all pods are killed."""


class _GoneError(Exception):
    """The pod is to end, or is there no longer."""


class _Slot:
    """A container of the pod, what runs of it and when it begins again."""

    def __init__(self, container: Object, restarts: Restarts) -> None:
        self.container = container
        self.story = ContainerStory(container["name"], container.get("image") or "", restarts)
        self.process: ContainerProcess | None = None
        self.again_s: float | None = None
        """When to begin again (CLOCK_MONOTONIC)."""


class PodRun:
    """Runs a pod in a thread of its own. ``hear`` may be called by any other."""

    def __init__(self, host: PodHost, pod: Object, here: Here, devices: Mapping[str, Mapping[str, str]]) -> None:
        """``devices``: environment that comes with them, by container."""
        self._host = host
        self._pod = pod
        self._here = here
        self._devices = devices
        self._uid: str = pod["metadata"]["uid"]
        self._path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self._folder = host.folder / self._uid
        self._volumes = PodVolumes(pod, self._folder, host.api, here)
        policy = Restarts(pod["spec"].get("restartPolicy") or "Always")
        # An init container begins again until it succeeds, unless nothing in the pod ever does.
        of_inits = Restarts.NEVER if policy is Restarts.NEVER else Restarts.ON_FAILURE
        self._inits = [_Slot(each, Restarts.ALWAYS if each.get("restartPolicy") == "Always" else of_inits)
                       for each in pod["spec"].get("initContainers") or ()]  # fmt: skip
        self._mains = [_Slot(each, policy) for each in pod["spec"]["containers"]]
        self._began = now()
        self._published: dict[str, Any] | None = None
        self._vanished = False
        self._ending = False
        self._waking = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"pod-{self._uid}", daemon=True)

    def start(self, when_ended: Callable[[], None], when_done: Callable[[], None]) -> None:
        """Both are called in the pod's thread: ``when_ended``, perhaps more than once, when its containers have ended
        and before the API server hears of it; ``when_done`` once nothing of the pod is left here."""
        self._when_ended = when_ended
        self._when_done = when_done
        self._thread.start()

    def hear(self, pod: Object, *, gone: bool = False) -> None:
        """The pod has changed, or (``gone``) is there no longer."""
        self._pod = pod
        self._vanished = self._vanished or gone
        self.wake()

    def wake(self) -> None:
        """Let the thread see that something has changed."""
        with self._waking, suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._closed:
                os.write(self._wake_write, b".")

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            try:
                self._live()
                while not self._to_end():
                    self._wait(None)
            except _GoneError:
                pass
            self._end()
        except ApiError as error:
            _log.error("pod %s: %s", self._path, error)
        finally:
            self._kill_all()
            self._volumes.remove()
            self._host.cgroups.remove(self._uid)
            self._when_done()

    def _live(self) -> None:
        """To the end of its containers. Raises ``_GoneError`` when the pod is to end before."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make_volumes()
        for slot in self._inits:
            self._begin(slot)
            while not (slot.story.over or (slot.story.restarts is Restarts.ALWAYS and slot.story.began)):
                self._go_on()
            if slot.story.failed:
                break
        else:
            for slot in self._mains:  # one after the other, as a kubelet does
                self._begin(slot)
                while slot.process is not None and slot.process.pid is None:
                    self._go_on()
            while not all(slot.story.over for slot in self._mains):
                self._go_on()
        self._ending = True
        spec_grace_s = self._pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        self._stop(lambda: spec_grace_s)  # sidecars
        self._publish()

    def _make_volumes(self) -> None:
        while True:
            try:
                self._volumes.make()
                return
            except (UnsupportedError, ApiError, OSError) as error:
                for slot in (*self._inits, *self._mains):
                    slot.story.waiting = ("CreateContainerConfigError", str(error))
            self._go_on(VOLUMES_AGAIN_S)

    def _go_on(self, timeout_s: float | None = None) -> None:
        """Publish how things stand, and wait for the next thing. Raises ``_GoneError``."""
        if self._to_end():
            raise _GoneError
        self._publish()
        self._wait(timeout_s)

    def _to_end(self) -> bool:
        return self._vanished or self._host.stop.is_set() or bool(self._pod["metadata"].get("deletionTimestamp"))

    def _wait(self, timeout_s: float | None) -> None:
        """For the next thing that happens, and take it down; at most for ``timeout_s``."""
        slots = [*self._inits, *self._mains]
        due = [slot.again_s - time.monotonic() for slot in slots if slot.again_s is not None]
        if timeout_s is not None:
            due.append(timeout_s)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for slot in slots:
                if slot.process is not None:
                    selector.register(slot.process.words, selectors.EVENT_READ, slot)
            for key, _ in selector.select(max(0.0, min(due)) if due else None):
                if key.data is None:
                    os.read(self._wake_read, 4096)
                else:
                    self._look(key.data)
        for slot in slots:
            if slot.again_s is not None and slot.again_s <= time.monotonic():
                self._begin(slot)

    def _look(self, slot: _Slot) -> None:
        assert slot.process is not None
        ended = slot.process.look()
        story = slot.story
        if ended is None:
            if slot.process.pid is not None:
                story.began, story.has_run = slot.process.began, True
                (self._folder / f"{story.name}.pid").write_text(str(slot.process.pid))
            return
        slot.process = None
        self._take_end(slot, ended)

    def _take_end(self, slot: _Slot, ended: Ended) -> None:
        story = slot.story
        story.began, story.ended = None, ended
        story.given_up = story.given_up or self._ending
        if not story.over:
            wait_s = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (story.starts - 1))
            story.waiting = ("CrashLoopBackOff", f"back-off {wait_s:g}s restarting container {story.name}")
            story.last = ended
            slot.again_s = time.monotonic() + wait_s

    def _begin(self, slot: _Slot) -> None:
        story = slot.story
        if self._to_end():
            raise _GoneError
        slot.again_s = None
        container_id = secrets.token_hex(32)
        try:
            plan = self._plan(slot.container, container_id)
        except UnsupportedError as error:
            story.waiting = ("CreateContainerConfigError", str(error))
            return
        story.last, story.ended = story.ended, None
        story.container_id = container_id
        story.starts += 1
        slot.process = ContainerProcess(plan, self._folder / f"{story.name}.json")

    def _plan(self, container: Object, container_id: str) -> ContainerPlan:
        name = container["name"]
        image = self._host.images.get(container.get("image") or "", Image())
        environ = environ_of(container, self._pod, self._here, self._devices.get(name, {}))
        command = command_of(container, environ, image.command)
        user = user_of(container, self._pod, image.user)
        mounts = [*self._host.visible, *image.mounts(), *self._volumes.mounts_of(container)]
        return ContainerPlan(
            hostname=self._pod["metadata"]["name"][:63],
            scratch=str(self._folder / "scratch"),
            shm=str(self._volumes.shm),
            log=str(self._folder / f"{name}.log"),
            cgroups=self._host.cgroups.make(self._uid, container_id),
            mounts=mounts,
            user=user,
            read_only_root=bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem")),
            working_dir=container.get("workingDir") or "/",
            environ=environ,
            command=command,
        )

    def _publish(self) -> None:
        """Write the status where it is another than the last one."""
        inits, mains = ([slot.story for slot in slots] for slots in (self._inits, self._mains))
        status = with_times(status_of(inits, mains, self._here, self._began), self._published)
        if status == self._published or self._vanished:
            return
        if status["phase"] in ENDED:
            self._when_ended()
        try:
            self._host.api.insist(self._host.stop, "PATCH", f"{self._path}/status",
                                  {"metadata": {"uid": self._uid}, "status": status}, how=STRATEGIC)  # fmt: skip
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            self._vanished = True
        self._published = status

    def _end(self) -> None:
        """All containers ended within their grace, the last status, and the pod's object gone."""
        self._ending = True
        # Asked again and again: whoever deletes it once more may shorten it.
        self._stop(lambda: self._pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        self._when_ended()
        if self._vanished:
            return
        if any(slot.story.starts for slot in (*self._inits, *self._mains)):
            self._publish()
        # A body makes the server overlook the query, so the grace is in it.
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._uid}}
        try:
            self._host.api.insist(self._host.stop, "DELETE", self._path, body)
        except ApiError as error:
            if error.status not in (0, 404, 409):
                raise

    def _stop(self, grace_s: Callable[[], float]) -> None:
        """SIGTERM to the first process of each container; SIGKILL when the grace is over or the node ends."""
        for slot in (*self._inits, *self._mains):
            slot.again_s = None
            slot.story.given_up = True
        began_s = time.monotonic()
        told: set[ContainerProcess] = set()
        while running := [slot.process for slot in (*self._mains, *self._inits) if slot.process is not None]:
            left_s = began_s + grace_s() - time.monotonic()
            over = left_s <= 0 or self._vanished or self._host.stop.is_set()
            for process in running:
                if over:
                    process.signal(signal.SIGKILL)
                elif process.pid is not None and process not in told:
                    told.add(process)
                    process.signal(signal.SIGTERM)
            self._wait(None if over else left_s)

    def _kill_all(self) -> None:
        self._ending = self._vanished = True
        self._stop(lambda: 0)
        with self._waking:
            self._closed = True
            os.close(self._wake_read)
            os.close(self._wake_write)
