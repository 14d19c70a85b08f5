# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from pathlib import Path

import tidegauge
from tidegauge.core.evidence.owners import is_library
from tidegauge.probe.code_roots import LIBRARIES_VARIABLE, OWN_VARIABLE, code_roots, complaint


def project(folder: Path, *, named: str = "pyproject.toml") -> Path:
    folder.mkdir(parents=True)
    (folder / named).touch()
    return folder


def installed(folder: Path, checkout: Path) -> None:
    """A distribution in ``folder`` that is installed editable from ``checkout``."""
    info = folder / "lib-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n")
    about = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(about))


class CodeRootsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_a_variable_that_names_no_folder_is_complained_about(self) -> None:
        missing = str(self.folder / "missing")
        for value, why in ((f"{self.folder}{os.pathsep}{missing}", "is no folder here"), ("libs", "a relative path")):
            line = complaint({LIBRARIES_VARIABLE: value}, LIBRARIES_VARIABLE)
            self.assertIn(why, line or "")
        self.assertIsNone(complaint({LIBRARIES_VARIABLE: str(self.folder)}, LIBRARIES_VARIABLE))
        self.assertIsNone(complaint({}, LIBRARIES_VARIABLE))

    def test_a_wrong_variable_is_told_once_by_the_process_that_reads_it(self) -> None:
        code = "from tidegauge.probe.code_roots import take_roots; take_roots(); take_roots()"
        environ = {**os.environ, OWN_VARIABLE: "own", "PYTHONPATH": str(Path(tidegauge.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        (line,) = done.stderr.splitlines()
        self.assertIn("tidegauge: TIDEGAUGE_CODE_ROOTS: 'own' is a relative path", line)

    def test_a_folder_called_torch_is_the_users_if_the_script_is_in_it(self) -> None:
        script = self.folder / "torch" / "train.py"
        roots = code_roots({"__file__": str(script)}, {}, [])
        self.assertFalse(is_library(str(script), roots))
        self.assertTrue(is_library(os.path.join(sysconfig.get_paths()["purelib"], "torch", "nn.py"), roots))
        self.assertTrue(is_library(json.__file__, roots))

    def test_a_source_checkout_on_the_path_is_a_library(self) -> None:
        checkout = project(self.folder / "libs" / "transformers", named="setup.py")
        for below in ("", "src"):
            entry = str(checkout / below)
            roots = code_roots({"__file__": str(self.folder / "train.py")}, {"PYTHONPATH": entry}, [entry])
            self.assertTrue(is_library(str(checkout / below / "transformers" / "trainer.py"), roots))
            self.assertFalse(is_library(str(self.folder / "train.py"), roots))

    def test_an_editable_checkout_and_a_target_folder_are_libraries(self) -> None:
        checkout, target = self.folder / "checkout", self.folder / "target"
        installed(target, checkout)
        roots = code_roots({"__file__": str(self.folder / "run" / "train.py")}, {}, [str(target)])
        self.assertTrue(is_library(str(checkout / "lib" / "x.py"), roots))
        self.assertTrue(is_library(str(target / "lib" / "x.py"), roots))

    def test_the_checkout_that_the_script_is_in_is_the_users(self) -> None:
        checkout = project(self.folder / "mine")
        installed(self.folder / "target", checkout)
        main = {"__file__": str(checkout / "scripts" / "train.py")}
        roots = code_roots(main, {}, [str(checkout), str(self.folder / "target")])
        self.assertFalse(is_library(str(checkout / "src" / "mine" / "model.py"), roots))

    def test_a_package_is_the_users_from_its_outermost_folder_on(self) -> None:
        site = self.folder / "lib" / "python3.12" / "site-packages"
        main = {"__file__": str(site / "trainer" / "cli" / "__main__.py"), "__package__": "trainer.cli"}
        roots = code_roots(main, {}, [])
        self.assertFalse(is_library(str(site / "trainer" / "model.py"), roots))
        self.assertTrue(is_library(str(site / "lightning" / "trainer.py"), roots))

    def test_a_script_of_an_installed_launcher_is_not_the_users(self) -> None:
        worker = os.path.join(sysconfig.get_paths()["purelib"], "ray", "_private", "workers", "default_worker.py")
        self.assertTrue(is_library(worker, code_roots({"__file__": worker}, {}, [])))

    def test_settings_add_roots(self) -> None:
        more = {
            "TIDEGAUGE_LIBRARY_ROOTS": str(self.folder / "lib"),
            "TIDEGAUGE_CODE_ROOTS": str(self.folder / "lib" / "mine"),
        }
        roots = code_roots({"__file__": str(self.folder / "train.py")}, more, [])
        self.assertTrue(is_library(str(self.folder / "lib" / "x.py"), roots))
        self.assertFalse(is_library(str(self.folder / "lib" / "mine" / "x.py"), roots))

    def test_a_distribution_that_cannot_be_read_is_passed_over(self) -> None:
        installed(self.folder / "target", self.folder / "checkout")
        (self.folder / "target" / "lib-1.0.dist-info" / "direct_url.json").write_text("[")
        roots = code_roots({"__file__": str(self.folder / "run" / "train.py")}, {}, [str(self.folder / "target")])
        self.assertTrue(is_library(str(self.folder / "target" / "lib.py"), roots))

    def test_cells_of_a_notebook_are_the_users_and_the_magic_above_them_is_not(self) -> None:
        roots = code_roots({}, {}, [])
        self.assertTrue(is_library(str(tidegauge.__file__), roots))
        for known in (roots, None):
            self.assertFalse(is_library("<ipython-input-3-1a2b>", known))
            self.assertTrue(is_library("<frozen runpy>", known))
        self.assertFalse(is_library("/tmp/ipykernel_77/123.py", roots))
