#!/bin/bash
# MailProg of slurm.conf(5), run by slurmctld as SlurmUser: MailProg -s SUBJECT USER, with the body on standard input.
# Below the body of a mail on a job's end it adds what the job used of its GPUs, and hands all to the site's mail program
# (docs/slurm.md). It reads tidegauge-mail.conf beside it:
#
#   mail=/usr/bin/mail               the site's mail program, as MailProg was before
#   tidegauge=/usr/local/bin/tidegauge
#   api=http://10.0.0.1:9495         where the head is; not needed on its own host
#
# Whatever fails here, or takes longer than two seconds, the mail goes as it came.
set -uf -o pipefail
export PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}

mail=/usr/bin/mail tidegauge=/usr/local/bin/tidegauge api=''
conf=${BASH_SOURCE[0]%/*}/tidegauge-mail.conf
[ -e "$conf" ] || conf=$(readlink -f -- "${BASH_SOURCE[0]}") && conf=${conf%/*}/tidegauge-mail.conf
# A value is one word: without quotes around it, a comment behind it and the line ends of other systems.
setting='^[[:space:]]*(mail|tidegauge|api)[[:space:]]*=[[:space:]]*["'\'']?([^[:space:]"'\''#]+)'
while read -r line || [ -n "$line" ]; do
    [[ $line =~ $setting ]] || continue
    case ${BASH_REMATCH[1]}=${BASH_REMATCH[2]} in
        mail=/*) mail=${BASH_REMATCH[2]} ;;
        tidegauge=/*) tidegauge=${BASH_REMATCH[2]} ;;
        api=http*) api=${BASH_REMATCH[2]} ;;
    esac
done 2>/dev/null <"$conf"
for other in /usr/bin/mail /bin/mail /usr/bin/mailx /usr/bin/s-nail; do
    [ -x "$mail" ] && [ ! -d "$mail" ] && break
    echo "tidegauge mailprog.sh: cannot run '$mail' (mail= in $conf); trying $other" >&2
    mail=$other
done

# "Slurm Job_id=7 Name=train Ended, Run time 00:01:02, COMPLETED, ExitCode 0", "Slurm Array Task Job_id=7_3 (9) Name=...";
# not the summary of an array, "Job_id=7_* (7)". A name may hold such words too: they come behind the number, and before
# what Slurm says of the end.
ended='^[^=]*Job_id=([0-9]+(_[0-9]+)?) .* (Ended|Failed), Run time ([0-9]+-)?([0-9]+):([0-9]+):([0-9]+)(, [[:upper:]_]+(, [^,]*)?)?$'
subject='' said=''
[ "${1-}" != -s ] || subject=${2-}
if [[ $subject =~ $ended ]]; then
    job=${BASH_REMATCH[1]} days=${BASH_REMATCH[4]%-}
    ran_s=$((86400 * 10#${days:-0} + 3600 * 10#${BASH_REMATCH[5]} + 60 * 10#${BASH_REMATCH[6]} + 10#${BASH_REMATCH[7]}))
    # Slurm counts no time in which a job was suspended.
    [[ ${SLURM_JOB_START_TIME-} =~ ^[1-9][0-9]{8,11}$ ]] && ran_s=$(($(date +%s) - SLURM_JOB_START_TIME))
    [[ ${SLURM_JOB_UID-} =~ ^[0-9]+$ ]] && uid=$SLURM_JOB_UID || uid=''
    # A job of the same number that ended before this one started is another one; a minute for clocks that differ.
    ask=("$tidegauge" job "$job" --brief --wait 1 --since "$((ran_s + 60))s" ${uid:+--uid "$uid"} ${api:+--api "$api"})
    # The whole group is killed, with what the program may have left running.
    { said=$(HOME=${HOME:-/} timeout -s KILL 2 bash -c 'set -o pipefail; "$@" | head -c 1000' - "${ask[@]}" </dev/null) ||
        said=''; } 2>/dev/null
fi
[ -n "$said" ] || exec "$mail" "$@"
{
    cat
    printf '\nGPU memory by Tidegauge: %s\n' "$said"
} 2>/dev/null | exec "$mail" "$@"
exit "${PIPESTATUS[1]}"
