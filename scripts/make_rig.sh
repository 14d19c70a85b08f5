#!/usr/bin/env bash
# make_rig.sh DIR REQUIREMENTS [PYTHON]: a rig (tests/fakegpu) in DIR/venv and DIR/lib with the torch that REQUIREMENTS
# pins, for .venv's Python or for another (3.12). A rig that cannot be had is named, with the reason, and left out:
# its tests are skipped. In CI (CI=true) that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1 requirements=$2 version=${3:-}

cannot() {
  echo "no rig in $dir: $1" >&2
  [ -z "${CI:-}" ] || exit 3
  echo "its tests are skipped" >&2
  exit 0
}

# The first that answers: pyenv's `python3.12` on PATH may only say that it is not the chosen one.
python_of() {
  local candidate
  # The first is one of scripts/debian_python.sh.
  for candidate in ".rig/python$1/usr/bin/python$1" "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1"; do
    if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  return 1
}

python=.venv/bin/python
if [ -n "$version" ]; then
  python=$(python_of "$version") || cannot "there is no python$version with venv here (on PATH, of pyenv, or of scripts/debian_python.sh)"
fi
scripts/system_packages.sh gcc readelf   # the stub libraries are C
torch=$(sed -n 's/^torch==//p' "$requirements")
echo "a rig of torch $torch${version:+ for Python $version}: installing PyTorch's CUDA build (about 530 MB, once)"
log=$(mktemp)
trap 'rm -f -- "$log"' EXIT
if ! scripts/make_environment.sh --python "$python" "$dir/venv" --no-deps -r "$requirements" 2>"$log"; then
  cannot "torch $torch was not installed: $(tail -n 3 "$log" | tr '\n' ' ')"
fi
.venv/bin/python tests/fakegpu/build.py --venv "$dir/venv" --out "$dir/lib" || cannot "its libraries were not built"
# Bytecode of what every job imports: later ones may be of users who cannot write it, or have PYTHONDONTWRITEBYTECODE.
env -u PYTHONDONTWRITEBYTECODE LD_LIBRARY_PATH="$PWD/$dir/lib" "$dir/venv/bin/python" -c 'import torch.distributed.run' ||
  cannot "its torch cannot be imported"
touch "$dir/.made"
