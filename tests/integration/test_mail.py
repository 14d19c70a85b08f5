"""Mail over TLS with real certificates, and from a real leak to its owner's mailbox."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from fakes.smtp_server import Delivered, FakeSmtp
from integration.closed_loop_site import Site
from integration.needs import missing
from integration.service import Service, eventually
from tidegauge.cli.demo.jobs import last_lines
from tidegauge_exporter.mail.smtp import Server, SmtpServer
from tidegauge_exporter.notify.ports import RefusedError

MAIL = b"Subject: memory\r\n\r\nit grows\r\n"
LOGIN = ("tidegauge", "correct-horse")


@dataclass
class Certificate:
    """Of 127.0.0.1, made by itself."""

    file: Path
    context: ssl.SSLContext


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        missing("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    file, key = folder / "mail.crt", folder / "mail.key"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
            "2", "-subj", "/CN=mail.test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", file,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return Certificate(file, context)


def send(fake: FakeSmtp, login: tuple[str, str] | None = None) -> None:
    server = Server("127.0.0.1", fake.port, tls_first=fake.tls_first)
    SmtpServer(server, login=login).send(MAIL, sender="tidegauge@example.org", recipient="ada@example.org")


def test_starttls_is_used_where_it_is_offered_whoever_made_the_certificate(certificate: Certificate) -> None:
    with FakeSmtp(tls=certificate.context) as fake:
        send(fake)
    assert [(one.raw, one.encrypted) for one in fake.delivered] == [(MAIL, True)]


@pytest.mark.parametrize("tls_first", [False, True])
def test_a_password_goes_only_to_a_server_whose_certificate_is_valid(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, tls_first: bool
) -> None:
    with FakeSmtp(tls=certificate.context, tls_first=tls_first, login=LOGIN) as fake:
        with pytest.raises(RefusedError, match=r"the certificate of the mail server .* is not valid: self.signed"):
            send(fake, LOGIN)
        assert not any(command.startswith("AUTH") for command in fake.commands)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        send(fake, LOGIN)
    assert [(one.encrypted, one.user) for one in fake.delivered] == [(True, "tidegauge")]


@pytest.fixture
def site(rig: Rig, tmp_path: Path) -> Iterator[tuple[Site, FakeSmtp]]:
    environ = rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus")
    with FakeSmtp(login=LOGIN) as smtp:
        password = tmp_path / "mail-password"
        password.write_text(LOGIN[1])
        password.chmod(0o600)
        service = Service(environ)
        service.environ |= {
            "TIDEGAUGE_MAIL_SERVER": f"127.0.0.1:{smtp.port}",
            "TIDEGAUGE_MAIL_FROM": "tidegauge@example.org",
            "TIDEGAUGE_MAIL_DOMAIN": "example.org",
            "TIDEGAUGE_MAIL_USER": LOGIN[0],
            "TIDEGAUGE_MAIL_PASSWORD_FILE": str(password),
            "TIDEGAUGE_PUBLIC_URL": "http://head.example:9495",
        }
        one = Site(service, str(rig.python), environ, tmp_path)
        one.set_mode("act")
        try:
            service.up()
            yield one, smtp
        finally:
            service.close()


@pytest.mark.rig
@pytest.mark.timeout(600)
def test_owner_of_a_leak_is_warned_by_mail_and_told_what_was_done(site: tuple[Site, FakeSmtp]) -> None:
    one, smtp = site
    with one.job("leaky", "--leak-rank", "1", steps=15_000) as leaky:
        try:
            eventually(lambda: _saying(smtp, "requeued your job: it starts again"), "the last mail", within_s=300)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last_lines(leaky.log, 10)}\n{one.service.logs()}") from error
        # The next attempt leaks too: it may have an incident and a mail of its own by now.
        number = min(incident["number"] for incident in one.incidents("leaky"))
    mails = [mail for mail in list(smtp.delivered) if f"incident {number} on" in mail.mail["Subject"]]
    first = mails[0]
    assert first is smtp.delivered[0]
    assert {mail.recipient for mail in smtp.delivered} == {"root@example.org"}
    assert f"http://head.example:9495/report?incident={number}" in first.text()
    assert [part.get_content_type() for part in first.mail.walk()][-1] == "image/png"
    assert len({mail.mail["References"].split()[0] for mail in mails}) == 1, "one thread"
    assert len({mail.mail["Message-ID"] for mail in mails}) == len(mails), "each once"
    decisions = [record for record in one.decisions("leaky") if record["decision"]["incident"]["number"] == number]
    notified = [record for record in decisions if record["decision"]["action"] == "notify"]
    assert all("job output, email" in record["detail"] for record in notified), notified
    # Who had to wait for this process says so until the next time that all is told.
    eventually(lambda: re.search(r"^notifiers .*mail: ok", one.service.call("status").out, re.M), "mail is well")


def _saying(smtp: FakeSmtp, words: str) -> list[Delivered]:
    return [one for one in list(smtp.delivered) if words in one.text().lower()]
