"""``tidegauge report``: from files alone, and of an incident that a service knows."""

from __future__ import annotations

import json
import pickle
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from html_text import Page
from loop_store import FakeAudit, FakeIncidents, FakeStore
from report_contents import evidence, points, story
from sample_views import job_view, rank_view
from tidegauge.analysis.snapshots.reading import read_snapshot
from tidegauge.cli.main import main
from tidegauge.cli.report import files
from tidegauge.cluster.api.http_api import HttpApi, NotFoundError, Request, json_route
from tidegauge.cluster.api.loop_api import loop_routes
from tidegauge.cluster.api.overview import JobPage, job_page
from tidegauge.core.evidence import Evidence, SnapshotRef
from tidegauge.core.evidence.rank_evidence import RankEvidence
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.job_records.memory import RankMemory
from tidegauge.core.snapshot_columns import pack
from tidegauge.core.verdicts import OK
from tidegauge.core.wire import to_json
from trace_files import to_packed

SNAPSHOTS = Path(__file__).parents[2] / "data" / "snapshots"
SERIES = Path(__file__).parents[2] / "data" / "series"
EARLY, LATE = SNAPSHOTS / "outputs_kept.early.pickle.gz", SNAPSHOTS / "outputs_kept.late.pickle.gz"
STEADY = SNAPSHOTS / "steady_lm.late.snap.zst"
NUMBER = 4711
"""Of the incident: the id of its job too."""


def no_line(*_: object) -> tuple[int, ...]:
    return ()


def no_page(_: Request) -> object:
    raise NotFoundError("no such job is watched")


@contextmanager
def service(
    pieces: tuple[Evidence, ...] = (), *, memory: bool = True, number: int = 12, job: JobPage | None = None,
    kept: Sequence[RankMemory] = (),
) -> Iterator[str]:  # fmt: skip
    """A coordinator's pages on incident ``number`` of job 4711."""
    about = replace(story().incident, number=number)
    store = FakeStore(FakeIncidents([IncidentChange(ChangeKind.OPENED, about.opened_unix_s, about)]), FakeAudit([]))
    told = [RankMemory(rank, points(leaks=rank == 1)) for rank in range(3)] if memory else []

    def curves(request: Request) -> object:
        """What is watched of the job, or what stays with the incident."""
        return {"ranks": kept if "incident" in request.query else told}

    routes = {
        **loop_routes(lambda: store, lambda: LoopStatus("observe", None, incidents_open=1)),
        "/api/v1/memory": json_route(curves),
        "/api/v1/evidence": json_route(lambda _: {"evidence": pieces}),
        "/api/v1/job": json_route(lambda _: job) if job is not None else json_route(no_page),
    }
    api = HttpApi(routes, host="127.0.0.1", port=0)
    api.start()
    try:
        yield api.url
    finally:
        api.stop()


def report(path: Path, *args: object) -> str:
    """Words of the report that the command writes."""
    assert main(["report", *map(str, args), "--no-whatif", "-o", str(path)]) == 0
    return Page(path.read_text(encoding="utf-8")).text


def test_two_snapshots_and_a_series_are_a_report(tmp_path: Path) -> None:
    words = report(tmp_path / "r.html", EARLY, LATE, SERIES / "outputs_kept" / "steps.csv.gz")
    assert "Rank 0 grows by" in words
    assert "100 % of what grew on rank 0 was allocated at scenarios.py:34 in forward" in words
    assert "event by event" in words


