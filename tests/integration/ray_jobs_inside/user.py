"""What a user of the cluster does, with Ray's own client: a JSON line in, a JSON line out. Runs where Ray's client is.

``{"call": "submit_job", "arguments": {…}}`` calls that method of ``JobSubmissionClient``.
"""

from __future__ import annotations

import json
import sys

from ray.job_submission import JobSubmissionClient


def main() -> None:
    client = JobSubmissionClient(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            said = {"value": getattr(client, request["call"])(**request["arguments"])}
        except Exception as error:
            said = {"error": str(error)}
        print(json.dumps(said, default=str), flush=True)


main()
