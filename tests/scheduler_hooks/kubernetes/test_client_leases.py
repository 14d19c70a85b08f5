"""Leader election: one at a time, whoever dies, hangs, or has a wrong clock."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kube import Call, FakeKube
from tidegauge_scheduler_hooks.kubernetes.client import leases
from tidegauge_scheduler_hooks.kubernetes.client.leases import Leader, LeaseLock, account_in, lease_age_s
from tidegauge_scheduler_hooks.kubernetes.ports import LEASES
from tidegauge_scheduler_hooks.ports import SchedulerError, TemporaryError
from waiting import PATIENCE_S, eventually

LEASE_S, DEADLINE_S = 15.0, 10.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def candidate(kube: FakeKube, clock: Clock, identity: str) -> LeaseLock:
    return LeaseLock(kube, "tidegauge", "controller", identity, lease_s=LEASE_S, clock=clock)


def test_the_first_makes_the_lease_and_the_second_waits_until_it_ran_out() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock, "first"), candidate(kube, clock, "second")
    assert first.hold()
    assert not second.hold()
    assert second.holder == "first"
    clock.now_s = LEASE_S - 0.1
    assert not second.hold()
    clock.now_s = LEASE_S
    assert second.hold()
    assert not first.hold()
    spec = kube.peek(LEASES, "tidegauge", "controller")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("second", 1, 15)


ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "tidegauge-controller", "uid": "u-1"}


def token(folder: Path, claims: object) -> Path:
    """As the kubelet writes it: three parts without padding."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims, "x")]
    file = folder / "token"
    file.write_text(".".join(parts))
    return file


def claims(namespace: str = "tidegauge", **account: str) -> dict[str, Any]:
    said = {"name": ACCOUNT["name"], "uid": ACCOUNT["uid"], **account}
    pod = {"name": "tidegauge-controller-7d", "uid": "u-2"}
    return {"aud": ["api"], "kubernetes.io": {"namespace": namespace, "pod": pod, "serviceaccount": said}}


def test_a_lease_that_is_made_belongs_to_the_account_of_its_maker(tmp_path: Path) -> None:
    kube, owner = FakeKube(), account_in(token(tmp_path, claims()), "tidegauge")
    assert owner == ACCOUNT
    LeaseLock(kube, "tidegauge", "controller", "first", lease_s=LEASE_S, owner=owner).hold()
    assert kube.peek(LEASES, "tidegauge", "controller")["metadata"]["ownerReferences"] == [ACCOUNT]


def test_owners_of_a_lease_that_is_there_are_left_alone() -> None:
    """To change them would take the right to delete it, where an admission plugin asks for that."""
    kube, clock = FakeKube(), Clock()
    candidate(kube, clock, "first").hold()
    clock.now_s = 2 * LEASE_S
    second = LeaseLock(kube, "tidegauge", "controller", "second", lease_s=LEASE_S, clock=clock, owner=ACCOUNT)
    second.hold()
    clock.now_s += LEASE_S
    assert second.hold()
    assert kube.peek(LEASES, "tidegauge", "controller")["metadata"]["ownerReferences"] == []


@pytest.mark.parametrize(
    "said", [{}, {"kubernetes.io": "x"}, [], {"kubernetes.io": {"namespace": "tidegauge"}}, claims("another")]
)
def test_a_token_that_names_no_account_of_the_namespace_owns_nothing(tmp_path: Path, said: object) -> None:
    assert account_in(token(tmp_path, said), "tidegauge") is None


@pytest.mark.parametrize("text", [None, "", "opaque", "a.b", "a.\u20ac.c"])
def test_what_is_no_token_owns_nothing(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    assert account_in(file, "tidegauge") is None


def test_lease_stays_with_the_holder_that_renews() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock, "first"), candidate(kube, clock, "second")
    for _ in range(20):
        assert first.hold()
        assert not second.hold()
        clock.now_s += 5
    assert kube.peek(LEASES, "tidegauge", "controller")["spec"]["leaseTransitions"] == 0


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock, "first"), candidate(kube, clock, "second")
    first.hold()
    second.hold()
    first.release()
    assert second.hold()


