#!/usr/bin/env bash
# Bundles the scripts of the HTML report, of the page of a profile and of the web UI: report_page/src and its npm packages, as the
# lockfile pins them, become report_page/built. `build_report_page.sh [FOLDER]` writes to FOLDER instead; `--packages` only installs the packages.
# Needs node and, once, npm's registry.
set -euo pipefail
export LC_ALL=C
only_packages=0
if [ "${1:-}" = --packages ]; then only_packages=1; shift; fi

root="$(cd "$(dirname "$0")/.." && pwd)"
page="$root/exporter/tidegauge_exporter/reports/report_page"
out="$(mkdir -p "${1:-$page/built}" && cd "${1:-$page/built}" && pwd)"
# Not beside the sources: a wheel would take it along.
packages="$root/build/report_page"

if ! cmp --silent "$page/package-lock.json" "$packages/installed-lock.json"; then
    mkdir -p "$packages"
    cp "$page/package.json" "$page/package-lock.json" "$page/.npmrc" "$packages"
    (cd "$packages" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
    cp "$page/package-lock.json" "$packages/installed-lock.json"
fi
[ "$only_packages" = 0 ] || exit 0
export NODE_PATH="$packages/node_modules"
esbuild="$NODE_PATH/.bin/esbuild"
cd "$page"

# What the bundle was made from, so that a forgotten build is seen without node.
sources="$(cat package-lock.json src/*.js src/profile/*.js src/site/*.js | sha256sum | cut -d ' ' -f 1)"
# ES2020: browsers of the last years. ASCII: the file's encoding cannot break it.
bundle() {  # an entry point, and the name of what becomes of it
    "$esbuild" "src/$1" --bundle --minify --format=iife --target=es2020 --charset=ascii --legal-comments=none \
        --log-level=warning --banner:js="/* sources $sources; licences: LICENSES.txt */" --outfile="$out/$2"
}
bundle main.js report.js
bundle profile/main.js profile.js
bundle site/main.js site.js
"$esbuild" "$NODE_PATH/uplot/dist/uPlot.min.css" --minify --target=es2020 --charset=ascii --log-level=warning \
    --outfile="$out/uplot.css"
{
    echo "report.js and site.js hold these packages, uplot.css the style sheet of uPlot."
    for package in uplot d3-hierarchy; do
        version="$(node -p "require('$NODE_PATH/$package/package.json').version")"
        printf '\n%s %s\n\n' "$package" "$version"
        cat "$NODE_PATH/$package/LICENSE"
    done
} > "$out/LICENSES.txt"
