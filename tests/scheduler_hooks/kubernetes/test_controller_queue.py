"""The controller's work queue: a clock that the test moves, no waiting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import (
    FIRST_RETRY_S,
    MAX_RETRY_S,
    MIN_GAP_S,
    WorkKey,
    WorkQueue,
)

A, B = WorkKey("Job", "team", "a"), WorkKey("JobSet", "team", "b")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def queue_at(clock: Clock, *, jitter: float = 1.0) -> WorkQueue:
    return WorkQueue(monotonic_s=clock, jitter=lambda: jitter)


def seconds_until_retry(queue: WorkQueue, clock: Clock) -> float:
    """After ``A``, which a worker has, failed; the worker has it again afterwards."""
    queue.failed(A)
    began_s = clock.now_s
    while queue.take(0) is None:
        clock.now_s += 0.5
    return clock.now_s - began_s


def test_a_key_added_twice_is_taken_once() -> None:
    queue = queue_at(Clock())
    queue.add(A)
    queue.add(A)
    assert len(queue) == 1
    assert queue.take(0) == A
    assert queue.take(0) is None


def test_keys_are_taken_in_the_order_in_which_they_are_due() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A, after_s=5)
    queue.add(B, after_s=2)
    assert queue.take(0) is None
    clock.now_s += 10
    assert [queue.take(0), queue.take(0)] == [B, A]


def test_an_earlier_time_replaces_a_later_one() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A, after_s=50)
    queue.add(A, after_s=1)
    clock.now_s += 1
    assert queue.take(0) == A
    clock.now_s += 100
    assert queue.take(0) is None


def test_a_key_is_with_one_worker_at_a_time_and_taken_again_if_it_changed_meanwhile() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A)
    assert queue.take(0) == A
    queue.add(A)
    clock.now_s += 100
    assert queue.take(0) is None
    queue.done(A)
    clock.now_s += MIN_GAP_S
    assert queue.take(0) == A


def test_a_key_that_changes_all_the_time_is_looked_at_once_a_gap() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A)
    assert queue.take(0) == A
    queue.done(A)
    for _ in range(100):
        queue.add(A)
    assert queue.take(0) is None
    clock.now_s += MIN_GAP_S
    assert queue.take(0) == A


def test_done_can_ask_for_another_look() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A)
    assert queue.take(0) == A
    queue.done(A, again_s=30)
    clock.now_s += 29
    assert queue.take(0) is None
    clock.now_s += 1
    assert queue.take(0) == A


def test_failures_are_retried_later_and_later() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A)
    assert queue.take(0) == A
    waits = [seconds_until_retry(queue, clock) for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, MAX_RETRY_S, MAX_RETRY_S, MAX_RETRY_S]


def test_a_look_that_went_well_forgets_earlier_failures() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A)
    assert queue.take(0) == A
    assert [seconds_until_retry(queue, clock) for _ in range(3)] == [1, 2, 4]
    queue.done(A, again_s=10)
    clock.now_s += 10
    assert queue.take(0) == A
    assert seconds_until_retry(queue, clock) == FIRST_RETRY_S


def test_a_change_does_not_hasten_a_retry_and_the_server_may_delay_it() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A)
    assert queue.take(0) == A
    queue.failed(A, retry_after_s=40)
    queue.add(A)
    clock.now_s += 39.5
    assert queue.take(0) is None
    clock.now_s += 0.5
    assert queue.take(0) == A


def test_retries_of_keys_that_failed_together_are_spread() -> None:
    clock = Clock()
    eager, patient = queue_at(clock, jitter=0.0), queue_at(clock, jitter=1.0)
    for queue in (eager, patient):
        queue.add(A)
        assert queue.take(0) == A
        queue.failed(A)
    clock.now_s += FIRST_RETRY_S / 2
    assert eager.take(0) == A
    assert patient.take(0) is None


def test_after_clear_nothing_waits_and_what_a_worker_had_does_not_come_back() -> None:
    clock = Clock()
    queue = queue_at(clock)
    queue.add(A)
    queue.add(B)
    assert queue.take(0) == A
    queue.clear()
    queue.done(A)
    clock.now_s += 1000
    assert queue.take(0) is None
    assert len(queue) == 0


NOISY = [WorkKey("Job", "noisy", str(number)) for number in range(250)]
QUIET = [WorkKey("Job", f"quiet-{number}", "train") for number in range(5)]


def test_namespaces_take_turns() -> None:
    """However many keys of another namespace were due before: one of them comes between two of others."""
    clock = Clock()
    queue = queue_at(clock)
    for key in NOISY:
        queue.add(key)
    clock.now_s += 100
    for key in QUIET:
        queue.add(key)
    taken = []
    for _ in range(6):
        found = queue.take(0)
        assert found is not None
        queue.done(found, again_s=0)
        clock.now_s += MIN_GAP_S
        taken.append(found)
    assert taken == [NOISY[0], *QUIET]
    assert [queue.take(0), queue.take(0)] == [NOISY[1], QUIET[0]]


def test_a_namespace_that_comes_back_waits_for_those_that_wait() -> None:
    clock = Clock()
    queue = queue_at(clock)
    first, second, third = QUIET[:3]
    for key in (first, second, third):
        queue.add(key)
    assert queue.take(0) == first
    queue.done(first, again_s=0)
    clock.now_s += MIN_GAP_S
    assert [queue.take(0), queue.take(0), queue.take(0)] == [second, third, first]


def test_no_namespace_has_all_workers() -> None:
    """One look may last: it puts a condition on thousands of pods."""
    clock = Clock()
    queue = WorkQueue(at_once=2, monotonic_s=clock)
    for key in NOISY:
        queue.add(key)
    assert [queue.take(0), queue.take(0), queue.take(0)] == [NOISY[0], NOISY[1], None]
    queue.add(QUIET[0])
    assert queue.take(0) == QUIET[0]
    queue.done(NOISY[0])
    assert queue.take(0) == NOISY[2]


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "done", "failed"]), st.sampled_from([A, B])), max_size=40))
def test_whatever_happens_no_key_is_lost_or_with_two_workers(happenings: list[tuple[str, WorkKey]]) -> None:
    clock = Clock()
    queue = queue_at(clock)
    working: set[WorkKey] = set()
    wanted: set[WorkKey] = set()
    for what, key in happenings:
        clock.now_s += 0.3
        if what == "add":
            queue.add(key)
            wanted.add(key)
        elif what == "take":
            taken = queue.take(0)
            if taken is not None:
                assert taken in wanted
                assert taken not in working
                working.add(taken)
                wanted.discard(taken)
        elif key in working:
            working.discard(key)
            if what == "done":
                queue.done(key)
            else:
                queue.failed(key)
                wanted.add(key)
    for key in working:
        queue.done(key)
    clock.now_s += 1000
    left = set()
    while (taken := queue.take(0)) is not None:
        left.add(taken)
    assert left == wanted