def test_a_lease_that_is_deleted_under_its_holder_does_not_make_two() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock, "first"), candidate(kube, clock, "second")
    first.hold()
    second.hold()
    kube.remove(LEASES, "tidegauge", "controller")
    assert not second.hold()
    assert first.hold()


def test_lease_holder_keeps_annotations_of_others() -> None:
    kube, clock = FakeKube(), Clock()
    first = candidate(kube, clock, "first")
    first.hold()
    kube.patch(LEASES, "tidegauge", "controller", {"metadata": {"annotations": {"note": "kept"}}})
    assert first.hold()
    assert kube.peek(LEASES, "tidegauge", "controller")["metadata"]["annotations"] == {"note": "kept"}


def test_a_slow_answer_is_as_new_as_when_it_came() -> None:
    kube, clock = FakeKube(), Clock()
    first, second = candidate(kube, clock, "first"), candidate(kube, clock, "second")
    first.hold()

    def renewed_meanwhile(call: Call) -> None:
        kube.before_call = None
        clock.now_s = 9.0
        assert first.hold()

    kube.before_call = renewed_meanwhile
    assert not second.hold()
    clock.now_s = LEASE_S + 1
    assert not second.hold()
    clock.now_s = 9.0 + LEASE_S
    assert second.hold()


def test_times_have_six_digits_always() -> None:
    kube, clock = FakeKube(), Clock()
    candidate(kube, clock, "first").hold()
    spec = kube.peek(LEASES, "tidegauge", "controller")["spec"]
    for key in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", spec[key])


STEP = st.tuples(
    st.integers(0, 2),  # who
    st.floats(0, 8),  # seconds since the last step
    st.floats(0, 6),  # seconds that each of the requests takes, half of them before it is done
    st.sampled_from(["works", "works", "fails", "answer lost"]),
)


@given(steps=st.lists(STEP, max_size=60))
def test_two_never_lead_at_once(steps: list[tuple[int, float, float, str]]) -> None:
    kube, clock = FakeKube(), Clock()
    candidates = [candidate(kube, clock, f"candidate-{number}") for number in range(3)]
    until_s = [0.0] * len(candidates)
    for who, gap_s, request_s, happens in steps:
        clock.now_s += gap_s
        asked_s = clock.now_s

        def slowly(call: Call, request_s: float = request_s) -> None:
            clock.now_s += request_s

        kube.before_call = slowly
        if happens != "works":
            kube.fail_next(TemporaryError("away"), answer_lost=happens == "answer lost")
        try:
            held = candidates[who].hold()
        except SchedulerError:
            continue
        until_s[who] = asked_s + DEADLINE_S if held else 0.0
        leading = [number for number, until in enumerate(until_s) if until > clock.now_s]
        assert len(leading) <= 1


