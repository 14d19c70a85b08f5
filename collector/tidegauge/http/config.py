"""Parses exporter-toolkit's web configuration file, as Prometheus and its exporters read it.

Source of the format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md.
docs/web_access.md lists where this parser is stricter or leaves something out. No message quotes the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MAX_FILE_CHARS = 256 * 1024
"""Of a file: a thousand users and some certificates."""
MAX_COST = 16
"""Of a bcrypt hash: 2^16 rounds take 3 s. More would let a handful of requests keep a core busy for minutes."""
HASH_COMMAND = """`htpasswd -nBC 10 "" | tr -d ':\\n'`"""
"""Asks for the password; prints its hash alone."""
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_GO_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|ms|s|m|h))+|0")
_GO_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

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
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""Those that may be set, with the values that they may have; none: any."""
CLIENT_AUTH: Mapping[str, Literal["none", "if_given", "required"]] = {
    "": "none",
    "NoClientCert": "none",
    "VerifyClientCertIfGiven": "if_given",
    "RequireAndVerifyClientCert": "required",
}
_PRINTABLE = re.compile(r"[\x20-\x7e]*")


class WebConfigError(ValueError):
    """The file cannot be used; the message says where and why, and quotes nothing of it."""


class Pem(NamedTuple):
    """A certificate or key: in a file, relative to the configuration's folder, or in the configuration."""

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
    """The content of a file."""

    tls: TlsConfig | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Names and their bcrypt hashes; empty: no basic authentication."""
    rate_limit: RateLimit | None = None


def parse_web_config(text: str) -> WebConfig:
    """Raises ``WebConfigError``. An empty file sets nothing, as in exporter-toolkit."""
    if len(text) > MAX_FILE_CHARS:
        raise WebConfigError(f"more than {MAX_FILE_CHARS} characters")
    try:
        raw = _loaded(text)
        file = _File.model_validate({} if raw is None else raw)
    except RecursionError:
        raise WebConfigError("nested too deeply") from None
    except ValidationError as error:
        raise WebConfigError(_pydantic_words(error)) from None
    return WebConfig(
        tls=_tls(file.tls_server_config),
        headers=_headers(file.http_server_config.headers),
        users={name: _hash(name, value) for name, value in file.basic_auth_users.items()},
        rate_limit=_rate_limit(file.rate_limit),
    )


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_the_default(cls, raw: Any) -> Any:
        """``basic_auth_users:`` with nothing behind it, as go-yaml takes it."""
        return {key: value for key, value in raw.items() if value is not None} if isinstance(raw, dict) else raw


class _Tls(_Part):
    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_auth_type: str = ""
    client_ca_file: str = ""
    client_allowed_sans: list[str] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: list[str] = Field(default_factory=list)
    prefer_server_cipher_suites: bool = True
    curve_preferences: list[str] = Field(default_factory=list)


class _Http(_Part):
    http2: bool = True
    headers: dict[str, str] = Field(default_factory=dict)


class _Rate(_Part):
    interval: str | int = 0
    burst: int = Field(default=0, ge=0, le=1_000_000)


class _File(_Part):
    tls_server_config: _Tls = _Tls()
    http_server_config: _Http = _Http()
    basic_auth_users: dict[str, str] = Field(default_factory=dict)
    rate_limit: _Rate = _Rate()


class _StrictLoader(yaml.SafeLoader):
    """Refuses keys given twice, as go-yaml's strict mode does, and aliases, which no such file needs."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                continue  # no key of ours; refused by its type
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not taken here", problem_mark=mark)
        return super().compose_node(parent, index)


def _loaded(text: str) -> Any:
    # No error has a cause: they quote the line, and a line may hold a password's hash or a key.
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        raise WebConfigError(_yaml_words(error)) from None
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
        # PyYAML's constructors of numbers and times fail so on ``!!int ''``, ``!!timestamp x`` or 2026-99-99.
        raise WebConfigError("it is no YAML of that form") from None


def _yaml_words(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or "it is no text")
    # PyYAML's own sentences may name a character or an anchor of the file.
    told = problem if problem in ("a key is given twice", "aliases are not taken here") else "it is no YAML"
    return told if mark is None else f"line {mark.line + 1}: {told}"


