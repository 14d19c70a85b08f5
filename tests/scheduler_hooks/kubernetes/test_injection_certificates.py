"""The webhook's certificates over years: who trusts what at every moment, and two replicas that make them at once."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fakes.kube import Call, FakeKube
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import (
    LOOK_EVERY_S,
    TRUST_FIRST,
    Certificates,
    DirCertificate,
    SecretCertificate,
    renewed,
    server_context,
    service_names,
    trust,
)
from tidegauge_scheduler_hooks.kubernetes.ports import SECRETS, WEBHOOKS, ForbiddenError, ObjectNotFoundError
from tidegauge_scheduler_hooks.ports import TemporaryError

NAMES = service_names("webhook", "tidegauge")
START_S = 1_800_000_000.0
DAY_S = 86400.0


def accepted(bundle: bytes, certificate: bytes, now_s: float) -> bool:
    """Whether a client that trusts ``bundle`` takes this certificate for ``NAMES[0]`` then."""
    now = datetime.fromtimestamp(now_s, timezone.utc)
    store = x509.verification.Store(x509.load_pem_x509_certificates(bundle))
    verifier = x509.verification.PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(NAMES[0]))
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate), [])
    except x509.verification.VerificationError:
        return False
    return True


def test_a_new_authority_makes_a_certificate_that_is_accepted_at_once() -> None:
    made = renewed(None, NAMES, now_s=START_S)
    assert accepted(made.trusted, made.certificate, START_S)
    assert accepted(made.trusted, made.certificate, START_S - 1800)  # a client whose clock is behind
    assert renewed(made, NAMES, now_s=START_S + DAY_S) == made


def years(step_s: float) -> Iterator[tuple[float, Certificates, Certificates]]:
    """Ten years of looking every ``step_s``: the time, and what was there before and after."""
    found = renewed(None, NAMES, now_s=START_S)
    for step in range(int(3650 * DAY_S / step_s)):
        now_s = START_S + step * step_s
        before, found = found, renewed(found, NAMES, now_s=now_s)
        yield now_s, before, found


def test_over_ten_years_no_client_is_ever_without_a_certificate_that_it_accepts() -> None:
    authorities = set()
    for now_s, before, after in years(3 * DAY_S):
        # A client that has not heard of the latest change yet, and one that has.
        assert accepted(before.trusted, after.certificate, now_s)
        assert accepted(after.trusted, after.certificate, now_s)
        assert after.trusted.count(b"BEGIN") <= 2
        authorities.add(after.authority_key)
    assert len(authorities) > 3


def test_a_new_authority_is_trusted_for_an_hour_before_it_signs() -> None:
    now_s, before, after = next(one for one in years(DAY_S) if one[1].authority_key != one[2].authority_key and one[0])
    made_s = next(now_s for now_s, old, new in years(DAY_S) if old.authority_key != new.authority_key)
    assert now_s == made_s
    assert after.certificate == before.certificate
    assert renewed(after, NAMES, now_s=now_s + TRUST_FIRST.total_seconds() - 1) == after
    signed = renewed(after, NAMES, now_s=now_s + TRUST_FIRST.total_seconds())
    assert signed.certificate != after.certificate
    newest_only = signed.trusted[: signed.trusted.index(b"-----END CERTIFICATE-----") + 26]
    assert accepted(newest_only, signed.certificate, now_s + TRUST_FIRST.total_seconds())


def test_another_name_of_the_service_makes_another_certificate_of_the_same_authority() -> None:
    made = renewed(None, ["other.tidegauge.svc"], now_s=START_S)
    assert not accepted(made.trusted, made.certificate, START_S)
    again = renewed(made, NAMES, now_s=START_S)
    assert again.trusted == made.trusted
    assert accepted(again.trusted, again.certificate, START_S)


@pytest.mark.parametrize("part", ["trusted", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----"])
def test_injection_certificate_that_is_damaged_is_replaced(part: str, content: bytes) -> None:
    broken = replace(renewed(None, NAMES, now_s=START_S), **{part: content})
    made = renewed(broken, NAMES, now_s=START_S)
    assert accepted(made.trusted, made.certificate, START_S)
    server_context(made.certificate + made.key)


def test_a_key_of_another_certificate_is_not_served() -> None:
    one, other = renewed(None, NAMES, now_s=START_S), renewed(None, NAMES, now_s=START_S)
    made = renewed(replace(one, key=other.key), NAMES, now_s=START_S)
    server_context(made.certificate + made.key)


def test_a_certificate_without_names_is_made_anew() -> None:
    """As an admin may put one into the Secret: browsers took those that have a common name alone, once."""
    one = renewed(None, NAMES, now_s=START_S)
    signer = serialization.load_pem_private_key(one.authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    before = x509.load_pem_x509_certificate(one.certificate)
    nameless = x509.CertificateBuilder(
        issuer_name=before.issuer,
        subject_name=before.subject,
        public_key=before.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=before.not_valid_before_utc,
        not_valid_after=before.not_valid_after_utc,
    ).sign(signer, hashes.SHA256())
    given = replace(one, certificate=nameless.public_bytes(serialization.Encoding.PEM))
    made = renewed(given, NAMES, now_s=START_S)
    assert accepted(made.trusted, made.certificate, START_S)


def test_after_years_without_a_controller_everything_is_made_anew() -> None:
    made = renewed(None, NAMES, now_s=START_S)
    late_s = START_S + 5000 * DAY_S
    again = renewed(made, NAMES, now_s=late_s)
    assert accepted(again.trusted, again.certificate, late_s)
    assert again.trusted.count(b"BEGIN") == 1


def secret_certificate(kube: FakeKube, now_s: float = START_S) -> SecretCertificate:
    return SecretCertificate(kube, "tidegauge", "certificate", NAMES, now_s=lambda: now_s)


def test_the_charts_empty_secret_is_filled_and_followers_serve_it() -> None:
    kube = FakeKube()
    kube.put(SECRETS, {"metadata": {"name": "certificate", "namespace": "tidegauge", "labels": {"a": "b"}}})
    leader, follower = secret_certificate(kube), secret_certificate(kube)
    follower.refresh()
    assert follower.current() is None
    leader.maintain()
    follower.refresh()
    assert follower.trusted == leader.trusted is not None
    assert isinstance(follower.current(), ssl.SSLContext)
    assert kube.peek(SECRETS, "tidegauge", "certificate")["metadata"]["labels"] == {"a": "b"}
    context = leader.current()
    leader.maintain()
    assert leader.current() is context  # nothing was due


def test_a_secret_that_is_not_there_is_made() -> None:
    kube = FakeKube()
    with pytest.raises(ObjectNotFoundError):
        secret_certificate(kube).refresh()
    secret_certificate(kube).maintain()
    assert set(kube.peek(SECRETS, "tidegauge", "certificate")["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


@pytest.mark.parametrize("there", [False, True])
def test_of_two_replicas_at_once_both_serve_what_one_of_them_made(there: bool) -> None:
    kube = FakeKube()
    if there:
        kube.put(SECRETS, {"metadata": {"name": "certificate", "namespace": "tidegauge"}})
    first, second = secret_certificate(kube), secret_certificate(kube)

    def interfere(call: Call) -> None:
        if call.verb in ("create", "replace"):
            kube.before_call = None
            second.maintain()

    kube.before_call = interfere
    first.maintain()
    assert first.trusted == second.trusted is not None
    assert base64.b64decode(kube.peek(SECRETS, "tidegauge", "certificate")["data"]["ca.crt"]) == first.trusted


def test_injection_certificate_stays_in_use_if_its_secret_is_unreadable() -> None:
    kube = FakeKube()
    certificate = secret_certificate(kube)
    certificate.maintain()
    context = certificate.current()
    secret = kube.peek(SECRETS, "tidegauge", "certificate")
    kube.put(SECRETS, {**secret, "data": {**secret["data"], "tls.key": "AAAA"}})
    certificate.refresh()
    kube.put(SECRETS, {**secret, "data": {**secret["data"], "tls.key": "?"}})
    certificate.refresh()
    assert certificate.current() is context
    kube.fail_next(ForbiddenError("secrets is forbidden"))
    with pytest.raises(ForbiddenError):
        certificate.refresh()
    assert certificate.current() is context


def test_every_webhook_is_told_whom_to_trust_and_only_if_it_is_not_yet() -> None:
    kube = FakeKube()
    webhooks = [
        {"name": "pods.example.org", "clientConfig": {"service": {"name": "s"}}},
        {"name": "namespaces.example.org", "clientConfig": {"service": {"name": "s"}, "caBundle": "b2xk"}},
    ]
    kube.put(WEBHOOKS, {"metadata": {"name": "tidegauge"}, "webhooks": webhooks})
    assert trust(kube, "tidegauge", b"new")
    found = kube.peek(WEBHOOKS, None, "tidegauge")["webhooks"]
    assert [one["clientConfig"] for one in found] == [{"service": {"name": "s"}, "caBundle": "bmV3"}] * 2
    assert not trust(kube, "tidegauge", b"new")
    assert len(kube.called("patch")) == 1


def test_a_configuration_that_changes_meanwhile_is_left_for_the_next_time() -> None:
    kube = FakeKube()

    def put(name: str) -> None:
        kube.put(WEBHOOKS, {"metadata": {"name": "tidegauge"}, "webhooks": [{"name": name, "clientConfig": {}}]})

    def interfere(call: Call) -> None:
        if call.verb == "patch":
            put("other.example.org")

    put("pods.example.org")
    kube.before_call = interfere
    with pytest.raises(TemporaryError):
        trust(kube, "tidegauge", b"new")
    assert kube.peek(WEBHOOKS, None, "tidegauge")["webhooks"][0]["clientConfig"] == {}


def test_files_are_read_again_when_they_change_and_half_written_ones_are_passed_over(tmp_path: Path) -> None:
    now_s = [0.0]
    certificate = DirCertificate(tmp_path, monotonic_s=lambda: now_s[0])

    def write(made: Certificates) -> None:
        (tmp_path / "tls.crt").write_bytes(made.certificate)
        (tmp_path / "tls.key").write_bytes(made.key)

    assert certificate.current() is None
    write(renewed(None, NAMES, now_s=START_S))
    assert certificate.current() is None  # not looked at yet
    now_s[0] += LOOK_EVERY_S
    first = certificate.current()
    assert first is not None
    other = renewed(None, NAMES, now_s=START_S)
    (tmp_path / "tls.crt").write_bytes(other.certificate)
    now_s[0] += LOOK_EVERY_S
    assert certificate.current() is first
    write(other)
    now_s[0] += LOOK_EVERY_S
    assert certificate.current() not in (None, first)


def test_openssl_agrees_that_the_chain_is_one(tmp_path: Path) -> None:
    made = renewed(None, NAMES, now_s=START_S)
    (tmp_path / "ca.pem").write_bytes(made.trusted)
    (tmp_path / "server.pem").write_bytes(made.certificate)
    arguments = ["-x509_strict", "-purpose", "sslserver", "-verify_hostname", NAMES[0], "-attime", str(int(START_S))]
    command = ["openssl", "verify", *arguments, "-CAfile", str(tmp_path / "ca.pem"), str(tmp_path / "server.pem")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
