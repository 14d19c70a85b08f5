"""Modules of a window are loaded one by one, so that no step waits for all of them."""

from __future__ import annotations

import subprocess
import sys
import unittest
from unittest import mock

from tidegauge.probe.evidence.loading import EVIDENCE_MODULES, PROFILE_MODULES, load
from tidegauge.probe.pacing import Pacer

PRINTS_WHAT_EACH_BRINGS = """
import importlib, sys
import tidegauge.probe.entry
modules, last = sys.argv[1].split(","), sys.argv[2].split(",")
def brings(name):
    before = set(sys.modules)
    importlib.import_module(name)
    new = [one for one in sys.modules if one not in before and one.startswith("tidegauge.")]
    return sum(not hasattr(sys.modules[one], "__path__") for one in new)
print(max(map(brings, modules)), sum(map(brings, last)))
"""


def brought(modules: tuple[str, ...], last: tuple[str, ...]) -> str:
    """The most modules of ours that one of ``modules`` brings, and those that ``last`` still bring after them."""
    done = subprocess.run(
        [sys.executable, "-c", PRINTS_WHAT_EACH_BRINGS, ",".join(modules), ",".join(last)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


class LoadingTest(unittest.TestCase):
    def test_each_module_of_a_search_is_loaded_by_itself_and_all_of_them_are(self) -> None:
        last = ("tidegauge.probe.evidence.rank_facts", "tidegauge.probe.holders.search", "tidegauge.probe.code_roots")
        assert brought(EVIDENCE_MODULES, last) == "1 0"

    def test_each_module_of_a_profile_is_loaded_by_itself_and_all_of_them_are(self) -> None:
        assert brought(PROFILE_MODULES, ("tidegauge.probe.evidence.profile_work",)) == "1 0"

    def test_there_is_a_step_of_rest_after_each_that_was_not_there_and_one_that_lacks_is_no_error(self) -> None:
        rests: list[float] = []
        with mock.patch.dict(sys.modules):
            sys.modules.pop("colorsys", None)
            load(("sys", "colorsys", "no_module_of_this_name"), Pacer(sleep=rests.append))
        assert sum(rests) >= 0.02


if __name__ == "__main__":
    unittest.main()
