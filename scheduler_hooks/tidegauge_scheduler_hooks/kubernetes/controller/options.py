"""The command line of the controller process. Invalid options are a usage error before anything starts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""The file with a pod's own namespace, written by the kubelet."""
SERVICE_ACCOUNT_TOKEN = SERVICE_ACCOUNT_NAMESPACE.with_name("token")
MAX_HELD_S = 600
"""Of ``--memory-check-within``."""
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class WebhookOptions:
    """Options of the webhook. Exactly one of the certificate's two sources is set."""

    host: str
    port: int
    injection: InjectionOptions
    service_name: str
    configuration: str | None
    certificate_dir: Path | None
    certificate_secret: str | None
    history_file: Path | None
    """What is said of earlier runs at submission; ``None``: nothing."""


class MemoryCheckOptions(NamedTuple):
    """Options of Kueue's admission check."""

    needs_file: Path | None
    """What earlier runs needed; ``None``: only what owners state is compared."""
    rejects: bool
    """A job that will not fit is rejected: Kueue deactivates its Workload."""
    within_s: float
    """From the reservation of quota, after which a job passes unseen."""


@dataclass(frozen=True)
class Options:
    kubeconfig: Path | None
    """``None``: the service account of this pod."""
    namespace: str
    lease: str
    namespaces: tuple[str, ...] | None
    """``None``: all."""
    kinds: tuple[str, ...]
    pod_conditions: bool
    """Put ``LEAK_CONDITION`` on pods of workloads with an incident."""
    webhook: WebhookOptions | None
    memory_check: MemoryCheckOptions | None
    memory_policies: bool
    """Write the status of MemoryPolicies."""
    health_host: str
    health_port: int
    log_level: str
    api_qps: int
    """Requests a second for its work, on average; the webhook's reads have a rate of their own."""
    api_burst: int


def parse_options(arguments: Sequence[str], *, own_namespace: Path = SERVICE_ACCOUNT_NAMESPACE) -> Options:
    """The options; exits with code 2 and a usage text, as argparse does, for invalid ones."""
    parser = _parser()
    given = parser.parse_args(arguments)
    namespace = given.namespace or _read(own_namespace)
    if not namespace:
        parser.error("--namespace is needed outside a pod: the namespace of the Lease and the Secret")
    return Options(
        kubeconfig=given.kubeconfig,
        namespace=namespace,
        lease=given.lease,
        namespaces=given.namespaces,
        kinds=given.kinds,
        pod_conditions=not given.no_pod_conditions,
        webhook=None if given.no_webhook else _webhook(parser, given),
        memory_check=_memory_check(parser, given),
        memory_policies=given.memory_policies,
        health_host=given.health_host,
        health_port=given.health_port,
        log_level=given.log_level,
        api_qps=given.api_qps,
        api_burst=given.api_burst,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidegauge_scheduler_hooks.kubernetes.controller",
        description="Resumes suspended workloads on request, marks pods of leaking ones, serves the webhook.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--kubeconfig", type=Path, metavar="FILE", help="default: the service account of this pod")
    add("--namespace", metavar="NS", help="namespace of the Lease and of the certificate's Secret; default: this pod's")
    add("--lease", metavar="NAME", default="tidegauge-controller", help="the Lease whose holder acts (%(default)s)")
    add("--namespaces", type=_words, metavar="A,B", help="act only in these namespaces; default: all")
    add("--kinds", type=_kinds, metavar="A,B", default=tuple(KINDS), help=f"default: {','.join(KINDS)}")
    add("--no-pod-conditions", action="store_true", help="never write the status of pods, for a podFailurePolicy")
    add("--no-webhook", action="store_true", help="pods are injected by a MutatingAdmissionPolicy, or not at all")
    add("--webhook-host", metavar="ADDRESS", default="0.0.0.0", help="%(default)s; :: for IPv6")
    add("--webhook-port", type=_port, metavar="PORT", default=9443, help="%(default)s")
    add("--probe-image", metavar="IMAGE", help="image of the init container that installs the probe")
    add("--service-name", metavar="NAME", default="tidegauge-webhook", help="Service of the webhook (%(default)s)")
    add(
        "--webhook-configuration",
        metavar="NAME",
        help="MutatingWebhookConfiguration whose caBundle this process keeps current",
    )
    add(
        "--certificate-dir",
        type=Path,
        metavar="DIR",
        help="folder with tls.crt and tls.key, read again when they change",
    )
    add("--certificate-secret", metavar="NAME", help="Secret that this process fills and renews")
    add(
        "--shared-gpu-replicas",
        type=_count,
        metavar="N",
        default=0,
        help="how many containers share one nvidia.com/gpu.shared; 0: unknown",
    )
    add("--probe-resources", type=_resources, metavar="JSON", help="requests and limits of the init container")
    add(
        "--history-file",
        type=Path,
        metavar="FILE",
        help="what `tidegauge efficiency --for-submission` prints, said to who submits a job; read every minute",
    )
    add(
        "--memory-check",
        choices=("tell", "reject"),
        help="answer Kueue's admission checks of tidegauge.dev/memory: say what will not fit, or reject it",
    )
    add(
        "--memory-check-within",
        type=_seconds,
        metavar="S",
        default=60.0,
        help="seconds after which a job passes that could not be compared (%(default)g)",
    )
    add("--memory-policies", action="store_true", help="say in the status of MemoryPolicies what is in force")
    add("--needs-file", type=Path, metavar="FILE", help="what `tidegauge efficiency --for-admission` prints")
    add("--health-host", metavar="ADDRESS", default="0.0.0.0", help="%(default)s; :: for IPv6")
    add("--health-port", type=_port, metavar="PORT", default=8081, help="/healthz, /readyz, /metrics (%(default)s)")
    add("--log-level", choices=LOG_LEVELS, default="info", help="%(default)s")
    add("--api-qps", type=_at_least(20), metavar="N", default=20, help="requests a second, on average (%(default)s)")
    add("--api-burst", type=_at_least(40), metavar="N", default=40, help="requests at once (%(default)s)")
    return parser


