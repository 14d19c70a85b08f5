"""The mail as it goes over the wire: read again by the library, as a mail reader would."""

from __future__ import annotations

from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

from hypothesis import given
from hypothesis import strategies as st

from exporter.mail.test_mail_text import hostile
from sample_views import NOW_S
from slack_stories import leak, notify_decision
from tidegauge_exporter.links import Links
from tidegauge_exporter.mail.html_parts import MailText
from tidegauge_exporter.mail.mail_text import owner_letter
from tidegauge_exporter.mail.owner_channel import Envelope, as_mail
from tidegauge_exporter.messages.values import Story

ENVELOPE = Envelope(
    "tidegauge@example.org", "ada@example.org", "<b@example.org>", ("<root@example.org>", "<a@example.org>")
)
PNG = b"\x89PNG\r\n.not a real one"
HEADERS = [
    "Subject", "From", "To", "Date", "Message-ID", "In-Reply-To", "References", "Auto-Submitted",
    "X-Auto-Response-Suppress", "MIME-Version", "Content-Type",
]  # fmt: skip


def letter(story: Story) -> MailText:
    return owner_letter(notify_decision(story), story, cluster="prod", links=Links(), now_unix_s=NOW_S, has_plot=True)


def read(raw: bytes) -> EmailMessage:
    mail = message_from_bytes(raw, policy=default)
    assert isinstance(mail, EmailMessage)
    return mail


def test_headers_say_from_whom_to_whom_and_what_it_continues() -> None:
    mail = read(as_mail(letter(leak()), ENVELOPE, at_unix_s=NOW_S, png=None))
    assert dict(mail.items()) == {
        "Subject": "Memory leak in your job 4711 (incident 12 on prod)",
        "From": "Tidegauge <tidegauge@example.org>",
        "To": "ada@example.org",
        "Date": "Fri, 15 Jan 2027 08:00:00 +0000",
        "Message-ID": "<b@example.org>",
        "In-Reply-To": "<a@example.org>",
        "References": "<root@example.org> <a@example.org>",
        "Auto-Submitted": "auto-generated",
        "X-Auto-Response-Suppress": "All",
        "MIME-Version": "1.0",
        "Content-Type": mail["Content-Type"],
    }


def test_the_first_mail_of_a_thread_continues_none() -> None:
    mail = read(as_mail(letter(leak()), ENVELOPE._replace(references=()), at_unix_s=NOW_S, png=None))
    assert mail["References"] is mail["In-Reply-To"] is None


def test_a_local_mailbox_has_no_domain() -> None:
    mail = read(as_mail(letter(leak()), ENVELOPE._replace(recipient="ada"), at_unix_s=NOW_S, png=None))
    assert mail["To"] == "ada"


def test_text_comes_first_then_html_with_its_picture() -> None:
    said = letter(leak())
    mail = read(as_mail(said, ENVELOPE, at_unix_s=NOW_S, png=PNG))
    kinds = [part.get_content_type() for part in mail.walk()]
    assert kinds == ["multipart/alternative", "text/plain", "multipart/related", "text/html", "image/png"]
    parts = list(mail.walk())
    assert isinstance(parts[1], EmailMessage)
    assert parts[1].get_content().replace("\r\n", "\n") == said.text
    assert isinstance(parts[3], EmailMessage)
    assert parts[3].get_content().replace("\r\n", "\n") == said.html
    assert parts[4]["Content-ID"] == "<memory-plot>"
    assert parts[4].get_payload(decode=True) == PNG


def test_any_server_takes_it() -> None:
    raw = as_mail(letter(leak()), ENVELOPE, at_unix_s=NOW_S, png=PNG)
    assert raw.isascii()
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))  # RFC 5322, 2.1.1
    assert b"\n" not in raw.replace(b"\r\n", b"")


@given(st.text(max_size=300))
def test_no_header_can_be_injected(text: str) -> None:
    mail = read(as_mail(letter(hostile(text)), ENVELOPE, at_unix_s=NOW_S, png=None))
    assert list(mail.keys()) == HEADERS
    assert (mail["From"], mail["To"]) == ("Tidegauge <tidegauge@example.org>", "ada@example.org")
    assert [part.get_content_type() for part in mail.walk()] == ["multipart/alternative", "text/plain", "text/html"]
    assert mail["Subject"].isprintable()
