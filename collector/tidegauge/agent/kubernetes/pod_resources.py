"""GPUs of each container: asks the kubelet's pod-resources socket, in a thread of its own.

A second source while the head is silent. It knows names but no pod uid, so it is queried by the GPUs
that the driver lists a process on. kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tidegauge.agent.kubernetes.pod_resources_wire import holders_by_device
from tidegauge.agent.ports import HeldBy, HolderSource, NoHolders, SourceHealth
from tidegauge.core.ids import DeviceUuid
from tidegauge.settings import Settings

_log = logging.getLogger(__name__)

REFRESH_S = 10.0
"""Between two questions. A pod keeps its devices for as long as it lives."""
TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 16 << 20
"""As kubelets limit their own clients'; a node with 250 pods has some 100 KB to tell."""
LIST = "/v1.PodResourcesLister/List"


class KubeletError(Exception):
    """The kubelet does not answer now: it is restarting, or refuses access. Ask again later."""


def ask_kubelet(socket: Path) -> bytes:
    """Its answer, a ``ListPodResourcesResponse``. Raises ``KubeletError`` within ``TIMEOUT_S``."""
    grpc = import_module("grpc")  # of the extra [kubernetes]; here and nowhere else
    options = [
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.default_authority", "localhost"),  # servers in Go refuse the socket's path, which is the default
        ("grpc.use_local_subchannel_pool", 1),  # a connection of this question's own: no back-off of the last one
    ]
    try:
        with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
            response = channel.unary_unary(LIST)(b"", timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        raise KubeletError(f"{socket}: {error.details()} ({error.code().name})") from error
    assert isinstance(response, bytes)
    return response


class PodResources:
    """The ``HolderSource`` of a node with a kubelet. Thread-safe; ``start`` begins the thread that asks.

    ``ask`` returns the kubelet's answer or raises ``KubeletError``.
    """

    def __init__(self, ask: Callable[[], bytes], *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic_s = monotonic_s
        self._holders: Mapping[DeviceUuid, frozenset[HeldBy]] = {}
        self._health: SourceHealth | None = None
        self._closing = threading.Event()

    def holders_of(self, uuids: Collection[DeviceUuid]) -> frozenset[HeldBy]:
        holders = self._holders
        return frozenset.intersection(*(holders.get(uuid, frozenset()) for uuid in uuids)) if uuids else frozenset()

    def health(self) -> SourceHealth | None:
        return self._health

    def start(self) -> None:
        """Begin to ask, in a daemon thread. Once."""
        threading.Thread(target=self._run, name="tidegauge-pod-resources", daemon=True).start()

    def close(self) -> None:
        """Ends the thread after the question that is under way, for which it does not wait."""
        self._closing.set()

    def look(self) -> None:
        """Ask once, and take in what is said. What was said before stays while nobody answers."""
        began_s = self._monotonic_s()
        failed = self._health is not None and not self._health.success
        try:
            self._holders = holders_by_device(self._ask())
        except Exception as error:
            success = False
            if not failed:
                slip = not isinstance(error, (KubeletError, ValueError))
                _log.warning("the kubelet does not report which pods have which GPUs: %s", error, exc_info=slip)
        else:
            success = True
            if failed:
                _log.info("the kubelet reports again which pods have which GPUs")
        self._health = SourceHealth(success, self._monotonic_s() - began_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(REFRESH_S)


def open_pod_resources(settings: Settings) -> HolderSource:
    """The kubelet of this node, asked from now on; ``NoHolders`` where there is none, or Kubernetes is switched off."""
    socket = settings.kubernetes_pod_resources
    if settings.kubernetes == "off" or not socket.parent.is_dir():
        return NoHolders()
    if find_spec("grpc") is None:
        _log.warning(
            "kubelet found at %s, but grpcio is missing: pip install 'tidegauge[kubernetes]'. Without it, "
            "ranks have no pod names while the head is unreachable",
            socket,
        )
        return NoHolders()
    resources = PodResources(lambda: ask_kubelet(socket))
    resources.start()
    return resources
