"""What a coordinator passes over of a forgotten person's past, and what it tells agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collector.cluster.test_coordinator import Site
from evidence_values import evidence
from rank_profiles import rank_profile
from sample_views import rank_summary
from tidegauge.cluster.coordinator.forgotten_list import KEEP_S, add_forgotten, read_forgotten
from tidegauge.core.ids import JobKey
from tidegauge.core.persons.forgotten import Forgotten, folder_digest, is_forgotten, path_part

NOW_S = 1_800_000_000.0


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_ended_rank_of_a_forgotten_person_is_passed_over_and_a_living_one_is_not(site: Site) -> None:
    ended = replace(rank_summary(0), alive=False, last_sample_unix_s=NOW_S - 5)
    site.coordinator.forget([Forgotten(NOW_S, (ended.uid,))])
    site.report(ended)
    assert site.coordinator.jobs() == ()
    site.pass_s(1)
    site.report(ended, rank_summary(1))
    assert [len(job.ranks) for job in site.coordinator.jobs()] == [1]


def test_what_ended_after_a_person_was_forgotten_is_reported_as_ever(site: Site) -> None:
    ended = replace(rank_summary(0), alive=False, last_sample_unix_s=NOW_S + 5)
    site.coordinator.forget([Forgotten(NOW_S, (ended.uid,))])
    site.report(ended)
    assert len(site.coordinator.jobs()) == 1


def test_evidence_and_profiles_of_a_forgotten_person_are_taken_off_the_agent_and_not_kept(site: Site) -> None:
    piece, profile = evidence(at_unix_s=NOW_S - 5), rank_profile(at_unix_s=NOW_S - 5)
    later = evidence(evidence_id="later", at_unix_s=NOW_S + 5)
    forgotten = Forgotten(NOW_S, (piece.job.uid,))
    site.coordinator.forget([forgotten])
    reply = site.coordinator.report(site.summary(evidence=(piece, later), profiles=(profile,)))
    assert (reply.evidence_kept, reply.profiles_kept) == ((piece.evidence_id,), (profile.profile_id,))
    assert reply.forgotten == (forgotten,)


def test_people_who_share_a_uid_are_told_apart_by_their_jobs() -> None:
    one = Forgotten(NOW_S, (), (folder_digest(0, path_part("team-a/llm")),))
    assert is_forgotten([one], 0, "team-a/llm", NOW_S)
    assert not is_forgotten([one], 0, "team-b/llm", NOW_S)
    assert not is_forgotten([one], 1, "team-a/llm", NOW_S)


def test_the_list_names_nobody_and_goes_with_time(tmp_path: Path) -> None:
    path = tmp_path / "forgotten.json"
    assert read_forgotten(path) == ()
    job = JobKey("team-a/llm", 0, 0)
    first = Forgotten(NOW_S, (1001,), (folder_digest(job.uid, path_part(job.job_id)),))
    add_forgotten(path, first)
    assert read_forgotten(path) == (first,)
    assert b"llm" not in path.read_bytes()
    later = Forgotten(NOW_S + KEEP_S + 1, (1002,))
    add_forgotten(path, later)
    assert read_forgotten(path) == (later,)


def test_a_damaged_list_is_logged_and_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "forgotten.json"
    for text in ("{", "[]", '{"forgotten": [[1]]}', '{"forgotten": 3}'):
        path.write_text(text)
        assert read_forgotten(path) == ()
    assert caplog.text.count("run `tidegauge forget` again") == 4
