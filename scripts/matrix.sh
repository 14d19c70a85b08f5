#!/usr/bin/env bash
# matrix.sh [CELL …]: tests under further releases of torch, further Pythons, further Slurms, of the container images,
# of a real containerd and of a real systemd, each in an environment that is made for it. Without a CELL: all of tests/matrix.py. A cell that cannot be made here is named and left out; in CI it
# is a failure. PYTEST: further arguments of its tests.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- $(.venv/bin/python tests/matrix.py all)
here=() failed=0
rig() { if make --no-print-directory ".rig/$value/.made"; then here+=("$cell"); else failed=1; fi; }
for cell in "$@"; do
  value=${cell#*-}
  case $cell in
    torch-*) rig ;;
    # Probe's tests need an interpreter alone; jobs are attached to where there is a rig as well.
    python-3.14)
      # Debian sid's, where it still is that one: what sid has now is nobody's fault here.
      scripts/debian_python.sh "$value" ".rig/python$value" || { echo "matrix: $cell is left out" >&2; continue; }
      rig ;;
    python-3.12 | python-3.13) rig ;;
    python-*) here+=("$cell") ;;
    slurm-*)
      scripts/slurm_release.sh "$value" ".slurm/$value" || { [ -z "${CI:-}" ] || failed=1; continue; }
      echo "matrix: $cell"
      TIDEGAUGE_SLURM_TREE=$PWD/.slurm/$value scripts/integration.sh ${PYTEST:-} tests/integration/slurm || failed=1 ;;
    images-*)
      # Not in a shard, which has no network: packages are installed into the images.
      echo "matrix: $cell"
      .venv/bin/python -m pytest -n0 ${PYTEST:-} --matrix "$cell" tests/integration/chart/test_images.py || failed=1 ;;
    containerd-*)
      scripts/containerd_release.sh .containerd || { [ -z "${CI:-}" ] || failed=1; continue; }
      echo "matrix: $cell"
      TIDEGAUGE_TEST_CONTAINERD=$PWD/.containerd/bin scripts/integration.sh ${PYTEST:-} \
        tests/integration/kubernetes/test_nri_plugin.py || failed=1 ;;
    systemd-*)
      # Not in a shard, whose process table the container's own would be in.
      scripts/systemd_root.sh "$value" ".systemd/$value" || { [ -z "${CI:-}" ] || failed=1; continue; }
      echo "matrix: $cell"
      TIDEGAUGE_TEST_SYSTEMD_ROOT=$PWD/.systemd/$value .venv/bin/python -m pytest -n0 ${PYTEST:-} --matrix "$cell" \
        tests/integration/security/test_real_systemd.py || failed=1 ;;
    *) echo "matrix: $cell is none of: $(.venv/bin/python tests/matrix.py all)" >&2; exit 2 ;;
  esac
done
if [ ${#here[@]} -gt 0 ]; then
  echo "matrix: ${here[*]}"
  scripts/integration.sh ${PYTEST:-} --matrix "${here[*]}" || failed=1
fi
exit $failed
