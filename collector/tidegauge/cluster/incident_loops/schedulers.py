"""Opens the schedulers that this coordinator can act through, by the settings and by detection."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.settings_store import JobSettingsStore
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import StoreError
from tidegauge.settings import Settings, comma_separated

if TYPE_CHECKING:
    from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi
    from tidegauge_scheduler_hooks.kubernetes.node_conditions import NodeConditions

SLURM_COMMANDS = ("squeue", "scontrol", "scancel")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and its namespace."""
CONTROLLER_LEASE = "tidegauge-controller"


def open_schedulers(settings: Settings, coordinator: Coordinator, files: StateFiles) -> Mapping[str, Any]:
    """``SchedulerPort``s by name: the local one always, others where they are found or set. Raises ``StoreError``."""
    from tidegauge_scheduler_hooks.ray_jobs.adapter import RayJobs
    from tidegauge_scheduler_hooks.ray_jobs.api import RayJobsApi
    from tidegauge_scheduler_hooks.tidegauge_run.adapter import LocalScheduler

    orders = coordinator.orders
    schedulers: dict[str, Any] = {"local": LocalScheduler(orders)}
    if settings.ray_jobs_address is not None:
        api = RayJobsApi(settings.ray_jobs_address, token_file=settings.ray_jobs_token_file)
        schedulers["ray"] = RayJobs(api, orders, uid=_uid_of(settings.ray_jobs_user))
    if _is_slurm_here(settings):
        schedulers["slurm"] = _slurm(settings, coordinator, files)
    if _is_kubernetes_here(settings):
        schedulers["kubernetes"] = _kubernetes(settings, coordinator)
    return schedulers


def _is_slurm_here(settings: Settings) -> bool:
    """Whether the coordinator can act on Slurm jobs from this machine."""
    if settings.slurm != "auto":
        return settings.slurm == "on"
    path = None if settings.slurm_bin_dir is None else str(settings.slurm_bin_dir)
    return all(shutil.which(command, path=path) for command in SLURM_COMMANDS)


def _slurm(settings: Settings, coordinator: Coordinator, files: StateFiles) -> Any:
    from tidegauge_scheduler_hooks.slurm.adapter import SlurmScheduler
    from tidegauge_scheduler_hooks.slurm.commands import SlurmCommands

    job_settings = JobSettingsStore(files.job_settings, wall_s=time.time, reporting=coordinator.heard_lately)
    coordinator.lay_down(job_settings)
    return SlurmScheduler(
        SlurmCommands(settings.slurm_bin_dir, settings.slurm_conf),
        coordinator.orders,
        job_settings,
        requeue_unasked=settings.slurm_requeue == "all",
    )


def _is_kubernetes_here(settings: Settings) -> bool:
    """Whether the coordinator may call a Kubernetes API server from here."""
    if settings.kubernetes != "auto":
        return settings.kubernetes == "on"
    in_a_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists()
    return in_a_pod or settings.kubernetes_kubeconfig is not None


def _kubernetes(settings: Settings, coordinator: Coordinator) -> Any:
    from tidegauge_scheduler_hooks.kubernetes.adapter import KubernetesScheduler
    from tidegauge_scheduler_hooks.kubernetes.client.leases import lease_age_s
    from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
    from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
    from tidegauge_scheduler_hooks.kubernetes.team_policies import TeamPolicies

    api = _kubernetes_api(settings)
    kinds = comma_separated(settings.kubernetes_kinds)
    namespace, name = _controller_lease(settings)
    watches = ClientWatches(api, namespaces=comma_separated(settings.kubernetes_namespaces))
    try:
        directory = PodDirectory(watches, kinds)
    except ValueError as error:
        raise StoreError(f"kubernetes_kinds: {error}") from error
    coordinator.know_pods(directory.pod_of)
    return KubernetesScheduler(
        api,
        directory,
        coordinator.orders,
        controller_age_s=lambda: lease_age_s(api, namespace, name),
        kinds=kinds,
        requeue_unasked=settings.kubernetes_requeue == "all",
        shared_gpu_replicas=settings.kubernetes_shared_gpu_replicas,
        policies=TeamPolicies(watches) if settings.kubernetes_memory_policies else None,
    )


def open_node_conditions(
    settings: Settings, coordinator: Coordinator, *, submit: Callable[[Callable[[], None]], object]
) -> NodeConditions | None:
    """What writes conditions of nodes. Raises ``StoreError``.

    By a client of its own: a look at many nodes takes a hundred requests at once, and no action is to wait for them
    behind the client's rate limit."""
    if not (settings.kubernetes_node_conditions and _is_kubernetes_here(settings)):
        return None
    from tidegauge_scheduler_hooks.kubernetes.node_conditions import NodeConditions, NodeGpus

    def reports() -> list[NodeGpus]:
        return [
            NodeGpus(node.hostname, node.last_report_age_s, node.gpus)
            for node in coordinator.nodes()
            if node.last_report_age_s is not None
        ]

    return NodeConditions(
        _kubernetes_api(settings), reports, submit=submit, wall_s=time.time, monotonic_s=time.monotonic
    )


def _kubernetes_api(settings: Settings) -> ClientApi:
    from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
    from tidegauge_scheduler_hooks.ports import PermanentError

    try:
        return open_api(settings.kubernetes_kubeconfig)
    except PermanentError as error:
        raise StoreError(f"kubernetes is enabled, but the API server cannot be used: {error}") from error


def _controller_lease(settings: Settings) -> tuple[str, str]:
    """Namespace and name of the controller's Lease. Raises ``StoreError``."""
    if settings.kubernetes_controller is not None:
        namespace, slash, name = settings.kubernetes_controller.partition("/")
        if not (namespace and slash and name):
            raise StoreError(f"kubernetes_controller must be NAMESPACE/NAME, not {settings.kubernetes_controller!r}")
        return namespace, name
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip(), CONTROLLER_LEASE
    except OSError as error:
        raise StoreError(
            f"kubernetes_controller is needed outside a pod, to find the controller's Lease: {error}"
        ) from error


def _uid_of(user: str | None) -> int:
    """Raises ``StoreError`` for a user that this machine does not know: acting for the wrong one is worse than not."""
    if user is None:
        return os.geteuid()
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise StoreError(f"ray_jobs_user: no user {user!r} on this machine") from None
