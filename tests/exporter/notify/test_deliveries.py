from __future__ import annotations

import pytest

from exporter.notify.telling import CHANNEL, Call, Clock, FakeChat
from sample_views import NOW_S
from tidegauge_exporter.notify.deliveries import CountedChat, Deliveries, DeliveryOutcome
from tidegauge_exporter.notify.ports import Message, NotYetError, Posted, RefusedError, RetryLaterError

HELLO = Message("hello")


def counts(deliveries: Deliveries) -> dict[str, int]:
    return {outcome.value: count for outcome, count in deliveries.figures().totals.items()}


def test_every_outcome_is_there_from_the_start_at_zero_and_no_success() -> None:
    figures = Deliveries().figures()
    assert figures.totals == dict.fromkeys(DeliveryOutcome, 0)
    assert figures.last_success_unix_s is None


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(RetryLaterError("away"), "retried"), (RefusedError("revoked"), "refused"), (NotYetError("its turn"), None)],
)
def test_a_message_that_fails_is_counted_by_its_error_unless_nothing_was_sent(
    error: Exception, outcome: str | None
) -> None:
    chat, deliveries = FakeChat(), Deliveries(wall_s=Clock())

    def before(call: Call) -> None:
        raise error

    chat.before = before
    counted = CountedChat(chat, deliveries)
    for send in (
        lambda: counted.post(CHANNEL, HELLO),
        lambda: counted.update(Posted(CHANNEL, "1.0"), HELLO),
        lambda: counted.upload(b"", title="", alt_text="", thread=Posted(CHANNEL, "1.0")),
    ):
        with pytest.raises(type(error)):
            send()
    assert counts(deliveries) == {"delivered": 0, "retried": 0, "refused": 0, "dropped": 0} | (
        {} if outcome is None else {outcome: 3}
    )


def test_posts_edits_and_files_are_deliveries_and_looking_up_a_user_is_none() -> None:
    clock, chat = Clock(), FakeChat()
    deliveries = Deliveries(wall_s=clock)
    counted = CountedChat(chat, deliveries)
    posted = counted.post(CHANNEL, HELLO)
    clock.now_s += 5.0
    counted.update(posted, HELLO)
    counted.upload(b"", title="", alt_text="", thread=posted)
    clock.now_s += 5.0
    counted.direct("ada")
    counted.check(owners=True, plots=True)
    assert counts(deliveries)["delivered"] == 3
    assert deliveries.figures().last_success_unix_s == NOW_S + 5.0
