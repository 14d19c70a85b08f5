"""Sources of the webhook's certificate: a folder (cert-manager's or a given Secret, mounted), or a Secret that the
controller fills itself; and the trust of the API servers in it."""

from __future__ import annotations

import base64
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.injection.certificates import Certificates, renewed
from tidegauge_scheduler_hooks.kubernetes.ports import (
    SECRETS,
    WEBHOOKS,
    ConflictError,
    InvalidError,
    KubeApi,
    Object,
    ObjectNotFoundError,
    Patch,
)
from tidegauge_scheduler_hooks.ports import TemporaryError

LOOK_EVERY_S = 5.0
"""How often the files of a folder are looked at, at most. The kubelet takes about a minute to renew them."""

_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")
"""As ``Certificates`` has them; the last three are what a Secret of kubernetes.io/tls calls them, too."""

_logger = logging.getLogger(__name__)


class DirCertificate:
    """A certificate in ``tls.crt`` and ``tls.key`` of a folder, which are read again when they change."""

    def __init__(self, folder: Path, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._content: bytes | None = None
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext | None:
        """The last usable one: files are exchanged one after the other."""
        with self._lock:
            now_s = self._monotonic_s()
            if now_s - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = now_s
                self._look()
            return self._context

    def _look(self) -> None:
        try:
            content = b"\n".join((self._folder / name).read_bytes() for name in ("tls.crt", "tls.key"))
            if content != self._content:
                self._context = server_context(content)
                self._content = content
        except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
            _logger.warning("the certificate in %s cannot be used (%s)", self._folder, error)


class SecretCertificate:
    """A certificate in a Secret, made and renewed by ``maintain``; every replica serves it after ``refresh``."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        names: Sequence[str],
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """``names``: the names of the server (``service_names``)."""
        self._api = api
        self._namespace = namespace
        self._name = name
        self._names = tuple(names)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._served: tuple[Certificates, ssl.SSLContext] | None = None

    def current(self) -> ssl.SSLContext | None:
        with self._lock:
            return None if self._served is None else self._served[1]

    @property
    def trusted(self) -> bytes | None:
        """The authorities to be trusted, in PEM; for ``trust``."""
        with self._lock:
            return None if self._served is None else self._served[0].trusted

    def refresh(self) -> None:
        """Serve the Secret's certificate if it is usable. Raises the errors of ``KubeApi.get``."""
        found = _certificates_in(self._api.get(SECRETS, self._namespace, self._name))
        if found is not None:
            with suppress(OSError, ValueError):
                self._serve(found)

    def maintain(self) -> None:
        """Make and renew what is due, and serve it. Of several that do so at once one wins, and all serve the same.

        Raises the errors of ``KubeApi``."""
        try:
            secret: Object | None = self._api.get(SECRETS, self._namespace, self._name)
        except ObjectNotFoundError:
            secret = None
        found = None if secret is None else _certificates_in(secret)
        due = renewed(found, self._names, now_s=self._now_s())
        if due is not found:
            try:
                self._write(secret, due)
            except ConflictError:
                self.refresh()
                return
            _logger.info("Secret %s/%s has a new certificate for the webhook", self._namespace, self._name)
        self._serve(due)

    def _write(self, secret: Object | None, certificates: Certificates) -> None:
        values = (certificates.trusted, certificates.authority_key, certificates.certificate, certificates.key)
        data = {key: base64.b64encode(value).decode() for key, value in zip(_KEYS, values)}
        if secret is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
            self._api.create(SECRETS, self._namespace, body)
        else:
            # With its resourceVersion: whoever else wrote meanwhile is not overwritten.
            whole = {**secret, "data": {**(secret.get("data") or {}), **data}}
            self._api.replace(SECRETS, self._namespace, self._name, whole)

    def _serve(self, certificates: Certificates) -> None:
        with self._lock:
            if self._served is None or self._served[0] != certificates:
                self._served = certificates, server_context(certificates.certificate + certificates.key)


def trust(api: KubeApi, configuration: str, bundle: bytes) -> bool:
    """Have every webhook of a MutatingWebhookConfiguration trust ``bundle`` (PEM); whether anything was changed.

    Raises the errors of ``KubeApi``; ``TemporaryError`` if the configuration changed at the same moment."""
    wanted = base64.b64encode(bundle).decode()
    found = api.get(WEBHOOKS, None, configuration)
    operations: list[Mapping[str, Any]] = []
    for index, webhook in enumerate(found.get("webhooks") or []):
        if (webhook.get("clientConfig") or {}).get("caBundle") != wanted:
            path = f"/webhooks/{index}"
            operations.append({"op": "test", "path": f"{path}/name", "value": webhook["name"]})
            operations.append({"op": "add", "path": f"{path}/clientConfig/caBundle", "value": wanted})
    if not operations:
        return False
    try:
        api.patch(WEBHOOKS, None, configuration, operations, how=Patch.JSON)
    except InvalidError as error:
        raise TemporaryError(f"{configuration} was changed in the meantime: {error}") from error
    return True


def server_context(pem: bytes) -> ssl.SSLContext:
    """A TLS context with this certificate and its key. Raises ``OSError`` (``ssl.SSLError``) for an invalid one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # ssl reads files only. This one is memory without a name: no key on a disk, no writable folder needed.
    descriptor = os.memfd_create("tidegauge-certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def _certificates_in(secret: Object) -> Certificates | None:
    """``None`` for a Secret that is empty or not base64."""
    data = secret.get("data") or {}
    with suppress(KeyError, ValueError, TypeError):
        return Certificates(*(base64.b64decode(data[key], validate=True) for key in _KEYS))
    return None
