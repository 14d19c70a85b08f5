"""What is kept of label blocks between scrapes: enough for the next one, and nothing of ranks that are gone."""

from __future__ import annotations

import pytest

from tidegauge_exporter.metrics import label_blocks
from tidegauge_exporter.metrics.label_blocks import LabelBlocks
from tidegauge_exporter.metrics.labels import label_value


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The value of every label that had to be made safe, in order."""
    seen: list[object] = []

    def safe(value: object) -> str:
        seen.append(value)
        return label_value(value)

    monkeypatch.setattr(label_blocks, "label_value", safe)
    return seen


def scrape(blocks: LabelBlocks, *ranks: int) -> list[str]:
    blocks.begin_scrape()
    return [blocks.block(("rank",), (rank,)) for rank in ranks for _ in range(20)]


def test_a_block_is_written_once_for_all_series_and_scrapes_of_a_rank(written: list[object]) -> None:
    blocks = LabelBlocks()
    for _ in range(3):
        assert scrape(blocks, 0, 1) == ['{rank="0"}'] * 20 + ['{rank="1"}'] * 20
    assert written == [0, 1]


def test_what_is_held_follows_the_ranks_that_there_are_not_those_that_there_were() -> None:
    blocks = LabelBlocks()
    for first in range(0, 100_000, 10):
        scrape(blocks, *range(first, first + 10))
    assert len(blocks) == 20
    scrape(blocks)
    scrape(blocks)
    assert len(blocks) == 0


def test_a_rank_that_one_scrape_did_not_see_is_not_written_again(written: list[object]) -> None:
    """Two scrapes at once: the second begins while the first has only half of its ranks."""
    blocks = LabelBlocks()
    scrape(blocks, 0, 1)
    scrape(blocks, 0)
    scrape(blocks, 0)
    assert written == [0, 1]


def test_labels_are_sorted_by_name_and_escaped() -> None:
    assert LabelBlocks().block(("b", "a"), ('"\\', None)) == '{a="",b="\\"\\\\"}'
    assert LabelBlocks().block((), ()) == ""
