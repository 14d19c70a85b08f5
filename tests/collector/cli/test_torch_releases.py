from __future__ import annotations

import argparse

import pytest

from tidegauge.cli.offline.torch_releases import torch_release


@pytest.mark.parametrize("text", ["2.11", "2.11.0", "2.11.0+cu130", "2.13.0a0+git1234567", "2.12.0rc1"])
def test_a_release_is_taken_as_it_is_written(text: str) -> None:
    assert torch_release(text) == text


@pytest.mark.parametrize("text", ["banana", "", "2", "v2.11.0", "2.x", "2.11 ", "2.11;x", "٢.١١", "2." + "1" * 60])
def test_torch_release_option_refuses_an_invalid_version(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"such as 2\.11\.0"):
        torch_release(text)
