"""An estimate survives its way through JSON."""

from __future__ import annotations

import json

import pytest

from estimates import ESTIMATE
from tidegauge.estimator.wire import read_estimate, to_json


def test_an_estimate_comes_back_as_it_was() -> None:
    assert read_estimate(json.loads(json.dumps(to_json(ESTIMATE)))) == ESTIMATE


def test_the_agreed_keys_are_there_as_whole_bytes() -> None:
    data = to_json(ESTIMATE)
    for key in ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes"):
        assert isinstance(data[key], int)
    assert sum(data["breakdown"].values()) == data["device_bytes"]


def test_what_lacks_a_figure_is_no_estimate() -> None:
    data = to_json(ESTIMATE)
    del data["device_bytes"]
    with pytest.raises(KeyError, match="device_bytes"):
        read_estimate(data)
