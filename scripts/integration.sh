#!/usr/bin/env bash
# integration.sh [PYTEST_ARGUMENT …]: the integration tests. As root they run side by side, in SHARDS (4) shards with
# namespaces of their own (scripts/own_namespaces.sh); whoever may not make namespaces runs them one after another.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
shards=${SHARDS:-4}
[[ $shards =~ ^[1-9][0-9]*$ ]] || { echo "SHARDS=$shards: say how many shards, 1 or more" >&2; exit 2; }
# The smoke test is a tier of its own. A run of a part is not recorded for `make durations`.
[ $# -gt 0 ] || set -- --tier integration --ignore tests/integration/test_smoke.py tests/integration
case " $*" in *" tests/"*) ;; *) set -- --ignore tests/integration/test_smoke.py tests/integration "$@" ;; esac
if [ "$shards" -gt 1 ] && scripts/own_namespaces.sh true 2>/dev/null; then
  exec "$python" -m pytest --dist load --tx "$shards*popen//python=$PWD/scripts/own_namespaces.sh $python" "$@"
fi
[ "$shards" -le 1 ] || echo "integration tests run one after another: shards need root, unshare and ip" >&2
exec "$python" -m pytest "$@"
