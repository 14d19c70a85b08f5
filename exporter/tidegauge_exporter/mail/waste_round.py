"""Mails on unused GPU memory, one to each user: who gets one now, and the record of those that were sent.

The record says that a mail is on its way before the server has it. A round that is killed then, or a server that never
answers, leaves that in the record: such a mail counts as sent, because nobody can tell, and nobody gets it twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from tidegauge.core.incidents.forgotten import PREFIX as FORGOTTEN
from tidegauge.core.jobs.waste import UserWaste
from tidegauge.core.persons.pseudonyms import is_pseudonym
from tidegauge_exporter.mail.html_parts import MailText
from tidegauge_exporter.mail.outbox import Outbox
from tidegauge_exporter.mail.owner_channel import Envelope, address_of, as_mail
from tidegauge_exporter.mail.smtp import UncertainError, UnknownRecipientError
from tidegauge_exporter.mail.waste_text import WasteMails, waste_letter
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal, entries_of
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.notify.story_lines import digest

SINK: Final = "efficiency"
"""Of the entries in the record, whose keys are names of users."""
MAX_TROUBLES: Final = 3
"""Mails in a row that the server does not take now, after which a round ends."""


class Fate(Enum):
    """What becomes, or became, of a user's mail. The text is for people."""

    DUE = "would be sent"
    SENT = "sent"
    UNSURE = "sent, but the server did not answer"
    RECENT = "none: had one on {day}"
    RECENT_UNSURE = "none: one of {day} may not have arrived"
    NO_ADDRESS = "none: no address is known"
    PSEUDONYM = "none: not a user's name"
    FAILED = "failed"
    NOT_TRIED = "not tried"


FAILURES: Final = (Fate.UNSURE, Fate.FAILED, Fate.NOT_TRIED)


class UserMail(NamedTuple):
    waste: UserWaste
    address: str | None
    fate: Fate
    before_unix_s: float | None = None
    """When the user got the mail because of which there is none now."""
    problem: str = ""


class _RecordError(Exception):
    """The record of mails that were sent cannot be written: nothing more is sent."""


class _Sent(NamedTuple):
    at_unix_s: float
    sure: bool


def read_record(path: Path) -> Mapping[str, str]:
    """The record's values by user, for ``planned``; of a file that another process may be writing."""
    return {key: value for (sink, key), value in entries_of(path).items() if sink == SINK}


def planned(
    wastes: Sequence[UserWaste], record: Mapping[str, str], *, domain: str | None, every_s: float, now_unix_s: float
) -> Sequence[UserMail]:
    """What becomes of each user's mail in a round now."""
    return [_planned(waste, record.get(waste.user_name), domain, now_unix_s - every_s) for waste in wastes]


def _planned(waste: UserWaste, value: str | None, domain: str | None, since_unix_s: float) -> UserMail:
    if is_pseudonym(waste.user_name) or waste.user_name.startswith(FORGOTTEN):
        return UserMail(waste, None, Fate.PSEUDONYM)
    address = address_of(waste.user_name, domain)
    if address is None:
        return UserMail(waste, None, Fate.NO_ADDRESS)
    sent = _read(value)
    if sent is None or sent.at_unix_s <= since_unix_s:
        return UserMail(waste, address, Fate.DUE)
    return UserMail(waste, address, Fate.RECENT if sent.sure else Fate.RECENT_UNSURE, sent.at_unix_s)


@dataclass(frozen=True)
class WasteRound:
    """Sends the mails that are due, one after the other."""

    outbox: Outbox
    journal: DeliveryJournal
    mails: WasteMails
    wall_s: Callable[[], float]

    def send(self, plan: Sequence[UserMail]) -> Sequence[UserMail]:
        """The plan with what became of each mail."""
        done: list[UserMail] = []
        troubles, end = 0, ""
        for mail in plan:
            if mail.fate is Fate.DUE and end:
                mail = mail._replace(fate=Fate.NOT_TRIED)
            elif mail.fate is Fate.DUE:
                try:
                    self._send(mail)
                    mail, troubles = mail._replace(fate=Fate.SENT), 0
                except UnknownRecipientError as error:
                    mail = mail._replace(fate=Fate.FAILED, problem=str(error))
                except RetryLaterError as error:
                    fate = Fate.UNSURE if isinstance(error, UncertainError) else Fate.FAILED
                    mail, troubles = mail._replace(fate=fate, problem=str(error)), troubles + 1
                    end = str(error) if troubles >= MAX_TROUBLES else ""
                except (RefusedError, _RecordError) as error:  # the next one would end in the same way
                    mail, end = mail._replace(fate=Fate.FAILED, problem=str(error)), str(error)
            done.append(mail)
        return done

    def report(self, address: str, letter: MailText) -> None:
        """Send the report on a round. Raises what a server raises."""
        self._post(letter, address, at_s=self.wall_s())

    def _send(self, mail: UserMail) -> None:
        """Raises what the server raises, and ``_RecordError``."""
        user, at_s = mail.waste.user_name, self.wall_s()
        assert mail.address is not None, "only who has an address gets a mail"
        self._note(user, _Sent(at_s, sure=False))
        if self.journal.problem is not None:
            raise _RecordError(self.journal.problem)
        try:
            self._post(waste_letter(mail.waste, self.mails), mail.address, at_s=at_s)
        except UncertainError:
            raise
        except (RetryLaterError, RefusedError):
            self._note(user, None)
            raise
        self._note(user, _Sent(at_s, sure=True))

    def _note(self, user_name: str, sent: _Sent | None) -> None:
        self.journal.say(SINK, user_name, json.dumps(sent))

    def _post(self, letter: MailText, address: str, *, at_s: float) -> None:
        outbox = self.outbox
        name = digest(self.mails.cluster, address, letter.subject, str(at_s))
        message_id = f"<{name}.tidegauge@{outbox.sender.rpartition('@')[2]}>"
        mail = as_mail(letter, Envelope(outbox.sender, address, message_id, ()), at_unix_s=at_s, png=None)
        outbox.server.send(mail, sender=outbox.sender, recipient=address)


def _read(value: str | None) -> _Sent | None:
    """``None``: none was sent, or nothing that can be read."""
    try:
        at_unix_s, sure = json.loads(value or "null") or (None, None)
        return None if at_unix_s is None else _Sent(float(at_unix_s), bool(sure))
    except (ValueError, TypeError):
        return None
