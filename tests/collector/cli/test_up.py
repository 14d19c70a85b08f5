from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegauge.cli.service import up
from tidegauge.cluster.service_record import NodeSpec, ServiceRecord, prepare_state_dir, write_address
from tidegauge.osproc.processes import identity_of
from tidegauge.steady_clock import read_boot_id


@pytest.mark.parametrize(
    ("wanted", "remark"), [(9494, False), (9500, True), (0, False)], ids=["got", "taken", "any free one"]
)
def test_port_that_was_taken_is_mentioned(
    wanted: int, remark: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = prepare_state_dir(tmp_path / "state")
    write_address(files.agent, "127.0.0.1:9494")
    spec = NodeSpec(
        state_dir=str(files.root), engine_dir="e", token_file=str(files.token), head_address="127.0.0.1:6399",
        node_address="127.0.0.1", is_head=True, settings={"metrics_port": wanted},
    )  # fmt: skip
    me = identity_of(os.getpid())
    assert me is not None
    record = ServiceRecord(
        supervisor=me, boot_id=read_boot_id(), phase="running", detail="", spec=spec, started_unix_s=1.0
    )
    up._tell(files, record, as_json=False, already=False)
    out = capsys.readouterr().out
    assert "http://127.0.0.1:9494/metrics" in out
    assert (f"metrics_port {wanted} was taken" in out) == remark
