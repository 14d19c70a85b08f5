#!/usr/bin/env bash
# requirements.lock for a head: every package of 'tidegauge[all]' with its version and the sha256 of the file that this index
# gave, in build/supply_chain/requirements.lock; then checks that pip accepts nothing else (--require-hashes).
# Made where a release is made and never kept in the repository: hashes are those of one index, one platform and one Python.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/supply_chain
lock=build/supply_chain/requirements.lock
python=.venv/bin/python
report=$(mktemp)
trap 'rm -f -- "$report"' EXIT
"$python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --report "$report" -c constraints.txt '.[all]'
"$python" - "$report" > "$lock" <<'PYTHON'
import json
import sys

lines = []
for one in json.load(open(sys.argv[1], encoding="utf-8"))["install"]:
    name, version = one["metadata"]["name"], one["metadata"]["version"]
    if name != "tidegauge":
        lines.append(f"{name}=={version} --hash=sha256:{one['download_info']['archive_info']['hashes']['sha256']}")
print("\n".join(sorted(lines, key=str.lower)))
PYTHON
"$python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps --require-hashes -r "$lock"
echo "$lock: $(wc -l < "$lock") packages, each with its hash; pip takes them with --require-hashes"
