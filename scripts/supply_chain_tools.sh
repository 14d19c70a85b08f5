#!/usr/bin/env bash
# supply_chain_tools.sh VENV: what audits and lists packages, in an environment of its own: it must not change theirs.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
mkdir -p "$(dirname "$venv")"
exec 9> "$venv.lock"
flock 9   # two at once: the second finds it made
tools=(pip-audit==2.10.1 cyclonedx-bom==7.5.0)
if [ "$(cat "$venv/.made" 2>/dev/null)" != "${tools[*]}" ]; then
  scripts/make_venv.sh "${PYTHON:-python3}" "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${tools[@]}"
  echo "${tools[*]}" > "$venv/.made"
fi
