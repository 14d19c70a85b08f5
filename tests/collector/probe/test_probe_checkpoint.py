# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
"""A request to save the job's state, from the command to the job's own function. Signals have a file of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import threading
import unittest
from typing import Any, Callable, Optional

from probe_fakes import MIB, FakeBackend, FakeOptimizer, FakeStore, Ring, facts_of_this_process, rings_below
from tidegauge.probe import entry
from tidegauge.probe.checkpoint.callbacks import MAX_REMEMBERED, Checkpoints
from tidegauge.probe.checkpoint.files import list_files
from tidegauge.probe.faults import Faults
from tidegauge.probe.requests import CheckpointRequest, RequestRefusedError, SaveRequest, saver
from tidegauge.probe.runtime.checkpoint_agreement import PATIENCE_S, all_have_come
from tidegauge.probe.session.commands import Commands
from tidegauge.probe.session.probe import Probe
from waiting import PATIENCE_S as TEST_PATIENCE_S


class Rank:
    """One rank's checkpoints with a clock and steps that the test moves, and a callback that notes what it gets."""

    def __init__(
        self,
        *,
        store: Optional[FakeStore] = None,
        environ: Optional[dict[str, str]] = None,
        list_files: Callable[[Any], Any] = list_files,
    ) -> None:
        self.now_s = 1000.0
        self.steps = 0
        self.got: list[CheckpointRequest] = []
        self.backend = FakeBackend()
        self.backend.shared = store
        self.said: list[str] = []
        self.checkpoints = Checkpoints(
            environ or {},
            backend=self.backend,
            steps=lambda: self.steps,
            faults=Faults(say=self.said.append),
            save=self.got.append,
            list_files=list_files,
            wall_s=self.clock,
            mono_s=self.clock,
        )

    def clock(self) -> float:
        return self.now_s

    def ask(self, request_id: str = "r1", at_step: Optional[int] = None, **more: Any) -> dict[str, Any]:
        return self.checkpoints.ask(SaveRequest(request_id, more.pop("way", "callback"), at_step, 1060.0, **more))

    def step(self) -> None:
        """What the step hook does."""
        self.steps += 1
        if self.checkpoints.waiting:
            self.checkpoints.at_boundary()

    def stage(self, request_id: str = "r1") -> Any:
        return self.checkpoints.look(request_id)["stage"]


class RequestTestCase(unittest.TestCase):
    def assert_refused(self, kind: str, call: Callable[[], object]) -> str:
        with self.assertRaises(RequestRefusedError) as caught:
            call()
        self.assertEqual(caught.exception.kind, kind)
        return str(caught.exception)


