#!/bin/bash
# Installs Tidegauge on a host of a Slurm cluster (docs/slurm.md). Says first which files it would touch, then asks, then
# touches those and nothing else: slurm.conf, services and users stay the admin's, and what is left to do is printed.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly lib=/usr/local/lib/tidegauge
readonly systemd=/etc/systemd/system

usage() {
    cat <<END
usage: install.sh --role ROLE [option...]

  --role head           the coordinator; needs --node-address the first time
  --role node           the agent of a compute node, prolog and epilog, the option --memory-profile; needs --head the
                        first time, unless the host is the head as well
  --role submit         the option --memory-profile, for login nodes
                        (--role may be repeated)

  --node-address IP     head: its address for the nodes
  --head HOST:PORT      node: where the head is (its engine_port is 6399)
  --token-file FILE     node: a copy of the head's /var/lib/tidegauge/token
  --cluster NAME        for a new config.yaml: the cluster's name (default: default)
  --listen ADDRESS      for a new config.yaml: where /metrics and the API listen (default: 127.0.0.1)
  --prefix DIR          where Tidegauge's environment is (default: /opt/tidegauge)
  --probe DIR           the probe's folder, where there is no such environment (submit)
  --slurm-conf-dir DIR  where slurm.conf is (default: that of SLURM_CONF, else /etc/slurm)
  --slurm-prefix DIR    where Slurm is installed, if the compiler does not find its headers by itself
  --without-spank       do not install the option (docs/slurm_flag.md: other ways)

  --yes                 do not ask
  --uninstall           remove what was installed; settings and the token stay
  --root DIR            put everything below DIR (an image, a package)
END
}

die() { # EXIT-STATUS TEXT
    echo "install.sh: $2" >&2
    exit "$1"
}

roles='' node_address='' head='' token_file='' cluster=default listen=127.0.0.1 prefix=/opt/tidegauge probe=''
slurm_conf_dir='' slurm_prefix='' spank=yes assume_yes=no uninstall=no root=''

while [ $# -gt 0 ]; do
    case $1 in
        --yes) assume_yes=yes; shift; continue ;;
        --uninstall) uninstall=yes; shift; continue ;;
        --without-spank) spank=no; shift; continue ;;
        --help | -h) usage; exit 0 ;;
    esac
    case $1 in
        --role | --node-address | --head | --token-file | --cluster | --listen | --prefix | --probe | --slurm-conf-dir | \
            --slurm-prefix | --root) [ $# -ge 2 ] || die 2 "$1 needs a value; try --help" ;;
        *) die 2 "unknown option $1; try --help" ;;
    esac
    case $1 in
        --role) roles+=" $2" ;;
        --node-address) node_address=$2 ;;
        --head) head=$2 ;;
        --token-file) token_file=$2 ;;
        --cluster) cluster=$2 ;;
        --listen) listen=$2 ;;
        --prefix) prefix=$2 ;;
        --probe) probe=$2 ;;
        --slurm-conf-dir) slurm_conf_dir=$2 ;;
        --slurm-prefix) slurm_prefix=$2 ;;
        --root) root=${2%/} ;;
    esac
    shift 2
done

# What is written into units and YAML must mean there what it meant here.
check() { # OPTION VALUE PATTERN WHAT
    [[ -z $2 || $2 =~ ^($3)$ ]] || die 2 "$1 takes $4, not '$2'"
}
readonly path_pattern='/[A-Za-z0-9._/-]+'
for role in $roles; do check --role "$role" 'head|node|submit' 'head, node or submit'; done
[ -n "$roles" ] || die 2 "--role is needed: head, node or submit; try --help"
check --node-address "$node_address" '[0-9.]+|[0-9A-Fa-f:]+' 'an IP address'
check --head "$head" '[]A-Za-z0-9.:[-]+:[0-9]{1,5}' 'HOST:PORT'
check --cluster "$cluster" '[A-Za-z0-9._-]{1,100}' 'letters, digits, . _ and -'
check --listen "$listen" '[0-9.]+|[0-9A-Fa-f:]+' 'an IP address'
check --prefix "$prefix" "$path_pattern" 'an absolute path of plain characters'
check --probe "$probe" "$path_pattern" 'an absolute path of plain characters'
if [ -z "$slurm_conf_dir" ]; then
    slurm_conf_dir=/etc/slurm
    [ -z "${SLURM_CONF-}" ] || slurm_conf_dir=$(dirname "$SLURM_CONF")
fi
check --slurm-conf-dir "$slurm_conf_dir" "$path_pattern" 'an absolute path of plain characters'
[ "$(id -u)" = 0 ] || [ -n "$root" ] || die 3 "this installs for all users: run it as root, or with --root DIR"

has_role() { [[ " $roles " == *" $1 "* ]]; }

stage=$(mktemp -d)
readonly stage
trap 'rm -rf -- "$stage"' EXIT