def test_the_report_of_one_snapshot_has_its_peak_first(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    words = report(path, STEADY)
    assert "271.5 MiB at the peak, mostly activations (30%) and workspaces (24%)." in words
    assert words.index("Allocated over the recording") < words.index("Live memory in the snapshot")
    assert 'id="profile-data"' in path.read_text(encoding="utf-8")
    assert "A higher peak may lie before it" in words


def test_the_report_of_one_snapshot_says_what_would_help_as_the_profile_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = report(tmp_path / "r.html", STEADY)
    assert main(["profile", str(STEADY), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out.splitlines()[-1])["advice"]
    assert "What would help, each by itself" in words
    assert advice["measures"]
    for measure in advice["measures"]:
        assert measure["action"] in words


def test_of_several_devices_the_report_says_which_it_is_of_and_why(tmp_path: Path) -> None:
    both = SNAPSHOTS.parent / "allocator" / "snapshots" / "two_devices.pickle.gz"
    words = report(tmp_path / "r.html", both)
    chosen = re.search(r"The report is of device (\d), which holds most", words)
    assert chosen is not None
    other = 1 - int(chosen[1])
    assert re.search(rf"Device\s+{chosen[1]}\b", words)
    words = report(tmp_path / "r.html", both, "--device", other)
    assert f"The report is of device {other}, as asked for; {both} has memory of device {chosen[1]} as well" in words
    assert "The report is of device" not in report(tmp_path / "r.html", STEADY)


def test_two_snapshots_are_compared_on_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def at(step: int, *sizes: int) -> Path:
        path = tmp_path / f"{step}.pickle"
        segments = [
            {
                "device": device, "address": 1 << 30, "total_size": size, "stream": 0, "segment_type": "large",
                "allocated_size": size, "active_size": size, "requested_size": size, "is_expandable": False,
                "segment_pool_id": (0, 0), "frames": [],
                "blocks": [{"address": 1 << 30, "size": size, "requested_size": size, "state": "active_allocated"}],
            }
            for device, size in enumerate(sizes)
        ]  # fmt: skip
        path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [[] for _ in sizes]}))
        return path

    early, late = at(1, 60 << 20, 20 << 20), at(2, 60 << 20, 80 << 20)
    assert main(["report", str(early), str(late), "--no-whatif", "--json", "-o", str(tmp_path / "r.html")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["evidence"]["grown_bytes"] == 60 << 20
    assert answer["absent"][0].startswith("The report is of device 1, which holds most")


def test_the_report_of_two_snapshots_is_about_growth(tmp_path: Path) -> None:
    assert "At the peak" not in report(tmp_path / "r.html", EARLY, LATE)


def test_of_a_long_history_the_report_has_the_events_around_the_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_PROFILED_EVENTS", 400)
    words = report(tmp_path / "r.html", STEADY)
    assert "269.5 MiB at the peak" in words
    assert "The peak is that of events 2,034 to 2,433 of 3,000" in words


def test_series_files_are_drawn_by_training_step(tmp_path: Path) -> None:
    """Their times begin at zero: by time the page would say 1970."""
    words = report(tmp_path / "r.html", SERIES / "outputs_kept" / "steps.csv.gz")
    assert "training step" in words
    written_at = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"  # which may be midnight
    assert "00:00" not in re.sub(written_at, "", words)


def test_files_are_told_by_their_content_not_by_their_names(tmp_path: Path) -> None:
    disguised = tmp_path / "late.csv"
    disguised.write_bytes(LATE.read_bytes())
    assert "Live memory in the snapshot" in report(tmp_path / "r.html", disguised)


def test_the_store_s_own_form_is_read(tmp_path: Path) -> None:
    words = report(
        tmp_path / "r.html", *(SNAPSHOTS / f"hook_activations.{when}.snap.zst" for when in ("early", "late"))
    )
    assert "Growth between the snapshots" in words


def packed(path: Path, source: str, facts: Mapping[str, object]) -> Path:
    """A snapshot as the probe writes it, with what it says of itself."""
    path.write_bytes(zlib.compress(pack(to_packed(read_snapshot(SNAPSHOTS / source), facts))))
    return path


def test_two_ranks_at_one_step_may_be_compared(tmp_path: Path) -> None:
    paths = [
        packed(tmp_path / f"{rank}.snap", f"ddp_rank1_leak.rank{rank}.snap.zst", {"rank": rank, "step": 300})
        for rank in (0, 1)
    ]
    words = report(tmp_path / "r.html", *paths)
    assert "of what grew on rank 1" in words
    assert "growth here is what rank 1 has more" in words


@pytest.mark.parametrize(("early", "late"), [({"step": 10}, {"step": 40}), ({"unix_s": 1.0}, {"unix_s": 2.0})])
def test_the_earlier_snapshot_is_the_one_that_says_so(
    early: dict[str, object], late: dict[str, object], tmp_path: Path
) -> None:
    first = packed(tmp_path / "a.snap", "val_epoch_stair.late.snap.zst", late)
    second = packed(tmp_path / "b.snap", "val_epoch_stair.early.snap.zst", early)
    assert "of what grew on rank 0" in report(tmp_path / "r.html", first, second)


def test_report_of_rank_evidence_names_the_holder(tmp_path: Path) -> None:
    found = RankEvidence(
        "e1",
        "asked",
        0,
        1.0,
        2.0,
        10,
        early_step=14,
        late_step=44,
        search=evidence().search,
        problem="it was cut short",
    )
    path = tmp_path / "found.json"
    path.write_bytes(to_json(found))
    words = report(tmp_path / "r.html", EARLY, LATE, path)
    assert "Trainer.history (list, 412 items)" in words
    assert "it was cut short" in words


def test_other_settings_are_tried_on_the_late_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    assert main(["report", str(LATE), "-o", str(path)]) == 0
    words = Page(path.read_text()).text
    assert "Other allocator settings" in words
    assert "expandable_segments:True" in words


def test_the_report_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(LATE), "--no-whatif", "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_json_says_what_was_found_and_where_the_file_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.html"
    assert main(["report", str(EARLY), str(LATE), "--no-whatif", "--json", "-o", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["incident"]) == (str(path), None)
    assert told["bytes"] == path.stat().st_size
    assert told["evidence"]["growth"][0]["line"]["line"] == 34


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["/no/such/file.pickle"], "no such file"),
        (["nofile.pickle"], "nofile.pickle: no such file"),
        ([str(EARLY), str(LATE), str(LATE)], "3 snapshots given"),
        ([str(LATE), "--device", "7"], "has no device 7; devices: 0"),
        ([str(LATE), "--json", "-o", "-"], "--json cannot be combined with --output -"),
        (["4711", "4712", "--api", "http://127.0.0.1:1"], "a report covers one job"),
    ],
)
def test_report_explains_invalid_arguments(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *args]) in (2, 3)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"{}", b"{", b'{"evidence_id": 1}', b"step,allocated\n1,2\n", b"\x80garbage", b""])
def test_a_file_that_is_none_of_these_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 2
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_an_incident_is_told_with_its_evidence_and_every_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with service((evidence(),)) as url:
        words = report(tmp_path / "r.html", "12", "--api", url)
    assert "Rank 1 of job 4711 leaks 12.0 MiB per step" in words
    assert "Cause: tensors kept alive by Python references." in words
    assert all(f"Rank {rank}" in words for rank in range(3))
    assert "step 434 cannot be read from this machine" in words
    assert "cannot be read from this machine" in capsys.readouterr().out


