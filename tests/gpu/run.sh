#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the tests of this folder, the figures of docs/figures.md, the demo.
#   tests/gpu/run.sh [OUT]      writes logs and JSON to OUT (default: ./gpu-results)
# Uses python3's torch. Missing packages of the service are taken from ./.whl if wheels lie there (a machine without network).
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(mkdir -p "${1:-gpu-results}" && cd "${1:-gpu-results}" && pwd)
if compgen -G '.whl/*.whl' >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/tidegauge-site .whl/*.whl
  python3 -m compileall -q /tmp/tidegauge-site >/dev/null
  export PYTHONPATH=/tmp/tidegauge-site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD/collector:$PWD/exporter:$PWD/scheduler_hooks${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
failed=0
step() { # step NAME SECONDS COMMAND…
  local name=$1 seconds=$2; shift 2
  echo "== $name: $*"
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1
  local code=$?
  tail -n 25 "$out/$name.log"
  [ $code -eq 0 ] || { echo "== $name FAILED ($code)"; failed=1; }
}
nvidia-smi --query-gpu=index,name,uuid,memory.total,driver_version --format=csv | tee "$out/gpus.csv"
for part in ${PARTS:-tests evidence demo bench}; do
  case $part in
    tests) step tests 1200 python3 -m pytest tests/gpu -v -p no:cacheprovider -p no:benchmark --ignore tests/gpu/test_evidence.py ;;
    evidence) step evidence 400 python3 -m pytest tests/gpu/test_evidence.py -v -p no:cacheprovider -p no:benchmark -n 5 ;;
    demo) step demo 150 python3 -m tidegauge demo --folder "$out/demo" ;;
    bench)
      step step_ratio 300 python3 bench/step_ratio.py
      step probe_record_cost 60 python3 bench/probe_record_cost.py
      step startup 100 python3 bench/startup.py
      step agent_cost 100 python3 bench/agent_cost.py
      step scrape_cost 60 python3 bench/scrape_cost.py
      step evidence_cost 200 python3 bench/gpu_evidence.py
      step profile_cost 100 python3 bench/gpu_evidence.py --profile
      ;;
  esac
done
exit $failed
