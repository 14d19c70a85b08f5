#!/usr/bin/env bash
# Draws the dashboards into docs/img, without a Grafana server: figures from a real Prometheus, drawing by Grafana's own
# components in Chromium. Wants .venv, node with npm, prometheus, promtool and chromium. See README.md.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
here=scripts/preview
python=.venv/bin/python

if ! cmp -s $here/package.json $here/node_modules/.installed; then
  echo "installing Grafana's packages (about 460 MB, once)"
  npm install --prefix $here --no-progress --loglevel=error
  cp $here/package.json $here/node_modules/.installed
fi
$here/node_modules/.bin/esbuild $here/src/page.jsx --bundle --minify --outfile=$here/build/page.js --log-level=warning \
  --loader:.svg=text --loader:.ttf=empty --loader:.woff=empty --loader:.woff2=empty \
  --define:process.env.NODE_ENV='"production"'
PYTHONPATH=tests $python $here/figures.py $here/build/figures

picture() { # dashboard, theme, what follows its name
  $python $here/pictures.py $here/build/figures $here/build/page.js "tidegauge-$1" "$2" "docs/img/dashboard-$1$3.png"
}
for name in fleet job rank node incidents efficiency; do picture $name dark ""; done
for name in fleet job; do picture $name light -light; done
