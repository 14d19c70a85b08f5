"""The emulator as tests use it: started, asked for kubeconfigs, made to fail, ended."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kube_emulator.accounts import ADMINS
from kube_emulator.api import Api
from kube_emulator.certificates import make_server_files
from kube_emulator.controllers import Controllers, prepare_cluster
from kube_emulator.faults import Faults
from kube_emulator.rbac import Asked
from kube_emulator.server import Server
from kube_emulator.webhooks import Admission
from serving import Serving


class Emulator:
    """An API server on a free loopback port from ``with`` until its end, with its controllers in threads.

    ``folder`` is an existing empty one for certificates and kubeconfigs. ``controllers=False``: only the API server,
    as a control plane without kube-controller-manager. ``tls=False``: plain HTTP.
    """

    def __init__(self, folder: Path, *, tls: bool = True, controllers: bool = True, port: int = 0) -> None:
        self.faults = Faults()
        self._folder = folder
        self._api = Api()
        self._files = make_server_files(folder) if tls else None
        self._controllers = Controllers(self._api) if controllers else None
        self._port = port
        self._server: Server | None = None
        self._serving: Serving | None = None

    def __enter__(self) -> Emulator:
        prepare_cluster(self._api)
        self._open()
        if self._controllers is not None:
            self._controllers.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._controllers is not None:
            self._controllers.stop()
        self._close()

    @property
    def url(self) -> str:
        return f"{'https' if self._files else 'http'}://127.0.0.1:{self._port}"

    @property
    def skipped_rules(self) -> frozenset[str]:
        """CEL rules of custom resource definitions that were met and not evaluated."""
        return frozenset(self._api.intake.skipped_rules)

    @property
    def validators(self) -> list[Callable[[Admission], str | None]]:
        """Asked about every change before it is stored; what one says against it is the refusal."""
        return self._api.intake.validators

    def kubeconfig(self, user: str = "admin", *groups: str) -> Path:
        """A file for that user; ``admin`` may do everything, others what roles bound to them or ``groups`` allow."""
        token = self._api.accounts.token_of(user, *(groups or ((ADMINS,) if user == "admin" else ())))
        cluster: dict[str, object] = {"server": self.url}
        if self._files is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self._files.authority.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "emulated", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "emulated", "context": {"cluster": "emulated", "user": user}}],
            "current-context": "emulated",
        }
        path = self._folder / f"{user.replace(':', '_')}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def follow(self, user: str) -> dict[Asked, None]:
        """What that user asks for from now on, in order and without repetition; it grows."""
        return self._api.accounts.followed.setdefault(user, {})

    def unfollow(self, user: str) -> None:
        self._api.accounts.followed.pop(user, None)

    def cut_watches(self) -> None:
        """All watches that are open end without a word; new ones work."""
        assert self._server is not None, "the emulator is away"
        self._server.cut_watches()

    def compact(self) -> None:
        """Watches and pages from before now are answered with 410 Gone."""
        self._api.store.compact()

    @contextmanager
    def away(self) -> Iterator[None]:
        """In the block all connections are refused, and those that were open are cut. Objects and tokens stay."""
        self._close()
        with _kept(self._port):
            try:
                yield
            finally:
                self._open()

    def _open(self) -> None:
        tls = None
        if self._files is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self._files.certificate, self._files.key)
        self._server = Server(self._port, self._api, self.faults, tls)
        self._port = self._server.server_address[1]
        self._serving = Serving(self._server)
        self._serving.start()

    def _close(self) -> None:
        assert self._server is not None, "the emulator is away"
        assert self._serving is not None
        self._serving.stop()
        self._server.cut_watches()
        self._server.cut_connections()
        self._server = None


@contextmanager
def _kept(port: int) -> Iterator[None]:
    """Bound, so that the kernel gives it to nobody, and not listened on: a server that reuses addresses can take it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        yield
