"""Packages the chart and pushes it to a registry as an OCI artefact, by Helm's own code; prints its name there.

python scripts/push_chart.py oci://registry.example.org/gpu/charts
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import helm_python

CHART = Path(__file__).resolve().parents[1] / "helm" / "tidegauge"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="package the chart and push it")
    parser.add_argument("remote", metavar="oci://HOST/FOLDER")
    parser.add_argument("--plain-http", action="store_true", help="for a registry without TLS, such as one for tests")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            archive = helm_python.package(str(CHART), destination=folder)
            helm_python.push(archive, args.remote, plain_http=args.plain_http)
        except helm_python.HelmError as error:
            print(f"the chart was not pushed: {error}", file=sys.stderr)
            return 1
    name, _, version = Path(archive).stem.partition("-")
    print(f"{args.remote.rstrip('/')}/{name}:{version.replace('+', '_')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
