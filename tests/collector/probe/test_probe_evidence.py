# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import json
import os
import resource
import tempfile
import time
import unittest
import zlib
from collections.abc import Sequence
from typing import Any, Optional
from unittest import mock

from probe_fakes import MIB, FakeBackend, block, torch_snapshot
from tidegauge.core.evidence.rank_evidence import NO_FACTS, Holder, HolderKind, HolderSearch, RankEvidence, RankFacts
from tidegauge.core.ids import ProcessId
from tidegauge.core.snapshot_columns import PackedSnapshot, unpack
from tidegauge.core.wire import from_wire
from tidegauge.probe.evidence import work
from tidegauge.probe.evidence.loading import EVIDENCE_MODULES
from tidegauge.probe.evidence.recorded_window import WindowPhase
from tidegauge.probe.evidence.window import EvidenceWindow, WindowAsk
from tidegauge.probe.evidence.work import Searches, SoFar, gather
from tidegauge.probe.faults import Faults
from tidegauge.probe.pacing import Pacer, StoppedError
from tidegauge.probe.run_files.evidence_files import EvidenceFiles
from tidegauge.probe.run_files.run_folder import open_run_folder
from tidegauge.probe.runtime.history import History, Recorder
from tidegauge.probe.runtime.rank_snapshot import MAX_BLOCKS, RankSnapshots

ASK = WindowAsk("e1", "rank 0 is suspected", warm_up_steps=2, window_steps=5, most_s=60.0, max_events=1000)
FOUND = HolderSearch(wanted_bytes=5, objects=7)
BASE = 1 << 30


