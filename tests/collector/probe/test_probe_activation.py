# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
"""Activation in real interpreters, with a small package named ``torch`` in place of the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from typing import Optional

import tidegauge
from tidegauge.probe.activation import launch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(tidegauge.__file__)))
PTH = os.path.join(ROOT, "tidegauge", "probe", "activation", "tidegauge-probe.pth")

FAKE_TORCH = """
__version__ = "2.13.0"
import sys, types
class optim:
    class Optimizer: pass
def register_optimizer_step_post_hook(hook): hooks.append(hook)
hooks = []
optim.Optimizer.__module__ = __name__
class cuda:
    queued = []
    memory_stats_as_nested_dict = staticmethod(lambda device: {})
    is_initialized = staticmethod(lambda: False)
    _lazy_call = staticmethod(queued.append)
_C = types.SimpleNamespace(_cuda_memoryStats=lambda device: {})
"""


class ActivationTestCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name
        self.packages = os.path.join(self.scratch, "packages")
        self.write("packages/torch/__init__.py", FAKE_TORCH)

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.scratch, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(textwrap.dedent(text))
        return path

    def python(
        self, code: str, *flags: str, level: Optional[str] = "stats", path: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.defpath, "TIDEGAUGE_RUN_DIR": self.scratch}
        if level is not None:
            environ["TIDEGAUGE_PROFILE"] = level
        if path:
            environ["PYTHONPATH"] = os.pathsep.join(path)
        return subprocess.run(
            [sys.executable, *flags, "-c", textwrap.dedent(code)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def check(self, result: subprocess.CompletedProcess[str], stdout: str = "", stderr: str = "") -> None:
        self.assertEqual((result.stdout.strip(), result.stderr.strip(), result.returncode), (stdout, stderr, 0))


class PthLine(ActivationTestCase):
    """The line as ``site`` runs it."""

    def setUp(self) -> None:
        super().setUp()
        with open(PTH) as file:
            self.write("site/tidegauge-probe.pth", file.read())
        self.start = f"import site, sys; site.addsitedir({os.path.join(self.scratch, 'site')!r})\n"

    def run_code(self, code: str, *, level: Optional[str] = "stats") -> subprocess.CompletedProcess[str]:
        return self.python(self.start + textwrap.dedent(code), level=level, path=(ROOT, self.packages))

    def test_unset_imports_nothing(self) -> None:
        result = self.run_code("print(any(name.startswith('tidegauge') for name in sys.modules))", level=None)
        self.check(result, "False")

    def test_off_changes_nothing(self) -> None:
        result = self.run_code("import torch; print(torch.hooks, torch.cuda.queued, len(sys.meta_path))", level="off")
        plain = self.run_code("print(len(sys.meta_path))", level=None)
        self.check(result, f"[] [] {plain.stdout.strip()}")

    def test_before_torch_is_imported_nothing_heavy_is(self) -> None:
        result = self.run_code(
            "print(sorted(name for name in sys.modules if name.startswith('tidegauge')), 'socket' in sys.modules)"
        )
        self.check(
            result,
            "['tidegauge', 'tidegauge.core', 'tidegauge.core.run_dir_names', 'tidegauge.probe',"
            " 'tidegauge.probe.activation', 'tidegauge.probe.activation.boot', 'tidegauge.probe.job_settings',"
            " 'tidegauge.probe.levels', 'tidegauge.probe.torch_import'] False",
        )

    def test_the_probe_is_armed_by_the_import_of_torch(self) -> None:
        self.check(self.run_code("import torch; print(len(torch.hooks), len(torch.cuda.queued))"), "1 1")

    def test_torch_is_imported_as_ever(self) -> None:
        result = self.run_code(
            """
            import importlib.util, torch
            spec = importlib.util.find_spec('torch')
            print(type(torch.__loader__).__name__, torch.__spec__.name, 'exec_module' in vars(torch.__loader__),
                  any('tidegauge' in type(finder).__module__ for finder in sys.meta_path))
            """
        )
        self.check(result, "SourceFileLoader torch False False")

    def test_looking_for_torch_without_importing_it_does_not_use_the_chance_up(self) -> None:
        result = self.run_code(
            "import importlib.util; importlib.util.find_spec('torch'); import torch; print(len(torch.hooks))"
        )
        self.check(result, "1")

    def test_a_torch_that_fails_to_import_fails_as_ever_and_may_be_tried_again(self) -> None:
        self.write("broken/torch/__init__.py", "raise OSError('libcudart.so not found')")
        result = self.python(
            self.start
            + textwrap.dedent(
                f"""
                try: import torch
                except OSError as error: print(error)
                sys.path.remove({os.path.join(self.scratch, "broken")!r})
                import torch; print(len(torch.hooks))
                """
            ),
            path=(ROOT, os.path.join(self.scratch, "broken"), self.packages),
        )
        self.check(result, "libcudart.so not found\n1")

    def test_a_job_without_torch_is_not_bothered(self) -> None:
        self.check(self.run_code("print('done')"), "done")
        missing = self.python(self.start + "try: import torch\nexcept ModuleNotFoundError as e: print(e)", path=(ROOT,))
        self.check(missing, "No module named 'torch'")

    def test_an_unknown_level_is_one_line_and_behaves_as_off(self) -> None:
        result = self.run_code("import torch; print(torch.hooks)", level="full")
        self.check(
            result,
            "[]",
            "tidegauge: TIDEGAUGE_PROFILE='full' is not a level (off, dormant, stats, auto, trace):"
            " this process is not watched",
        )

    def test_a_torch_that_the_probe_does_not_understand_is_one_line(self) -> None:
        self.write("odd/torch/__init__.py", "__version__ = '2.13.0'")
        result = self.python(
            self.start + "import torch; print('trains')", path=(ROOT, os.path.join(self.scratch, "odd"))
        )
        self.assertEqual((result.stdout, result.returncode), ("trains\n", 0))
        self.assertIn("the job runs without it", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)


class PythonpathFolder(ActivationTestCase):
    """The folder, in an interpreter that has no Tidegauge (``-S`` keeps an installed one out; ``site`` runs later)."""

    def run_code(self, code: str, *more_path: str, level: Optional[str] = "stats") -> subprocess.CompletedProcess[str]:
        bare = "import site, sys; site.execsitecustomize(); site.execusercustomize()\n"
        path = (launch.PYTHONPATH_FOLDER, self.packages, *more_path)
        return self.python(bare + textwrap.dedent(code), "-S", level=level, path=path)

    def test_the_probe_is_armed_without_tidegauge_installed(self) -> None:
        self.check(self.run_code("import torch; print(len(torch.hooks))"), "1")

    def test_activation_makes_only_tidegauge_importable_not_its_neighbours(self) -> None:
        result = self.run_code(
            f"import tidegauge; print(any(p.startswith({ROOT!r} + '/tide') or p == {ROOT!r}"
            " for p in sys.path if not p.endswith('pythonpath')), tidegauge.__version__)"
        )
        self.check(result, f"False {tidegauge.__version__}")

    def test_an_installed_tidegauge_is_preferred(self) -> None:
        self.write("theirs/tidegauge/__init__.py", "__version__ = 'theirs'")
        result = self.run_code("import tidegauge; print(tidegauge.__version__)", os.path.join(self.scratch, "theirs"))
        self.check(result, "theirs")

    def test_the_sites_own_sitecustomize_runs_too_with_and_without_a_level(self) -> None:
        self.write("theirs/sitecustomize.py", "print('the site,', __name__)")
        for level in ("stats", "off", None):
            with self.subTest(level):
                result = self.run_code(
                    "print(sys.modules['sitecustomize'].__file__.startswith(%r))" % self.scratch,  # noqa: UP031
                    os.path.join(self.scratch, "theirs"),
                    level=level,
                )
                self.check(result, "the site, sitecustomize\nTrue")

    def test_usercustomize_runs_too(self) -> None:
        self.write("theirs/usercustomize.py", "print('the user')")
        self.check(self.run_code("", os.path.join(self.scratch, "theirs")), "the user")

    def test_an_error_in_the_sites_own_is_reported_by_python_as_ever(self) -> None:
        self.write("theirs/sitecustomize.py", "raise ValueError('theirs')")
        result = self.run_code("import torch; print(len(torch.hooks))", os.path.join(self.scratch, "theirs"))
        self.assertEqual((result.stdout, result.returncode), ("1\n", 0))
        self.assertIn("ValueError: theirs", result.stderr)

    def test_unset_imports_nothing(self) -> None:
        code = "print(any(name.startswith('tidegauge') for name in sys.modules))"
        self.check(self.run_code(code, level=None), "False")

    def test_both_ways_together_boot_once(self) -> None:
        with open(PTH) as file:
            self.write("site/tidegauge-probe.pth", file.read())
        site_folder = os.path.join(self.scratch, "site")
        result = self.run_code(
            f"""
            site.addsitedir({site_folder!r})
            import torch
            print(len(torch.hooks), len(torch.cuda.queued))
            """
        )
        self.check(result, "1 1")


class InCode(ActivationTestCase):
    def run_code(self, code: str, *, level: Optional[str] = None) -> subprocess.CompletedProcess[str]:
        return self.python(code, level=level, path=(ROOT, self.packages))

    def test_attach_before_and_after_the_import_of_torch(self) -> None:
        for code in (
            "import tidegauge; tidegauge.attach(); import torch",
            "import torch, tidegauge; tidegauge.attach(level='auto')",
            "import torch, tidegauge; tidegauge.attach(); tidegauge.attach()",
        ):
            with self.subTest(code):
                self.check(self.run_code(f"{code}; print(len(torch.hooks))"), "1")

    def test_off_in_the_environment_wins(self) -> None:
        result = self.run_code("import torch, tidegauge; tidegauge.attach(); print(torch.hooks)", level="off")
        self.check(result, "[]")

    def test_an_unknown_level_is_an_error_that_lists_the_levels(self) -> None:
        result = self.run_code(
            """
            import tidegauge
            try: tidegauge.attach(level='full')
            except ValueError as error: print(error)
            """
        )
        self.check(result, "'full' is not a level: choose one of off, dormant, stats, auto, trace")

    def test_step_without_a_probe_does_nothing(self) -> None:
        self.check(self.run_code("import tidegauge, sys; tidegauge.step(); print('torch' in sys.modules)"), "False")

    def test_the_public_names(self) -> None:
        result = self.run_code(
            """
            import tidegauge
            print(*tidegauge.__all__, *(name for name in tidegauge.__all__ if not hasattr(tidegauge, name)))
            """
        )
        self.check(result, "CheckpointRequest __version__ attach estimate on_checkpoint_request profile step watch")

    def test_a_checkpoint_callback_may_be_registered_whenever_and_is_given_back(self) -> None:
        for code in (
            "tidegauge.on_checkpoint_request(save); tidegauge.attach(); import torch",
            "import torch; tidegauge.attach(); tidegauge.on_checkpoint_request(save)",
        ):
            with self.subTest(code):
                result = self.run_code(
                    f"""
                    import tidegauge
                    @tidegauge.on_checkpoint_request
                    def replaced(): pass
                    def save(request: tidegauge.CheckpointRequest): pass
                    {code}
                    from tidegauge.probe import entry
                    print(entry._probe.checkpoints.save is save, replaced.__name__)
                    tidegauge.on_checkpoint_request(None)
                    print(entry._probe.checkpoints.save)
                    """
                )
                self.check(result, "True replaced\nNone")

    def test_a_callback_in_a_process_that_is_not_watched_does_nothing(self) -> None:
        result = self.run_code(
            """
            import tidegauge, sys
            tidegauge.on_checkpoint_request(print)
            print('torch' in sys.modules, len(sys.meta_path))
            """
        )
        plain = self.run_code("import sys; print(len(sys.meta_path))")
        self.check(result, f"False {plain.stdout.strip()}")

    def test_on_checkpoint_request_refuses_a_value_that_is_not_callable(self) -> None:
        result = self.run_code(
            """
            import tidegauge
            try: tidegauge.on_checkpoint_request('save')
            except TypeError as error: print(error)
            """
        )
        self.check(result, "expected a function that saves the job's state, not str")

    def test_importing_tidegauge_imports_nothing_else(self) -> None:
        code = "import sys; before = set(sys.modules); import tidegauge; print(sorted(set(sys.modules) - before))"
        self.check(self.run_code(code), "['__future__', 'tidegauge']")

    def test_a_torch_that_is_too_old_is_said(self) -> None:
        result = self.run_code(
            "import torch, tidegauge; del torch.register_optimizer_step_post_hook; tidegauge.attach()"
        )
        line = "tidegauge: torch 2.13.0 is too old to be watched (2.2 or later is needed); the job runs unwatched"
        self.check(result, "", line)

    def test_a_torch_without_devices_is_said_at_the_first_step_only(self) -> None:
        result = self.run_code(
            """
            import torch, tidegauge
            del torch._C._cuda_memoryStats
            tidegauge.attach()
            for _ in range(3): torch.hooks[0](None, (), {})
            """
        )
        line = "tidegauge: this torch (2.13.0) has no device whose memory can be watched; the job runs unwatched"
        self.check(result, "", line)


class LaunchEnvironment(unittest.TestCase):
    def test_the_level_alone_when_the_environment_has_tidegauge(self) -> None:
        self.assertEqual(launch.activation_environ("stats", {"PYTHONPATH": "/a"}), {"TIDEGAUGE_PROFILE": "stats"})

    def test_the_folder_comes_before_what_is_there(self) -> None:
        for before, after in (
            (None, ""),
            ("", ""),
            ("/a:/b", ":/a:/b"),
            (":/a::", ":/a"),
            (f"/a:{launch.PYTHONPATH_FOLDER}", ":/a"),
        ):
            with self.subTest(before):
                environ = {} if before is None else {"PYTHONPATH": before}
                added = launch.activation_environ("auto", environ, pythonpath=True)
                self.assertEqual(added["PYTHONPATH"], launch.PYTHONPATH_FOLDER + after)

    def test_an_unknown_level_is_refused_with_the_known_ones(self) -> None:
        with self.assertRaises(ValueError) as caught:
            launch.activation_environ("full", {})
        self.assertIn("off, dormant, stats, auto, trace", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
