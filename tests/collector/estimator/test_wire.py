"""An estimate survives its way through JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from estimates import ESTIMATE
from tidegauge.core.wire import from_wire, to_wire
from tidegauge.estimator.results import Estimate


def test_an_estimate_comes_back_as_it_was() -> None:
    assert from_wire(Estimate, json.loads(json.dumps(to_wire(ESTIMATE)))) == ESTIMATE


def test_the_agreed_keys_are_there_as_whole_bytes() -> None:
    data: Any = to_wire(ESTIMATE)
    for key in ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes"):
        assert isinstance(data[key], int)
    assert sum(data["breakdown"].values()) == data["device_bytes"]


def test_estimate_from_wire_refuses_a_missing_figure() -> None:
    data: Any = to_wire(ESTIMATE)
    del data["device_bytes"]
    with pytest.raises(ValueError, match="device_bytes"):
        from_wire(Estimate, data)