class WindowTestCase(unittest.TestCase):
    """A job that trains on a fake clock, one second a step, and keeps a MiB in each."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        folder = open_run_folder(self.run_dir, uid=os.geteuid())
        self.addCleanup(folder.close)
        self.files = EvidenceFiles(folder, ProcessId(12, 34))
        self.backend = FakeBackend()
        self.history = History(self.backend.torch, Faults())
        self.now_s = 1000.0
        self.steps = 40
        self.looked_for: list[Sequence[tuple[int, int]]] = []
        self.facts_read = 0

    def window(self, ask: WindowAsk = ASK) -> EvidenceWindow:
        snapshots = RankSnapshots(
            self.backend, self.history, identity=lambda: None, devices=lambda: [0], steps=lambda: self.steps
        )
        window = EvidenceWindow(ask, snapshots, self.history, clock_s=lambda: self.now_s)
        window.open()
        return window

    def train(self, window: EvidenceWindow, steps: int, *, step_s: float = 1.0) -> None:
        for _ in range(steps):
            self.steps += 1
            self.now_s += step_s
            kept = [block(BASE + MIB * index, MIB, 7) for index in range(self.steps)]
            self.backend.snapshot_taken = torch_snapshot(kept, events=3)
            window.at_boundary()

    def gather(self, window: EvidenceWindow, *, search: Optional[Any] = None) -> None:
        def look(blocks: Sequence[tuple[int, int]], pacer: Pacer, _so_far: SoFar) -> HolderSearch:
            self.looked_for.append(blocks)
            pacer.rest()
            return FOUND

        gather(window, self.files, Searches(search=search or look, facts=self.facts))

    def facts(self, _pacer: Pacer) -> RankFacts:
        self.facts_read += 1
        return RankFacts(process_groups=self.facts_read)

    def written(self) -> list[str]:
        return sorted(os.listdir(os.path.join(self.run_dir, str(os.geteuid()))))

    def content(self, name: str) -> bytes:
        with open(os.path.join(self.run_dir, str(os.geteuid()), name), "rb") as file:
            return file.read()

    def evidence(self) -> RankEvidence:
        return from_wire(RankEvidence, json.loads(self.content("12-34.evidence.json")))

    def snapshot(self, name: str) -> PackedSnapshot:
        return unpack(zlib.decompress(self.content(name)))


class AWindow(WindowTestCase):
    def test_from_the_command_to_the_files(self) -> None:
        window = self.window()
        self.assertIsNone(self.backend.recording.enabled)  # it begins at a boundary, where no graph is captured
        self.train(window, 1)
        self.assertEqual((window.phase, self.backend.recording.entries), (WindowPhase.WARMING, 1000))
        self.train(window, 2)
        self.assertEqual(window.phase, WindowPhase.RECORDING)
        self.train(window, 4)
        self.assertIs(self.history.recorder(), Recorder.OURS)
        self.train(window, 1)
        self.assertEqual(window.phase, WindowPhase.SEARCHING)
        self.assertIs(self.history.recorder(), Recorder.NOBODY)
        self.assertTrue(self.backend.recording.as_it_was)
        self.gather(window)
        self.assertEqual(window.phase, WindowPhase.DONE)
        evidence = self.evidence()
        self.assertEqual((evidence.evidence_id, evidence.reason), ("e1", "rank 0 is suspected"))
        self.assertEqual((evidence.began_step, evidence.early_step, evidence.late_step), (41, 43, 48))
        self.assertEqual((evidence.search, evidence.problem, evidence.device), (FOUND, None, 0))
        self.assertEqual((evidence.early_facts.process_groups, evidence.facts.process_groups), (1, 2))
        assert evidence.early_file is not None
        assert evidence.late_file is not None
        self.assertEqual(self.written(), sorted(["12-34.evidence.json", evidence.early_file, evidence.late_file]))
        for name, step in ((evidence.early_file, 43), (evidence.late_file, 48)):
            facts = self.snapshot(name).facts
            self.assertEqual((facts["step"], facts["recording"], facts["history_began_step"]), (step, "ours", 41))
            self.assertEqual(os.stat(os.path.join(self.run_dir, str(os.geteuid()), name)).st_mode & 0o777, 0o600)

    def test_ring_holds_three_steps_of_the_job_or_five_thousand_events_within_the_most_asked_for(self) -> None:
        for allocated, most, expected in ((0, 10_000, 5_000), (41 * 500, 10_000, 5_000), (41 * 900, 10_000, 8_100),
                                          (41 * 5_000, 10_000, 10_000), (41 * 900, 1_000, 1_000)):  # fmt: skip
            with self.subTest(allocated=allocated, most=most):
                self.steps = 40
                counts = {"current": 5, "allocated": allocated, "freed": allocated}
                self.backend.read = {0: {"allocation": {"all": counts}}}.__getitem__
                window = self.window(ASK._replace(max_events=most))
                self.train(window, 1)
                self.assertEqual(self.backend.recording.entries, expected)
                window.stop()

    def test_holders_of_locals_are_unsure_where_only_the_step_in_progress_grew(self) -> None:
        holders = tuple(
            Holder(kind, "x", MIB, 1) for kind in (HolderKind.FRAME, HolderKind.ATTRIBUTE, HolderKind.THREAD)
        )
        window = self.window()
        self.train(window, 7)
        event_us = time.time_ns() // 1000 + 60_000_000
        self.steps += 1
        kept = [block(BASE + MIB * index, MIB, 7) for index in range(43)]
        taken = torch_snapshot([*kept, block(BASE + 43 * MIB, MIB, 7)], events=1)
        taken["device_traces"][0][0].update(addr=BASE + 43 * MIB, time_us=event_us)
        self.backend.snapshot_taken = taken
        window.at_boundary()
        self.gather(window, search=lambda *_: HolderSearch(holders, wanted_bytes=MIB))
        found = self.evidence().search
        assert found is not None
        self.assertEqual([one.by_size_bytes for one in found.holders], [MIB, 0, MIB])

    def test_the_search_waits_ten_steps_for_the_next_one_and_half_a_minute_at_least(self) -> None:
        fast, slow = self.window(), self.window(ASK._replace(most_s=600.0))
        self.train(fast, 8)
        self.assertEqual(fast.patience_s, 30.0)
        self.gather(fast)
        self.train(slow, 8, step_s=12.0)
        self.assertEqual(slow.patience_s, 120.0)

    def test_a_window_knows_how_long_a_step_takes_at_least(self) -> None:
        window = self.window(ASK._replace(most_s=600.0))
        self.train(window, 1)
        self.assertEqual(window.step_s, 0.0)
        self.train(window, 1, step_s=90.0)
        self.train(window, 3, step_s=12.0)
        self.assertEqual(window.step_s, 12.0)

    def test_a_clock_that_is_set_back_meanwhile_makes_no_time_that_the_agent_refuses(self) -> None:
        window = self.window()
        self.train(window, 8)
        window.began_unix_s += 3600.0
        self.gather(window)
        self.assertEqual(self.evidence().ended_unix_s, window.began_unix_s)

    def test_evidence_records_events_only_in_the_late_snapshot(self) -> None:
        self.backend.stats[0]["allocation"]["all"]["allocated"] = 900
        self.train(self.window(), 8)
        self.assertEqual(self.backend.snapshots_with_history, [False, True])

    def test_evidence_search_looks_for_blocks_that_grew_in_the_window(self) -> None:
        window = self.window()
        self.train(window, 8)
        self.gather(window)
        self.assertEqual(self.looked_for, [tuple((BASE + MIB * index, MIB) for index in range(43, 48))])

    def test_evidence_search_is_skipped_if_holders_are_not_requested(self) -> None:
        window = self.window(ASK._replace(holders=False))
        self.train(window, 8)
        self.gather(window)
        self.assertEqual((self.looked_for, self.evidence().search), ([], None))

    def test_a_window_begins_once_it_is_open(self) -> None:
        window = self.window()
        window._is_open = False
        self.train(window, 10)
        self.assertIs(self.history.recorder(), Recorder.NOBODY)
        window.open()
        self.train(window, 1)
        self.assertEqual((self.history.recorder(), window.began_step), (Recorder.OURS, window.step))

    def test_modules_are_loaded_before_the_window_begins(self) -> None:
        window = self.window()
        window._is_open = False
        done: list[str] = []

        def load(modules: Sequence[str], _pacer: Pacer) -> None:
            self.assertEqual(modules, EVIDENCE_MODULES)
            self.train(window, 10)
            done.append(window.phase.value)
            self.now_s += window.ask.most_s

        with mock.patch.object(work, "load", load):
            self.gather(window)
        self.assertEqual((done, self.backend.recording.calls), (["warming"], []))

    def test_at_boundaries_within_a_capture_it_waits(self) -> None:
        window = self.window()
        self.backend.is_capturing = True
        self.train(window, 3)
        self.assertEqual(self.backend.recording.calls, [])
        self.backend.is_capturing = False
        self.train(window, 3)
        self.backend.is_capturing = True
        self.train(window, 20)
        self.assertEqual((window.phase, len(self.backend.snapshots_with_history)), (WindowPhase.RECORDING, 1))
        self.backend.is_capturing = False
        self.train(window, 1)
        self.assertEqual(window.phase, WindowPhase.SEARCHING)

    def test_slow_steps_make_a_shorter_window(self) -> None:
        """Of 20 s each, in a window of 60 s: begun at the first, warm at the second, no time for a fourth."""
        window = self.window()
        self.train(window, 3, step_s=20.0)
        self.assertEqual(window.phase, WindowPhase.SEARCHING)
        self.gather(window)
        self.assertEqual((self.evidence().early_step, self.evidence().late_step), (42, 43))

    def test_five_slow_steps_are_enough(self) -> None:
        """The window of a service: of 10 s steps one to warm up and five between the snapshots, of 5 s steps six."""
        for step_s, late_step in ((0.1, 75), (1.0, 75), (5.0, 48), (10.0, 47)):
            with self.subTest(step_s=step_s):
                self.steps = 40
                window = self.window(WindowAsk("e1", "slow"))
                self.train(window, late_step - 41, step_s=step_s)
                self.assertEqual(window.phase, WindowPhase.RECORDING)
                self.train(window, 1, step_s=step_s)
                self.gather(window)
                self.assertEqual(self.evidence().late_step, late_step)

    def test_the_longest_stall_is_said(self) -> None:
        window = self.window()
        take = self.backend.snapshot

        def slow(*, history: bool) -> Any:
            self.now_s += 0.25 if history else 0.125
            return take(history=history)

        self.backend.snapshot = slow  # type: ignore[method-assign] # SAFETY: a torch that takes its time
        self.train(window, 8)
        self.gather(window)
        self.assertEqual(self.evidence().longest_stall_s, 0.25)

    def test_files_of_an_earlier_window_go_first(self) -> None:
        window = self.window()
        self.train(window, 8)
        self.gather(window)
        window = self.window(ASK._replace(evidence_id="e2"))
        self.now_s += ASK.most_s
        self.gather(window)
        self.assertEqual((self.written(), self.evidence().evidence_id), (["12-34.evidence.json"], "e2"))


class Ending(WindowTestCase):
    def test_a_job_that_makes_no_steps_is_never_recorded(self) -> None:
        window = self.window()
        self.now_s += ASK.most_s
        self.gather(window)
        self.assertEqual(self.backend.recording.calls, [])
        evidence = self.evidence()
        self.assertEqual((evidence.early_step, evidence.late_step), (None, None))
        self.assertEqual(evidence.problem, "no training step ended within 60 s")

    def test_a_job_that_stops_making_steps_is_not_recorded_any_longer(self) -> None:
        window = self.window()
        self.train(window, 4)
        self.now_s += ASK.most_s
        self.gather(window)
        self.assertIs(self.history.recorder(), Recorder.NOBODY)
        self.assertTrue(self.backend.recording.as_it_was)
        evidence = self.evidence()
        self.assertEqual((evidence.early_step, evidence.late_step, evidence.search), (43, None, None))
        self.assertEqual(evidence.problem, "too few training steps ended within 60 s")

    def test_a_step_after_that_does_nothing(self) -> None:
        window = self.window()
        self.now_s += ASK.most_s
        self.gather(window)
        self.train(window, 3)
        self.assertEqual((window.phase, self.backend.recording.calls), (WindowPhase.DONE, []))

    def test_stopped_in_the_middle_it_leaves_nothing(self) -> None:
        for steps in (0, 1, 4, 8):
            with self.subTest(steps):
                window = self.window()
                self.train(window, steps)
                window.stop()
                self.assertIs(self.history.recorder(), Recorder.NOBODY)
                self.gather(window)
                self.assertEqual((self.written(), window.phase), ([], WindowPhase.DONE))

    def test_stopped_while_holders_are_looked_for_it_leaves_nothing(self) -> None:
        window = self.window()
        self.train(window, 8)

        def search(_blocks: object, pacer: Pacer, _so_far: SoFar) -> HolderSearch:
            self.assertEqual(self.written(), ["12-34.early.snap", "12-34.late.snap"])
            window.stop()
            with self.assertRaises(StoppedError):
                pacer.rest()
            return FOUND  # as if it had swallowed that

        self.gather(window, search=search)
        self.assertEqual(self.written(), [])

    def test_an_error_of_torchs_ends_the_window_and_the_recording(self) -> None:
        window = self.window()
        self.train(window, 2)
        broken = RuntimeError("CUDA error")

        def fail(*, history: bool) -> Any:
            del history
            raise broken

        self.backend.snapshot = fail  # type: ignore[method-assign] # SAFETY: a device that fails
        with self.assertRaises(RuntimeError):
            self.train(window, 1)
        self.assertIs(self.history.recorder(), Recorder.NOBODY)
        self.gather(window)
        self.assertIn("RuntimeError: CUDA error", self.evidence().problem or "")

    def test_too_many_blocks_are_said(self) -> None:
        window = self.window()
        self.backend.stats[0]["allocation"]["all"]["current"] = MAX_BLOCKS + 1
        self.train(window, 3)
        self.gather(window)
        self.assertIn("30,001 memory blocks", self.evidence().problem or "")
        self.assertIs(self.history.recorder(), Recorder.NOBODY)

    def test_a_search_that_fails_costs_only_the_holders(self) -> None:
        window = self.window()
        self.train(window, 8)

        def search(_blocks: object, _pacer: Pacer, _so_far: SoFar) -> HolderSearch:
            raise ValueError("odd object")

        self.gather(window, search=search)
        evidence = self.evidence()
        self.assertEqual((evidence.late_step, evidence.search, evidence.search_failed), (48, None, True))
        self.assertIn("odd object", evidence.problem or "")

    def test_a_search_over_slow_steps_tells_what_it_has_found_so_far(self) -> None:
        window = self.window()
        self.train(window, 8)
        told: list[Optional[RankEvidence]] = []
        part = HolderSearch((Holder(HolderKind.CONTAINER, "losses", MIB, 1),), problem="still running")

        def search(_blocks: object, _pacer: Pacer, so_far: SoFar) -> HolderSearch:
            finds = iter((FOUND, part))
            for took_s in (59.0, 61.0, 599.0, 601.0, 9999.0):
                so_far(took_s, lambda: next(finds))
                told.append(self.evidence() if "12-34.evidence.json" in self.written() else None)
            return FOUND._replace(objects=8)

        self.gather(window, search=search)
        self.assertIsNone(told[0])
        first, second = told[1], told[3]
        assert first is not None
        assert second is not None
        self.assertEqual((first.evidence_id, first.search, first.searching), ("e1+1", FOUND, True))
        self.assertEqual((first.early_step, first.late_step, first.problem), (43, 48, None))
        self.assertGreater(first.ended_unix_s, first.began_unix_s)
        self.assertEqual(told[2], first)
        self.assertEqual((second.evidence_id, second.search), ("e1+2", part))
        self.assertEqual(told[4], second)
        whole = self.evidence()
        self.assertEqual((whole.evidence_id, whole.searching, whole.facts.process_groups), ("e1", False, 2))
        self.assertEqual(whole.search, FOUND._replace(objects=8))

    def test_a_search_that_finds_nothing_new_tells_it_once(self) -> None:
        window = self.window()
        self.train(window, 8)
        told: list[str] = []

        def search(_blocks: object, _pacer: Pacer, so_far: SoFar) -> HolderSearch:
            for took_s in (61.0, 601.0):
                so_far(took_s, lambda: FOUND)
                told.append(self.evidence().evidence_id)
            return FOUND

        self.gather(window, search=search)
        self.assertEqual(told, ["e1+1", "e1+1"])

    def test_what_was_found_so_far_costs_no_search(self) -> None:
        window = self.window()
        self.train(window, 8)

        def odd() -> HolderSearch:
            raise ValueError("odd group")

        def search(_blocks: object, _pacer: Pacer, so_far: SoFar) -> HolderSearch:
            so_far(61.0, odd)
            so_far(601.0, odd)
            return FOUND

        self.gather(window, search=search)
        evidence = self.evidence()
        self.assertEqual((evidence.search, evidence.search_failed), (FOUND, False))
        self.assertEqual((evidence.problem or "").count("odd group"), 1)

    def test_facts_that_fail_are_said_once(self) -> None:
        window = self.window()
        self.train(window, 8)

        def fail(_pacer: Pacer) -> RankFacts:
            raise ValueError("odd")

        gather(window, self.files, Searches(search=lambda _blocks, _pacer, _so_far: FOUND, facts=fail))
        evidence = self.evidence()
        self.assertEqual((evidence.facts, evidence.early_facts), (NO_FACTS, NO_FACTS))
        self.assertEqual((evidence.problem or "").count("odd"), 1)

    def test_a_snapshot_that_cannot_be_written_is_said(self) -> None:
        window = self.window()
        self.train(window, 8)
        in_the_way = os.path.join(self.run_dir, str(os.geteuid()), "12-34.late.snap")

        def facts(_pacer: Pacer) -> RankFacts:
            os.makedirs(in_the_way, exist_ok=True)
            return NO_FACTS

        gather(window, self.files, Searches(search=lambda _blocks, _pacer, _so_far: FOUND, facts=facts))
        evidence = self.evidence()
        self.assertEqual((evidence.early_file, evidence.late_file), ("12-34.early.snap", None))
        self.assertEqual((evidence.late_step, evidence.search), (48, FOUND))
        self.assertIn("the snapshot at step 48 could not be written", evidence.problem or "")

    def test_without_any_room_there_is_no_file_and_the_status_says_so(self) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        window = self.window()
        self.train(window, 8)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
        with self.assertRaises(OSError):
            self.gather(window)
        self.assertEqual((self.written(), window.phase), ([], WindowPhase.DONE))
        self.assertIn("do not fit", window.problem or "")


class AJobThatRecords(WindowTestCase):
    def test_its_recording_is_used_and_left_as_it_is(self) -> None:
        self.backend.recording.of_the_job(max_entries=77)
        window = self.window()
        self.train(window, 8)
        self.gather(window)
        self.assertEqual((self.backend.recording.calls, self.backend.recording.entries), (["all"], 77))
        evidence = self.evidence()
        self.assertIn("the job itself records allocation history", evidence.problem or "")
        assert evidence.late_file is not None
        self.assertEqual(self.snapshot(evidence.late_file).facts["recording"], "job's")

    def test_with_a_torch_that_cannot_leave_its_events_out_that_is_said(self) -> None:
        self.backend.leaves_events_out = False
        self.backend.stats[0]["allocation"]["all"]["allocated"] = 1_000_000
        self.backend.recording.of_the_job()
        window = self.window()
        self.train(window, 8)
        self.gather(window)
        evidence = self.evidence()
        self.assertEqual((evidence.early_step, evidence.late_step), (None, None))
        self.assertIn("cannot leave out the events", evidence.problem or "")
        self.assertEqual(self.backend.recording.calls, ["all"])

    def test_evidence_window_yields_to_a_recording_the_job_starts(self) -> None:
        window = self.window()
        self.train(window, 5)
        self.backend.recording.of_the_job(max_entries=77)
        self.train(window, 3)
        self.assertEqual((window.phase, self.backend.recording.entries), (WindowPhase.SEARCHING, 77))
        self.assertIs(self.history.recorder(), Recorder.JOB)
        self.gather(window)
        self.assertIn("recording was stopped", self.evidence().problem or "")
        self.assertEqual(self.evidence().late_step, 48)

    def test_evidence_reports_a_recording_that_the_job_stops_in_the_window(self) -> None:
        self.backend.recording.of_the_job()
        window = self.window()
        self.train(window, 5)
        self.backend.recording.of_the_job(None)
        self.train(window, 3)
        self.gather(window)
        self.assertIn("switched allocation history off", self.evidence().problem or "")

    def test_evidence_leaves_a_recording_started_after_the_window_alone(self) -> None:
        window = self.window()
        self.train(window, 8)
        self.backend.recording.of_the_job(max_entries=77)
        self.gather(window)
        self.assertEqual(self.backend.recording.calls, ["all", None, "all"])

    def test_a_recording_of_ours_that_was_on_before_stays_on(self) -> None:
        self.history.begin(entries=50_000, step=1)
        window = self.window()
        self.backend.stats[0]["allocation"]["all"]["allocated"] = 60_000
        self.train(window, 8)
        self.assertEqual(self.history.entries, 50_000)
        self.assertEqual(self.backend.snapshots_with_history, [False, False])  # so long a ring would hold up training
        self.gather(window)
        self.assertIsNone(self.evidence().problem)


if __name__ == "__main__":
    unittest.main()
