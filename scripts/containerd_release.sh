#!/usr/bin/env bash
# A containerd with NRI for the tests, in a folder of its own: Debian trixie's, as bookworm's has none.
#   scripts/containerd_release.sh DIR   150 MB
# Then `TIDEGAUGE_TEST_CONTAINERD=DIR/bin .venv/bin/python -m pytest tests/integration/kubernetes/test_nri_plugin.py`.
# Needs root and mmdebstrap. Asks nothing, changes nothing but DIR, and does nothing when DIR has it already.
set -euo pipefail

[ $# = 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
folder=$(realpath -m -- "$1")
if [ -e "$folder/bin/runc" ]; then
  echo "$folder is there already: $("$folder/bin/containerd" --version)"
  exit 0
fi
if [ -e "$folder" ] && ! rmdir -- "$folder" 2>/dev/null; then
  echo "$folder is not a folder of this script and not empty: name another one" >&2
  exit 3
fi
[ "$(id -u)" = 0 ] || { echo "unpacking needs root: sudo $0 $folder" >&2; exit 3; }
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing: sudo apt-get install mmdebstrap" >&2; exit 3; }
own=$(. /etc/os-release && echo "${VERSION_CODENAME:-trixie}")

unpack() { # SUITE PACKAGE
  mmdebstrap --quiet --variant=extract --mode=root --aptopt='Acquire::Check-Valid-Until "false"' \
    --aptopt='APT::Install-Recommends "false"' --include="$2" "$1" "$folder/$2"
}
mkdir -p -- "$folder/bin"
unpack trixie containerd
unpack "$own" runc # it is linked with the machine's own libc; containerd takes an older one
ln -s "$folder"/containerd/usr/bin/{containerd,containerd-shim-runc-v2,ctr} "$folder/bin/"
ln -s "$folder/runc/usr/sbin/runc" "$folder/bin/runc"
echo "made $folder: $("$folder/bin/containerd" --version), $("$folder/bin/runc" --version | head -n 1)"
