#!/bin/sh
# Prometheus with Tidegauge's configuration and rules, in the foreground and on loopback. See README.md beside this.
set -eu
. "$(dirname "$0")/common.sh"

data=$state/prometheus
port=9090
coordinator=127.0.0.1:9495
alertmanager=127.0.0.1:9093

usage() {
    cat <<END
usage: prometheus.sh [--data DIR] [--port N] [--coordinator HOST:PORT] [--alertmanager HOST:PORT] [-- FLAG...]

  --data DIR                where it keeps its data (default: $data)
  --port N                  port on 127.0.0.1 (default: $port)
  --coordinator HOST:PORT   Tidegauge's API, which lists what to scrape (default: $coordinator)
  --alertmanager HOST:PORT  (default: $alertmanager)
  FLAG                      handed to prometheus, such as --storage.tsdb.retention.time=30d
END
}

while [ $# -gt 0 ]; do
    case $1 in
        --data) needs_value "$1" $#; data=$2; shift 2 ;;
        --port) needs_value "$1" $#; port=$2; shift 2 ;;
        --coordinator) needs_value "$1" $#; coordinator=$2; shift 2 ;;
        --alertmanager) needs_value "$1" $#; alertmanager=$2; shift 2 ;;
        --help | -h) usage; exit 0 ;;
        --) shift; break ;;
        *) die "unknown option $1; try --help" ;;
    esac
done
check_port --port "$port"
check_address --coordinator "$coordinator"
check_address --alertmanager "$alertmanager"

prometheus=$(find_program prometheus) || die "Prometheus is not installed. Debian and Ubuntu: apt install prometheus
(and, because that starts a server of its own: systemctl disable --now prometheus). Others: unpack the archive from
prometheus.io/download and put the folder on PATH."

mkdir -p "$data"
sed -e "s|127\.0\.0\.1:9495|$coordinator|" -e "s|127\.0\.0\.1:9093|$alertmanager|" \
    -e "s|^  - rules/|  - $here/prometheus/rules/|" "$here/prometheus/prometheus.yml" >"$data/prometheus.yml"

echo "Prometheus: http://127.0.0.1:$port (data in $data; ctrl-C ends it)"
exec "$prometheus" --config.file="$data/prometheus.yml" --storage.tsdb.path="$data/tsdb" \
    --web.listen-address="127.0.0.1:$port" "$@"
