#!/bin/sh
# Grafana with Tidegauge's data source and dashboards, in the foreground and on loopback. See README.md beside this.
set -eu
. "$(dirname "$0")/common.sh"

data=$state/grafana
port=3000
prometheus=http://127.0.0.1:9090
alertmanager=http://127.0.0.1:9093
home=

usage() {
    cat <<END
usage: grafana.sh [--data DIR] [--port N] [--prometheus URL] [--alertmanager URL] [--home DIR]
                  [-- FLAG...]

  --data DIR          where it keeps its database, logs and plugins (default: $data)
  --port N            port on 127.0.0.1 (default: $port)
  --prometheus URL    (default: $prometheus)
  --alertmanager URL  (default: $alertmanager)
  --home DIR          Grafana's own folder, with conf/defaults.ini (default: beside the program, /usr/share/grafana)
  FLAG                handed to grafana server
END
}

while [ $# -gt 0 ]; do
    case $1 in
        --data) needs_value "$1" $#; data=$2; shift 2 ;;
        --port) needs_value "$1" $#; port=$2; shift 2 ;;
        --prometheus) needs_value "$1" $#; prometheus=$2; shift 2 ;;
        --alertmanager) needs_value "$1" $#; alertmanager=$2; shift 2 ;;
        --home) needs_value "$1" $#; home=$2; shift 2 ;;
        --help | -h) usage; exit 0 ;;
        --) shift; break ;;
        *) die "unknown option $1; try --help" ;;
    esac
done
check_port --port "$port"
check_url --prometheus "$prometheus"
check_url --alertmanager "$alertmanager"

# Since version 9.4 it is `grafana server`; before, a program of its own.
grafana=$(find_program grafana grafana-server) || die "Grafana is not installed (Debian has no package of it). Take one
from grafana.com/grafana/download: its package repository for your system, or an archive, whose bin folder goes on PATH."

# Its web pages lie beside the program in an archive, and in /usr/share/grafana from a package.
program=$(readlink -f "$grafana")
for folder in "$(dirname "$(dirname "$program")")" /usr/share/grafana; do
    if [ -z "$home" ] && [ -f "$folder/conf/defaults.ini" ]; then
        home=$folder
    fi
done
[ -n "$home" ] || die "$program is there, its folder with conf/defaults.ini is not (looked beside it and in
/usr/share/grafana): say where it is with --home DIR"

mkdir -p "$data/plugins"
export GF_PATHS_PROVISIONING="$here/grafana/provisioning"
export GF_PATHS_DATA="$data" GF_PATHS_LOGS="$data/log" GF_PATHS_PLUGINS="$data/plugins"
export GF_SERVER_HTTP_ADDR=127.0.0.1 GF_SERVER_HTTP_PORT="$port"
export GF_ANALYTICS_REPORTING_ENABLED=false GF_ANALYTICS_CHECK_FOR_UPDATES=false
export TIDEGAUGE_DASHBOARDS="$here/grafana/dashboards"
export TIDEGAUGE_PROMETHEUS_URL="$prometheus" TIDEGAUGE_ALERTMANAGER_URL="$alertmanager"

echo "Grafana: http://127.0.0.1:$port (data in $data; ctrl-C ends it). The first login is admin, admin."
if [ "$(basename "$grafana")" = grafana ]; then
    exec "$grafana" server --homepath "$home" "$@"
fi
exec "$grafana" --homepath "$home" "$@"