def test_ranks_that_the_incident_is_not_about_say_where_they_run(tmp_path: Path) -> None:
    ranks = (rank_view(0, verdict=OK).summary(), rank_view(2, verdict=OK).summary())
    job = job_page(
        job_view(ranks=ranks, rank_nodes=("", ""), rank_hostnames=("node0", "node7")), no_line, now_unix_s=0.0
    )
    with service((evidence(), evidence(rank=2)), job=job) as url:
        words = report(tmp_path / "r.html", "12", "--api", url)
    assert "node7, GPU 2" in words
    assert "Rank 2 has evidence as well" in words


def test_stored_snapshots_that_are_in_reach_are_shown(tmp_path: Path) -> None:
    refs = []
    for step, path in ((404, EARLY), (434, LATE)):
        key = f"lab/4711/0/rank-1/step-{step}-1.snap.zst"
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(path.read_bytes())
        refs.append(SnapshotRef(key, f"node0:{tmp_path}", step, 1.0 * step, 1))
    with service((evidence(snapshots=tuple(refs)),)) as url:
        words = report(tmp_path / "r.html", "12", "--api", url)
    assert "Allocator map: segments and blocks" in words
    assert "event by event" in words
    assert "cannot be read from this machine" not in words


def test_a_hostile_key_leads_nowhere(tmp_path: Path) -> None:
    ref = SnapshotRef("../../etc/passwd", "node0:/tmp", 404, 1.0, 1)
    with service((evidence(snapshots=(ref,)),)) as url:
        assert "cannot be read from this machine" in report(tmp_path / "r.html", "12", "--api", url)


def test_snapshots_may_be_given_beside_the_incident(tmp_path: Path) -> None:
    with service() as url:
        words = report(tmp_path / "r.html", "12", EARLY, LATE, "--api", url)
    assert "Growth between the snapshots" in words
    assert "scenarios.py:34" in words


def test_a_job_stands_for_its_newest_incident(tmp_path: Path) -> None:
    with service((evidence(),)) as url:
        assert "Incident 12" in report(tmp_path / "r.html", "4711", "--api", url).replace("  ", " ")


def test_a_number_that_is_both_is_asked_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with service(number=NUMBER) as url:
        assert main(["report", str(NUMBER), "--api", url]) == 2
        assert "use --incident or --job" in capsys.readouterr().err
        assert "leaks" in report(tmp_path / "r.html", NUMBER, "--incident", "--api", url)


def test_the_report_of_a_job_that_is_gone_has_the_curve_that_stays_with_the_incident(tmp_path: Path) -> None:
    with service(memory=False, kept=[RankMemory(1, points(leaks=True))]) as url:
        words = report(tmp_path / "r.html", "12", "--api", url)
    assert "No memory curve" not in words
    assert "No readings" not in words
    assert "step 600" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_report_says_so_without_evidence_or_memory_curve(tmp_path: Path) -> None:
    with service(memory=False) as url:
        words = report(tmp_path / "r.html", "12", "--api", url)
    assert "No evidence was collected" in words
    assert "No memory curve" in words


def test_an_unknown_job_is_refused_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with service() as url:
        assert main(["report", "team-a/train", "--api", url]) == 2
        assert "tidegauge incidents --all" in capsys.readouterr().err
        assert main(["report", "99", "--api", url]) == 2
        assert "no incident 99" in capsys.readouterr().err
