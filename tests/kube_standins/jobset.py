"""JobSets without their controller: the kind and what looks after it, where the cluster has none.

In tests: ``StandInJobSets``. By hand, until the standard input ends: ``python -m kube_standins.jobset KUBECONFIG``.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from kube_standins.api import MERGE, Api, ApiError, Object
from kube_standins.containers import now
from kube_standins.jobset_crd import CRD_NAME, GROUP, JOBSET_CRD, PLURAL, STAND_IN_LABEL, VERSION
from kube_standins.jobset_steps import NAME, Steps, next_steps
from kube_standins.process import StandInProcess, log_to_stderr, say_ready_and_wait

_log = logging.getLogger(__name__)

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGAIN_AFTER_S = 0.2


class StandInJobSets:
    """JobSets work in the cluster of ``kubeconfig`` until the block ends. Does nothing where the cluster has the kind
    already, and so a controller of its own."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        """``folder``: for the log."""
        self._kubeconfig = kubeconfig
        self._log = folder / "jobset.log"
        self._process: StandInProcess | None = None

    def __enter__(self) -> StandInJobSets:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._process = StandInProcess("jobset", [str(self._kubeconfig)], self._log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.end()


class JobSetController:
    """Works in threads of its own from ``start`` to ``close``."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = threading.Event()
        self._due: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        """Namespace and name of JobSets to look at."""
        self._worker = threading.Thread(target=self._work, name="jobsets", daemon=True)

    def start(self) -> None:
        for path, query in (
            (f"/apis/{GROUP}/{VERSION}/{PLURAL}", {}),
            ("/apis/batch/v1/jobs", {"labelSelector": NAME}),
        ):
            threading.Thread(target=self._follow, args=(path, query), daemon=True).start()
        self._worker.start()

    def close(self) -> None:
        self._stop.set()
        self._due.put(None)
        self._worker.join()

    def _follow(self, path: str, query: dict[str, str]) -> None:
        for changed, _ in self._api.changes(path, query, self._stop):
            metadata = changed["metadata"]
            name = metadata["name"] if changed["kind"] == "JobSet" else metadata["labels"][NAME]
            self._due.put((metadata["namespace"], name))

    def _work(self) -> None:
        while (due := self._due.get()) is not None:
            try:
                self._look(*due)
            except ApiError as error:  # noqa: PERF203 - one for each JobSet
                if error.status == 404:
                    continue
                _log.info("JobSet %s/%s: %s", *due, error)
                if (error.may_pass or error.status == 409) and not self._stop.wait(AGAIN_AFTER_S):
                    self._due.put(due)

    def _look(self, namespace: str, name: str) -> None:
        jobset = self._api.call("GET", f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}")
        query = {"labelSelector": f"{NAME}={name}"}
        listed = self._api.call("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs", query=query)
        jobs = [job for job in listed["items"] if _owned(job["metadata"].get("ownerReferences") or (), jobset)]
        self._do(jobset, next_steps(jobset, jobs, now()))

    def _do(self, jobset: Object, steps: Steps) -> None:
        metadata = jobset["metadata"]
        jobs = f"/apis/batch/v1/namespaces/{metadata['namespace']}/jobs"
        if steps.status is not None:
            path = f"/apis/{GROUP}/{VERSION}/namespaces/{metadata['namespace']}/{PLURAL}/{metadata['name']}/status"
            # As it was seen: what has changed since then brings us here again.
            seen = {"resourceVersion": metadata["resourceVersion"]}
            self._api.call("PATCH", path, {"metadata": seen, "status": steps.status}, how=MERGE)
        for name in steps.delete:
            self._api.call("DELETE", f"{jobs}/{name}", {"propagationPolicy": "Foreground"})
        for name, patch in steps.patch.items():
            self._api.call("PATCH", f"{jobs}/{name}", patch, how=MERGE)
        for job in steps.create:
            self._api.call("POST", jobs, job)


def _owned(owners: Iterable[Object], jobset: Object) -> bool:
    return any(owner["uid"] == jobset["metadata"]["uid"] and owner.get("controller") for owner in owners)


def install(api: Api) -> bool:
    """The kind is there and served; whether it is ours. Raises ``ApiError`` if it cannot be."""
    try:
        api.call("POST", CRDS, JOBSET_CRD)
    except ApiError as error:
        if error.status != 409:
            raise
        there = api.call("GET", f"{CRDS}/{CRD_NAME}")
        if STAND_IN_LABEL not in (there["metadata"].get("labels") or {}):
            return False
    served = threading.Event()
    for crd, gone in api.changes(CRDS, {"fieldSelector": f"metadata.name={CRD_NAME}"}, served):
        conditions = (crd.get("status") or {}).get("conditions") or ()
        if not gone and any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            served.set()
            break
    return True


def main() -> None:
    log_to_stderr()
    api = Api(Path(sys.argv[1]))
    ours = install(api)
    controller = JobSetController(api)
    if ours:
        controller.start()
    try:
        say_ready_and_wait()
    finally:
        if ours:
            controller.close()
            api.call("DELETE", f"{CRDS}/{CRD_NAME}")


if __name__ == "__main__":
    main()
