"""JobSets without their controller: the kind where the cluster has none, and what looks after it where nobody does.

In tests: ``StandInJobSets``. By hand, until the standard input ends: ``python -m kube_standins.jobset KUBECONFIG``.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
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
QUESTION = "tidegauge.dev/stand-in-question"
"""Label of the JobSet by which ``somebody_works`` asks: no stand-in answers."""
NOTICED_WITHIN_S = 10.0
"""A controller that is there writes the status of a new JobSet in a fraction of that."""


class StandInJobSets:
    """JobSets work in the cluster of ``kubeconfig`` until the block ends. Brings the kind where the cluster lacks it,
    and does nothing where a controller of its own is at work."""

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
        for follow in (self._follow_jobsets, self._follow_jobs):
            threading.Thread(target=follow, daemon=True).start()
        self._worker.start()

    def close(self) -> None:
        self._stop.set()
        self._due.put(None)
        self._worker.join()

    def _follow_jobsets(self) -> None:
        for changed, _ in self._api.changes(f"/apis/{GROUP}/{VERSION}/{PLURAL}", {}, self._stop):
            self._due.put((changed["metadata"]["namespace"], changed["metadata"]["name"]))

    def _follow_jobs(self) -> None:
        for changed, _ in self._api.changes("/apis/batch/v1/jobs", {"labelSelector": NAME}, self._stop):
            self._due.put((changed["metadata"]["namespace"], changed["metadata"]["labels"][NAME]))

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
        if QUESTION in (jobset["metadata"].get("labels") or {}):
            return
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


def somebody_works(api: Api) -> bool:
    """Whether the cluster has a controller for JobSets: many test clusters have the kind alone. Seen by what becomes of
    one that is suspended and never runs."""
    path = f"/apis/{GROUP}/{VERSION}/namespaces/default/{PLURAL}"
    pod = {"restartPolicy": "Never", "containers": [{"name": "none", "image": "none"}]}
    job = {"name": "none", "template": {"spec": {"template": {"spec": pod}}}}
    metadata = {"generateName": "tidegauge-test-", "labels": {QUESTION: "true"}}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "JobSet", "metadata": metadata,
            "spec": {"suspend": True, "replicatedJobs": [job]}}  # fmt: skip
    name = api.call("POST", path, body)["metadata"]["name"]
    until_s = time.monotonic() + NOTICED_WITHIN_S
    try:
        while time.monotonic() < until_s:
            time.sleep(AGAIN_AFTER_S)
            if (api.call("GET", f"{path}/{name}").get("status") or {}).get("conditions"):
                return True
        return False
    finally:
        api.call("DELETE", f"{path}/{name}", {"propagationPolicy": "Background"})


def main() -> None:
    log_to_stderr()
    api = Api(Path(sys.argv[1]))
    ours = install(api)
    needed = ours or not somebody_works(api)
    controller = JobSetController(api)
    if needed:
        controller.start()
    try:
        say_ready_and_wait()
    finally:
        if needed:
            controller.close()
        if ours:
            api.call("DELETE", f"{CRDS}/{CRD_NAME}")


if __name__ == "__main__":
    main()
