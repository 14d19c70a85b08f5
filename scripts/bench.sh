#!/usr/bin/env bash
# Every figure of docs that needs no GPU, as JSON (tests/gpu/run.sh measures the others).
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
for bench in startup probe_record_cost detector_speed agent_cost scrape_cost closed_loop_cost slurm_describe keeper_cost footprint top_refresh fleet_queries replay web_access_cost; do
  echo "== bench/$bench.py"
  PYTHONPATH=tests .venv/bin/python "bench/$bench.py" || { echo "== bench/$bench.py missed its target"; failed=1; }
done
echo "== bench/callback_cost.py (in the environment of the trainers, on the rig)"
.venv/bin/python tests/fakegpu/rig.py run -- env PYTHONPATH=collector .trainers/venv/bin/python bench/callback_cost.py || failed=1
exit $failed
