# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import threading
import unittest
from typing import Any

from probe_fakes import FakeRecording
from tidegauge.probe.faults import Faults
from tidegauge.probe.runtime.history import History, Recorder
from waiting import PATIENCE_S


class HistoryTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.recording = FakeRecording()
        self.said: list[str] = []
        self.history = History(self.recording.torch, Faults(say=self.said.append))

    def begin(self) -> bool:
        return self.history.begin(entries=10_000, step=7)


class Ours(HistoryTestCase):
    def test_history_records_python_stacks_in_a_bounded_ring(self) -> None:
        self.assertTrue(self.begin())
        self.assertEqual((self.recording.enabled, self.recording.stacks), ("all", "python"))
        self.assertEqual((self.recording.entries, self.history.entries, self.history.began_step), (10_000, 10_000, 7))
        self.assertIs(self.history.recorder(), Recorder.OURS)

    def test_without_stacks_if_told_so(self) -> None:
        self.history.begin(entries=100, stacks="none", step=0)
        self.assertIsNone(self.recording.stacks)

    def test_history_end_restores_torch(self) -> None:
        self.begin()
        self.assertFalse(self.recording.as_it_was)
        self.history.end()
        self.assertIsNone(self.recording.enabled)
        self.assertTrue(self.recording.as_it_was)
        self.assertIs(self.history.recorder(), Recorder.NOBODY)

    def test_history_begin_while_recording_changes_nothing(self) -> None:
        self.begin()
        self.assertFalse(self.history.begin(entries=50, step=9))
        self.assertEqual((self.recording.calls, self.recording.entries), (["all"], 10_000))

    def test_ending_what_never_began_asks_torch_nothing(self) -> None:
        self.history.end()
        self.assertEqual(self.recording.calls, [])

    def test_an_error_at_the_beginning_leaves_torch_as_it_was(self) -> None:
        self.recording.error = RuntimeError("no")
        with self.assertRaises(RuntimeError):
            self.begin()
        self.assertTrue(self.recording.as_it_was)
        self.assertIsNone(self.history.entries)

    def test_an_error_at_the_end_leaves_torch_as_it_was(self) -> None:
        self.begin()
        self.recording.error = RuntimeError("no")
        with self.assertRaises(RuntimeError):
            self.history.end()
        self.assertTrue(self.recording.as_it_was)

    def test_in_a_forked_child_torch_is_as_it_was_and_not_called(self) -> None:
        self.begin()
        self.history.forget()
        self.assertTrue(self.recording.as_it_was)
        self.assertEqual(self.recording.calls, ["all"])
        self.history.end()
        self.assertEqual(self.recording.calls, ["all"])

    def test_a_lock_that_another_thread_held_at_the_fork_holds_up_nothing(self) -> None:
        self.begin()
        holder = threading.Thread(target=self.history._lock.acquire)
        holder.start()
        holder.join(PATIENCE_S)
        self.history.forget()
        self.assertTrue(self.history._lock.acquire(blocking=False))


class TheJobs(HistoryTestCase):
    def test_a_recording_of_the_jobs_is_never_touched(self) -> None:
        self.recording.of_the_job(max_entries=5)
        self.assertFalse(self.begin())
        self.history.end()
        self.assertEqual((self.recording.calls, self.recording.entries), (["all"], 5))
        self.assertTrue(self.recording.as_it_was)
        self.assertIs(self.history.recorder(), Recorder.JOB)

    def test_ours_has_ended_before_the_jobs_begins(self) -> None:
        self.begin()
        self.recording.of_the_job(stacks="all", max_entries=5)
        self.assertEqual(self.recording.calls, ["all", None, "all"])  # ended, which clears its ring; then the job's
        self.assertEqual((self.recording.entries, self.recording.stacks), (5, "all"))
        self.assertTrue(self.history.taken_over)
        self.assertIs(self.history.recorder(), Recorder.JOB)
        self.assertTrue(self.recording.as_it_was)

    def test_the_jobs_recording_outlives_our_end(self) -> None:
        self.begin()
        self.recording.of_the_job(max_entries=5)
        self.history.end()
        self.assertEqual((self.recording.enabled, self.recording.entries), ("all", 5))

    def test_the_legacy_call_is_given_way_to_as_well(self) -> None:
        self.begin()
        self.recording.torch._C._cuda_record_memory_history_legacy(True)
        self.assertEqual(self.recording.calls, ["all", None, "all"])
        self.assertEqual(self.recording.entries, 1)

    def test_the_job_switching_off_ends_ours(self) -> None:
        self.begin()
        self.recording.of_the_job(None)
        self.assertEqual(self.recording.calls, ["all", None, None])
        self.assertIs(self.history.recorder(), Recorder.NOBODY)
        self.assertTrue(self.history.taken_over)

    def test_history_passes_torch_errors_to_the_job(self) -> None:
        self.begin()
        with self.assertRaises(TypeError):
            self.recording.torch._C._cuda_record_memory_history("all", "too few")
        self.assertTrue(self.recording.as_it_was)

    def test_an_error_of_ours_is_not_the_jobs(self) -> None:
        self.begin()

        def failing(**_arguments: Any) -> None:
            raise RuntimeError("ours")

        self.history._record = failing
        self.recording.of_the_job(max_entries=5)
        self.assertEqual(self.recording.entries, 5)
        self.assertEqual(len(self.said), 1)

    def test_history_can_begin_again_after_the_job_stops_recording(self) -> None:
        self.begin()
        self.recording.of_the_job()
        self.recording.of_the_job(None)
        self.assertTrue(self.begin())
        self.assertFalse(self.history.taken_over)
        self.assertIs(self.history.recorder(), Recorder.OURS)

    def test_a_wrapper_of_somebody_elses_stays_and_ours_lets_through(self) -> None:
        self.begin()
        ours = self.recording.torch._C._cuda_record_memory_history
        seen: list[Any] = []

        def theirs(*args: Any) -> None:
            seen.append(args[0])
            ours(*args)

        self.recording.torch._C._cuda_record_memory_history = theirs
        self.history.end()
        self.assertIs(self.recording.torch._C._cuda_record_memory_history, theirs)
        calls = len(self.recording.calls)
        self.recording.of_the_job(max_entries=5)
        self.assertEqual((self.recording.calls[calls:], self.recording.entries), (["all"], 5))

    def test_over_a_wrapper_of_somebody_elses_ours_gives_way_once(self) -> None:
        self.test_a_wrapper_of_somebody_elses_stays_and_ours_lets_through()
        self.recording.of_the_job(None)
        calls = len(self.recording.calls)
        self.assertTrue(self.begin())
        self.recording.of_the_job(max_entries=6)
        self.assertEqual(self.recording.calls[calls:], ["all", None, "all"])
        self.assertEqual(self.recording.entries, 6)

    def test_calls_from_many_threads_find_one_recording_of_the_jobs(self) -> None:
        self.begin()
        threads = [threading.Thread(target=lambda n=n: self.recording.of_the_job(max_entries=n)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(self.recording.calls.count(None), 1)
        self.assertEqual(self.recording.calls[:2], ["all", None])


if __name__ == "__main__":
    unittest.main()
