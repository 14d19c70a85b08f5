# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import os
import unittest

from tidegauge.probe.run_files.own_user import allowed_peers, in_user_namespace, mapped, outer_uid

FIRST = "         0          0 4294967295\n"
REMAPPED_ROOT = "         0       5001          1\n"
POD = "         0 1966080000      65536\n"
SUBORDINATE = "         0       1000          1\n         1     100000      65536\n"


class WhoWeAreOutside(unittest.TestCase):
    def test_the_map_says(self) -> None:
        for uid_map, inside, outside in (
            (FIRST, 1000, 1000),
            (REMAPPED_ROOT, 0, 5001),
            (POD, 1000, 1966081000),
            (SUBORDINATE, 0, 1000),
            (SUBORDINATE, 33, 100032),
        ):
            with self.subTest(uid_map=uid_map, inside=inside):
                self.assertEqual(mapped(uid_map, inside), outside)

    def test_own_user_is_unchanged_outside_the_map_or_with_an_invalid_map(self) -> None:
        for uid_map in (REMAPPED_ROOT, "", "0 1\n", "a b c\n", "0 -5 1\n"):
            with self.subTest(uid_map=uid_map):
                self.assertEqual(mapped(uid_map, 33), 33)

    def test_in_the_first_user_namespace_names_are_as_they_are(self) -> None:
        if in_user_namespace():
            self.skipTest("these tests run in a user namespace")
        self.assertEqual(outer_uid(1000), 1000)
        self.assertEqual(allowed_peers(), {0, os.geteuid()})


if __name__ == "__main__":
    unittest.main()
