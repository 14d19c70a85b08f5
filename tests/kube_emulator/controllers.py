"""The controllers that run beside the API server: each looks at everything again whenever anything has changed."""

from __future__ import annotations

import threading
import uuid

from kube_emulator.api import Api
from kube_emulator.budgets import sync_budgets
from kube_emulator.clock import now
from kube_emulator.defaults import with_defaults
from kube_emulator.garbage import sync_garbage
from kube_emulator.job_controller import JobController
from kube_emulator.namespaces import sync_namespaces
from kube_emulator.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, ResourceType
from kube_emulator.store import Object, StaleError, key_of

_RETRY_S = 0.5


def prepare_cluster(api: Api) -> None:
    """What every cluster has from its first moment: some namespaces, and the role ``cluster-admin``."""
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        _make(api, NAMESPACES, {"metadata": {"name": name}})
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    _make(api, CLUSTER_ROLES, {"metadata": {"name": "cluster-admin"}, "rules": [everything]})
    reference = {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"apiGroup": CLUSTER_ROLES.group, "kind": "Group", "name": "system:masters"}
    _make(
        api,
        CLUSTER_ROLE_BINDINGS,
        {"metadata": {"name": "cluster-admin"}, "roleRef": reference, "subjects": [subject]},
    )


def _make(api: Api, resource: ResourceType, body: Object) -> None:
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = {**body["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": now()}
    value = with_defaults(resource, {**head, **body, "metadata": metadata})
    api.store.create(key_of(resource, "", metadata["name"]), value)


class Controllers:
    """One thread for all of them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._jobs = JobController(api)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kube-emulator-controllers", daemon=True)
        self.failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Raises what ended the controllers before their time."""
        self._ending.set()
        with self._api.store.changed:
            self._api.store.changed.notify_all()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        seen = -1
        try:
            while not self._ending.is_set():
                with self._api.store.changed:
                    if self._api.store.version == seen:
                        self._api.store.changed.wait(timeout=0.5)
                        continue
                    seen = self._api.store.version
                try:
                    sync_namespaces(self._api)
                    sync_garbage(self._api)
                    self._jobs.sync()
                    sync_budgets(self._api)
                    if self._jobs.refused:
                        self._ending.wait(_RETRY_S)
                        seen = -1
                except StaleError:
                    seen = -1  # somebody was quicker: look at everything again
        except Exception as error:
            self.failure = error