class AskingAtAStep(RequestTestCase):
    def test_the_callback_is_called_at_the_very_step_that_was_asked_for(self) -> None:
        rank = Rank()
        reply = rank.ask(at_step=3, reason="leak on rank 1")
        self.assertEqual((reply["stage"], reply["step"]), ("waiting", 0))
        rank.step()
        rank.step()
        self.assertEqual(rank.got, [])
        rank.step()
        self.assertEqual(rank.got, [CheckpointRequest("r1", 3, 1060.0, "leak on rank 1")])
        reply = rank.checkpoints.look("r1")
        self.assertEqual((reply["stage"], reply["step"], reply["fresh_files"]), ("done", 3, []))
        self.assertFalse(reply["withdrawn"])

    def test_without_a_step_it_is_the_next_boundary(self) -> None:
        rank = Rank()
        rank.ask()
        rank.step()
        self.assertEqual([request.step for request in rank.got], [1])

    def test_the_same_id_again_is_a_look_and_never_asks_twice(self) -> None:
        rank = Rank()
        rank.ask()
        rank.step()
        self.assertEqual(rank.ask()["stage"], "done")
        rank.step()
        self.assertEqual(len(rank.got), 1)

    def test_a_step_that_is_over_is_refused_with_the_current_one(self) -> None:
        rank = Rank()
        rank.steps = 7
        self.assertIn("has finished 7 steps", self.assert_refused("passed", lambda: rank.ask(at_step=7)))
        self.assertEqual(rank.ask(at_step=8)["stage"], "waiting")

    def test_a_step_that_ends_while_the_request_is_taken_on_is_refused_and_not_made_up_for_later(self) -> None:
        """The training thread looks at ``waiting`` just before it is written: that rank must not come a step late."""
        rank = Rank()

        class Late(list[Any]):
            def append(self, request: Any) -> None:
                rank.steps = 5
                super().append(request)

        rank.checkpoints.waiting = Late()
        self.assert_refused("passed", lambda: rank.ask(at_step=5))
        rank.step()
        self.assertEqual(rank.got, [])
        self.assert_refused("unknown", lambda: rank.checkpoints.look("r1"))

    def test_a_boundary_that_is_left_out_is_made_up_for_at_the_next(self) -> None:
        """With optimizers by turns some rounds have no boundary; the ranks of a job leave out the same ones."""
        rank = Rank()
        rank.ask(at_step=2)
        rank.steps = 2
        rank.step()
        self.assertEqual([request.step for request in rank.got], [3])

    def test_checkpoint_request_is_refused_while_another_is_pending(self) -> None:
        rank = Rank()
        rank.ask("r1", at_step=9)
        self.assertIn("'r1'", self.assert_refused("busy", lambda: rank.ask("r2")))
        rank.checkpoints.withdraw("r1")
        self.assertEqual(rank.ask("r2")["stage"], "waiting")

    def test_after_the_deadline_nothing_is_called(self) -> None:
        for looked_at in (False, True):
            with self.subTest(looked_at=looked_at):
                rank = Rank()
                rank.ask(at_step=2)
                rank.now_s = 1061.0
                if looked_at:
                    self.assertEqual(rank.stage(), "failed")
                rank.steps = 1
                rank.step()
                self.assertEqual(rank.got, [])
                reply = rank.checkpoints.look("r1")
                self.assertEqual(reply["stage"], "failed")
                self.assertIn("too late", reply["detail"])
        self.assert_refused("late", lambda: rank.ask("r2"))

    def test_a_request_that_was_withdrawn_is_not_called_nor_revived_by_a_late_repetition(self) -> None:
        rank = Rank()
        rank.ask(at_step=2)
        self.assertTrue(rank.checkpoints.withdraw("r1")["withdrawn"])
        reply = rank.ask(at_step=2)
        self.assertEqual((reply["stage"], reply["withdrawn"]), ("failed", True))
        rank.step()
        rank.step()
        self.assertEqual(rank.got, [])

    def test_a_withdrawn_request_may_be_asked_for_a_later_step(self) -> None:
        rank = Rank()
        rank.ask(at_step=2)
        rank.checkpoints.withdraw("r1")
        rank.ask(at_step=3)
        for _ in range(3):
            rank.step()
        self.assertEqual([request.step for request in rank.got], [3])

    def test_withdrawing_is_refused_once_the_job_is_asked_and_harmless_where_it_was_not(self) -> None:
        rank = Rank()
        self.assertEqual(rank.checkpoints.withdraw("r0"), {"ok": True, "withdrawn": False, "step": 0})
        rank.ask()
        rank.step()
        self.assert_refused("begun", lambda: rank.checkpoints.withdraw("r1"))

    def test_checkpoint_remembers_only_the_latest_requests(self) -> None:
        rank = Rank()
        for number in range(MAX_REMEMBERED + 1):
            rank.ask(f"r{number}")
            rank.step()
        self.assert_refused("unknown", lambda: rank.checkpoints.look("r0"))
        self.assertEqual(rank.stage("r1"), "done")

    def test_without_a_callback_it_is_refused_and_if_it_goes_meanwhile_it_fails(self) -> None:
        rank = Rank()
        save, rank.checkpoints.save = rank.checkpoints.save, None
        self.assertIn("on_checkpoint_request", self.assert_refused("unable", rank.ask))
        rank.checkpoints.save = save
        rank.ask()
        rank.checkpoints.save = None
        rank.step()
        self.assertEqual((rank.stage(), rank.got), ("failed", []))

    def test_not_while_a_graph_is_captured(self) -> None:
        rank = Rank()
        rank.ask()
        rank.backend.is_capturing = True
        rank.step()
        self.assertIn("captured", rank.checkpoints.look("r1")["detail"])
        self.assertEqual(rank.got, [])

    def test_an_error_of_the_probes_own_fails_the_request_and_never_reaches_the_step(self) -> None:
        rank = Rank()

        def broken() -> bool:
            raise RuntimeError("no runtime")

        rank.ask()
        rank.backend.capturing = broken  # type: ignore[method-assign] # SAFETY: a runtime that fails
        rank.step()
        self.assertEqual((rank.stage(), rank.got, len(rank.said)), ("failed", [], 1))


