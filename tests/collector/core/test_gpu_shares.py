from __future__ import annotations

import pytest

from tidegauge.core.jobs.gpu_shares import gres_count, mps_limits, shard_share, share_of_parts


def test_mps_limits_by_ordinal_and_by_uuid() -> None:
    text = "0=2G,1=512M, GPU-7ce23cd8-5c91-34a1-9e1b-28bd1419ce90=1024M"
    assert mps_limits(text) == {
        "0": 2 << 30,
        "1": 512 << 20,
        "GPU-7ce23cd8-5c91-34a1-9e1b-28bd1419ce90": 1 << 30,
    }


@pytest.mark.parametrize("text", ["", "2G", "0=2", "0=2K", "0=G", "0=0G", "0=2G,", "0=-2G", "0=1.5G", "0 =2GB"])
def test_a_text_that_mps_does_not_document_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        mps_limits(text)


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("gpu:h200:2,shard:8(S:0-1)", "gpu", 2),
        ("gpu:h200:2,shard:8(S:0-1)", "shard", 8),
        ("gpu:h200:2(S:0,1),shard:h200:8(S:0,1)", "shard", 8),
        ("cpu=4,mem=10G,node=1,billing=4,gres/gpu=1,gres/shard:h200=2", "shard", 2),
        ("cpu=4,mem=10G,node=1,gres/gpu:h200=1,gres/gpu:a100=2", "gpu", 3),
        ("gres:shard:2", "shard", 2),
        ("gres/shard", "shard", 1),
        ("gpu:1g.10gb:3(IDX:0-2)", "gpu", 3),
        ("gpu:2", "shard", 0),
        ("", "gpu", 0),
        ("(null)", "gpu", 0),
    ],
)
def test_counts_in_slurms_texts(text: str, name: str, count: int) -> None:
    assert gres_count(text, name) == count


@pytest.mark.parametrize(
    ("job", "node", "share"),
    [
        ("gres:shard:2", "gpu:2,shard:8", 0.5),
        ("gres/shard=1", "gpu:h200:4,shard:h200:64", 1 / 16),
        ("gres/shard=9", "gpu:2,shard:8", 1.0),
        ("gres/gpu=1", "gpu:2,shard:8", None),
        ("gres/shard=1", "gpu:2", None),
        ("gres/shard=1", "", None),
    ],
)
def test_shards_are_shares_of_one_gpu(job: str, node: str, share: float | None) -> None:
    assert shard_share(job, node) == share


def test_a_time_slice_is_one_of_its_replicas() -> None:
    assert [share_of_parts(1, replicas) for replicas in (4, 1, 0)] == [0.25, 1.0, None]
