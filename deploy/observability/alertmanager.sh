#!/bin/sh
# Alertmanager with Tidegauge's configuration, in the foreground and on loopback. See README.md beside this.
set -eu
. "$(dirname "$0")/common.sh"

data=$state/alertmanager
port=9093
receiver=127.0.0.1:9496
slack_url_file=

usage() {
    cat <<END
usage: alertmanager.sh [--data DIR] [--port N] [--receiver HOST:PORT | --slack-url-file FILE] [-- FLAG...]

  --data DIR             where it keeps silences and what it has told (default: $data)
  --port N               port on 127.0.0.1 (default: $port)
  --receiver HOST:PORT   Tidegauge's receiver, setting notify_port (default: $receiver)
  --slack-url-file FILE  no receiver: Alertmanager itself tells Slack, at the webhook address in FILE (absolute path)
  FLAG                   handed to alertmanager
END
}

while [ $# -gt 0 ]; do
    case $1 in
        --data) needs_value "$1" $#; data=$2; shift 2 ;;
        --port) needs_value "$1" $#; port=$2; shift 2 ;;
        --receiver) needs_value "$1" $#; receiver=$2; shift 2 ;;
        --slack-url-file) needs_value "$1" $#; slack_url_file=$2; shift 2 ;;
        --help | -h) usage; exit 0 ;;
        --) shift; break ;;
        *) die "unknown option $1; try --help" ;;
    esac
done
check_port --port "$port"
check_address --receiver "$receiver"

alertmanager=$(find_program prometheus-alertmanager alertmanager) || die "Alertmanager is not installed. Debian and
Ubuntu: apt install prometheus-alertmanager (and, because that starts a server of its own: systemctl disable --now
prometheus-alertmanager). Others: unpack the archive from prometheus.io/download and put the folder on PATH."

mkdir -p "$data"
if [ -n "$slack_url_file" ]; then
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
fi

echo "Alertmanager: http://127.0.0.1:$port (data in $data; ctrl-C ends it)"
# No --cluster.listen-address: it would open a port for others of its kind.
exec "$alertmanager" --config.file="$data/alertmanager.yml" --storage.path="$data" \
    --web.listen-address="127.0.0.1:$port" --cluster.listen-address= "$@"
