#!/usr/bin/env bash
# Every figure of README and docs that needs no GPU, as JSON (tests/gpu/run.sh measures the others).
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
for bench in startup probe_record_cost detector_speed agent_cost scrape_cost closed_loop_cost keeper_cost footprint; do
  echo "== bench/$bench.py"
  .venv/bin/python "bench/$bench.py" || { echo "== bench/$bench.py missed its target"; failed=1; }
done
exit $failed
