#!/usr/bin/env bash
# Known vulnerabilities of every package that constraints.txt pins, by pip-audit (PyPI's advisories, else OSV's).
#   scripts/audit.sh [--must-run]     exit 0: none known; 1: some are; 3: nothing could be asked, with --must-run
# Without a network there is nobody to ask. That is said, and is no failure unless --must-run says so (CI does).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/supply_chain_tools.sh build/supply_chain/tools
exec build/supply_chain/tools/bin/python scripts/audit.py "$@"
