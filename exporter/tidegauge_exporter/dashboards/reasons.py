"""Why a query may rightly have no result (``Query.may_be_empty``)."""

from __future__ import annotations

from typing import Final

NO_GROWTH: Final = "absent while nothing grows"
NOTHING_HAPPENED: Final = "nothing of the kind happened in the range"
NONE_OPEN: Final = "no incident is open"
NO_NVML: Final = "NVML does not work on this node"
NO_DCGM: Final = "dcgm-exporter does not run, or another Prometheus scrapes it"
