"""What stands in for an image, which nobody pulls: a command, and a folder at the place where the image has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kube_standins.containers import Mount


@dataclass(frozen=True)
class Image:
    """``command`` is run where the container names none; ``folder``, of this machine, is there at ``at``; ``user`` is
    who it runs as where nobody names one."""

    command: tuple[str, ...] = ()
    folder: str | None = None
    at: str | None = None
    user: int = 0

    def mounts(self) -> list[Mount]:
        if self.folder is None:
            return []
        return [Mount(self.folder, self.at or self.folder, read_only=True, open_way=True)]


def to_json(images: Mapping[str, Image]) -> dict[str, Any]:
    return {name: asdict(image) for name, image in images.items()}


def from_json(images: Mapping[str, Mapping[str, Any]]) -> dict[str, Image]:
    return {name: Image(**{**fields, "command": tuple(fields["command"])}) for name, fields in images.items()}
