"""The adapter to mail servers, over a real socket."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from fakes.smtp_server import FakeSmtp
from tidegauge_exporter.mail.smtp import BUSY_S, Server, SmtpServer, UncertainError, UnknownRecipientError, parse_server
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

MAIL = b"Subject: memory\r\n\r\n.dot at the beginning\r\n"


def send(fake: FakeSmtp, *, login: tuple[str, str] | None = None, timeout_s: float = 20.0) -> None:
    server = SmtpServer(Server("127.0.0.1", fake.port), login=login, timeout_s=timeout_s)
    server.send(MAIL, sender="tidegauge@example.org", recipient="ada@example.org")


def test_a_mail_arrives_as_it_is_at_whom_it_is_for() -> None:
    with FakeSmtp() as fake:
        send(fake)
    (one,) = fake.delivered
    assert one.raw == MAIL
    assert (one.sender, one.recipient) == ("tidegauge@example.org", "ada@example.org")
    assert fake.commands[-1] == "quit"


def test_the_client_calls_itself_something_that_servers_accept() -> None:
    with FakeSmtp() as fake:
        send(fake)
    (one,) = fake.delivered
    assert one.hello == (socket.gethostname() if "." in socket.gethostname() else "[127.0.0.1]")


def test_a_login_is_made_where_one_is_set() -> None:
    with FakeSmtp(login=("tidegauge", "correct horse")) as fake:
        send(fake, login=("tidegauge", "correct horse"))
    assert [one.user for one in fake.delivered] == ["tidegauge"]


@pytest.mark.parametrize("word", ["connect", "EHLO", "MAIL", "RCPT", "DATA", "."])
def test_a_server_that_is_busy_is_asked_again_later(word: str) -> None:
    # A server that refuses EHLO is asked HELO by the library before it gives up.
    refusals = dict.fromkeys(("EHLO", "HELO") if word == "EHLO" else (word,), "451 4.7.1 greylisted\x07, try later")
    with FakeSmtp(refusals=refusals) as fake, pytest.raises(RetryLaterError, match="greylisted , try later") as caught:
        send(fake)
    assert caught.value.after_s == BUSY_S
    assert fake.delivered == []


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("connect", "does not take a mail: 554 5.7.0 go away"),
        ("MAIL", r"does not take mail from tidegauge@example.org \(setting mail_from\): 554"),
        ("DATA", "does not take a mail: 554"),
        (".", "does not take a mail: 554"),
    ],
)
def test_a_server_that_refuses_is_not_asked_again_before_a_person_did_something(word: str, said: str) -> None:
    with FakeSmtp(refusals={word: "554 5.7.0 go away"}) as fake, pytest.raises(RefusedError, match=said):
        send(fake)


def test_a_mailbox_that_is_not_there_is_told_apart() -> None:
    with (
        FakeSmtp(refusals={"RCPT": "550 5.1.1 no such user"}) as fake,
        pytest.raises(UnknownRecipientError, match=r"does not take mail for ada@example.org: 550 5.1.1 no such user"),
    ):
        send(fake)


def test_a_wrong_password_is_refused_and_not_shown() -> None:
    with (
        FakeSmtp(login=("tidegauge", "right")) as fake,
        pytest.raises(RefusedError, match="does not take the login of mail_user: 535") as caught,
    ):
        send(fake, login=("tidegauge", "hunter2"))
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__suppress_context__


def test_a_login_that_the_server_does_not_have_says_what_to_do() -> None:
    with FakeSmtp() as fake, pytest.raises(RefusedError, match="take mail_user away, or name another port"):
        send(fake, login=("tidegauge", "x"))


def test_a_server_that_falls_silent_costs_the_time_limit_and_no_more() -> None:
    with FakeSmtp(silent_at="RCPT") as fake, pytest.raises(RetryLaterError, match="no answer in time"):
        send(fake, timeout_s=0.3)


def test_the_time_limit_is_for_all_questions_together() -> None:
    clock = iter([0.0, 0.0, 5.0, 9.0, 11.0, 12.0])
    with FakeSmtp() as fake, pytest.raises(RetryLaterError, match="no answer in time"):
        SmtpServer(Server("127.0.0.1", fake.port), timeout_s=10.0, monotonic_s=lambda: next(clock)).send(
            MAIL, sender="a@b", recipient="c@d"
        )
    assert fake.delivered == []


class Tarpit:
    """A server that says a little whenever its client looks at the clock, on which a second goes by each time."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None
        self.port = self._listener.getsockname()[1]
        self.now_s = 0.0

    def look(self) -> float:
        self.now_s += 1.0
        if self.now_s > 2.0:  # the first two looks come before the connection
            if self._connection is None:
                self._connection, _ = self._listener.accept()
            self._connection.sendall(self._words)
        return self.now_s

    def close(self) -> None:
        self._listener.close()
        if self._connection is not None:
            self._connection.close()


