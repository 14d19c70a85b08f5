# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import unittest
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Optional
from unittest import mock

from probe_fakes import (
    MIB,
    FakeBackend,
    FakeModule,
    FakeOptimizer,
    Ring,
    block,
    facts_of_this_process,
    rings_below,
    torch_snapshot,
)
from tidegauge.core.evidence.rank_evidence import NO_FACTS, Holder, HolderKind, HolderSearch
from tidegauge.core.samples import RecordKind
from tidegauge.core.snapshot_columns import unpack
from tidegauge.probe.evidence.recorder import (
    DEFAULT_ENTRIES,
    ENTRIES_VARIABLE,
    EvidenceRecorder,
    trace_complaint,
    trace_entries,
)
from tidegauge.probe.evidence.window import EvidenceWindow
from tidegauge.probe.faults import Faults
from tidegauge.probe.pacing import start_thread
from tidegauge.probe.run_files.command_socket import MAX_REPLY_BYTES
from tidegauge.probe.run_files.run_folder import RunFolder
from tidegauge.probe.session.commands import Commands
from tidegauge.probe.session.probe import MIN_QUIET_AFTER_STEPS_S, MIN_QUIET_S, MIN_WINDOW_S, Probe
from tidegauge.probe.step_counting.boundary_calls import BoundaryCalls
from waiting import PATIENCE_S

BASE = 1 << 30
ASK: dict[str, Any] = {"command": "evidence", "id": "e1", "warm_up_steps": 0, "window_steps": 1, "most_s": 600}

PROFILE: dict[str, Any] = {"command": "profile", "id": "p1", "reason": "a test", "steps": 2, "most_s": 600}


class CommandsTestCase(unittest.TestCase):
    """A watched job that keeps a MiB in each step; a step is a second on the clock of its records."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        self.folder = os.path.join(self.run_dir, str(os.geteuid()))
        self.backend = FakeBackend()
        self.backend.hold(0, MIB, 2 * MIB)
        self.backend.snapshot_taken = torch_snapshot([block(BASE, MIB, 7)], events=1)
        self.said: list[str] = []
        self.searched: list[Sequence[tuple[int, int]]] = []
        self.found = HolderSearch(wanted_bytes=5)
        self.threads: list[threading.Thread] = []
        self.model = FakeModule()

    def probe(self, level: str = "stats", **environ: str) -> Probe:
        probe = Probe(
            level,
            self.backend,
            environ={"TIDEGAUGE_RUN_DIR": self.run_dir, **environ},
            faults=Faults(say=self.said.append),
            process_facts=facts_of_this_process,
            with_helper=False,
        )
        probe.evidence = self.recorder = EvidenceRecorder(
            {**environ},
            self.backend,
            probe.faults,
            BoundaryCalls(probe.at_next_step, probe.capturing),
            start=self.start,
            search=self.search,
            facts=lambda _torch, **_means: NO_FACTS,
        )
        self.addCleanup(probe.close)
        probe.arm()
        self.backend.initialise()
        self.commands = Commands(probe, step_wait_s=0.0)
        if probe.watch is not None:
            probe.watch.look_for_devices()
        return probe

    def start(self, run: Callable[[], None]) -> threading.Thread:
        window, opened = self.recorder.window, threading.Event()
        assert window is not None
        open_window = window.open

        def open_and_tell() -> None:
            open_window()
            opened.set()

        def run_and_tell() -> None:
            try:
                run()
            finally:
                opened.set()

        window.open = open_and_tell  # type: ignore[method-assign] # SAFETY: calls the method
        self.threads.append(start_thread(run_and_tell))
        if isinstance(window, EvidenceWindow):  # a profile's opens when steps have been made
            self.assertTrue(opened.wait(PATIENCE_S))
        return self.threads[-1]

    def search(
        self,
        _torch: object,
        blocks: Sequence[tuple[int, int]],
        *,
        most_s: float,
        pause: Callable[[], None],
        at_boundary: Callable[[Callable[[], bool]], bool],
        patience_s: float = 30.0,
        step_s: float = 0.0,
        so_far: Optional[Callable[..., None]] = None,
    ) -> HolderSearch:
        self.assertGreater(most_s, 0)
        self.assertGreaterEqual(patience_s, 30.0)
        pause()
        self.searched.append(blocks)
        return self.found

    def ask(self, command: str, **more: Any) -> dict[str, Any]:
        reply = self.commands.answer({"command": command, **more})
        self.assertLess(len(json.dumps(reply)), MAX_REPLY_BYTES)
        return reply

    def step(self, probe: Probe, steps: int = 1) -> None:
        for _ in range(steps):
            watch = probe.watch
            if watch is not None:
                watch._last_step_ns -= 1 << 60  # it is long ago
            FakeOptimizer(self.backend, [self.run_dir]).step()

    def quiet_for(self, probe: Probe, quiet_s: float) -> None:
        """No step ended for so long."""
        watch = probe.watch
        assert watch is not None
        now_ns = max(watch._began_ns, watch._last_step_ns) + round(quiet_s * 1e9)
        watch._mono_ns = lambda: now_ns

    def finished(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE_S)
            self.assertFalse(thread.is_alive())

    def files(self) -> list[str]:
        """Without ring and the process's name."""
        return sorted(name.partition(".")[2] for name in os.listdir(self.folder) if not name.endswith(".ring"))


