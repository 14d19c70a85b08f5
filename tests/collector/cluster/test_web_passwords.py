"""`Passwords`: a right one costs one check, a wrong one no more, and whoever guesses has to wait."""

from __future__ import annotations

import threading

import bcrypt
import pytest

from tidegauge.http.passwords import (
    ALL_BURST,
    MAX_PASSWORD_BYTES,
    MAX_REMEMBERED,
    MAX_WAITING,
    PEER_BURST,
    Password,
    Passwords,
    dummy_hash,
)
from waiting import PATIENCE_S

CHEAP = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4))
USERS = {"ada": CHEAP}


class Bench:
    """Passwords with a clock, and a count of the checks that cost something."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.checks = 0
        self.passwords = Passwords(monotonic_s=lambda: self.now_s, check=self._check)

    def _check(self, password: bytes, hashed: bytes) -> bool:
        self.checks += 1
        return bcrypt.checkpw(password, hashed) if hashed == CHEAP else False

    def ask(self, password: str = "open sesame", *, name: str = "ada", peer: str = "10.0.0.1") -> Password:
        return self.passwords.check(USERS, name, password.encode(), peer=peer)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_real_bcrypt_knows_right_from_wrong() -> None:
    passwords = Passwords()
    assert passwords.check(USERS, "ada", b"open sesame", peer="a") is Password.RIGHT
    assert passwords.check(USERS, "ada", b"open sesam", peer="a") is Password.WRONG
    assert passwords.check(USERS, "bob", b"open sesame", peer="a") is Password.WRONG
    assert passwords.check(USERS, "ada", b"open\0sesame", peer="a") is Password.WRONG


def test_hashes_that_htpasswd_writes_are_taken_and_long_passwords_are_cut_as_bcrypt_does() -> None:
    long = b"x" * 100
    hashed = bcrypt.hashpw(long[:MAX_PASSWORD_BYTES], bcrypt.gensalt(4)).replace(b"$2b$", b"$2y$")
    assert Passwords().check({"ada": hashed}, "ada", long, peer="a") is Password.RIGHT


def test_a_thousand_scrapes_cost_one_check(bench: Bench) -> None:
    assert {bench.ask() for _ in range(1000)} == {Password.RIGHT}
    assert bench.checks == 1


def test_the_same_wrong_password_costs_one_check(bench: Bench) -> None:
    assert {bench.ask("wrong") for _ in range(1000)} == {Password.WRONG}
    assert bench.checks == 1


def test_a_name_that_does_not_exist_costs_as_much_as_one_that_does(bench: Bench) -> None:
    bench.ask("wrong", name="nobody")
    assert bench.checks == 1


def test_web_passwords_throttle_a_guessing_peer_and_no_other(bench: Bench) -> None:
    answers = [bench.ask(f"guess {number}", peer="10.0.0.66") for number in range(100)]
    assert answers == [Password.WRONG] * PEER_BURST + [Password.NOT_NOW] * (100 - PEER_BURST)
    assert bench.ask() is Password.RIGHT
    bench.now_s += 2.0
    assert [bench.ask(f"more {number}", peer="10.0.0.66") for number in range(2)] == [Password.WRONG, Password.NOT_NOW]


def test_many_addresses_together_cannot_keep_a_core_busy_either(bench: Bench) -> None:
    for number in range(5000):
        bench.ask(f"guess {number}", peer=f"10.{number >> 8}.{number & 255}.1")
    assert bench.checks == ALL_BURST
    bench.now_s += 10.0
    for number in range(5000):
        bench.ask(f"more {number}", peer=f"10.{number >> 8}.{number & 255}.2")
    assert bench.checks == ALL_BURST + 20


def test_web_passwords_remember_a_right_password_while_others_guess(bench: Bench) -> None:
    assert bench.ask() is Password.RIGHT
    for number in range(2 * MAX_REMEMBERED):
        bench.now_s += 10.0
        assert bench.ask(f"guess {number}", peer="10.0.0.66") is Password.WRONG
    checks = bench.checks
    assert bench.ask(peer="10.0.0.66") is Password.RIGHT
    assert bench.checks == checks


def test_a_new_password_in_the_file_ends_the_old_one(bench: Bench) -> None:
    assert bench.ask() is Password.RIGHT
    other = {"ada": bcrypt.hashpw(b"another", bcrypt.gensalt(4))}
    assert bench.passwords.check(other, "ada", b"open sesame", peer="a") is Password.WRONG


def test_no_password_is_kept(bench: Bench) -> None:
    bench.ask()
    assert "sesame" not in repr(vars(bench.passwords))


def test_threads_with_the_same_password_cost_one_check(bench: Bench) -> None:
    answers: list[Password] = []
    threads = [
        threading.Thread(target=lambda peer=f"10.0.1.{number}": answers.append(bench.ask(peer=peer)))
        for number in range(1 + MAX_WAITING)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [Password.RIGHT] * (1 + MAX_WAITING)
    assert bench.checks == 1


def test_beyond_a_few_that_wait_for_a_slow_check_nobody_waits() -> None:
    """Hashes of a high cost take seconds: whoever waits holds a connection."""
    begun, gate = threading.Semaphore(0), threading.Event()

    def slow(_: bytes, __: bytes) -> bool:
        begun.release()
        return gate.wait(PATIENCE_S) and False

    passwords = Passwords(check=slow)
    answers: list[Password] = []

    def guess(number: int) -> None:
        answers.append(passwords.check(USERS, "ada", b"guess %d" % number, peer=f"10.0.1.{number}"))

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(1 + MAX_WAITING)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=PATIENCE_S)
    while passwords.waiting < MAX_WAITING:
        threads[0].join(0.001)
    assert passwords.check(USERS, "ada", b"open sesame", peer="10.0.0.1") is Password.NOT_NOW  # at once
    gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [Password.WRONG] * (1 + MAX_WAITING)
    assert passwords.waiting == 0


def test_a_name_that_does_not_exist_is_checked_at_the_highest_cost_that_a_user_has() -> None:
    costs = []

    def check(_: bytes, hashed: bytes) -> bool:
        costs.append(int(hashed[4:6]))
        return False

    dear = b"$2y$12$" + CHEAP[7:]
    passwords = Passwords(check=check)
    passwords.check({"ada": dear, "bob": CHEAP}, "nobody", b"x", peer="a")
    passwords.check({"bob": CHEAP}, "nobody", b"x", peer="a")
    assert costs == [12, 4]
    assert not bcrypt.checkpw(b"x", dummy_hash({"bob": CHEAP}))  # bcrypt takes it as a hash


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("local", "10.0.0.1", False),
    ],
)
def test_an_address_of_ipv6_counts_by_its_network(bench: Bench, one: str, other: str, are_one: bool) -> None:
    for number in range(PEER_BURST):
        bench.ask(f"guess {number}", peer=one)
    answer = bench.ask("one more", peer=other)
    assert answer is (Password.NOT_NOW if are_one else Password.WRONG)
