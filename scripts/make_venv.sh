#!/usr/bin/env bash
# make_venv.sh PYTHON DIR: a virtual environment, or a clear word on what is missing.
set -euo pipefail
python=$1 dir=$2
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Developing Tidegauge needs Python 3.11 or newer; '$python' is not. Say: make PYTHON=python3.12 …" >&2
  exit 3
fi
[ -x "$dir/bin/python" ] && exit 0
echo "making $dir"
if ! "$python" -m venv "$dir"; then
  rm -rf "$dir"
  echo "could not make a virtual environment; on Debian: apt-get install python3-venv" >&2
  exit 3
fi
