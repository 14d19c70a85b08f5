"""The file that says who may ask the API (exporter-toolkit's form): a configuration, or words without a secret."""

from __future__ import annotations

from collections.abc import Iterable

from fuzz.oracles import require
from fuzz.target import Target
from tidegauge.http.config import WebConfigError, parse_web_config

SECRET = "SECRETHASHSECRET"
_HASH = f"$2y$10${SECRET}{'a' * 37}"


def one(data: bytes) -> None:
    text = data.decode(errors="replace")
    try:
        parse_web_config(text)
    except WebConfigError as error:
        require(SECRET not in str(error), f"a password's hash in a message: {str(error)[:200]}")
        require(len(str(error)) <= 2_000, f"a message of {len(str(error)):,} characters")


def seeds() -> Iterable[bytes]:
    yield b""
    yield f"basic_auth_users:\n  prometheus: {_HASH}\n".encode()
    yield b"tls_server_config:\n  cert_file: head.crt\n  key_file: head.key\n  client_auth_type: RequestClientCert\n"
    yield (
        b"tls_server_config:\n  cert_file: a\n  key_file: b\n  min_version: TLS12\n"
        b"  cipher_suites: [TLS_AES_128_GCM_SHA256]\n"
        b"http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n"
    )


WORDS = (
    b"&a", b"*a", b"<<: *a\n", b"!!python/name:os.system ", b"!!binary a", b"2026-13-45", b"9" * 5000, b"? [a]\n",
    b"{[a]: b}", b"basic_auth_users:\n", b"  prometheus: ", _HASH.encode(), b"headers:\n", b"rate_limit:\n",
    b"interval: 1s\n", b"burst: 5\n", b"[" * 300, b"!!bool x", b"!!timestamp x", b"!!int ''", b"!!float x",
    b"max_version: TLS13\n", b"curve_preferences: [X25519]\n", b"---\n", b"\x85", b"1e999", b".nan", b"!!set ", b"=",
)  # fmt: skip
TARGET = Target(one, lambda: list(seeds()), words=WORDS, most_bytes=1 << 13, most_s=3.0)