class AskingForEvidence(CommandsTestCase):
    def test_a_window_runs_at_the_jobs_boundaries(self) -> None:
        probe = self.probe()
        self.assertEqual(self.ask(**ASK), {"ok": True, "id": "e1", "state": "recording"})
        self.assertEqual(self.ask("evidence_status", id="e1")["state"], "warming")
        self.step(probe, 2)
        self.assertEqual(self.ask("evidence_status", id="e1")["state"], "recording")
        self.backend.snapshot_taken = torch_snapshot([block(BASE, MIB, 7), block(BASE + MIB, MIB, 7)])
        self.step(probe, 2)
        self.finished()
        status = self.ask("evidence_status", id="e1")
        self.assertEqual((status["state"], status["step"], status["problem"]), ("done", 4, None))
        self.assertEqual(self.files(), ["early.snap", "evidence.json", "late.snap"])
        self.assertEqual(self.searched, [((BASE + MIB, MIB),)])
        self.assertTrue(self.backend.recording.as_it_was)
        self.assertEqual((probe.faults.count, probe.evidence.window), (0, None))

    def infer(self, probe: Probe, steps: int = 1) -> None:
        """Steps of a loop that only calls its model, each an age after the last."""
        for _ in range(steps):
            if isinstance(probe.evidence.window, EvidenceWindow):
                probe.evidence.window._early_s -= MIN_WINDOW_S
            self.backend.call_module(self.model)

    def test_a_window_runs_at_calls_of_the_model_where_no_optimizer_steps(self) -> None:
        probe = self.probe()
        self.quiet_for(probe, MIN_QUIET_S)
        self.ask(**ASK)
        self.assertIsNone(self.backend.module_hook)
        probe.tick()
        self.infer(probe, 3)
        self.assertEqual(self.ask("evidence_status", id="e1")["state"], "recording")
        self.infer(probe)
        self.finished()
        status = self.ask("evidence_status", id="e1")
        self.assertEqual((status["state"], status["step"], status["problem"]), ("done", 3, None))
        self.assertEqual((probe.steps.steps, probe.steps.raw_steps), (0, 0))
        samples = Ring(rings_below(self.run_dir)[0]).samples()
        self.assertNotIn(RecordKind.STEP, [sample.kind for sample in samples])
        probe.tick()
        self.assertIsNone(self.backend.module_hook)

    def test_such_a_window_has_its_time_though_calls_are_close(self) -> None:
        probe = self.probe()
        self.quiet_for(probe, MIN_QUIET_S)
        self.ask(**ASK)
        probe.tick()
        for _ in range(100):
            self.backend.call_module(self.model)
        self.assertEqual(self.ask("evidence_status", id="e1")["state"], "recording")

    def test_calls_of_the_model_are_left_alone_while_steps_may_come(self) -> None:
        for steps, quiet_s, hooked in (
            (0, MIN_QUIET_S - 1.0, False),
            (0, MIN_QUIET_S, True),
            (1, MIN_QUIET_AFTER_STEPS_S - 1.0, False),
            (1, MIN_QUIET_AFTER_STEPS_S, True),
        ):
            with self.subTest(steps=steps, quiet_s=quiet_s):
                self.setUp()
                probe = self.probe()
                self.step(probe, steps)
                self.quiet_for(probe, quiet_s)
                self.ask(**ASK)
                probe.tick()
                self.assertEqual(self.backend.module_hook is not None, hooked)

    def test_an_optimizer_that_steps_takes_over(self) -> None:
        probe = self.probe()
        self.quiet_for(probe, MIN_QUIET_S)
        self.ask(**ASK)
        probe.tick()
        self.infer(probe, 3)
        self.step(probe)
        self.assertIsNone(self.backend.module_hook)
        self.finished()
        self.assertIsNone(self.ask("evidence_status", id="e1")["problem"])

    def test_a_snapshot_that_waits_for_a_step_gets_a_call_of_the_model(self) -> None:
        probe = self.probe()
        self.quiet_for(probe, MIN_QUIET_S)
        taken: list[int] = []
        probe.at_next_step(lambda: taken.append(1))
        self.infer(probe, 2)
        self.assertEqual(taken, [1])

    def test_nothing_looks_at_calls_of_the_model_after_a_detach(self) -> None:
        probe = self.probe()
        self.quiet_for(probe, MIN_QUIET_S)
        self.ask(**ASK)
        probe.tick()
        probe.detach()
        self.assertIsNone(self.backend.module_hook)
        probe.module_calls.switch_on()  # by a thread that was about to, when watching ended
        self.infer(probe, 2)
        self.assertIsNone(self.backend.module_hook)
        self.finished()

    def test_asking_again_is_harmless_and_another_has_to_wait(self) -> None:
        probe = self.probe()
        self.ask(**ASK)
        self.assertEqual(self.ask(**ASK)["state"], "recording")
        other = self.ask(**{**ASK, "id": "e2"})
        self.assertEqual(other["kind"], "busy")
        self.assertIn("e1", other["error"])
        self.assertEqual(len(self.threads), 1)
        self.step(probe, 5)
        self.finished()
        self.assertEqual(self.ask(**ASK)["state"], "done")
        self.assertEqual(self.ask(**{**ASK, "id": "e2"})["state"], "recording")
        self.assertEqual(self.ask("evidence_status", id="e1")["kind"], "unknown")

    def test_evidence_command_refuses_an_invalid_value_and_names_the_field(self) -> None:
        self.probe()
        for key, value in (
            ("id", ""), ("id", 7), ("warm_up_steps", -1), ("warm_up_steps", True), ("window_steps", 0),
            ("window_steps", "many"), ("enough_s", 0), ("most_s", 0), ("most_s", float("nan")), ("max_events", 100_001),
            ("max_events", 2.5), ("holders", "yes"),
        ):  # fmt: skip
            with self.subTest(key=key, value=value):
                reply = self.ask(**{**ASK, key: value})
                self.assertEqual(reply["kind"], "usage")
                self.assertIn(key, reply["error"])
        self.assertEqual(self.threads, [])

    def test_a_process_that_is_not_watched_is_told_to_attach_first(self) -> None:
        self.probe("dormant")
        for command in ("evidence", "profile", "snapshot", "record", "holders"):
            with self.subTest(command):
                reply = self.ask(command, id="e1", on=True)
                self.assertEqual(reply["kind"], "unable")
                self.assertIn("attach", reply["error"])

    def test_a_device_without_history_is_named(self) -> None:
        self.backend.has_history = False
        self.probe()
        self.assertIn("no allocation history for CUDA", self.ask(**ASK)["error"])

    def test_detached_or_closed_in_the_middle_it_leaves_nothing(self) -> None:
        for end in ("detach", "close"):
            for steps in (1, 3):
                with self.subTest(end=end, steps=steps):
                    self.setUp()
                    probe = self.probe()
                    self.ask(**{**ASK, "window_steps": 50})
                    self.step(probe, steps)
                    getattr(probe, end)()
                    self.finished()
                    self.assertIsNone(self.backend.recording.enabled)
                    self.assertTrue(self.backend.recording.as_it_was)
                    self.assertEqual(self.files(), [])
                    self.step(probe, 3)
                    self.assertEqual(self.backend.recording.calls, ["all", None])

    def test_after_detaching_and_attaching_it_can_be_asked_again(self) -> None:
        probe = self.probe()
        self.ask(**ASK)
        probe.detach()
        self.finished()
        probe.switch_on("stats")
        self.assertEqual(self.ask(**{**ASK, "id": "e2"})["state"], "recording")

    def test_evidence_that_is_complete_outlives_the_process(self) -> None:
        probe = self.probe()
        self.ask(**ASK)
        self.step(probe, 5)
        self.finished()
        probe.close()
        self.assertEqual(self.files(), ["early.snap", "evidence.json", "late.snap"])

    def test_a_forked_child_gets_torchs_calls_back_and_leaves_the_rest_alone(self) -> None:
        probe = self.probe()
        self.ask(**{**ASK, "window_steps": 50})
        self.step(probe, 3)
        before = list(self.backend.recording.calls)
        probe.after_fork()
        self.assertTrue(self.backend.recording.as_it_was)
        self.assertEqual(self.backend.recording.calls, before)
        self.assertIsNone(probe.evidence.window)

    def test_an_error_in_the_window_is_counted_and_training_goes_on(self) -> None:
        probe = self.probe()
        self.ask(**ASK)
        self.backend.recording.error = RuntimeError("no history today")
        self.step(probe, 3)
        self.finished()
        self.assertEqual(probe.faults.count, 1)
        self.assertIn("no history today", self.ask("evidence_status", id="e1")["problem"])
        self.assertTrue(self.backend.recording.as_it_was)

    def test_evidence_command_leaves_no_recording_on_without_a_thread(self) -> None:
        probe = self.probe()

        def refuse(_run: object) -> Optional[threading.Thread]:
            raise RuntimeError("can't start new thread")

        probe.evidence._start = refuse
        self.assertIn("new thread", self.ask(**ASK)["error"])
        self.step(probe, 3)
        self.assertEqual(self.backend.recording.calls, [])


