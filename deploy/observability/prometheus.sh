#!/bin/sh
# Prometheus with Tidegauge's configuration and rules, in the foreground and on loopback. See README.md beside this.
set -eu
. "$(dirname "$0")/common.sh"

data=$state/prometheus
port=9090
coordinator=127.0.0.1:9495
alertmanager=127.0.0.1:9093
grafana_url=http://localhost:3000
runbook_url=
service_url=
contact=

usage() {
    cat <<END
usage: prometheus.sh [--data DIR] [--port N] [--coordinator HOST:PORT] [--alertmanager HOST:PORT]
                     [--grafana-url URL] [--runbook-url URL] [--service-url URL] [--contact TEXT] [-- FLAG...]

  --data DIR                where it keeps its data (default: $data)
  --port N                  port on 127.0.0.1 (default: $port)
  --coordinator HOST:PORT   Tidegauge's API, which lists what to scrape (default: $coordinator)
  --alertmanager HOST:PORT  (default: $alertmanager)
  --grafana-url URL         where people reach Grafana: links of alerts (default: $grafana_url)
  --runbook-url URL         page of the runbooks: links of alerts (default: the copy that this Prometheus serves, at
                            http://localhost:PORT/consoles/tidegauge-runbooks.html; where people reach Prometheus by
                            another address, give that)
  --service-url URL         where people reach Tidegauge's API: links of alerts to the page of the job (default:
                            http://HOST:PORT of --coordinator)
  --contact TEXT            whom the runbooks say to call, such as "GPU on-call, +49 30 1234" (default: your cluster's
                            admins)
  FLAG                      handed to prometheus, such as --storage.tsdb.retention.time=30d
END
}

while [ $# -gt 0 ]; do
    case $1 in
        --data) needs_value "$1" $#; data=$2; shift 2 ;;
        --port) needs_value "$1" $#; port=$2; shift 2 ;;
        --coordinator) needs_value "$1" $#; coordinator=$2; shift 2 ;;
        --alertmanager) needs_value "$1" $#; alertmanager=$2; shift 2 ;;
        --grafana-url) needs_value "$1" $#; grafana_url=$2; shift 2 ;;
        --runbook-url) needs_value "$1" $#; runbook_url=$2; shift 2 ;;
        --service-url) needs_value "$1" $#; service_url=$2; shift 2 ;;
        --contact) needs_value "$1" $#; contact=$2; shift 2 ;;
        --help | -h) usage; exit 0 ;;
        --) shift; break ;;
        *) die "unknown option $1; try --help" ;;
    esac
done
check_port --port "$port"
check_host_port --coordinator "$coordinator"
check_host_port --alertmanager "$alertmanager"
: "${runbook_url:=http://localhost:$port/consoles/tidegauge-runbooks.html}"
: "${service_url:=http://$coordinator}"
check_url --grafana-url "$grafana_url"
check_url --service-url "$service_url"
check_url --runbook-url "$runbook_url"
grafana_url=${grafana_url%/}
case $contact in
    *[!A-Za-z0-9\ .,:/@#+\(\)_-]*) die "--contact: only letters, digits, spaces and . , : / @ # + ( ) _ -" ;;
esac

prometheus=$(find_program prometheus) || die "Prometheus is not installed. Debian and Ubuntu: apt install prometheus
(and, because that starts a server of its own: systemctl disable --now prometheus). Others: unpack the archive from
prometheus.io/download and put the folder on PATH."

mkdir -p "$data/rules" "$data/consoles"
for file in "$here"/prometheus/rules/*.yml; do
    sed -e "s|http://localhost:9090/consoles/tidegauge-runbooks\.html|$runbook_url|" \
        -e "s|http://localhost:3000|$grafana_url|" -e "s|http://localhost:9495|${service_url%/}|" "$file" >"$data/rules/${file##*/}"
done
sed -e "s|your cluster's admins|${contact:-&}|g" "$here/prometheus/consoles/tidegauge-runbooks.html" \
    >"$data/consoles/tidegauge-runbooks.html"
sed -e "s|127\.0\.0\.1:9495|$coordinator|" -e "s|127\.0\.0\.1:9093|$alertmanager|" \
    "$here/prometheus/prometheus.yml" >"$data/prometheus.yml"

echo "Prometheus: http://127.0.0.1:$port (data in $data; ctrl-C ends it)"
exec "$prometheus" --config.file="$data/prometheus.yml" --storage.tsdb.path="$data/tsdb" \
    --web.console.templates="$data/consoles" --web.listen-address="127.0.0.1:$port" "$@"
