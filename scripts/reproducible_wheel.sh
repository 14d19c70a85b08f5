#!/usr/bin/env bash
# Builds the wheel twice, from two copies of the tree in different places, at different times, under different umasks, and
# compares them: exit 1 if a byte differs. Prints the wheel's sha256.
set -euo pipefail
cd "$(dirname "$0")/.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
export PIP_CONSTRAINT=$PWD/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
# Tracked files, and new ones that git does not ignore: what a checkout would have. Once: somebody may be working in here.
git ls-files -z --cached --others --exclude-standard \
  | while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done \
  | tar --create --null --files-from=- --file="$scratch/tree.tar"
build_in() {
  mkdir -p "$scratch/$1" "$scratch/wheel-$1"
  tar --extract --file="$scratch/tree.tar" --directory="$scratch/$1" --touch --no-same-permissions
  "${PYTHON:-python3}" -m pip wheel --quiet --no-deps --no-cache-dir --wheel-dir "$scratch/wheel-$1" "$scratch/$1"
}
(umask 022; build_in one)
(umask 077; build_in another/place)
one=$(echo "$scratch"/wheel-one/*.whl)
another=$(find "$scratch/wheel-another" -name '*.whl')
sha256sum "$one" | sed "s#$scratch/wheel-one/##"
if ! cmp "$one" "$another"; then
  echo "the two wheels differ: something in them depends on where or when they were built" >&2
  exit 1
fi
echo "built twice, the same to the byte (SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH)"
