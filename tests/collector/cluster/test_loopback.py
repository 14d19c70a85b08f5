"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from tidegauge.http.loopback import is_loopback


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("slack.com", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
    ],
)
def test_this_machine_is_known_by_its_addresses(host: str, here: bool) -> None:
    assert is_loopback(host) is here
