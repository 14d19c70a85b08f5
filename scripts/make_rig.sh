#!/usr/bin/env bash
# make_rig.sh DIR RIG_VENV TORCH: a further rig, DIR/venv and DIR/lib, with another release of torch. Its torch is its
# own; the small packages that torch imports are the first rig's, seen through a .pth line, so its Python is, too.
set -euo pipefail
dir=$1 rig=$2 torch=$3
here=$(cd "$(dirname "$0")" && pwd)
shopt -s nullglob
first=("$rig"/lib/python3*/site-packages/torch)
if [ ${#first[@]} -ne 1 ]; then
  echo "no torch in $rig: the first rig comes before the others; say: make rig" >&2
  exit 3
fi
"$here/make_venv.sh" "$rig/bin/python" "$dir/venv"
site=("$dir"/venv/lib/python3*/site-packages)
# Not while pip runs: it would take the first rig's torch for one that it has to replace.
rm -f "${site[0]}/_rig.pth"
echo "the rig of torch $torch: installing PyTorch's CUDA build (about 530 MB, once)"
# `===` picks the CUDA build where an index also has a CPU one; --no-deps keeps NVIDIA's packages out (tests/fakegpu).
"$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile "torch===$torch"
(cd "${first[0]%/torch}" && pwd) >"${site[0]}/_rig.pth"
"$dir/venv/bin/python" "$here/../tests/fakegpu/build.py" --venv "$dir/venv" --out "$dir/lib"
