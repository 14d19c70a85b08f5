#!/usr/bin/env bash
# A Debian with systemd and, in /opt/tidegauge, this checkout's Tidegauge: for tests that boot it (systemd-nspawn).
#   scripts/systemd_root.sh SUITE DIR   1.2 GB
# Then `TIDEGAUGE_TEST_SYSTEMD_ROOT=DIR .venv/bin/python -m pytest --matrix systemd-SUITE tests/integration/security`.
# Needs root, mmdebstrap and systemd-container. Changes nothing but DIR; the second time only Tidegauge is installed anew.
set -euo pipefail
[ $# = 2 ] || { echo "usage: $0 SUITE DIR, such as: $0 bookworm .systemd/bookworm" >&2; exit 2; }
suite=$1 folder=$(realpath -m -- "$2")
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "a Debian tree needs root: sudo $0 $suite $folder" >&2; exit 3; }
for tool in mmdebstrap systemd-nspawn; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: sudo apt-get install mmdebstrap systemd-container" >&2; exit 3; }
done

wheels=$(mktemp -d)
trap 'rm -rf -- "$wheels"' EXIT
pip() { PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip "$@" --quiet 2> >(grep -v ^WARNING >&2); }
pip wheel --no-deps --wheel-dir "$wheels" .
install() { # ARGUMENT…
  mkdir -p "$root/wheels" && cp -- "$wheels"/*.whl "$root/wheels/"
  env -i "$(command -v chroot)" "$root" /opt/tidegauge/bin/python -m pip install --quiet --no-index --find-links /wheels "$@"
  rm -rf -- "$root/wheels"
}
if [ -e "$folder/opt/tidegauge/bin/tidegauge" ]; then
  root=$folder
  install --force-reinstall --no-deps tidegauge
else
  root=$folder.partial
  rm -rf --one-file-system -- "$root"
  mkdir -p -- "${folder%/*}"
  mmdebstrap --quiet --variant=minbase --mode=root --aptopt='Acquire::Check-Valid-Until "false"' \
    --include=systemd,systemd-sysv,dbus,python3-venv,procps "$suite" "$root"
  chroot "$root" python3 -m venv /opt/tidegauge
  chroot "$root" useradd ada
  pip download --only-binary :all: --python-version "$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" \
    -c constraints.txt --dest "$wheels" "$(echo "$wheels"/tidegauge-*.whl)[slurm,exporter]"
  install 'tidegauge[slurm,exporter]'
  ln -s /opt/tidegauge/bin/tidegauge "$root/usr/local/bin/"
  rm -f -- "$root/etc/hostname" # each host that boots from it has its own, and its own id
  : >"$root/etc/machine-id"
  chmod 0755 -- "$root"
  mv -T -- "$root" "$folder"
fi
echo "made $folder: $(chroot "$folder" systemctl --version | head -n 1), $(chroot "$folder" tidegauge --version)"
