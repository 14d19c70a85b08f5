#!/usr/bin/env bash
# make_venv.sh PYTHON DIR: a virtual environment, or a clear word on what is missing.
set -euo pipefail
python=$1 dir=$2
if ! said=$("$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "its version is " + sys.version.split()[0])' 2>&1); then
  echo "Tidegauge's developers need Python 3.11 or newer. '$python': ${said%%$'\n'*}" >&2
  echo "Name another one: make PYTHON=python3.12 …" >&2
  exit 3
fi
[ -x "$dir/bin/python" ] && exit 0
echo "making $dir"
if ! "$python" -m venv "$dir"; then
  rm -rf "$dir"
  echo "could not make a virtual environment; on Debian: apt-get install python3-venv" >&2
  exit 3
fi
