#!/usr/bin/env bash
# The bill of materials of the service, CycloneDX 1.6: what `pip install 'tidegauge[all]'` puts on a head, as constraints.txt
# pins it, in build/supply_chain/tidegauge-VERSION.cdx.json. Checked against CycloneDX's schema; the same input, the same file.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/supply_chain_tools.sh build/supply_chain/tools
service=build/supply_chain/service
if ! cmp --silent constraints.txt "$service/.made" || ! [ pyproject.toml -ot "$service/.made" ]; then
  scripts/make_venv.sh "${PYTHON:-python3}" "$service"
  echo "installing what a head runs (about 150 MB, once)" >&2
  "$service/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt '.[all]'
  cp constraints.txt "$service/.made"
fi
version=$("$service/bin/python" -c 'from importlib.metadata import version; print(version("tidegauge"))')
bill=build/supply_chain/tidegauge-$version.cdx.json
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)} \
  build/supply_chain/tools/bin/cyclonedx-py environment "$service/bin/python" --pyproject pyproject.toml \
  --mc-type application --sv 1.6 --of JSON --output-reproducible --validate --output-file "$bill"
build/supply_chain/tools/bin/python - "$bill" <<'PYTHON'
import json
import sys

bill = json.load(open(sys.argv[1], encoding="utf-8"))
parts = {part["name"]: part for part in bill["components"]}
unlicensed = sorted(name for name, part in parts.items() if not part.get("licenses"))
assert bill["specVersion"] == "1.6" and {"ray", "pydantic", "sqlalchemy"} <= {name.lower() for name in parts}, "not the service"
print(f"{sys.argv[1]}: {len(parts)} packages, {len(unlicensed)} without a licence in their metadata {unlicensed}")
PYTHON
