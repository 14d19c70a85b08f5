"""Owners are told by mail: once, in a thread an incident, with what was done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path

import pytest

from exporter.notify.telling import LINKS, MEMORY, Clock, Crash, decided, done, draw, ran_out, story
from scheduler_values import decision
from tidegauge.core.incidents.actions import ActionKind
from tidegauge_exporter.mail.owner_channel import STRANGER_FOR_S, MailWay
from tidegauge_exporter.mail.smtp import UnknownRecipientError
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.owner import OwnerNotifier
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

FIRST = decision(decision_id="first")
SECOND = decision(decision_id="second")


@dataclass
class FakeServer:
    """Keeps what was sent. ``before`` and ``after`` may raise."""

    sent: list[tuple[str, EmailMessage]] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None

    def send(self, mail: bytes, *, sender: str, recipient: str) -> None:
        self.before()
        parsed = message_from_bytes(mail, policy=default)
        assert isinstance(parsed, EmailMessage)
        assert sender == "tidegauge@example.org"
        self.sent.append((recipient, parsed))
        self.after()

    def check(self) -> None:
        self.before()

    def fail(self, error: BaseException) -> Callable[[], None]:
        def raise_it() -> None:
            raise error

        return raise_it


class Post:
    def __init__(self, folder: Path) -> None:
        self.clock, self.server, self.path = Clock(), FakeServer(), folder / "notified.jsonl"
        self.open()

    def open(self) -> None:
        self.journal = DeliveryJournal(self.path, wall_s=self.clock)
        self.way = MailWay(
            self.server, sender="tidegauge@example.org", domain="example.org", cluster="rose", links=LINKS, draw=draw,
            wall_s=self.clock, monotonic_s=self.clock,
        )  # fmt: skip
        self.messages = OwnerNotifier(self.way, self.journal, wall_s=self.clock)

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def take(self, *stories: Story) -> None:
        self.clock.now_s += 2.0
        self.messages.take(stories)

    @property
    def mails(self) -> list[EmailMessage]:
        return [mail for _, mail in self.server.sent]


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    one = Post(tmp_path)
    yield one
    one.journal.close()


def test_the_owner_gets_a_mail_with_the_plot_in_it(post: Post) -> None:
    assert post.messages.tell(FIRST, replace(story(), memory=MEMORY)) == "email"
    ((address, mail),) = post.server.sent
    assert address == "ada@example.org"
    assert mail["Subject"] == "Memory leak in your job 471 (incident 1 on rose)"
    picture = next(part for part in mail.walk() if part.get_content_type() == "image/png")
    assert picture.get_payload(decode=True) == b"plot of 1"


def test_without_memory_there_is_no_plot(post: Post) -> None:
    post.messages.tell(FIRST, story())
    assert [part.get_content_type() for part in post.mails[0].walk()][1:] == ["text/plain", "text/html"]


def test_the_same_decision_is_told_once_also_after_a_restart(post: Post) -> None:
    for _ in range(2):
        post.messages.tell(FIRST, story())
        post.restart()
    post.messages.tell(SECOND, story())
    assert len(post.mails) == 2


def test_mail_followups_of_actions_stay_in_the_thread(post: Post) -> None:
    post.messages.tell(FIRST, story())
    told = decided(story(), done(name="cap"), done(ActionKind.REQUEUE, at_s=90.0, name="again"))
    for _ in range(2):
        post.take(told)
        post.restart()
    first, capped, again = post.mails
    assert [mail["Subject"] for mail in (capped, again)] == [f"Re: {first['Subject']}"] * 2
    assert [mail["In-Reply-To"] for mail in (capped, again)] == [first["Message-ID"]] * 2
    assert len({mail["References"].split()[0] for mail in post.mails}) == 1
    assert len({mail["Message-ID"] for mail in post.mails}) == 3


def test_another_incident_is_another_thread(post: Post) -> None:
    post.messages.tell(FIRST, story(1))
    post.messages.tell(SECOND, story(2))
    one, other = post.mails
    assert one["References"] != other["References"]


def test_an_error_continues_the_thread_of_the_growth_before_it(post: Post) -> None:
    growth, error = story(), ran_out(2, growth=1)
    post.messages.tell(FIRST, growth)
    post.take(growth, error)
    post.messages.tell(SECOND, error)
    warned, failed = post.mails
    assert failed["In-Reply-To"] == warned["Message-ID"]


def test_a_second_warning_continues_the_first(post: Post) -> None:
    post.messages.tell(FIRST, story())
    post.messages.tell(SECOND, story())
    one, other = post.mails
    assert other["In-Reply-To"] == one["Message-ID"]
    assert other["References"].split() == [one["References"], one["Message-ID"]]


@pytest.mark.parametrize("crash_before_it_is_sent", [True, False])
def test_a_mail_that_a_crash_repeats_is_the_same_mail(post: Post, crash_before_it_is_sent: bool) -> None:
    if crash_before_it_is_sent:
        post.server.before = post.server.fail(Crash())
    else:
        post.server.after = post.server.fail(Crash())
    with pytest.raises(Crash):
        post.messages.tell(FIRST, story())
    post.server.before = post.server.after = lambda: None
    post.restart()
    post.messages.tell(FIRST, story())
    assert len({mail["Message-ID"] for mail in post.mails}) == 1
    assert len(post.mails) == (1 if crash_before_it_is_sent else 2)


@pytest.mark.parametrize("name", ["5001", "eve@evil.example", ""])
def test_a_user_who_has_no_address_is_refused_with_what_to_read(post: Post, name: str) -> None:
    with pytest.raises(RefusedError, match=r"no email address known for user .*docs/mail.md"):
        post.messages.tell(FIRST, story(user_name=name))
    assert not post.way.reaches(name)
    assert post.mails == []


@pytest.mark.parametrize("error", [RetryLaterError("away"), RefusedError("no relay")])
def test_mail_that_failed_raises_and_is_sent_at_the_next_attempt(post: Post, error: Exception) -> None:
    post.server.before = post.server.fail(error)
    with pytest.raises(type(error), match=str(error)):
        post.messages.tell(FIRST, story())
    post.server.before = lambda: None
    assert post.messages.tell(FIRST, story()) == "email"
    assert len(post.mails) == 1


def test_a_mailbox_that_is_not_there_is_left_alone_for_an_hour(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    post.server.before = post.server.fail(UnknownRecipientError("550 no such user"))
    with pytest.raises(RefusedError), caplog.at_level(logging.WARNING):
        post.messages.tell(FIRST, story())
    assert "no mail to ada@example.org for 3600 s: 550 no such user" in caplog.text
    assert not post.way.reaches("ada")
    assert post.way.reaches("grace")
    post.clock.now_s += STRANGER_FOR_S
    assert post.way.reaches("ada")


def test_owner_who_was_told_in_another_way_is_told_by_mail_later(post: Post) -> None:
    post.take(decided(story(), done(ActionKind.NOTIFY, at_s=-50.0, name="first")))
    assert len(post.mails) == 1
