"""The webhook's certificate, in a folder or in a Secret that the controller fills, and its renewal without a gap.

The API servers trust the authorities in ``caBundle``, and learn of a new one some time after it is written. So a new
authority is only trusted at first (beside the old one); it signs an hour later.
"""

from __future__ import annotations

import base64
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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

_logger = logging.getLogger(__name__)

AUTHORITY_LIFE = timedelta(days=1095)
SERVER_LIFE = timedelta(days=90)
LEFT_AT_RENEWAL = 1 / 3
"""The part of its life that a certificate has left at its renewal: months and weeks in which renewing may fail."""
TRUST_FIRST = timedelta(hours=1)
"""The time until a new authority signs. API servers take a changed configuration within seconds."""
SKEW = timedelta(hours=1)
"""Certificates are valid from this long ago: clocks of API servers may be behind."""


@dataclass(frozen=True)
class Certificates:
    """PEM texts. ``trusted`` has the authorities, the newest first; ``authority_key`` is the newest one's."""

    trusted: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The names of a Service in the cluster; API servers use the first."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", f"{service}.{namespace}"


def renewed(found: Certificates | None, names: Sequence[str], *, now_s: float) -> Certificates:
    """``found`` with all due renewals at ``now_s``, for a server of these ``names``; the same if nothing is due.

    ``found`` may be anything (others can write into the Secret): invalid parts are made anew."""
    now = datetime.fromtimestamp(now_s, timezone.utc)
    try:
        parts = None if found is None else _Parts.of(found)
    except (ValueError, TypeError):
        parts = None
    if parts is None or not parts.trusted or parts.trusted[0].not_valid_after_utc <= now:
        key, authority = _new_authority(now)
        return _with_server(Certificates(_pem(authority), _key_pem(key), b"", b""), key, authority, names, now)
    assert found is not None
    newest = parts.trusted[0]
    if _is_due(newest, now):
        key, authority = _new_authority(now)
        living = [_pem(one) for one in parts.trusted if one.not_valid_after_utc > now]
        return Certificates(b"".join([_pem(authority), *living]), _key_pem(key), found.certificate, found.key)
    if not parts.serves(names, now):
        return _with_server(found, parts.authority_key, newest, names, now)
    is_known = now - newest.not_valid_before_utc - SKEW >= TRUST_FIRST
    if is_known and (_is_due(parts.server, now) or not _signed(parts.server, newest)):
        return _with_server(found, parts.authority_key, newest, names, now)
    return found


@dataclass(frozen=True)
class _Parts:
    trusted: list[x509.Certificate]
    authority_key: ec.EllipticCurvePrivateKey
    server: x509.Certificate

    @classmethod
    def of(cls, found: Certificates) -> _Parts:
        """Raises ``ValueError`` or ``TypeError`` for invalid PEM, or parts that do not belong together."""
        trusted = x509.load_pem_x509_certificates(found.trusted)
        authority_key, key = _private_key(found.authority_key), _private_key(found.key)
        server = x509.load_pem_x509_certificate(found.certificate)
        for certificate, its_key in ((trusted[0], authority_key), (server, key)):
            if certificate.public_key() != its_key.public_key():
                raise ValueError("the key belongs to another certificate")
        return cls(trusted, authority_key, server)

    def serves(self, names: Sequence[str], now: datetime) -> bool:
        """Whether a client that trusts ``trusted`` accepts it now, by any of the names."""
        try:
            extension = self.server.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return False
        has_names = set(names) <= set(extension.value.get_values_for_type(x509.DNSName))
        signers = [one for one in self.trusted if one.not_valid_after_utc > now and _signed(self.server, one)]
        return has_names and bool(signers) and self.server.not_valid_after_utc > now


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now < life * LEFT_AT_RENEWAL


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _new_authority(now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Names of their own: a client that trusts two must not take one for the other.
    name = _name(f"Tidegauge webhook {now:%Y-%m-%d %H:%M:%S}")
    usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    builder = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA256())


def _with_server(
    given: Certificates,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    names: Sequence[str],
    now: datetime,
) -> Certificates:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = dict.fromkeys(_USAGES, False) | {"digital_signature": True}
    builder = (
        _builder(_name("tidegauge-webhook"), authority.subject, key.public_key(), now, SERVER_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    certificate = builder.sign(authority_key, hashes.SHA256())
    return Certificates(given.trusted, given.authority_key, _pem(certificate), _key_pem(key))


_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + life)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key of Tidegauge")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


LOOK_EVERY_S = 5.0
"""The minimum interval between reads of the folder. The kubelet takes about a minute to renew the files."""

_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")
"""The keys of the fields of ``Certificates``; the last three are those of a Secret of kubernetes.io/tls, too."""


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
        self, api: KubeApi, namespace: str, name: str, names: Sequence[str], *, now_s: Callable[[], float] = time.time
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
