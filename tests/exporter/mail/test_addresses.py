from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge_exporter.mail.owner_channel import address_of, checked_address, recipient_domain


def test_a_user_has_an_address_at_the_sites_domain() -> None:
    assert address_of("ada", "example.org") == "ada@example.org"
    assert address_of("grace.hopper", "example.org") == "grace.hopper@example.org"


def test_without_a_domain_the_mail_server_completes_the_name() -> None:
    assert address_of("ada", None) == "ada"


@pytest.mark.parametrize(
    "name",
    [
        "", "5001", "ada@evil.example", "ada b", "-oProxyCommand", ".ada", "ada.", "a..b", "ada\r\nBcc: eve", "ada\n",
        "<ada>", "ada,eve", "\N{LATIN SMALL LETTER A WITH DIAERESIS}da", "a" * 65,
    ],
)  # fmt: skip
def test_mail_address_of_an_invalid_login_is_none(name: str) -> None:
    assert address_of(name, "example.org") is None


@given(st.text())
def test_whatever_the_name_it_is_one_mailbox_of_the_domain_or_nobody(name: str) -> None:
    address = address_of(name, "example.org")
    if address is not None:
        user, at, domain = address.partition("@")
        assert (user, at, domain) == (name, "@", "example.org")
        assert not set(name) & set(' \r\n\t<>,;:\\"()[]')


@pytest.mark.parametrize("address", ["tidegauge@example.org", "tide.gauge+gpu@head", "o'hara@a-b.example"])
def test_senders_are_taken_as_they_are(address: str) -> None:
    assert checked_address(address, "mail_from") == address


@pytest.mark.parametrize(
    "address",
    ["", "tidegauge", "@example.org", "a@b@c", "Tidegauge <a@b.c>", "a@b\nBcc: c@d", "a@-b.c", "a@b..c", "a b@c"],
)
def test_mail_from_refuses_an_invalid_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"mail_from is .* looks like tidegauge@example.org"):
        checked_address(address, "mail_from")


def test_a_domain_may_be_written_with_its_at() -> None:
    assert recipient_domain("@example.org") == recipient_domain("example.org") == "example.org"


@pytest.mark.parametrize("domain", ["", "@", "a b", "example.org\n", "ada@example.org", "exa_mple.org", "a" * 254])
def test_mail_domain_refuses_an_invalid_domain(domain: str) -> None:
    with pytest.raises(ValueError, match=r"mail_domain is .* looks like example.org"):
        recipient_domain(domain)
