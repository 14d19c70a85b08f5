#!/usr/bin/env bash
# image_sbom.sh IMAGE BILL: what an image of buildah's store is made of, as CycloneDX 1.6: Python's packages and Debian's.
set -euo pipefail
cd "$(dirname "$0")/.."
image=$1 bill=$2
tools=build/supply_chain/tools/bin
container=$(buildah from --pull-never "$image")
trap 'buildah rm "$container" >/dev/null' EXIT
root=$(buildah mount "$container")
mkdir -p "$(dirname "$bill")"
if [ -d "$root/opt/tidegauge" ]; then
  # cyclonedx-py asks an interpreter for its path; that of the image answers as it would in there.
  interpreter=$(mktemp -d)/python
  printf '#!/bin/sh\nchroot %q /opt/tidegauge/bin/python "$@" | sed %q\n' "$root" "s#\"/#\"$root/#g" >"$interpreter"
  chmod +x "$interpreter"
  "$tools/cyclonedx-py" environment "$interpreter" --sv 1.6 --of JSON --output-reproducible --output-file "$bill"
  rm -r "${interpreter%/*}"
else
  echo '{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}' >"$bill"
fi
"$tools/python" scripts/image_sbom.py "$bill" "$root" "$image"
