"""exporter-toolkit's form: what is taken, what is refused, and that no refusal tells what the file holds."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.http.config import MAX_FILE_CHARS, Pem, RateLimit, WebConfig, WebConfigError, parse_web_config
from tidegauge.http.tls import certificate_files, server_context
from web_certificates import Authority

HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
"""The one of exporter-toolkit's documentation."""
SAMPLE = """
tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: /etc/ca.pem
  client_allowed_sans: [prometheus.example]
  min_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: true
  curve_preferences: [CurveP256]
http_server_config:
  http2: false
  headers:
    Strict-Transport-Security: max-age=31536000
    X-Frame-Options: deny
basic_auth_users:
  alice: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG
rate_limit:
  interval: 250ms
  burst: 20
"""


def test_all_of_the_form_is_read() -> None:
    config = parse_web_config(SAMPLE)
    assert config.tls is not None
    assert config.tls.certificate == Pem("server.crt")
    assert (config.tls.client_certificate, config.tls.client_allowed_sans) == ("required", ("prometheus.example",))
    assert (config.tls.min_version, config.tls.max_version) == ("TLS13", "TLS13")
    assert config.headers == (("Strict-Transport-Security", "max-age=31536000"), ("X-Frame-Options", "deny"))
    assert config.users == {"alice": HASH.encode()}
    assert config.rate_limit == RateLimit(0.25, 20)
    folder = Path("/etc/tidegauge")
    assert certificate_files(config.tls, folder) == (
        folder / "server.crt", folder / "server.key", Path("/etc/ca.pem"),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "\n", "{}", "basic_auth_users:\n", "tls_server_config: {}\n"])
def test_a_file_that_asks_for_nothing_is_one(text: str) -> None:
    assert parse_web_config(text) == WebConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour: blue", "there is no such key"),
        ("tls_server_config: {cert_fil: a}", "there is no such key"),
        ("tls_server_config: {cert_file: a}", "key_file is missing"),
        ("tls_server_config: {key_file: a}", "cert_file is missing"),
        ("tls_server_config: {cert_file: a, cert: b, key_file: c}", "both given"),
        ("tls_server_config: {cert_file: a, key_file: c, client_ca_file: d}", "client_auth_type is not"),
        ("tls_server_config: {cert_file: a, key_file: c, client_auth_type: RequireAnyClientCert}", "does not verify"),
        ("tls_server_config: {cert_file: a, key_file: c, client_auth_type: Maybe}", "none of NoClientCert"),
        (
            "tls_server_config: {cert_file: a, key_file: c, client_auth_type: RequireAndVerifyClientCert}",
            "needs client_ca_file",
        ),
        ("tls_server_config: {cert_file: a, key_file: c, min_version: TLS10}", "none of TLS12, TLS13"),
        ("tls_server_config: {cert_file: a, key_file: c, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}", "none of TLS_"),
        (
            "tls_server_config: {cert_file: a, key_file: c, min_version: TLS13, max_version: TLS12}",
            "min_version is above max_version",
        ),
        (
            "tls_server_config: {cert: a, key: c, max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]}",
            "are of TLS 1.3 alone",
        ),
        ("tls_server_config: {cert_file: a, key_file: c, curve_preferences: [X25519, CurveP256]}", "one curve"),
        ("http_server_config: {headers: {Server: x}}", "only Content-Security-Policy"),
        ("http_server_config: {headers: {X-Frame-Options: allow}}", "deny or sameorigin"),
        ('http_server_config: {headers: {X-XSS-Protection: "1\\r\\nSet-Cookie: a"}}', "one line of printable"),
        ("basic_auth_users: {alice: secret}", "alice: this is no bcrypt hash"),
        ("basic_auth_users: {alice: $2b$17$" + "a" * 53 + "}", "cost is 17"),
        ("basic_auth_users: {'a:b': " + HASH + "}", "without a colon"),
        ("basic_auth_users: [alice]", "basic_auth_users"),
        (f"basic_auth_users:\n  alice: {HASH}\n  alice: {HASH}\n", "line 3: a key is given twice"),
        ("a: &x [1]\nb: *x\n", "line 2: aliases are not taken"),
        ("rate_limit: {interval: soon}", "looks like 300ms"),
        ("rate_limit: {interval: -5}", "no span of time"),
        ("[1, 2]", "the file"),
        ("a: [", "line 1: it is no YAML"),
        ("!!timestamp x", "no YAML of that form"),
        ("!!int ''", "no YAML of that form"),
        ("a: 2026-99-99", "no YAML of that form"),
        ("[" * 5000, "no YAML|nested too deeply"),
        ("#" * (MAX_FILE_CHARS + 1), "more than"),
    ],
)  # fmt: skip
def test_web_config_error_names_its_place(text: str, said: str) -> None:
    with pytest.raises(WebConfigError, match=said):
        parse_web_config(text)