class AskingForAProfile(CommandsTestCase):
    def train_until_done(self, probe: Probe, profile: str = "p1") -> dict[str, Any]:
        """Steps until the profile is done; its status."""
        give_up_s = time.monotonic() + PATIENCE_S
        while any(thread.is_alive() for thread in self.threads):  # evidence's, too, waits for steps
            self.assertLess(time.monotonic(), give_up_s)
            self.step(probe)
        return self.ask("profile_status", id=profile)

    def test_a_profile_is_recorded_at_the_jobs_boundaries(self) -> None:
        probe = self.probe()
        reply = self.ask(**PROFILE)
        self.assertEqual((reply["ok"], reply["id"], reply["state"]), (True, "p1", "recording"))
        self.train_until_done(probe)
        self.assertEqual(self.files(), ["profile.json", "profile.snap"])
        self.assertTrue(self.backend.recording.as_it_was)
        self.assertEqual((probe.faults.count, probe.evidence.window), (0, None))

    def test_a_profile_that_cannot_be_made_is_over_and_counted(self) -> None:
        probe = self.probe()
        probe.evidence._make_recording = mock.Mock(side_effect=ImportError("no such module"))
        self.ask(**PROFILE)
        self.finished()
        status = self.ask("profile_status", id="p1")
        self.assertEqual(status["state"], "done")
        self.assertIn("no such module", status["problem"])
        self.assertEqual((probe.faults.count, self.ask(**{**PROFILE, "id": "p2"})["ok"]), (1, True))

    def test_asking_for_a_profile_again_is_harmless_and_another_has_to_wait(self) -> None:
        probe = self.probe()
        self.ask(**PROFILE)
        self.assertTrue(self.ask(**PROFILE)["ok"])
        other = self.ask(**{**PROFILE, "id": "p2"})
        self.assertEqual((other["kind"], len(self.threads)), ("busy", 1))
        self.assertIn("profile p1 is being recorded", other["error"])
        self.assertEqual(self.ask("record", on=True)["kind"], "busy")
        self.train_until_done(probe)
        self.assertTrue(self.ask(**{**PROFILE, "id": "p2"})["ok"])
        self.assertEqual(self.ask("profile_status", id="p1")["kind"], "unknown")
        self.train_until_done(probe, "p2")

    def test_who_joins_a_profile_under_way_is_told_its_id(self) -> None:
        probe = self.probe()
        self.ask(**PROFILE)
        joined = self.ask(**{**PROFILE, "id": "p2", "join": True})
        self.assertEqual((joined["ok"], joined["id"], len(self.threads)), (True, "p1", 1))
        self.train_until_done(probe)
        self.assertEqual(self.ask(**{**PROFILE, "id": "p3", "join": True})["id"], "p3")
        self.train_until_done(probe, "p3")

    def test_a_profile_is_recorded_at_calls_of_the_model_where_no_optimizer_steps(self) -> None:
        probe = self.probe()
        self.quiet_for(probe, MIN_QUIET_S)
        self.ask(**PROFILE)
        give_up_s = time.monotonic() + PATIENCE_S
        while self.ask("profile_status", id="p1")["state"] != "done":
            self.assertLess(time.monotonic(), give_up_s)
            probe.tick()
            self.backend.call_module(self.model)
        self.finished()
        probe.tick()
        self.assertIsNone(self.backend.module_hook)
        self.assertEqual(self.files(), ["profile.json", "profile.snap"])

    def test_a_rank_whose_folder_is_full_records_nothing(self) -> None:
        self.probe()
        with mock.patch.object(RunFolder, "has_room_for", return_value=False):
            refused = self.ask(**PROFILE)
        self.assertEqual((refused["kind"], self.threads), ("busy", []))
        self.assertIn(f"too little room for a recording in {self.folder}: ", refused["error"])

    def test_a_folder_that_is_full_when_the_recording_is_over_is_no_fault_of_the_probe(self) -> None:
        probe = self.probe()
        self.ask(**PROFILE)
        with mock.patch.object(RunFolder, "has_room_for", return_value=False):
            status = self.train_until_done(probe)
        self.assertIn("NoRoomError", status["problem"])
        self.assertEqual((self.files(), probe.faults.count), ([], 0))
        [said] = [line for line in self.said if "NoRoomError" in line]
        self.assertTrue(said.startswith("a recording of this process's memory could not be written ("), said)

    def test_a_profile_waits_for_evidence(self) -> None:
        probe = self.probe()
        self.ask(**ASK)
        refused = self.ask(**PROFILE)
        self.assertEqual(refused["kind"], "busy")
        self.assertIn("evidence e1 is being collected", refused["error"])
        self.step(probe, 5)
        self.finished()
        self.assertTrue(self.ask(**PROFILE)["ok"])
        self.train_until_done(probe)
        self.assertEqual(self.files(), ["early.snap", "evidence.json", "late.snap", "profile.json", "profile.snap"])

    def test_a_profile_gives_way_to_evidence(self) -> None:
        probe = self.probe()
        self.ask(**PROFILE)
        self.ask(**ASK)
        status = self.train_until_done(probe)
        self.assertIn("evidence was asked for meanwhile", status["problem"])
        self.step(probe, 5)
        self.finished()
        status = self.ask("evidence_status", id="e1")
        self.assertEqual((status["state"], status["problem"]), ("done", None))
        self.assertEqual(self.files(), ["early.snap", "evidence.json", "late.snap", "profile.json"])
        self.assertTrue(self.backend.recording.as_it_was)

    def test_profile_command_refuses_an_invalid_value_and_names_the_field(self) -> None:
        self.probe()
        for key, value in (("id", ""), ("steps", 0), ("steps", 4), ("steps", True), ("most_s", 0), ("max_events", 7)):
            with self.subTest(key=key, value=value):
                reply = self.ask(**{**PROFILE, key: value})
                self.assertEqual(reply["kind"], "usage")
                self.assertIn(key, reply["error"])
        self.assertEqual(self.threads, [])

    def test_detached_or_closed_in_the_middle_a_profile_leaves_nothing(self) -> None:
        for end in ("detach", "close"):
            with self.subTest(end=end):
                self.setUp()
                probe = self.probe()
                self.ask(**PROFILE)
                getattr(probe, end)()
                self.finished()
                self.assertIsNone(self.backend.recording.enabled)
                self.assertEqual(self.files(), [])


