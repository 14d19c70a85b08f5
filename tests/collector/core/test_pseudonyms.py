"""Pseudonyms of users: the same key gives the same, another key another."""

from __future__ import annotations

from tidegauge.core.persons.pseudonyms import Pseudonyms, is_pseudonym


def test_a_user_has_one_pseudonym_for_each_key() -> None:
    one, other = Pseudonyms(b"1" * 32), Pseudonyms(b"2" * 32)
    assert one.of("ada") == Pseudonyms(b"1" * 32).of("ada")
    assert len({one.of("ada"), one.of("bob"), other.of("ada")}) == 3
    assert is_pseudonym(one.of("ada"))
    assert not any(map(is_pseudonym, ("ada", "user-ada", "user-3F9A1C0B77DE", one.of("ada") + "0")))


def test_several_owners_have_a_pseudonym_each() -> None:
    known = Pseudonyms(b"1" * 32)
    assert known.of("ada, bob") == f"{known.of('ada')}, {known.of('bob')}"


def test_a_name_in_a_text_is_replaced_as_a_word_only() -> None:
    known = Pseudonyms(b"1" * 32)
    assert (
        known.instead_of("ada", "ada's job in /home/ada of adam")
        == f"{known.of('ada')}'s job in /home/{known.of('ada')} of adam"
    )
    assert known.instead_of("", "as it was") == "as it was"
