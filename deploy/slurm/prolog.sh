#!/bin/bash
# Prolog of slurm.conf(5), run by slurmd as root on every node of a job: notes whose the job is, which attempt it is and
# which GPUs of this node it was given, for Tidegauge's agent (docs/slurm.md). epilog.sh removes the note.
#
# A prolog that fails drains its node. So the work is done by a second shell with a time limit, what goes wrong is a line
# in the system's log, and the exit status is 0 on every path. Nobody is asked over the network.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C # slurmd gives none
readonly run_dir=/run/tidegauge
readonly records=$run_dir/slurm
readonly limit_s=5

if [ "${1-}" != work ]; then
    trap 'exit 0' EXIT TERM
    if ! said=$(timeout -k 1 "$limit_s" /bin/bash "${BASH_SOURCE[0]}" work 2>&1); then
        timeout 2 logger -t tidegauge-prolog -p daemon.warning -- \
            "job ${SLURM_JOB_ID:-?}: no record written, its ranks appear without Slurm's facts: ${said:-timeout after $limit_s s}"
    fi
    exit 0
fi

is_folder_of_root() {
    [ "$(stat -c '%u %F' -- "$1" 2>/dev/null)" = "0 directory" ]
}

# A folder of root's. Where somebody was here first with that name, theirs is moved aside, and not looked into: the run
# directory is everybody's, like /tmp, and its sticky bit keeps what is root's.
make_folder() { # PATH MODE
    for _ in 1 2 3; do
        if mkdir -m "$2" -- "$1" 2>/dev/null; then
            return
        elif is_folder_of_root "$1"; then
            chmod -- "$2" "$1"
            return
        fi
        mv -T -- "$1" "$1.aside.$RANDOM$RANDOM"
    done
    echo "$1 cannot be created"
    return 1
}

# TEXT if all of it is PATTERN, else nothing: an empty value says "unknown".
only() { # PATTERN TEXT
    if [[ $2 =~ ^($1)$ ]]; then printf '%s' "$2"; fi
}

umask 022
job_id=$(only '[0-9]{1,10}' "${SLURM_JOB_ID-}")
uid=$(only '[0-9]{1,10}' "${SLURM_JOB_UID-}")
if [ -z "$job_id" ] || [ -z "$uid" ]; then
    echo "SLURM_JOB_ID and SLURM_JOB_UID are not set: only slurmd should run this"
    exit 1
fi
make_folder "$run_dir" 1777
make_folder "$records" 0755
# Written beside and renamed: the agent never sees half a record.
draft=$(mktemp -- "$records/.draft.XXXXXX")
trap 'rm -f -- "$draft"' EXIT
# Slurm 22.05 tells a prolog on the nodes nothing of arrays; 4294967294 is its "no value" where a release does.
cat >"$draft" <<END
JOB_ID=$job_id
UID=$uid
RESTART_COUNT=$(only '[0-9]{1,9}' "${SLURM_JOB_RESTART_COUNT-${SLURM_RESTART_COUNT-}}")
ARRAY_JOB_ID=$(only '[0-9]{1,9}' "${SLURM_ARRAY_JOB_ID-}")
ARRAY_TASK_ID=$(only '[0-9]{1,9}' "${SLURM_ARRAY_TASK_ID-}")
PARTITION=$(only '[A-Za-z0-9_.-]{1,64}' "${SLURM_JOB_PARTITION-}")
ACCOUNT=$(only '[A-Za-z0-9_.@+-]{1,64}' "${SLURM_JOB_ACCOUNT-}")
GPUS=$(only '[A-Za-z0-9:_-]{1,64}(,[A-Za-z0-9:_-]{1,64}){0,63}' "${SLURM_JOB_GPUS-}")
END
chmod 0644 -- "$draft"
mv -T -- "$draft" "$records/$job_id"