class OnDemand(CommandsTestCase):
    def test_a_snapshot_now(self) -> None:
        probe = self.probe()
        self.step(probe, 2)
        reply = self.ask("snapshot", reason="I want to see", now=True)
        self.assertEqual((reply["ok"], reply["step"], reply["stall_s"] >= 0), (True, 2, True))
        with open(os.path.join(self.folder, reply["file"]), "rb") as file:
            content = file.read()
        self.assertEqual((len(content), self.files()), (reply["bytes"], ["asked.snap"]))
        self.assertEqual(unpack(zlib.decompress(content)).facts["recording"], "none")

    def test_a_snapshot_at_the_next_boundary_is_taken_by_the_training_thread(self) -> None:
        probe = self.probe()
        taken_in: list[int] = []
        take, at_next_step = self.backend.snapshot, probe.at_next_step
        queued = threading.Event()

        def snapshot(*, history: bool) -> Any:
            taken_in.append(threading.get_ident())
            return take(history=history)

        def queue(call: Callable[[], None]) -> None:
            at_next_step(call)
            queued.set()

        self.backend.snapshot = snapshot  # type: ignore[method-assign] # SAFETY: to see who takes it
        probe.at_next_step = queue  # type: ignore[method-assign] # SAFETY: to know when the step may come
        commands = Commands(probe, step_wait_s=PATIENCE_S)
        replies: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: replies.append(commands.answer({"command": "snapshot"})))
        asking.start()
        self.assertTrue(queued.wait(PATIENCE_S))
        self.step(probe)
        asking.join(PATIENCE_S)
        self.assertEqual((replies[0]["ok"], taken_in), (True, [threading.get_ident()]))

    def test_without_steps_it_is_told_how_not_to_wait(self) -> None:
        self.probe()
        reply = self.ask("snapshot")
        self.assertEqual(reply["kind"], "late")
        self.assertIn("{'now': true}", reply["error"])

    def test_a_snapshot_that_cannot_be_had_says_why(self) -> None:
        self.backend.stats[0]["allocation"]["all"]["current"] = 50_000
        self.probe()
        reply = self.ask("snapshot", now=True)
        self.assertEqual(reply["kind"], "unable")
        self.assertIn("50,000 memory blocks", reply["error"])

    def test_recording_on_and_off(self) -> None:
        self.probe()
        reply = self.ask("record", on=True, max_entries=500, now=True)
        self.assertEqual((reply["ok"], reply["recording"], self.backend.recording.entries), (True, "ours", 500))
        self.assertTrue(self.ask("record", on=True, max_entries=500, now=True)["ok"])
        self.assertEqual(self.ask("record", on=True, max_entries=600, now=True)["kind"], "busy")
        reply = self.ask("record", on=False, now=True)
        self.assertEqual((reply["on"], self.backend.recording.enabled), (False, None))
        self.assertEqual(self.backend.recording.calls, ["all", None])

    def test_recording_never_touches_the_jobs(self) -> None:
        self.probe()
        self.backend.recording.of_the_job(max_entries=3)
        self.assertEqual(self.ask("record", on=True, now=True)["kind"], "unable")
        self.assertEqual(self.ask("record", on=False, now=True)["recording"], "job's")
        self.assertEqual(self.backend.recording.calls, ["all"])

    def test_recording_waits_for_a_window(self) -> None:
        self.probe()
        self.ask(**ASK)
        self.assertEqual(self.ask("record", on=False, now=True)["kind"], "busy")

    def test_bad_requests_to_record(self) -> None:
        self.probe()
        for more in ({"on": 1}, {"on": True, "max_entries": 5}, {"on": True, "stacks": "java"}, {}):
            with self.subTest(more):
                self.assertEqual(self.ask("record", **more, now=True)["kind"], "usage")
        self.assertEqual(self.backend.recording.calls, [])

    def test_holders_of_given_blocks(self) -> None:
        self.probe()
        reply = self.ask("holders", blocks=[[BASE, MIB]])
        self.assertEqual((reply["ok"], reply["wanted_bytes"], self.searched), (True, 5, [[(BASE, MIB)]]))

    def test_holders_of_the_largest_groups(self) -> None:
        self.probe()
        self.assertTrue(self.ask("holders", now=True)["ok"])
        self.assertEqual(self.searched, [((BASE, MIB),)])

    def test_a_search_ends_when_the_probe_does(self) -> None:
        probe = self.probe()
        search = self.search

        def close_and_search(*args: Any, **kwargs: Any) -> HolderSearch:
            probe.close()
            return search(*args, **kwargs)

        probe.evidence._search = close_and_search
        reply = self.ask("holders", blocks=[[BASE, MIB]])
        self.assertEqual((reply["kind"], self.searched, probe.faults.count), ("unable", [], 0))

    def test_blocks_must_be_pairs(self) -> None:
        self.probe()
        odd: tuple[Any, ...] = ("all", [[1]], [[1, 2, 3]], [["a", 2]], [[True, 2]], [[0, 5]], [[1, 2]] * 301, {})
        for blocks in odd:
            with self.subTest(str(blocks)[:30]):
                self.assertEqual(self.ask("holders", blocks=blocks)["kind"], "usage")

    def test_a_long_answer_loses_its_smallest_holders(self) -> None:
        self.probe()
        holders = [Holder(HolderKind.GLOBAL, f"{n:03}" + "p" * 9000, 1, 1) for n in range(20)]
        self.found = HolderSearch(tuple(holders), wanted_bytes=5)
        paths = [one["path"][:3] for one in self.ask("holders", blocks=[[BASE, MIB]])["holders"]]
        self.assertEqual(paths, [f"{n:03}" for n in range(len(paths))])
        self.assertGreater(len(paths), 4)


