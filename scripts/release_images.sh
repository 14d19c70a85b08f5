#!/usr/bin/env bash
# release_images.sh [--dry-run] REGISTRY/FOLDER [BUILDAH-BUD-OPTION …]: the images of a release and its chart, published.
# Builds service, agent and probe with buildah, writes what is in each (CycloneDX) into build/supply_chain/, pushes images
# and chart, and signs all four by digest with cosign, each image's bill attested. --dry-run prints these commands alone.
# Options go to each build, such as --secret=id=pip_conf,src=FILE. COSIGN_KEY is the key, else cosign asks who you are
# (keyless). PLAIN_HTTP=1 is for a registry without TLS, SIGN=0 for one that nobody trusts anyway.
set -euo pipefail
cd "$(dirname "$0")/.."
dry_run=
if [ "${1-}" = --dry-run ]; then dry_run=1; shift; fi
[ $# -ge 1 ] || { echo "usage: $0 [--dry-run] REGISTRY/FOLDER [BUILDAH-BUD-OPTION ...]" >&2; exit 2; }
registry=${1%/}
shift
python=${PYTHON:-.venv/bin/python}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml | head -n 1)
chart=$(sed -n 's/^version: //p' helm/tidegauge/Chart.yaml)
revision=$(git describe --always --abbrev=40 --dirty --exclude="*")
bills=build/supply_chain

run() { # COMMAND …
  if [ -n "$dry_run" ]; then printf '%q ' "$@"; echo; else "$@"; fi
}

digest() { # FILE, of a push
  if [ -n "$dry_run" ]; then echo "sha256:DIGEST"; else cat "$1"; fi
}

sign() { # NAME@DIGEST [BILL]
  [ "${SIGN:-1}" = 1 ] || return 0
  local key=()
  [ -z "${COSIGN_KEY-}" ] || key=(--key "$COSIGN_KEY")
  run cosign sign --yes "${key[@]}" "$1"
  [ -z "${2-}" ] || run cosign attest --yes "${key[@]}" --type cyclonedx --predicate "$2" "$1"
}

if [ -z "$dry_run" ]; then
  needed=(buildah skopeo)
  [ "${SIGN:-1}" != 1 ] || needed+=(cosign)
  for tool in "${needed[@]}"; do
    command -v "$tool" >/dev/null || { echo "$tool is missing" >&2; exit 3; }
  done
  mkdir -p "$bills"
fi
tls=()
[ "${PLAIN_HTTP-}" != 1 ] || tls=(--tls-verify=false)
run scripts/supply_chain_tools.sh "$bills/tools"
for image in tidegauge:service:service tidegauge-agent:service:agent tidegauge-probe:probe:; do
  IFS=: read -r name file target <<<"$image"
  bill=$bills/$name-$version.cdx.json
  run buildah bud --layers --timestamp "$(git log -1 --format=%ct)" ${target:+--target "$target"} \
    --file "deploy/containers/$file.Dockerfile" --ignorefile "deploy/containers/$file.Dockerfile.dockerignore" \
    --build-arg "VERSION=$version" --build-arg "REVISION=$revision" "$@" --tag "$registry/$name:$version" .
  run scripts/image_sbom.sh "$registry/$name:$version" "$bill"
  run buildah push "${tls[@]}" --digestfile "$bills/$name.digest" "$registry/$name:$version" "docker://$registry/$name:$version"
  sign "$registry/$name@$(digest "$bills/$name.digest")" "$bill"
done
run "$python" scripts/push_chart.py ${PLAIN_HTTP:+--plain-http} "oci://$registry/charts"
if [ -n "$dry_run" ]; then
  sign "$registry/charts/tidegauge@sha256:DIGEST"
else
  sign "$registry/charts/tidegauge@$(skopeo inspect "${tls[@]}" --format '{{.Digest}}' "docker://$registry/charts/tidegauge:$chart")"
fi