# The plan: one entry a file. Its content waits in the stage; "keep": once it is there it is the admin's. Not at the end of
# a pipe, which is a shell of its own, with arrays of its own.
paths=() modes=() keeps=() states=()
plan() { # PATH MODE [keep], content on stdin
    local staged=$stage/${#paths[@]}
    cat >"$staged"
    paths+=("$1") modes+=("$2") keeps+=("${3-}")
}
to_do=()

settings() {
    local tools
    tools=$(dirname "$(command -v scontrol || echo /usr/bin/scontrol)")
    echo "# Settings of Tidegauge's service on this host. All are optional: docs/settings.md."
    echo "cluster: $cluster"
    echo "# Address that /metrics and the API listen on. They have no password, and change nothing."
    echo "listen_host: $listen"
    case $tools in
        /usr/bin | /usr/local/bin | /bin) ;;
        *) echo "slurm_bin_dir: $tools" ;;
    esac
    [ "$slurm_conf_dir" = /etc/slurm ] || echo "slurm_conf: $slurm_conf_dir/slurm.conf"
    ! has_role head || echo "# policy_file: /etc/tidegauge/policy.yaml   # what is done about leaks: docs/policy.md"
}

plan_variable() { # FILE NAME VALUE OPTION: the one variable of a unit, written when its option is given
    if [ "$uninstall" = yes ] || { [ -z "$3" ] && [ -e "$root$1" ]; }; then
        plan "$1" 0644 keep </dev/null
    elif [ -n "$3" ]; then
        plan "$1" 0644 <<<"$2=$3"
    else
        die 2 "$4 is needed: there is no $1 yet"
    fi
}

plan_unit() { # NAME
    plan "$systemd/$1" 0644 < <(sed "s|/opt/tidegauge/|$prefix/|" "$here/../systemd/$1")
}

is_installed() { # UNIT
    [ -e "$root$systemd/$1" ]
}

# The other role's unit, which is not to be removed.
stays_what_needs_them() {
    { ! has_role head && is_installed tidegauge-head.service; } || { ! has_role node && is_installed tidegauge-opener.service; }
}

