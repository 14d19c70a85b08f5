"""What exporter-toolkit's web configuration can say, as values: ``web_config`` reads them, TLS and door go by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

VERSIONS = ("TLS12", "TLS13")
"""exporter-toolkit also knows TLS10 and TLS11, which RFC 8996 forbids."""
CURVES: Mapping[str, str] = {
    "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519",
}  # fmt: skip
"""By Go's names, OpenSSL's."""
CIPHERS: Mapping[str, str] = {
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
"""Go's ``tls.CipherSuites()``, with OpenSSL's names; those of TLS 1.3 (empty) cannot be chosen among, in Go either."""


class WebConfigError(ValueError):
    """The file cannot be used; the message says where and why, and nothing of what it holds."""


class Pem(NamedTuple):
    """Where a certificate or key is: in a file, relative to the configuration's folder, or in the configuration."""

    file: str | None
    text: str | None = None

    def __repr__(self) -> str:
        return f"Pem(file={self.file!r})"


@dataclass(frozen=True)
class TlsConfig:
    """``tls_server_config``."""

    certificate: Pem
    key: Pem
    client_ca: Pem | None
    client_certificate: Literal["none", "if_given", "required"]
    """What a client has to show; whatever it shows is verified."""
    client_allowed_sans: tuple[str, ...] | None
    min_version: str
    max_version: str
    cipher_suites: tuple[str, ...]
    prefer_server_cipher_suites: bool
    curve: str | None


class RateLimit(NamedTuple):
    """``rate_limit``: a bucket of ``burst`` requests, to which one is added every ``interval_s``."""

    interval_s: float
    burst: int


@dataclass(frozen=True)
class WebConfig:
    """All of a file."""

    tls: TlsConfig | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Names and their bcrypt hashes; empty: no basic authentication."""
    rate_limit: RateLimit | None = None
