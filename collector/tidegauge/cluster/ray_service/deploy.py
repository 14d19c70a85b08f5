"""``python -m tidegauge.cluster.ray_service.deploy NODE_JSON`` ensures that the coordinator runs, and prints its URL.

It is a module of its own because a class that Ray pickles must not live in ``__main__``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidegauge.cluster.service_record import RecordError, read_spec

DEPLOY_TIMEOUT_S = 60.0


def main(argv: list[str]) -> int:
    from tidegauge.cluster.ray_service.agent_reconciler import EngineError
    from tidegauge.cluster.ray_service.ray_engine import deploy

    try:
        print(deploy(read_spec(Path(argv[1])), timeout_s=DEPLOY_TIMEOUT_S))
    except (EngineError, RecordError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
