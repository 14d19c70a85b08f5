#!/bin/sh
# Alertmanager with Tidegauge's configuration, in the foreground and on loopback. See README.md beside this.
set -eu
. "$(dirname "$0")/common.sh"

data=$state/alertmanager
port=9093
receiver=127.0.0.1:9496
slack_url_file=
service_receiver=
watchdog_receiver=
external_url=
print=

usage() {
    cat <<END
usage: alertmanager.sh [--data DIR] [--port N] [--external-url URL] [--watchdog-receiver FILE] [--print]
                       [--receiver HOST:PORT] [--service-receiver FILE] | [--slack-url-file FILE] [-- FLAG...]

  --data DIR                where it keeps silences and what it has sent (default: $data)
  --port N                  port on 127.0.0.1 (default: $port)
  --external-url URL        where people reach it: links to alerts and silences (default: http://HOSTNAME:PORT)
  --receiver HOST:PORT      Tidegauge's receiver, setting notify_port (default: $receiver)
  --service-receiver FILE   who is notified about Tidegauge itself, without its help: a copy of
                            alertmanager/service-receiver.example.yml. Give one: without it nobody is notified when
                            Tidegauge is down
  --watchdog-receiver FILE  dead man's switch that notices when Prometheus or Alertmanager is down: a copy of
                            alertmanager/watchdog-receiver.example.yml
  --slack-url-file FILE     no receiver: Alertmanager itself posts all alerts on Slack, at the webhook address in FILE
                            (absolute path)
  --print                   print the configuration and end: for an Alertmanager of your own
  FLAG                      handed to alertmanager
END
}

while [ $# -gt 0 ]; do
    case $1 in
        --data) needs_value "$1" $#; data=$2; shift 2 ;;
        --port) needs_value "$1" $#; port=$2; shift 2 ;;
        --receiver) needs_value "$1" $#; receiver=$2; shift 2 ;;
        --slack-url-file) needs_value "$1" $#; slack_url_file=$2; shift 2 ;;
        --service-receiver) needs_value "$1" $#; service_receiver=$2; shift 2 ;;
        --watchdog-receiver) needs_value "$1" $#; watchdog_receiver=$2; shift 2 ;;
        --external-url) needs_value "$1" $#; external_url=$2; shift 2 ;;
        --print) print=yes; shift ;;
        --help | -h) usage; exit 0 ;;
        --) shift; break ;;
        *) die "unknown option $1; try --help" ;;
    esac
done
check_port --port "$port"
check_host_port --receiver "$receiver"

[ -z "$external_url" ] || check_url --external-url "$external_url"

# The keys of a receiver, indented as they go into the configuration: receiver_lines OPTION FILE.
receiver_lines() {
    [ -r "$2" ] || die "$1: $2 cannot be read"
    [ -n "$(sed -n '/^[a-z]*_configs:/p' "$2")" ] ||
        die "$1: $2 names no receiver: a line such as slack_configs: has to begin in the first column"
    sed 's/^/    /' "$2"
}

# Puts FILE between the lines "NAME receiver: begin" and "NAME receiver: end": put NAME FILE <configuration.
put() {
    sed -e "/# $1 receiver: begin/r $2" -e "/# $1 receiver: begin/,/# $1 receiver: end/d"
}

warn() {
    echo "$(basename "$0"): $*" >&2
}

mkdir -p "$data"
umask 077 # receivers have passwords
if [ -n "$slack_url_file" ]; then
    [ -z "$service_receiver" ] || die "--service-receiver: with --slack-url-file Alertmanager posts all alerts itself,
those about the service too"
    check_address --slack-url-file "$slack_url_file"
    case $slack_url_file in
        /*) ;;
        *) die "--slack-url-file: '$slack_url_file' is not an absolute path" ;;
    esac
    [ -r "$slack_url_file" ] || die "--slack-url-file: $slack_url_file cannot be read: write Slack's webhook address into it"
    sed -e "s|/etc/tidegauge/slack-webhook-url|$slack_url_file|" \
        -e "s|\[slack\.tmpl\]|[$here/alertmanager/slack.tmpl]|" \
        "$here/alertmanager/alertmanager-slack.yml" >"$data/alertmanager.yml"
else
    sed -e "s|127\.0\.0\.1:9496|$receiver|" "$here/alertmanager/alertmanager.yml" >"$data/alertmanager.yml"
    [ -n "$service_receiver" ] || warn "WARNING: NOBODY WILL BE NOTIFIED WHEN TIDEGAUGE IS DOWN.
Alerts about the service itself have no receiver of their own, so Tidegauge has to send them. Copy
$here/alertmanager/service-receiver.example.yml, fill it in,
and give it with --service-receiver FILE."
fi
[ -n "$watchdog_receiver" ] || warn "Nobody will be notified when Prometheus or Alertmanager is down: give a dead man's switch
with --watchdog-receiver FILE (a copy of $here/alertmanager/watchdog-receiver.example.yml)."
for name in service watchdog; do
    case $name in
        service) file=$service_receiver ;;
        watchdog) file=$watchdog_receiver ;;
    esac
    if [ -n "$file" ]; then
        receiver_lines "--$name-receiver" "$file" >"$data/$name-receiver.yml"
        put "$name" "$data/$name-receiver.yml" <"$data/alertmanager.yml" >"$data/alertmanager.new.yml"
        mv "$data/alertmanager.new.yml" "$data/alertmanager.yml"
    fi
done
if [ -n "$print" ]; then
    exec cat "$data/alertmanager.yml"
fi

alertmanager=$(find_program prometheus-alertmanager alertmanager) || die "Alertmanager is not installed. Debian and
Ubuntu: apt install prometheus-alertmanager (and, because that starts a server of its own: systemctl disable --now
prometheus-alertmanager). Others: unpack the archive from prometheus.io/download and put the folder on PATH."
[ -z "$external_url" ] || set -- --web.external-url="$external_url" "$@"

echo "Alertmanager: http://127.0.0.1:$port (data in $data; ctrl-C ends it)"
# No --cluster.listen-address: it would open a port for others of its kind.
exec "$alertmanager" --config.file="$data/alertmanager.yml" --storage.path="$data" \
    --web.listen-address="127.0.0.1:$port" --cluster.listen-address= "$@"