class Callbacks(RequestTestCase):
    def rank_with(self, save: Callable[..., object]) -> Rank:
        rank = Rank()
        rank.checkpoints.save = saver(save)
        rank.ask()
        return rank

    def test_an_exception_is_shown_and_reported_and_training_goes_on(self) -> None:
        def fail() -> None:
            raise OSError("disk full")

        rank = self.rank_with(fail)
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            rank.step()
        reply = rank.checkpoints.look("r1")
        self.assertEqual((reply["stage"], reply["step"]), ("failed", 1))
        self.assertIn("disk full", reply["detail"])
        self.assertIn("Traceback", stderr.getvalue())
        self.assertIn("in fail", stderr.getvalue())
        self.assertEqual(rank.said, [])

    def test_leaving_by_exit_goes_through_and_proves_nothing(self) -> None:
        for error in (SystemExit(0), KeyboardInterrupt()):
            with self.subTest(type(error).__name__):

                def leave(error: BaseException = error) -> None:
                    raise error

                rank = self.rank_with(leave)
                with self.assertRaises(type(error)):
                    rank.step()
                reply = rank.checkpoints.look("r1")
                self.assertEqual(reply["stage"], "asked")
                self.assertIn("proves nothing", reply["detail"])

    def test_a_job_that_caught_the_exit_can_be_asked_again_after_the_deadline(self) -> None:
        def leave() -> None:
            raise SystemExit

        rank = self.rank_with(leave)
        with self.assertRaises(SystemExit):
            rank.step()
        rank.now_s = 1061.0
        self.assertEqual(rank.stage(), "failed")

    def test_while_it_runs_the_request_is_asked_and_the_deadline_does_not_end_it(self) -> None:
        stages: list[object] = []

        def slow() -> None:
            rank.now_s = 1061.0
            stages.append(rank.stage())

        rank = self.rank_with(slow)
        rank.step()
        self.assertEqual((stages, rank.stage()), (["asked"], "done"))

    def test_checkpoint_saver_passes_the_request_only_to_functions_that_require_it(self) -> None:
        got: list[object] = []

        class Saving:
            def method(self, request: CheckpointRequest) -> None:
                got.append(request.request_id)

            def plain(self, path: str = "last.pt") -> None:
                got.append(path)

            def asking(self, request: Optional[CheckpointRequest] = None) -> None:
                got.append(request)

        request = CheckpointRequest("r1", 1, 2.0)
        own = Saving()
        for fn in (
            own.method,
            own.plain,
            own.asking,
            lambda *, key="key": got.append(key),
            got.append,
            lambda *all_of_it: got.extend(all_of_it),
        ):
            saver(fn)(request)
        self.assertEqual(got, ["r1", "last.pt", request, "key", request, request])

    def test_checkpoint_saver_refuses_an_unusable_signature_with_type_error(self) -> None:
        def of_two(_one: object, _two: object) -> None: ...
        def of_a_keyword(*, _key: object) -> None: ...

        for fn in ("save", of_two, of_a_keyword):
            with self.subTest(repr(fn)), self.assertRaises(TypeError):
                saver(fn)  # type: ignore[arg-type] # SAFETY: the point of the test


