#!/bin/sh
# TaskProlog of slurm.conf(5), for sites that load no plugin: slurmd runs it as the user for the batch script and each
# task, and puts the "export" lines that it prints into the task's environment.
#
# It does for variables what deploy/slurm/spank does for options: the site's default level, the least level or none in a
# partition, the probe's folder, the share of a GPU. It reads tidegauge-tasks.conf beside it, one argument a line, the
# same as in plugstack.conf (docs/slurm_flag.md). A site that has a TaskProlog calls this one at its end.
#
# Not -e, and no command that can fail at the end: a TaskProlog that fails ends the task. No program is started either,
# for this runs once for each rank.
set -uf

site=${0%/*}/tidegauge-tasks.conf
partition=${SLURM_JOB_PARTITION-}
default=off least=-1 least_level='' denied=no probe='' shards_per_gpu='' cap_shares=no mps_shares=no

# Sets $number to the place of a level in the order from nothing to everything, -1 for any other word.
number_level() {
  case $1 in
    off) number=0 ;;
    dormant) number=1 ;;
    stats) number=2 ;;
    auto) number=3 ;;
    trace) number=4 ;;
    *) number=-1 ;;
  esac
}

# Whether a text is a whole number from 1 to 999999: longer ones could overflow what is multiplied below.
is_count() {
  case $1 in
    '' | 0* | *[!0-9]* | ???????*) return 1 ;;
  esac
}

# Sets $millionths of a decimal number from 0 to 1, rounded down; -1 for any other text.
read_millionths() {
  millionths=-1
  case $1 in
    '' | . | *[!0-9.]* | *.*.*) return ;;
    *.*) whole=${1%%.*} parts=${1#*.}000000 ;;
    *) whole=$1 parts=000000 ;;
  esac
  parts=${parts%"${parts#??????}"}
  case $whole in
    '' | 0) millionths=$((1$parts - 1000000)) ;; # the 1 in front: 0 in front would make it octal
    1) [ "$parts" = 000000 ] && millionths=1000000 ;;
  esac
}

# Sets $fraction, such as 0.234375, from its millionths (below one million).
write_millionths() {
  fraction=$((1000000 + $1))
  fraction=0.${fraction#1}
}

read_site() {
  while read -r line || [ -n "$line" ]; do
    value=${line#*=}
    case $line in
      default=*)
        number_level "$value"
        [ "$number" -ge 0 ] && default=$value
        ;;
      probe=/*) probe=$value ;;
      shards_per_gpu=*) is_count "$value" && shards_per_gpu=$value ;;
      cap_shares=yes) cap_shares=yes ;;
      mps_shares=yes) mps_shares=yes ;;
      "force=$partition:"*)
        number_level "${value#"$partition":}"
        [ "$number" -gt "$least" ] && least=$number least_level=${value#"$partition":}
        ;;
      "deny=$partition") denied=yes ;;
    esac
  done <"$site"
}

# Sets $share to the millionths of each of its GPUs that the task was given, 0 where it shares none.
find_share() {
  share=0
  if [ -n "$shards_per_gpu" ] && is_count "${SLURM_SHARDS_ON_NODE-}"; then
    IFS=,
    # shellcheck disable=SC2086 # it is to be split at the commas
    set -- ${CUDA_VISIBLE_DEVICES-}
    unset IFS
    if [ "$SLURM_SHARDS_ON_NODE" -lt $((shards_per_gpu * $#)) ]; then
      share=$((SLURM_SHARDS_ON_NODE * 1000000 / (shards_per_gpu * $#)))
      return
    fi
  fi
  percentage=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-}
  if [ "$mps_shares" = yes ] && is_count "$percentage" && [ "$percentage" -lt 100 ]; then
    share=$((percentage * 10000))
  fi
}

# Sets $PYTHONPATH with the probe's folder in front and no empty entry (it would mean the current directory).
prepend_probe() {
  found=$probe
  IFS=:
  # shellcheck disable=SC2086 # it is to be split at the colons
  set -- ${PYTHONPATH-}
  unset IFS
  for entry; do
    [ -n "$entry" ] && [ "$entry" != "$probe" ] && found=$found:$entry
  done
  PYTHONPATH=$found
}

main() {
  [ -r "$site" ] && read_site
  if [ $denied = yes ]; then
    echo "unset TIDEGAUGE_PROFILE"
    return
  fi
  cap=${TIDEGAUGE_MEMORY_FRACTION-}
  find_share
  if [ $share -gt 0 ]; then
    write_millionths $share
    echo "export TIDEGAUGE_GPU_SHARE=$fraction"
    read_millionths "$cap"
    # One part in 16 is left to what lies outside PyTorch's allocator, as with `tidegauge run --gpu-share`.
    limit=$((share * 15 / 16))
    if [ $cap_shares = yes ] && [ $limit -gt 0 ] && { [ $millionths -le 0 ] || [ $millionths -gt $limit ]; }; then
      write_millionths $limit
      cap=$fraction
      echo "export TIDEGAUGE_MEMORY_FRACTION=$cap"
    fi
  fi
  level=${TIDEGAUGE_PROFILE-}
  [ -z "$level" ] && [ "$default" != off ] && level=$default
  # The probe applies a cap: the least level that makes it run, or the cap would be a mere wish.
  [ -z "$level" ] && [ -n "$cap" ] && level=dormant
  number_level "$level"
  if [ $number -lt "$least" ]; then
    number=$least level=$least_level
  fi
  [ $number -lt 0 ] && return
  echo "export TIDEGAUGE_PROFILE=$level"
  case ${PYTHONPATH-} in
    *'
'*) return ;; # a line break cannot be said to slurmd
  esac
  if [ $number -gt 0 ] && [ -n "$probe" ] && [ -d "$probe" ]; then
    prepend_probe
    printf 'export PYTHONPATH=%s\n' "$PYTHONPATH" # the echo of some shells reads backslashes
  fi
}

main
exit 0
