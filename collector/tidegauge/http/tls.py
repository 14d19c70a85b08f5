"""The server's side of TLS, as a web configuration sets it."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tidegauge.http.config import CIPHERS, CURVES, Pem, TlsConfig, WebConfigError

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {"none": ssl.CERT_NONE, "if_given": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(config: TlsConfig, folder: Path) -> ssl.SSLContext:
    """Loads certificate and key; relative paths are below ``folder``. Raises ``WebConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.maximum_version = _VERSIONS[config.max_version]
    try:
        with ExitStack() as files:
            certificate = files.enter_context(_as_file(config.certificate, folder))
            key = files.enter_context(_as_file(config.key, folder))
            # Never asks on a terminal for the password of a key, of which a service has none.
            context.load_cert_chain(certificate, key, password=_no_password)
        if config.client_ca is not None:
            with _as_file(config.client_ca, folder) as authority:
                context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise WebConfigError(f"tls_server_config: {_reason(error)}") from None
    except OSError as error:
        raise WebConfigError(f"tls_server_config: {error.filename or 'a file'}: {error.strerror}") from None
    context.verify_mode = _CLIENTS[config.client_certificate]
    _choose_ciphers(context, config)
    return context


def certificate_files(config: TlsConfig, folder: Path) -> tuple[Path, ...]:
    """The files to read again when they change."""
    pems = (config.certificate, config.key, config.client_ca)
    return tuple(folder / pem.file for pem in pems if pem is not None and pem.file is not None)


def check_client(connection: ssl.SSLSocket, allowed: tuple[str, ...] | None) -> None:
    """Checks that a client's certificate names one of ``allowed``; ``None``: any name. Raises ``ssl.SSLError``.

    A client that shows no certificate, where it need not, is accepted, as in exporter-toolkit.
    """
    shown = connection.getpeercert()
    if allowed is None or not shown:
        return
    names = {_canonical(kind, str(value)) for kind, value in _alternative_names(shown)}
    if not names & {_canonical("", name) for name in allowed}:
        raise ssl.SSLError("the client's certificate names none of client_allowed_sans")


def _alternative_names(certificate: object) -> Iterable[tuple[str, object]]:
    assert isinstance(certificate, dict)
    names: Iterable[tuple[str, object]] = certificate.get("subjectAltName", ())
    return names


def _canonical(kind: str, name: str) -> str:
    """An address in one spelling; OpenSSL writes IPv6 in full and in capitals."""
    if kind not in ("", "IP Address"):
        return name
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _choose_ciphers(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Raises ``WebConfigError``: OpenSSL may lack some, or a policy of the system may forbid them."""
    chosen = [CIPHERS[name] for name in config.cipher_suites if CIPHERS[name]]
    try:
        if chosen:
            context.set_ciphers(":".join(chosen))
        elif config.cipher_suites:  # only suites of TLS 1.3: with anything older nothing would be left to agree on
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        if not config.prefer_server_cipher_suites:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        if config.curve is not None:
            context.set_ecdh_curve(CURVES[config.curve])
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not known to it"
        raise WebConfigError(
            f"tls_server_config: OpenSSL here does not take these cipher_suites or curve_preferences ({reason})"
        ) from None


@contextmanager
def _as_file(pem: Pem, folder: Path) -> Iterator[str]:
    """A path for OpenSSL's loader: a file in memory for a PEM in the configuration itself."""
    if pem.file is not None:
        path = folder / pem.file
        path.open("rb").close()  # OpenSSL's own error does not say which file it is about
        yield str(path)
        return
    descriptor = os.memfd_create("tidegauge-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, (pem.text or "").encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _no_password() -> str:
    raise WebConfigError("tls_server_config: the key has a password, which nobody could type here")


def _reason(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    return f"certificate, key or client_ca cannot be read ({error.reason or 'no PEM'})"
