# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
"""Asking by signal, with real signals to this process, which must live on where nothing handles them."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import tempfile
import unittest
from types import FrameType
from typing import Any, Optional

from probe_fakes import FakeBackend, FakeOptimizer, facts_of_this_process
from tidegauge.core.jobs.checkpoint_signal import parse_signal
from tidegauge.probe.checkpoint.callbacks import means_of
from tidegauge.probe.checkpoint.files import SETTLED_S
from tidegauge.probe.checkpoint.signal import signal_name, why_not_sent
from tidegauge.probe.faults import Faults
from tidegauge.probe.requests import RequestRefusedError, parse_ask
from tidegauge.probe.session.commands import Commands
from tidegauge.probe.session.probe import Probe


class Words(unittest.TestCase):
    def test_allowed_signals_by_name_and_number(self) -> None:
        table = {
            "USR1": signal.SIGUSR1,
            "sigusr2": signal.SIGUSR2,
            " 10 ": signal.SIGUSR1,
            "RTMIN": signal.SIGRTMIN,
            "SIGRTMIN+3": signal.SIGRTMIN + 3,
            "RTMAX-1": signal.SIGRTMAX - 1,
        }
        for text, number in table.items():
            self.assertEqual(parse_signal(text), number, text)

    def test_checkpoint_signal_refuses_signals_that_end_stop_or_arrive_unasked(self) -> None:
        for text in ("KILL", "SIGTERM", "INT", "HUP", "STOP", "ABRT", "WINCH", "9", "15", "0", "-10", "64000", "",
                     "RTMIN-1", "RTMAX+1", "USR3", "١٠", "no"):  # fmt: skip
            self.assertIsNone(parse_signal(text), text)

    def test_names_for_people(self) -> None:
        names = [signal_name(number) for number in (signal.SIGUSR1, signal.SIGRTMIN, signal.SIGRTMIN + 2)]
        self.assertEqual(names, ["SIGUSR1", "SIGRTMIN", "SIGRTMIN+2"])


class SignalTestCase(unittest.TestCase):
    def handle(self, handler: Any, number: int = signal.SIGUSR1) -> None:
        self.addCleanup(signal.signal, number, signal.signal(number, handler))


class Handled(SignalTestCase):
    def test_a_handler_in_python(self) -> None:
        self.handle(lambda *_: None)
        self.assertIsNone(why_not_sent(signal.SIGUSR1))

    def test_none_or_one_that_ignores(self) -> None:
        for action in (signal.SIG_DFL, signal.SIG_IGN):
            self.handle(action)
            self.assertIn("has no handler for SIGUSR1", why_not_sent(signal.SIGUSR1) or "")

    def test_a_handler_in_c_of_which_python_knows_nothing(self) -> None:
        self.handle(signal.SIG_DFL, signal.SIGUSR2)
        with open(os.devnull, "w") as nowhere:
            faulthandler.register(signal.SIGUSR2, file=nowhere)
            try:
                self.assertEqual(signal.getsignal(signal.SIGUSR2), signal.SIG_DFL)
                self.assertIsNone(why_not_sent(signal.SIGUSR2))
            finally:
                faulthandler.unregister(signal.SIGUSR2)

    def test_a_handler_that_was_taken_away_in_c(self) -> None:
        self.handle(lambda *_: None)
        ctypes.CDLL(None).signal(int(signal.SIGUSR1), None)  # SIG_DFL
        self.assertTrue(callable(signal.getsignal(signal.SIGUSR1)))
        self.assertIsNotNone(why_not_sent(signal.SIGUSR1))


class Asking(SignalTestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = os.path.join(scratch.name, "checkpoints")
        self.backend = FakeBackend()
        self.environ = {
            "TIDEGAUGE_RUN_DIR": scratch.name,
            "TIDEGAUGE_CHECKPOINT_SIGNAL": "USR1",
            "TIDEGAUGE_CHECKPOINT_PATH": self.folder,
        }
        self.faults = Faults(say=lambda _line: None)
        self.guest = self.probe()
        self.now_s = 0.0
        self.guest.checkpoints._mono_s = lambda: self.now_s
        self.deadline_unix_s = 9e9

    def probe(self) -> Probe:
        probe = Probe(
            "stats",
            self.backend,
            environ=self.environ,
            faults=self.faults,
            process_facts=facts_of_this_process,
            with_helper=False,
        )
        self.addCleanup(probe.close)
        probe.arm()
        self.backend.initialise()
        return probe

    def ask(self, request_id: str = "r1", at_step: Optional[int] = None) -> dict[str, Any]:
        request = {"command": "checkpoint", "id": request_id, "at_step": at_step, "way": "signal"}
        return Commands(self.guest).answer({**request, "deadline_unix_s": self.deadline_unix_s})

    def look(self, after_s: float = SETTLED_S) -> dict[str, Any]:
        self.now_s += after_s
        return Commands(self.guest).answer({"command": "checkpoint_status", "id": "r1"})

    def save(self, _number: int, _frame: Optional[FrameType]) -> None:
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, f"step-{self.guest.steps.steps}.pt"), "w") as file:
            file.write("state")

    def step(self) -> None:
        FakeOptimizer(self.backend, [self.backend]).step()

    def test_the_handler_runs_at_the_step_and_a_fresh_file_that_settled_is_the_proof(self) -> None:
        self.handle(self.save)
        self.assertEqual(self.ask(at_step=2)["stage"], "waiting")
        self.step()
        self.assertFalse(os.path.exists(self.folder))
        self.step()
        self.assertEqual(os.listdir(self.folder), ["step-2.pt"])
        reply = self.look()
        self.assertEqual((reply["stage"], reply["step"], reply["fresh_files"]), ("asked", 2, ["step-2.pt"]))
        self.assertIn("SIGUSR1 was sent at the end of step 2; step-2.pt", reply["detail"])
        reply = self.look()
        self.assertEqual((reply["stage"], reply["fresh_files"]), ("done", ["step-2.pt"]))
        self.assertEqual(self.ask()["stage"], "done")

    def test_a_checkpoint_from_before_is_no_proof(self) -> None:
        self.save(0, None)
        self.handle(lambda *_: None)
        self.ask()
        self.step()
        self.look()
        self.assertEqual(self.look()["stage"], "asked")

    def test_without_a_handler_it_is_refused_and_the_process_lives(self) -> None:
        self.handle(signal.SIG_DFL)
        reply = self.ask()
        self.assertEqual(reply["kind"], "unable")
        self.assertIn("has no handler for SIGUSR1", reply["error"])
        self.step()

    def test_a_handler_that_goes_before_the_step_comes_fails_the_request_and_the_process_lives(self) -> None:
        self.handle(self.save)
        self.ask()
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        self.step()
        self.assertEqual(self.look()["stage"], "failed")

    def test_checkpoint_signal_handler_error_reaches_the_training_loop(self) -> None:
        class PreemptedError(Exception):
            pass

        def handler(_number: int, _frame: Optional[FrameType]) -> None:
            raise PreemptedError

        self.handle(handler)
        self.ask()
        with self.assertRaises(PreemptedError):
            self.step()
        self.assertEqual((self.faults.count, self.look()["stage"]), (0, "asked"))
        self.ask("r2")
        self.assertEqual(self.ask("r2")["kind"], "busy")

    def test_without_proof_by_the_deadline_it_has_failed_and_the_next_may_be_asked(self) -> None:
        self.handle(lambda *_: None)
        self.ask()
        self.step()
        self.guest.checkpoints._mono_s = lambda: 9.1e9
        reply = self.look()
        self.assertEqual(reply["stage"], "failed")
        self.assertIn("no new file yet; the deadline has passed", reply["detail"])
        self.deadline_unix_s = 9.2e9
        self.assertEqual(self.ask("r2")["stage"], "waiting")

    def test_without_the_variables_or_with_bad_ones_it_is_refused(self) -> None:
        self.handle(self.save)
        for change, words in (
            ({"TIDEGAUGE_CHECKPOINT_SIGNAL": ""}, "TIDEGAUGE_CHECKPOINT_SIGNAL is not set"),
            ({"TIDEGAUGE_CHECKPOINT_SIGNAL": "TERM"}, "is not USR1, USR2"),
            ({"TIDEGAUGE_CHECKPOINT_PATH": ""}, "without TIDEGAUGE_CHECKPOINT_PATH"),
            ({"TIDEGAUGE_CHECKPOINT_PATH": f"{__file__}/x"}, "could not be verified"),
        ):
            with self.subTest(change):
                kept = dict(self.environ)
                self.environ.update(change)
                reply = self.ask()
                self.environ.update(kept)
                self.assertEqual(reply["kind"], "unable")
                self.assertIn(words, reply["error"])

    def test_variables_that_a_job_sets_while_it_runs_count(self) -> None:
        self.handle(self.save)
        del self.environ["TIDEGAUGE_CHECKPOINT_PATH"]
        self.assertEqual(self.ask()["kind"], "unable")
        self.environ["TIDEGAUGE_CHECKPOINT_PATH"] = self.folder
        self.assertEqual(self.ask()["stage"], "waiting")


class NothingToSave(unittest.TestCase):
    """``TIDEGAUGE_CHECKPOINT=none``."""

    def test_a_rank_that_says_so_has_nothing_to_save(self) -> None:
        self.assertEqual(means_of({"TIDEGAUGE_CHECKPOINT": " None "}, None).way, "none")
        self.assertIsNone(means_of({}, None).way)

    def test_a_callback_or_a_signal_counts_before_it(self) -> None:
        said = {"TIDEGAUGE_CHECKPOINT": "none"}
        self.assertEqual(means_of(said, lambda _request: None).way, "callback")
        signal_too = {**said, "TIDEGAUGE_CHECKPOINT_SIGNAL": "USR1", "TIDEGAUGE_CHECKPOINT_PATH": "/scratch"}
        self.assertEqual(means_of(signal_too, None).way, "signal")

    def test_another_word_is_told_and_says_nothing(self) -> None:
        means = means_of({"TIDEGAUGE_CHECKPOINT": "never"}, None)
        self.assertIsNone(means.way)
        self.assertIn("TIDEGAUGE_CHECKPOINT='never'", means.complaint() or "")

    def test_checkpoint_request_for_a_rank_with_nothing_to_save_is_refused(self) -> None:
        with self.assertRaises(RequestRefusedError):
            parse_ask({"id": "d", "at_step": None, "deadline_unix_s": 1, "way": "none"})


if __name__ == "__main__":
    unittest.main()
