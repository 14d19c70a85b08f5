#!/usr/bin/env bash
# A Python that this machine's own Debian does not have, for the tests: the interpreter of Debian sid, in a folder.
#   scripts/debian_python.sh 3.14 DIR     67 MB; then DIR/usr/bin/python3.14 runs from there (and nowhere else)
# The interpreter is told to use the C library that came with it. Needs root, mmdebstrap and patchelf; changes nothing
# but DIR (DIR.partial while it works), and does nothing when DIR has that Python already.
set -euo pipefail

[ $# = 2 ] || { echo "usage: $0 VERSION DIR, such as: $0 3.14 .rig/python3.14" >&2; exit 2; }
version=$1 tree=$(realpath -m -- "$2")
python=$tree/usr/bin/python$version

if [ -x "$python" ]; then
  echo "$python is there already"
  exit 0
fi
for tool in mmdebstrap patchelf; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: sudo apt-get install $tool" >&2; exit 3; }
done
[ "$(id -u)" = 0 ] || { echo "unpacking a Debian tree needs root: sudo $0 $version $tree" >&2; exit 3; }

packages=(
  "python$version" "python$version-venv"
  # what torch and the interpreter's own modules are linked with
  libstdc++6 libssl3t64 libffi8 zlib1g libbz2-1.0 liblzma5 libsqlite3-0 libexpat1 libuuid1
)
mkdir -p -- "${tree%/*}"
partial=$tree.partial
rm -rf --one-file-system -- "$partial"
# Valid-Until: a mirror may lag behind; nothing of a tree for tests is trusted with anything.
if ! mmdebstrap --quiet --variant=extract --mode=root \
  --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
  --include="$(IFS=, && echo "${packages[*]}")" sid "$partial"; then
  rm -rf --one-file-system -- "$partial"
  echo "Debian sid has no python$version for this machine, or cannot be reached" >&2
  exit 3
fi
libraries=$tree/usr/lib/$(uname -m)-linux-gnu
loader=$(basename "$(find "$partial/usr/lib/$(uname -m)-linux-gnu" -maxdepth 1 -name 'ld-linux*' -print -quit)")
# RPATH, not RUNPATH: only that counts for the libraries of libraries, too.
patchelf --set-interpreter "$libraries/$loader" --force-rpath --set-rpath "$libraries" "$partial/usr/bin/python$version"
# Debian's ensurepip takes pip from where this says, which would be this machine's.
sed -i "s#/usr/share/python-wheels/#$tree&#" "$partial/usr/lib/python$version"/_sysconfigdata__*.py
chmod 0755 -- "$partial"   # tests run it as other users, too
rm -rf --one-file-system -- "$tree"
mv -- "$partial" "$tree"
"$python" -c 'import ctypes, ssl, sys, venv; print("made", sys.executable, sys.version.split()[0])'
