"""One HTTP request: within a time, within a size, by the right way."""

from __future__ import annotations

from itertools import count
from urllib.request import Request

import pytest

from fakes.fake_slack import FakeSlack, Fault
from tidegauge_exporter.slack.client import MAX_ANSWER_BYTES, send


def test_an_answer_that_goes_on_for_too_long_is_given_up(slack: FakeSlack) -> None:
    ticks = count(0.0, 20.0)
    with pytest.raises(TimeoutError):
        send(Request(f"{slack.api_url}x", data=b"{}"), timeout_s=10.0, monotonic_s=lambda: next(ticks))


def test_an_answer_that_is_too_long_is_given_up(slack: FakeSlack) -> None:
    slack.fault("x", Fault(200, "x" * (MAX_ANSWER_BYTES + 1)))
    with pytest.raises(OSError, match="too long"):
        send(Request(f"{slack.api_url}x", data=b"{}"), timeout_s=10.0)


def test_an_answer_that_is_no_text_is_an_answer(slack: FakeSlack) -> None:
    slack.fault("x", Fault(418, "\N{HOT BEVERAGE}"))
    assert send(Request(f"{slack.api_url}x", data=b"{}"), timeout_s=10.0)[::2] == (418, "\N{HOT BEVERAGE}")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
def test_slack_transport_opens_only_web_addresses(url: str) -> None:
    with pytest.raises(OSError, match="no web address"):
        send(Request(url), timeout_s=1.0)
