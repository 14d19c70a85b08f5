"""Mails on unused GPU memory: their words, who gets one, and that nobody gets one twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from collector.core.test_waste import RULES, job
from exporter.notify.telling import Clock
from fakes.smtp_server import FakeSmtp
from tidegauge.core.jobs.waste import UserWaste, wasteful
from tidegauge_exporter.mail.outbox import Outbox
from tidegauge_exporter.mail.smtp import Server, SmtpServer
from tidegauge_exporter.mail.waste_round import Fate, UserMail, WasteRound, planned, read_record
from tidegauge_exporter.mail.waste_text import MAX_JOBS, WasteMails, report_letter, waste_letter
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal

DAY_S = 86400.0
MAILS = WasteMails("rose", 7 * DAY_S, 6 * DAY_S, "Hello {user},")
USERS = wasteful([job("train", name, hours=hours) for name, hours in (("ada", 300), ("bob", 200), ("eve", 150))], RULES)


def test_a_mail_says_what_was_had_and_needed_what_would_do_and_how_to_answer() -> None:
    (ada,) = wasteful([job("train", "ada", hours=1000), job("<b>%s", "ada", hours=100)], RULES)
    letter = waste_letter(ada, MAILS)
    assert letter.subject == "Your jobs on rose left 79,200 GiB-hours of GPU memory unused"
    assert letter.text == (
        "Hello ada,\n\n"
        "In the last 7 days 2 of your jobs on rose needed 10% of the GPU memory that they had, and left 79,200 "
        "GiB-hours of GPU memory unused. Below is what they had, what they needed, and what would have done.\n\n"
        "train: 4 runs, 1,000 GPU-hours, 10% needed, 72,000 GiB-hours unused\n"
        "    had 8 × 80.0 GiB, needed 9.0 GiB each at most in 4 runs; with a margin (9.9 GiB) 1/8 of this GPU (MIG, or "
        "--gpu-share 1/8) would do.\n\n"
        "<b>%s: 4 runs, 100 GPU-hours, 10% needed, 7,200 GiB-hours unused\n"
        "    had 8 × 80.0 GiB, needed 9.0 GiB each at most in 4 runs; with a margin (9.9 GiB) 1/8 of this GPU (MIG, or "
        "--gpu-share 1/8) would do.\n\n"
        "A job that asks for less often starts sooner, and leaves the GPU to those who need it. If you know why the "
        "next run needs more, ask for that: these are the figures of runs that ended.\n\n"
        "To see more: tidegauge efficiency --user ada\n\n"
        "Questions, or no more of these mails? Reply to this mail. You get one at most every 6 days.\n\n"
        "-- \nTidegauge, cluster rose\n"
    )
    assert "&lt;b&gt;%s: 4 runs" in letter.html
    assert "<b>%s" not in letter.html


def test_a_mail_about_all_time_reads_well() -> None:
    (ada,) = wasteful([job("train", "ada", hours=1000)], RULES)
    assert "In the last 100 years one of your jobs" in waste_letter(ada, MAILS._replace(span_s=1e12)).text


def test_many_jobs_and_hostile_names_make_a_short_mail() -> None:
    names = [f"{at:02} {'x' * 900}\r\nBcc: all@example.org" for at in range(30)]
    (ada,) = wasteful([job(name) for name in names], RULES)
    letter = waste_letter(ada, MAILS._replace(cluster="a\nb", greeting=""))
    assert len(letter.text) < 8_000
    assert f"And {30 - MAX_JOBS} more jobs." in letter.text
    assert letter.text.startswith("In the last 7 days 30 of your jobs on a b needed")
    assert "\n" not in letter.subject
    assert "\nBcc" not in letter.text


def test_the_report_is_a_table() -> None:
    letter = report_letter(["user  mail", "ada   <sent>\x1b[1m"], MAILS, sent=1, failed=2)
    assert letter.subject == "Tidegauge on rose: 1 mail on unused GPU memory sent, 2 failed"
    assert "\nuser  mail\nada   <sent>?[1m\n" in letter.text
    assert "ada   &lt;sent&gt;?[1m" in letter.html


class Post:
    """A server, a record, and rounds of mails to ``USERS``."""

    def __init__(self, folder: Path, smtp: FakeSmtp) -> None:
        self.smtp, self.path, self.clock = smtp, folder / "efficiency_mails.jsonl", Clock()

    def round(self, users: Sequence[UserWaste] = USERS, *, timeout_s: float = 20.0) -> Sequence[UserMail]:
        server = SmtpServer(Server("127.0.0.1", self.smtp.port), timeout_s=timeout_s)
        journal = DeliveryJournal(self.path, wall_s=self.clock)
        try:
            one = WasteRound(Outbox(server, "tg@example.org", "example.org"), journal, MAILS, self.clock)
            return one.send(self.plan(users))
        finally:
            journal.close()

    def plan(self, users: Sequence[UserWaste] = USERS) -> Sequence[UserMail]:
        record = read_record(self.path)
        return planned(users, record, domain="example.org", every_s=6 * DAY_S, now_unix_s=self.clock())

    def recipients(self) -> list[str]:
        return [one.recipient.partition("@")[0] for one in self.smtp.delivered]


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    with FakeSmtp() as smtp:
        yield Post(tmp_path, smtp)


def fates(mails: Sequence[UserMail]) -> list[tuple[str, Fate]]:
    return [(one.waste.user_name, one.fate) for one in mails]


ALL_SENT = [("ada", Fate.SENT), ("bob", Fate.SENT), ("eve", Fate.SENT)]


def test_each_user_gets_one_mail_and_no_other_one_for_some_days(post: Post) -> None:
    assert fates(post.round()) == ALL_SENT
    assert post.recipients() == ["ada", "bob", "eve"]
    first = post.smtp.delivered[0]
    assert first.mail["From"] == "Tidegauge <tg@example.org>"
    assert first.mail["Auto-Submitted"] == "auto-generated"
    assert "Hello ada," in first.text()
    assert "Hello ada," in first.text("html")
    post.clock.now_s += 6 * DAY_S - 1
    assert {fate for _, fate in fates(post.round())} == {Fate.RECENT}
    assert len(post.recipients()) == 3
    post.clock.now_s += 1
    assert fates(post.round()) == ALL_SENT
    assert len({one.mail["Message-ID"] for one in post.smtp.delivered}) == 6


def test_who_has_no_address_or_is_no_user_gets_none(post: Post) -> None:
    names = ["1001", "ada,bob", "user-3f9a1c0b77de", "forgotten-1a2b3c4d", "-x"]
    users = wasteful([job("train", name) for name in names], RULES)
    found = dict(fates(post.round(users)))
    assert {found[name] for name in ("1001", "ada,bob", "-x")} == {Fate.NO_ADDRESS}
    assert {found[name] for name in ("user-3f9a1c0b77de", "forgotten-1a2b3c4d")} == {Fate.PSEUDONYM}
    assert post.smtp.commands == []


def test_an_unknown_mailbox_holds_up_nobody_and_is_tried_again_in_the_next_round(post: Post) -> None:
    post.smtp.refusals["RCPT"] = "550 no such user"
    assert [fate for _, fate in fates(post.round())] == [Fate.FAILED] * 3
    post.smtp.refusals.clear()
    assert fates(post.round()) == ALL_SENT


@pytest.mark.parametrize(
    ("refusals", "tried"),
    [({"MAIL": "550 not you"}, 1), ({"RCPT": "451 greylisted"}, 3), ({"connect": "421 too many"}, 3)],
)
def test_a_server_that_takes_nothing_is_not_asked_for_every_user(
    post: Post, refusals: dict[str, str], tried: int
) -> None:
    users = wasteful([job("train", f"u{at}") for at in range(9)], RULES)
    post.smtp.refusals.update(refusals)
    found = [fate for _, fate in fates(post.round(users))]
    assert found == [Fate.FAILED] * tried + [Fate.NOT_TRIED] * (9 - tried)
    post.smtp.refusals.clear()
    assert {fate for _, fate in fates(post.round(users))} == {Fate.SENT}


def test_a_mail_that_may_have_been_taken_is_not_sent_again(post: Post) -> None:
    post.smtp.silent_at = "."
    (ada,) = post.round(USERS[:1], timeout_s=0.3)
    assert ada.fate is Fate.UNSURE
    post.smtp.silent_at = None
    assert fates(post.round()) == [("ada", Fate.RECENT_UNSURE), ("bob", Fate.SENT), ("eve", Fate.SENT)]
    assert post.recipients() == ["bob", "eve"]


def test_nothing_is_sent_while_the_record_cannot_be_written(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    server = SmtpServer(Server("127.0.0.1", post.smtp.port))
    journal = DeliveryJournal(post.path, wall_s=post.clock)
    one = WasteRound(Outbox(server, "tg@example.org", None), journal, MAILS, post.clock)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    found = one.send(post.plan())
    monkeypatch.undo()
    journal.close()
    assert [fate for _, fate in fates(found)] == [Fate.FAILED, Fate.NOT_TRIED, Fate.NOT_TRIED]
    assert "No space left" in found[0].problem
    assert post.smtp.delivered == []
