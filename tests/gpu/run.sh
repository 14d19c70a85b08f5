#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the tests of this folder, the figures of docs/figures.md, the demo.
#   tests/gpu/run.sh [OUT]      writes logs and JSON to OUT (default: ./gpu-results)
#   PARTS="profile"             some of it; SOURCES=DIR has nanoGPT, PEERS=SITE_PACKAGES other memory profilers
# Uses python3's torch. Missing packages of the service are taken from ./.whl if wheels lie there (a machine without network).
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(mkdir -p "${1:-gpu-results}" && cd "${1:-gpu-results}" && pwd)
if compgen -G '.whl/*.whl' >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/tidegauge-site .whl/*.whl
  python3 -m compileall -q /tmp/tidegauge-site >/dev/null
  export PYTHONPATH=/tmp/tidegauge-site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD/collector:$PWD/exporter:$PWD/scheduler_hooks:$PWD/bench${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
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
for part in ${PARTS:-tests evidence demo bench profile}; do
  case $part in
    tests) step tests 1200 python3 -m pytest tests/gpu -v -p no:cacheprovider -p no:benchmark --ignore tests/gpu/test_evidence.py --ignore tests/gpu/test_profile.py ;;
    evidence) step evidence 400 python3 -m pytest tests/gpu/test_evidence.py -v -p no:cacheprovider -p no:benchmark -n 5 ;;
    demo) step demo 150 python3 -m tidegauge demo --folder "$out/demo" ;;
    bench)
      step step_ratio 300 python3 bench/step_ratio.py
      step probe_record_cost 60 python3 bench/probe_record_cost.py
      step startup 100 python3 bench/startup.py
      step agent_cost 100 python3 bench/agent_cost.py
      step scrape_cost 60 python3 bench/scrape_cost.py
      step evidence_cost 200 python3 bench/gpu_evidence.py
      ;;
    profile)
      step profile_ranks 300 python3 -m pytest tests/gpu/test_profile.py -v -s -p no:cacheprovider -p no:benchmark
      step profile_cost 100 python3 bench/gpu_evidence.py --profile
      step profile_sums 500 python3 bench/profile_sums.py "$out/profile_sums" ${SOURCES:+--sources "$SOURCES"}
      step profile_advice 400 python3 bench/profile_advice.py "$out/profile_advice.json" --on gpu
      step profile_walk 200 python3 bench/profile_walk.py "$out/profile_walk" --on gpu
      step profile_advice_models 200 python3 bench/profile_advice_models.py
      step module_hook 60 python3 bench/module_hook.py
      [ -z "${PEERS:-}" ] || step profile_peers 200 python3 bench/profile_peers.py "$out/profile_peers" --on gpu --packages "$PEERS"
      ;;
  esac
done
exit $failed
