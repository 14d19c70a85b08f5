"""Names shared by the injection, the code in a pod, the chart's policy and the probe image."""

from __future__ import annotations

VOLUME = "tidegauge"
INIT_CONTAINER = "tidegauge-probe"

PROBE_FOLDER = "/tidegauge"
"""The probe's mount point, read-only. Directly below the root: a volume of the owner's, on which no mount point can be
made, may be anywhere else (a read-only /opt)."""
RUN_FOLDER = "/run/tidegauge"
"""The mount point of the run directory (``core.run_dir_names``); the agent finds it by that name."""
CONTAINER_VARIABLE = "TIDEGAUGE_CONTAINER"
"""Its name, in each watched container."""
PROBE_PART, RUN_PART = "probe", "run"
"""Folders of the volume, made by ``install-probe.sh``, mounted by ``subPath``. Below ``RUN_PART`` each watched
container has a folder with its name: rings are named by pid and start time as counted inside a container, so those of
two containers could have the same name."""

PYTHONPATH_ENTRY = PROBE_FOLDER + "/tidegauge/probe/activation/pythonpath"
"""For ``PYTHONPATH``: the folder of ``tidegauge.probe.activation.launch``, below where the probe is mounted."""
INSTALL_COMMAND = ("/probe/install-probe.sh", "/target")
"""The init container's command: the script of the probe image, and the volume's mount point. Its arguments (``args``)
are the names of the watched containers."""

OWN_PYTHONPATH = "TIDEGAUGE_OWN_PYTHONPATH"
"""The owner's ``PYTHONPATH`` where it comes from a ConfigMap, a Secret or a field: Kubernetes joins the two."""

LEVELS = ("off", "dormant", "stats", "auto", "trace")
"""``tidegauge.probe.levels``."""
BARE_LEVEL = "auto"
"""The level of ``true`` and of an empty label."""

VERSION = "1"
"""Value of the annotation ``INJECTED``."""
POLICY_VERSION = "policy-1"
"""The value from the chart's MutatingAdmissionPolicy, which cannot read a workload; ``workloads.BY_POLICY`` tells it
by its beginning."""