# What head and nodes have in common.
plan_service() {
    local path
    plan /etc/tidegauge/config.yaml 0644 keep < <(settings)
    ! { [ "$uninstall" = yes ] && stays_what_needs_them; } || return 0
    plan /etc/sysusers.d/tidegauge.conf 0644 <"$here/../systemd/tidegauge.sysusers.conf"
    plan /etc/tmpfiles.d/tidegauge.conf 0644 <"$here/../systemd/tidegauge.tmpfiles.conf"
    for path in "$prefix" "$(readlink -m -- "$prefix/bin/python")"; do
        case $path in
            /home/* | /root/* | /run/user/* | /tmp/* | /var/tmp/*)
                to_do+=("make the environment with another Python or elsewhere: units cannot see $path (ProtectHome=, PrivateTmp=)") ;;
        esac
    done
    to_do+=("systemd-sysusers tidegauge.conf && systemd-tmpfiles --create tidegauge.conf && systemctl daemon-reload")
}

plan_head() {
    plan_variable /etc/tidegauge/head.env NODE_ADDRESS "$node_address" --node-address
    plan_unit tidegauge-head.service
    has_role node || to_do+=("systemctl enable --now tidegauge-head")
}

# The head's own agent watches its host, with the opener; a second service would find its ports taken.
plan_head_on_node() {
    plan "$systemd/tidegauge-head.service.d/node.conf" 0644 <"$here/../systemd/tidegauge-head.node.conf"
}

plan_agent() {
    plan_variable /etc/tidegauge/agent.env HEAD "$head" --head
    plan_unit tidegauge-agent.service
    if [ -n "$token_file" ]; then
        [ -r "$token_file" ] || die 3 "--token-file $token_file cannot be read"
        plan /etc/tidegauge/token 0600 keep <"$token_file"
    elif [ ! -e "$root/etc/tidegauge/token" ]; then
        to_do+=("copy the head's /var/lib/tidegauge/token to /etc/tidegauge/token here (mode 0600)")
    fi
}

plan_node() {
    local service=tidegauge-agent
    if [ "$uninstall" = yes ]; then
        plan_agent
        plan_head_on_node
    elif has_role head; then
        plan_head_on_node
        service=tidegauge-head
        ! is_installed tidegauge-agent.service || to_do+=("systemctl disable --now tidegauge-agent")
    elif is_installed tidegauge-head.service; then
        die 2 "this host is the head, whose service has an agent of its own: use --role head --role node"
    else
        plan_agent
    fi
    plan_unit tidegauge-opener.service
    for script in prolog.sh epilog.sh; do plan "$lib/$script" 0755 <"$here/$script"; done
    to_do+=(
        "systemctl enable --now tidegauge-opener $service"
        "in slurm.conf (if it has a Prolog and an Epilog already, have them call these):"
        "    Prolog=$lib/prolog.sh"
        "    Epilog=$lib/epilog.sh"
    )
}

includes_others() { # FOLDER
    [ -n "$(find "$1" -name '*.conf' ! -name tidegauge.conf 2>/dev/null)" ]
}

plan_spank() {
    local plugstack=$slurm_conf_dir/plugstack.conf include="include $slurm_conf_dir/plugstack.conf.d/*.conf"
    if [ "$uninstall" = no ]; then
        if [ -z "$probe" ]; then
            probe=$("$prefix/bin/python" -c \
                'from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER as folder; print(folder)' 2>/dev/null) ||
                die 3 "Tidegauge is not installed in $prefix. Install it (python3 -m venv $prefix, then
$prefix/bin/pip install 'tidegauge[slurm,exporter]'), or give its folder with --prefix, or the probe's folder with --probe"
        fi
        make -s -C "$here/spank" BUILD="$stage/spank" SLURM_PREFIX="$slurm_prefix" >"$stage/make.log" 2>&1 || {
            cat "$stage/make.log" >&2
            die 3 "the plugin for --memory-profile cannot be built (see above); to skip it, use --without-spank"
        }
        plan "$lib/tidegauge.so" 0755 <"$stage/spank/tidegauge.so"
    else
        plan "$lib/tidegauge.so" 0755 </dev/null
    fi
    # optional: with required, a plugin of another Slurm release would stop every submission.
    plan "$slurm_conf_dir/plugstack.conf.d/tidegauge.conf" 0644 <<<"optional $lib/tidegauge.so probe=$probe"
    if [ "$uninstall" = yes ] && includes_others "$root$plugstack.d"; then
        return # what includes the site's other plugins by now is not ours to take away
    elif [ ! -e "$root$plugstack" ] || [ "$(cat "$root$plugstack")" = "$include" ]; then
        plan "$plugstack" 0644 <<<"$include"
    elif ! grep -qE "^[[:space:]]*include[[:space:]]+($slurm_conf_dir/)?plugstack\.conf\.d/" "$root$plugstack"; then
        to_do+=("in $plugstack: $include")
    fi
}

is_same() { # INDEX
    local path=$root${paths[$1]}
    [ ! -L "$path" ] && cmp -s -- "$stage/$1" "$path" && [ "$(stat -c '%a %u' -- "$path")" = "${modes[$1]#0} $(id -u)" ]
}

# As it is now, beside what it would become.
state_of() { # INDEX
    local path=$root${paths[$1]} there=no
    if [ -e "$path" ] || [ -L "$path" ]; then there=yes; fi
    case $uninstall,$there,${keeps[$1]} in
        yes,yes,keep) echo stays ;;
        yes,yes,) echo removed ;;
        yes,no,*) echo absent ;;
        no,no,*) echo new ;;
        no,yes,keep) echo stays ;;
        no,yes,) is_same "$1" && echo same || echo changed ;;
    esac
}

put() { # INDEX: in one step, so that nobody reads half a file
    local path=$root${paths[$1]}
    mkdir -p -- "$(dirname "$path")"
    install -m "${modes[$1]}" -- "$stage/$1" "$path.tidegauge-new"
    mv -T -- "$path.tidegauge-new" "$path"
}

confirmed() {
    local answer
    [ "$assume_yes" = no ] || return 0
    [ -t 0 ] || die 2 "nothing was changed: no terminal to ask for confirmation; use --yes to do the above"
    read -r -p "Do this? [y/N] " answer
    [[ $answer == [yY]* ]]
}

# A prolog that is configured and not there drains every node that starts a job.
if [ "$uninstall" = yes ] && has_role node && grep -qs "^[^#]*$lib/" "$root$slurm_conf_dir/slurm.conf"; then
    die 3 "slurm.conf still names scripts in $lib: remove them from Prolog and Epilog, run \`scontrol reconfigure\`, then try again"
fi
if has_role head || has_role node; then plan_service; fi
! has_role head || plan_head
! has_role node || plan_node
if [ "$spank" = yes ] && { has_role node || has_role submit; }; then plan_spank; fi

if [ "$uninstall" = yes ]; then
    ! has_role head || echo "First, if it is still running: systemctl disable --now tidegauge-head"
    ! has_role node || echo "First, if it is still running: systemctl disable --now tidegauge-agent tidegauge-opener"
fi
changes=0
for index in "${!paths[@]}"; do
    states+=("$(state_of "$index")")
    case ${states[$index]} in new | changed | removed) changes=$((changes + 1)) ;; esac
    printf '%-8s %s %-10s %s\n' "${states[$index]}" "${modes[$index]}" root:root "$root${paths[$index]}"
done
if [ "$changes" = 0 ]; then
    echo "Nothing to do."
else
    confirmed || die 1 "nothing was changed"
    for index in "${!paths[@]}"; do
        case ${states[$index]} in
            new | changed) put "$index" ;;
            removed) rm -f -- "$root${paths[$index]}" ;;
        esac
    done
    echo "Done: $changes files."
fi
if [ "$uninstall" = yes ]; then
    to_do=("remove /etc/tidegauge and /var/lib/tidegauge* when their settings and incidents are no longer needed")
fi
if [ ${#to_do[@]} -gt 0 ]; then
    printf '\nRemaining steps:\n'
    printf '  %s\n' "${to_do[@]}"
fi
