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
while read -r line || [ -n "$line" ]; do
    case $line in
        mail=/*) mail=${line#*=} ;;
        tidegauge=/*) tidegauge=${line#*=} ;;
        api=http*) api=${line#*=} ;;
    esac
done 2>/dev/null <"${BASH_SOURCE[0]%/*}/tidegauge-mail.conf"

# "Slurm Job_id=7 Name=train Ended, Run time 00:01:02, COMPLETED, ExitCode 0", "Slurm Array Task Job_id=7_3 (9) Name=...";
# not the summary of an array, "Job_id=7_* (7)". A name may hold such words too: they come behind the number.
subject=''
[ "${1-}" != -s ] || subject=${2-}
said=''
if [[ $subject =~ ^[^=]*Job_id=([0-9]+(_[0-9]+)?)\ .*\ (Ended|Failed), ]]; then
    said=$(HOME=${HOME:-/} timeout -k 1 2 "$tidegauge" job "${BASH_REMATCH[1]}" --brief --wait 1 ${api:+--api "$api"} \
        </dev/null 2>/dev/null | head -c 1000) || said=''
fi
[ -n "$said" ] || exec "$mail" "$@"
{
    cat
    printf '\nGPU memory by Tidegauge: %s\n' "$said"
} 2>/dev/null | exec "$mail" "$@"
exit "${PIPESTATUS[1]}"