def _pydantic_words(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    # The names of users are no secrets, but what else is used as a key may be one that slipped by a line.
    known = {name for part in (_File, _Tls, _Http, _Rate) for name in part.model_fields}
    where = ".".join(str(step) if str(step) in known else "…" for step in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such key; see docs/web_access.md for those that there are"
    return f"{where}: {first['msg']}"


def _tls(raw: _Tls) -> TlsConfig | None:
    set_at_all = (
        raw.cert_file, raw.cert, raw.key_file, raw.key, raw.client_ca_file, raw.client_ca, raw.client_auth_type,
    )  # fmt: skip
    if not any(set_at_all):
        return None
    client_ca = None
    if raw.client_ca_file or raw.client_ca:
        client_ca = _pem("client_ca", raw.client_ca_file, raw.client_ca)
    client_certificate = _client_auth(raw.client_auth_type)
    if client_ca is not None and client_certificate == "none":
        raise WebConfigError("tls_server_config: a client_ca is given, and client_auth_type is not")
    if client_ca is None and client_certificate != "none":
        # exporter-toolkit then trusts every authority that the system trusts: anybody can have such a certificate.
        raise WebConfigError("tls_server_config: client_auth_type needs client_ca_file: whose certificates are taken?")
    if len(raw.curve_preferences) > 1:
        raise WebConfigError("tls_server_config.curve_preferences: one curve at most can be chosen here")
    config = TlsConfig(
        certificate=_pem("cert", raw.cert_file, raw.cert),
        key=_pem("key", raw.key_file, raw.key),
        client_ca=client_ca,
        client_certificate=client_certificate,
        client_allowed_sans=None if raw.client_allowed_sans is None else tuple(raw.client_allowed_sans),
        min_version=_choice("min_version", raw.min_version, VERSIONS),
        max_version=_choice("max_version", raw.max_version, VERSIONS),
        cipher_suites=tuple(_choice("cipher_suites", name, CIPHERS) for name in raw.cipher_suites),
        prefer_server_cipher_suites=raw.prefer_server_cipher_suites,
        curve=next((_choice("curve_preferences", name, CURVES) for name in raw.curve_preferences), None),
    )
    _check_versions(config)
    return config


def _check_versions(config: TlsConfig) -> None:
    """Raises ``WebConfigError`` if no handshake could succeed."""
    if VERSIONS.index(config.min_version) > VERSIONS.index(config.max_version):
        raise WebConfigError("tls_server_config: min_version is above max_version")
    suites = config.cipher_suites
    if config.max_version == "TLS12" and suites and not any(CIPHERS[name] for name in suites):
        raise WebConfigError("tls_server_config: these cipher_suites are of TLS 1.3 alone, and max_version is TLS12")


def _client_auth(name: str) -> Literal["none", "if_given", "required"]:
    if name in ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert"):
        raise WebConfigError(
            "tls_server_config.client_auth_type: this one asks for a certificate and does not verify it, which "
            "protects nothing; say RequireAndVerifyClientCert"
        )
    return CLIENT_AUTH[_choice("client_auth_type", name, CLIENT_AUTH)]


def _choice(key: str, value: str, known: Mapping[str, str] | tuple[str, ...]) -> str:
    if value not in known:
        names = ", ".join(name for name in known if name)
        raise WebConfigError(f"tls_server_config.{key}: what is there is none of {names}")
    return value


def _pem(key: str, file: str, text: str) -> Pem:
    if file and text:
        raise WebConfigError(f"tls_server_config: {key} and {key}_file are both given")
    if not file and not text:
        raise WebConfigError(f"tls_server_config: {key}_file is missing")
    if "\0" in file:
        raise WebConfigError(f"tls_server_config.{key}_file: this is no path")
    return Pem(file or None, text or None)


def _headers(raw: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in raw.items():
        if name not in HEADERS:
            raise WebConfigError(f"http_server_config.headers: only {', '.join(HEADERS)} can be set")
        if HEADERS[name] and value not in HEADERS[name]:
            raise WebConfigError(f"http_server_config.headers.{name} may be {' or '.join(HEADERS[name])}")
        if not _PRINTABLE.fullmatch(value):
            raise WebConfigError(f"http_server_config.headers.{name}: a header is one line of printable ASCII")
    return tuple((name, value) for name, value in raw.items() if value)


def _hash(name: str, value: str) -> bytes:
    found = _BCRYPT.fullmatch(value)
    if not name or ":" in name or not name.isprintable():
        raise WebConfigError("basic_auth_users: a name is printable, without a colon")
    if found is None:
        raise WebConfigError(f"basic_auth_users.{_shown(name)}: this is no bcrypt hash; {HASH_COMMAND} makes one")
    if not 4 <= int(found[1]) <= MAX_COST:
        raise WebConfigError(
            f"basic_auth_users.{_shown(name)}: the hash's cost is {found[1]}; 4 to {MAX_COST} are taken"
        )
    return value.encode()


def _shown(name: str) -> str:
    """The name, unless a hash may have slipped into it (``ada$2y$10$...: ``)."""
    return "…" if "$" in name else name


def _rate_limit(raw: _Rate) -> RateLimit | None:
    seconds = raw.interval * 1e-9 if isinstance(raw.interval, int) else _seconds(raw.interval)
    if seconds == 0:
        return None
    if not 0 < seconds < 1e9:
        raise WebConfigError("rate_limit.interval: this is no span of time between two requests")
    return RateLimit(seconds, raw.burst)


def _seconds(text: str) -> float:
    """Seconds of a duration in Go's syntax: ``300ms``, ``1m30s``."""
    if len(text) > 40 or not _GO_DURATION.fullmatch(text):
        raise WebConfigError("rate_limit.interval: a span of time looks like 300ms or 1m30s")
    return sum(float(amount) * _GO_UNITS_S[unit] for amount, unit in re.findall(r"([\d.]+)(ns|us|ms|s|m|h)", text))
