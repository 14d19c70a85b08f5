"""Pages on memory profiles: who may see them, what is in them, and who may ask for one."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

from loop_store import FakeStore
from rank_profiles import rank_profile, steady_profile
from sample_views import NOW_S
from scheduler_values import JOB
from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request
from tidegauge.cluster.api.profile_api import ProfilePages
from tidegauge.cluster.views import AskedProfile, AskState, ProfileProblem
from tidegauge.core import wire
from tidegauge.core.ids import JobKey
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.http.access import Viewer

OF_JOB = {"job_id": JOB.job_id, "attempt": str(JOB.attempt), "uid": str(JOB.uid)}
OTHER = JobKey("4712", 1, 1002)
ADA = Viewer("ada", sees_all=False, reads_metrics=False)
ADMIN = Viewer("root", sees_all=True, reads_metrics=True)


@dataclass
class Asks:
    """``ProfileAsks``."""

    made: list[tuple[JobKey, Collection[int]]] = field(default_factory=list)

    def ask(self, job: JobKey, ranks: Collection[int]) -> Sequence[AskedProfile]:
        if 7 in ranks:
            raise LookupError("job 4711 has no running rank 7")
        self.made.append((job, ranks))
        return self.asked(job)

    def asked(self, job: JobKey) -> Sequence[AskedProfile]:
        return [AskedProfile(1, "profile-9", AskState.RECORDING, NOW_S)] if job == JOB else []

    def problems(self) -> Sequence[ProfileProblem]:
        return [ProfileProblem(job, (0, 3), "refused: busy") for job in (OTHER, JOB)]


class Site:
    def __init__(self) -> None:
        self.store = FakeStore()
        self.store.profiles.kept = [rank_profile(0, job=OTHER), rank_profile(3), rank_profile(0)]
        self.asks = Asks()
        self.pages = ProfilePages(self.store, self.asks, lambda viewer, job: viewer.sees_all or job == JOB)

    def get(self, path: str, query: Mapping[str, str] = MappingProxyType({}), viewer: Viewer = ADA) -> Any:
        answer = self.pages.routes()[path](Request(query, None, viewer))
        return wire_of(answer.body)

    def send(self, **fields: str) -> Any:
        return wire_of(self.pages.forms()["/api/v1/profiles"](Request(fields, None, ADA)).body)


def wire_of(body: bytes) -> Any:
    return json.loads(body)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_jobs_profiles_come_by_rank_without_the_whole(site: Site) -> None:
    answer = site.get("/api/v1/profiles", OF_JOB)
    found = [wire.from_wire(RankProfile, raw) for raw in answer["profiles"]]
    assert found == [rank_profile(0, packed=""), rank_profile(3, packed="")]
    assert [one["state"] for one in answer["asked"]] == ["recording"]


def test_a_ranks_profile_is_whole(site: Site) -> None:
    answer = site.get("/api/v1/profile", {**OF_JOB, "rank": "3"})
    assert wire.from_wire(StepProfile, answer["profile"]) == steady_profile()
    assert wire.from_wire(RankProfile, answer["about"]) == rank_profile(3, packed="")


def test_the_list_of_jobs_has_those_of_the_viewer(site: Site) -> None:
    assert [one["job"]["job_id"] for one in site.get("/api/v1/profiled-jobs")["jobs"]] == [JOB.job_id]
    assert len(site.get("/api/v1/profiled-jobs", viewer=ADMIN)["jobs"]) == 2
    assert len(site.get("/api/v1/profiled-jobs", {"limit": "1"}, ADMIN)["jobs"]) == 1
    [problem] = site.get("/api/v1/profiled-jobs")["problems"]
    assert wire.from_wire(ProfileProblem, problem) == ProfileProblem(JOB, (0, 3), "refused: busy")
    assert len(site.get("/api/v1/profiled-jobs", viewer=ADMIN)["problems"]) == 2


@pytest.mark.parametrize("path", ["/api/v1/profiles", "/api/v1/profile"])
def test_somebody_elses_job_looks_like_none(site: Site, path: str) -> None:
    for job_id, uid in ((OTHER.job_id, OTHER.uid), ("nothing", 1)):
        with pytest.raises(NotFoundError, match="no such job"):
            site.get(path, {"job_id": job_id, "attempt": "1", "uid": str(uid), "rank": "0"})


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("/api/v1/profiles", {}, "job_id is missing"),
        ("/api/v1/profiles", {"job_id": "1"}, "uid is missing"),
        ("/api/v1/profile", OF_JOB, "rank is missing"),
        ("/api/v1/profile", {**OF_JOB, "rank": "x"}, "rank must be a whole number"),
    ],
)
def test_a_request_that_lacks_something_is_refused(site: Site, path: str, query: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        site.get(path, query)


def test_a_rank_without_a_profile_is_not_found(site: Site) -> None:
    with pytest.raises(NotFoundError, match="rank 9 has no memory profile"):
        site.get("/api/v1/profile", {**OF_JOB, "rank": "9"})


@pytest.mark.parametrize(("ranks", "asked"), [({}, []), ({"ranks": "3,0,3"}, [0, 3])])
def test_the_form_asks_for_profiles(site: Site, ranks: dict[str, str], asked: list[int]) -> None:
    assert [one["profile_id"] for one in site.send(**OF_JOB, **ranks)["asked"]] == ["profile-9"]
    [(job, numbers)] = site.asks.made
    assert (job, list(numbers)) == (JOB, asked)


@pytest.mark.parametrize("ranks", ["a", "1;2", "-1", "1,", "٣", "1" * 10, "0," * 600])
def test_the_form_refuses_what_are_no_ranks(site: Site, ranks: str) -> None:
    with pytest.raises(BadRequestError, match="ranks m"):
        site.send(**OF_JOB, ranks=ranks)


def test_the_form_refuses_what_does_not_run_or_belongs_to_others(site: Site) -> None:
    with pytest.raises(NotFoundError, match="no running rank 7"):
        site.send(**OF_JOB, ranks="7")
    with pytest.raises(NotFoundError, match="no such job"):
        site.send(job_id=OTHER.job_id, attempt="1", uid=str(OTHER.uid))
    with pytest.raises(BadRequestError, match="unknown field"):
        site.send(**OF_JOB, rank="7")
    assert site.asks.made == []
