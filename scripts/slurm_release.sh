#!/usr/bin/env bash
# Another release of Slurm for the tests: a Debian tree with its Slurm in it, beside this machine's own.
#   scripts/slurm_release.sh trixie DIR   Slurm 24.11 in 460 MB; sid instead: 26.05 or later, as Debian moves on
# Then `TIDEGAUGE_SLURM_TREE=DIR .venv/bin/python -m pytest tests/integration/slurm` runs every box out of that tree.
# Needs root and mmdebstrap. Asks nothing, changes nothing but DIR (DIR.partial while it works), and does nothing when
# DIR is that tree already.
set -euo pipefail

usage="usage: $0 trixie|sid DIR"
[ $# = 2 ] || { echo "$usage" >&2; exit 2; }
suite=$1 tree=$(realpath -m -- "$2")
case $suite in trixie | sid) ;; *) echo "$suite is not a suite that the tests know; $usage" >&2; exit 2 ;; esac

packages=(
  slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge   # the cluster
  slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core   # accounting: operators and coordinators
  gcc libc6-dev libslurm-dev make                               # the SPANK plugin is built against its own release
  iproute2 mount util-linux procps hostname                     # hosts with their own network, names and mounts
  # what the Python of the checkout is linked with: it comes from the machine, its libraries from the tree
  libssl3 libffi8 libsqlite3-0 zlib1g liblzma5 libbz2-1.0 libreadline8 libncursesw6 libexpat1 libuuid1
)

made=$tree/etc/tidegauge-tree
wanted="$suite: ${packages[*]}"
if [ -e "$made" ] && [ "$(cat "$made")" = "$wanted" ]; then
  echo "$tree is there already: Slurm of $suite"
  exit 0
fi
if [ -e "$tree" ] && [ ! -e "$made" ] && ! rmdir -- "$tree" 2>/dev/null; then
  echo "$tree is not a tree of this script and not empty: name another folder" >&2
  exit 3
fi
[ "$(id -u)" = 0 ] || { echo "making a tree needs root: sudo $0 $suite $tree" >&2; exit 3; }
command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing: sudo apt-get install mmdebstrap" >&2; exit 3; }

echo "making $tree: Debian $suite with ${packages[*]}"
mkdir -p -- "${tree%/*}"
# Beside its place until it is whole, so that what was left half made is never taken for a tree.
partial=$tree.partial
rm -rf --one-file-system -- "$partial"
# Valid-Until: a mirror may lag behind; nothing of a tree for tests is trusted with anything.
mmdebstrap --quiet --variant=essential --mode=root \
  --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
  --include="$(IFS=, && echo "${packages[*]}")" "$suite" "$partial"
chmod 0755 -- "$partial"   # users of the box must reach their programs
echo "$wanted" >"$partial/etc/tidegauge-tree"
rm -rf --one-file-system -- "$tree"
mv -- "$partial" "$tree"
echo "made $tree: $(chroot "$tree" slurmctld -V), $(du -sh "$tree" | cut -f1)"
