"""Attempt and changes of a requeue reach the pods under Kueue, whatever it writes into the templates meanwhile: beside
Kueue and the controllers as they were transcribed (``neighbours``, ``kueue_neighbour``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from scheduler_hooks.kubernetes.controller_world import Process
from scheduler_hooks.kubernetes.queued_world import QueuedWorld
from scheduler_hooks.kubernetes.restart_contract import RestartContract, RestartSite, unlabel_first
from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import Injector
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.workloads import labels_of
from tidegauge_scheduler_hooks.ports import TemporaryError


class TranscribedSite(RestartSite):
    def __init__(self, kind: str, *, queued: bool = True, unwatched: int = 0) -> None:
        self.kind = kind
        self.unwatched = unwatched
        self.world = QueuedWorld(kind, queued=queued)
        self.process = Process(self.world)
        owners = OwnerReader(self.world.kube, self.process.look.kinds, self.process.look.stores)
        injector = Injector(InjectionOptions("probe"), lambda _: None, settings_of=owners.settings_of)
        self.world.answer = injector.answer
        self.world.submit(partial(unlabel_first, self.world.kind) if unwatched else lambda _: None)
        self.until_it_runs()

    @property
    def pods(self) -> list[Any]:
        return [pod for pod in self.world.pods if PROFILE_LABEL in labels_of(pod)]

    @property
    def obj(self) -> Object:
        found: Object = self.world.obj
        return found

    @property
    def events(self) -> list[tuple[str, str]]:
        return self.world.events

    def until(self, true: Callable[[], bool]) -> None:
        """Until everybody, our controller too, has nothing more to do."""
        for _ in range(6):
            self.world.look()
            with suppress(TemporaryError):
                self.process.work()
        assert true()

    def requeue(self, **changes: Any) -> RequeueOrder:
        return self.world.requeue(**changes)

    def close_queue(self) -> None:
        self.world.kueue.has_room = False

    def open_queue(self) -> None:
        self.world.kueue.has_room = True

    def preempt(self) -> None:
        self.close_queue()
        self.world.kueue.preempt("train")

    def leave_room(self) -> None:
        self.open_queue()

    def take_webhook_away(self) -> None:
        self.world.answer = None


class TestRestartsBesideTranscriptions(RestartContract):
    @pytest.fixture
    def open_site(self) -> Callable[..., RestartSite]:
        return TranscribedSite
