#!/usr/bin/env bash
# The demo on a real GPU where there is one, else on the fake-GPU rig (real PyTorch, real allocator, pretended device).
set -euo pipefail
cd "$(dirname "$0")/.."
for python in ${TIDEGAUGE_DEMO_PYTHON:-} python3 "${VIRTUAL_ENV:-/nowhere}/bin/python"; do
  if command -v "$python" >/dev/null && "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    exec .venv/bin/tidegauge demo --python "$(command -v "$python")" "$@"
  fi
done
echo "No GPU here: the demo runs on the fake-GPU rig."
echo "real       PyTorch's CUDA build and its allocator; so allocated and reserved bytes, lines, phases, the growth"
echo "pretended  the card and its size, memory outside PyTorch (500 MiB a process), kernels: they compute nothing"
make -s --no-print-directory rig
exec .venv/bin/python tests/fakegpu/rig.py run -- .venv/bin/tidegauge demo --backend gloo --python .rig/venv/bin/python "$@"
