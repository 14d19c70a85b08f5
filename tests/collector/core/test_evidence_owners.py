from __future__ import annotations

import pytest

from tidegauge.core import wire
from tidegauge.core.evidence.owners import CodeLine, CodeRoots, LiveBlock, asking_line, is_library, owners_of
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


@pytest.mark.parametrize(
    ("filename", "library"),
    [
        ("/home/ada/torch/train.py", False),
        ("/workspace/torch/projects/train.py", False),
        ("/home/ada/torch/utils/train.py", False),
        ("/home/ada/torch/distributed/launch.py", False),
        ("C:\\work\\torch\\train.py", False),
        ("/opt/transformers/src/transformers/trainer.py", False),
        ("/home/ada/torch/.venv/lib/python3.12/site-packages/transformers/trainer.py", True),
        ("C:\\env\\Lib\\site-packages\\torch\\nn\\functional.py", True),
        ("/src/pytorch/torch/nn/modules/module.py", True),
        ("/src/pytorch/torch/optim/adamw.py", True),
        ("/src/pytorch/torch/_dynamo/eval_frame.py", True),
        ("/src/pytorch/torch/_tensor.py", True),
        ("/src/pytorch/torch/autograd/graph.py", True),
        ("/src/pytorch/torch/utils/_contextlib.py", True),
        ("/src/pytorch/torch/utils/data/dataloader.py", True),
        ("/src/pytorch/torch/distributed/fsdp/_fully_shard/_fsdp_state.py", True),
        ("../aten/src/ATen/native/Linear.cpp", True),
        ("<frozen runpy>", True),
    ],
)
def test_of_a_file_without_roots_a_folder_called_torch_does_not_decide(filename: str, library: bool) -> None:
    assert is_library(filename) is library


def test_owners_in_a_process_whose_roots_are_known_go_by_these() -> None:
    script = CodeLine("/home/ada/torch/train.py", 11, "compute_loss")
    library = CodeLine("/opt/transformers/src/transformers/trainer.py", 2164, "compute_loss")
    helper = CodeLine("/opt/transformers/src/transformers/loss.py", 9, "cross_entropy")
    block = LiveBlock(512, (helper, library, script))
    assert [owner.line for owner in owners_of([block], ROOTS)] == [script]
    assert [owner.line for owner in owners_of([block])] == [helper]


def test_evidence_of_an_older_probe_has_no_roots() -> None:
    new = RankEvidence("auto-1", "suspected", 0, 1.0, 2.0, 3, roots=ROOTS)
    raw = wire.to_wire(new)
    assert isinstance(raw, dict)
    assert wire.from_wire(RankEvidence, raw) == new
    del raw["roots"]
    assert wire.from_wire(RankEvidence, raw).roots is None
