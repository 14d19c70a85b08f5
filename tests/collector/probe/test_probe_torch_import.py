# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
"""Waiting for ``import torch``, in a process whose ``torch`` is an empty file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tidegauge

COLLECTOR = str(Path(tidegauge.__file__).parents[1])
WAITS = "from tidegauge.probe.torch_import import when_torch_is_imported as wait; said = []\n"


class TorchImportTest(unittest.TestCase):
    def said(self, code: str) -> str:
        """What a program prints that may import an empty ``torch``."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "torch.py").write_text("__version__ = '2.13.0'\n", encoding="utf-8")
            path = os.pathsep.join([folder, COLLECTOR])
            done = subprocess.run(
                [sys.executable, "-c", WAITS + code],
                env={**os.environ, "PYTHONPATH": path, "TIDEGAUGE_PROFILE": "off"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=60,
                check=False,
            )
        return done.stdout.decode()

    def test_all_who_wait_are_called_once(self) -> None:
        code = "wait(lambda torch: said.append(1)); wait(lambda torch: said.append(2))\nimport torch\nprint(said)"
        self.assertEqual(self.said(code), "[1, 2]\n")

    def test_who_comes_after_the_import_is_called_at_once(self) -> None:
        code = "import torch\nwait(lambda torch: said.append(torch.__version__)); print(said)"
        self.assertEqual(self.said(code), "['2.13.0']\n")

    def test_a_finder_that_asks_all_others_does_not_go_round_in_circles(self) -> None:
        code = (
            "import importlib.util, sys\n"
            "class Asks:\n"
            "    busy = False\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name != 'torch' or Asks.busy: return None\n"
            "        Asks.busy = True\n"
            "        try: return importlib.util.find_spec(name)\n"
            "        finally: Asks.busy = False\n"
            "wait(lambda torch: said.append(1)); sys.meta_path.insert(0, Asks()); sys.meta_path.append(Asks())\n"
            "import torch\nprint(said)"
        )
        self.assertEqual(self.said(code), "[1]\n")

    def test_two_attaches_before_torch_leave_its_import_alone(self) -> None:
        code = "import tidegauge; tidegauge.attach(); tidegauge.attach('auto')\nimport torch\nprint(torch.__version__)"
        self.assertEqual(self.said(code).splitlines()[-1:], ["2.13.0"])


if __name__ == "__main__":
    unittest.main()
