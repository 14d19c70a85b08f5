# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
"""Settings for this attempt of a job: from the service's file into the environment, before torch looks."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Mapping
from typing import Optional

import tidegauge
from open_files import open_below
from tidegauge.core.jobs.settings import JobSettings, encode
from tidegauge.probe.job_settings import TOLD_VARIABLE, take_settings, tell

UID = os.getuid()
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(tidegauge.__file__)))
CONF = "PYTORCH_CUDA_ALLOC_CONF"
FRACTION = "TIDEGAUGE_MEMORY_FRACTION"
LINE = "attempt 1 of job 4711 runs with expandable_segments:True, TIDEGAUGE_MEMORY_FRACTION=0.5 (cluster policy)"


def wanted(job_id: str = "4711", *, uid: int = UID, from_restart: int = 1) -> JobSettings:
    return JobSettings(
        job_id, uid, from_restart, environ={FRACTION: "0.5"}, alloc_conf={"expandable_segments": "True"}
    )  # fmt: skip


class SettingsTestCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        self.folder = os.path.join(self.run_dir, "jobs")
        os.mkdir(self.folder, 0o755)
        self.environ = {"TIDEGAUGE_RUN_DIR": self.run_dir, "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}

    def path(self, name: str = "4711.json") -> str:
        return os.path.join(self.folder, name)

    def lay(self, settings: JobSettings, *, name: str = "4711.json") -> str:
        with open(self.path(name), "wb") as file:
            file.write(encode(settings))
        os.chmod(self.path(name), 0o644)
        return self.path(name)

    def take(self, **changes: Optional[str]) -> tuple[Optional[str], dict[str, str]]:
        """The line, and what became of the environment."""
        environ = {name: value for name, value in {**self.environ, **changes}.items() if value is not None}
        before = dict(environ)
        news = take_settings(environ)
        return news, {name: value for name, value in environ.items() if before.get(name) != value}

    def check_ignored(self, why: str, **changes: Optional[str]) -> None:
        news, changed = self.take(**changes)
        self.assertEqual(changed, {})
        self.assertIn(f"{self.path()} is ignored: ", str(news))
        self.assertIn(why, str(news))


class Taking(SettingsTestCase):
    def test_the_attempt_that_they_are_for_gets_them(self) -> None:
        self.lay(wanted())
        self.assertEqual(self.take(), (LINE, {CONF: "expandable_segments:True", FRACTION: "0.5"}))

    def test_later_attempts_get_them_too(self) -> None:
        self.lay(wanted())
        news, changed = self.take(SLURM_RESTART_COUNT="12")
        self.assertEqual(len(changed), 2)
        self.assertIn("attempt 12", str(news))

    def test_earlier_attempts_run_as_they_were_submitted(self) -> None:
        self.lay(wanted(from_restart=2))
        for count in (None, "0", "1", "", "-3", "two", "9" * 30):
            with self.subTest(count):
                self.assertEqual(self.take(SLURM_RESTART_COUNT=count), (None, {}))

    def test_without_a_file_nothing_happens(self) -> None:
        self.assertEqual(self.take(), (None, {}))
        self.assertEqual(self.take(SLURM_JOB_ID=None), (None, {}))
        os.rmdir(self.folder)
        self.assertEqual(self.take(), (None, {}))

    def test_a_second_process_of_the_job_changes_nothing_and_has_the_same_to_tell(self) -> None:
        self.lay(wanted())
        _, changed = self.take()
        self.assertEqual(self.take(**changed), (LINE, {}))

    def test_the_owners_settings_stay_and_the_smaller_fraction_counts(self) -> None:
        self.lay(wanted())
        news, changed = self.take(**{CONF: "max_split_size_mb:64", FRACTION: "0.25"})
        self.assertEqual(changed, {CONF: "max_split_size_mb:64,expandable_segments:True"})
        self.assertEqual(news, "attempt 1 of job 4711 runs with expandable_segments:True (cluster policy)")

    def test_a_fraction_alone_that_changes_nothing_is_not_told(self) -> None:
        self.lay(JobSettings("4711", UID, environ={FRACTION: "0.5"}))
        self.assertEqual(self.take(**{FRACTION: "0.4"}), (None, {}))

    def test_a_job_that_tidegauge_named_has_its_own_count(self) -> None:
        self.lay(wanted("mine"), name="mine.json")
        changes = {"TIDEGAUGE_JOB_ID": "mine", "SLURM_RESTART_COUNT": None}
        self.assertEqual(self.take(**changes, TIDEGAUGE_ATTEMPT="0"), (None, {}))
        self.assertEqual(len(self.take(**changes, TIDEGAUGE_ATTEMPT="1")[1]), 2)

    def test_under_another_name_the_job_is_still_slurms_and_counted_by_slurm(self) -> None:
        self.lay(wanted())
        self.assertEqual(len(self.take(TIDEGAUGE_JOB_ID="mine", TIDEGAUGE_ATTEMPT="0")[1]), 2)

    def test_once_torch_is_imported_it_is_too_late(self) -> None:
        self.lay(wanted())
        sys.modules["torch"] = sys
        self.addCleanup(sys.modules.pop, "torch")
        self.assertEqual(self.take(), (None, {}))


class Refusing(SettingsTestCase):
    def test_settings_of_another_job_or_user(self) -> None:
        self.lay(wanted("4712"))
        self.check_ignored("it is for job 4712")
        self.lay(wanted(uid=UID + 1))
        self.check_ignored(f"it is for job 4711 of uid {UID + 1}")

    def test_job_settings_ignore_a_malformed_file(self) -> None:
        for content in (b"", b"{", b"[]", b"\xff", b"x" * 100_000, b"[" * 5000):
            with self.subTest(content[:9]):
                with open(self.path(), "wb") as file:
                    file.write(content)
                os.chmod(self.path(), 0o644)
                self.check_ignored("")

    def test_job_settings_ignore_a_file_that_others_can_write(self) -> None:
        self.lay(wanted())
        for path, mode in ((self.path(), 0o664), (self.path(), 0o646), (self.folder, 0o775), (self.folder, 0o1777)):
            with self.subTest(f"{path} {mode:o}"):
                right = os.stat(path).st_mode & 0o7777
                os.chmod(path, mode)
                self.check_ignored("writable by others")
                os.chmod(path, right)
        self.assertEqual(self.take()[0], LINE)

    def test_links_and_what_is_no_file(self) -> None:
        elsewhere = self.lay(wanted(), name="elsewhere")
        os.symlink(elsewhere, self.path())
        self.check_ignored("cannot be opened")
        os.unlink(self.path())
        os.link(elsewhere, self.path())
        self.check_ignored("not a regular file with one hard link")
        os.unlink(self.path())
        os.mkfifo(self.path(), 0o644)
        self.check_ignored("not a regular file with one hard link")
        os.unlink(self.path())
        os.mkdir(self.path(), 0o755)
        self.check_ignored("not a regular file with one hard link")

    def test_a_folder_that_is_a_link(self) -> None:
        self.lay(wanted())
        os.rename(self.folder, self.folder + "-elsewhere")
        os.symlink(self.folder + "-elsewhere", self.folder)
        self.check_ignored("cannot be opened")

    @unittest.skipUnless(UID == 0, "only root can give a file away")
    def test_a_file_or_a_folder_of_somebody_else(self) -> None:
        os.chown(self.lay(wanted()), 12345, -1)
        self.check_ignored("it belongs to uid 12345, not to root or you")
        os.chown(self.lay(wanted()), 0, -1)
        os.chown(self.folder, 12345, -1)
        self.check_ignored("its folder belongs to uid 12345, not to root or you")

    @unittest.skipUnless(UID == 0, "only root can become another user")
    def test_a_user_takes_what_root_or_the_user_laid_down_and_nothing_of_a_third(self) -> None:
        os.chmod(self.run_dir, 0o755)
        for owner, taken in ((0, True), (5001, True), (5002, False)):
            with self.subTest(owner):
                os.chown(self.lay(wanted(uid=5001)), owner, -1)
                os.chown(self.folder, owner, -1)
                code = (
                    "import os, sys; sys.path.insert(0, sys.argv[1]); import tidegauge.core.jobs.settings;"
                    "from tidegauge.probe.job_settings import take_settings;"
                    "take_settings(dict(os.environ));"  # imports all that it needs: the user may not enter the checkout
                    "os.setgid(5001); os.setuid(5001); environ = dict(os.environ); take_settings(environ);"
                    f"print(environ.get({FRACTION!r}))"
                )
                answer = subprocess.run(
                    [sys.executable, "-c", code, ROOT], env=self.environ, capture_output=True, text=True, check=True
                )
                self.assertEqual(answer.stdout.strip(), "0.5" if taken else "None")

    def test_a_name_that_leads_elsewhere_is_no_job(self) -> None:
        self.lay(wanted())
        news, changed = self.take(SLURM_JOB_ID="../jobs/4711")
        self.assertEqual(changed, {})
        self.assertIn("not a valid job id", str(news))

    def test_job_settings_message_is_one_bounded_line(self) -> None:
        news, _ = self.take(SLURM_JOB_ID="x", TIDEGAUGE_RUN_DIR=self.folder)
        self.assertIsNone(news)
        os.mkdir(os.path.join(self.folder, "jobs"))
        with open(os.path.join(self.folder, "jobs", "a\x1b\nb.json"), "w"):
            news, _ = self.take(SLURM_JOB_ID="a\x1b\nb", TIDEGAUGE_RUN_DIR=self.folder)
        self.assertIn("a??b.json is ignored", str(news))

    def test_no_descriptor_is_left_open(self) -> None:
        self.lay(wanted(uid=UID + 1))
        self.take()
        os.chmod(self.folder, 0o777)
        self.take()
        self.assertEqual(open_below(self.folder), [])


class Telling(unittest.TestCase):
    def said(self, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        after = dict(environ)
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            tell("the news", after)
        return stderr.getvalue(), after

    def test_job_settings_are_announced_by_one_process_per_node(self) -> None:
        torchrun = {"SLURM_PROCID": "3", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
        said, after = self.said(torchrun)
        self.assertEqual(said, "tidegauge: the news\n")
        self.assertEqual(self.said({**after, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"})[0], "")

    def test_local_ranks_above_0_do_not(self) -> None:
        self.assertEqual(self.said({"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"})[0], "")

    def test_other_news_are_told_again(self) -> None:
        self.assertEqual(self.said({TOLD_VARIABLE: "of the job that submitted this one"})[0], "tidegauge: the news\n")


class AtInterpreterStart(SettingsTestCase):
    """Through ``boot``, in real interpreters with a small package named ``torch``."""

    FAKE_TORCH = f"""
