from __future__ import annotations

import pytest

from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import (
    PROFILE_SNAPSHOT_SUFFIX,
    launch_draft_name,
    launch_name,
    launch_socket_name,
    names_beside,
    oom_snapshot_name,
    process_of,
    recording_name,
    ring_name,
    run_dirs,
    snapshot_name,
    socket_name,
)


def test_a_chosen_run_dir_is_the_only_one() -> None:
    assert run_dirs({"TIDEGAUGE_RUN_DIR": "/x"}) == ("/x",)
    assert run_dirs({}) == ("/run/tidegauge", "/dev/shm/tidegauge")


def test_names_lead_back_to_their_process() -> None:
    process = ProcessId(12, 3456)
    makers = (ring_name, socket_name, oom_snapshot_name, launch_name, launch_draft_name, launch_socket_name)
    names = {make(process) for make in makers}
    assert len(names) == 6
    assert {process_of(name) for name in names} == {process}


def test_what_a_process_leaves_beside_its_ring_goes_with_it() -> None:
    process = ProcessId(12, 3456)
    assert {recording_name(process), snapshot_name(process, PROFILE_SNAPSHOT_SUFFIX)} <= set(names_beside(process))
    assert {process_of(name) for name in names_beside(process)} == {process}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "12.ring",
        "12-.ring",
        "-5.ring",
        "a-5.ring",
        "12-5.txt",
        "١٢-5.ring",
        "1-2-3.ring",
        "1-2.job.ring",
        "1-2.x.job",
    ],
)
def test_other_files_are_nobodys_ring(name: str) -> None:
    assert process_of(name) is None