@pytest.mark.parametrize("words", [b"2", b"220-wait\r\n"])
def test_a_tarpit_costs_the_time_limit_and_no_more(words: bytes) -> None:
    with closing(Tarpit(words)) as tarpit, pytest.raises(RetryLaterError, match="no answer in time"):
        SmtpServer(Server("127.0.0.1", tarpit.port), timeout_s=10.0, monotonic_s=tarpit.look).send(
            MAIL, sender="a@b", recipient="c@d"
        )
    assert tarpit.now_s > 10.0


def test_a_server_that_is_not_there_is_tried_again() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets this port meanwhile
        port = unused.getsockname()[1]
        with pytest.raises(RetryLaterError, match=rf"127.0.0.1:{port} cannot be reached: Connection refused"):
            SmtpServer(Server("127.0.0.1", port)).send(MAIL, sender="a@b", recipient="c@d")


def test_a_name_that_nobody_knows_is_tried_again() -> None:
    with pytest.raises(RetryLaterError, match="cannot be reached"):
        SmtpServer(Server("mail.invalid", 25)).send(MAIL, sender="a@b", recipient="c@d")


def test_something_that_is_no_mail_server_is_said() -> None:
    with FakeSmtp(refusals={"connect": "SSH-2.0-OpenSSH_9.2"}) as fake, pytest.raises(RetryLaterError):
        send(fake)


def test_words_that_are_no_reply_are_not_shown_as_one() -> None:
    with FakeSmtp(refusals={"connect": "hello there"}) as fake, pytest.raises(RetryLaterError) as caught:
        send(fake)
    assert str(caught.value).endswith("does not answer as a mail server does; is mail_server its address and port?")


def test_the_answer_to_the_goodbye_does_not_matter() -> None:
    with FakeSmtp(refusals={"QUIT": "421 closing"}) as fake:
        send(fake)
    assert len(fake.delivered) == 1


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("mail.example.org", Server("mail.example.org", 25)),
        ("localhost:2525", Server("localhost", 2525)),
        ("[::1]:587", Server("::1", 587)),
        ("[2001:db8::25]", Server("2001:db8::25", 25)),
    ],
)
def test_servers_are_written_as_host_and_port(text: str, server: Server) -> None:
    assert parse_server(text) == server


@pytest.mark.parametrize("text", ["", "smtp://mail", "mail:", "mail:0", "mail:65536", "::1", "a b", "mail\n:25"])
def test_smtp_server_option_refuses_an_invalid_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"looks like mail.example.org"):
        parse_server(text)


@pytest.mark.parametrize(
    ("host", "here"), [("localhost", True), ("127.0.0.1", True), ("::1", True), ("mail.example.org", False)]
)
def test_a_server_on_this_machine_is_known(host: str, here: bool) -> None:
    assert Server(host, 25).is_here is here


def test_a_password_is_not_sent_in_the_clear_to_another_machine() -> None:
    with FakeSmtp(login=("tidegauge", "x")) as fake:
        elsewhere = Server("0.0.0.0", fake.port)  # Linux takes it for this machine, and we do not
        with pytest.raises(RefusedError, match=r"the password of mail_user was not sent: .* such as 465 or 587"):
            SmtpServer(elsewhere, login=("tidegauge", "x")).send(MAIL, sender="a@b", recipient="c@d")
    assert not any(command.startswith("AUTH") for command in fake.commands)


def test_a_server_that_has_all_of_a_mail_and_does_not_answer_may_have_taken_it() -> None:
    with FakeSmtp(silent_at=".") as fake, pytest.raises(UncertainError, match="was sent a mail and did not answer"):
        send(fake, timeout_s=0.3)


@pytest.mark.parametrize("word", ["EHLO", "MAIL", "RCPT", "DATA"])
def test_a_server_that_is_gone_before_that_has_not(word: str) -> None:
    with FakeSmtp(silent_at=word) as fake, pytest.raises(RetryLaterError) as caught:
        send(fake, timeout_s=0.3)
    assert not isinstance(caught.value, UncertainError)


def check(fake: FakeSmtp, *, login: tuple[str, str] | None = None) -> None:
    SmtpServer(Server("127.0.0.1", fake.port), login=login).check()


def test_check_logs_in_and_sends_no_mail() -> None:
    with FakeSmtp(login=("tidegauge", "correct horse")) as fake:
        check(fake, login=("tidegauge", "correct horse"))
    assert fake.delivered == []
    assert [command.split()[0].upper() for command in fake.commands] == ["EHLO", "AUTH", "NOOP", "QUIT"]


def test_check_refuses_a_wrong_password_as_a_mail_does() -> None:
    with (
        FakeSmtp(login=("tidegauge", "correct horse")) as fake,
        pytest.raises(RefusedError, match="login of mail_user"),
    ):
        check(fake, login=("tidegauge", "wrong"))


@pytest.mark.parametrize(("reply", "error"), [("421 4.3.2 closing", RetryLaterError), ("550 no", RefusedError)])
def test_check_fails_where_the_server_does_not_take_commands(reply: str, error: type[Exception]) -> None:
    with FakeSmtp(refusals={"NOOP": reply}) as fake, pytest.raises(error, match=reply):
        check(fake)
