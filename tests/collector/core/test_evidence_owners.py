from __future__ import annotations

import pytest

from tidegauge.core import wire
from tidegauge.core.evidence.owners import CodeLine, CodeRoots, asking_line, is_library
from tidegauge.core.evidence.rank_evidence import RankEvidence

ROOTS = CodeRoots(
    libraries=("/usr/lib/python3.12/", "/home/ada/torch/.venv/lib/python3.12/site-packages/", "/opt/transformers/"),
    own=("/home/ada/torch/", "/home/ada/torch/.venv/lib/python3.12/site-packages/trainer/"),
)


@pytest.mark.parametrize(
    ("filename", "library"),
    [
        ("/home/ada/torch/train.py", False),
        ("/home/ada/other/torch/train.py", False),
        ("/home/ada/torch/.venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", True),
        ("/home/ada/torch/.venv/lib/python3.12/site-packages/trainer/fit.py", False),
        ("/home/ada/torch/envs/b/lib/python3.10/site-packages/x.py", True),
        ("/opt/transformers/src/transformers/trainer.py", True),
        ("/opt/transformers-of-mine/train.py", False),
        ("/usr/lib/python3.12/threading.py", True),
        ("train.py", False),
        ("<frozen runpy>", True),
        ("/home/ada/torch/kernel.cpp", True),
        ("??", True),
    ],
)
def test_the_innermost_root_says_whose_a_file_is(filename: str, library: bool) -> None:
    assert is_library(filename, ROOTS) is library


def test_the_asking_line_is_the_scripts_and_not_that_of_a_source_checkout() -> None:
    script = CodeLine("/home/ada/torch/train.py", 11, "compute_loss")
    stack = (CodeLine("/opt/transformers/src/transformers/trainer.py", 2164, "compute_loss"), script)
    assert asking_line(stack, ROOTS) == script


def test_without_roots_the_path_decides_as_before() -> None:
    assert is_library("/home/ada/torch/train.py")
    assert not is_library("/opt/transformers/src/transformers/trainer.py")


def test_evidence_of_an_older_probe_has_no_roots() -> None:
    new = RankEvidence("auto-1", "suspected", 0, 1.0, 2.0, 3, roots=ROOTS)
    raw = wire.to_wire(new)
    assert isinstance(raw, dict)
    assert wire.from_wire(RankEvidence, raw) == new
    del raw["roots"]
    assert wire.from_wire(RankEvidence, raw).roots is None