import os
conf = os.environ.get({CONF!r})
__version__ = "1.0"
class optim:
    class Optimizer: pass
optim.Optimizer.__module__ = __name__
"""
    SHOW = f"import os; print(os.environ.get({CONF!r}), os.environ.get({FRACTION!r}))"

    def python(self, code: str, *, level: str = "stats", **more: str) -> subprocess.CompletedProcess[str]:
        packages = os.path.join(self.run_dir, "packages")
        os.makedirs(os.path.join(packages, "torch"), exist_ok=True)
        with open(os.path.join(packages, "torch", "__init__.py"), "w") as file:
            file.write(self.FAKE_TORCH)
        environ = {**self.environ, "TIDEGAUGE_PROFILE": level, "PYTHONPATH": f"{ROOT}:{packages}", "PATH": os.defpath}
        start = "import tidegauge.probe.activation.boot\n"
        return subprocess.run(
            [sys.executable, "-c", start + code], env={**environ, **more}, capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip

    def news(self, result: subprocess.CompletedProcess[str]) -> list[str]:
        """What is told of settings: that this torch cannot be watched is no news."""
        return [line for line in result.stderr.splitlines() if "too old" not in line]

    def test_torch_finds_them_when_it_is_imported_and_the_job_is_told(self) -> None:
        self.lay(wanted())
        result = self.python("import torch; print(torch.conf)")
        self.assertEqual(result.stdout, "expandable_segments:True\n")
        self.assertEqual(self.news(result), [f"tidegauge: {LINE}"])

    def test_without_torch_they_are_passed_on_and_nothing_is_told(self) -> None:
        self.lay(wanted())
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {self.SHOW!r}])"
        result = self.python(code)
        self.assertEqual((result.stdout, result.stderr), ("expandable_segments:True 0.5\n", ""))

    def test_children_with_torch_do_not_tell_again(self) -> None:
        self.lay(wanted())
        child = "import tidegauge.probe.activation.boot, torch; print(torch.conf)"
        result = self.python(f"import subprocess, sys, torch; subprocess.run([sys.executable, '-c', {child!r}])")
        self.assertEqual(result.stdout, "expandable_segments:True\n")
        self.assertEqual(self.news(result), [f"tidegauge: {LINE}"])

    def test_job_settings_yield_to_values_the_script_sets(self) -> None:
        self.lay(wanted())
        result = self.python(f"import os; os.environ[{CONF!r}] = 'mine'; import torch; print(torch.conf)")
        self.assertEqual(result.stdout, "mine\n")

    def test_a_wrong_file_is_told_too_and_the_job_runs(self) -> None:
        self.lay(wanted(uid=UID + 1))
        result = self.python("import torch; print(torch.conf)")
        self.assertEqual(result.stdout, "None\n")
        self.assertEqual(len(self.news(result)), 1)
        self.assertIn("is ignored", result.stderr)

    def test_off_and_an_unknown_level_leave_everything_as_it_is(self) -> None:
        self.lay(wanted())
        for level in ("off", "full", ""):
            with self.subTest(level):
                self.assertEqual(self.python(self.SHOW, level=level).stdout, "None None\n")

    def test_dormant_takes_them(self) -> None:
        self.lay(wanted())
        self.assertEqual(self.python(self.SHOW, level="dormant").stdout, "expandable_segments:True 0.5\n")


if __name__ == "__main__":
    unittest.main()
