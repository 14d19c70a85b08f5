"""Run directories of containers, without containers: there a folder's owner need not be whom it is named for."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.opening.local import LocalRunDir
from tidegauge.agent.opening.port import OpenFolder
from tidegauge.agent.opening.safe_files import DIRECTORY
from tidegauge.core.jobs.tenants import Tenant


class FakeContainerRunDir(NamedTuple):
    """All that is in it is ``tenant``'s."""

    path: Path
    tenant: Tenant = Tenant(1000)

    @property
    def mount_namespaces(self) -> Collection[int]:
        return (1,)

    def has_time(self) -> bool:
        return True

    def opened(self) -> LocalRunDir:
        return LocalRunDir.of(os.open(self.path, DIRECTORY))

    def opened_folder(self, uid: int) -> OpenFolder:
        with self.opened() as run_dir:
            return run_dir.folder(uid)

    def __str__(self) -> str:
        return str(self.path)
