"""Pods and Jobs for the tests of the stand-ins, and waiting for what becomes of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from integration.needs import missing
from kube_standins.api import Api, ApiError, Object
from kube_standins.node import StandInNode, why_no_node

WITHIN_S = 240.0
"""A busy machine takes minutes for what takes seconds; what ends otherwise than it should is told at once."""
Answer = TypeVar("Answer")


class Bench:
    """One namespace, and a node for its pods."""

    def __init__(self, kubeconfig: Path, namespace: str, node: StandInNode) -> None:
        self.api = Api(kubeconfig)
        self.namespace = namespace
        self.node = node

    def path(self, plural: str, name: str = "", *, group: str = "api/v1") -> str:
        return f"/{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def create(self, plural: str, body: Object, *, group: str = "api/v1") -> Object:
        created: Object = self.api.call("POST", self.path(plural, group=group), body)
        return created

    def pod(self, name: str, *containers: Mapping[str, Any], **spec: Any) -> Object:
        """Creates a pod that runs on the node; ``spec`` are more fields of its spec."""
        return self.create("pods", {"metadata": {"name": name}, "spec": self.pod_spec(*containers, **spec)})

    def job(self, name: str, *containers: Mapping[str, Any], pod: Mapping[str, Any], **spec: Any) -> Object:
        template = {"spec": self.pod_spec(*containers, **pod)}
        body = {"metadata": {"name": name}, "spec": {**spec, "template": template}}
        return self.create("jobs", body, group="apis/batch/v1")

    def pod_spec(self, *containers: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
        return {"restartPolicy": "Never", **self.node.placement, "containers": list(containers), **spec}

    def read(self, path: str) -> Object | None:
        try:
            found: Object = self.api.call("GET", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found

    def until(self, seen: Callable[[], Answer | None], what: str) -> Answer:
        """Asks until the answer is true."""
        until_s = time.monotonic() + WITHIN_S
        while not (answer := seen()):
            log = (self.node.folder / "node.log").read_text(errors="replace")[-3000:]
            assert time.monotonic() < until_s, f"{what}: not within {WITHIN_S:g} s; the node's log:\n{log}"
            time.sleep(0.05)  # between two looks; nothing is decided by it
        return answer

    def pod_when(self, name: str, when: Callable[[Object], object], what: str) -> Object:
        """The pod, once it is as wanted."""

        def look() -> Object | None:
            pod = self.read(self.path("pods", name))
            return pod if pod is not None and when(pod) else None

        return self.until(look, f"pod {name} {what}")

    def in_phase(self, name: str, *phases: str) -> Object:
        seen: list[Object] = []

        def is_so(pod: Object) -> bool:
            status = pod.get("status", {})
            seen[:] = [status]
            over = status.get("phase") in ("Failed", "Succeeded") and status["phase"] not in phases
            assert not over, f"pod {name} is not {phases} and never will be: {status}\n{self._logs(pod)}"
            return status.get("phase") in phases

        try:
            return self.pod_when(name, is_so, f"is {phases}")
        except AssertionError as error:
            raise AssertionError(f"{error}\nits status: {seen}") from error

    def _logs(self, pod: Object) -> str:
        names = [each["name"] for each in pod["spec"]["containers"]]
        return "\n".join(f"{name}: {self.node.log_of(pod['metadata']['uid'], name)[-2000:]}" for name in names)

    def gone(self, plural: str, name: str) -> None:
        self.until(lambda: self.read(self.path(plural, name)) is None, f"{plural}/{name} is gone")

    def log_has(self, pod: Object, container: str, text: str) -> str:
        """The container's log, once ``text`` is in it."""
        uid = pod["metadata"]["uid"]
        return self.until(
            lambda: log if text in (log := self.node.log_of(uid, container)) else None, f"{container} says {text!r}"
        )


@contextmanager
def open_bench(kubeconfig: Path, namespace: str, folder: Path, **options: Any) -> Iterator[Bench]:
    """``options`` are those of ``StandInNode``. Skips, or fails in CI, where there cannot be a node."""
    reason = why_no_node()
    if reason is not None:
        missing(reason)
    with StandInNode(kubeconfig, f"node-of-{namespace}", folder, **options) as node:
        yield Bench(kubeconfig, namespace, node)


def shell(script: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """A container that runs a shell script."""
    return {"name": name, "image": "stand-in", "command": ["sh", "-c", script], **more}


def python(arguments: Sequence[str | Path], name: str = "main", **more: Any) -> dict[str, Any]:
    """A container that runs this interpreter."""
    return {"name": name, "image": "stand-in", "command": [sys.executable, *map(str, arguments)], **more}


def exit_codes(pod: Object) -> dict[str, int]:
    """Of the containers that have ended, by name."""
    status = pod["status"]
    states = {each["name"]: each["state"] for each in status.get("containerStatuses") or ()}
    return {name: state["terminated"]["exitCode"] for name, state in states.items() if "terminated" in state}


def condition(found: Object, kind: str) -> Object:
    """A condition of an object that holds; empty where it does not."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind and each["status"] == "True"), {})
