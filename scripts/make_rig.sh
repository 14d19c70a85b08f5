#!/usr/bin/env bash
# make_rig.sh DIR RIG_VENV TORCH [PYTHON]: a further rig, DIR/venv and DIR/lib, with another release of torch, or, with
# PYTHON (3.12), with TORCH for another Python. Its torch is its own. The small packages that torch imports are the first
# rig's, seen through a .pth line, as long as its Python is, too; another Python has its own of the same releases.
# Where no such Python is on this machine, it says so and makes nothing.
set -euo pipefail
dir=$1 rig=$2 torch=$3 version=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
shopt -s nullglob
first=("$rig"/lib/python3*/site-packages/torch)
if [ ${#first[@]} -ne 1 ]; then
  echo "no torch in $rig: the first rig comes before the others; say: make rig" >&2
  exit 3
fi

# The first that answers: pyenv's `python3.12` on PATH may only say that it is not the chosen one.
python_of() {
  local candidate own
  own=$(dirname "$dir")/python$1/usr/bin/python$1   # of scripts/debian_python.sh
  for candidate in "$own" "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1"; do
    if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

python=$rig/bin/python
if [ -n "$version" ] && ! python=$(python_of "$version"); then
  echo "no rig for Python $version: there is no python$version with venv here (on PATH, of pyenv, or of scripts/debian_python.sh)"
  exit 0
fi
"$here/make_venv.sh" "$python" "$dir/venv"
site=("$dir"/venv/lib/python3*/site-packages)
install() { "$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
# Not while pip runs: it would take the first rig's torch for one that it has to replace.
rm -f "${site[0]}/_rig.pth"
echo "the rig of torch $torch${version:+ for Python $version}: installing PyTorch's CUDA build (about 530 MB, once)"
# `===` picks the CUDA build where an index also has a CPU one; --no-deps keeps NVIDIA's packages out (tests/fakegpu).
install --no-deps "torch===$torch"
if [ -n "$version" ]; then
  mapfile -t small < <("$rig/bin/python" -m pip freeze --disable-pip-version-check | grep -iE \
    '^(filelock|typing.extensions|sympy|mpmath|networkx|jinja2|markupsafe|fsspec|numpy)==')
  install --no-deps "${small[@]}"
else
  (cd "${first[0]%/torch}" && pwd) >"${site[0]}/_rig.pth"
fi
"$dir/venv/bin/python" "$here/../tests/fakegpu/build.py" --venv "$dir/venv" --out "$dir/lib"
