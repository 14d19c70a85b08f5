# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tidegauge.probe.script import MAX_ARGUMENTS_CHARS, MAX_SCRIPT_BYTES, hash_of, short_arguments

PROGRAM = "import json\nfrom tidegauge.probe.script import read_script\nprint(json.dumps(read_script()._asdict()))\n"


class Scripts(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def told(self, *command: str) -> dict[str, object]:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), *sys.path])}
        done = subprocess.run([sys.executable, *command], env=environ, capture_output=True, check=True)
        told: dict[str, object] = json.loads(done.stdout)
        return told

    def test_a_script_is_told_with_its_hash_and_arguments(self) -> None:
        path = self.folder / "train.py"
        path.write_text(PROGRAM)
        told = self.told(str(path), "--lr", "3e-4", "a b")
        sha256 = hashlib.sha256(PROGRAM.encode()).hexdigest()
        self.assertEqual(told, {"script": str(path), "script_sha256": sha256, "arguments": "--lr 3e-4 'a b'"})

    def test_a_module_is_told_by_its_name(self) -> None:
        package = self.folder / "trainer"
        package.mkdir()
        for name in ("__init__", "__main__", "fit"):
            (package / f"{name}.py").write_text("" if name == "__init__" else PROGRAM)
        self.assertEqual(self.told("-m", "trainer.fit")["script"], "-m trainer.fit")
        told = self.told("-m", "trainer", "x")
        self.assertEqual((told["script"], told["arguments"]), ("-m trainer", "x"))
        self.assertEqual(told["script_sha256"], hashlib.sha256(PROGRAM.encode()).hexdigest())

    def test_of_a_command_line_program_nothing_is_told(self) -> None:
        told = self.told("-c", PROGRAM, "x")
        self.assertEqual(told, {"script": None, "script_sha256": None, "arguments": None})

    def test_rays_own_worker_is_nobodys_script(self) -> None:
        path = self.folder / "default_worker.py"
        path.write_text(PROGRAM)
        self.assertEqual(self.told(str(path), "--session=1")["script"], None)

    def test_a_job_may_do_to_its_modules_what_it_likes(self) -> None:
        path = self.folder / "train.py"
        path.write_text("import sys\n__file__ = 7\nsys.argv = None\n" + PROGRAM)
        self.assertEqual(self.told(str(path))["script"], None)
        path.write_text("import sys\n__spec__ = 'x'\nsys.argv = ['x', 7, '\\udcff\\n']\n" + PROGRAM)
        self.assertEqual(self.told(str(path))["arguments"], "'?' '??'")

    def test_the_end_of_a_long_path_is_told(self) -> None:
        folder = self.folder / ("a" * 200) / ("b" * 200)
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(PROGRAM)
        script = self.told(str(folder / "train.py"))["script"]
        assert isinstance(script, str)
        self.assertEqual((len(script), script[:3], script[-9:]), (256, "...", "/train.py"))


class Hashes(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = os.path.join(scratch.name, "x.py")

    def test_a_fifo_and_a_device_are_not_opened(self) -> None:
        os.mkfifo(self.path)
        self.assertIsNone(hash_of(self.path))  # opening it would wait for a writer
        self.assertIsNone(hash_of("/dev/zero"))

    def test_a_file_that_is_gone_or_too_large_has_no_hash(self) -> None:
        self.assertIsNone(hash_of(self.path))
        self.assertIsNone(hash_of("a\0b"))
        with open(self.path, "wb") as file:
            file.truncate(MAX_SCRIPT_BYTES)
        self.assertEqual(hash_of(self.path), hashlib.sha256(bytes(MAX_SCRIPT_BYTES)).hexdigest())
        with open(self.path, "ab") as file:
            file.write(b"x")
        self.assertIsNone(hash_of(self.path))


class Arguments(unittest.TestCase):
    def test_secrets_are_not_told(self) -> None:
        table = [
            (["--hf-token", "abc", "--lr", "1"], "--hf-token *** --lr 1"),
            (["--wandb_api_KEY=abc"], "--wandb_api_KEY=***"),
            (["--password", "-x1"], "--password ***"),
            (["--use-auth-token", "--lr", "1"], "--use-auth-token --lr 1"),
            (["HF_TOKEN=abc", "db.secret=abc"], "HF_TOKEN=*** db.secret=***"),
            (['{"api_key": "abc"}'], "***"),
            (['--config={"api_key": "abc"}'], "--config=***"),
            (["Authorization: Bearer abc"], "***"),
            (["s3://me:abc@bucket/data"], "s3://***@bucket/data"),
            (["data/tokens.bin", "--lr=1"], "data/tokens.bin --lr=1"),
        ]
        for arguments, line in table:
            with self.subTest(arguments):
                self.assertEqual(short_arguments(arguments), line)

    def test_a_long_line_is_cut(self) -> None:
        line = short_arguments(["x" * 150, "y" * 5000, *["z"] * 100_000])
        assert line is not None
        self.assertEqual((len(line), line[-4:]), (MAX_ARGUMENTS_CHARS, "y..."))

    def test_a_secret_that_is_cut_is_not_told_in_part(self) -> None:
        line = short_arguments(["x" * 150, "--token=" + "s" * 5000])
        assert line is not None
        self.assertNotIn("ss", line)

    def test_no_arguments_are_unknown(self) -> None:
        self.assertIsNone(short_arguments([]))


if __name__ == "__main__":
    unittest.main()
