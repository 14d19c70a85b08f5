# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import contextlib
import io
import unittest

from tidegauge.probe.faults import Faults, say


class CountingFaults(unittest.TestCase):
    def setUp(self) -> None:
        self.said: list[str] = []
        self.faults = Faults(say=self.said.append, limit=3)

    def test_fault_message_is_printed_once_and_says_the_job_is_unaffected(self) -> None:
        for _ in range(2):
            self.faults.caught("a test", ValueError("one\ntwo"))
        self.assertEqual(self.faults.count, 2)
        self.assertEqual(
            self.said, ["internal error of the probe in a test (ValueError: one two); the job is not affected"]
        )

    def test_every_one_is_reported_with_the_count(self) -> None:
        counts: list[int] = []
        self.faults.on_fault = counts.append
        for _ in range(2):
            self.faults.caught("a test", ValueError())
        self.assertEqual(counts, [1, 2])

    def test_too_many_switch_off_once(self) -> None:
        offs: list[bool] = []
        self.faults.on_limit = lambda: offs.append(True)
        for _ in range(10):
            self.faults.caught("a test", ValueError())
        self.assertEqual(offs, [True])

    def test_an_error_while_reporting_one_ends_there_and_still_leads_to_the_switch(self) -> None:
        offs: list[bool] = []

        def failing(count: int) -> None:
            raise OSError("no")

        self.faults.on_fault = failing
        self.faults.on_limit = lambda: offs.append(True)
        for _ in range(10):
            self.faults.caught("a test", ValueError())
        self.assertEqual(offs, [True])

    def test_an_error_that_cannot_describe_itself_is_no_problem(self) -> None:
        class OddError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        self.faults.caught("a test", OddError())
        self.assertIn("(OddError)", self.said[0])

    def test_a_line_is_said_once(self) -> None:
        self.faults.say_once("x")
        self.faults.say_once("x")
        self.assertEqual(self.said, ["x"])


class Saying(unittest.TestCase):
    def test_a_closed_or_missing_stderr_is_no_error(self) -> None:
        closed = io.StringIO()
        closed.close()
        for stream in (None, closed):
            with self.subTest(stream), contextlib.redirect_stderr(stream):
                say("anything")


if __name__ == "__main__":
    unittest.main()