@pytest.mark.parametrize(
    "text",
    [
        "basic_auth_users: {alice: CANARY}",
        "basic_auth_users: {alice: [CANARY]}",
        "basic_auth_users: CANARY",
        "CANARY: 1",
        "tls_server_config: {key: CANARY}",
        "tls_server_config: {key: CANARY, CANARY: 1}",
        "tls_server_config: {cert_file: a, key: CANARY, min_version: CANARY}",
        "basic_auth_users:\n  alice: CANARY\n bob: CANARY\n",
        "a: *CANARY",
        "key: !CANARY x",
        "rate_limit: {interval: CANARY}",
        "http_server_config: {headers: {CANARY: x}}",
    ],
)
def test_no_refusal_tells_what_the_file_holds(text: str) -> None:
    with pytest.raises(WebConfigError) as caught:
        parse_web_config(text)
    assert "CANARY" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "CANARY" not in repr(parse_web_config(SAMPLE.replace("alice", "bob")))


def test_secrets_are_not_in_what_is_printed_of_it() -> None:
    text = SAMPLE.replace("key_file: server.key", "key: CANARY")
    assert "CANARY" not in repr(parse_web_config(text))
    assert HASH not in repr(parse_web_config(text))


@given(st.text(max_size=400) | st.text(alphabet="{}[]:-&*!|>'\"#\n ab$2y10", max_size=200))
def test_any_text_is_a_configuration_or_a_refusal(text: str) -> None:
    with contextlib.suppress(WebConfigError):
        assert isinstance(parse_web_config(text), WebConfig)


def test_certificate_and_key_may_stand_in_the_file_itself(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("node7")
    indented = {
        name: "".join(f"    {line}\n" for line in path.read_text().splitlines())
        for name, path in (("cert", pair.certificate), ("key", pair.key))
    }
    config = parse_web_config("tls_server_config:\n" + "".join(f"  {n}: |\n{text}" for n, text in indented.items()))
    assert config.tls is not None
    assert isinstance(server_context(config.tls, Path("/nowhere")), ssl.SSLContext)


def test_versions_ciphers_and_curve_are_those_of_the_file(tmp_path: Path) -> None:
    Authority(tmp_path).issue("node7")
    text = (
        "tls_server_config: {cert_file: node7.pem, key_file: node7.key, max_version: TLS12, "
        "cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384], curve_preferences: [CurveP384]}"
    )
    config = parse_web_config(text)
    assert config.tls is not None
    context = server_context(config.tls, tmp_path)
    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    older = [one["name"] for one in context.get_ciphers() if not one["name"].startswith("TLS_")]
    assert older == ["ECDHE-ECDSA-AES256-GCM-SHA384"]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: (folder / "node7.key").unlink(), "node7.key: No such file"),
        (lambda folder: (folder / "node7.key").write_text("CANARY"), "cannot be read"),
        (lambda folder: (folder / "node7.pem").write_text(""), "cannot be read"),
        (lambda folder: (folder / "node7.key").write_bytes((folder / "other.key").read_bytes()), "does not belong"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_said(tmp_path: Path, break_it: object, said: str) -> None:
    authority = Authority(tmp_path)
    authority.issue("node7")
    authority.issue("other")
    assert callable(break_it)
    break_it(tmp_path)
    config = parse_web_config("tls_server_config: {cert_file: node7.pem, key_file: node7.key}")
    assert config.tls is not None
    with pytest.raises(WebConfigError, match=said) as caught:
        server_context(config.tls, tmp_path)
    assert "CANARY" not in str(caught.value)


def test_web_config_refuses_ciphers_and_curves_that_openssl_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OpenSSL that was built with less, or has a policy (`crypto-policies`), may refuse what is on our lists."""
    Authority(tmp_path).issue("node7")
    for more, table in (("curve_preferences: [X25519]", "CURVES"), ("cipher_suites: [ODD]", "CIPHERS")):
        odd = {"X25519": "no-such-curve"} if table == "CURVES" else {"ODD": "NO-SUCH-CIPHER"}
        for module in ("config", "tls"):
            monkeypatch.setattr(f"tidegauge.http.{module}.{table}", odd)
        config = parse_web_config(f"tls_server_config: {{cert_file: node7.pem, key_file: node7.key, {more}}}")
        assert config.tls is not None
        with pytest.raises(WebConfigError, match="cipher_suites or curve_preferences"):
            server_context(config.tls, tmp_path)


def test_a_hash_that_slipped_into_a_name_is_not_quoted() -> None:
    with pytest.raises(WebConfigError) as caught:
        parse_web_config("basic_auth_users: {'ada" + HASH + "': x}")
    assert HASH[7:] not in str(caught.value)
    assert "no bcrypt hash" in str(caught.value)
