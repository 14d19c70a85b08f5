# Shared by the three scripts beside it, which say `. common.sh`; does nothing by itself.

here=$(cd "$(dirname "$0")" && pwd)
state=${XDG_STATE_HOME:-$HOME/.local/state}/tidegauge

die() {
    echo "$(basename "$0"): $*" >&2
    exit 2
}

# The first of these programs that is on the path; nothing if none is.
find_program() {
    for name in "$@"; do
        if command -v "$name"; then
            return
        fi
    done
    return 1
}

# An option's value, or the end: needs_value OPTION COUNT_OF_ARGUMENTS_LEFT.
needs_value() {
    [ "$2" -ge 2 ] || die "$1 needs a value; try --help"
}

# A value that goes into a configuration by sed must be an address and nothing else.
check_address() {
    case $2 in
        "" | *[!A-Za-z0-9.:/_\[\]-]*) die "$1: '$2' is not an address" ;;
    esac
}

# The same of an address that a configuration wants without http:// and a path: check_host_port OPTION HOST:PORT.
check_host_port() {
    check_address "$1" "$2"
    host=${2%:*}
    number=${2##*:}
    case $host in
        \[*\]) ;;
        "" | */* | *:* | "$2") number= ;;
    esac
    case $number in
        "" | *[!0-9]*) die "$1: '$2' is not HOST:PORT, such as head:9495 or [2001:db8::1]:9495" ;;
    esac
}

# An address that goes into rules and pages by sed: check_url OPTION URL.
check_url() {
    case $2 in
        *[!A-Za-z0-9.:/_\[\]%?=~+-]*) die "$1: '$2' is not an http(s) address" ;;
        http://?* | https://?*) ;;
        *) die "$1: '$2' is not an http(s) address" ;;
    esac
}

check_port() {
    case $2 in
        "" | *[!0-9]*) die "$1: '$2' is not a port" ;;
    esac
}