def _webhook(parser: argparse.ArgumentParser, given: argparse.Namespace) -> WebhookOptions:
    if not given.probe_image:
        parser.error("--probe-image is needed for the webhook (or use --no-webhook)")
    if (given.certificate_dir is None) == (given.certificate_secret is None):
        parser.error("the webhook needs either --certificate-dir or --certificate-secret (or use --no-webhook)")
    if given.certificate_secret and not given.webhook_configuration:
        parser.error("--webhook-configuration is needed with --certificate-secret: its caBundle is kept current")
    return WebhookOptions(
        host=given.webhook_host,
        port=given.webhook_port,
        injection=InjectionOptions(given.probe_image, given.shared_gpu_replicas or None, given.probe_resources),
        service_name=given.service_name,
        configuration=given.webhook_configuration,
        certificate_dir=given.certificate_dir,
        certificate_secret=given.certificate_secret,
        history_file=given.history_file,
    )


def _memory_check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> MemoryCheckOptions | None:
    if given.memory_check is None:
        return None
    if given.namespaces is not None:
        parser.error("--memory-check needs all namespaces: in others Kueue would wait for an answer for ever")
    return MemoryCheckOptions(given.needs_file, given.memory_check == "reject", given.memory_check_within)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _kinds(text: str) -> tuple[str, ...]:
    kinds = _words(text)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown kind {unknown[0]!r}; choose from {', '.join(KINDS)}")
    return kinds


def _words(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise argparse.ArgumentTypeError("expected names, separated by commas")
    return words


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return port


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def _seconds(text: str) -> float:
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    if not 0 < seconds <= MAX_HELD_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds (1 to {MAX_HELD_S})")
    return float(seconds)


def _at_least(least: int) -> Callable[[str], int]:
    """A rate: with less, marks would take longer than the head waits for them (``stops.PODS_PER_S``)."""

    def rate(text: str) -> int:
        if _count(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is less than {least}")
        return int(text)

    return rate


def _resources(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(found, dict) or not set(found) <= {"requests", "limits"}:
        raise argparse.ArgumentTypeError('expected {"requests": {…}, "limits": {…}}')
    return found