class Agreeing(RequestTestCase):
    """Ranks as threads that meet in one store."""

    def go(self, *ranks: Rank) -> None:
        threads = [threading.Thread(target=rank.step, daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TEST_PATIENCE_S)
            self.assertFalse(thread.is_alive(), "a rank waits for the others without end")

    def test_all_that_came_are_called(self) -> None:
        store = FakeStore()
        ranks = [Rank(store=store) for _ in range(3)]
        for rank in ranks:
            rank.ask(at_step=1, ranks=3)
        self.go(*ranks)
        self.assertEqual([len(rank.got) for rank in ranks], [1, 1, 1])

    def test_none_is_called_if_one_comes_too_late_or_cannot(self) -> None:
        def too_late(rank: Rank) -> None:
            rank.now_s = 1061.0

        def capturing(rank: Rank) -> None:
            rank.backend.is_capturing = True

        for spoil in (too_late, capturing):
            with self.subTest(spoil.__name__):
                store = FakeStore()
                ranks = [Rank(store=store) for _ in range(2)]
                for rank in ranks:
                    rank.ask(at_step=1, ranks=2)
                spoil(ranks[1])
                self.go(*ranks)
                self.assertEqual([rank.got for rank in ranks], [[], []])
                self.assertEqual([rank.stage() for rank in ranks], ["failed", "failed"])
                self.assertIn("none of them was asked", ranks[0].checkpoints.look("r1")["detail"])

    def test_a_rank_that_never_comes_is_waited_for_with_patience_and_then_nobody_saves(self) -> None:
        store, clock = FakeStore(), [0.0]

        def sleep(_duration_s: float) -> None:
            clock[0] += 1.0

        came = all_have_come(store, "k", 2, willing=True, mono_s=lambda: clock[0], sleep=sleep)
        self.assertFalse(came)
        self.assertEqual(clock[0], PATIENCE_S)
        self.assertFalse(all_have_come(store, "k", 2, willing=True, mono_s=lambda: clock[0], sleep=sleep))

    def test_the_last_to_come_is_told_the_same_as_the_others(self) -> None:
        store = FakeStore()
        store.add("k/come", 1)
        self.assertTrue(all_have_come(store, "k", 2, willing=True))
        self.assertEqual(store.compare_set("k/verdict", "", "no"), b"go")

    def test_without_a_process_group_the_step_alone_decides(self) -> None:
        rank = Rank(store=None)
        rank.ask(at_step=1, ranks=2)
        rank.step()
        self.assertEqual(len(rank.got), 1)

    def test_an_interrupted_wait_goes_through_and_leaves_checkpoints_usable(self) -> None:
        rank = Rank(store=FakeStore())

        def interrupted(_key: str, _amount: int, /) -> int:
            raise KeyboardInterrupt

        assert rank.backend.shared is not None
        rank.backend.shared.add = interrupted  # type: ignore[method-assign] # SAFETY: a signal in the wait
        rank.ask(at_step=1, ranks=2)
        with self.assertRaises(KeyboardInterrupt):
            rank.step()
        self.assertEqual((rank.stage(), rank.got), ("failed", []))
        self.assertEqual(rank.ask("r2")["stage"], "waiting")


class WithDeclaredFolder(RequestTestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def test_checkpoint_reply_names_files_that_the_callback_wrote(self) -> None:
        rank = Rank(environ={"TIDEGAUGE_CHECKPOINT_PATH": self.folder})

        def save() -> None:
            with open(os.path.join(self.folder, "step-1.pt"), "wb") as file:
                file.write(bytes(2 * MIB))

        rank.checkpoints.save = saver(save)
        rank.ask()
        rank.step()
        reply = rank.checkpoints.look("r1")
        self.assertEqual((reply["stage"], reply["fresh_files"]), ("done", ["step-1.pt"]))
        self.assertIn("step-1.pt (2.0 MiB) is new", reply["detail"])

    def test_training_goes_on_while_the_file_server_hangs(self) -> None:
        hangs, back = threading.Event(), threading.Event()

        def dead(_paths: object) -> dict[Any, Any]:
            hangs.set()
            back.wait(2 * TEST_PATIENCE_S)
            return {}

        rank = Rank(environ={"TIDEGAUGE_CHECKPOINT_PATH": self.folder}, list_files=dead)
        helper = threading.Thread(target=rank.ask, daemon=True)
        helper.start()
        self.assertTrue(hangs.wait(TEST_PATIENCE_S))
        training = threading.Thread(target=rank.checkpoints.at_boundary, daemon=True)
        training.start()
        training.join(TEST_PATIENCE_S)
        self.assertFalse(training.is_alive())
        back.set()
        helper.join(TEST_PATIENCE_S)

    def test_a_folder_that_cannot_be_read_does_not_matter_to_a_callback(self) -> None:
        path = os.path.join(self.folder, "file", "below")
        with open(os.path.join(self.folder, "file"), "w"):
            pass
        rank = Rank(environ={"TIDEGAUGE_CHECKPOINT_PATH": path})
        self.assertIn("cannot be read", rank.ask()["detail"])
        rank.step()
        self.assertEqual(rank.stage(), "done")


class OverTheProbe(RequestTestCase):
    """The whole way from a command to the step hook."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        self.backend = FakeBackend()
        self.got: list[CheckpointRequest] = []

    def probe(self, level: str = "stats", **environ: str) -> Probe:
        self.said: list[str] = []
        probe = Probe(
            level,
            self.backend,
            environ={"TIDEGAUGE_RUN_DIR": self.run_dir, **environ},
            faults=Faults(say=self.said.append),
            process_facts=facts_of_this_process,
            with_helper=False,
            save=self.got.append,
        )
        self.addCleanup(probe.close)
        probe.arm()
        self.backend.initialise()
        return probe

    def ask(self, probe: Probe, command: str = "checkpoint", **more: Any) -> dict[str, Any]:
        reply = Commands(probe).answer({"command": command, "id": "r1", **more})
        self.assertLess(len(json.dumps(reply)), 8192)
        return reply

    def test_checkpoint_callback_runs_at_a_step_that_makes_no_record(self) -> None:
        """Steps less than 10 ms apart share a record; the step that was asked for is met all the same."""
        probe = self.probe()
        self.backend.hold(0, MIB, MIB)
        optimizer = FakeOptimizer(self.backend)
        self.ask(probe, at_step=50, deadline_unix_s=9e9, way="callback")
        for _ in range(60):
            optimizer.step()
        self.assertEqual([request.step for request in self.got], [50])
        self.assertEqual(self.ask(probe)["stage"], "done")

    def test_checkpoint_callback_runs_at_an_explicit_step(self) -> None:
        probe = self.probe()
        self.ask(probe, at_step=2, deadline_unix_s=9e9, way="callback")
        probe.explicit_step()
        probe.explicit_step()
        self.assertEqual([request.step for request in self.got], [2])

    def test_a_dormant_process_can_be_asked_too(self) -> None:
        probe = self.probe("dormant")
        self.ask(probe, at_step=None, deadline_unix_s=9e9, way="callback")
        FakeOptimizer(self.backend).step()
        self.assertEqual(len(self.got), 1)

    def test_a_look_and_a_withdrawal(self) -> None:
        probe = self.probe()
        self.assertEqual(self.ask(probe)["kind"], "unknown")
        self.ask(probe, at_step=5, deadline_unix_s=9e9, way="callback")
        self.assertEqual(self.ask(probe, "checkpoint_status")["stage"], "waiting")
        self.assertEqual(self.ask(probe, "checkpoint_withdraw")["withdrawn"], True)

    def test_odd_requests_are_refused_and_are_no_error_of_the_probes(self) -> None:
        probe = self.probe()
        good: dict[str, Any] = {"at_step": 5, "deadline_unix_s": 9e9, "way": "callback"}
        for odd in (
            {"way": "mail"}, {"way": None}, {"at_step": -1}, {"at_step": True}, {"at_step": 2.5}, {"id": 7}, {"id": ""},
            {"id": "x" * 300}, {"deadline_unix_s": "soon"}, {"deadline_unix_s": None}, {"deadline_unix_s": 10**400},
            {"deadline_unix_s": float("nan")}, {"ranks": 0}, {"ranks": "2"}, {"ranks": 2, "at_step": None},
        ):  # fmt: skip
            with self.subTest(odd):
                self.assertEqual(self.ask(probe, **{**good, **odd})["kind"], "usage")
        self.assertEqual(probe.faults.count, 0)

    def test_a_refusal_says_the_step_and_why(self) -> None:
        probe = self.probe()
        FakeOptimizer(self.backend).step()
        reply = self.ask(probe, at_step=1, deadline_unix_s=9e9, way="callback")
        self.assertEqual((reply["kind"], reply["step"]), ("passed", 1))

    def test_checkpoint_callback_exit_reaches_the_training_loop(self) -> None:
        probe = self.probe()

        def leave() -> None:
            raise SystemExit(7)

        probe.save_with(saver(leave))
        self.ask(probe, at_step=None, deadline_unix_s=9e9, way="callback")
        with self.assertRaises(SystemExit):
            FakeOptimizer(self.backend).step()

    def identity(self) -> Any:
        (path,) = rings_below(self.run_dir)
        return Ring(path).identity

    def test_the_identity_says_how_it_can_be_asked_and_says_so_again_when_that_changes(self) -> None:
        probe = self.probe(
            TIDEGAUGE_GPU_SHARE="0.25", TIDEGAUGE_CHECKPOINT_SIGNAL="USR1", TIDEGAUGE_CHECKPOINT_PATH="/c"
        )
        self.assertEqual((self.identity().checkpoint, self.identity().gpu_share), ("callback", 0.25))
        probe.save_with(None)
        self.assertEqual(self.identity().checkpoint, "signal")
        self.assertEqual((probe.describe()["checkpoint"], probe.describe()["gpu_share"]), ("signal", 0.25))
        probe.save_with(self.got.append)
        self.assertEqual(self.identity().checkpoint, "callback")

    def test_bad_variables_are_one_line_each(self) -> None:
        self.probe(TIDEGAUGE_GPU_SHARE="half", TIDEGAUGE_CHECKPOINT_SIGNAL="TERM", TIDEGAUGE_CHECKPOINT_PATH="/c")
        self.assertEqual(len(self.said), 2)
        self.assertIn("TIDEGAUGE_GPU_SHARE='half'", self.said[0])
        self.assertIn("TIDEGAUGE_CHECKPOINT_SIGNAL='TERM'", self.said[1])
        self.assertIsNone(self.identity().gpu_share)

    def test_a_signal_without_a_path_is_one_line_and_no_way_to_ask(self) -> None:
        probe = self.probe(TIDEGAUGE_CHECKPOINT_SIGNAL="USR1")
        self.assertIn("without TIDEGAUGE_CHECKPOINT_PATH", self.said[0])
        probe.save_with(None)
        self.assertIsNone(self.identity().checkpoint)

    def test_a_forked_child_keeps_the_callback_and_forgets_the_request(self) -> None:
        probe = self.probe()
        self.ask(probe, at_step=None, deadline_unix_s=9e9, way="callback")
        probe.after_fork()
        FakeOptimizer(self.backend).step()
        self.assertEqual(self.got, [])
        self.assertIsNotNone(probe.checkpoints.save)


class Registering(unittest.TestCase):
    def test_checkpoint_callback_is_remembered_until_a_probe_exists(self) -> None:
        self.addCleanup(entry.on_checkpoint_request, None)
        entry.on_checkpoint_request(lambda: None)
        self.assertIsNotNone(entry._save)
        entry.on_checkpoint_request(None)
        self.assertIsNone(entry._save)


if __name__ == "__main__":
    unittest.main()
