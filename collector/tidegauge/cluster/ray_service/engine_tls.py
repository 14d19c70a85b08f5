"""TLS between the engine's nodes: certificates that every node makes from the cluster's token, or the site's own.

Ray's gRPC checks both sides (``RAY_USE_TLS``): the other's certificate must come from the authority, and a server's
must name the address that was called. The authority's key is derived from the token, which each node has: nothing else
has to be copied, and whoever could sign could have run code anyway. cryptography is imported where certificates are
made.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from tidegauge.files import replace_file

AUTHORITY = "Tidegauge engine"
LIFE = timedelta(days=3650)
"""New ones are made by each ``up``."""
SKEW = timedelta(days=30)
"""Certificates are valid from this long ago: the clock of another node may be behind."""
_ORDER_OF_P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Number of private keys of the curve (FIPS 186-5, and SEC 2: n)."""


class TlsFiles(NamedTuple):
    """PEM files of a node."""

    certificate: Path
    key: Path
    authority: Path

    def environ(self) -> dict[str, str]:
        """What Ray reads."""
        return {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(self.certificate),
            "RAY_TLS_SERVER_KEY": str(self.key),
            "RAY_TLS_CA_CERT": str(self.authority),
        }

    def context(self) -> ssl.SSLContext:
        """For a client with this node's certificate. Raises ``OSError`` (``ssl.SSLError``)."""
        context = ssl.create_default_context(cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key, password=_no_password)
        context.set_alpn_protocols(["h2"])
        return context


def tls_files(settings: Mapping[str, object], state_dir: str) -> TlsFiles | None:
    """The site's own files, else those that ``up`` makes; ``None``: the engine has no TLS."""
    if not settings.get("engine_tls"):
        return None
    given = [settings.get(f"engine_tls_{name}_file") for name in ("cert", "key", "ca")]
    if any(given):
        return TlsFiles(*(Path(str(path)) for path in given))
    made = Path(state_dir, "tls")
    return TlsFiles(made / "cert.pem", made / "key.pem", made / "ca.pem")


def make_certificates(files: TlsFiles, token: str, address: str) -> None:
    """Write this node's certificate, with a new key, signed by the authority of ``token``. Raises ``OSError``, and
    ``ImportError`` without cryptography."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.x509.oid import NameOID

    # 48 bytes for a number of 32: the remainder favours no key by more than 2^-128 (FIPS 186-5, A.2.1).
    secret = HKDF(hashes.SHA256(), 48, b"tidegauge engine tls", b"authority, version 1").derive(token.encode())
    number = int.from_bytes(secret, "big") % (_ORDER_OF_P256 - 1) + 1
    authority_key, key = ec.derive_private_key(number, ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY)])
    now = datetime.now(timezone.utc)

    def signed(name: x509.Name, of: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + LIFE)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    is_authority, is_none = (
        x509.BasicConstraints(ca=True, path_length=0),
        x509.BasicConstraints(ca=False, path_length=None),
    )
    by_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    node = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    files.key.parent.mkdir(mode=0o700, exist_ok=True)
    subject = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    replace_file(files.authority, signed(authority, authority_key, is_authority, subject))
    replace_file(files.certificate, signed(node, key, is_none, addresses, by_key))
    replace_file(
        files.key,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def why_no_handshake(address: str, files: TlsFiles | None, *, timeout_s: float) -> str | None:
    """Why this node and a head that listens at ``address`` would not understand each other, and what to do. Ray itself
    tries for minutes and does not say it."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = _anything() if files is None else files.context()
    except OSError as error:
        return f"engine_tls: this node's certificate cannot be used: {error}"
    try:
        with (
            socket.create_connection((host, int(port)), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            # TLS 1.3: whether the server takes our certificate is heard with its first word (HTTP/2: SETTINGS).
            said = connection.recv(1) if files is not None else b"TLS"
    except ssl.SSLCertVerificationError as error:
        return (
            f"the certificate of the head at {address} is not one of this cluster ({error.verify_message}): copy the "
            "head's token file again, or look at engine_tls_ca_file"
        )
    except TimeoutError:
        if files is None:
            return None  # Ray may try
        return f"the head at {address} takes connections but said nothing for {timeout_s:.0f} s: is it stopped or busy?"
    except OSError:
        said = b""
    if files is None:
        return f"the head at {address} asks for TLS: set engine_tls=true here, too" if said else None
    if said:
        return None
    return (
        f"the head at {address} has no TLS, or refuses this node's certificate: engine_tls must be the same on all "
        "nodes, and the token file the head's"
    )


def _anything() -> ssl.SSLContext:
    """For one question: whether TLS is spoken there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _no_password() -> str:
    """Never asks on a terminal."""
    return ""
