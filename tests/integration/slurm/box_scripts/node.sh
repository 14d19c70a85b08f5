#!/bin/bash
# The first process of one node of a Slurm box, in its own network, names, mounts, IPC and process numbers (boot.sh).
# It goes on without slurmd, which a test may end. Argument: the node's name. Environment: as boot.sh.
set -euo pipefail
name=$1
mapfile -t visible <<<"$BOX_VISIBLE"

hostname "$name"
mount -t proc proc /proc
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

# Own /run: the socket of munge is that of the box, everything else is the node's.
mount -t tmpfs -o mode=0755 tmpfs /mnt
install -d /mnt/munge /mnt/slurm /mnt/lock
install -d -m 1777 /mnt/tidegauge
mount --bind /run/munge /mnt/munge
mount --no-mtab --move /mnt /run   # mount's own notes about mounts are in the /run that goes

# Own /tmp, but for the folders that all hosts share.
mount -t tmpfs -o mode=1777 tmpfs /mnt
for folder in "${visible[@]}"; do
  case $folder in
    /tmp/*)
      mkdir -p "/mnt/${folder#/tmp/}"
      mount --bind "$folder" "/mnt/${folder#/tmp/}"
      ;;
  esac
done
mount --no-mtab --move /mnt /tmp

slurmd -N "$name"
# Now and then the controller loses the first word of a node, and asks for it only seconds later. A slurmd that begins
# again says it again. (`scontrol reconfigure` makes the controller ask too, but what a node starts while it reads its
# files anew can lose its output.)
while sleep 2 && [[ $(sinfo -h -n "$name" -o %T) == unknown* ]]; do
  echo "$(date +%T.%3N) $name begins again"
  pid=$(cat /run/slurm/slurmd.pid) && kill "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
  slurmd -N "$name" || true
done
sleep infinity &
wait "$!"
