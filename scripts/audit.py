"""Asks advisory services about each pinned package, and never takes "nobody answered" for "nothing is known".

pip-audit exits 0 and says "No known vulnerabilities found" where it could ask about no package at all, for instance
behind an index that has packages and no advisories; so what it skipped is counted here. Run by ``scripts/audit.sh``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

PINNED = Path(__file__).resolve().parents[1] / "constraints.txt"
SERVICES = ("pypi", "osv")
ALLOWED: dict[str, str] = {}
"""Advisories that do not concern Tidegauge, with the reason: ``{"PYSEC-…": "only with …, which is never used"}``."""
TIMEOUT_S = 300
NOT_ASKED = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--must-run", action="store_true", help="exit 3 where no service answers")
    must_run = bool(parser.parse_args().must_run)
    for service in SERVICES:
        print(f"asking {service} about the packages of {PINNED.name} …", file=sys.stderr, flush=True)
        answered = ask(service)
        if answered is not None:
            return judge(service, answered)
    print("NOT AUDITED: no advisory service can be reached from here. Where one can: scripts/audit.sh --must-run")
    return NOT_ASKED if must_run else 0


def ask(service: str) -> Optional[list[dict[str, Any]]]:
    """What it says of each package; ``None``: it knows none of them, or does not answer."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINNED), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", service, "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return packages if any("skip_reason" not in package for package in packages) else None


def judge(service: str, packages: list[dict[str, Any]]) -> int:
    """0 where every package was looked at and nothing is known of it that is not in ``ALLOWED``."""
    skipped = [package for package in packages if "skip_reason" in package]
    known = [
        (package, advisory)
        for package in packages
        for advisory in package.get("vulns", [])
        if advisory["id"] not in ALLOWED
    ]
    for package, advisory in known:
        fixed = ", ".join(advisory.get("fix_versions", [])) or "no release yet"
        print(f"{package['name']} {package['version']}: {advisory['id']}, mended in {fixed}")
    for package in skipped:
        print(f"{package['name']}: not audited: {package['skip_reason']}")
    print(
        f"{len(packages) - len(skipped)} packages asked about at {service}, {len(known)} advisories, "
        f"{len(skipped)} not audited"
    )
    return 1 if known or skipped else 0


if __name__ == "__main__":
    sys.exit(main())
