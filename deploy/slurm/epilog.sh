#!/bin/bash
# Epilog of slurm.conf(5), run by slurmd as root on every node when a job ends there: removes what prolog.sh noted, and
# what dead processes of the job's user left in the run directories (docs/slurm.md).
#
# An epilog that fails drains its node: as in prolog.sh, a second shell with a time limit does the work, and the exit
# status is 0 on every path. A requeued job is noted again by its next prolog.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C # slurmd gives none
readonly records=/run/tidegauge/slurm
readonly limit_s=10

if [ "${1-}" != work ] && [ "${1-}" != sweep ]; then
    trap 'exit 0' EXIT TERM
    if ! said=$(timeout -k 1 "$limit_s" /bin/bash "${BASH_SOURCE[0]}" work 2>&1 | head -c 500); then
        timeout 2 logger -t tidegauge-epilog -p daemon.warning -- \
            "job ${SLURM_JOB_ID:-?}: cleanup is incomplete: ${said:-timeout after $limit_s s}"
    fi
    exit 0
fi

# Whether the process that <pid>-<starttime> names is there: field 22 of /proc/PID/stat, counted from behind the name,
# which may hold anything (proc(5)).
lives() {
    local stat fields
    { read -r stat <"/proc/${1%-*}/stat"; } 2>/dev/null || return 1
    read -ra fields <<<"${stat##*) }"
    [ "${fields[19]-}" = "${1#*-}" ]
}

# Removes, from the folder that the shell is in, every file of processes that do not live and of whose files none was
# touched for an hour. Living probes touch theirs every minute, also where a container gave them another pid; an agent
# that runs has removed the files long before.
remove_left_files() {
    local name stem dead=''
    local -A old=() young=()
    while read -r name; do
        old[${name%%.*}]+=" $name"
    done < <(listed -mmin +60)
    while read -r name; do
        young[${name%%.*}]=1
    done < <(listed ! -mmin +60)
    for stem in "${!old[@]}"; do
        if [ -z "${young[$stem]-}" ] && ! lives "$stem"; then
            dead+=${old[$stem]}
        fi
    done
    # All at once, as a program for each of thousands would outlast the time limit. Names of digits and known endings,
    # with nothing in them to quote.
    # shellcheck disable=SC2086
    rm -f -- $dead
}

listed() { # FIND'S TEST: names of our making in the current folder, no more than are worth the time
    find . -mindepth 1 -maxdepth 1 -uid "$(id -u)" "$@" -regextype posix-extended \
        -regex '\./[0-9]{1,10}-[0-9]{1,20}\.(ring|sock|job|job\.sock|job\.new)' -printf '%f\n' 2>/dev/null | head -n 4096
}

if [ "$1" = sweep ]; then # as the user, whose rights are all that a link in their folder could misuse
    for run_dir in /run/tidegauge /dev/shm/tidegauge; do
        if cd -P -- "$run_dir/$(id -u)" 2>/dev/null; then
            remove_left_files
        fi
    done
    exit 0
fi

if ! [[ ${SLURM_JOB_ID-} =~ ^[0-9]{1,10}$ && ${SLURM_JOB_UID-} =~ ^[0-9]{1,10}$ ]]; then
    echo "SLURM_JOB_ID and SLURM_JOB_UID are not set: only slurmd should run this"
    exit 1
fi
# Only in a folder of root's, and from within it: in the run directory anybody may have made one of that name, or a link.
if cd -P -- "$records" 2>/dev/null && [ "$(stat -c %u .)" = 0 ] && [ "$PWD" = "$records" ]; then
    rm -f -- "./$SLURM_JOB_ID"
fi
cd /
if [ "$SLURM_JOB_UID" != 0 ]; then
    # What is removed is the user's own, in the user's own folder. The group is nobody's: one with the same uid and gid
    # could be traced by the user's other jobs (ptrace(2)), and be made to hold our output open for ever. The script
    # comes open, as it may lie where only root reads.
    setpriv --reuid="$SLURM_JOB_UID" --regid=65534 --clear-groups --no-new-privs --inh-caps=-all \
        /bin/bash -s sweep <"${BASH_SOURCE[0]}"
fi
