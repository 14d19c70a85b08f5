"""The host names by which a server is asked that asks nobody for a name.

A page of an attacker can let a name of its own lead to the address of this server (DNS rebinding). The browser then
takes both for one site, and the page reads the answers. But the browser sends the name in ``Host``, and nobody can have
an IP address, ``localhost`` or this machine's own names lead elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

LOOK_AGAIN_S = 60.0
"""How long this machine's names are kept: a name server that is away takes seconds to not answer."""
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_RESOLVER = Path("/etc/resolv.conf")


class MachineNames(NamedTuple):
    """The names that this machine has by itself, in lower case."""

    hosts: frozenset[str]
    domains: tuple[str, ...] = ()
    """In a pod: the domains of its namespace's services, ``.tidegauge.svc`` and so on. Names there are given by those
    who may create services beside the head."""

    def have(self, host: str) -> bool:
        """In a pod a name without a dot is one of its namespace, too."""
        return host in self.hosts or host.endswith(self.domains) or bool(self.domains and "." not in host)


def machine_names(namespace_file: Path = _POD_NAMESPACE, resolver_file: Path = _RESOLVER) -> MachineNames:
    """The host name, and what the name service makes of it. May take seconds where that does not answer."""
    hosts = frozenset(name.lower() for name in (socket.gethostname(), socket.getfqdn()))
    namespace = _text(namespace_file).strip()
    if not namespace:
        return MachineNames(hosts)
    lines = _text(resolver_file).splitlines()
    searched = (word.rstrip(".") for line in lines if line.startswith("search") for word in line.split())
    below = {word for word in searched if word.startswith(f"{namespace}.svc.")}
    return MachineNames(hosts, tuple(sorted(f".{name}" for name in {namespace, f"{namespace}.svc", *below})))


class ServedHosts:
    """Thread-safe. A name of neither settings nor ``localhost`` is compared with the machine's, which are looked up
    then."""

    def __init__(
        self, *configured: str | None, look: Callable[[], MachineNames] = machine_names,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``configured``: names, addresses or URLs of settings."""
        hosts = (_host(one.partition("://")[2] or one) for one in configured if one)
        self._configured = frozenset(host for host in hosts if host)
        self._look = look
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._looked: tuple[float, MachineNames] | None = None

    def serve(self, header: str | None) -> bool:
        """Whether a request with this ``Host`` may be answered. Browsers always send one."""
        if header is None:
            return True
        host = _host(header)
        if host is None:
            return False
        if _is_address(host) or host == "localhost" or host.endswith(".localhost") or host in self._configured:
            return True
        return self._machine().have(host)

    def _machine(self) -> MachineNames:
        with self._lock:
            if self._looked is None or self._monotonic_s() >= self._looked[0] + LOOK_AGAIN_S:
                self._looked = self._monotonic_s(), self._look()
            return self._looked[1]


def _host(address: str) -> str | None:
    """The host of ``host``, ``host:port`` or ``[address]:port``, in lower case and without the root's dot."""
    try:
        host = urlsplit(f"//{address if address.count(':') < 2 or '[' in address else f'[{address}]'}").hostname
    except ValueError:
        return None
    return host.removesuffix(".") if host else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