class Tracing(CommandsTestCase):
    def test_trace_level_records_history_from_start_to_close(self) -> None:
        probe = self.probe("trace")
        self.assertEqual((self.backend.recording.entries, self.backend.recording.stacks), (DEFAULT_ENTRIES, "python"))
        probe.close()
        self.assertIsNone(self.backend.recording.enabled)

    def test_other_levels_record_nothing(self) -> None:
        for level in ("dormant", "stats", "auto"):
            with self.subTest(level):
                self.setUp()
                self.step(self.probe(level))
                self.assertEqual(self.backend.recording.calls, [])

    def test_trace_recording_follows_the_attach_level(self) -> None:
        probe = self.probe()
        self.commands.answer({"command": "attach", "level": "trace"})
        self.assertEqual(self.backend.recording.enabled, "all")
        self.commands.answer({"command": "attach", "level": "auto"})
        self.assertIsNone(self.backend.recording.enabled)
        self.assertEqual(probe.level, "auto")

    def test_a_recording_by_command_outlives_a_change_of_level(self) -> None:
        self.probe()
        self.ask("record", on=True, now=True)
        self.commands.answer({"command": "attach", "level": "auto"})
        self.assertEqual(self.backend.recording.enabled, "all")

    def test_the_jobs_own_recording_is_left_and_that_is_said(self) -> None:
        self.backend.recording.of_the_job(max_entries=3)
        self.probe("trace")
        self.assertEqual((self.backend.recording.calls, len(self.said)), (["all"], 1))
        reply = self.commands.answer({"command": "attach", "level": "trace"})
        self.assertIn("leaves it unchanged", reply["note"])
        self.assertEqual((reply["recording"], len(self.said)), ("job's", 1))

    def test_the_job_beginning_later_is_given_way_to(self) -> None:
        self.probe("trace")
        self.backend.recording.of_the_job(max_entries=3)
        self.assertEqual(self.backend.recording.calls, ["all", None, "all"])

    def test_a_window_within_it_leaves_it_on(self) -> None:
        probe = self.probe("trace")
        self.ask(**ASK)
        self.step(probe, 5)
        self.finished()
        self.assertEqual(self.ask("evidence_status", id="e1")["problem"], None)
        self.assertEqual(self.backend.recording.calls, ["all"])

    def test_a_history_that_fails_costs_no_readings(self) -> None:
        self.backend.recording.error = RuntimeError("no")
        probe = self.probe("trace")
        self.assertIsNotNone(probe.watch)
        self.assertEqual(probe.faults.count, 1)

    def test_the_size_of_the_ring(self) -> None:
        for text, version, expected in (
            ("", "2.13.0", 50_000), ("", "2.9.1", 20_000), ("70000", "2.9.1", 70_000), (" 100 ", "2.13.0", 100),
            ("99", "2.13.0", 50_000), ("100001", "2.13.0", 50_000), ("many", "2.13.0", 50_000),
        ):  # fmt: skip
            with self.subTest(text=text, version=version):
                environ = {ENTRIES_VARIABLE: text}
                self.assertEqual(trace_entries(environ, version), expected)
                wrong = text in ("99", "100001", "many")
                self.assertEqual(trace_complaint(environ) is not None, wrong)

    def test_a_bad_size_is_said(self) -> None:
        self.probe("trace", TIDEGAUGE_TRACE_ENTRIES="lots")
        self.assertEqual(self.backend.recording.entries, DEFAULT_ENTRIES)
        self.assertIn("'lots'", self.said[0])


if __name__ == "__main__":
    unittest.main()