class Turns:
    """What a leader's owner is told."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.told: list[str] = []

    def on_started(self) -> None:
        self.told.append("started")
        self.started.set()

    def on_stopped(self) -> None:
        self.told.append("stopped")

    def are_over(self) -> bool:
        return self.told[-1] == "stopped"


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def leader(kube: FakeKube, turns: Turns) -> Iterator[Leader]:
    """On a machine that stands still for half a second it stops and starts again at any time."""
    leader = Leader(
        kube, "tidegauge", "controller", "this", turns.on_started, turns.on_stopped,
        lease_s=2.0, renew_deadline_s=0.5, retry_s=0.05,
    )  # fmt: skip
    leader.start()
    yield leader
    leader.stop()


def test_a_clean_end_gives_the_lease_back(kube: FakeKube, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "STOP_WITHIN_S", 60.0)
    leader = Leader(
        kube, "tidegauge", "controller", "this", turns.on_started, turns.on_stopped,
        lease_s=120.0, renew_deadline_s=60.0, retry_s=0.05,
    )  # fmt: skip
    leader.start()
    assert turns.started.wait(PATIENCE_S)
    assert leader.holder == "this"
    leader.stop()
    assert turns.told == ["started", "stopped"]
    assert not leader.leading
    assert kube.peek(LEASES, "tidegauge", "controller")["spec"]["holderIdentity"] == ""
    assert lease_age_s(kube, "tidegauge", "controller") is None


def test_leader_that_cannot_renew_stops_and_restarts_once_it_can(kube: FakeKube, turns: Turns, leader: Leader) -> None:
    assert turns.started.wait(PATIENCE_S)
    away = threading.Event()

    def refuse(call: Call) -> None:
        away.set()
        raise TemporaryError("no connection")

    kube.before_call = refuse
    assert away.wait(PATIENCE_S)
    eventually(lambda: turns.are_over() and leader.problem == "no connection")
    assert not leader.leading
    turns.started.clear()
    kube.before_call = None
    assert turns.started.wait(PATIENCE_S)
    assert turns.told[:3] == ["started", "stopped", "started"]


def test_a_defect_in_one_try_is_not_the_last_try(kube: FakeKube, turns: Turns, leader: Leader) -> None:
    assert turns.started.wait(PATIENCE_S)

    def answer_nonsense(call: Call) -> None:
        raise KeyError("metadata")

    kube.before_call = answer_nonsense
    eventually(lambda: turns.are_over() and "KeyError" in (leader.problem or ""))
    turns.started.clear()
    kube.before_call = None
    assert turns.started.wait(PATIENCE_S)


def test_leader_stops_while_its_renewal_request_hangs(kube: FakeKube, turns: Turns, leader: Leader) -> None:
    assert turns.started.wait(PATIENCE_S)
    hangs, answered = threading.Event(), threading.Event()

    def hang(call: Call) -> None:
        hangs.set()
        answered.wait(PATIENCE_S)

    kube.before_call = hang
    assert hangs.wait(PATIENCE_S)
    eventually(turns.are_over)
    assert not leader.leading
    answered.set()


def test_leader_stops_if_another_holder_has_the_lease(kube: FakeKube, turns: Turns, leader: Leader) -> None:
    assert turns.started.wait(PATIENCE_S)
    lease = kube.peek(LEASES, "tidegauge", "controller")
    kube.put(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": "another", "leaseDurationSeconds": 3600}})
    eventually(lambda: turns.are_over() and leader.holder == "another")


def test_a_lease_tells_whether_somebody_is_there(kube: FakeKube, turns: Turns, leader: Leader) -> None:
    assert lease_age_s(kube, "tidegauge", "nobody") is None
    assert turns.started.wait(PATIENCE_S)
    age_s = lease_age_s(kube, "tidegauge", "controller")
    assert age_s is not None
    assert 0 <= age_s < PATIENCE_S


def held(kube: FakeKube, renewed: str) -> None:
    spec = {"holderIdentity": "one", "renewTime": renewed}
    kube.put(LEASES, {"metadata": {"namespace": "tidegauge", "name": "controller"}, "spec": spec})


NOW_S = 1_800_000_000.0
AT = {"now": "2027-01-15T08:00:00.000001Z", "a minute ago": "2027-01-15T07:59:00.000001Z"}
LATER = "2027-01-15T08:00:02.000001Z"


@pytest.mark.parametrize("ahead_s", [-3600.0, -60.0, 60.0, 3600.0])
def test_a_living_holder_is_seen_by_its_renewing_whatever_the_clocks_say(ahead_s: float) -> None:
    kube = FakeKube()
    held(kube, AT["now"])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        held(kube, LATER)

    assert lease_age_s(kube, "tidegauge", "controller", wall_s=lambda: NOW_S + ahead_s, sleep=sleep) == 0.0
    assert len(slept) == 1


@pytest.mark.parametrize("behind_s", [0.0, 3600.0])
def test_a_holder_that_does_not_renew_is_away_also_for_a_clock_that_is_behind(behind_s: float) -> None:
    kube = FakeKube()
    held(kube, AT["a minute ago"])
    age_s = lease_age_s(kube, "tidegauge", "controller", wall_s=lambda: NOW_S - behind_s, sleep=lambda _: None)
    assert age_s is not None
    assert age_s > 59


def test_a_fresh_lease_is_believed_at_once() -> None:
    kube = FakeKube()
    held(kube, AT["now"])

    def sleep(seconds: float) -> None:
        raise AssertionError("nothing is to be waited for")

    assert lease_age_s(kube, "tidegauge", "controller", wall_s=lambda: NOW_S + 2, sleep=sleep) == pytest.approx(2)
