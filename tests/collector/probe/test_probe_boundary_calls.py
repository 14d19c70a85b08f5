# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import threading
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Optional
from unittest import mock

from tidegauge.probe.requests import RequestRefusedError
from tidegauge.probe.step_counting import boundary_calls
from tidegauge.probe.step_counting.boundary_calls import BoundaryCalls
from waiting import PATIENCE_S


class Beginnings(unittest.TestCase):
    def test_a_call_that_has_begun_is_waited_for(self) -> None:
        begun, may_end = threading.Event(), threading.Event()

        class Done(threading.Event):
            def wait(self, timeout: Optional[float] = None) -> bool:
                if timeout is None:
                    may_end.set()
                return super().wait(timeout)

        def call() -> str:
            begun.set()
            may_end.wait(PATIENCE_S)
            return "done"

        def at_next_step(step: Callable[[], None]) -> None:
            threading.Thread(target=step, daemon=True).start()
            begun.wait(PATIENCE_S)

        boundary = BoundaryCalls(at_next_step, lambda: False, wait_s=0.0)
        with mock.patch.object(boundary_calls, "threading", SimpleNamespace(Event=Done, Lock=threading.Lock)):
            self.assertEqual(boundary.call(call, now=False), "done")

    def test_a_call_that_comes_too_late_does_nothing(self) -> None:
        steps: list[Callable[[], None]] = []
        with self.assertRaises(RequestRefusedError) as raised:
            BoundaryCalls(steps.append, lambda: False, wait_s=0.0).call(self.fail, now=False)
        self.assertEqual(raised.exception.kind, "late")
        steps[0]()


if __name__ == "__main__":
    unittest.main()
