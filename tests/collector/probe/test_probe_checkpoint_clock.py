# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
"""A request to save from a head whose clock is another than this host's, and a clock that is set while it waits."""

from __future__ import annotations

import unittest
from typing import Any, Optional

from probe_fakes import FakeBackend
from tidegauge.probe.checkpoint.callbacks import Checkpoints
from tidegauge.probe.faults import Faults
from tidegauge.probe.requests import CheckpointRequest, RequestRefusedError, parse_ask

HOUR_S = 3600.0
HEAD_S = 1.8e9


class Rank:
    """A rank on a host whose clock is off the head's by ``skew_s``."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self.wall_s = HEAD_S + skew_s
        self.mono_s = 50.0
        self.steps = 0
        self.got: list[CheckpointRequest] = []
        self.checkpoints = Checkpoints(
            {},
            backend=FakeBackend(),
            steps=lambda: self.steps,
            faults=Faults(say=lambda _: None),
            save=self.got.append,
            wall_s=lambda: self.wall_s,
            mono_s=lambda: self.mono_s,
        )

    def ask(self, *, deadline_unix_s: float = HEAD_S + 60, within_s: Optional[float] = 60.0) -> dict[str, Any]:
        request = {"id": "r1", "way": "callback", "at_step": 1, "deadline_unix_s": deadline_unix_s}
        return self.checkpoints.ask(parse_ask({**request, **({} if within_s is None else {"within_s": within_s})}))

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.mono_s += seconds

    def step(self) -> None:
        self.steps += 1
        if self.checkpoints.waiting:
            self.checkpoints.at_boundary()

    def stage(self) -> Any:
        return self.checkpoints.look("r1")["stage"]


class ClocksThatDiffer(unittest.TestCase):
    def test_a_host_whose_clock_is_wrong_saves_all_the_same(self) -> None:
        for skew_s in (-HOUR_S, 0.0, HOUR_S):
            with self.subTest(skew_s=skew_s):
                rank = Rank(skew_s)
                self.assertEqual(rank.ask()["stage"], "waiting")
                rank.pass_s(59)
                rank.step()
                self.assertEqual(rank.stage(), "done")

    def test_the_callback_is_told_the_deadline_by_its_own_hosts_clock(self) -> None:
        rank = Rank(HOUR_S)
        rank.ask()
        rank.pass_s(10)
        rank.step()
        self.assertEqual(rank.got, [CheckpointRequest("r1", 1, HEAD_S + HOUR_S + 60, None)])

    def test_checkpoint_after_its_deadline_is_not_saved_at_any_clock_skew(self) -> None:
        for skew_s in (-HOUR_S, 0.0, HOUR_S):
            with self.subTest(skew_s=skew_s):
                rank = Rank(skew_s)
                rank.ask()
                rank.pass_s(61)
                rank.step()
                self.assertEqual((rank.stage(), rank.got), ("failed", []))

    def test_a_clock_that_is_set_meanwhile_changes_nothing(self) -> None:
        for jump_s in (-HOUR_S, HOUR_S):
            with self.subTest(jump_s=jump_s):
                rank = Rank()
                rank.ask()
                rank.wall_s += jump_s
                rank.pass_s(59)
                self.assertEqual(rank.stage(), "waiting")
                rank.pass_s(2)
                self.assertEqual(rank.stage(), "failed")

    def test_without_a_time_of_its_own_the_deadline_counts(self) -> None:
        rank = Rank()
        rank.ask(within_s=None)
        rank.pass_s(61)
        self.assertEqual(rank.stage(), "failed")
        with self.assertRaises(RequestRefusedError) as caught:
            Rank(HOUR_S).ask(within_s=None)
        self.assertEqual(caught.exception.kind, "late")

    def test_a_time_that_is_none_is_refused(self) -> None:
        for bad in (-1, "soon", True, float("nan"), float("inf"), 10**400):
            with self.subTest(bad=bad), self.assertRaises(RequestRefusedError) as caught:
                Rank().ask(within_s=bad)  # type: ignore[arg-type]  # what a hostile peer might send
            self.assertEqual(caught.exception.kind, "usage")


if __name__ == "__main__":
    unittest.main()
