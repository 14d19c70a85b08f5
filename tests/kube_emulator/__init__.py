"""An API server for tests: Kubernetes' HTTP API as far as Tidegauge and its tests use it, with the controllers for
Jobs, garbage and namespaces.

What belongs here answers as kube-apiserver 1.36 does; ``README.md`` lists what is left out.
"""

from kube_emulator.emulator import Emulator

__all__ = ["Emulator"]
